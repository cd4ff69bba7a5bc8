"""The twin of the ordered weighted hinge."""

from typing import Any

import numpy as np

from dtopk.losses import WeightedUsunier
from dtopk.testing.twin import Float64, Twin

_STEPS = 80


class WeightedUsunierTwin(Twin[WeightedUsunier]):
    """Sorted margins, a regression by its definition, and bisection for the bias."""

    def value(self, scores: Float64, label: Any) -> float:
        """See :meth:`Twin.value`."""
        gamma = self.loss.gamma
        h = np.sort(np.delete(1 + scores - scores[label], label))[::-1]
        rho = self._weights(len(h))
        if gamma == 0:
            return float(rho @ np.maximum(h, 0))
        bias = float(self.loss.smoothing == "moreau")
        x = _project(h / gamma, rho, bias)
        return float(h @ x - 0.5 * gamma * (x @ x + bias * x.sum() ** 2))

    def dual_term(self, dual: Float64, label: Any, cost: float) -> float:
        """See :meth:`Twin.dual_term`."""
        penalised = dual if self.loss.smoothing == "moreau" else np.delete(dual, label)
        return float(dual[label] - self.loss.gamma / (2 * cost) * (penalised @ penalised))

    def infeasibility(self, dual: Float64, label: Any) -> float:
        """See :meth:`Twin.infeasibility`."""
        x = np.sort(-np.delete(dual, label))[::-1]
        excess = np.cumsum(x - self._weights(len(x)))
        return float(max(-x.min(), excess.max(), abs(dual.sum()), 0))

    def _weights(self, n: int) -> Float64:
        return np.pad(np.array(self.loss.rho), (0, n - len(self.loss.rho)))


def _project(b: Float64, rho: Float64, bias: float) -> Float64:
    """Minimise 0.5 |x|^2 + 0.5 bias (sum x)^2 - <b, x> over the domain; b is descending."""
    wide, weights = b.astype(np.longdouble), rho.astype(np.longdouble)
    low, high = np.longdouble(0), bias * weights.sum()
    for _ in range(_STEPS if bias > 0 else 0):
        t = (low + high) / 2
        low, high = (t, high) if bias * _shift_down(wide, weights, t).sum() > t else (low, t)
    return np.asarray(_shift_down(wide, weights, high), dtype=np.float64)


def _shift_down(b: Any, rho: Any, t: Any) -> Any:
    """Project b - t: what exceeds the nonincreasing regression of b - t - rho, if positive.

    The regression is ``v_i = min_{j <= i} max_{k >= i} mean z[j..k]``. Once it is known of which j
    and k, ``b_i - v_i`` is taken from differences of b: where b is large, v has few digits.
    """
    n = len(b)
    above = np.maximum(b - t, 0)
    first, last = np.mgrid[:n, :n]
    sums = np.concatenate(([0], np.cumsum(above - rho)))
    means = (sums[last + 1] - sums[first]) / np.maximum(last - first + 1, 1)
    x = np.zeros_like(b)
    for i in range(n):
        ends = [i + int(np.argmax(means[j, i:])) for j in range(i + 1)]
        j = int(np.argmin([means[j, end] for j, end in enumerate(ends)]))
        pool = slice(j, ends[j] + 1)
        excess = (above[i] - above[j]) - np.mean(above[pool] - above[j] - rho[pool])
        x[i] = excess if means[j, ends[j]] > 0 else above[i]
    return np.maximum(x, 0)
