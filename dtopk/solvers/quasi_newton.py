"""L-BFGS on vectors that are elsewhere: of them only products are known here.

The two-loop recursion [1]_ makes the direction a combination of the last gradients and steps. Its
factors follow from the products of these vectors, so that whoever has slices of the vectors
forms the direction, and whoever leads handles a few numbers [2]_. The first approximation of the
inverse Hessian may be the inverse of any metric: then a third vector goes with every pair, and
with the gradient, the metric's inverse times it.

References
----------
.. [1] Nocedal, Wright. Numerical Optimization. Springer 2006. Algorithms 7.4, 3.5 and 3.6.
.. [2] Chen, Wang, Zhou. Large-scale L-BFGS using MapReduce. NeurIPS 2014.
.. [3] Hager, Zhang. A New Conjugate Gradient Method with Guaranteed Descent and an Efficient Line
   Search. SIAM Journal on Optimization 2005.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Float64 = NDArray[np.float64]

_SUFFICIENT = 1e-4
"""The value falls by this share of what its slope promises, at least (Armijo)."""
_FLAT = 0.9
"""The slope along the line falls to this share of what it was, at least (Wolfe)."""
_MOST_GROWTH = 10.0
"""By how much a step grows at most, where the line still falls at its end."""
_INSIDE = 0.1
"""Share of a bracket that a new step keeps away from its ends."""
_LEAST_CURVATURE = 1e-10
"""A pair with less of it, in relative terms, is left out: rounding made it."""


class QuasiNewton:
    """The pairs of L-BFGS, by their products.

    Pair i is a step s_i, the change y_i of the gradient along it, and z_i, the metric's inverse
    times y_i.

    Parameters
    ----------
    memory : int
        Most pairs that are kept.
    """

    def __init__(self, memory: int) -> None:
        self.memory = memory
        self.pairs: list[int] = []
        """The names of the pairs, the oldest first."""
        self._sy: Float64 = np.zeros((0, 0))
        self._zy: Float64 = np.zeros((0, 0))

    def to_dict(self) -> dict[str, Any]:
        """Return all of it, as JSON values."""
        return {
            "memory": self.memory,
            "pairs": self.pairs,
            "sy": self._sy.tolist(),
            "zy": self._zy.tolist(),
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "QuasiNewton":
        """Make it again of what `to_dict` gave."""
        found = cls(values["memory"])
        found.pairs = list(values["pairs"])
        n = len(found.pairs)
        found._sy = np.array(values["sy"]).reshape(n, n)
        found._zy = np.array(values["zy"]).reshape(n, n)
        return found

    def forget(self) -> list[int]:
        """Drop all pairs, and return their names."""
        dropped, self.pairs = self.pairs, []
        self._sy = self._zy = np.zeros((0, 0))
        return dropped

    def make_room(self) -> list[int]:
        """Drop the oldest pair where there are as many as are kept, and return its name."""
        if len(self.pairs) < self.memory:
            return []
        dropped = self.pairs[:1]
        self.pairs = self.pairs[1:]
        self._sy, self._zy = self._sy[1:, 1:], self._zy[1:, 1:]
        return dropped

    def add(self, name: int, sy: Float64, ys: Float64, zy: Float64) -> bool:
        """Take in a pair; say whether it is of use.

        Parameters
        ----------
        name : int
        sy : ndarray of shape (n_pairs + 1,), float64
            The new step's products with all y, its own at the end.
        ys : ndarray of shape (n_pairs + 1,), float64
            The new y's products with all steps.
        zy : ndarray of shape (n_pairs + 1,), float64
            The new y's products with all z.
        """
        if not sy[-1] > _LEAST_CURVATURE * zy[-1]:
            return False
        n = len(self.pairs)
        grown = np.zeros((2, n + 1, n + 1))
        grown[0, :n, :n], grown[1, :n, :n] = self._sy, self._zy
        grown[0, n], grown[0, :, n] = sy, ys
        grown[1, n] = grown[1, :, n] = zy
        self._sy, self._zy = grown
        self.pairs = [*self.pairs, name]
        return True

    def direction(self, sg: Float64, zg: Float64) -> tuple[float, Float64, Float64]:
        """Return the direction of descent, as the factors of the vectors that it is made of.

        Parameters
        ----------
        sg, zg : ndarray of shape (n_pairs,), float64
            Products of all steps, and of all z, with the gradient.

        Returns
        -------
        float
            Factor of the metric's inverse times the gradient.
        s, z : ndarray of shape (n_pairs,), float64
            Factors of the steps and of the z.
        """
        n = len(self.pairs)
        if n == 0:
            return -1.0, np.zeros(0), np.zeros(0)
        curvatures = np.diag(self._sy)
        alpha = np.zeros(n)
        for i in reversed(range(n)):
            alpha[i] = (sg[i] - self._sy[i] @ alpha) / curvatures[i]
        scale = curvatures[-1] / self._zy[-1, -1]
        moved = np.zeros(n)
        for i in range(n):
            beta = scale * (zg[i] - self._zy[i] @ alpha) + self._sy[:, i] @ moved
            moved[i] = alpha[i] - beta / curvatures[i]
        return -scale, -moved, scale * alpha


@dataclass(kw_only=True)
class LineSearch:
    """The search along one direction for a step that meets the conditions of Wolfe.

    Near the end values differ by rounding alone: there the slopes decide [3]_.
    """

    value: float
    """The value at its start."""
    slope: float
    """The slope there, below 0."""
    step: float
    """The step to be looked at next."""
    rounding: float
    """By so much a value may be wrong, in relative terms."""
    low: float = 0.0
    """The least step that may be right."""
    low_value: float = 0.0
    """Value there, less that at the start."""
    low_slope: float = 0.0
    """Slope there."""
    high: float = float("inf")
    """The greatest step that may be right."""

    def __post_init__(self) -> None:
        if self.low == 0.0:
            self.low_slope = self.slope

    def to_dict(self) -> dict[str, float]:
        """Return the fields, as JSON values."""
        return asdict(self)

    def judge(self, value: float, slope: float) -> bool:
        """Take in what is at the step; say whether it will do, or choose the next one.

        Parameters
        ----------
        value, slope : float
            The slope along the direction.
        """
        step, change = self.step, value - self.value
        slack = self.rounding * abs(self.value)
        rises = not change <= _SUFFICIENT * step * self.slope
        if rises and change <= slack and slope <= (2 * _SUFFICIENT - 1) * self.slope:
            rises = False
        if not rises and abs(slope) <= -_FLAT * self.slope:
            return True
        if rises or slope > 0:
            self.high = step
            self.step = self._inside(
                _minimum(self.low, self.low_value, self.low_slope, step, change, slope)
            )
        else:
            grown = _MOST_GROWTH * step if step > 0 else 1.0
            self.step = (
                min(max(2 * step, _extrapolate(self.low, self.low_slope, step, slope)), grown)
                if np.isinf(self.high)
                else self._inside(0.5 * (step + self.high))
            )
            self.low, self.low_value, self.low_slope = step, change, slope
        return False

    def _inside(self, step: float) -> float:
        margin = _INSIDE * (self.high - self.low)
        if not np.isfinite(step):
            step = 0.5 * (self.low + self.high)
        return min(max(step, self.low + margin), self.high - margin)

    @property
    def exhausted(self) -> bool:
        """Whether the bracket has become too narrow to find anything."""
        return math.isfinite(self.high) and self.high - self.low <= 1e-10 * self.high


def _minimum(a: float, fa: float, ga: float, b: float, fb: float, gb: float) -> float:
    """Return the minimum of the cubic with these values and slopes; NaN where there is none."""
    first = ga + gb - 3 * (fa - fb) / (a - b)
    inner = first * first - ga * gb
    if not (np.isfinite(inner) and inner >= 0):
        return float("nan")
    second = np.copysign(np.sqrt(inner), b - a)
    return float(b - (b - a) * (gb + second - first) / (gb - ga + 2 * second))


def _extrapolate(a: float, ga: float, b: float, gb: float) -> float:
    """Return where the line through two slopes is 0; infinity where it never is."""
    return b + gb * (b - a) / (ga - gb) if gb > ga else float("inf")


def names_of(pairs: Sequence[int], kind: str) -> list[str]:
    """Return the names of the pairs' vectors of one kind.

    Parameters
    ----------
    pairs : sequence of int
    kind : {'s', 'y', 'z'}
    """
    return [f"{kind}-{pair}" for pair in pairs]
