"""Dask arrays: recognise them, spool them, predict them block by block.

Dask is imported when there is a Dask array and not before, since that takes most of a second.
"""

import copy
import functools
import sys
import uuid
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, TypeGuard

import numpy as np
from numpy.typing import DTypeLike, NDArray

from dtopk.estimators.spool import Spool, check_label_type
from dtopk.model import select_topk

if TYPE_CHECKING:
    from dtopk.launch import Client

Array = NDArray[Any]
DaskArray = Any
"""A dask.array.Array, most of whose methods have no types."""


def is_dask_array(value: object) -> TypeGuard[DaskArray]:
    """Tell whether something is a Dask array; imports nothing.

    Parameters
    ----------
    value : object

    Raises
    ------
    TypeError
        If it is another collection of Dask's, which numpy would fetch as a whole.
    """
    module, base = sys.modules.get("dask.array"), sys.modules.get("dask.base")
    if module is not None and isinstance(value, module.Array):
        return True
    if base is not None and base.is_dask_collection(value):
        raise TypeError(
            f"X, y and sample_weight must be arrays, got a {type(value).__name__} of Dask's. A "
            "dataframe or series becomes a Dask array by .to_dask_array(lengths=True)."
        )
    return False


def check_features(X: DaskArray) -> None:
    """Refuse a Dask array that holds no features.

    Parameters
    ----------
    X : dask.array.Array

    Raises
    ------
    ValueError, TypeError
    """
    if X.ndim != 2:
        raise ValueError(f"X must be of shape (n_samples, n_features), got shape {X.shape}.")
    if X.dtype.kind not in "biufO":
        raise ValueError(f"X must hold real numbers, got the type {X.dtype}.")
    _check_blocks("X", X)
    if np.isnan(X.shape[1]):
        raise ValueError(_unknown("X", X))


def check_column(name: str, values: Array | DaskArray, n_samples: int) -> None:
    """Refuse what is not a value for each row.

    Parameters
    ----------
    name : str
        What the user calls it.
    values : ndarray or dask.array.Array
    n_samples : int

    Raises
    ------
    ValueError, TypeError
    """
    if is_dask_array(values):
        _check_blocks(name, values)
    if values.ndim != 1:
        raise ValueError(f"{name} must be of shape (n_samples,), got shape {values.shape}.")
    check_sizes(name, values)
    if len(values) != n_samples:
        raise ValueError(
            f"X and {name} must have the same number of rows, got {n_samples} and {len(values)}."
        )
    if name == "y":
        check_label_type(values.dtype)
    elif values.dtype.kind not in "biufO":
        raise ValueError(f"{name} must hold real numbers, got the type {values.dtype}.")


def check_sizes(name: str, values: DaskArray) -> None:
    """Refuse chunks of unknown size.

    Parameters
    ----------
    name : str
        What the user calls the array.
    values : dask.array.Array

    Raises
    ------
    ValueError
    """
    if np.isnan(values.shape).any():
        raise ValueError(_unknown(name, values))


def _unknown(name: str, values: DaskArray) -> str:
    return (
        f"{name} must have chunks of known sizes, got shape {values.shape}. Call "
        f"{name}.compute_chunk_sizes() first."
    )


def _check_blocks(name: str, values: DaskArray) -> None:
    if not isinstance(values._meta, np.ndarray):
        raise TypeError(
            f"{name} must be made of NumPy arrays, got a Dask array of "
            f"{type(values._meta).__name__}."
        )


def fill_spool(
    spool: Spool,
    client: "Client | None",
    X: Array | DaskArray,
    y: Array | DaskArray,
    sample_weight: Array | DaskArray | None,
) -> None:
    """Have the rows written: those of Dask arrays in one computation, by whoever holds them.

    Parameters
    ----------
    spool : Spool
    client : distributed.Client or None
        Of the workers that compute; None: as Dask is set to.
    X : ndarray or dask.array.Array of shape (n_samples, n_features)
    y : ndarray or dask.array.Array of shape (n_samples,)
    sample_weight : ndarray or dask.array.Array of shape (n_samples,), or None

    Raises
    ------
    ValueError, TypeError
        As of `Spool`'s methods.
    """
    tasks = []
    for values, put in (
        (y, spool.put_labels),
        (sample_weight, spool.put_weight),
        (X, spool.put_features),
    ):
        if is_dask_array(values):
            tasks.append(_write_lazily(values, put, spool))
        elif values is not None:
            for chunk in range(spool.n_chunks):
                put(values[slice(*spool.rows_of(chunk))], chunk)
    if tasks:
        # Imported here: Dask takes most of a second.
        from dtopk.estimators.clients import compute

        compute(client, tasks)


def _write_lazily(values: DaskArray, put: Callable[[object, int], None], spool: Spool) -> DaskArray:
    rows = (spool.chunk_rows, *[-1] * (values.ndim - 1))
    # Neighbouring chunks are put together, for which there is no need to shuffle by way of disks.
    return values.rechunk(rows, method="tasks").map_blocks(
        _write,
        put,
        dtype=np.uint8,
        chunks=((1,) * spool.n_chunks, *[(1,)] * (values.ndim - 1)),
        meta=np.empty((0,) * values.ndim, np.uint8),
        name=f"dtopk-{put.__name__}-{uuid.uuid4().hex}",
    )


def _write(
    block: Array, put: Callable[[object, int], None], block_id: tuple[int, ...] = ()
) -> NDArray[np.uint8]:
    put(block, block_id[0])
    return np.ones((1,) * len(block_id), np.uint8)


def map_method(
    estimator: Any,
    X: DaskArray,
    method: str,
    *arguments: Any,
    dtype: DTypeLike,
    width: int | None = None,
) -> DaskArray:
    """Call a method of a fitted estimator on the rows of each block, when it is computed.

    Parameters
    ----------
    estimator : TopKClassifier
    X : dask.array.Array of shape (n_samples, n_features)
    method : str
    *arguments : object
        For the method, after the rows.
    dtype : dtype
        Of what it returns.
    width : int or None
        Columns of what it returns; None: it has one dimension.

    Returns
    -------
    dask.array.Array of shape (n_samples,) or (n_samples, width)
        In the chunks of the rows of X.
    """
    shape = () if width is None else (width,)
    call = functools.partial(
        _call_method, method=method, arguments=arguments, shape=shape, dtype=np.dtype(dtype)
    )
    known: dict[str, Any] = {"drop_axis": 1}
    if width is not None:
        known = {"chunks": (X.chunks[0], (width,))}
    rows = X if X.numblocks[1] == 1 else X.rechunk({1: -1}, method="tasks")
    return rows.map_blocks(
        call,
        _place_model(estimator),
        dtype=dtype,
        meta=np.empty((0,) * (1 + len(shape)), dtype),
        name=f"dtopk-{method}-{uuid.uuid4().hex}",
        **known,
    )


def map_topk(
    estimator: Any, X: DaskArray, k: int, *, score_dtype: np.dtype[Any]
) -> tuple[DaskArray, DaskArray]:
    """Name the k best classes of the rows of each block, when it is computed.

    Parameters
    ----------
    estimator : TopKClassifier
    X : dask.array.Array of shape (n_samples, n_features)
    k : int
    score_dtype : dtype

    Returns
    -------
    labels, scores : dask.array.Array of shape (n_samples, k)
        Computed together, they take the scores of all classes once.

    Raises
    ------
    ValueError
        If k is not a number of classes.
    """
    classes = estimator.classes_
    select_topk(np.empty((0, len(classes))), k)
    both = np.dtype([("column", np.intp), ("score", score_dtype)])
    found = map_method(estimator, X, "_pack_topk", k, dtype=both, width=k)
    labels = found["column"].map_blocks(
        _name_classes,
        _place(classes, classes.nbytes, estimator.client),
        dtype=classes.dtype,
        meta=np.empty((0, 0), classes.dtype),
        name=f"dtopk-predict_topk-{uuid.uuid4().hex}",
    )
    return labels, found["score"]


def _name_classes(columns: NDArray[np.intp], classes: Array) -> Array:
    names: Array = classes[columns]
    return names


def compute_column(client: "Client | None", values: DaskArray) -> Array:
    """Compute a column as a whole.

    Parameters
    ----------
    client : distributed.Client or None
        As the estimator has it.
    values : dask.array.Array of shape (n_samples,)
    """
    from dtopk.estimators.clients import compute, use_client

    with use_client(client) as found:
        (column,) = compute(found, [values])
    return np.asarray(column)


def iter_blocks(client: "Client | None", values: DaskArray) -> Iterator[Array]:
    """Compute an array block of rows by block, and hold one of them at a time.

    Parameters
    ----------
    client : distributed.Client or None
        As the estimator has it.
    values : dask.array.Array of shape (n_samples,) or (n_samples, n_columns)
        Cut between rows alone.

    Yields
    ------
    ndarray of shape (n_rows,) or (n_rows, n_columns)
    """
    from dtopk.estimators.clients import compute, use_client

    for place in range(values.numblocks[0]):
        with use_client(client) as found:
            (block,) = compute(found, [values.blocks[place]])
        yield np.asarray(block)


def mean_accuracy(
    client: "Client | None",
    predicted: Array | DaskArray,
    y: Any,
    sample_weight: Any,
) -> float:
    """Compute the share of rows, by their weights, whose class is predicted.

    Parameters
    ----------
    client : distributed.Client or None
        As the estimator has it.
    predicted : ndarray or dask.array.Array of shape (n_samples,)
    y : array-like or dask.array.Array of shape (n_samples,)
    sample_weight : array-like or dask.array.Array of shape (n_samples,), or None

    Returns
    -------
    float

    Raises
    ------
    ValueError
        If they are not of the same length, or of unknown lengths.
    """
    # Imported here: Dask takes most of a second.
    from dtopk.estimators.clients import compute, use_client

    if is_dask_array(predicted):
        check_sizes("X", predicted)
    n_samples = len(predicted)
    columns = {"y": y} if sample_weight is None else {"y": y, "sample_weight": sample_weight}
    with use_client(client) as found:
        for name, values in columns.items():
            columns[name] = values if is_dask_array(values) else np.asarray(values)
            check_column(name, columns[name], n_samples)
            columns[name] = _spread(columns[name], found)
        right = _spread(predicted, found) == columns["y"]
        if sample_weight is None:
            (share,) = compute(found, [right.mean()])
            return float(share)
        weight = columns["sample_weight"].astype(np.float64)
        (share,) = compute(found, [(right * weight).sum() / weight.sum()])
        return float(share)


def _spread(values: Array | DaskArray, client: "Client | None") -> DaskArray:
    """Make a Dask array of a column; what is large is sent to workers, and is in no graph."""
    if is_dask_array(values):
        return values
    # Imported here: Dask takes most of a second.
    import dask.array as da

    from dtopk.estimators.clients import MESSAGE_BYTES, send

    rows = max(MESSAGE_BYTES // values.itemsize, 1)
    if client is None or values.nbytes <= MESSAGE_BYTES:
        return da.from_array(values, chunks=rows, name=False)  # type: ignore[no-untyped-call]
    parts = [values[start : start + rows] for start in range(0, len(values), rows)]
    return da.concatenate(  # type: ignore[no-untyped-call]
        [
            da.from_delayed(  # type: ignore[no-untyped-call]
                send(client, part, everywhere=False), part.shape, part.dtype
            )
            for part in parts
        ]
    )


def _call_method(
    block: Array,
    estimator: Any,
    *,
    method: str,
    arguments: tuple[Any, ...],
    shape: tuple[int, ...],
    dtype: np.dtype[Any],
) -> Array:
    if len(block) == 0:
        return np.empty((0, *shape), dtype)
    values: Array = getattr(estimator, method)(block, *arguments)
    return values.astype(dtype, copy=False)


def _place_model(estimator: Any) -> Any:
    """Return what stands for a fitted estimator in a graph."""
    model = copy.copy(estimator)  # without its client
    # Blocks have no names of features; that the whole array has none has been seen by now.
    model.__dict__.pop("feature_names_in_", None)
    n_bytes = model.coef_.nbytes + model.classes_.nbytes
    if hasattr(model, "calibration_"):
        n_bytes += model.calibration_.conformal_scores.nbytes
    return _place(model, n_bytes, estimator.client)


def _place(value: object, n_bytes: int, client: "Client | None") -> Any:
    """Return what stands for a value in a graph, which has it once at most.

    A large one is sent to the workers of the client ahead, so that the scheduler never has it.
    """
    # Imported here: Dask takes most of a second.
    from dask.delayed import delayed

    from dtopk.estimators.clients import MESSAGE_BYTES, find_client, send

    found = find_client(client)
    if found is not None and n_bytes > MESSAGE_BYTES:
        return send(found, value, everywhere=True)
    return delayed(value, name=f"dtopk-model-{uuid.uuid4().hex}", traverse=False)
