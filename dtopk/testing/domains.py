"""Slow twins of the projections onto the domains of the top-k hinge losses."""

import math
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
Float64 = NDArray[np.float64]
Domain = Literal["alpha", "alpha_incl", "beta"]

_SMALLEST_SUM = 1e-30
"""Share of the radius below which the sum of a projection counts as zero."""


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
