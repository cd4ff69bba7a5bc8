"""How well the labels that a threshold predicts agree with the true ones.

A label is predicted where its score is above the threshold delta. A metric compares two sets of
labels, predicted and true: those of a row, those of a class, or all; it is the mean over the rows
or classes. A comparison of two empty sets is 0/0 in the F1 score and in the accuracy, and
`zero_division` takes its place, as in scikit-learn.
"""

import difflib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from dtopk.evaluation.score_spool import ScoreSpool


@dataclass(frozen=True, eq=False)
class Overlap:
    """How two sets of labels overlap, for each of some groups: rows, classes, or all in one."""

    hits: NDArray[np.int64]
    """Labels that are both predicted and true; the three arrays broadcast to one shape."""
    predicted: NDArray[np.int64]
    """Labels predicted."""
    true: NDArray[np.int64]
    """True labels."""
    size: int
    """Labels that a group could have."""


def f1(overlap: Overlap) -> NDArray[np.float64]:
    """Compute ``2 |P and T| / (|P| + |T|)``; NaN for two empty sets."""
    return _divide(2 * overlap.hits, overlap.predicted + overlap.true)


def jaccard(overlap: Overlap) -> NDArray[np.float64]:
    """Compute ``|P and T| / |P or T|``; NaN for two empty sets."""
    return _divide(overlap.hits, overlap.predicted + overlap.true - overlap.hits)


def equal_sets(overlap: Overlap) -> NDArray[np.float64]:
    """Compute 1 where both sets are the same, else 0."""
    same = (overlap.hits == overlap.predicted) & (overlap.hits == overlap.true)
    return np.asarray(same, dtype=np.float64)


def share_wrong(overlap: Overlap) -> NDArray[np.float64]:
    """Compute the share of labels that are in one set only."""
    return _divide(overlap.predicted + overlap.true - 2 * overlap.hits, np.asarray(overlap.size))


def _divide(numerator: NDArray[Any], denominator: NDArray[Any]) -> NDArray[np.float64]:
    out = np.full(np.shape(numerator), np.nan)
    np.divide(numerator, denominator, out=out, where=denominator > 0)
    return out


@dataclass(frozen=True, kw_only=True)
class LabelMetric:
    """A metric of predicted labels."""

    name: str
    """Its name in `LABEL_METRICS`."""
    over: Literal["rows", "classes", "all"]
    """The groups that it is the mean over."""
    compare: Callable[[Overlap], NDArray[np.float64]]
    """Its value of each group; NaN for 0/0."""
    sign: int = 1
    """1 where higher is better, -1 where lower is."""

    def values(self, overlap: Overlap, zero_division: float) -> NDArray[np.float64]:
        """Compute the value of each group.

        Parameters
        ----------
        overlap : Overlap
        zero_division : float
            The value for 0/0.

        Returns
        -------
        ndarray of the shape of the counts, float64
        """
        values = self.compare(overlap)
        return np.where(np.isnan(values), zero_division, values)


LABEL_METRICS = {
    metric.name: metric
    for metric in (
        LabelMetric(name="f1_samples", over="rows", compare=f1),
        LabelMetric(name="f1_macro", over="classes", compare=f1),
        LabelMetric(name="f1_micro", over="all", compare=f1),
        LabelMetric(name="accuracy", over="rows", compare=jaccard),
        LabelMetric(name="subset_accuracy", over="rows", compare=equal_sets),
        LabelMetric(name="hamming_loss", over="all", compare=share_wrong, sign=-1),
    )
}
"""The metrics by name."""


def find_metric(name: str) -> LabelMetric:
    """Return the metric of that name.

    Raises
    ------
    ValueError
        If there is none; names the nearest.
    """
    if name not in LABEL_METRICS:
        near = difflib.get_close_matches(str(name), LABEL_METRICS, n=1, cutoff=0.0)
        raise ValueError(
            f"metric {name!r} is unknown. Did you mean {near[0]!r}? "
            f"Available: {', '.join(map(repr, LABEL_METRICS))}."
        )
    return LABEL_METRICS[name]


def measure_thresholds(
    spool: ScoreSpool, deltas: Sequence[float] | NDArray[Any], zero_division: float
) -> list[dict[str, float]]:
    """Compute all metrics at some thresholds, in one pass over the scores.

    Parameters
    ----------
    spool : ScoreSpool
    deltas : sequence of float
        Rounded to the type of the scores, as numpy does in ``scores > delta``.
    zero_division : float
        The value of a comparison of two empty sets.

    Returns
    -------
    list of dict
        The metrics by name for each threshold; NaN for no rows.
    """
    with np.errstate(over="ignore"):
        rounded = np.asarray(deltas, dtype=np.float64).astype(spool.dtype)
    tallies = [_Tally(spool.n_classes, delta, zero_division) for delta in rounded]
    for relevant, scores in spool.iter_chunks():
        for tally in tallies:
            tally.add(relevant, scores > tally.delta)
    return [tally.metrics() for tally in tallies]


@dataclass(eq=False)
class _Tally:
    """What is counted at one threshold."""

    n_classes: int
    delta: Any
    zero_division: float
    n_rows: int = 0
    row_sums: dict[str, float] = field(default_factory=dict)
    by_class: NDArray[np.int64] = field(init=False)
    """Labels hit, predicted and true of every class, shape (3, n_classes)."""

    def __post_init__(self) -> None:
        self.by_class = np.zeros((3, self.n_classes), dtype=np.int64)

    def add(self, relevant: NDArray[np.bool_], predicted: NDArray[np.bool_]) -> None:
        sets = (relevant & predicted, predicted, relevant)
        hits, n_predicted, n_true = (np.count_nonzero(labels, axis=1) for labels in sets)
        by_row = Overlap(hits, n_predicted, n_true, self.n_classes)
        for metric in LABEL_METRICS.values():
            if metric.over == "rows":
                total = float(metric.values(by_row, self.zero_division).sum())
                self.row_sums[metric.name] = self.row_sums.get(metric.name, 0.0) + total
        self.by_class += [np.count_nonzero(labels, axis=0) for labels in sets]
        self.n_rows += len(relevant)

    def metrics(self) -> dict[str, float]:
        return {metric.name: self._value(metric) for metric in LABEL_METRICS.values()}

    def _value(self, metric: LabelMetric) -> float:
        if self.n_rows == 0:
            return float("nan")
        if metric.over == "rows":
            return self.row_sums[metric.name] / self.n_rows
        counts, size = self.by_class, self.n_rows
        if metric.over == "all":
            counts, size = counts.sum(axis=1), size * self.n_classes
        hits, predicted, true = counts
        overlap = Overlap(hits, predicted, true, size)
        return float(metric.values(overlap, self.zero_division).mean())
