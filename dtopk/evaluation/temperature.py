"""The temperature that makes the softmax of scores fit labels best."""

import math
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

ScoreBatches = Callable[[], Iterable[tuple[NDArray[Any], NDArray[Any]]]]
"""Goes through some rows from the first on: labels (n_rows,), integer, and scores (n_rows,
n_classes) of a batch at a time."""

_TOLERANCE = 1e-7
"""Relative Newton step after which the next one would be below rounding."""
_MAX_FACTOR = 8.0
"""By which 1/T changes in one step, at most."""
_MAX_PASSES = 100


def fit_temperature(batches: ScoreBatches) -> float:
    r"""Find the temperature T that minimises the negative log-likelihood of the labels.

    With b = 1/T, scores u and labels y it minimises the convex function of b

    .. math:: \sum_i \Big( \log \sum_j \exp(b u_{ij}) - b u_{i y_i} \Big)

    by Newton's method, held between the nearest values at which the derivative is known to be
    below and above zero [1]_. Each step is one pass over the rows; no more than a batch is held.

    Parameters
    ----------
    batches : callable
        Called for each pass; yields labels and scores of the same rows every time.

    Returns
    -------
    float
        T, exact to rounding.

    Raises
    ------
    ValueError
        If there is no row, or no minimum above 0: where the labels have the highest scores of all
        rows, or on average none above the mean of their row.

    References
    ----------
    .. [1] Guo, Pleiss, Sun, Weinberger. On Calibration of Modern Neural Networks. ICML 2017,
       section 4.2, temperature scaling.
    """
    _check_minimum(batches)
    low, high = 0.0, math.inf
    inverse = 1.0
    for _ in range(_MAX_PASSES):
        slope, curvature = _differentiate(batches, inverse)
        low, high = (inverse, high) if slope < 0 else (low, inverse)
        # Without curvature each row is wholly one class's: b is far too large.
        step = -slope / curvature if curvature > 0 else -math.copysign(math.inf, slope)
        following = min(max(inverse + step, inverse / _MAX_FACTOR), inverse * _MAX_FACTOR)
        if abs(following - inverse) <= _TOLERANCE * inverse:
            return 1 / following
        if not low < following < high:
            following = math.sqrt(low * high)
        inverse = following
    raise AssertionError(f"Newton's method is not done after {_MAX_PASSES} passes, at {inverse}.")


def _check_minimum(batches: ScoreBatches) -> None:
    """Refuse rows for which the derivative has one sign at every 1/T."""
    n_rows, slope_at_zero, slope_at_infinity = 0, 0.0, 0.0
    for y, scores in batches():
        u = scores.astype(np.float64)
        true = np.take_along_axis(u, y[:, np.newaxis].astype(np.intp), axis=1)[:, 0]
        n_rows += len(y)
        slope_at_zero += float((u.mean(axis=1) - true).sum())
        slope_at_infinity += float((u.max(axis=1) - true).sum())
    if n_rows == 0:
        raise ValueError("rows to calibrate on must be at least 1, got none.")
    if slope_at_infinity <= 0:
        raise ValueError(
            f"rows to calibrate on must hold one that is not predicted right, got {n_rows:,} whose "
            "label has the highest score: the likelihood has no maximum. Calibrate on more rows."
        )
    if slope_at_zero >= 0:
        raise ValueError(
            "labels to calibrate on must have higher scores than others on average, got scores "
            "that are no better than chance. Check that the labels belong to the rows."
        )


def _differentiate(batches: ScoreBatches, inverse: float) -> tuple[float, float]:
    """Return the first two derivatives of the negative log-likelihood in 1/T."""
    slope, curvature = 0.0, 0.0
    for y, scores in batches():
        u = scores.astype(np.float64)
        u -= np.take_along_axis(u, y[:, np.newaxis].astype(np.intp), axis=1)
        p = np.exp(inverse * (u - u.max(axis=1, keepdims=True)))
        p /= p.sum(axis=1, keepdims=True)
        means = np.einsum("ij,ij->i", p, u)
        slope += float(means.sum())
        # Of differences from the mean: the square of the mean itself may be far larger.
        u -= means[:, np.newaxis]
        curvature += float(np.einsum("ij,ij,ij->", p, u, u))
    return slope, curvature
