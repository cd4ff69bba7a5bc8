"""The twins of the losses that are a minimum over masks."""

from abc import abstractmethod
from itertools import combinations
from typing import Any, TypeVar

import numpy as np
from scipy.special import entr, logsumexp

from dtopk.losses import CalibratedTopKHinge, MaskedLabel, MaskedLoss, TruncatedTopKEntropy
from dtopk.testing.domains import project
from dtopk.testing.twin import Float64, Twin

AnyMaskedLoss = TypeVar("AnyMaskedLoss", bound=MaskedLoss)


class MaskedTwin(Twin[AnyMaskedLoss]):
    """Every mask there is, tried out; the dual's terms and rules are those of one mask."""

    def value(self, scores: Float64, label: Any) -> float:
        """See :meth:`Twin.value`."""
        if isinstance(label, MaskedLabel):
            return self.masked_value(scores, label)
        masks = combinations(self.classes_to_mask(len(scores), label), self.loss.n_masked)
        labels = (MaskedLabel(label, np.array(mask, np.int32)) for mask in masks)
        return min(self.masked_value(scores, masked) for masked in labels)

    def infeasibility(self, dual: Float64, label: MaskedLabel) -> float:
        """See :meth:`Twin.infeasibility`."""
        x = -np.delete(dual, label.label)
        masked = np.setdiff1d(label.masked, label.label)
        kept_out = np.abs(dual[masked]).max(initial=0)
        return float(max(-x.min(), x.sum() - 1, abs(dual.sum()), kept_out, 0))

    @abstractmethod
    def classes_to_mask(self, n_classes: int, label: int) -> list[int]:
        """List the classes that may be masked."""

    @abstractmethod
    def masked_value(self, scores: Float64, label: MaskedLabel) -> float:
        """Return the loss that leaves the masked classes out."""


class TruncatedEntropyTwin(MaskedTwin[TruncatedTopKEntropy]):
    """Logarithms of sums over the classes that are left."""

    def classes_to_mask(self, n_classes: int, label: int) -> list[int]:
        """See :meth:`MaskedTwin.classes_to_mask`: all but the label."""
        return [j for j in range(n_classes) if j != label]

    def masked_value(self, scores: Float64, label: MaskedLabel) -> float:
        """See :meth:`MaskedTwin.masked_value`."""
        left = np.delete(scores, label.masked)
        return float(logsumexp(left - scores[label.label]))

    def dual_term(self, dual: Float64, label: MaskedLabel, cost: float) -> float:
        """See :meth:`Twin.dual_term`."""
        x = -np.delete(dual, label.label) / cost
        p = np.append(x, 1 - x.sum())
        return float(cost * entr(np.maximum(p, 0)).sum())


class CalibratedHingeTwin(MaskedTwin[CalibratedTopKHinge]):
    """The largest score that is left, and projections by bisection."""

    def classes_to_mask(self, n_classes: int, label: int) -> list[int]:
        """See :meth:`MaskedTwin.classes_to_mask`: all."""
        return list(range(n_classes))

    def masked_value(self, scores: Float64, label: MaskedLabel) -> float:
        """See :meth:`MaskedTwin.masked_value`."""
        loss, y = self.loss, label.label
        left = np.setdiff1d(np.arange(len(scores)), [*label.masked, y])
        floor = float(y not in label.masked)
        h = 1 - floor + scores[left] - scores[y]
        if loss.gamma == 0 or len(left) == 0:
            return float(floor + max(h.max(initial=0), 0))
        rho = float(loss.smoothing == "moreau")
        x = project(h / loss.gamma, "beta", 1, 1.0, rho)
        return float(floor + h @ x - 0.5 * loss.gamma * (x @ x + rho * x.sum() ** 2))

    def dual_term(self, dual: Float64, label: MaskedLabel, cost: float) -> float:
        """See :meth:`Twin.dual_term`."""
        y = label.label
        penalised = dual if self.loss.smoothing == "moreau" else np.delete(dual, y)
        reward = dual[y] if y in label.masked else cost
        return float(reward - self.loss.gamma / (2 * cost) * (penalised @ penalised))
