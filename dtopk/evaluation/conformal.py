"""Calibrate scores on rows that were not trained on."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from dtopk.calibration import Calibration, check_score, score_labels
from dtopk.evaluation.temperature import ScoreBatches, fit_temperature


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
