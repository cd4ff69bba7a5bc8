"""The twin of the sparsemax loss."""

from typing import Any

import numpy as np

from dtopk.losses import Sparsemax
from dtopk.testing.twin import Float64, Twin


class SparsemaxTwin(Twin[Sparsemax]):
    """The distribution by trying every size of its support."""

    def value(self, scores: Float64, label: Any) -> float:
        """See :meth:`Twin.value`."""
        u = scores - scores.max()
        ordered = np.sort(u)[::-1]
        thresholds = (np.cumsum(ordered) - 1) / np.arange(1, len(u) + 1)
        p = np.maximum(u - thresholds.max(), 0)
        return float(u @ p - 0.5 * p @ p + 0.5 - u[label])

    def dual_term(self, dual: Float64, label: Any, cost: float) -> float:
        """See :meth:`Twin.dual_term`."""
        x = -np.delete(dual, label) / cost
        p = np.append(x, 1 - x.sum())
        return float(0.5 * cost * np.sum(p * (1 - p)))

    def infeasibility(self, dual: Float64, label: Any) -> float:
        """See :meth:`Twin.infeasibility`."""
        x = -np.delete(dual, label)
        return float(max(-x.min(), x.sum() - 1, abs(dual.sum()), 0))
