"""The sparsemax loss."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from dtopk.kernels import sparsemax as kernels
from dtopk.losses.base import Array, LabelArray, Loss


@dataclass(frozen=True, kw_only=True)
class Sparsemax(Loss):
    """L(y, u) = max_p <u, p> - |p|^2 / 2 + 1/2 - u_y over the distributions p [1]_.

    Its probabilities, the maximiser, are zero for classes whose scores are far below the largest.

    References
    ----------
    .. [1] Martins, Astudillo. From Softmax to Sparsemax: A Sparse Model of Attention and
       Multi-Label Classification. ICML 2016.
    """

    name: ClassVar[str] = "sparsemax"
    summary: ClassVar[str] = "like softmax, with probabilities that can be zero"
    formula: ClassVar[str] = "max_p <u, p> - |p|^2/2 + 1/2 - u_y, p a distribution"
    cost: ClassVar[str] = "O(m), a few scans"
    link: ClassVar[str] = "sparsemax"

    def probabilities(self, scores: Array) -> Array:
        """Return the projection of scores (n_samples, n_classes) on distributions, row by row."""
        out = np.empty_like(scores)
        kernels.sparsemax(scores, out)
        return out

    def values(self, scores: Array, labels: LabelArray) -> NDArray[np.float64]:
        """See :meth:`Loss.values`."""
        out = np.empty(len(scores))
        kernels.sparsemax_values(scores, labels, out)
        return out

    def gradients(self, scores: Array, labels: LabelArray) -> Array:
        """See :meth:`Loss.gradients`."""
        out = self.probabilities(scores)
        out[np.arange(len(out)), labels] -= 1
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
        value: float = kernels.update_rows_sparsemax(
            scores, gram, dual, delta, labels, costs, first, last
        )
        return value

    def make_feasible(
        self, dual: Array, labels: LabelArray, costs: NDArray[np.float64]
    ) -> NDArray[np.float64]:
        """See :meth:`Loss.make_feasible`."""
        values = np.empty(len(dual))
        kernels.feasible_sparsemax_duals(dual, labels, costs, values)
        return values
