"""The twins of the multilabel losses."""

from typing import Any

import numpy as np
from scipy.special import entr, logsumexp

from dtopk.losses.multilabel import MultilabelHinge, MultilabelSoftmax
from dtopk.testing.twin import Array, Float64, Twin

_ROUNDING = 4 * np.finfo(np.float64).eps


class MultilabelHingeTwin(Twin[MultilabelHinge]):
    """Largest and smallest scores, and projections by bisection on their sum."""

    def value(self, scores: Float64, label: Any) -> float:
        """See :meth:`Twin.value`."""
        gamma = self.loss.gamma
        own, others = scores[label], np.delete(scores, label)
        if gamma == 0:
            return float(max(0, 1 + others.max() - own.min()))
        # L = max <1/2 - u_Y, p> + <1/2 + u_others, n> - gamma/2 (|p|^2 + |n|^2), on B(1).
        lowest = own.min()
        b, c = lowest - own, others - lowest + 1
        p, n = project_bipartite(b / gamma, c / gamma, 1.0)
        return float(b @ p + c @ n - 0.5 * gamma * (p @ p + n @ n))

    def dual_term(self, dual: Float64, label: Any, cost: float) -> float:
        """See :meth:`Twin.dual_term`."""
        half = 0.5 * (dual[label].sum() - np.delete(dual, label).sum())
        return float(half - self.loss.gamma / (2 * cost) * (dual @ dual))

    def infeasibility(self, dual: Float64, label: Any) -> float:
        """See :meth:`Twin.infeasibility`."""
        p, n = dual[label], -np.delete(dual, label)
        return float(max(-p.min(), -n.min(), p.sum() - 1, abs(p.sum() - n.sum()), 0))

    def update_row(self, q: Float64, norm: float, label: Any, cost: float) -> Float64:
        """Maximise D_i(a) - K/2 |a|^2 - <q, a>, where K + gamma/C > 0."""
        curvature = norm + self.loss.gamma / cost
        own, others = q[label], np.delete(q, label)
        b, c = (own.min() - own) / curvature, (1 + others - own.min()) / curvature
        a = np.zeros(len(q))
        mine = np.isin(np.arange(len(q)), label)
        p, n = project_bipartite(b, c, cost)
        a[label], a[~mine] = p, -n
        return a


class MultilabelSoftmaxTwin(Twin[MultilabelSoftmax]):
    """Logarithms of sums, and entropies of the distribution itself."""

    def value(self, scores: Float64, label: Any) -> float:
        """See :meth:`Twin.value`."""
        return float(np.mean([logsumexp(scores - u) for u in scores[label]]))

    def dual_term(self, dual: Float64, label: Any, cost: float) -> float:
        """See :meth:`Twin.dual_term`."""
        p = _distribution(dual / cost, label)
        # What 1/k - a/C leaves of a mass of zero is its rounding, and that has an entropy.
        p[label] = np.where(p[label] > _ROUNDING, p[label], 0)
        return float(cost * entr(np.maximum(p, 0)).sum())

    def infeasibility(self, dual: Float64, label: Any) -> float:
        """See :meth:`Twin.infeasibility`."""
        return float(max(-_distribution(dual, label).min(), abs(dual.sum())))


def _distribution(a: Float64, label: Any) -> Float64:
    p = -a
    p[label] += 1 / np.size(label)
    return p


def project_bipartite(b: Array, c: Array, radius: float) -> tuple[Float64, Float64]:
    """Project (b, c) on ``p >= 0, n >= 0, sum p = sum n <= radius``, by bisection on the sum.

    Given the sum both are projections on a simplex, ``max(b - t, 0)`` and ``max(c - s, 0)``, and
    minus t + s is the derivative of what that leaves. It increases with the sum, as the problem is
    convex.

    Parameters
    ----------
    b, c : ndarray of shape (k,) and (m,), finite
    radius : float, > 0

    Returns
    -------
    p, n : ndarray of shape (k,) and (m,), float64
    """
    b, c = np.asarray(b, dtype=np.float64), np.asarray(c, dtype=np.float64)
    height = float(b.max() + c.max())
    b, c = b - b.max(), c - c.max()
    # With sums of zero the thresholds are the largest entries.
    low, high = 0.0, radius
    if height <= 0:
        return np.zeros(len(b)), np.zeros(len(c))
    if _threshold(b, radius) + _threshold(c, radius) < -height:
        while low < (middle := 0.5 * (low + high)) < high:
            inside = _threshold(b, middle) + _threshold(c, middle) > -height
            low, high = (middle, high) if inside else (low, middle)
    return (
        np.maximum(b - _threshold(b, high), 0),
        np.maximum(c - _threshold(c, high), 0),
    )


def _threshold(b: Float64, total: float) -> float:
    """Solve sum max(b - t, 0) = total > 0: t is the largest of what each number of terms says."""
    ordered = np.sort(b)[::-1]
    return float(((np.cumsum(ordered) - total) / np.arange(1, len(b) + 1)).max())
