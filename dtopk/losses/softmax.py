"""The softmax loss: multinomial logistic regression."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from dtopk.kernels import softmax as kernels
from dtopk.losses.base import Array, LabelArray, Loss


@dataclass(frozen=True, kw_only=True)
class Softmax(Loss):
    """L(y, u) = log sum_j exp(u_j - u_y).

    Its conjugate is the negative entropy: with ``p = e_y - a/C``, which must be a distribution,
    ``D_i(a) = -C sum_j p_j log p_j`` [1]_.

    References
    ----------
    .. [1] Lapin, Hein, Schiele. Loss Functions for Top-k Error: Analysis and Insights. CVPR 2016.
    """

    name: ClassVar[str] = "softmax"
    summary: ClassVar[str] = "multinomial logistic regression"
    formula: ClassVar[str] = "log sum_j exp(u_j - u_y)"
    calibrated: ClassVar[str] = "every k [1]"
    cost: ClassVar[str] = "O(m), a few scans with an exponential"
    link: ClassVar[str] = "softmax"

    def probabilities(self, scores: Array) -> Array:
        """Return the softmax of scores (n_samples, n_classes), row by row."""
        exponentials = np.exp(scores - scores.max(axis=1, keepdims=True))
        probabilities: Array = exponentials / exponentials.sum(axis=1, keepdims=True)
        return probabilities

    def values(self, scores: Array, labels: LabelArray) -> NDArray[np.float64]:
        """See :meth:`Loss.values`."""
        out = np.empty(len(scores))
        kernels.softmax_values(scores, labels, out)
        return out

    def gradients(self, scores: Array, labels: LabelArray) -> Array:
        """See :meth:`Loss.gradients`."""
        out = np.empty_like(scores)
        kernels.softmax_gradients(scores, labels, out)
        return out

    def update_rows(
        self,
        scores: Array,
        gram: Array,
        dual: Array,
        delta: Array,
        labels: LabelArray,
        costs: Array,
        first: int,
        last: int,
    ) -> float:
        """See :meth:`Loss.update_rows`."""
        value: float = kernels.update_rows_softmax(
            scores, gram, dual, delta, labels, costs, first, last
        )
        return value

    def make_feasible(
        self, dual: Array, labels: LabelArray, costs: NDArray[np.float64]
    ) -> NDArray[np.float64]:
        """See :meth:`Loss.make_feasible`."""
        values = np.empty(len(dual))
        kernels.feasible_softmax_duals(dual, labels, costs, values)
        return values
