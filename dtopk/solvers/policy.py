"""How much to accelerate, and when to look whether the tolerance is reached."""

import math
from collections.abc import Mapping
from typing import Literal

_PATIENCE = 15
"""A run stagnates after so many passes without progress."""
_SWING = 2.0
"""The greatest estimate of these passes is above so many times the least one where a run swings."""
_BEGUN = 0.5
"""Relative gap below which it may."""
_PROGRESS = 0.9
"""Progress is an estimated gap below this share of the least one before."""
_MOST_PROGRESS = 30.0
"""One pass is not believed to divide the gap by more: estimates swing around zero."""
_MOST_CORRECTION = 100.0
"""A missed check puts the next one off by at most this factor of the gap."""
_CERTAIN = 0.95
"""A certificate is taken where the estimate is below this share of the tolerance."""
_FIRST = 1.5
"""r at the start, for one partition."""
_POWER = 0.2
"""The quotient of the gap's two parts falls about as r to the power 2 to 3, and is noisy: r goes
about half the way to where they are the same."""
_STEPS = (0.5, 3.0)
"""By how much r falls and grows from one pass to the next, at most."""
_LEAST_RATIO = 1.2
MOST_RATIO = 1000.0
"""Greatest r that is steered to."""
_TINY = 1e-300
"""Least number that is divided by."""


def first_ratio(n_partitions: int) -> float:
    """Return the r that the accelerated outer loop starts with.

    The first passes find what C and the rows ask for.

    Parameters
    ----------
    n_partitions : int
    """
    return _FIRST * math.pow(n_partitions, 0.75)


def steer_ratio(ratio: float, inner: float, outer: float, *, ceiling: float = MOST_RATIO) -> float:
    """Return the r of the next pass, which makes both parts of the gap about the same.

    The gap is a sum of two parts, none below 0: what each row's dual lacks at W, and half the
    squared distance between W and the weights of the duals. With a greater r a pass solves its
    subproblem better, which makes the first part smaller; and W follows the duals' weights more
    slowly, which makes the second one larger. Over C from 0.1 to 10, smooth losses and others and 1
    to 64 partitions, the fewest passes were taken with an r at which the second part was 0.2 to 0.7
    of the gap. Passes are counted in tests/benchmarks/passes.py.

    Parameters
    ----------
    ratio : float
        r of the last pass.
    inner : float
        sum_i C_i L_i - D_i + <a_i, W'x_i> after it.
    outer : float
        |W - X'A|^2 / 2 after it.
    ceiling : float
        Most that is returned; see :func:`lower_ceiling`.

    Returns
    -------
    float
    """
    least, most = _STEPS
    change = math.pow(max(inner, _TINY) / max(outer, _TINY), _POWER)
    return min(max(ratio * min(max(change, least), most), _LEAST_RATIO), ceiling)


def lower_ceiling(ratio: float) -> float:
    """Return the greatest r from now on, where a run with r swings.

    With a loss that is not smooth and few rows, both parts of the gap may swing together.

    Parameters
    ----------
    ratio : float
    """
    return max(ratio / 2, _LEAST_RATIO)


Course = Literal["falls", "stalls", "swings"]
"""Of the estimated gap: it falls; it has not fallen for a while; nor has it, and it goes up and
down."""


class StagnationWatch:
    """Notice when the estimated gap has stopped falling.

    In float32 the weights drift from the duals over hundreds of passes: the gap stalls until a
    certificate sets them back. And the accelerated loop may swing around the optimum.
    """

    def __init__(self) -> None:
        self.restart()

    def restart(self) -> None:
        """Forget the passes seen."""
        self._best = 1.0
        self._worst = 0.0
        self._passes = 0

    def to_dict(self) -> dict[str, float]:
        """Return what has been seen, as JSON values."""
        return {"best": self._best, "worst": self._worst, "passes": self._passes}

    def restore(self, values: Mapping[str, float]) -> None:
        """Take over what `to_dict` gave."""
        self._best, self._worst = values["best"], values["worst"]
        self._passes = int(values["passes"])

    def judge(self, estimate: float) -> Course:
        """Take in the estimate of a pass; say where the last passes have led.

        Parameters
        ----------
        estimate : float
            Relative gap, estimated.
        """
        size = max(abs(estimate), self._best / _MOST_PROGRESS)
        if size < _PROGRESS * self._best:
            self._best, self._worst, self._passes = size, size, 0
            return "falls"
        self._worst = max(self._worst, size)
        self._passes += 1
        if self._passes < _PATIENCE:
            return "falls"
        # A run that has not begun to fall has nothing to swing around.
        swings = self._best < _BEGUN and self._worst > _SWING * self._best
        self.restart()
        return "swings" if swings else "stalls"


class CheckSchedule:
    """Decide after which passes the certificate is worth taking.

    The gap is estimated on some of the rows. Where a certificate shows that an estimate was too
    low, later ones are taken for as much too low, and for less so with every pass.

    Parameters
    ----------
    tol : float
        Relative gap to reach.
    """

    def __init__(self, tol: float) -> None:
        self._tol = tol
        self._estimate = 1.0
        self._correction = 1.0

    def to_dict(self) -> dict[str, float]:
        """Return what has been seen, as JSON values."""
        return {"estimate": self._estimate, "correction": self._correction}

    def restore(self, values: Mapping[str, float]) -> None:
        """Take over what `to_dict` gave."""
        self._estimate, self._correction = values["estimate"], values["correction"]

    def aim(self, tol: float) -> None:
        """Have another relative gap to reach from here on.

        Parameters
        ----------
        tol : float
        """
        self._tol = tol

    def due(self, estimate: float) -> bool:
        """Take in the estimate of a pass; say whether the gap is likely to be within `tol`.

        Parameters
        ----------
        estimate : float
            Relative gap, estimated.
        """
        self._estimate = estimate
        self._correction = math.sqrt(self._correction)
        return estimate * self._correction <= _CERTAIN * self._tol

    def missed(self, gap: float) -> None:
        """Take in the relative gap that the certificate gave, above `tol`.

        Parameters
        ----------
        gap : float
        """
        self._correction = min(max(gap / max(self._estimate, 1e-300), 1.0), _MOST_CORRECTION)
