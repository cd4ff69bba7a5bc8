"""Hinges that weigh the largest, second largest, ... margin."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dtopk.kernels import ordered as kernels
from dtopk.kernels.projections import BETA
from dtopk.losses.base import Array, LabelArray
from dtopk.losses.ranked import RankedHinge


@dataclass(frozen=True, kw_only=True)
class WeightedUsunier(RankedHinge):
    """L(y, u) = sum_j rho_j max(0, h_(j)), the margins of the other classes in descending order.

    With ``rho_j = 1/k`` for k weights it is `topk_hinge_beta`. Smoothing is that of the top-k
    hinges (:mod:`dtopk.losses.hinge`) [1]_.

    References
    ----------
    .. [1] Tajima, Hirohashi, Zara, Kato. Frank-Wolfe algorithm for learning SVM-type
       multi-category classifiers. Equation 2.8.
    """

    name: ClassVar[str] = "weighted_usunier"
    summary: ClassVar[str] = "hinges weighted by their rank"
    formula: ClassVar[str] = "sum_j rho_j max(0, j-th largest h), j != y"
    cost: ClassVar[str] = "O(m) and a sort of the few largest"
    parameters: ClassVar[tuple[str, ...]] = ("gamma", "smoothing", "rho")
    domain: ClassVar[int] = BETA

    rho: tuple[float, ...] = (1.0,)
    """Weights of the largest, second largest, ... margin: not negative and none above the one
    before; those of further margins are 0."""

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "rho", check_rho(self.rho))

    def check_n_classes(self, n_classes: int) -> None:
        """Refuse more weights than other classes. See :meth:`Loss.check_n_classes`."""
        super().check_n_classes(n_classes)
        if len(self.rho) > n_classes - 1:
            raise ValueError(
                f"rho must have at most n_classes - 1 = {n_classes - 1} weights, got "
                f"{len(self.rho)}."
            )

    @property
    def rank_weights(self) -> NDArray[np.float64]:
        """See :attr:`RankedHinge.rank_weights`."""
        return np.array(self.rho)

    def values(self, scores: Array, labels: LabelArray) -> NDArray[np.float64]:
        """See :meth:`Loss.values`."""
        out = np.empty(len(scores))
        rho = self.rank_weights
        kernels.ordered_values(scores, labels, rho, self.gamma, self.smoothing_code, out)
        return out

    def gradients(self, scores: Array, labels: LabelArray) -> Array:
        """See :meth:`Loss.gradients`; a subgradient where gamma is 0."""
        if self.gamma == 0:
            return self.vertices(scores, labels)
        out = np.empty_like(scores)
        rho = self.rank_weights
        kernels.ordered_gradients(scores, labels, rho, self.gamma, self.smoothing_code, out)
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
        value: float = kernels.update_rows_ordered(
            scores,
            gram,
            dual,
            delta,
            labels,
            costs,
            self.rank_weights,
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
        rho = self.rank_weights
        kernels.feasible_ordered_duals(
            dual, labels, costs, rho, self.gamma, self.smoothing_code, values
        )
        return values


def check_rho(weights: ArrayLike) -> tuple[float, ...]:
    """Return weights of ranks as floats, those at the end that are zero left out.

    Raises
    ------
    TypeError
        If they are no sequence of numbers.
    ValueError
        If there is none above zero, or they rise, or are negative or not finite.
    """
    try:
        rho = np.array(weights, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise TypeError(f"rho must be a sequence of numbers, got {weights!r}.") from error
    if rho.ndim != 1 or rho.size == 0:
        raise ValueError(f"rho must be a sequence of at least one weight, got {weights!r}.")
    if not (np.isfinite(rho).all() and rho[0] > 0 and rho[-1] >= 0 and (np.diff(rho) <= 0).all()):
        raise ValueError(
            "rho must be finite, nonincreasing and not negative, with a first weight above 0, got "
            f"{weights!r}."
        )
    return tuple(float(weight) for weight in rho[rho > 0])
