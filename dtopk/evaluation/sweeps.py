"""A metric at every threshold, as a running sum over the scores from the highest to the lowest.

As the threshold passes below a score, one label more is predicted. This changes the set of one row,
of one class, or of all, and so the metric by an amount that can be computed from that row, class or
total alone. Sorted by score, the sums of these changes are the metric at every threshold.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dtopk.evaluation.label_metrics import LabelMetric, Overlap
from dtopk.evaluation.score_spool import ScoreSpool


class Sweep(ABC):
    """A metric as a running sum of changes."""

    def __init__(self, metric: LabelMetric, spool: ScoreSpool, zero_division: float) -> None:
        self.metric = metric
        self.spool = spool
        self.zero_division = zero_division

    @abstractmethod
    def start(self) -> int:
        """Return the sum where no label is predicted."""

    @abstractmethod
    def iter_changes(self) -> Iterator[tuple[NDArray[Any], NDArray[Any]]]:
        """Go through all scores, in any order.

        Yields
        ------
        scores : ndarray of shape (n,)
        changes : ndarray of shape (n,), int64 or bool
            What the sum grows by as the label is predicted. Within equal scores only the total
            has a meaning.
        """

    @abstractmethod
    def values(
        self, sums: NDArray[np.int64], n_predicted: NDArray[np.int64]
    ) -> NDArray[np.float64]:
        """Compute the metric.

        Parameters
        ----------
        sums : ndarray of shape (n,), int64
        n_predicted : ndarray of shape (n,), int64
            Labels predicted in all rows.

        Returns
        -------
        ndarray of shape (n,), float64
        """


def make_sweep(metric: LabelMetric, spool: ScoreSpool, zero_division: float) -> Sweep:
    """Make the sweep that a metric takes.

    Parameters
    ----------
    metric : LabelMetric
    spool : ScoreSpool
        At least one row.
    zero_division : float
        The value of a comparison of two empty sets.
    """
    kind = PooledSweep if metric.over == "all" else MeanSweep
    return kind(metric, spool, zero_division)


class PooledSweep(Sweep):
    """A metric of all rows and classes at once: the sum is that of the labels hit."""

    def __init__(self, metric: LabelMetric, spool: ScoreSpool, zero_division: float) -> None:
        super().__init__(metric, spool, zero_division)
        self._n_true = sum(np.count_nonzero(relevant) for relevant, _ in spool.iter_chunks())

    def start(self) -> int:
        """See :meth:`Sweep.start`."""
        return 0

    def iter_changes(self) -> Iterator[tuple[NDArray[Any], NDArray[Any]]]:
        """See :meth:`Sweep.iter_changes`."""
        for relevant, scores in self.spool.iter_chunks():
            yield scores.ravel(), relevant.ravel()

    def values(
        self, sums: NDArray[np.int64], n_predicted: NDArray[np.int64]
    ) -> NDArray[np.float64]:
        """See :meth:`Sweep.values`."""
        true = np.asarray(self._n_true)
        overlap = Overlap(sums, n_predicted, true, self.spool.n_scores)
        return self.metric.values(overlap, self.zero_division)


class MeanSweep(Sweep):
    """A metric that is a mean over rows or classes: the sum is that of their values.

    Values are rounded to whole multiples of a power of two, so small that the mean is as good as
    one of float64, and so large that the sum cannot overflow. Sums of whole numbers are the same
    in any order, and nothing is lost in subtracting and adding: sums of float64 would drift, and
    equally good thresholds would differ by how rows came in batches.
    """

    def __init__(self, metric: LabelMetric, spool: ScoreSpool, zero_division: float) -> None:
        super().__init__(metric, spool, zero_division)
        n_groups = spool.n_rows if metric.over == "rows" else spool.n_classes
        # Sizes may come as numpy integers, which count no bits.
        self._n_groups = int(n_groups)
        self._size = spool.n_classes if metric.over == "rows" else spool.n_rows
        # 2**52: a value, at most 1, has no more digits in float64.
        self._scale = 2.0 ** min(52, 62 - self._n_groups.bit_length())

    def start(self) -> int:
        """See :meth:`Sweep.start`."""
        return sum(
            int(self._first_values(np.count_nonzero(relevant, axis=1)).sum())
            for relevant, _ in self._iter_groups()
        )

    def iter_changes(self) -> Iterator[tuple[NDArray[Any], NDArray[Any]]]:
        """See :meth:`Sweep.iter_changes`."""
        for relevant, scores in self._iter_groups():
            order = np.argsort(scores, axis=1)[:, ::-1]
            in_order = np.take_along_axis(relevant, order, axis=1)
            hits = np.cumsum(in_order, axis=1, dtype=np.int64)
            true = hits[:, -1:]
            values = self._round(Overlap(hits, np.arange(1, self._size + 1), true, self._size))
            changes = np.diff(values, axis=1, prepend=self._first_values(true))
            yield np.take_along_axis(scores, order, axis=1).ravel(), changes.ravel()

    def values(
        self, sums: NDArray[np.int64], n_predicted: NDArray[np.int64]
    ) -> NDArray[np.float64]:
        """See :meth:`Sweep.values`."""
        return sums / (self._scale * self._n_groups)

    def _iter_groups(self) -> Iterator[tuple[NDArray[np.bool_], NDArray[Any]]]:
        if self.metric.over == "rows":
            return self.spool.iter_chunks()
        return self.spool.iter_classes()

    def _first_values(self, true: NDArray[np.int64]) -> NDArray[np.int64]:
        """Values of groups with so many true labels where none is predicted."""
        none = np.zeros_like(true)
        return self._round(Overlap(none, none, true, self._size))

    def _round(self, overlap: Overlap) -> NDArray[np.int64]:
        values = self.metric.values(overlap, self.zero_division)
        return np.rint(values * self._scale).astype(np.int64)
