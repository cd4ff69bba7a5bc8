r"""The top-k entropy losses: softmax with a cap on what a class other than the label can weigh.

The softmax loss is the maximum over x, the distribution over the classes less the label's entry,
of ``<b, x> - sum x_j log x_j - (1 - s) log(1 - s)``, with ``b_j = u_j - u_y`` and s the sum of x.
A cap on x makes the loss count k classes where softmax would count one:

* alpha: ``x_j <= s / k``, which comes to ``log(1 + exp(v))`` with v the maximum of
  ``<b, z> - sum z_j log z_j`` over the distributions z with entries of at most 1/k [1]_,
* beta: ``x_j <= 1 / k``.

The domains are those of the top-k hinge losses of the same names, and x is the gradient:
``a = (-C x, C s)`` has ``D_i(a) = -C (sum x_j log x_j + (1 - s) log(1 - s))``. With k = 1 both
losses are softmax.

References
----------
.. [1] Lapin, Hein, Schiele. Loss Functions for Top-k Error: Analysis and Insights. CVPR 2016.
.. [2] Lapin, Hein, Schiele. Analysis and Optimization of Loss Functions for Multiclass, Top-k,
   and Multilabel Classification. PAMI 2017.
"""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from dtopk.kernels import entropy as kernels
from dtopk.kernels.projections import ALPHA, BETA
from dtopk.losses.base import Array, LabelArray, Loss, check_k, check_k_of_classes


@dataclass(frozen=True, kw_only=True)
class TopKEntropy(Loss):
    """What the two top-k entropy losses share: all but the domain of the dual."""

    cost: ClassVar[str] = "O(m), a few scans with an exponential"
    parameters: ClassVar[tuple[str, ...]] = ("k",)
    domain: ClassVar[int]
    """The domain's code in :mod:`dtopk.kernels.projections`."""

    k: int = 1
    """How many classes at least share what softmax could give to one."""

    def __post_init__(self) -> None:
        check_k(self.k)

    def check_n_classes(self, n_classes: int) -> None:
        """Refuse k above n_classes - 1. See :meth:`Loss.check_n_classes`."""
        super().check_n_classes(n_classes)
        check_k_of_classes(self.k, n_classes)

    def values(self, scores: Array, labels: LabelArray) -> NDArray[np.float64]:
        """See :meth:`Loss.values`."""
        out = np.empty(len(scores))
        kernels.entropy_values(scores, labels, self.domain, self.k, out)
        return out

    def gradients(self, scores: Array, labels: LabelArray) -> Array:
        """See :meth:`Loss.gradients`."""
        out = np.empty_like(scores)
        kernels.entropy_gradients(scores, labels, self.domain, self.k, out)
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
        value: float = kernels.update_rows_entropy(
            scores, gram, dual, delta, labels, costs, self.domain, self.k, first, last
        )
        return value

    def make_feasible(
        self, dual: Array, labels: LabelArray, costs: NDArray[np.float64]
    ) -> NDArray[np.float64]:
        """See :meth:`Loss.make_feasible`."""
        values = np.empty(len(dual))
        kernels.feasible_entropy_duals(dual, labels, costs, self.domain, self.k, values)
        return values


@dataclass(frozen=True, kw_only=True)
class TopKEntropyAlpha(TopKEntropy):
    """L(y, u) = max_x <b, x> - sum x_j log x_j - (1-s) log(1-s) with x_j <= s/k, s = sum x."""

    name: ClassVar[str] = "topk_entropy_alpha"
    summary: ClassVar[str] = "softmax in which no class has more than 1/k of the others' weight"
    formula: ClassVar[str] = (
        "log(1 + exp(max_z sum_j z_j (u_j - u_y - log z_j))), z a distribution on j != y, z <= 1/k"
    )
    domain: ClassVar[int] = ALPHA


@dataclass(frozen=True, kw_only=True)
class TopKEntropyBeta(TopKEntropy):
    """L(y, u) = max_x <b, x> - sum x_j log x_j - (1-s) log(1-s) with x_j <= 1/k, s = sum x."""

    name: ClassVar[str] = "topk_entropy_beta"
    summary: ClassVar[str] = "capped softmax: no class but the label has more than 1/k"
    formula: ClassVar[str] = (
        "max_p sum_j p_j (u_j - u_y - log p_j), p a distribution, p_j <= 1/k for j != y"
    )
    domain: ClassVar[int] = BETA
