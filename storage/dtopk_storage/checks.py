"""Checks of rows as read, which a checksum does not make: another program may have written them."""

import os
from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from dtopk_storage.chunked import ChunkedArray
from dtopk_storage.errors import DatasetError
from dtopk_storage.label_rows import LabelRows, Labels
from dtopk_storage.manifest import (
    FEATURES,
    LABEL_INDICES,
    LABEL_INDPTR,
    LABELS,
    SAMPLE_WEIGHT,
)
from dtopk_storage.values import first_nonfinite


class CheckedStore(Protocol):
    """What a check must know of a store; `FeatureStore` is one, and imports this file."""

    @property
    def path(self) -> str:
        """Folder of the store."""

    @property
    def n_classes(self) -> int:
        """Number of classes."""

    @property
    def arrays(self) -> Mapping[str, ChunkedArray]:
        """The arrays that hold the rows, by name."""


def check_batch(
    X: NDArray[Any],
    labels: Labels,
    weight: NDArray[np.float64],
    *,
    start: int,
    store: CheckedStore,
) -> None:
    """Refuse rows of a store that training cannot take.

    Parameters
    ----------
    X : ndarray of shape (rows, n_features), float16, float32 or float64, C-contiguous
        As `FeatureStore.read_features` returned it.
    labels : ndarray of shape (rows,), int32, or LabelRows
    weight : ndarray of shape (rows,), float64
    start : int
        Row of the store that they start with.
    store : FeatureStore

    Raises
    ------
    DatasetError
        Names the chunk and the row of the first feature that is NaN or infinite, the first
        label outside the classes or out of order, or the first weight that is negative or not
        finite.
    """
    check_finite(X, start, store.path, chunk_rows=store.arrays[FEATURES].chunk_rows)
    check_labels(labels, start=start, store=store)
    bad_weight = _first_bad_weight(weight)
    if bad_weight is not None:
        # Without such an array the weights are ones, and none of them is wrong.
        array = store.arrays[SAMPLE_WEIGHT]
        raise DatasetError(
            f"sample weights must be finite and at least 0, got {weight[bad_weight]} in "
            f"{_describe_row(array, start + bad_weight)}. Correct the source and ingest it again."
        )


def check_labels(labels: Labels, *, start: int, store: CheckedStore) -> None:
    """Refuse labels of a store that are codes of no class, or that do not rise within a row.

    Parameters
    ----------
    labels : ndarray of shape (rows,), int32, or LabelRows
        As `FeatureStore.read_labels` or `FeatureStore.read_label_rows` returned it.
    start : int
        Row of the store that they start with.
    store : FeatureStore

    Raises
    ------
    DatasetError
        Names the chunk and the row of the first such label.
    """
    if isinstance(labels, LabelRows):
        _check_label_rows(labels, start=start, store=store)
        return
    wrong = (labels < 0) | (labels >= store.n_classes)
    if wrong.any():
        row = int(np.argmax(wrong))
        raise DatasetError(
            f"labels must lie in 0:{store.n_classes}, got {labels[row]} in "
            f"{_describe_row(store.arrays[LABELS], start + row)}. Ingest it again."
        )


def check_indptr(indptr: NDArray[np.int64], *, start: int, store: CheckedStore) -> None:
    """Refuse starts of rows, among the labels of a multilabel store, that cannot be.

    Parameters
    ----------
    indptr : ndarray of shape (rows + 1,), int64
        Of `label_indptr`, from entry `start` on.
    start : int
    store : FeatureStore

    Raises
    ------
    DatasetError
        Names the chunk and the row of the first entry that falls, or lies outside the labels.
    """
    n_labels = store.arrays[LABEL_INDICES].shape[0]
    wrong = (indptr < 0) | (indptr > n_labels)
    wrong[1:] |= indptr[1:] < indptr[:-1]
    if start == 0:
        wrong[0] |= indptr[0] != 0
    if wrong.any():
        entry = int(np.argmax(wrong))
        raise DatasetError(
            f"label_indptr must start at 0, never fall, and end at {n_labels}, got "
            f"{indptr[entry]} in {_describe_row(store.arrays[LABEL_INDPTR], start + entry)}. "
            f"Ingest it again."
        )


def _check_label_rows(labels: LabelRows, *, start: int, store: CheckedStore) -> None:
    check_indptr(labels.indptr, start=start, store=store)
    codes = labels.indices
    outside = (codes < 0) | (codes >= store.n_classes)
    if outside.any():
        position = int(np.argmax(outside))
        raise DatasetError(
            f"labels must lie in 0:{store.n_classes}, got {codes[position]} in "
            f"{_describe_label(labels, position, start, store)}. Ingest it again."
        )
    lower = labels.first_not_rising()
    if lower is not None:
        raise DatasetError(
            f"labels of a row must rise, got {codes[lower]} after {codes[lower - 1]} in "
            f"{_describe_label(labels, lower, start, store)}. Ingest it again."
        )


def check_finite(
    X: NDArray[Any],
    start: int,
    store_path: str | os.PathLike[str],
    *,
    chunk_rows: int,
) -> None:
    """Refuse rows of a store that hold NaN or infinity.

    Parameters
    ----------
    X : ndarray of shape (rows, n_features), float16, float32 or float64, C-contiguous
        As `FeatureStore.read_features` returned it.
    start : int
        Row of the store that X starts with.
    store_path : str or path-like
    chunk_rows : int
        Rows in a chunk of features, for the message.

    Raises
    ------
    DatasetError
        Names the chunk, the row and the column of the first such value.
    """
    found = first_nonfinite(X)
    if found is None:
        return
    row, column = start + found[0], found[1]
    raise DatasetError(
        f"features must be finite, got {X[found]} in chunk {row // chunk_rows}, row {row}, "
        f"column {column} of {os.fspath(store_path)!r}. Correct the source and ingest it again."
    )


def check_weights(weight: NDArray[np.float64], start: int, place: str) -> None:
    """Refuse sample weights that are negative or not finite, on their way into a store.

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
    row = _first_bad_weight(weight)
    if row is not None:
        raise DatasetError(
            f"sample weights must be finite and at least 0, got {weight[row]} "
            f"in row {start + row} of {place}."
        )


def _first_bad_weight(weight: NDArray[np.float64]) -> int | None:
    wrong = ~(np.isfinite(weight) & (weight >= 0))
    return int(np.argmax(wrong)) if wrong.any() else None


def _describe_row(array: ChunkedArray, row: int) -> str:
    return f"chunk {row // array.chunk_rows}, row {row} of {str(array.path)!r}"


def _describe_label(labels: LabelRows, position: int, start: int, store: CheckedStore) -> str:
    """Name the chunk and the row of a label, by its position among those of some rows."""
    array = store.arrays[LABEL_INDICES]
    before = int(store.arrays[LABEL_INDPTR].read(start, start + 1)[0])
    chunk = (before + position) // array.chunk_rows
    return f"chunk {chunk}, row {start + labels.row_of(position)} of {str(array.path)!r}"
