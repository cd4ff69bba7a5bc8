"""One-vs-all losses: a binary problem for every class. On sets of labels, binary relevance.

With ``z_j = 1`` for the labels of a row and -1 for the other classes such a loss is
``sum_j l(z_j u_j)``. A dual row is ``a_j = z_j beta_j`` with ``0 <= beta_j <= C``, and it does not
sum to zero [1]_. A row may have any labels, none and all of them included.

References
----------
.. [1] Lapin, Hein, Schiele. Analysis and Optimization of Loss Functions for Multiclass, Top-k,
   and Multilabel Classification. PAMI 2017.
"""

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from dtopk.kernels import one_vs_all as kernels
from dtopk.losses.base import Array, Labels, Loss, Target
from dtopk.losses.label_sets import LabelSets
from dtopk.losses.polyhedral import PolyhedralLoss, sums_of_sides


@dataclass(frozen=True, kw_only=True)
class OneVsAll(Loss):
    """What the one-vs-all losses share."""

    targets: ClassVar[tuple[Target, ...]] = ("multiclass", "multilabel")
    compares_classes: ClassVar[bool] = False


@dataclass(frozen=True, kw_only=True)
class OneVsAllHinge(OneVsAll, PolyhedralLoss):
    """What the plain and the smooth hinge share: all but the strength of the smoothing."""

    cost: ClassVar[str] = "O(m), a scan"

    def vertices(self, scores: Array, labels: Labels) -> Array:
        """See :meth:`Loss.vertices`: -z_j where the hinge of a class is not zero."""
        return self._gradients(scores, labels, 0.0)

    def linear_terms(self, dual: Array, labels: Labels, costs: Array) -> NDArray[np.float64]:
        """See :meth:`Loss.linear_terms`: sum_j z_j a_j."""
        return sums_of_sides(dual, as_sets(labels))

    def values(self, scores: Array, labels: Labels) -> NDArray[np.float64]:
        """See :meth:`Loss.values`."""
        out = np.empty(len(scores))
        sets = as_sets(labels)
        kernels.hinge_ova_values(scores, sets.indptr, sets.indices, self.strength, out)
        return out

    def gradients(self, scores: Array, labels: Labels) -> Array:
        """See :meth:`Loss.gradients`; a subgradient without smoothing."""
        return self._gradients(scores, labels, self.strength)

    def _gradients(self, scores: Array, labels: Labels, strength: float) -> Array:
        out = np.empty_like(scores)
        sets = as_sets(labels)
        kernels.hinge_ova_gradients(scores, sets.indptr, sets.indices, strength, out)
        return out

    def update_rows(
        self,
        scores: Array,
        gram: Array,
        dual: Array,
        delta: Array,
        labels: Labels,
        costs: Array,
        first: int,
        last: int,
    ) -> float:
        """See :meth:`Loss.update_rows`."""
        sets = as_sets(labels)
        value: float = kernels.update_rows_hinge_ova(
            scores,
            gram,
            dual,
            delta,
            sets.indptr,
            sets.indices,
            costs,
            self.strength,
            first,
            last,
        )
        return value

    def make_feasible(
        self, dual: Array, labels: Labels, costs: NDArray[np.float64]
    ) -> NDArray[np.float64]:
        """See :meth:`Loss.make_feasible`."""
        values = np.empty(len(dual))
        sets = as_sets(labels)
        kernels.feasible_hinge_ova_duals(
            dual, sets.indptr, sets.indices, costs, self.strength, values
        )
        return values


@dataclass(frozen=True, kw_only=True)
class HingeOva(OneVsAllHinge):
    """L(y, u) = sum_j max(0, 1 - z_j u_j), a linear support vector machine for every class.

    ``D_i(a) = sum_j beta_j`` on ``0 <= beta_j <= C``, where ``a_j = z_j beta_j``.
    """

    name: ClassVar[str] = "hinge_ova"
    summary: ClassVar[str] = "a support vector machine for every class"
    calibrated: ClassVar[str] = "k = 1, a class above 1/2 [3]"
    formula: ClassVar[str] = "sum_j max(0, 1 - z_j u_j), z_j = 1 for the labels, -1 for the others"
    smoothness: ClassVar[str] = "never"


@dataclass(frozen=True, kw_only=True)
class SmoothHingeOva(OneVsAllHinge):
    """L(y, u) = sum_j l(z_j u_j), l a hinge whose kink is a parabola over a length of gamma.

    ``l(v) = max_{0 <= beta <= 1} (1 - v) beta - gamma/2 beta^2``, and
    ``D_i(a) = sum_j beta_j - gamma/(2C) beta_j^2`` on ``0 <= beta_j <= C``, where
    ``a_j = z_j beta_j``.
    """

    name: ClassVar[str] = "smooth_hinge_ova"
    summary: ClassVar[str] = "a smoothed support vector machine for every class"
    calibrated: ClassVar[str] = "every k [3]"
    formula: ClassVar[str] = (
        "sum_j max_b (1 - z_j u_j) b - gamma b^2/2, 0 <= b <= 1, z_j = 1 for the labels, "
        "-1 for the others"
    )
    parameters: ClassVar[tuple[str, ...]] = ("gamma",)

    gamma: float = 1.0
    """Strength of the smoothing, above 0."""

    def __post_init__(self) -> None:
        check_gamma(self.gamma)
        if self.gamma == 0:
            raise ValueError(
                f"gamma must be above 0 for loss {self.name!r}, got {self.gamma!r}. "
                f"Loss {HingeOva.name!r} is the one without smoothing."
            )

    @property
    def strength(self) -> float:
        """The strength of the smoothing, gamma."""
        return self.gamma


@dataclass(frozen=True, kw_only=True)
class LogisticOva(OneVsAll):
    """L(y, u) = sum_j log(1 + exp(-z_j u_j)), a logistic regression for every class.

    ``D_i(a) = -C sum_j x_j log x_j + (1 - x_j) log(1 - x_j)`` on ``0 <= x_j <= 1``, where
    ``a_j = z_j C x_j``.
    """

    name: ClassVar[str] = "logistic_ova"
    summary: ClassVar[str] = "a logistic regression for every class"
    calibrated: ClassVar[str] = "every k [3]"
    formula: ClassVar[str] = (
        "sum_j log(1 + exp(-z_j u_j)), z_j = 1 for the labels, -1 for the others"
    )
    cost: ClassVar[str] = "O(m), a few scans with an exponential"

    def values(self, scores: Array, labels: Labels) -> NDArray[np.float64]:
        """See :meth:`Loss.values`."""
        out = np.empty(len(scores))
        sets = as_sets(labels)
        kernels.logistic_ova_values(scores, sets.indptr, sets.indices, out)
        return out

    def gradients(self, scores: Array, labels: Labels) -> Array:
        """See :meth:`Loss.gradients`."""
        out = np.empty_like(scores)
        sets = as_sets(labels)
        kernels.logistic_ova_gradients(scores, sets.indptr, sets.indices, out)
        return out

    def update_rows(
        self,
        scores: Array,
        gram: Array,
        dual: Array,
        delta: Array,
        labels: Labels,
        costs: Array,
        first: int,
        last: int,
    ) -> float:
        """See :meth:`Loss.update_rows`."""
        sets = as_sets(labels)
        value: float = kernels.update_rows_logistic_ova(
            scores, gram, dual, delta, sets.indptr, sets.indices, costs, first, last
        )
        return value

    def make_feasible(
        self, dual: Array, labels: Labels, costs: NDArray[np.float64]
    ) -> NDArray[np.float64]:
        """See :meth:`Loss.make_feasible`."""
        values = np.empty(len(dual))
        sets = as_sets(labels)
        kernels.feasible_logistic_ova_duals(dual, sets.indptr, sets.indices, costs, values)
        return values


def as_sets(labels: Labels) -> LabelSets:
    """Return labels as sets, those of an array as one each.

    Parameters
    ----------
    labels : ndarray of shape (n_samples,), int32, or LabelSets
    """
    if isinstance(labels, LabelSets):
        return labels
    assert isinstance(labels, np.ndarray)  # No class is left out here.
    return LabelSets.from_labels(labels)


def check_gamma(gamma: float) -> None:
    """Refuse a gamma that is negative or not finite."""
    if not (math.isfinite(gamma) and gamma >= 0):
        raise ValueError(f"gamma must be finite and at least 0, got {gamma!r}.")
