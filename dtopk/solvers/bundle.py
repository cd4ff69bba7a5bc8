"""Frank-Wolfe's method, whose dual is a mixture of the few directions found last.

Frank-Wolfe's method maximises the dual over a polytope: every pass finds for each row the vertex
that the gradient points to [1]_. All rows together make an atom, and the duals are a mixture of
the atoms found so far. What the dual value of a mixture is, the atoms' linear terms and products
say: no rows are needed to choose the best one. The plain method goes along the line from the
mixture so far to the new atom; where some atoms are kept apart, the best mixture of all of them
is a small quadratic problem, and far fewer passes are needed (the fully corrective method, or for
losses without smoothing the bundle method of [2]_).

References
----------
.. [1] Tajima, Hirohashi, Zara, Kato. Frank-Wolfe algorithm for learning SVM-type multi-category
   classifiers.
.. [2] Teo, Vishwanathan, Smola, Le. Bundle Methods for Regularized Risk Minimization. JMLR 2010.
"""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import scipy.linalg
from numpy.typing import NDArray

Float64 = NDArray[np.float64]

BASE = 0
"""The atom that all those no longer kept apart have become part of. At the start it is zero."""
_CHANGES = 1000
"""Changes of the active set after which a mixture is good enough."""
_CLOSE = 1e-13
_PRODUCTS_EPS = 16 * float(np.finfo(np.float64).eps)
"""Relative rounding of products of atoms, and of their sum."""
_ZERO = 1e-14
"""Weights below this are zero."""


class Bundle:
    """The atoms that the dual is a mixture of, and their weights.

    Parameters
    ----------
    limit : int
        Most atoms that are kept apart, beside the base.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.names = [BASE]
        """The atoms, the base first."""
        self.weights: Float64 = np.ones(1)
        """Their weights, not negative, with a sum of 1."""
        self._linear: Float64 = np.zeros(1)
        self._gram: Float64 = np.zeros((1, 1))

    def to_dict(self) -> dict[str, Any]:
        """Return all of it, as JSON values."""
        return {
            "limit": self.limit,
            "names": self.names,
            "weights": self.weights.tolist(),
            "linear": self._linear.tolist(),
            "gram": self._gram.tolist(),
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "Bundle":
        """Make it again of what `to_dict` gave."""
        bundle = cls(values["limit"])
        bundle.names = list(values["names"])
        bundle.weights = np.array(values["weights"])
        bundle._linear, bundle._gram = np.array(values["linear"]), np.array(values["gram"])
        return bundle

    @property
    def value(self) -> float:
        """D of the mixture."""
        return _value(self._linear, self._gram, self.weights)

    def bound(self, eps: float) -> float:
        """Return what D of the mixture is at least, as atoms and linear terms are rounded sums.

        Where large atoms all but cancel in the mixture, what is left of them may be rounding: its
        norm, of which D has half the square, is taken for larger by `eps` times the norms of the
        atoms, and the linear terms for less by as much of theirs.

        Parameters
        ----------
        eps : float
            Of the type of the atoms.

        Returns
        -------
        float
            No more than :attr:`value`.
        """
        size = float(self.weights @ np.sqrt(np.maximum(np.diag(self._gram), 0.0)))
        square = max(float(self.weights @ self._gram @ self.weights), 0.0)
        # The products are float64 sums, and they cancel too.
        square += _PRODUCTS_EPS * size * size
        linear = float(self.weights @ (self._linear - eps * np.abs(self._linear)))
        return linear - 0.5 * (math.sqrt(square) + eps * size) ** 2

    @property
    def mixture(self) -> dict[int, float]:
        """The weights that are not zero, by atom."""
        pairs = zip(self.names, self.weights.tolist(), strict=True)
        return {name: weight for name, weight in pairs if weight}

    def restart(self, linear: float, square: float) -> None:
        """Have the base alone, with other duals than so far.

        Parameters
        ----------
        linear : float
            Its linear terms.
        square : float
            Its product with itself.
        """
        self.names, self.weights = [BASE], np.ones(1)
        self._linear, self._gram = np.array([linear]), np.array([[square]])

    def add(self, name: int, linear: float, products: Float64, square: float) -> float:
        """Take in a new atom, with a weight of 0, and return the Frank-Wolfe gap of the mixture.

        Parameters
        ----------
        name : int
        linear : float
            Its linear terms.
        products : ndarray of shape (n_atoms,), float64
            With the atoms that are there.
        square : float
            With itself.

        Returns
        -------
        float
            P - D for a loss without smoothing, and no less than it for one with.
        """
        self.names.append(name)
        self.weights = np.append(self.weights, 0.0)
        self._linear = np.append(self._linear, linear)
        gram = np.empty((len(self.names),) * 2)
        gram[:-1, :-1] = self._gram
        gram[-1, :-1] = gram[:-1, -1] = products
        gram[-1, -1] = square
        self._gram = gram
        slopes = self._linear - gram @ self.weights
        return float(slopes[-1] - self.weights @ slopes)

    def step(self, share: float) -> None:
        """Go a share of the way to the newest atom.

        Parameters
        ----------
        share : float, between 0 and 1
        """
        self.weights *= 1 - share
        self.weights[-1] += share

    def shrink(self, share: float) -> None:
        """Multiply the duals by a share of 1, which the domain of every loss has if it has them.

        D_i is concave, and 0 for duals of 0.
        """
        self._linear = share * self._linear
        self._gram = share * share * self._gram

    def maximise(self) -> None:
        """Take the mixture that maximises D."""
        before, weights = self.value, self.weights.copy()
        self.weights = maximise_on_simplex(self._linear, self._gram, weights)
        if not self.value >= before:  # only rounding is left to gain
            self.weights = weights

    def drop_idle(self) -> list[int]:
        """Forget atoms of no weight, but for the base, and return them."""
        idle = [
            name for name, weight in zip(self.names, self.weights, strict=True)
            if weight == 0 and name != BASE
        ]  # fmt: skip
        self._keep([name not in idle for name in self.names])
        return idle

    def fold(self) -> dict[int, float]:
        """Make the atoms of the least weight part of the base, until few enough are kept apart.

        Returns
        -------
        dict of int to float
            Of what the base is a mixture then; empty where it stays as it is.
        """
        n_folded = len(self.names) - 1 - self.limit
        if n_folded <= 0:
            return {}
        # Of equal ones the oldest.
        least = 1 + np.argsort(self.weights[1:], kind="stable")[:n_folded]
        folded = np.concatenate([[0], np.sort(least)])
        total = self.weights[folded].sum()
        shares = self.weights[folded] / total if total > 0 else np.eye(len(folded))[0]
        mix = np.zeros((len(self.names), len(self.names)))
        np.fill_diagonal(mix, 1.0)
        mix[0] = 0.0
        mix[0, folded] = shares
        self._linear = mix @ self._linear
        self._gram = mix @ self._gram @ mix.T
        self.weights[0] = total
        names = [self.names[place] for place in folded]
        kept = np.ones(len(self.names), bool)
        kept[least] = False
        self._keep(kept.tolist())
        return dict(zip(names, shares.tolist(), strict=True))

    def _keep(self, kept: list[bool]) -> None:
        places = np.flatnonzero(kept)
        self.names = [self.names[place] for place in places]
        self.weights, self._linear = self.weights[places], self._linear[places]
        self._gram = self._gram[np.ix_(places, places)]


def maximise_on_simplex(linear: Float64, gram: Float64, start: Float64) -> Float64:
    """Maximise ``<linear, w> - 1/2 <w, gram w>`` over w >= 0 with sum 1, by its active set.

    Parameters
    ----------
    linear : ndarray of shape (n,), float64
    gram : ndarray of shape (n, n), float64, positive semidefinite
    start : ndarray of shape (n,), float64
        In the simplex.

    Returns
    -------
    ndarray of shape (n,), float64
    """
    weights = _maximise_on_face(linear, gram, start)
    value = _value(linear, gram, weights)
    for _ in range(_CHANGES):
        slopes = linear - gram @ weights
        best = int(np.argmax(slopes))
        gain = slopes[best] - weights @ slopes
        if gain <= _CLOSE * (abs(weights @ linear) + abs(slopes[best])):
            break
        shifted = _shift_weight(best, slopes, gram, weights)
        shifted = _maximise_on_face(linear, gram, shifted)
        before, value = value, _value(linear, gram, shifted)
        if not value > before:  # what is left of the gain is rounding
            break
        weights = shifted
    return weights


def _shift_weight(best: int, slopes: Float64, gram: Float64, weights: Float64) -> Float64:
    """Move weight from the atom that has some and the least slope to the one with the greatest."""
    worst = int(np.argmin(np.where(weights > 0, slopes, np.inf)))
    curvature = gram[best, best] - 2 * gram[best, worst] + gram[worst, worst]
    moved = float(weights[worst])
    if curvature > 0:
        moved = min(float((slopes[best] - slopes[worst]) / curvature), moved)
    shifted = weights.copy()
    shifted[worst] -= moved
    shifted[best] += moved
    return shifted


def _maximise_on_face(linear: Float64, gram: Float64, weights: Float64) -> Float64:
    """Go to the best weights of those that are not zero; where some fall to zero, without them."""
    weights = weights.copy()
    while True:
        active = np.flatnonzero(weights > 0)
        if len(active) == 1:
            weights[:] = 0
            weights[active] = 1.0
            return weights
        face = linear[active], gram[np.ix_(active, active)]
        target, now = _solve_face(*face), weights[active]
        if _value(*face, target) < _value(*face, now):
            return weights  # The face is flat along a slope, and has no best point inside.
        falling = target < _ZERO
        weights[:] = 0
        if not falling.any():
            weights[active] = target / target.sum()
            return weights
        with np.errstate(divide="ignore", invalid="ignore"):
            shares = np.where(falling & (now > target), now / (now - target), np.inf)
        share = min(shares.min(), 1.0)
        now = np.maximum(now + share * (target - now), 0.0)
        now[shares <= share] = 0.0
        if share == 1.0:
            now[falling] = 0.0  # Those that have no weight already, and would keep some rounding.
        weights[active] = now / now.sum()


def _value(linear: Float64, gram: Float64, weights: Float64) -> float:
    return float(linear @ weights - 0.5 * weights @ gram @ weights)


def _solve_face(linear: Float64, gram: Float64) -> Float64:
    """Maximise on the plane of sum 1."""
    n = len(linear)
    scale = max(np.trace(gram) / n, np.finfo(float).tiny)
    system = np.zeros((n + 1, n + 1))
    system[:n, :n] = gram / scale
    system[:n, n] = system[n, :n] = 1.0
    right = np.append(linear / scale, 1.0)
    # By scipy, whose threads the products of a pass have: numpy has others, which would stay awake.
    solution: Float64 = scipy.linalg.lstsq(system, right, cond=1e-14)[0][:n]
    return solution
