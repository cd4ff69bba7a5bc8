"""The twin of the top-k hinge losses."""

from typing import Any

import numpy as np

from dtopk.losses import TopKHinge
from dtopk.testing.domains import Domain, Float64, project, smallest_product, sum_cap
from dtopk.testing.twin import Twin

_DOMAINS: dict[str, Domain] = {
    "topk_hinge_alpha": "alpha",
    "topk_hinge_alpha_incl": "alpha_incl",
    "topk_hinge_beta": "beta",
}


class HingeTwin(Twin[TopKHinge]):
    """Sorted margins, and projections by bisection."""

    @property
    def domain(self) -> Domain:
        """The domain of the dual."""
        return _DOMAINS[self.loss.name]

    def value(self, scores: Float64, label: Any) -> float:
        """See :meth:`Twin.value`."""
        loss, k = self.loss, self.loss.k
        h = np.delete(1 + scores - scores[label], label)
        if loss.gamma > 0:
            # L = max_x <h, x> - gamma/2 (|x|^2 + rho s^2) over the domain of radius 1.
            rho = float(loss.smoothing == "moreau")
            x = project(h / loss.gamma, self.domain, k, 1.0, rho)
            return float(h @ x - 0.5 * loss.gamma * (x @ x + rho * x.sum() ** 2))
        largest = np.sort(h)[::-1]
        if self.domain == "beta":
            return float(np.maximum(largest[:k], 0).sum() / k)
        sums = [largest[:k].sum() / k, 0.0]
        if self.domain == "alpha_incl":
            sums.append(largest[: k - 1].sum() / k)
        return float(max(sums))

    def dual_term(self, dual: Float64, label: Any, cost: float) -> float:
        """See :meth:`Twin.dual_term`."""
        penalised = dual if self.loss.smoothing == "moreau" else np.delete(dual, label)
        return float(dual[label] - self.loss.gamma / (2 * cost) * (penalised @ penalised))

    def infeasibility(self, dual: Float64, label: Any) -> float:
        """See :meth:`Twin.infeasibility`."""
        x = -np.delete(dual, label)
        total = float(x.sum())
        cap, _ = sum_cap(self.domain, self.loss.k, 1.0, total)
        return float(max(-x.min(), total - 1, abs(dual.sum()), x.max() - cap, 0))

    def update_row(self, q: Float64, norm: float, label: int, cost: float) -> Float64:
        """Maximise D_i(a) - K/2 |a|^2 - <q, a>; see :func:`dtopk.testing.update_row`."""
        loss = self.loss
        margins = np.delete(1 + q - q[label], label)
        curvature = norm + loss.gamma / cost
        if curvature == 0:
            _, x = smallest_product(-margins, self.domain, loss.k, cost)
        else:
            rho = 1.0 if loss.smoothing == "moreau" else norm / curvature
            x = project(margins / curvature, self.domain, loss.k, cost, rho)
        return np.insert(-x, label, x.sum())
