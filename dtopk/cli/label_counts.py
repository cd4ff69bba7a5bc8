"""Counts of the labels of a store, as its commands tell them."""

import dataclasses
from collections.abc import Iterable, Iterator

import numpy as np
from numpy.typing import NDArray

from dtopk_storage import FeatureStore, LabelRows
from dtopk_storage.checks import check_labels
from dtopk_storage.label_rows import Labels

_ROWS_READ = 1 << 20


@dataclasses.dataclass(kw_only=True)
class LabelCounts:
    """What was counted in some rows of a store."""

    rows_by_class: NDArray[np.int64]
    """Rows that have the label, of shape (n_classes,)."""
    n_rows: int = 0
    """All rows."""
    n_labels: int = 0
    """Labels of all rows together."""
    n_rows_without: int = 0
    """Rows that have none."""
    fewest: int = 0
    """Labels of the row that has the fewest."""
    most: int = 0
    """Labels of the row that has the most."""

    def add(self, labels: Labels) -> None:
        """Count some rows.

        Parameters
        ----------
        labels : ndarray of shape (rows,), int32, or LabelRows
            At least one row, all codes in 0:n_classes.
        """
        if isinstance(labels, LabelRows):
            codes, counts = labels.indices, labels.counts
        else:
            codes, counts = labels, np.ones(len(labels), np.int64)
        self.rows_by_class += np.bincount(codes, minlength=len(self.rows_by_class))
        self.fewest = int(min(counts.min(), self.fewest if self.n_rows else counts.min()))
        self.most = max(int(counts.max()), self.most)
        self.n_rows_without += int((counts == 0).sum())
        self.n_labels += len(codes)
        self.n_rows += len(labels)


def count_labels(store: FeatureStore, ranges: Iterable[tuple[int, int]]) -> LabelCounts:
    """Count the labels of ranges of rows.

    Parameters
    ----------
    store : FeatureStore
    ranges : iterable of (start, stop)

    Returns
    -------
    LabelCounts

    Raises
    ------
    DatasetError
        A label is a code of no class.
    """
    counts = LabelCounts(rows_by_class=np.zeros(store.n_classes, np.int64))
    for labels in _read_labels(store, ranges):
        counts.add(labels)
    return counts


def _read_labels(store: FeatureStore, ranges: Iterable[tuple[int, int]]) -> Iterator[Labels]:
    for low, high in ranges:
        for start in range(low, high, _ROWS_READ):
            stop = min(start + _ROWS_READ, high)
            labels: Labels
            if store.kind == "multilabel":
                labels = store.read_label_rows(start, stop)
            else:
                labels = store.read_labels(start, stop)
            check_labels(labels, start=start, store=store)
            yield labels
