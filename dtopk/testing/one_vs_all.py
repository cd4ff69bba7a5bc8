"""The twin of the one-vs-all losses."""

from typing import Any

import numpy as np
from scipy.special import expit, xlog1py, xlogy

from dtopk.losses.one_vs_all import LogisticOva, OneVsAllHinge
from dtopk.testing.twin import Float64, Twin


class HingeOvaTwin(Twin[OneVsAllHinge]):
    """Margins from signs, and cases for the pieces of the loss."""

    def value(self, scores: Float64, label: Any) -> float:
        """See :meth:`Twin.value`."""
        gamma = self.loss.strength
        h = 1 - _signs(label, len(scores)) * scores
        if gamma == 0:
            return float(np.maximum(h, 0).sum())
        curved = np.where(h > gamma, h - gamma / 2, h**2 / (2 * gamma))
        return float(np.where(h > 0, curved, 0).sum())

    def dual_term(self, dual: Float64, label: Any, cost: float) -> float:
        """See :meth:`Twin.dual_term`."""
        beta = _signs(label, len(dual)) * dual
        return float(beta.sum() - self.loss.strength / (2 * cost) * (beta @ beta))

    def infeasibility(self, dual: Float64, label: Any) -> float:
        """See :meth:`Twin.infeasibility`."""
        return _outside_of_box(dual, label)


class LogisticOvaTwin(Twin[LogisticOva]):
    """Logarithms of scipy's and numpy's, and a bracketed root for every class."""

    def value(self, scores: Float64, label: Any) -> float:
        """See :meth:`Twin.value`."""
        return float(np.logaddexp(0, -_signs(label, len(scores)) * scores).sum())

    def dual_term(self, dual: Float64, label: Any, cost: float) -> float:
        """See :meth:`Twin.dual_term`."""
        x = np.clip(_signs(label, len(dual)) * dual / cost, 0, 1)
        return float(-cost * (xlogy(x, x) + xlog1py(1 - x, -x)).sum())

    def infeasibility(self, dual: Float64, label: Any) -> float:
        """See :meth:`Twin.infeasibility`."""
        return _outside_of_box(dual, label)

    def update_row(self, q: Float64, norm: float, label: Any, cost: float) -> Float64:
        """Maximise D_i(a) - K/2 |a|^2 - <q, a>, by the log-odds of each class."""
        z = _signs(label, len(q))
        log_odds = [_log_odds(-margin, norm * cost) for margin in z * q]
        return np.asarray(z * cost * expit(log_odds))


def _log_odds(r: float, al: float) -> float:
    """Solve w + al sigmoid(w) = r, which is increasing in w."""
    low, high = r - al, r
    while high - low > 1e-15 * abs(low):
        middle = 0.5 * (low + high)
        if not low < middle < high:
            break
        low, high = (low, middle) if middle + al * expit(middle) > r else (middle, high)
    return high


def _signs(label: Any, n_classes: int) -> Float64:
    z = np.full(n_classes, -1.0)
    z[label] = 1
    return z


def _outside_of_box(dual: Float64, label: Any) -> float:
    beta = _signs(label, len(dual)) * dual
    return float(max(-beta.min(), beta.max() - 1, 0))
