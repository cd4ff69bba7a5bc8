"""The twin of the top-k entropy losses."""

from typing import Any

import numpy as np
from scipy.optimize import brentq
from scipy.special import entr, expit, logsumexp

from dtopk.losses import TopKEntropy
from dtopk.testing.domains import Domain, sum_cap
from dtopk.testing.twin import Float64, Twin

_DOMAINS: dict[str, Domain] = {"topk_entropy_alpha": "alpha", "topk_entropy_beta": "beta"}


class EntropyTwin(Twin[TopKEntropy]):
    """Every number of capped classes tried (alpha), and a Lagrangian minimised (beta)."""

    @property
    def domain(self) -> Domain:
        """The domain of the dual."""
        return _DOMAINS[self.loss.name]

    def value(self, scores: Float64, label: Any) -> float:
        """See :meth:`Twin.value`."""
        b = np.sort(np.delete(scores, label) - scores[label])[::-1]
        return (_alpha_value if self.domain == "alpha" else _beta_value)(b, self.loss.k)

    def dual_term(self, dual: Float64, label: Any, cost: float) -> float:
        """See :meth:`Twin.dual_term`."""
        x = np.maximum(-np.delete(dual, label) / cost, 0)
        return float(cost * (entr(x).sum() + entr(max(1 - x.sum(), 0))))

    def infeasibility(self, dual: Float64, label: Any) -> float:
        """See :meth:`Twin.infeasibility`."""
        x = -np.delete(dual, label)
        total = float(x.sum())
        cap, _ = sum_cap(self.domain, self.loss.k, 1.0, total)
        return float(max(-x.min(), total - 1, abs(dual.sum()), x.max() - cap, 0))


def _alpha_value(b: Float64, k: int) -> float:
    """Return the maximum over the alpha domain by trying every number u of capped classes.

    With the sum s and u < k entries at s/k, stationarity in the others says log x_j = b_j - t, and
    in the capped ones together with s it leaves ``s = 1/(1 + Q)``, where, with rho = u/k, A the
    sum of the capped b over k and lZ the logarithm of the sum of e^b over the others,
    ``log Q = (1 - rho) log(1 - rho) - rho log k - (1 - rho) lZ - A``. The right u is the one whose
    other entries are at most s/k, and whose capped ones would not be less without the cap.
    """
    if k == len(b):
        return float(np.logaddexp(0, b.mean() + np.log(k)))
    candidates = []
    for u in range(k):
        rho, capped, rest = u / k, b[:u].sum() / k, logsumexp(b[u:])
        log_q = (1 - rho) * np.log1p(-rho) - rho * np.log(k) - (1 - rho) * rest - capped
        s, log_s = expit(-log_q), -np.logaddexp(0, log_q)
        t = rest + np.logaddexp(0, log_q) - np.log1p(-rho)
        level = log_s - np.log(k) + t
        violation = max(b[u] - level, level - b[u - 1] if u else 0, 0)
        value = capped * s - rho * s * (log_s - np.log(k)) + (1 - rho) * s * t + entr(expit(log_q))
        candidates.append((violation, value))
    return float(min(candidates)[1])


def _beta_value(b: Float64, k: int) -> float:
    """Return the maximum over the beta domain as the minimum of its Lagrangian.

    With a multiplier t for "all masses sum to one" the Lagrangian is ``t + sum_j g(b_j - t) +
    e^-t - 1``, g(v) the maximum of ``v x - x log x + x`` over 0 <= x <= 1/k: e^v where that is
    below the cap, and (v + log k + 1)/k above. It is smooth and convex; an error in t counts twice.
    """

    def excess(t: float) -> float:
        return float(np.exp(np.minimum(b - t, -np.log(k))).sum() + np.exp(-t) - 1)

    # The label alone has mass 1 at t = 0, and every class at most 1/m at the other end.
    t = brentq(excess, 0.0, max(b.max(), 0.0) + np.log(len(b) + 1) + 1e-9, xtol=1e-15)
    free = b - t < -np.log(k)
    capped = np.where(free, 0.0, (b - t + np.log(k) + 1) / k)
    return float(t + np.where(free, np.exp(np.minimum(b - t, 0)), capped).sum() + np.exp(-t) - 1)
