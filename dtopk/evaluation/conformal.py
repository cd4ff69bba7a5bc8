"""Calibrate scores on rows that were not trained on, and count what came of it on others."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dtopk.calibration import Calibration, check_score, score_labels
from dtopk.evaluation.reliability import ReliabilityCounts, SetCounts
from dtopk.evaluation.temperature import ScoreBatches, fit_temperature

COVERAGES = (0.8, 0.9, 0.95, 0.99)
"""Of the sets that are counted, as far as the rows of a calibration allow."""


@dataclass(frozen=True, kw_only=True)
class CalibrationCounts:
    """What was counted of a calibration's probabilities and sets over the rows seen so far."""

    calibration: Calibration
    """That of the model."""
    reliability: ReliabilityCounts = field(default_factory=ReliabilityCounts)
    """Of its probabilities."""
    sets: list[SetCounts] = field(init=False, default_factory=list)
    """Of its sets, a member for each of `COVERAGES` that it can give."""

    def __post_init__(self) -> None:
        """Start at zero."""
        bound = self.calibration.n_rows / (self.calibration.n_rows + 1)
        self.sets.extend(SetCounts(coverage=each) for each in COVERAGES if each <= bound)

    def update(self, y: NDArray[Any], scores: NDArray[Any]) -> None:
        """Count one batch.

        Parameters
        ----------
        y : ndarray of shape (n_rows,), integer
            True classes, 0 to n_classes - 1.
        scores : ndarray of shape (n_rows, n_classes)
        """
        self.reliability.update(y, self.calibration.probabilities(scores))
        nonconformity = self.calibration.nonconformity(scores)
        for counts in self.sets:
            counts.update(y, nonconformity <= self.calibration.threshold(counts.coverage))


def fit_calibration(
    batches: ScoreBatches,
    *,
    n_classes: int,
    score: str,
    k: int | None,
    penalty: float | None,
    source: Mapping[str, Any] | None = None,
) -> Calibration:
    """Fit a temperature, and collect the nonconformity of the true labels.

    Parameters
    ----------
    batches : callable
        Called for each pass over the rows, one for each step of Newton's method and two more;
        yields labels and scores of the same rows every time.
    n_classes : int
    score : str
        One of :data:`dtopk.calibration.CONFORMAL_SCORES`.
    k : int or None
        Of 'raps' and 'margin', and None for others.
    penalty : float or None
        Of 'raps', and None for others.
    source : mapping, optional
        What the rows are, in values that JSON has.

    Returns
    -------
    Calibration

    Raises
    ------
    ValueError
        If a parameter breaks its rule, or the rows have no best temperature.
    """
    check_score(score, k, penalty, n_classes)
    temperature = fit_temperature(batches)
    found = []
    for y, scores in batches():
        values = score_labels(scores, score, temperature=temperature, k=k, penalty=penalty)
        found.append(values[np.arange(len(y)), y])
    return Calibration(
        temperature=temperature,
        n_classes=n_classes,
        score=score,
        conformal_scores=np.sort(np.concatenate(found)),
        k=k,
        penalty=penalty,
        source=source or {},
    )
