"""When to accelerate, and when to look whether the tolerance is reached, from what a run shows."""

import math
from collections.abc import Mapping

_FIRST_DECISION = 3
"""The dual's last two ascents are compared from so many passes on."""
_SLOW = 0.5
"""Passes that divide the distance to the optimum by e, above which SDCA is accelerated at once."""
_SLOW_LATE = 1.0
"""The same once plain SDCA is well under way."""
_MANY_PASSES = 5.0
"""Passes that must be left for that."""
_STRENGTH = 6.0
"""r is so many times the root of the passes per fold; see `choose_ratio`."""
_RANGE = (3.0, 300.0)
"""Least and greatest r: below, the momentum is hardly any; above, steps become too short."""
_PATIENCE = 15
"""A run stagnates after so many passes without progress."""
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
_LEFT = 0.45
"""Share of a subproblem's gap that a pass is to leave."""
_STEPS = (0.6, 3.0)
"""By how much r falls and grows from one pass to the next, at most."""
_STEERED = (1.2, 1000.0)
"""Least and greatest r that is steered to."""


def passes_per_fold(dual_values: list[float]) -> float:
    """Estimate the passes in which plain SDCA divides the dual's distance to its optimum by e.

    Parameters
    ----------
    dual_values : list of float
        D at the start and after every pass, at least three of them. They never fall, and their
        last two ascents are taken for a geometric sequence.

    Returns
    -------
    float
        0 where that is not to be seen.
    """
    before, after = dual_values[-2] - dual_values[-3], dual_values[-1] - dual_values[-2]
    # Ascents that still grow say nothing yet of how they will end.
    if not 0 < after < before:
        return 0.0
    return 1.0 / math.log(before / after)


def choose_ratio(dual_values: list[float], gap: float, tol: float) -> float:
    """Choose r of the accelerated outer loop for a loss that is not smooth; 1 leaves SDCA plain.

    The outer loop takes about sqrt(r) passes for what plain SDCA takes T for, as long as one pass
    does most of the work on each subproblem. Over four decades of C, hinge and softmax losses,
    smooth or not, r = 6 sqrt(T) took about the fewest passes: twice as many at worst where the
    best r was sought by hand.

    Parameters
    ----------
    dual_values : list of float
        D at the start and after every pass of plain SDCA.
    gap : float
        Relative gap after the last pass, estimated.
    tol : float
        Relative gap to reach.

    Returns
    -------
    float
    """
    n_passes = len(dual_values) - 1
    if n_passes < _FIRST_DECISION:
        return 1.0
    passes = passes_per_fold(dual_values)
    slow = passes > _SLOW
    if n_passes > _FIRST_DECISION:
        left = passes * math.log(max(abs(gap) / tol, 1.0))
        slow = passes > _SLOW_LATE and left > _MANY_PASSES
    if not slow:
        return 1.0
    return min(max(_STRENGTH * math.sqrt(passes), _RANGE[0]), _RANGE[1])


def first_ratio(n_partitions: int) -> float:
    """Return the r that the accelerated outer loop starts with, for a smooth loss.

    It is about the lowest one that is steered to; the first passes find what C and the rows ask
    for.

    Parameters
    ----------
    n_partitions : int
    """
    return _FIRST * math.pow(n_partitions, 0.75)


def steer_ratio(ratio: float, left: float) -> float:
    """Return the r of the next pass, for a smooth loss.

    The outer loop is fast as long as one pass does most of the work on its subproblem, and the
    faster the smaller r is. Over C from 0.1 to 10 and 1 to 64 partitions the r with the fewest
    passes was one at which a pass leaves about 0.45 of its subproblem's gap: more is left at a
    lower r, less at a higher one. Passes are counted in tests/benchmarks/passes.py.

    Parameters
    ----------
    ratio : float
        r of the last pass.
    left : float
        Its subproblem's gap at the end, by that at the start.

    Returns
    -------
    float
    """
    change = min(max(left / _LEFT, _STEPS[0]), _STEPS[1])
    return min(max(ratio * change, _STEERED[0]), _STEERED[1])


class StagnationWatch:
    """Notice when the estimated gap has stopped falling.

    The accelerated loop may swing around the optimum where its ratio is too large for one pass to
    do most of the work on a subproblem; and in float32 the weights drift from the duals over
    hundreds of passes.
    """

    def __init__(self) -> None:
        self.restart()

    def restart(self) -> None:
        """Forget the passes seen."""
        self._best = 1.0
        self._passes = 0

    def to_dict(self) -> dict[str, float]:
        """Return what has been seen, as JSON values."""
        return {"best": self._best, "passes": self._passes}

    def restore(self, values: Mapping[str, float]) -> None:
        """Take over what `to_dict` gave."""
        self._best, self._passes = values["best"], int(values["passes"])

    def stagnates(self, estimate: float) -> bool:
        """Take in the estimate of a pass; say whether the last passes brought nothing.

        Parameters
        ----------
        estimate : float
            Relative gap, estimated.
        """
        size = max(abs(estimate), self._best / _MOST_PROGRESS)
        if size < _PROGRESS * self._best:
            self._best, self._passes = size, 0
            return False
        self._passes += 1
        if self._passes < _PATIENCE:
            return False
        self.restart()
        return True


def weaker_ratio(ratio: float) -> float:
    """Return the next lower r to try where a run stagnates.

    Parameters
    ----------
    ratio : float
    """
    return max(ratio / 2, _RANGE[0])


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
