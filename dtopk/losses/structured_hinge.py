"""The multiclass hinge in which some mistakes cost more than others."""

from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from hashlib import sha256
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from dtopk.kernels import structured as kernels
from dtopk.kernels.projections import BETA
from dtopk.losses.base import Array, LabelArray
from dtopk.losses.ranked import RankedHinge


@dataclass(frozen=True, kw_only=True, eq=False)
class StructuredHinge(RankedHinge):
    """L(y, u) = max_j (Delta_yj + u_j - u_y), Delta_yj the cost of naming j where y is true.

    With costs of 1 for every mistake it is the hinge of k = 1. Its dual has
    ``D_i(a) = -<Delta_y, a>`` less the smoothing, on the domain of that hinge [1]_.

    References
    ----------
    .. [1] Tajima, Hirohashi, Zara, Kato. Frank-Wolfe algorithm for learning SVM-type
       multi-category classifiers.
    """

    name: ClassVar[str] = "structured_hinge"
    summary: ClassVar[str] = "multiclass hinge with a cost for every kind of mistake"
    formula: ClassVar[str] = "max_j (label_cost[y, j] + u_j - u_y)"
    cost: ClassVar[str] = "O(m), a few scans"
    parameters: ClassVar[tuple[str, ...]] = ("gamma", "smoothing", "label_cost")
    domain: ClassVar[int] = BETA

    label_cost: Array = field(default_factory=lambda: np.zeros((0, 0)))
    """What naming class j costs where i is true, of shape (n_classes, n_classes), float64; of
    shape (0, 0): 1 for every mistake."""

    def __post_init__(self) -> None:
        super().__post_init__()
        costs = np.array(self.label_cost, dtype=np.float64)
        _check_label_cost(costs)
        costs.flags.writeable = False
        object.__setattr__(self, "label_cost", costs)

    def check_n_classes(self, n_classes: int) -> None:
        """Refuse label costs of other classes. See :meth:`Loss.check_n_classes`."""
        super().check_n_classes(n_classes)
        if self.label_cost.size and len(self.label_cost) != n_classes:
            raise ValueError(
                f"label_cost must have shape (n_classes, n_classes) = ({n_classes}, {n_classes}), "
                f"got shape {self.label_cost.shape}."
            )

    def describe(self) -> dict[str, Any]:
        """Return the parameters as plain values; of the costs, what tells them from others."""
        costs = "1" if self.label_cost.size == 0 else f"sha256 {self._digest}"
        return {**super().describe(), "label_cost": costs}

    def __eq__(self, other: object) -> bool:
        """Compare all parameters."""
        return isinstance(other, StructuredHinge) and self._key == other._key

    def __hash__(self) -> int:
        """Hash all parameters."""
        return hash(self._key)

    @property
    def _digest(self) -> str:
        return sha256(self.label_cost.tobytes()).hexdigest()

    @cached_property
    def _key(self) -> tuple[Any, ...]:
        return self.gamma, self.smoothing, self.label_cost.shape, self.label_cost.tobytes()

    def _costs_like(self, scores: Array) -> Array:
        m, kind = scores.shape[1], scores.dtype
        if self.label_cost.size == 0:
            return _equal_costs(m, kind)
        return self.label_cost if kind == np.float64 else self._single_costs

    @cached_property
    def _single_costs(self) -> NDArray[np.float32]:
        costs = self.label_cost.astype(np.float32)
        # As the costs in float64 are, so that the kernels are compiled for one kind of array.
        costs.flags.writeable = False
        return costs

    @property
    def rank_weights(self) -> NDArray[np.float64]:
        """1 for the largest. See :attr:`RankedHinge.rank_weights`."""
        return np.ones(1)

    def margin_costs(self, scores: Array) -> Array:
        """Return the label costs. See :meth:`RankedHinge.margin_costs`."""
        if self.label_cost.size == 0:
            return super().margin_costs(scores)
        return self._costs_like(scores)

    def linear_terms(self, dual: Array, labels: LabelArray, costs: Array) -> NDArray[np.float64]:
        """See :meth:`Loss.linear_terms`: ``-<Delta_y, a>``."""
        if self.label_cost.size == 0:
            return super().linear_terms(dual, labels, costs)
        rewards: NDArray[np.float64] = np.einsum("ij,ij->i", self.label_cost[labels], dual)
        return -rewards

    def values(self, scores: Array, labels: LabelArray) -> NDArray[np.float64]:
        """See :meth:`Loss.values`."""
        out = np.empty(len(scores))
        costs = self._costs_like(scores)
        kernels.structured_values(scores, labels, costs, self.gamma, self.smoothing_code, out)
        return out

    def gradients(self, scores: Array, labels: LabelArray) -> Array:
        """See :meth:`Loss.gradients`; a subgradient where gamma is 0."""
        if self.gamma == 0:
            return self.vertices(scores, labels)
        out = np.empty_like(scores)
        costs = self._costs_like(scores)
        kernels.structured_gradients(scores, labels, costs, self.gamma, self.smoothing_code, out)
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
        value: float = kernels.update_rows_structured(
            scores,
            gram,
            dual,
            delta,
            labels,
            costs,
            self._costs_like(scores),
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
        kernels.feasible_structured_duals(
            dual, labels, costs, self._costs_like(dual), self.gamma, self.smoothing_code, values
        )
        return values


@lru_cache(maxsize=2)
def _equal_costs(n_classes: int, dtype: np.dtype[Any]) -> Array:
    costs = 1 - np.eye(n_classes, dtype=dtype)
    costs.flags.writeable = False
    return costs


def _check_label_cost(costs: NDArray[np.float64]) -> None:
    if costs.ndim != 2 or costs.shape[0] != costs.shape[1]:
        raise ValueError(
            f"label_cost must have shape (n_classes, n_classes), got shape {costs.shape}."
        )
    wrong = np.argwhere(~(np.isfinite(costs) & (costs >= 0)))
    if len(wrong):
        i, j = wrong[0]
        raise ValueError(
            f"label_cost must be finite and at least 0, got {costs[i, j]} in row {i}, column {j}."
        )
    if np.diag(costs).any():
        i = np.argmax(np.diag(costs) > 0)
        raise ValueError(
            f"label_cost must be 0 on its diagonal, got {costs[i, i]} in row {i}, column {i}."
        )
