r"""Losses that are the minimum of convex ones, each of which leaves some classes out.

The truncated top-k entropy forgives the k - 1 classes that are furthest above the label [1]_, and
the calibrated top-k hinge the k classes with the largest scores [2]_: both are the minimum, over
the sets T of that many classes, of a convex loss that leaves the classes of T out. Neither is
convex. With T_i fixed the problem is convex and is solved like any other, its dual variables being
zero on T_i; it majorises the true one and touches it where T_i is chosen best. Solving it and
choosing anew in turn makes the true objective fall.

Both convex losses are ``L(y, u) = c + R(y, u + c e_y)`` for a convex loss R of the classes that
are left, and c of 0 or 1; so ``D_i(a)`` is that of R plus ``c (C - a_y)``.

References
----------
.. [1] Lapin, Hein, Schiele. Loss Functions for Top-k Error: Analysis and Insights. CVPR 2016.
.. [2] Yang, Koyejo. On the Consistency of Top-k Surrogate Losses. ICML 2020.
"""

from abc import abstractmethod
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from dtopk.kernels import masked as kernels
from dtopk.losses.base import Array, LabelArray, Loss, check_k, check_k_of_classes
from dtopk.losses.hinge import TopKHingeBeta
from dtopk.losses.masked_labels import MaskedLabels
from dtopk.losses.softmax import Softmax


@dataclass(frozen=True, kw_only=True)
class MaskedLoss(Loss):
    """What the losses share that are a minimum over masks.

    Given class codes, :meth:`values` and :meth:`gradients` are those of the loss itself; given
    :class:`MaskedLabels`, those of the convex loss with these masks. Dual variables belong to the
    latter alone.
    """

    convex: ClassVar[bool] = False
    parameters: ClassVar[tuple[str, ...]] = ("k",)

    k: int = 1
    """For how many of the largest scores the loss makes allowance."""

    def __post_init__(self) -> None:
        check_k(self.k)

    def check_n_classes(self, n_classes: int) -> None:
        """Refuse k above n_classes - 1. See :meth:`Loss.check_n_classes`."""
        super().check_n_classes(n_classes)
        check_k_of_classes(self.k, n_classes)

    @property
    def convex_start(self) -> Loss:
        """The softmax loss, whose duals have the domain of every masked loss but for the masks.

        From its optimum the calibrated hinge reaches objectives as low as from that of a top-k
        hinge, which takes several times the passes, and lower ones than from the masks of W = 0.
        """
        return Softmax()

    @property
    @abstractmethod
    def remainder(self) -> Loss:
        """The convex loss of the classes that are left."""

    def lifts(self, labels: MaskedLabels) -> NDArray[np.float64]:
        """Return the c of each row: what is added to its label's score and to its loss.

        Parameters
        ----------
        labels : MaskedLabels

        Returns
        -------
        ndarray of shape (n_samples,), float64
        """
        return np.zeros(len(labels))

    def values(self, scores: Array, labels: LabelArray | MaskedLabels) -> NDArray[np.float64]:
        """See :meth:`Loss.values`."""
        masked = self._with_masks(scores, labels)
        lifts = self.lifts(masked)
        return self.remainder.values(_stand_in(scores, masked, lifts), masked.labels) + lifts

    def gradients(self, scores: Array, labels: LabelArray | MaskedLabels) -> Array:
        """See :meth:`Loss.gradients`; those of the convex loss that is the smallest there."""
        masked = self._with_masks(scores, labels)
        stand_in = _stand_in(scores, masked, self.lifts(masked))
        out = self.remainder.gradients(stand_in, masked.labels)
        rows = np.arange(len(out))
        own = out[rows, masked.labels]
        np.put_along_axis(out, masked.masked, 0, axis=1)
        out[rows, masked.labels] = own
        return out

    def update_rows(
        self,
        scores: Array,
        gram: Array,
        dual: Array,
        delta: Array,
        labels: LabelArray | MaskedLabels,
        costs: Array,
        first: int,
        last: int,
    ) -> float:
        """See :meth:`Loss.update_rows`."""
        given = self._given_masks(labels)
        codes, masked = given.labels, given.masked
        lifts = self.lifts(given).astype(scores.dtype)
        kept = np.empty((last - first, given.n_masked + 1), scores.dtype)
        kernels.put_stand_ins(scores, codes, masked, lifts, first, last, kept)
        value = self.remainder.update_rows(scores, gram, dual, delta, codes, costs, first, last)
        lifted: float = kernels.remove_stand_ins(
            scores, gram, dual, delta, codes, masked, costs, lifts, first, last, kept
        )
        return value + lifted

    def make_feasible(
        self, dual: Array, labels: LabelArray | MaskedLabels, costs: NDArray[np.float64]
    ) -> NDArray[np.float64]:
        """See :meth:`Loss.make_feasible`; what the masked classes had is taken off the label."""
        given = self._given_masks(labels)
        np.put_along_axis(dual, given.masked, 0, axis=1)
        values = self.remainder.make_feasible(dual, given.labels, costs)
        own = dual[np.arange(len(dual)), given.labels]
        return values + self.lifts(given) * (costs - own)

    def _with_masks(self, scores: Array, labels: LabelArray | MaskedLabels) -> MaskedLabels:
        return labels if isinstance(labels, MaskedLabels) else self.choose_masks(scores, labels)

    def _given_masks(self, labels: LabelArray | MaskedLabels) -> MaskedLabels:
        if isinstance(labels, MaskedLabels):
            return labels
        assert self.n_masked == 0, "the dual problem is that of a masked loss"
        return MaskedLabels(labels, np.empty((len(labels), 0), np.int32))


@dataclass(frozen=True, kw_only=True)
class TruncatedTopKEntropy(MaskedLoss):
    """L(y, u) = log(1 + sum of exp(u_j - u_y) over all j != y but the k - 1 largest) [1]_.

    It is the smallest softmax loss that leaves k - 1 classes other than y out; with k = 1 it is
    softmax.

    References
    ----------
    .. [1] Lapin, Hein, Schiele. Loss Functions for Top-k Error: Analysis and Insights. CVPR 2016,
       equation 22.
    """

    name: ClassVar[str] = "truncated_topk_entropy"
    summary: ClassVar[str] = "softmax without the k - 1 largest scores of other classes"
    formula: ClassVar[str] = (
        "log(1 + sum of exp(u_j - u_y) over the j != y that are not among the k - 1 largest)"
    )
    calibrated: ClassVar[str] = "its own k [1]"
    cost: ClassVar[str] = "O(m), a few scans with an exponential"

    @property
    def n_masked(self) -> int:
        """The k - 1 classes that are forgiven."""
        return self.k - 1

    @property
    def remainder(self) -> Loss:
        """The softmax loss."""
        return Softmax()

    def choose_masks(self, scores: Array, labels: LabelArray) -> MaskedLabels:
        """See :meth:`Loss.choose_masks`."""
        return MaskedLabels(labels, _largest_others(scores, labels, self.n_masked))


@dataclass(frozen=True, kw_only=True)
class CalibratedTopKHinge(MaskedLoss):
    """L(y, u) = max(0, 1 + u_[k+1] - u_y), u_[j] the j-th largest of all m scores [1]_.

    It is the smallest of ``max(0, 1 + max_{j not in T} u_j - u_y)`` over the sets T of k classes:
    with y in T a hinge, with y not in T ``1 + max(0, u_j - u_y)`` of the largest other score that
    is left. Smoothing is that of the top-k hinge losses, applied to each of these; the smallest of
    them is the loss, which for 'moreau' is its Moreau envelope.

    References
    ----------
    .. [1] Yang, Koyejo. On the Consistency of Top-k Surrogate Losses. ICML 2020.
    """

    name: ClassVar[str] = "calibrated_topk_hinge"
    summary: ClassVar[str] = (
        "hinge between the label and the score it must exceed to be in the top k"
    )
    formula: ClassVar[str] = "max(0, 1 + u_[k+1] - u_y), u_[k+1] the (k+1)th largest of all scores"
    calibrated: ClassVar[str] = "its own k for gamma = 0 [2]"
    cost: ClassVar[str] = "O(m), a few scans"
    smoothness: ClassVar[str] = "gamma > 0"
    parameters: ClassVar[tuple[str, ...]] = ("k", "gamma", "smoothing")

    gamma: float = 0.0
    """Strength of the smoothing; 0 leaves the loss nonsmooth."""
    smoothing: str = "lapin"
    """Form of the smoothing, 'lapin' or 'moreau'."""

    def __post_init__(self) -> None:
        super().__post_init__()
        # It checks both parameters.
        _ = self.remainder

    @property
    def smooth(self) -> bool:
        """Whether gamma is positive."""
        return self.gamma > 0

    @property
    def n_masked(self) -> int:
        """The k classes that are forgiven."""
        return self.k

    @cached_property
    def remainder(self) -> Loss:
        """The hinge of k = 1."""
        return TopKHingeBeta(k=1, gamma=self.gamma, smoothing=self.smoothing)

    def lifts(self, labels: MaskedLabels) -> NDArray[np.float64]:
        """See :meth:`MaskedLoss.lifts`: 1 where the label is left with the others."""
        return np.where(labels.masks_label, 0.0, 1.0)

    def choose_masks(self, scores: Array, labels: LabelArray) -> MaskedLabels:
        """See :meth:`Loss.choose_masks`.

        It is the largest others with the label or without it. Where both are as good the label is
        among them: the other loss would have a gradient of zero there, as at equal scores, from
        which training may start.
        """
        largest = _largest_others(scores, labels, self.k)
        without = MaskedLabels(labels, largest)
        least = np.take_along_axis(scores, largest, axis=1).argmin(axis=1)
        masked = largest.copy()
        masked[np.arange(len(masked)), least] = labels
        better = self.values(scores, without) < self.values(scores, MaskedLabels(labels, masked))
        masked[better] = largest[better]
        return MaskedLabels(labels, masked)


def _stand_in(scores: Array, labels: MaskedLabels, lifts: NDArray[np.float64]) -> Array:
    """Return the scores as the remaining loss is to see them."""
    out = scores.copy()
    kept = np.empty((len(out), labels.n_masked + 1), out.dtype)
    kernels.put_stand_ins(
        out, labels.labels, labels.masked, lifts.astype(out.dtype), 0, len(out), kept
    )
    return out


def _largest_others(scores: Array, labels: LabelArray, count: int) -> NDArray[np.int32]:
    """Find the largest scores of other classes than the label.

    Parameters
    ----------
    scores : ndarray of shape (n_samples, n_classes)
    labels : ndarray of shape (n_samples,), int32
    count : int, below n_classes

    Returns
    -------
    ndarray of shape (n_samples, count), int32
        Their classes, in ascending order.
    """
    if count == 0:
        return np.empty((len(scores), 0), np.int32)
    others = scores.copy()
    others[np.arange(len(others)), labels] = -np.inf
    largest = np.argpartition(others, -count, axis=1)[:, -count:]
    return np.sort(largest, axis=1).astype(np.int32)
