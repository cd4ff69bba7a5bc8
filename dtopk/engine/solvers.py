"""Which solver trains a loss, and what it keeps while it does."""

from dataclasses import dataclass

import numpy as np

from dtopk.engine.options import FitOptions
from dtopk.losses import Loss

LBFGS_PAIRS = 10
"""Pairs of L-BFGS."""
START_GAP = 3e-2
"""Relative gap to which the convex loss is solved with which one that is not convex begins. From
gaps of 1e-3 and 0.1 it reached objectives as low; from W = 0 it did not."""
MOST_METRIC_WIDTH = 8192
"""Rows of W up to which L-BFGS works in the metric of the features, which costs their square."""
_MOST_ATOMS = 50
"""Atoms that Frank-Wolfe's method keeps apart at most."""
_ATOM_BYTES = 1 << 30
"""Bytes that their vectors may take, at most."""


@dataclass(frozen=True, kw_only=True)
class Choice:
    """The solver of a run, and why it is that one."""

    solver: str
    """Its name."""
    reason: str
    """A clause that says why."""


@dataclass(frozen=True, kw_only=True)
class Needs:
    """What a solver keeps, beside features and weights."""

    passes: bool = False
    """Whether it reads all rows before it changes the weights."""
    duals: bool = True
    """Whether it keeps the dual variables of every row."""
    rows: bool = False
    """Whether it keeps what the last passes have found of every row, as much as the duals at
    most."""
    vectors: int = 0
    """Matrices of the shape of W, in the precision of the computation."""
    exact_vectors: int = 0
    """The same, in float64."""
    metric: bool = False
    """Whether it keeps a matrix of features by features."""
    masked: int = 0
    """Classes that every row leaves out for a stage, of a loss that is not convex."""


def choose_solver(loss: Loss, name: str) -> Choice:
    """Return the solver of that name, or for 'auto' the one that suits the loss.

    Parameters
    ----------
    loss : Loss
    name : str

    Raises
    ------
    ValueError
        If the solver cannot train the loss.
    """
    if name == "auto":
        first = loss.solvers[0]
        if loss.n_masked:
            reason = (
                "it solves, one after the other, convex problems that leave out what the loss "
                "forgives"
            )
        elif first == "sdca":
            reason = "it took the fewest passes where solvers were compared"
        else:
            reason = f"loss {loss.name!r} has no closed update of a row, which 'sdca' needs"
        return Choice(solver=first, reason=reason)
    if name not in loss.solvers:
        raise ValueError(
            f"solver for loss {loss.name!r} must be 'auto' or one of "
            f"{', '.join(map(repr, loss.solvers))}, got {name!r}."
        )
    return Choice(solver=name, reason="it was asked for")


def keeps_duals(loss: Loss, solver: str) -> bool:
    """Say whether a solver keeps the dual variables of every row.

    Parameters
    ----------
    loss : Loss
    solver : str
    """
    if solver in ("frank_wolfe", "frank_wolfe_fixed"):
        return loss.smooth
    return solver in ("sdca", "block_frank_wolfe")


def makes_duals(loss: Loss, solver: str) -> bool:
    """Say whether the duals of the certificate can be written to a file.

    Frank-Wolfe's method and the subgradient method have none for losses without smoothing: of the
    mixture that they are only the weights and the value are known.

    Parameters
    ----------
    loss : Loss
    solver : str
    """
    return keeps_duals(loss, solver) or solver in ("lbfgs", "gradient_descent")


def choose_atoms(width: int, n_classes: int, options: FitOptions) -> int:
    """Choose how many atoms Frank-Wolfe's method keeps apart, from their size.

    Parameters
    ----------
    width, n_classes : int
        The shape of W.
    options : FitOptions
    """
    if options.atoms >= 0:
        return options.atoms
    size = width * n_classes * np.dtype(options.dtype).itemsize
    return max(1, min(_MOST_ATOMS, _ATOM_BYTES // size))


def find_needs(loss: Loss, options: FitOptions, width: int, n_classes: int) -> Needs:
    """Say what a run keeps.

    Parameters
    ----------
    loss : Loss
    options : FitOptions
    width, n_classes : int
        The shape of W.
    """
    solver = choose_solver(loss, options.solver).solver
    if solver in ("sdca", "block_frank_wolfe"):
        return Needs(masked=loss.n_masked)
    # Gradient descent of a loss that is not convex begins with L-BFGS.
    if solver == "lbfgs" or (solver == "gradient_descent" and loss.n_masked):
        metric = width <= MOST_METRIC_WIDTH
        kinds = 3 if metric else 2
        return Needs(passes=True, duals=False, vectors=kinds * (LBFGS_PAIRS + 1) + 3, metric=metric)
    if solver == "gradient_descent":
        return Needs(passes=True, duals=False, vectors=5)
    smooth = keeps_duals(loss, solver)
    atoms = choose_atoms(width, n_classes, options) if solver == "frank_wolfe" else 0
    return Needs(
        passes=True,
        duals=smooth,
        rows=smooth,
        vectors=atoms + 1 + (not smooth),
        exact_vectors=1,
    )
