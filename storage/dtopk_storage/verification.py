"""Checks of what a store holds, beyond what opening it needs."""

import os
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dtopk_storage.errors import DatasetError
from dtopk_storage.manifest import TRAIN
from dtopk_storage.statistics import FeatureStatistics
from dtopk_storage.store import FeatureStore, open_store
from dtopk_storage.values import first_nonfinite

# Other tools may sum in another order. Relative to the size of the mean and the deviation.
_STATISTICS_RTOL = 1e-6


def check_finite(X: NDArray[Any], start: int, store_path: str | os.PathLike[str]) -> None:
    """Refuse rows of a store that hold NaN or infinity.

    Parameters
    ----------
    X : ndarray of shape (rows, n_features), float16, float32 or float64, C-contiguous
        As `FeatureStore.read_features` returned it.
    start : int
        Row of the store that X starts with.
    store_path : str or path-like

    Raises
    ------
    DatasetError
        Names the chunk, the row and the column of the first such value.
    """
    found = first_nonfinite(X)
    if found is None:
        return
    row, column = start + found[0], found[1]
    chunk = row // open_store(store_path).chunk_rows
    raise DatasetError(
        f"features must be finite, got {X[found]} in chunk {chunk}, row {row}, column {column} "
        f"of {os.fspath(store_path)!r}. Correct the source and ingest it again."
    )


def verify_store(store: FeatureStore, progress: Callable[[int, int], None] | None) -> None:
    """Read a store whole and check it, as `FeatureStore.verify` says.

    Parameters
    ----------
    store : FeatureStore
    progress : callable or None
        Called with the rows done and all rows, after each chunk.
    """
    statistics = FeatureStatistics(store.n_features)
    seen = np.zeros(store.n_samples if store.has_row_id else 0, bool)
    for batch in store.iter_batches():
        stop = batch.start + len(batch.X)
        check_finite(batch.X, batch.start, store.path)
        _check_labels(store, batch.y, batch.start)
        check_weights(batch.weight, batch.start, repr(store.path))
        if store.has_row_id:
            _mark_rows(store, store.read_row_id(batch.start, stop), batch.start, seen)
        for low, high in store.splits[TRAIN]:
            part = batch.X[max(low, batch.start) - batch.start : max(0, high - batch.start)]
            if len(part):
                statistics.add(part)
        if progress is not None:
            progress(stop, store.n_samples)
    _check_statistics(store, statistics)


def check_weights(weight: NDArray[np.float64], start: int, place: str) -> None:
    """Refuse sample weights that are negative or not finite.

    Parameters
    ----------
    weight : ndarray of shape (rows,), float64
    start : int
        Row that weight starts with, for the message.
    place : str
        What to call their file in the message.

    Raises
    ------
    DatasetError
    """
    wrong = ~(np.isfinite(weight) & (weight >= 0))
    if wrong.any():
        row = int(np.argmax(wrong))
        raise DatasetError(
            f"sample weights must be finite and at least 0, got {weight[row]} "
            f"in row {start + row} of {place}."
        )


def _check_labels(store: FeatureStore, y: NDArray[np.int32], start: int) -> None:
    wrong = (y < 0) | (y >= store.n_classes)
    if wrong.any():
        row = int(np.argmax(wrong))
        raise DatasetError(
            f"labels must lie in 0:{store.n_classes}, got {y[row]} in chunk "
            f"{(start + row) // store.arrays['labels'].chunk_rows}, row {start + row} of "
            f"{str(store.arrays['labels'].path)!r}. Ingest it again."
        )


def _mark_rows(
    store: FeatureStore, row_id: NDArray[np.int64], start: int, seen: NDArray[np.bool_]
) -> None:
    """Mark rows of the source as seen, and refuse one that was, or that cannot be."""
    wrong = (row_id < 0) | (row_id >= len(seen))
    wrong[~wrong] = seen[row_id[~wrong]]
    seen[row_id[~wrong]] = True
    if wrong.any():
        row = int(np.argmax(wrong))
        raise DatasetError(
            f"row_id must hold each of 0:{len(seen)} once, got {row_id[row]} in row "
            f"{start + row} of {store.path!r}. Ingest it again."
        )


def _check_statistics(store: FeatureStore, found: FeatureStatistics) -> None:
    tolerance = _STATISTICS_RTOL * (np.abs(found.mean) + found.std)
    for name, stored, computed in (
        ("feature_mean", store.mean, found.mean),
        ("feature_std", store.std, found.std),
    ):
        wrong = ~(np.abs(stored - computed) <= tolerance)
        if wrong.any():
            column = int(np.argmax(wrong))
            raise DatasetError(
                f"{name} of column {column} of {store.path!r} must be {computed[column]:.9g}, "
                f"as its training rows have it, got {stored[column]:.9g}. Ingest it again."
            )
