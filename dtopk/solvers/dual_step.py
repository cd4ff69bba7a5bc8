"""How far to go along what several partitions have found at the same time.

Each partition k has climbed the dual over its own rows as if sigma' times its change of W were
the whole change [1]_, and proposes a change of its duals, with which ``dW_k = X_k' da_k`` of the
weights goes. Going ``theta_k`` of the way in each, the dual value gains at least::

    sum_k theta_k (dD_k - <W, dW_k>) - 1/2 |sum_k theta_k dW_k|^2,

where dD_k is the change of ``sum_i D_i(a_i)`` at theta_k = 1: by concavity of D_i, and with
equality at theta_k in {0, 1}. The theta that maximise this never lower the dual, whatever sigma'
was.

References
----------
.. [1] Ma, Smith, Jaggi, Jordan, Richtarik, Takac. Adding vs. Averaging in Distributed Primal-Dual
   Optimization. ICML 2015.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Float64 = NDArray[np.float64]

_SWEEPS = 500
_CLOSE = 1e-12
_GOOD_ENOUGH = 0.98
"""Going the whole way is taken if it gains so much of what the best theta do: then nothing that a
partition has written need be written again."""
_MARGIN = 1.1
"""sigma' is so many times what it would have had to be in the round before."""
_FALL = 0.9
"""Share of sigma' that is left after a round at least, where it is to fall slowly."""


def maximise_on_box(linear: Float64, gram: Float64) -> Float64:
    """Maximise ``<linear, t> - 1/2 <t, gram t>`` over t in [0, 1]^K, coordinate by coordinate.

    Parameters
    ----------
    linear : ndarray of shape (K,), float64
    gram : ndarray of shape (K, K), float64, positive semidefinite

    Returns
    -------
    ndarray of shape (K,), float64
    """
    t = np.ones(len(linear))
    slope = linear - gram @ t
    for _ in range(_SWEEPS):
        moved = 0.0
        for k, curvature in enumerate(np.diag(gram)):
            if curvature > 0:
                target = min(max(t[k] + slope[k] / curvature, 0.0), 1.0)
            else:
                target = float(linear[k] > 0)
            change = target - t[k]
            if change:
                t[k] = target
                slope -= gram[k] * change
                moved = max(moved, abs(change))
        if moved < _CLOSE:
            break
    return t


@dataclass(frozen=True, kw_only=True)
class RoundProducts:
    """Products of what the partitions of a round propose."""

    gram: Float64
    """<dW_k, dW_l>, of shape (K, K)."""
    slopes: Float64
    """<W, dW_k>, of shape (K,)."""

    @property
    def correlation(self) -> float:
        """|sum dW_k|^2 / sum |dW_k|^2: 1 for orthogonal changes, K for equal ones."""
        total = float(np.trace(self.gram))
        return float(self.gram.sum()) / total if total > 0 else 1.0


def choose_theta(gains: Float64, products: RoundProducts) -> Float64:
    """Choose how far to go along each partition's change.

    Parameters
    ----------
    gains : ndarray of shape (K,), float64
        dD_k.
    products : RoundProducts

    Returns
    -------
    ndarray of shape (K,), float64, in [0, 1]
    """
    linear = gains - products.slopes
    best = maximise_on_box(linear, products.gram)
    ones = np.ones(len(linear))

    def gain(t: Float64) -> float:
        return float(linear @ t - 0.5 * t @ products.gram @ t)

    return ones if gain(ones) >= _GOOD_ENOUGH * gain(best) else best


def adapt_sigma(products: RoundProducts, sigma: float, *, steady: bool) -> float:
    """Return the sigma' of the next round, from how much the changes of this one overlapped.

    Around a centre that moves, a sigma' that follows every round down makes the next one overshoot:
    there it falls slowly.

    Parameters
    ----------
    products : RoundProducts
    sigma : float
        sigma' of this round.
    steady : bool
        Whether the accelerated outer loop is on.
    """
    n_partitions = len(products.slopes)
    wanted = _MARGIN * products.correlation
    if steady:
        wanted = max(wanted, _FALL * sigma)
    return min(max(wanted, 1.0), float(n_partitions))
