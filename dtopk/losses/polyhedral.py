"""What the losses share that are maxima over a polytope, with or without a square beside it."""

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from dtopk.kernels import smoothing as kernels
from dtopk.losses.base import Array, LabelArray, Loss
from dtopk.losses.label_sets import LabelSets


@dataclass(frozen=True, kw_only=True)
class PolyhedralLoss(Loss):
    """A loss that is a maximum of linear functions over a polytope, or that smoothed by a square.

    The smoothing adds ``gamma/2 |v|^2`` to the conjugate, over all coordinates or over all but
    the true label's, and leaves its domain, the polytope, as it is.
    """

    polyhedral: ClassVar[bool] = True

    @property
    def strength(self) -> float:
        """The strength of the smoothing, gamma; 0 where there is none."""
        return 0.0

    @property
    def curvature(self) -> float:
        """See :attr:`Loss.curvature`."""
        return 1.0 / self.strength if self.strength > 0 else 1.0

    @property
    def squares_label(self) -> bool:
        """Whether the smoothing squares the label's own coordinate as it does the others."""
        return True

    def shift_scores(self, scores: Array, dual: Array, labels: Any, costs: Array) -> None:
        """See :meth:`Loss.shift_scores`."""
        if self.strength > 0:
            skipped, weights = self._skipped(labels), costs.astype(np.float64)
            kernels.shift_scores(scores, dual, skipped, weights, self.strength)

    def smoothing_products(
        self, first: Array, second: Array, labels: Any, costs: Array
    ) -> NDArray[np.float64]:
        """See :meth:`Loss.smoothing_products`."""
        out = np.zeros(len(first))
        if self.strength > 0:
            skipped, weights = self._skipped(labels), costs.astype(np.float64)
            kernels.smoothing_products(first, second, skipped, weights, self.strength, out)
        return out

    def _skipped(self, labels: Any) -> LabelArray:
        """Return the class of each row that the smoothing leaves out, -1 for none."""
        if self.squares_label:
            return np.full(len(labels), -1, np.int32)
        skipped: LabelArray = labels
        return skipped


def sums_of_sides(dual: Array, labels: LabelSets) -> NDArray[np.float64]:
    """Return the sums of dual rows over their labels, less those over the other classes.

    Parameters
    ----------
    dual : ndarray of shape (n_samples, n_classes), float32 or float64
    labels : LabelSets
    """
    out = np.empty(len(dual))
    kernels.label_sums(dual, labels.indptr, labels.indices, out)
    return out
