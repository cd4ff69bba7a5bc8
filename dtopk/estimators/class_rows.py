"""The rows that a classifier is trained and measured on, wherever they lie.

All of them are checked with the estimator's own parameters; it takes note of the features' number
and names.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
import zarr
from numpy.typing import ArrayLike, NDArray
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import (
    _check_feature_names,
    _check_n_features,
    _check_sample_weight,
    check_consistent_length,
    column_or_1d,
)

from dtopk.engine import ArrayRows, Rows, StoreRows, class_totals
from dtopk.estimators.calibrated import encode_labels
from dtopk.estimators.dask_arrays import (
    DaskArray,
    check_column,
    check_features,
    check_sizes,
    compute_column,
    fill_spool,
    is_dask_array,
    iter_blocks,
)
from dtopk.estimators.evaluation_sets import Batches, check_split, slice_batches
from dtopk.estimators.inputs import load_zarr, validate_data
from dtopk.estimators.linear import batch_rows, feature_dtypes, kept_dtype
from dtopk.estimators.place import Place
from dtopk.estimators.spool import plan_spool
from dtopk.evaluation import match_classes
from dtopk_storage import FeatureStore, check_batch

if TYPE_CHECKING:
    from dtopk.estimators.classifier import TopKClassifier

Array = NDArray[Any]
Features = ArrayLike | FeatureStore | zarr.Array[Any] | DaskArray
TrainingRows = tuple[Rows, Array, NDArray[np.float64]]
"""The rows, the classes, and the sum of the weights of each."""


def take_rows(
    estimator: "TopKClassifier",
    place: Place,
    X: Features,
    y: ArrayLike | DaskArray | None,
    sample_weight: ArrayLike | DaskArray | None,
) -> TrainingRows:
    """Check what `fit` was given, and bring it to where it is trained on.

    Parameters
    ----------
    estimator : TopKClassifier
    place : Place
    X, y, sample_weight
        As `TopKClassifier.fit` takes them.

    Returns
    -------
    rows : Rows
    classes : ndarray of shape (n_classes,)
    totals : ndarray of shape (n_classes,), float64
        Sum of the weights of each class.

    Raises
    ------
    TypeError, ValueError
    """
    if isinstance(X, FeatureStore):
        return _open_store(estimator, X, y, sample_weight)
    if place.spool is None:
        return _take_arrays(estimator, X, y, sample_weight)
    return _spool_arrays(estimator, place, X, y, sample_weight)


def check_dask(estimator: Any, X: DaskArray, *, reset: bool = False) -> None:
    """Check the features of a Dask array as far as they are known before it is computed.

    Parameters
    ----------
    estimator : estimator
    X : dask.array.Array
    reset : bool
        Whether the estimator takes note of their number and names, or they must be those.
    """
    check_features(X)
    _check_feature_names(estimator, X, reset=reset)
    _check_n_features(estimator, X, reset=reset)


def _take_arrays(
    estimator: "TopKClassifier",
    X: ArrayLike | zarr.Array[Any],
    y: ArrayLike | None,
    sample_weight: ArrayLike | None,
) -> TrainingRows:
    """Return the rows, the classes and the sum of the weights of each."""
    if isinstance(X, zarr.Array):
        X = load_zarr(X)
    features, labels = validate_data(
        estimator, X, y, dtype=feature_dtypes(estimator.dtype), order="C"
    )
    check_classification_targets(labels)
    classes, codes = np.unique(labels, return_inverse=True)
    weight = _check_sample_weight(
        sample_weight, features, dtype=np.float64, ensure_non_negative=True
    )
    totals = np.bincount(codes, weight, len(classes)).astype(np.float64, copy=False)
    return ArrayRows(features, codes.astype(np.int32), len(classes), weight), classes, totals


def open_set(
    estimator: "TopKClassifier", number: int, pair: tuple[Features, Any], classes: Array
) -> Batches:
    """Return what goes through the rows of a set of `eval_set`, checked.

    Parameters
    ----------
    estimator : TopKClassifier
    number : int
        Of the set.
    pair : tuple
        X and y.
    classes : ndarray of shape (n_classes,)

    Raises
    ------
    TypeError, ValueError
    """
    X, y = pair
    name = f"eval_set[{number}]"
    if isinstance(X, FeatureStore):
        return _open_split(estimator, name, X, y, classes)
    if is_dask_array(X):
        check_dask(estimator, X)
        check_sizes(name, X)
        X = np.concatenate(list(iter_blocks(estimator.client, X.rechunk({1: -1}))))
    elif isinstance(X, zarr.Array):
        X = load_zarr(X)
    features = validate_data(estimator, X, dtype=feature_dtypes(estimator.dtype), reset=False)
    codes = encode_labels(
        f"y of {name}", compute_column(estimator.client, y) if is_dask_array(y) else y, classes
    )
    check_consistent_length(features, codes)
    return slice_batches(codes, features, batch_rows(estimator.n_features_in_, len(classes)))


def _open_split(
    estimator: "TopKClassifier", name: str, store: FeatureStore, split: Any, classes: Array
) -> Batches:
    """Return what goes through the rows of a split of a store, checked."""
    split = check_split(name, store, split, "multiclass", estimator.n_features_in_)
    unknown = np.flatnonzero(match_classes(store.class_names, classes) < 0)
    for start, stop in store.split_ranges(split) if len(unknown) else ():
        found = np.intersect1d(store.read_labels(start, stop), unknown)
        if len(found):
            raise ValueError(
                f"y of {name} must hold labels that the estimator was fitted on, its "
                f"{len(classes)} classes_, got {store.class_names[int(found[0])]!r}."
            )
    n_rows = batch_rows(store.n_features, len(classes))
    return lambda: iter_split(store, split, classes, n_rows)


def _spool_arrays(
    estimator: "TopKClassifier",
    place: Place,
    X: ArrayLike | zarr.Array[Any] | DaskArray,
    y: ArrayLike | DaskArray | None,
    sample_weight: ArrayLike | DaskArray | None,
) -> TrainingRows:
    """Write the rows to where workers see them; return as of `take_rows`."""
    features: Array | DaskArray
    if is_dask_array(X):
        features = X
        check_dask(estimator, features, reset=True)
        check_sizes("X", features)
    else:
        features = load_zarr(X) if isinstance(X, zarr.Array) else X
        features = validate_data(
            estimator, features, dtype=feature_dtypes(estimator.dtype), order="C"
        )
    n_samples, n_features = features.shape
    if n_samples == 0:
        raise ValueError("X must have at least 1 row, got none.")
    if y is None:
        raise ValueError("y must be given for an array of features, got None.")
    y = _take_column("y", y, n_samples)
    if sample_weight is not None:
        sample_weight = _take_column("sample_weight", sample_weight, n_samples)
    assert place.spool is not None
    spool = plan_spool(
        place.spool,
        n_samples=n_samples,
        n_features=n_features,
        dtype=kept_dtype(features.dtype, estimator.dtype),
        sample_weight=sample_weight is not None,
        n_parts=place.count_partitions(estimator.partitions, n_samples),
    )
    fill_spool(spool, place.client, features, y, sample_weight)
    store, classes = spool.finish()
    rows = StoreRows(store, "train")
    return rows, classes.astype(object) if y.dtype == object else classes, class_totals(rows)


def _open_store(
    estimator: "TopKClassifier",
    store: FeatureStore,
    y: ArrayLike | None,
    sample_weight: ArrayLike | None,
) -> TrainingRows:
    """Return the rows of the training split, the classes and the sum of each one's weights."""
    for name, value in (("y", y), ("sample_weight", sample_weight)):
        if value is not None:
            raise ValueError(
                f"{name} must be left out for a feature store, which holds its own, "
                f"got a {type(value).__name__}."
            )
    if store.kind != "multiclass":
        raise ValueError(f"kind of {store.path!r} must be 'multiclass', got {store.kind!r}.")
    rows = StoreRows(store, "train")
    totals = class_totals(rows)
    estimator.n_features_in_ = store.n_features
    estimator.__dict__.pop("feature_names_in_", None)
    return rows, store.classes, totals


def iter_split(
    store: FeatureStore, split: str, classes: Array, n_rows: int
) -> Iterator[tuple[NDArray[np.int64], Array]]:
    """Read a split batch by batch, with labels as places among the classes.

    Parameters
    ----------
    store : FeatureStore
    split : str
    classes : ndarray of shape (n_classes,)
    n_rows : int
        Most rows in a batch.

    Yields
    ------
    y : ndarray of shape (n_rows,), int64
    X : ndarray of shape (n_rows, n_features), dtype at rest

    Raises
    ------
    DatasetError
        If a chunk is damaged, or holds NaN or infinity.
    ValueError
        If a label is not among the classes.
    """
    columns = match_classes(store.class_names, classes)
    for batch in store.iter_batches(split, n_rows):
        check_batch(batch.X, batch.y, batch.weight, start=batch.start, store=store)
        assert isinstance(batch.y, np.ndarray)
        y = columns[batch.y]
        if (y < 0).any():
            name = store.class_names[int(batch.y[np.argmin(y)])]
            raise ValueError(
                "labels must be classes that the estimator was fitted on, got "
                f"{name!r} in split {split!r} of {store.path!r}."
            )
        yield y, batch.X


def _take_column(name: str, values: ArrayLike | DaskArray, n_samples: int) -> Array | DaskArray:
    """Check what has a value for each row, as far as its type and size go."""
    if is_dask_array(values):
        check_column(name, values, n_samples)
        return values
    column: Array
    if name == "sample_weight" and np.ndim(values) == 0:
        column = np.broadcast_to(np.asarray(values), (n_samples,))
    else:
        column = column_or_1d(values, warn=name == "y")
    check_column(name, column, n_samples)
    return column
