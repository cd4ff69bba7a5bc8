"""What a training run is told: the problem beside its loss and rows, and how it is solved."""

import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]

SOLVERS = (
    "auto", "sdca", "frank_wolfe", "block_frank_wolfe", "frank_wolfe_fixed", "lbfgs",
    "gradient_descent", "pegasos",
)  # fmt: skip
ACCELERATIONS = ("auto", "off")
AGGREGATIONS = ("exact", "adding", "averaging")
FLOAT32_TOL = 1e-6
"""Tolerances below this may be out of float32's reach."""

_LEAST = {
    "max_epochs": 1, "block_size": 0, "seed": 0, "threads": 0, "partitions": 1, "block_rows": 0,
    "rounds_per_epoch": 0, "atoms": -1,
}  # fmt: skip


def _check_positive(name: str, value: float) -> None:
    # A whole number of any size is one of Python's, and no float.
    if not 0 < value <= sys.float_info.max:
        raise ValueError(f"{name} must be finite and above 0, got {value!r}.")


def _check_choice(name: str, value: str, choices: Sequence[str]) -> None:
    if value not in choices:
        raise ValueError(f"{name} must be one of {', '.join(map(repr, choices))}, got {value!r}.")


@dataclass(frozen=True, kw_only=True)
class FitOptions:
    """The problem beside its loss and its rows, and how it is solved."""

    C: float = 1.0
    """Weight of the loss against |W|^2 / 2, per row."""
    tol: float = 1e-3
    """Relative duality gap at which training stops."""
    max_epochs: int = 200
    """Passes after which training stops all the same."""
    time_limit_s: float = math.inf
    """Seconds after which training stops all the same."""
    solver: str = "auto"
    """Name of a solver, or 'auto' for the one that suits the loss."""
    dtype: str = "float32"
    """Of weights, scores and duals: 'float32' or 'float64'."""
    block_size: int = 0
    """Rows solved together; 0: from the numbers of features and classes."""
    seed: int = 0
    """Of the order of the rows."""
    acceleration: str = "auto"
    """Accelerated outer loop: 'auto', as strong as it pays, or 'off'."""
    atoms: int = -1
    """Directions that 'frank_wolfe' keeps apart, to take the best mixture of them: -1 as many as
    pay; 0 none, which leaves the plain method with exact line search."""
    constant: float = 0.0
    """Value of the constant feature whose weights are the intercept; 0: no intercept."""
    mean: Array | None = None
    """Subtracted from every row, of shape (n_features,); None: nothing is."""
    inverse_scale: Array | None = None
    """Multiplied with every row after that, of shape (n_features,)."""
    class_weight: Array | None = None
    """Weight of the rows of each class, of shape (n_classes,); None: 1."""
    threads: int = 0
    """Threads of the matrix products; 0: all."""
    partitions: int = 1
    """Parts that the rows are dealt to, each of which is swept on its own in a round."""
    block_rows: int = 0
    """Rows that are dealt out together; 0: from the numbers of rows and partitions."""
    rounds_per_epoch: int = 0
    """Synchronisations of partitions in an epoch; 0: from the numbers of rows and partitions."""
    aggregation: str = "exact"
    """How partitions' changes are put together: 'exact' maximises the dual along them. 'adding' and
    'averaging' are the schemes of CoCoA+ and CoCoA, where no block changes its partition, for
    comparison."""
    checkpoint_s: float = 60.0
    """Seconds after which the state of the run is written again."""
    memory_limit_bytes: int | None = None
    """What features, duals and weights may take; None: a share of what is free."""

    def __post_init__(self) -> None:
        _check_positive("C", self.C)
        _check_positive("tol", self.tol)
        if not self.time_limit_s > 0:
            raise ValueError(f"time_limit_s must be above 0, got {self.time_limit_s!r}.")
        if not self.checkpoint_s >= 0:
            raise ValueError(f"checkpoint_s must be at least 0, got {self.checkpoint_s!r}.")
        for name, least in _LEAST.items():
            if getattr(self, name) < least:
                raise ValueError(f"{name} must be at least {least}, got {getattr(self, name)!r}.")
        _check_choice("solver", self.solver, SOLVERS)
        _check_choice("dtype", self.dtype, ("float32", "float64"))
        _check_choice("aggregation", self.aggregation, AGGREGATIONS)
        _check_choice("acceleration", self.acceleration, ACCELERATIONS)
        if not math.isfinite(self.constant):
            raise ValueError(f"constant must be finite, got {self.constant!r}.")
        self._check_arrays()

    def explain_overflow(self) -> str:
        """Say why numbers have run out of the floating-point type, and what to do."""
        wider = ", or compute in float64" if self.dtype == "float32" else ""
        return (
            f"the features or C = {self.C!r} are too large for {self.dtype}. Scale the "
            f"features{wider}."
        )

    def _check_arrays(self) -> None:
        limits = np.finfo(self.dtype)
        least, most = float(limits.tiny), float(limits.max)
        if not least <= self.C <= most:
            # Rounded to zero, it would give a problem that any weights solve.
            raise ValueError(
                f"C must be between {least:.3g} and {most:.3g} in {self.dtype}, got {self.C!r}."
            )
        if self.constant and not least <= abs(self.constant) <= most:
            raise ValueError(
                f"the constant feature must be between {least:.3g} and {most:.3g} in {self.dtype}, "
                f"got {self.constant!r}. Choose another intercept_scaling."
            )
        if (self.mean is None) != (self.inverse_scale is None):
            raise ValueError("mean and inverse_scale must be given together, got one of them.")
        for name, smallest in (("mean", 0.0), ("inverse_scale", least)):
            values = getattr(self, name)
            if values is None:
                continue
            fits = (np.abs(values) >= smallest) & (np.abs(values) <= most)
            if not fits.all():
                column = int(np.argmin(fits))
                raise ValueError(
                    f"{name} must be between {smallest:.3g} and {most:.3g} in size for "
                    f"{self.dtype}, got {values[column]:g} for feature {column}. Scale the feature "
                    "another way, or leave it out."
                )
        weights = self.class_weight
        if weights is not None and not (np.isfinite(weights) & (weights >= 0)).all():
            raise ValueError(f"class_weight must be finite and at least 0, got {weights!r}.")


class DualRows(Protocol):
    """Duals that can be read row by row, such as those of a file."""

    def read(self, start: int, stop: int) -> Array:
        """Return the duals of stored rows `start` to `stop`, of shape (stop - start, n_classes)."""


@dataclass(frozen=True, kw_only=True)
class StartPoint:
    """Where training starts instead of at zero. One of the two is given."""

    W: Array | None = None
    """Weights of shape (n_features, n_classes), or with a last row for the constant feature; the
    duals start at minus C times the loss's gradients there."""
    dual: DualRows | None = None
    """Duals of the same rows."""
    dual_factor: float = 1.0
    """What to multiply them with: the new C by the old one."""

    def __post_init__(self) -> None:
        if (self.W is None) == (self.dual is None):
            raise ValueError("start must be given by W or by dual, got both or neither of them.")
