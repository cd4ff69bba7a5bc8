"""The threshold that makes a metric of predicted labels best."""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dtopk.evaluation.descending import iter_descending
from dtopk.evaluation.label_metrics import LabelMetric, find_metric, measure_thresholds
from dtopk.evaluation.multilabel import MultilabelCounts
from dtopk.evaluation.ranking import last_of_equals
from dtopk.evaluation.score_spool import ScoreSpool
from dtopk.evaluation.sweeps import make_sweep


@dataclass(frozen=True, kw_only=True)
class ThresholdGrid:
    """Evenly spaced thresholds, both ends among them."""

    n_values: int = 71
    """How many."""
    low: float | None = None
    """The lowest; None: the lowest score."""
    high: float | None = None
    """The highest; None: the highest score."""

    def __post_init__(self) -> None:
        """Check the values."""
        if self.n_values < 2:
            raise ValueError(f"n_values must be at least 2, got {self.n_values}.")
        for name, value in (("low", self.low), ("high", self.high)):
            if value is not None and not math.isfinite(value):
                raise ValueError(f"{name} must be finite, got {value!r}.")
        if self.low is not None and self.high is not None and self.low >= self.high:
            raise ValueError(f"low must be below high = {self.high}, got {self.low}.")


@dataclass(frozen=True, kw_only=True)
class ChosenThreshold:
    """A threshold, and what it was chosen for."""

    metric: str
    """Name of the metric."""
    delta: float
    """Labels are predicted that score more; a number of the type of the scores."""
    value: float
    """The metric at this threshold, on the rows that it was chosen on."""


def choose_threshold(
    metric: str, counts: MultilabelCounts, *, grid: ThresholdGrid | None = None
) -> ChosenThreshold:
    """Choose the threshold at which a metric is best.

    Without a grid it is the best of all: of no label predicted, of every one, and of what lies
    between any two neighbours among the distinct scores, where the threshold is put midway (on the
    lower one where the type of the scores has no number between them). No label predicted is a
    threshold of 1 above the highest score, every one of 1 below the lowest. Of thresholds that are
    equally good the highest is chosen.

    The search sorts all scores, in the memory that the counts may hold (`memory_bytes`) beside
    those; where 96 bytes for each score are more than that, it takes up to 16 bytes for each in
    TMPDIR.

    Parameters
    ----------
    metric : str
        'f1_samples', 'f1_macro', 'f1_micro', 'accuracy', 'subset_accuracy' or 'hamming_loss', as
        `MultilabelCounts.label_metrics` computes them. All but the last are made as high as can be.
    counts : MultilabelCounts
        Of the rows to choose on, such as a validation split.
    grid : ThresholdGrid, optional
        Choose among these thresholds only; each takes a pass over the scores, but no sort.

    Returns
    -------
    ChosenThreshold

    Raises
    ------
    ValueError
        If there is no such metric, or no row, or no grid between the scores and its one end.
    """
    wanted = find_metric(metric)
    if counts.n_rows == 0:
        raise ValueError("counts must hold at least 1 row, got 0. Update them first.")
    if grid is None:
        deltas = np.array([_search(wanted, counts)])
    else:
        deltas = _lay_grid(grid, counts.spool)
    measured = measure_thresholds(counts.spool, deltas, counts.zero_division)
    values = np.array([metrics[metric] for metrics in measured])
    best = int(np.argmax(wanted.sign * values))
    return ChosenThreshold(metric=metric, delta=float(deltas[best]), value=float(values[best]))


def _search(metric: LabelMetric, counts: MultilabelCounts) -> float:
    """Find the best threshold of all."""
    spool = counts.spool
    sweep = make_sweep(metric, spool, counts.zero_division)
    n_predicted, total = 0, sweep.start()
    best = metric.sign * sweep.values(np.array([total]), np.array([0]))[0]
    lowest_predicted = np.inf
    pieces = iter_descending(sweep.iter_changes(), spool.n_scores, counts.memory_bytes)
    for scores, changes in pieces:
        sums = total + np.cumsum(changes, dtype=np.int64)
        # Scores that are equal are all predicted or none.
        last = last_of_equals(scores)
        values = metric.sign * sweep.values(sums[last], n_predicted + last + 1)
        i = int(np.argmax(values))
        if values[i] > best:
            best, lowest_predicted = values[i], scores[last[i]]
        n_predicted, total = n_predicted + len(scores), int(sums[-1])
    return _threshold_below(lowest_predicted, spool)


def _threshold_below(lowest_predicted: Any, spool: ScoreSpool) -> float:
    """Put a threshold between a score and its lower neighbour; infinity: above all scores."""
    to_type = spool.dtype.type
    neighbour = max(
        np.max(scores, where=scores < lowest_predicted, initial=-np.inf)
        for _, scores in spool.iter_chunks()
    )
    upper, lower = float(lowest_predicted), float(neighbour)
    if upper == np.inf:
        return float(to_type(lower + 1))
    if lower == -np.inf:
        return float(min(to_type(upper - 1), np.nextafter(to_type(upper), to_type(lower))))
    # Halved first: the sum may be infinite.
    middle = float(to_type(lower / 2 + upper / 2))
    return middle if lower <= middle < upper else lower


def _lay_grid(grid: ThresholdGrid, spool: ScoreSpool) -> NDArray[Any]:
    """Return the thresholds, the highest first, in the type of the scores."""
    low, high = grid.low, grid.high
    if low is None:
        low = min(float(scores.min()) for _, scores in spool.iter_chunks())
    if high is None:
        high = max(float(scores.max()) for _, scores in spool.iter_chunks())
    if low > high:
        raise ValueError(
            f"low must be at most high, got {low} and {high}, of which the grid leaves one to the "
            "scores. Give both."
        )
    with np.errstate(over="ignore"):
        return np.linspace(high, low, grid.n_values).astype(spool.dtype)
