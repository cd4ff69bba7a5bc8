"""Losses of a set of labels Y that compare its scores with those of the other classes.

Their dual rows sum to zero. A row needs a label, and a class that is none.
"""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from dtopk.kernels import multilabel as kernels
from dtopk.losses.base import Array, Loss, Target
from dtopk.losses.label_sets import LabelSets
from dtopk.losses.one_vs_all import check_gamma
from dtopk.losses.polyhedral import PolyhedralLoss, sums_of_sides


@dataclass(frozen=True, kw_only=True)
class MultilabelHinge(PolyhedralLoss):
    """L(Y, u) = max(0, 1 + max_{j not in Y} u_j - min_{y in Y} u_y), or its smooth form [1]_.

    With p the dual row on the labels and n minus the dual row on the others,
    ``D_i(a) = sum p - gamma/(2C) |a|^2`` on ``p, n >= 0, sum p = sum n <= C``.

    References
    ----------
    .. [1] Lapin, Hein, Schiele. Analysis and Optimization of Loss Functions for Multiclass, Top-k,
       and Multilabel Classification. PAMI 2017.
    """

    name: ClassVar[str] = "multilabel_hinge"
    targets: ClassVar[tuple[Target, ...]] = ("multilabel",)
    summary: ClassVar[str] = "margin between the lowest label and the highest other class"
    formula: ClassVar[str] = "max(0, 1 + max_{j not in Y} u_j - min_{y in Y} u_y)"
    cost: ClassVar[str] = "O(m), a few scans"
    parameters: ClassVar[tuple[str, ...]] = ("gamma",)
    smoothness: ClassVar[str] = "gamma > 0"
    proper_sets: ClassVar[bool] = True

    gamma: float = 0.0
    """Strength of the smoothing; 0 leaves the loss nonsmooth."""

    def __post_init__(self) -> None:
        check_gamma(self.gamma)

    @property
    def smooth(self) -> bool:
        """Whether gamma is positive."""
        return self.gamma > 0

    @property
    def strength(self) -> float:
        """The strength of the smoothing, gamma."""
        return self.gamma

    def vertices(self, scores: Array, labels: LabelSets) -> Array:
        """See :meth:`Loss.vertices`: that of one label and one other class, or 0."""
        return self._gradients(scores, labels, 0.0)

    def linear_terms(self, dual: Array, labels: LabelSets, costs: Array) -> NDArray[np.float64]:
        """See :meth:`Loss.linear_terms`: half of the labels' sum less that of the others."""
        return sums_of_sides(dual, labels) / 2

    def values(self, scores: Array, labels: LabelSets) -> NDArray[np.float64]:
        """See :meth:`Loss.values`."""
        out = np.empty(len(scores))
        kernels.multilabel_hinge_values(scores, labels.indptr, labels.indices, self.gamma, out)
        return out

    def gradients(self, scores: Array, labels: LabelSets) -> Array:
        """See :meth:`Loss.gradients`; a subgradient where gamma is 0."""
        return self._gradients(scores, labels, self.gamma)

    def _gradients(self, scores: Array, labels: LabelSets, gamma: float) -> Array:
        out = np.empty_like(scores)
        kernels.multilabel_hinge_gradients(scores, labels.indptr, labels.indices, gamma, out)
        return out

    def update_rows(
        self,
        scores: Array,
        gram: Array,
        dual: Array,
        delta: Array,
        labels: LabelSets,
        costs: Array,
        first: int,
        last: int,
    ) -> float:
        """See :meth:`Loss.update_rows`."""
        value: float = kernels.update_rows_multilabel_hinge(
            scores,
            gram,
            dual,
            delta,
            labels.indptr,
            labels.indices,
            costs,
            self.gamma,
            first,
            last,
        )
        return value

    def make_feasible(
        self, dual: Array, labels: LabelSets, costs: NDArray[np.float64]
    ) -> NDArray[np.float64]:
        """See :meth:`Loss.make_feasible`."""
        values = np.empty(len(dual))
        kernels.feasible_multilabel_hinge_duals(
            dual, labels.indptr, labels.indices, costs, self.gamma, values
        )
        return values


@dataclass(frozen=True, kw_only=True)
class MultilabelSoftmax(Loss):
    """L(Y, u) = log sum_j exp(u_j) - mean_{y in Y} u_y [1]_.

    Its conjugate is the negative entropy: with ``p = 1_Y/k - a/C`` for k labels, which must be a
    distribution, ``D_i(a) = -C sum_j p_j log p_j``. With one label it is the softmax loss.

    References
    ----------
    .. [1] Lapin, Hein, Schiele. Analysis and Optimization of Loss Functions for Multiclass, Top-k,
       and Multilabel Classification. PAMI 2017.
    """

    name: ClassVar[str] = "multilabel_softmax"
    targets: ClassVar[tuple[Target, ...]] = ("multilabel",)
    summary: ClassVar[str] = "softmax against the uniform distribution on the labels"
    formula: ClassVar[str] = "log sum_j exp(u_j) - mean of u_y, y in Y"
    cost: ClassVar[str] = "O(m), a few scans with an exponential"
    proper_sets: ClassVar[bool] = True

    def values(self, scores: Array, labels: LabelSets) -> NDArray[np.float64]:
        """See :meth:`Loss.values`."""
        out = np.empty(len(scores))
        kernels.multilabel_softmax_values(scores, labels.indptr, labels.indices, out)
        return out

    def gradients(self, scores: Array, labels: LabelSets) -> Array:
        """See :meth:`Loss.gradients`."""
        out = np.empty_like(scores)
        kernels.multilabel_softmax_gradients(scores, labels.indptr, labels.indices, out)
        return out

    def update_rows(
        self,
        scores: Array,
        gram: Array,
        dual: Array,
        delta: Array,
        labels: LabelSets,
        costs: Array,
        first: int,
        last: int,
    ) -> float:
        """See :meth:`Loss.update_rows`."""
        value: float = kernels.update_rows_multilabel_softmax(
            scores, gram, dual, delta, labels.indptr, labels.indices, costs, first, last
        )
        return value

    def make_feasible(
        self, dual: Array, labels: LabelSets, costs: NDArray[np.float64]
    ) -> NDArray[np.float64]:
        """See :meth:`Loss.make_feasible`."""
        values = np.empty(len(dual))
        kernels.feasible_multilabel_softmax_duals(
            dual, labels.indptr, labels.indices, costs, values
        )
        return values
