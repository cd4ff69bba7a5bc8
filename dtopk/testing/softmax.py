"""The twin of the softmax loss."""

from typing import Any

import numpy as np
from scipy.optimize import brentq
from scipy.special import entr, logsumexp, wrightomega

from dtopk.losses import Softmax
from dtopk.testing.twin import Float64, Twin


def lambert_v(t: Any) -> Any:
    """Return V(t) = W(e^t), the solution of V + log V = t, by scipy's Wright omega function.

    Parameters
    ----------
    t : float or ndarray of float64
    """
    return wrightomega(t)


class SoftmaxTwin(Twin[Softmax]):
    """Logarithms of sums, and a bracketed root of a sum of Lambert functions."""

    def value(self, scores: Float64, label: Any) -> float:
        """See :meth:`Twin.value`."""
        return float(logsumexp(scores - scores[label]))

    def dual_term(self, dual: Float64, label: Any, cost: float) -> float:
        """See :meth:`Twin.dual_term`."""
        p = -dual / cost
        p[label] = 0
        p[label] = 1 - p.sum()
        return float(cost * entr(np.maximum(p, 0)).sum())

    def infeasibility(self, dual: Float64, label: Any) -> float:
        """See :meth:`Twin.infeasibility`."""
        x = -np.delete(dual, label)
        return float(max(-x.min(), x.sum() - 1, abs(dual.sum()), 0))

    def update_row(self, q: Float64, norm: float, label: int, cost: float) -> Float64:
        """Maximise D_i(a) - K/2 |a|^2 - <q, a>; see :func:`dtopk.testing.update_row`."""
        a = -cost * _masses(q, norm * cost, label)
        a[label] = 0
        a[label] = -a.sum()
        return a


def _masses(q: Float64, al: float, label: int) -> Float64:
    """Minimise sum p log p + al/2 |p - e_y|^2 - <q, p> over the distributions p.

    ``log p_j + al p_j = b_j - t`` with b = q + al e_y, so p_j = V(b_j - t + log al) / al, and t
    makes p sum to one.
    """
    b = q - q.max()
    b[label] += al
    b -= b.max()
    if al == 0:
        p = np.exp(b)
        return np.asarray(p / p.sum())

    def masses(t: float) -> Float64:
        return np.asarray(lambert_v(b - t + np.log(al)) / al)

    # One class alone has mass 1 at t = -al; no class more than e^(b - t) at the other end.
    t = brentq(lambda t: masses(t).sum() - 1, -al - 1e-9, np.log(len(b)) + 1e-9, xtol=1e-15)
    return masses(t)
