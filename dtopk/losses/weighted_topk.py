"""The top-k hinge whose margins, the true label's among them, are weighed by their rank."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from dtopk.kernels import weighted_topk as kernels
from dtopk.kernels.projections import ALPHA_INCL
from dtopk.losses.base import Array, LabelArray
from dtopk.losses.ordered_hinge import check_rho
from dtopk.losses.ranked import RankedHinge


@dataclass(frozen=True, kw_only=True)
class WeightedTopKHinge(RankedHinge):
    """L(y, u) = max(0, sum_j rho_j h_[j]), all margins in descending order, h_y = 0 among them.

    With ``rho_j = 1/k`` for k weights it is `topk_hinge_alpha_incl` [1]_. Smoothing is that of the
    top-k hinges (:mod:`dtopk.losses.hinge`). Its domain is in :mod:`dtopk.kernels.weighted_topk`;
    [2]_ has it with weights where their differences should be.

    References
    ----------
    .. [1] Kato, Hirohashi. Learning Weighted Top-k Support Vector Machine. ACML 2019.
    .. [2] Tajima, Hirohashi, Zara, Kato. Frank-Wolfe algorithm for learning SVM-type
       multi-category classifiers. Equation 2.13.
    """

    name: ClassVar[str] = "weighted_topk_hinge"
    summary: ClassVar[str] = "margins weighted by their rank, the true label among them"
    formula: ClassVar[str] = "max(0, sum_j rho_j times the j-th largest h), h_y = 0 among them"
    cost: ClassVar[str] = "no closed update: Frank-Wolfe"
    parameters: ClassVar[tuple[str, ...]] = ("gamma", "smoothing", "rho")
    has_update: ClassVar[bool] = False
    domain: ClassVar[int] = ALPHA_INCL

    rho: tuple[float, ...] = (1.0,)
    """Weights of the largest, second largest, ... margin: not negative and none above the one
    before; those of further margins are 0."""

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "rho", check_rho(self.rho))

    def check_n_classes(self, n_classes: int) -> None:
        """Refuse more weights than classes. See :meth:`Loss.check_n_classes`."""
        super().check_n_classes(n_classes)
        if len(self.rho) > n_classes:
            raise ValueError(
                f"rho must have at most n_classes = {n_classes} weights, got {len(self.rho)}."
            )

    @property
    def rank_weights(self) -> NDArray[np.float64]:
        """See :attr:`RankedHinge.rank_weights`."""
        return np.array(self.rho)

    def values(self, scores: Array, labels: LabelArray) -> NDArray[np.float64]:
        """See :meth:`Loss.values`."""
        out = np.empty(len(scores))
        rho = self.rank_weights
        kernels.weighted_topk_values(scores, labels, rho, self.gamma, self.smoothing_code, out)
        return out

    def gradients(self, scores: Array, labels: LabelArray) -> Array:
        """See :meth:`Loss.gradients`; a subgradient where gamma is 0."""
        if self.gamma == 0:
            return self.vertices(scores, labels)
        out = np.empty_like(scores)
        rho = self.rank_weights
        kernels.weighted_topk_gradients(scores, labels, rho, self.gamma, self.smoothing_code, out)
        return out

    def make_feasible(
        self, dual: Array, labels: LabelArray, costs: NDArray[np.float64]
    ) -> NDArray[np.float64]:
        """See :meth:`Loss.make_feasible`."""
        values = np.empty(len(dual))
        rho = self.rank_weights
        kernels.feasible_weighted_topk_duals(
            dual, labels, costs, rho, self.gamma, self.smoothing_code, values
        )
        return values
