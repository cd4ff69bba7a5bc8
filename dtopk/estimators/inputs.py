"""Features that are on disk: read into memory as a whole, or batch by batch."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import sklearn.utils.validation
import zarr
from numpy.typing import NDArray

from dtopk.engine.memory import free_memory
from dtopk_storage import FeatureStore, check_finite

Array = NDArray[Any]

_SHARE_OF_FREE = 0.6
"""Share of the free memory that features may take; the duals and the weights need theirs."""


def validate_data(estimator: Any, *arrays: Any, **options: Any) -> Any:
    """Have scikit-learn validate arrays, and say nothing of sums that overflow in that.

    It looks at the sum of all features first, which of large ones is infinite, or NaN.

    Parameters
    ----------
    estimator : estimator
    *arrays
        X, or X and y.
    **options
        Of `sklearn.utils.validation.validate_data`.
    """
    with np.errstate(over="ignore", invalid="ignore"):
        return sklearn.utils.validation.validate_data(estimator, *arrays, **options)


def load_zarr(X: zarr.Array[Any]) -> Array:
    """Read a zarr array of features, a few chunks at a time, in its own dtype.

    Parameters
    ----------
    X : zarr.Array of shape (n_samples, n_features)

    Returns
    -------
    ndarray of shape (n_samples, n_features), C-contiguous

    Raises
    ------
    ValueError
        If it has another number of dimensions, or does not fit into memory.
    """
    _check_matrix(X)
    n_bytes = X.shape[0] * X.shape[1] * X.dtype.itemsize
    limit = int(_SHARE_OF_FREE * free_memory())
    if n_bytes > limit:
        raise ValueError(
            f"X must take at most {limit:,} bytes of memory, got a zarr array of {n_bytes:,} "
            f"bytes ({X.shape[0]:,} x {X.shape[1]:,} {X.dtype}). Make a feature store of it with "
            "`dtopk ingest`, and fit that: it is streamed from disk."
        )
    values = np.empty(X.shape, X.dtype)
    for start in range(0, len(values), X.chunks[0]):
        values[start : start + X.chunks[0]] = np.asarray(X[start : start + X.chunks[0]])
    return values


def iter_features(X: FeatureStore | zarr.Array[Any], batch_rows: int) -> Iterator[Array]:
    """Read all rows of features on disk, in their order.

    Parameters
    ----------
    X : FeatureStore or zarr.Array of shape (n_samples, n_features)
    batch_rows : int
        Most rows in a batch.

    Yields
    ------
    ndarray of shape (n_rows, n_features), dtype at rest

    Raises
    ------
    DatasetError
        If a chunk of a store is damaged, or holds NaN or infinity.
    ValueError
        If a zarr array has another number of dimensions.
    """
    if isinstance(X, FeatureStore):
        for batch in X.iter_batches(batch_rows=batch_rows):
            check_finite(batch.X, batch.start, X.path, chunk_rows=X.chunk_rows)
            yield batch.X
        return
    _check_matrix(X)
    # Whole chunks where they are not too large, so that each is read and unpacked once.
    rows = max(batch_rows // X.chunks[0] * X.chunks[0], min(batch_rows, X.chunks[0]))
    for start in range(0, max(X.shape[0], 1), rows):
        yield np.asarray(X[start : start + rows])


def _check_matrix(X: zarr.Array[Any]) -> None:
    if X.ndim != 2:
        raise ValueError(f"X must be of shape (n_samples, n_features), got shape {X.shape}.")
