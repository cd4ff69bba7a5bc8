r"""The weighted top-k hinge, row by row, and the projection onto the domain of its dual.

With the margins ``h_j = 1 + u_j - u_y`` of all m classes, ``h_y = 0`` among them, in descending
order and weights ``rho_1 >= rho_2 >= ... >= 0`` the loss is ``max(0, sum_j rho_j h_[j])`` [1]_.
Its conjugate is minus the sum s of x on the convex hull of 0 and of the permutations of rho
without the label's place. With T_j and R_j the sums of the j largest x and of the first j weights,
and R that of all of them, x >= 0 is in it just if for some theta in [0, 1] ::

    T_j <= theta R_j,   s <= theta R   and   theta (R - R_j) <= s - T_{j-1}   for every j:

``(x, theta R - s)`` is then in the permutohedron of theta rho.

The projection b - z onto it, r times as large, takes the prox of ``r max(0, g(z))`` off b, where
``g(z) = sum_j rho_j z_[j]`` with 0 among the z. For a multiplier theta in [0, r] of the maximum
that is the prox of ``theta g``: weights above the label's zero are those of the rank, below it of
the next one, so that ``z = max(U, 0) + min(V, 0)`` for the nonincreasing regressions U and V of
b less theta rho and of b less theta rho without its first weight, b being in descending order.
``g(z)`` falls as theta rises. Any theta gives a point of the domain, and the one with
``g(z) = 0`` the nearest, or r if there is none.

With a bias on the sum of the projection zero becomes a level t, equal to ``bias * sum(b - z)``,
and z a value between U and V: ``clip(t, U, V)``.

References
----------
.. [1] Kato, Hirohashi. Learning Weighted Top-k Support Vector Machine. ACML 2019.
"""

import numpy as np
from numba import njit

from dtopk.kernels.hinge import MOREAU, dot_minus_half_square, sum_of_squares
from dtopk.kernels.ordered import pool
from dtopk.kernels.ranked import largest_places

_MAX_STEPS = 100
_CLOSE = 4e-16


@njit(cache=True, nogil=True, error_model="numpy")
def _pad(rho, m):
    """Return m weights, those beyond rho being 0."""
    weights = np.zeros(m)
    for j in range(rho.size):
        weights[j] = rho[j]
    return weights


@njit(cache=True, nogil=True, error_model="numpy")
def _regress(ordered, rho, theta, starts, levels, result):
    """Regress ``ordered - theta rho`` (n,) on nonincreasing sequences.

    Writes the regression into result[0], what it leaves of `ordered` into result[1], and by how
    much it falls as theta rises into result[2].
    """
    n_pools = pool(ordered, rho, theta, starts, levels)
    for p in range(n_pools):
        start, stop = starts[p], starts[p + 1]
        weight = 0.0
        for i in range(start, stop):
            weight += rho[i]
        for i in range(start, stop):
            result[0, i] = ordered[start] + levels[p]
            # Of differences: where b is large, the regression has few digits of theta rho.
            result[1, i] = (ordered[i] - ordered[start]) - levels[p]
            result[2, i] = weight / (stop - start)


@njit(cache=True, nogil=True, error_model="numpy")
def _write_rest(ordered, lower, upper, t, x):
    """Write ``ordered - clip(t, lower, upper)`` into x; return its sum and how many follow t."""
    total, free = 0.0, 0
    for i in range(ordered.size):
        if lower[0, i] > t:
            x[i] = max(lower[1, i], 0.0)
        elif upper[0, i] < t:
            x[i] = max(upper[1, i], 0.0)
        else:
            x[i] = max(ordered[i] - t, 0.0)
            free += 1
        total += x[i]
    return total, free


@njit(cache=True, nogil=True, error_model="numpy")
def _write_biased(ordered, lower, upper, bias, x):
    """Do as :func:`_write_rest` does with the t that is bias times the sum; return t as well.

    The sum falls with t, piece by piece linearly: Newton's method, kept between bounds.
    """
    t = 0.0
    total, free = _write_rest(ordered, lower, upper, t, x)
    # The solution is at most bias * total: a bound beyond it is never hit.
    low, high = 0.0, 2 * bias * total
    for _ in range(_MAX_STEPS):
        excess = bias * total - t
        if excess > 0:
            low = t
        else:
            high = t
        following = t + excess / (bias * free + 1)
        if not low < following < high:
            following = 0.5 * (low + high)
        if excess == 0 or abs(following - t) <= _CLOSE * t:
            break
        t = following
        total, free = _write_rest(ordered, lower, upper, t, x)
    return total, free, t


@njit(cache=True, nogil=True, error_model="numpy")
def _balance(rho, lower, upper, t, bias, free):
    """Return ``sum_j rho_j z_[j] - R t``, t among the z, and how fast it falls as theta rises."""
    value, steepness, held = 0.0, 0.0, 0.0
    for i in range(lower.shape[1]):
        if lower[0, i] > t:
            value += rho[i] * (lower[0, i] - t)
            steepness += rho[i] * lower[2, i]
            held += rho[i]
        elif upper[0, i] < t:
            value += rho[i + 1] * (upper[0, i] - t)
            steepness += rho[i + 1] * upper[2, i]
            held += rho[i + 1]
    # t is bias times the sum of x, which rises by as much as those weights do.
    return value, steepness + held * held * bias / (1 + bias * free)


@njit(cache=True, nogil=True, error_model="numpy")
def _weighted_sum(ordered, rho):
    """Return ``sum_j rho_j b_[j]`` of b (n,), in descending order, with 0 among its entries."""
    total, rank = 0.0, 0
    for i in range(ordered.size):
        if rank == i and ordered[i] < 0:
            rank += 1
        total += rho[rank] * ordered[i]
        rank += 1
    return total


@njit(cache=True, nogil=True, error_model="numpy")
def project_weighted_topk(b, rho, radius, bias, out):
    """Project b onto the domain of the weighted top-k hinge, radius times as large.

    Solves min_x 0.5 |x|^2 + 0.5 bias (sum x)^2 - <b, x> over that domain.

    Parameters
    ----------
    b : ndarray of shape (m,), float64
        -inf at the label, finite elsewhere.
    rho : ndarray of shape (n_weights,), float64
        Nonincreasing and not negative; 1 <= n_weights <= m.
    radius : float, > 0
    bias : float, >= 0
    out : ndarray of shape (m,), float64
        The projection, 0 at the label.

    Returns
    -------
    float
        The sum of the projection.
    """
    n = b.size - 1
    ordered, order = np.empty(n), np.empty(n, np.int64)
    largest_places(b, n, ordered, order)
    weights = _pad(rho, n + 1)
    starts, levels, x = np.empty(n + 1, np.int64), np.empty(n), np.zeros(n)
    lower, upper = np.empty((3, n)), np.empty((3, n))
    total, low, high, theta = 0.0, 0.0, radius, radius
    for step in range(_MAX_STEPS):
        _regress(ordered, weights[:n], theta, starts, levels, lower)
        _regress(ordered, weights[1:], theta, starts, levels, upper)
        total, free, t = _write_biased(ordered, lower, upper, bias, x)
        value, steepness = _balance(weights, lower, upper, t, bias, free)
        if value == 0 or (step == 0 and value > 0):
            break
        if step == 0 and _weighted_sum(ordered, weights) <= 0:
            x[:] = 0
            total = 0.0
            break
        if value > 0:
            low = theta
        else:
            high = theta
        following = theta + value / steepness
        if not low < following < high:
            following = 0.5 * (low + high)
        if abs(following - theta) <= _CLOSE * theta:
            break
        theta = following
    out[:] = 0
    for i in range(n):
        out[order[i]] = x[i]
    return total


@njit(cache=True, nogil=True, error_model="numpy")
def _margins(scores, label, h):
    """Write 1 + u_j - u_label into h (m,), float64, and -inf at the label."""
    own = np.float64(scores[label])
    for j in range(h.size):
        h[j] = (np.float64(scores[j]) - own) + 1.0
    h[label] = -np.inf


@njit(cache=True, nogil=True, error_model="numpy")
def weighted_topk_values(scores, labels, rho, gamma, smoothing, out):
    """Write the loss of every row into out (n_rows,), float64."""
    m = scores.shape[1]
    h, x = np.empty(m), np.empty(m)
    ordered, order = np.empty(m - 1), np.empty(m - 1, np.int64)
    weights = _pad(rho, m)
    bias = 1.0 if smoothing == MOREAU else 0.0
    for i in range(scores.shape[0]):
        _margins(scores[i], labels[i], h)
        if gamma == 0:
            largest_places(h, m - 1, ordered, order)
            out[i] = max(_weighted_sum(ordered, weights), 0.0)
            continue
        total = project_weighted_topk(h, rho, gamma, bias, x)
        h[labels[i]] = 0
        out[i] = (dot_minus_half_square(h, x) - 0.5 * bias * total * total) / gamma


@njit(cache=True, nogil=True, error_model="numpy")
def weighted_topk_gradients(scores, labels, rho, gamma, smoothing, out):
    """Write the gradient of the smoothed loss at every row into out (n_rows, m), gamma > 0."""
    m = scores.shape[1]
    h, x = np.empty(m), np.empty(m)
    bias = 1.0 if smoothing == MOREAU else 0.0
    for i in range(scores.shape[0]):
        _margins(scores[i], labels[i], h)
        total = project_weighted_topk(h, rho, gamma, bias, x)
        for j in range(m):
            out[i, j] = x[j] / gamma
        out[i, labels[i]] = -total / gamma


@njit(cache=True, nogil=True, error_model="numpy")
def feasible_weighted_topk_duals(dual, labels, costs, rho, gamma, smoothing, values):
    """Put dual rows onto their domain, in place, and write D_i of each into values (n_rows,)."""
    m = dual.shape[1]
    b, x = np.empty(m), np.empty(m)
    bias = 1.0 if smoothing == MOREAU else 0.0
    for i in range(dual.shape[0]):
        label = labels[i]
        if costs[i] == 0:
            dual[i] = 0
            values[i] = 0.0
            continue
        for j in range(m):
            b[j] = -dual[i, j]
        b[label] = -np.inf
        total = project_weighted_topk(b, rho, costs[i], 0.0, x)
        square = float(sum_of_squares(x)) + bias * total * total
        values[i] = total - gamma / (2 * costs[i]) * square
        for j in range(m):
            dual[i, j] = -x[j]
        dual[i, label] = total
