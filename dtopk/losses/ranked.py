"""What the hinges share that weigh margins by their rank, smoothed or not."""

import math
from abc import abstractmethod
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from dtopk.kernels import hinge as kernels
from dtopk.kernels.ranked import ranked_vertices
from dtopk.losses.base import Array, LabelArray
from dtopk.losses.polyhedral import PolyhedralLoss

SMOOTHINGS = {"lapin": kernels.LAPIN, "moreau": kernels.MOREAU}


@dataclass(frozen=True, kw_only=True)
class RankedHinge(PolyhedralLoss):
    """A weighted sum of the largest margins, or that smoothed by a square beside its conjugate.

    :mod:`dtopk.kernels.ranked` has the three ways to sum them up.
    """

    smoothness: ClassVar[str] = "gamma > 0"
    domain: ClassVar[int]
    """How margins are summed up, which is how the domain of the dual looks: a code of
    :mod:`dtopk.kernels.projections`."""

    gamma: float = 0.0
    """Strength of the smoothing; 0 leaves the loss nonsmooth."""
    smoothing: str = "lapin"
    """Form of the smoothing, 'lapin' or 'moreau'."""

    def __post_init__(self) -> None:
        if not (math.isfinite(self.gamma) and self.gamma >= 0):
            raise ValueError(f"gamma must be finite and at least 0, got {self.gamma!r}.")
        if self.smoothing not in SMOOTHINGS:
            raise ValueError(f"smoothing must be 'lapin' or 'moreau', got {self.smoothing!r}.")

    @property
    @abstractmethod
    def rank_weights(self) -> NDArray[np.float64]:
        """The weights of the largest, second largest, ... margin, of shape (n_weights,)."""

    @property
    def smooth(self) -> bool:
        """Whether gamma is positive."""
        return self.gamma > 0

    @property
    def smoothing_code(self) -> int:
        """The form of the smoothing, as the kernels know it."""
        return SMOOTHINGS[self.smoothing]

    @property
    def strength(self) -> float:
        """The strength of the smoothing, gamma."""
        return self.gamma

    @property
    def squares_label(self) -> bool:
        """Whether the smoothing is the one of all scores, 'moreau'."""
        return self.smoothing == "moreau"

    def margin_costs(self, scores: Array) -> Array:
        """Return the margin asked for between a label and another class.

        Parameters
        ----------
        scores : ndarray of shape (n_samples, n_classes)

        Returns
        -------
        ndarray of shape (1, n_classes) or (n_classes, n_classes), the dtype of `scores`
            That of every label, or one row for all of them; it cannot be written to.
        """
        return _equal_margins(scores.shape[1], scores.dtype)

    def vertices(self, scores: Array, labels: LabelArray) -> Array:
        """See :meth:`Loss.vertices`: the weights, on the classes of the largest margins."""
        out = np.empty_like(scores)
        costs = self.margin_costs(scores)
        ranked_vertices(scores, labels, costs, self.rank_weights, self.domain, out)
        return out

    def linear_terms(self, dual: Array, labels: LabelArray, costs: Array) -> NDArray[np.float64]:
        """See :meth:`Loss.linear_terms`: the label's own entry."""
        return dual[np.arange(len(labels)), labels].astype(np.float64)


@lru_cache(maxsize=2)
def _equal_margins(n_classes: int, dtype: np.dtype[Any]) -> Array:
    margins = np.ones((1, n_classes), dtype)
    # As label costs are, so that the kernels are compiled for one kind of array.
    margins.flags.writeable = False
    return margins
