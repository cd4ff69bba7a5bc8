"""The trainings that a sweep is made of, and what each came to."""

import time
from collections.abc import Sequence
from dataclasses import dataclass

from dtopk.engine import FitResult
from dtopk.job.sweep_config import Setting


@dataclass(frozen=True, kw_only=True)
class Unit:
    """One training of a sweep: a setting, on all rows, without a fold, or anew."""

    setting: Setting
    """What is trained."""
    fold: int = 0
    """The fold that is held out, from 1; 0: none."""
    refit: bool = False
    """Whether it is the training of the best setting on all rows that there are."""

    @property
    def name(self) -> str:
        """Name of its folder, below that of the settings."""
        part = "/refit" if self.refit else f"/fold-{self.fold}" if self.fold else ""
        return f"{self.setting.name}{part}"

    def describe(self) -> str:
        """Describe it in words."""
        part = ", trained anew" if self.refit else f", fold {self.fold}" if self.fold else ""
        return f"{self.setting.describe()}{part}"


@dataclass(frozen=True, kw_only=True)
class UnitResult:
    """What one training came to, as its file says."""

    solver: str
    """Name of the solver."""
    stop_reason: str
    """'tolerance', 'max_epochs' or 'time_limit'."""
    epochs: int
    """Passes over the training rows."""
    seconds: float
    """From the start to the certificate, while others were trained at the same time."""
    primal: float
    """Primal objective."""
    dual: float
    """Dual objective."""
    duality_gap: float
    """primal - dual."""
    relative_gap: float
    """Relative to the larger of the two."""
    certified: bool
    """Whether it is at most the tolerance."""
    splits: tuple[str, ...]
    """The splits whose rows it was trained on."""
    ended: float = 0.0
    """When it came to its end: seconds since 1970; 0: an earlier version has not noted it."""

    @classmethod
    def of_fit(cls, fitted: FitResult, splits: Sequence[str]) -> "UnitResult":
        """Take it from what the engine returns.

        Parameters
        ----------
        fitted : FitResult
        splits : sequence of str
        """
        certificate = fitted.certificate
        return cls(
            solver=fitted.solver,
            stop_reason=fitted.stop_reason,
            epochs=fitted.epochs,
            seconds=fitted.seconds,
            primal=certificate.primal,
            dual=certificate.dual_value,
            duality_gap=certificate.duality_gap,
            relative_gap=certificate.relative_gap,
            certified=certificate.certified,
            splits=tuple(splits),
            ended=time.time(),
        )


def list_units(settings: Sequence[Setting], folds: int) -> list[Unit]:
    """List the trainings of a sweep in their order: each setting once, or once for each fold.

    Parameters
    ----------
    settings : sequence of Setting
    folds : int
        0: there are none.
    """
    numbers = range(1, folds + 1) if folds else (0,)
    return [Unit(setting=each, fold=fold) for fold in numbers for each in settings]
