"""The twin of the weighted top-k hinge."""

from typing import Any

import numpy as np
from scipy.optimize import brentq

from dtopk.losses import WeightedTopKHinge
from dtopk.testing.twin import Float64, Twin

_SMALLEST = 1e-30
"""Absolute error of theta."""
_CLOSE = 1e-15
"""Relative error of theta."""


class WeightedTopKTwin(Twin[WeightedTopKHinge]):
    """Sorted margins, regressions by their definition, and a bracketed root."""

    def value(self, scores: Float64, label: Any) -> float:
        """See :meth:`Twin.value`."""
        gamma = self.loss.gamma
        rho = self._weights(len(scores))
        h = np.sort(np.delete(1 + scores - scores[label], label))[::-1]
        if gamma == 0:
            return max(_weighted_sum(h, rho), 0.0)
        bias = float(self.loss.smoothing == "moreau")
        x = _project(h / gamma, rho, bias)
        return float(h @ x - 0.5 * gamma * (x @ x + bias * x.sum() ** 2))

    def dual_term(self, dual: Float64, label: Any, cost: float) -> float:
        """See :meth:`Twin.dual_term`."""
        penalised = dual if self.loss.smoothing == "moreau" else np.delete(dual, label)
        return float(dual[label] - self.loss.gamma / (2 * cost) * (penalised @ penalised))

    def infeasibility(self, dual: Float64, label: Any) -> float:
        """See :meth:`Twin.infeasibility`.

        For some theta in [0, 1] the row with ``theta R - s`` for the label is to be majorised by
        theta rho: ``levels - theta * slopes <= 0``, and the largest of these lines is at its lowest
        at an end or where two of them meet.
        """
        x = np.sort(-np.delete(dual, label))[::-1]
        rho = self._weights(len(dual))
        R, T, s = np.cumsum(rho), np.cumsum(x), x.sum()
        # Sums of the largest entries without the label's and with it, and the label's own.
        levels = np.concatenate((T, np.append(0.0, T) - s, [s]))
        slopes = np.concatenate((R[:-1], R - R[-1], R[-1:]))
        meets = np.subtract.outer(levels, levels)
        apart = np.subtract.outer(slopes, slopes)
        thetas = np.clip(meets[apart != 0] / apart[apart != 0], 0, 1)
        lines = levels - np.append(thetas, [0.0, 1.0])[:, None] * slopes
        return float(max(-x.min(), lines.max(axis=1).min(), abs(dual.sum()), 0))

    def _weights(self, n_classes: int) -> Float64:
        return np.pad(np.array(self.loss.rho), (0, n_classes - len(self.loss.rho)))


def _weighted_sum(h: Any, rho: Any) -> float:
    """Return the sum of the largest h, 0 among them, times the weights; h is descending."""
    return float(rho @ np.sort(np.append(h, 0))[::-1])


def _project(b: Float64, rho: Float64, bias: float) -> Float64:
    """Minimise 0.5 |x|^2 + 0.5 bias (sum x)^2 - <b, x> over the domain; b is descending.

    In long double, as b may be large and its differences from x small.
    """
    wide, weights = b.astype(np.longdouble), rho.astype(np.longdouble)

    def balance(theta: float) -> float:
        """Return ``sum_j rho_j z_[j] - R t``, t among the z."""
        z, t = _split(wide, weights, theta, bias)
        return float(weights @ np.sort(np.append(z - t, 0))[::-1])

    if balance(0.0) <= 0:
        return np.zeros(len(b))
    theta = 1.0 if balance(1.0) >= 0 else brentq(balance, 0, 1, xtol=_SMALLEST, rtol=_CLOSE)
    z, _ = _split(wide, weights, theta, bias)
    return np.asarray(wide - z, dtype=np.float64)


def _split(b: Any, rho: Any, theta: float, bias: float) -> tuple[Any, Any]:
    """Return what a theta takes off b, z, and the level t = bias * sum(b - z).

    Entry i of z is t, unless that is below the regression of b - theta rho or above the one of
    b - theta rho without its first weight.
    """
    low, high = (_regress(b - theta * weights) for weights in (rho[:-1], rho[1:]))
    ends = np.array([0, bias * theta * rho.sum()])
    levels = np.unique(np.clip(np.concatenate((ends, low, high)), *ends))
    # The sum falls piece by piece linearly as the level rises.
    excess = bias * (b - np.clip(levels[:, None], low, high)).sum(axis=1) - levels
    t = np.interp(0, -excess.astype(np.float64), levels.astype(np.float64))
    return np.clip(t, low, high), t


def _regress(z: Any) -> Any:
    """Return the nonincreasing regression, ``v_i = min_{j <= i} max_{k >= i} mean z[j..k]``."""
    first, last = np.mgrid[: len(z), : len(z)]
    sums = np.concatenate(([0], np.cumsum(z)))
    means = (sums[last + 1] - sums[first]) / np.maximum(last - first + 1, 1)
    means[first > last] = -np.inf
    largest = np.maximum.accumulate(means[:, ::-1], axis=1)[:, ::-1]
    return np.where(first <= last, largest, np.inf).min(axis=0)
