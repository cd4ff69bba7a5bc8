"""Slow, obvious twins of the kernels, for tests: plain numpy and scipy, in float64.

Nothing here shares code or method with :mod:`dtopk.kernels`. A projection is a bisection on the
sum of its result, Lambert's function is scipy's, and training is one row at a time.
"""

import math
from collections.abc import Iterable
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import brentq
from scipy.special import entr, logsumexp, wrightomega

from dtopk.losses import Loss, TopKHinge

Array = NDArray[Any]
Float64 = NDArray[np.float64]
Labels = NDArray[np.int32]
Domain = Literal["alpha", "alpha_incl", "beta"]

DOMAINS: dict[str, Domain] = {
    "topk_hinge_alpha": "alpha",
    "topk_hinge_alpha_incl": "alpha_incl",
    "topk_hinge_beta": "beta",
}
"""The domain of the dual of each hinge loss, by the loss's name."""

_SMALLEST_SUM = 1e-30
"""Share of the radius below which the sum of a projection counts as zero."""


def make_features(n: int, d: int, m: int, *, seed: int) -> tuple[NDArray[np.float32], Labels]:
    """Draw features like those of a network's last ReLU, one cluster a class.

    ``X = max(0.7 mu[y] + 2 N(0, 1), 0)`` with class means ``mu ~ N(0, 1)`` and uniform labels;
    each row is then divided by its norm.

    Parameters
    ----------
    n, d, m : int
        Rows, features and classes.
    seed : int

    Returns
    -------
    X : ndarray of shape (n, d), float32
        Rows of unit norm (a row whose entries are all clipped stays zero).
    y : ndarray of shape (n,), int32
        Class codes, 0 to m - 1.
    """
    rng = np.random.default_rng(seed)
    means = rng.normal(size=(m, d))
    y = rng.integers(0, m, size=n).astype(np.int32)
    X = np.maximum(0.7 * means[y] + 2.0 * rng.normal(size=(n, d)), 0.0)
    norms = np.linalg.norm(X, axis=1, keepdims=True)
    return (X / np.where(norms > 0, norms, 1.0)).astype(np.float32), y


def lambert_v(t: Any) -> Any:
    """Return V(t) = W(e^t), the solution of V + log V = t, by scipy's Wright omega function.

    Parameters
    ----------
    t : float or ndarray of float64
    """
    return wrightomega(t)


def sum_cap(domain: Domain, k: int, radius: float, total: float) -> tuple[float, float]:
    """Return the largest entry that a point of a domain may have, given its sum.

    The domains are ``{x >= 0, s = sum x <= radius, x_j <= cap(s)}`` with cap s/k (alpha),
    min(radius/k, s/(k-1)) (alpha_incl; [1]_ eq. 6 has its loss) and radius/k (beta).

    Parameters
    ----------
    domain : {'alpha', 'alpha_incl', 'beta'}
    k : int
    radius : float
    total : float
        The sum s.

    Returns
    -------
    cap : float
    slope : float
        Its derivative in s, to the right of a kink.

    References
    ----------
    .. [1] Lapin, Hein, Schiele. Loss Functions for Top-k Error: Analysis and Insights. CVPR 2016.
    """
    if domain == "alpha":
        return total / k, 1 / k
    if domain == "beta" or k == 1 or total >= radius * (k - 1) / k:
        return radius / k, 0.0
    return total / (k - 1), 1 / (k - 1)


def project(b: Array, domain: Domain, k: int, radius: float, rho: float) -> Float64:
    """Minimise 0.5 |x|^2 + 0.5 rho (sum x)^2 - <b, x> over a domain of the top-k hinge losses.

    Given the sum s, ``x = clip(b - t, 0, cap(s))``, and the derivative in s of what that leaves is
    ``rho s - t - cap'(s) sum max(b - t - cap(s), 0)`` (the multipliers of the sum and of the
    caps). It increases, as the problem is convex: s is found by bisection.

    Parameters
    ----------
    b : ndarray of shape (m,), finite
    domain : {'alpha', 'alpha_incl', 'beta'}
    k : int, 1 <= k <= m
    radius : float, > 0
    rho : float, >= 0

    Returns
    -------
    ndarray of shape (m,), float64
    """
    values = np.asarray(b, dtype=np.float64)

    def slope(total: float) -> float:
        cap, cap_slope = sum_cap(domain, k, radius, total)
        above, t = _above_threshold(values, cap, total)
        return rho * total - t - cap_slope * float(np.maximum(above - cap, 0).sum())

    low, high = _SMALLEST_SUM * radius, radius
    if slope(low) >= 0:
        return np.zeros(len(values))
    if slope(high) > 0:
        while low < (middle := 0.5 * (low + high)) < high:
            low, high = (low, middle) if slope(middle) > 0 else (middle, high)
    cap, _ = sum_cap(domain, k, radius, high)
    return np.clip(_above_threshold(values, cap, high)[0], 0.0, cap)


def _above_threshold(b: Float64, cap: float, total: float) -> tuple[Float64, float]:
    """Return b - t and t, where sum clip(b - t, 0, cap) = total, by the sorted breakpoints.

    As n = ceil(total / cap) entries must be above t, and no more than n - 1 can be a whole cap
    above, t is less than one cap below the n-th largest entry. Relative to that one a cap far
    below the rounding of b is not lost.
    """
    n_above = min(max(math.ceil(total / cap), 1), len(b))
    anchor = np.sort(b)[-n_above]
    shifted = b - anchor
    points = np.sort(np.concatenate((shifted, shifted - cap)))[::-1]
    sums = np.clip(shifted[None, :] - points[:, None], 0.0, cap).sum(axis=1)
    t = float(np.interp(total, sums, points))
    return shifted - t, float(anchor + t)


def smallest_product(g: Float64, domain: Domain, k: int, radius: float) -> tuple[float, Float64]:
    """Minimise <g, x> over a domain of the top-k hinge losses, by its vertices.

    Those are 0 and points with entries radius/k: on k coordinates (alpha), on k - 1 or k
    (alpha_incl; on one where k is 1), on k at most (beta).

    Parameters
    ----------
    g : ndarray of shape (m,), float64
    domain : {'alpha', 'alpha_incl', 'beta'}
    k : int
    radius : float

    Returns
    -------
    value : float
    x : ndarray of shape (m,), float64
        A vertex where it is attained.
    """
    counts = {"alpha": (k,), "alpha_incl": (k - 1, k), "beta": tuple(range(1, k + 1))}[domain]
    order = np.argsort(g, kind="stable")
    x = np.zeros(len(g))
    best = 0.0
    for count in counts:
        value = radius / k * float(g[order[:count]].sum())
        if value < best:
            best = value
            x[:] = 0
            x[order[:count]] = radius / k
    return best, x


def fw_gap(x: Array, b: Array, domain: Domain, k: int, radius: float, rho: float) -> float:
    """Bound how far x is from solving the problem of :func:`project`: its Frank-Wolfe gap.

    ``max_z <grad f(x), x - z>`` over the domain is at least f(x) minus the minimum, and is zero
    at the solution only.

    Parameters
    ----------
    x, b : ndarray of shape (m,)
        x must be in the domain.
    domain : {'alpha', 'alpha_incl', 'beta'}
    k : int
    radius, rho : float
    """
    x = np.asarray(x, dtype=np.float64)
    gradient = x + rho * x.sum() - np.asarray(b, dtype=np.float64)
    return float(gradient @ x) - smallest_product(gradient, domain, k, radius)[0]


def loss_value(loss: Loss, scores: Array, label: int) -> float:
    """Return the loss of one row from its definition.

    Parameters
    ----------
    loss : Loss
    scores : ndarray of shape (n_classes,)
    label : int
    """
    u = np.asarray(scores, dtype=np.float64)
    if not isinstance(loss, TopKHinge):
        return float(logsumexp(u - u[label]))
    k = loss.k
    h = np.delete(1 + u - u[label], label)
    if loss.gamma > 0:
        # L = max_x <h, x> - gamma/2 (|x|^2 + rho s^2) over the domain of radius 1.
        rho = float(loss.smoothing == "moreau")
        x = project(h / loss.gamma, DOMAINS[loss.name], k, 1.0, rho)
        return float(h @ x - 0.5 * loss.gamma * (x @ x + rho * x.sum() ** 2))
    largest = np.sort(h)[::-1]
    if loss.name == "topk_hinge_beta":
        return float(np.maximum(largest[:k], 0).sum() / k)
    sums = [largest[:k].sum() / k, 0.0]
    if loss.name == "topk_hinge_alpha_incl":
        sums.append(largest[: k - 1].sum() / k)
    return float(max(sums))


def dual_term(loss: Loss, dual: Array, label: int, cost: float) -> float:
    """Return D_i(a) = -C L*(y, -a/C) of one row that is in its domain.

    Parameters
    ----------
    loss : Loss
    dual : ndarray of shape (n_classes,)
        The row a.
    label : int
    cost : float
        C times the row's weight; 0 for a row that does not count.
    """
    a = np.asarray(dual, dtype=np.float64)
    if cost == 0:
        return 0.0
    if not isinstance(loss, TopKHinge):
        return float(cost * entr(np.maximum(_masses(a, label, cost), 0)).sum())
    penalised = a if loss.smoothing == "moreau" else np.delete(a, label)
    return float(a[label] - loss.gamma / (2 * cost) * (penalised @ penalised))


def infeasibility(loss: Loss, dual: Array, label: int, cost: float) -> float:
    """Return by how much one dual row breaks the rules of its domain, in units of the cost.

    Parameters
    ----------
    loss : Loss
    dual : ndarray of shape (n_classes,)
    label : int
    cost : float, > 0
    """
    a = np.asarray(dual, dtype=np.float64) / cost
    x = -np.delete(a, label)
    total = float(x.sum())
    violations = [-x.min(), total - 1.0, abs(a.sum())]
    if isinstance(loss, TopKHinge):
        violations.append(x.max() - sum_cap(DOMAINS[loss.name], loss.k, 1.0, total)[0])
    return float(max(*violations, 0.0))


def update_row(loss: Loss, q: Array, norm: float, label: int, cost: float) -> Float64:
    """Maximise D_i(a) - K/2 |a|^2 - <q, a> over the domain of one row.

    Parameters
    ----------
    loss : Loss
    q : ndarray of shape (n_classes,)
        The scores without the row's own part, ``W'x - K a_old``.
    norm : float
        K = |x|^2.
    label : int
    cost : float
        C times the row's weight.

    Returns
    -------
    ndarray of shape (n_classes,), float64
    """
    q = np.asarray(q, dtype=np.float64)
    if cost == 0:
        return np.zeros(len(q))
    if not isinstance(loss, TopKHinge):
        a = -cost * _softmax_masses(q, norm * cost, label)
        a[label] = 0
        a[label] = -a.sum()
        return a
    domain = DOMAINS[loss.name]
    margins = np.delete(1 + q - q[label], label)
    curvature = norm + loss.gamma / cost
    if curvature == 0:
        _, x = smallest_product(-margins, domain, loss.k, cost)
    else:
        rho = 1.0 if loss.smoothing == "moreau" else norm / curvature
        x = project(margins / curvature, domain, loss.k, cost, rho)
    return np.insert(-x, label, x.sum())


def _masses(a: Float64, label: int, cost: float) -> Float64:
    """Return the distribution e_y - a/C that a dual row of the softmax loss stands for."""
    p = -a / cost
    p[label] = 0
    p[label] = 1 - p.sum()
    return p


def _softmax_masses(q: Float64, al: float, label: int) -> Float64:
    """Minimise sum p log p + al/2 |p - e_y|^2 - <q, p> over the distributions p.

    ``log p_j + al p_j = b_j - t`` with b = q + al e_y, so p_j = V(b_j - t + log al) / al, and t
    makes p sum to one.
    """
    b = q - q.max()
    b[label] += al
    b -= b.max()
    if al == 0:
        p = np.exp(b)
        return np.asarray(p / p.sum())

    def masses(t: float) -> Float64:
        return np.asarray(lambert_v(b - t + np.log(al)) / al)

    # One class alone has mass 1 at t = -al; no class more than e^(b - t) at the other end.
    t = brentq(lambda t: masses(t).sum() - 1, -al - 1e-9, np.log(len(b)) + 1e-9, xtol=1e-15)
    return masses(t)


def sdca_pass(
    loss: Loss,
    X: Array,
    labels: Labels,
    costs: Array,
    dual: Float64,
    W: Float64,
    order: Iterable[int],
) -> None:
    """Visit rows one at a time, each maximising the dual over its own variables.

    Parameters
    ----------
    loss : Loss
    X : ndarray of shape (n, d)
    labels : ndarray of shape (n,), int32
    costs : ndarray of shape (n,)
        C times the weight of each row.
    dual : ndarray of shape (n, n_classes), float64
        Updated in place.
    W : ndarray of shape (d, n_classes), float64
        Updated in place by X' times the change of the duals.
    order : iterable of int
        The rows, in the order in which they are visited.
    """
    for i in order:
        x = X[i].astype(np.float64)
        norm = float(x @ x)
        q = x @ W - norm * dual[i]
        a = update_row(loss, q, norm, int(labels[i]), float(costs[i]))
        W += np.outer(x, a - dual[i])
        dual[i] = a


def primal_value(loss: Loss, X: Array, labels: Labels, costs: Array, W: Array) -> float:
    """Return P(W) = sum_i C_i L(y_i, W'x_i) + 1/2 |W|^2.

    Parameters
    ----------
    loss : Loss
    X : ndarray of shape (n, d)
    labels : ndarray of shape (n,), int32
    costs : ndarray of shape (n,)
    W : ndarray of shape (d, n_classes)
    """
    weights = np.asarray(W, dtype=np.float64)
    scores = X.astype(np.float64) @ weights
    losses = [loss_value(loss, u, int(label)) for u, label in zip(scores, labels, strict=True)]
    return float(np.dot(costs, losses) + 0.5 * np.sum(weights**2))


def dual_value(loss: Loss, X: Array, labels: Labels, costs: Array, dual: Array) -> float:
    """Return D(A) = sum_i D_i(a_i) - 1/2 |X'A|^2.

    Parameters
    ----------
    loss : Loss
    X : ndarray of shape (n, d)
    labels : ndarray of shape (n,), int32
    costs : ndarray of shape (n,)
    dual : ndarray of shape (n, n_classes)
        In its domain.
    """
    rows = zip(dual, labels, costs, strict=True)
    terms = [dual_term(loss, a, int(label), float(cost)) for a, label, cost in rows]
    weights = X.astype(np.float64).T @ np.asarray(dual, dtype=np.float64)
    return float(np.sum(terms) - 0.5 * np.sum(weights**2))
