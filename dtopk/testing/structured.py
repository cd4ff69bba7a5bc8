"""The twin of the multiclass hinge with label costs."""

from typing import Any

import numpy as np

from dtopk.losses import StructuredHinge
from dtopk.testing.domains import project
from dtopk.testing.twin import Float64, Twin


class StructuredTwin(Twin[StructuredHinge]):
    """The largest margin, and projections by bisection."""

    def value(self, scores: Float64, label: Any) -> float:
        """See :meth:`Twin.value`."""
        gamma = self.loss.gamma
        h = np.delete(self._costs(len(scores), label) + scores - scores[label], label)
        if gamma == 0:
            return float(max(0.0, h.max()))
        rho = float(self.loss.smoothing == "moreau")
        x = project(h / gamma, "beta", 1, 1.0, rho)
        return float(h @ x - 0.5 * gamma * (x @ x + rho * x.sum() ** 2))

    def dual_term(self, dual: Float64, label: Any, cost: float) -> float:
        """See :meth:`Twin.dual_term`."""
        penalised = dual if self.loss.smoothing == "moreau" else np.delete(dual, label)
        reward = -self._costs(len(dual), label) @ dual
        return float(reward - self.loss.gamma / (2 * cost) * (penalised @ penalised))

    def infeasibility(self, dual: Float64, label: Any) -> float:
        """See :meth:`Twin.infeasibility`."""
        x = -np.delete(dual, label)
        return float(max(-x.min(), x.sum() - 1, abs(dual.sum()), 0))

    def _costs(self, m: int, label: int) -> Float64:
        if self.loss.label_cost.size:
            return np.asarray(self.loss.label_cost[label], dtype=np.float64)
        return np.asarray(1 - np.eye(m)[label])
