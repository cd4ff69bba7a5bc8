r"""The top-k hinge losses of Lapin, Hein and Schiele, plain and smoothed.

With the margins ``h_j = 1 + u_j - u_y`` of the classes other than y, and T_j the sum of the j
largest of them, the three losses are

* alpha: ``max(0, T_k / k)``, the true label left out of the k largest,
* alpha, inclusive: ``max(0, T_k / k, T_{k-1} / k)``, the true label, whose margin is 0, allowed
  among them,
* beta: ``(1/k) sum_{j<=k} max(0, h_(j))``.

Their conjugates are minus the sum of x on three nested domains (see
:mod:`dtopk.kernels.projections`), one for each loss, where ``a = (-C x, C sum x)`` is the dual.
Smoothing adds gamma/2 times a square to the conjugate: |x|^2 in the form of [1]_ ("lapin"), or
|x|^2 + (sum x)^2, which makes it the Moreau envelope of the loss in all m scores [3]_ ("moreau").

References
----------
.. [1] Lapin, Hein, Schiele. Loss Functions for Top-k Error: Analysis and Insights. CVPR 2016.
.. [2] Lapin, Hein, Schiele. Analysis and Optimization of Loss Functions for Multiclass, Top-k,
   and Multilabel Classification. PAMI 2017.
.. [3] Tajima, Hirohashi, Zara, Kato. Frank-Wolfe algorithm for learning SVM-type multi-category
   classifiers.
"""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from dtopk.kernels import hinge as kernels
from dtopk.kernels.projections import ALPHA, ALPHA_INCL, BETA
from dtopk.losses.base import Array, LabelArray, check_k, check_k_of_classes
from dtopk.losses.ranked import RankedHinge


@dataclass(frozen=True, kw_only=True)
class TopKHinge(RankedHinge):
    """What the three top-k hinge losses share: all but the domain of the dual."""

    calibrated: ClassVar[str] = "not for gamma = 0 [2]"
    cost: ClassVar[str] = "O(m), a few scans"
    parameters: ClassVar[tuple[str, ...]] = ("k", "gamma", "smoothing")

    k: int = 1
    """How many of the largest margins count."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_k(self.k)

    def check_n_classes(self, n_classes: int) -> None:
        """Refuse k above n_classes - 1. See :meth:`Loss.check_n_classes`."""
        super().check_n_classes(n_classes)
        check_k_of_classes(self.k, n_classes)

    @property
    def rank_weights(self) -> NDArray[np.float64]:
        """1/k for each of the k largest. See :attr:`RankedHinge.rank_weights`."""
        return np.full(self.k, 1 / self.k)

    def values(self, scores: Array, labels: LabelArray) -> NDArray[np.float64]:
        """See :meth:`Loss.values`."""
        out = np.empty(len(scores))
        kernels.hinge_values(
            scores, labels, self.domain, self.k, self.gamma, self.smoothing_code, out
        )
        return out

    def gradients(self, scores: Array, labels: LabelArray) -> Array:
        """See :meth:`Loss.gradients`; a subgradient where gamma is 0."""
        if self.gamma == 0:
            return self.vertices(scores, labels)
        out = np.empty_like(scores)
        kernels.hinge_gradients(
            scores, labels, self.domain, self.k, self.gamma, self.smoothing_code, out
        )
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
        value: float = kernels.update_rows_hinge(
            scores,
            gram,
            dual,
            delta,
            labels,
            costs,
            self.domain,
            self.k,
            self.gamma,
            self.smoothing_code,
            first,
            last,
        )
        return value

    def make_feasible(
        self, dual: Array, labels: LabelArray, costs: NDArray[np.float64]
    ) -> NDArray[np.float64]:
        """See :meth:`Loss.make_feasible`."""
        values = np.empty(len(dual))
        kernels.feasible_hinge_duals(
            dual,
            labels,
            costs,
            self.domain,
            self.k,
            self.gamma,
            self.smoothing_code,
            values,
        )
        return values


@dataclass(frozen=True, kw_only=True)
class TopKHingeAlpha(TopKHinge):
    """L(y, u) = max(0, T_k / k), the mean of the k largest margins of the other classes."""

    name: ClassVar[str] = "topk_hinge_alpha"
    summary: ClassVar[str] = "mean of the k largest margins, the true label left out"
    formula: ClassVar[str] = "max(0, mean of the k largest h_j, j != y)"
    domain: ClassVar[int] = ALPHA


@dataclass(frozen=True, kw_only=True)
class TopKHingeAlphaIncl(TopKHinge):
    """L(y, u) = max(0, T_k / k, T_{k-1} / k), the true label allowed among the k largest."""

    name: ClassVar[str] = "topk_hinge_alpha_incl"
    summary: ClassVar[str] = "mean of the k largest margins, the true label among them"
    formula: ClassVar[str] = "max(0, mean of the k largest h_j, h_y = 0 among them)"
    domain: ClassVar[int] = ALPHA_INCL


@dataclass(frozen=True, kw_only=True)
class TopKHingeBeta(TopKHinge):
    """L(y, u) = (1/k) sum_{j<=k} max(0, h_(j)), the mean of the k largest hinges (Usunier)."""

    name: ClassVar[str] = "topk_hinge_beta"
    summary: ClassVar[str] = "mean of the k largest hinges (Usunier)"
    formula: ClassVar[str] = "mean of the k largest max(0, h_j), j != y"
    domain: ClassVar[int] = BETA
