"""A model among several that are trained on the same rows."""

import dataclasses
from dataclasses import dataclass

from dtopk.engine.options import FitOptions, StartPoint
from dtopk.losses import Loss


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """A model to be trained."""

    name: str
    """By which it is told from the others."""
    loss: Loss
    """The loss."""
    C: float
    """Its weight against the penalty."""
    start: StartPoint | None = None
    """Where to start, instead of at the candidate before."""

    @property
    def family(self) -> str:
        """Names the loss with its parameters, which candidates that start from each other share."""
        return repr(self.loss)

    def apply(self, options: FitOptions) -> FitOptions:
        """Return options with the C of this one.

        Parameters
        ----------
        options : FitOptions
        """
        return dataclasses.replace(options, C=self.C)
