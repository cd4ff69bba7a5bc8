r"""The ordered weighted hinge, row by row, and the projection onto the domain of its dual.

With the margins ``h_j = 1 + u_j - u_y`` of the classes other than y in descending order and
weights ``rho_1 >= rho_2 >= ... >= 0`` the loss is ``sum_j rho_j max(0, h_(j))`` [1]_. Its
conjugate is minus the sum of x on the domain ::

    x >= 0,   the sum of the j largest x <= rho_1 + ... + rho_j for every j.

The projection of b onto it keeps the order of b. On the positive entries in that order it is
``b - v``, v being the positive part of the nonincreasing regression of ``b - rho``, in which
neighbours out of order are pooled.

References
----------
.. [1] Tajima, Hirohashi, Zara, Kato. Frank-Wolfe algorithm for learning SVM-type multi-category
   classifiers. Equation 2.8.
"""

import numpy as np
from numba import njit

from dtopk.kernels.corrections import correct_scores
from dtopk.kernels.hinge import (
    MOREAU,
    dot_minus_half_square,
    margins,
    negate_and_difference,
    shifted_margins,
    sum_of_squares,
)
from dtopk.kernels.projections import largest_entries
from dtopk.kernels.workspace import working_vector

_MAX_STEPS = 100


@njit(cache=True, nogil=True, error_model="numpy")
def _find_candidates(b, n_weights, span, top, places):
    """Write the places of the entries that can be positive into `places`, by descending b.

    A pool that reaches beyond the last weight ends where the others' b no longer exceeds its
    mean: never below the last weighted entry less the largest weight, `span`.
    """
    largest_entries(b, n_weights, top)
    lowest = top[n_weights - 1] - span
    n = 0
    for j in range(b.size):
        if b[j] > -np.inf and b[j] >= lowest:
            places[n] = j
            n += 1
    chosen = places[:n]
    order = np.argsort(-b[chosen], kind="mergesort")
    places[:n] = chosen[order]
    return n


@njit(cache=True, nogil=True, error_model="numpy")
def pool(ordered, rho, radius, starts, levels):
    """Regress ``ordered - radius rho`` on nonincreasing sequences by pooling neighbours.

    Returns the number of pools; pool p has the entries starts[p] to starts[p + 1], and levels[p]
    is its mean, relative to its first entry: a radius far below the rounding of b keeps its
    meaning.
    """
    n_pools = 0
    for i in range(ordered.size):
        start, count = i, 1
        level = -radius * rho[i] if i < rho.size else 0.0
        while n_pools > 0:
            rise = (float(ordered[start]) - float(ordered[starts[n_pools - 1]])) + level
            if levels[n_pools - 1] >= rise:
                break
            n_pools -= 1
            before = start - starts[n_pools]
            level = levels[n_pools] + (rise - levels[n_pools]) * (count / (before + count))
            start, count = starts[n_pools], before + count
        starts[n_pools] = start
        levels[n_pools] = level
        n_pools += 1
    starts[n_pools] = ordered.size
    return n_pools


@njit(cache=True, nogil=True, error_model="numpy")
def _write_pools(ordered, t, starts, levels, n_pools, x):
    """Write the projection of ``ordered - t`` into x.

    Returns its sum, and how many of its entries follow t: those of pools whose mean is below t,
    which no constraint holds.
    """
    total, free = 0.0, 0
    for p in range(n_pools):
        first = float(ordered[starts[p]])
        held = (first - t) + levels[p] > 0
        for i in range(starts[p], starts[p + 1]):
            entry = float(ordered[i])
            x[i] = max((entry - first) - levels[p] if held else entry - t, 0.0)
            total += x[i]
            if not held and x[i] > 0:
                free += 1
    return total, free


@njit(cache=True, nogil=True, error_model="numpy")
def _write_biased(ordered, bias, starts, levels, n_pools, x):
    """Write the projection of ``ordered - t`` into x with t = bias * (its sum); return the sum.

    The sum falls with t, piece by piece linearly: Newton's method, kept between bounds.
    """
    total, free = _write_pools(ordered, 0.0, starts, levels, n_pools, x)
    # The solution is at most bias * total: a bound beyond it is never hit.
    low, high, t = 0.0, 2 * bias * total, 0.0
    for _ in range(_MAX_STEPS):
        excess = bias * total - t
        if abs(excess) <= 4e-16 * t or high == 0:
            break
        if excess > 0:
            low = t
        else:
            high = t
        step = t + excess / (bias * free + 1)
        if step <= low or step >= high:
            step = 0.5 * (low + high)
        if step == t:
            break
        t = step
        total, free = _write_pools(ordered, t, starts, levels, n_pools, x)
    return total


@njit(cache=True, nogil=True, error_model="numpy")
def project_ordered(b, rho, radius, bias, top, places, out):
    """Project b onto ``{x >= 0, sum of the j largest x <= radius (rho_1 + ... + rho_j)}``.

    Solves min_x 0.5 |x|^2 + 0.5 bias (sum x)^2 - <b, x> over that domain.

    Parameters
    ----------
    b : ndarray of shape (m,), float32 or float64
        An entry of -inf is outside the problem: its x is 0. At least n_weights others are finite.
    rho : ndarray of shape (n_weights,), float64
        Nonincreasing and not negative; 1 <= n_weights <= the number of finite entries.
    radius : float, > 0
    bias : float, >= 0
    top : ndarray of shape (n_weights,), the dtype of b
        Workspace.
    places : ndarray of shape (m,), int64
        Workspace.
    out : ndarray of shape (m,), the dtype of b
        The projection.

    Returns
    -------
    float
        The sum of the projection.
    """
    out[:] = 0
    n = _find_candidates(b, rho.size, b.dtype.type(radius * rho[0]), top, places)
    ordered = b[places[:n]]
    starts, levels, x = np.empty(n + 1, np.int64), np.empty(n + 1), np.empty(n)
    n_pools = pool(ordered, rho, radius, starts, levels)
    total = _write_biased(ordered, bias, starts, levels, n_pools, x)
    for i in range(n):
        out[places[i]] = x[i]
    return total


@njit(cache=True, forceinline=True, nogil=True, error_model="numpy")
def _fill_ordered(b, rho, radius, top, places, out):
    """Spread the weights over the largest positive entries of b, in order: a zero row's problem."""
    out[:] = 0
    n = _find_candidates(b, rho.size, b.dtype.type(0), top, places)
    total = 0.0
    for i in range(min(n, rho.size)):
        if b[places[i]] > 0:
            out[places[i]] = radius * rho[i]
            total += radius * rho[i]
    return total


@njit(cache=True, nogil=True, error_model="numpy")
def update_rows_ordered(
    scores, gram, dual, delta, labels, costs, rho, gamma, smoothing, first, last
):
    """Maximise the dual over rows first to last of a block, each exactly and in order.

    Arguments and result are those of :func:`dtopk.kernels.hinge.update_rows_hinge`, with
    rho (n_weights,), float64, in the place of domain and k.
    """
    m = scores.shape[1]
    dtype = scores.dtype.type
    b, x = working_vector(m, scores), working_vector(m, scores)
    top, places = np.empty(rho.size, scores.dtype), np.empty(m, np.int64)
    changed = np.empty(last - first, np.int64)
    n_changed = 0
    value = 0.0
    tiny = np.sqrt(np.finfo(scores.dtype).tiny)
    for i in range(first, last):
        correct_scores(scores, gram, delta, changed, n_changed, i)
        label, cost, norm = labels[i], costs[i], gram[i, i]
        total = 0.0
        x[:] = 0
        if cost > 0:
            curvature = dtype(norm + gamma / cost)
            scale = dtype(1 / curvature) if curvature > tiny else dtype(1)
            shifted_margins(scores[i], dual[i], norm, label, scale, b)
            if curvature > tiny:
                bias = 1.0 if smoothing == MOREAU else float(norm / curvature)
                total = project_ordered(b, rho, cost, bias, top, places, x)
            else:
                total = _fill_ordered(b, rho, cost, top, places, x)
            penalty = float(sum_of_squares(x))
            if smoothing == MOREAU:
                penalty += total * total
            value += total - gamma / (2 * cost) * penalty
        if negate_and_difference(x, dtype(total), label, dual[i], delta[i]) > 0:
            changed[n_changed] = i
            n_changed += 1
    return value


@njit(cache=True, nogil=True, error_model="numpy")
def ordered_values(scores, labels, rho, gamma, smoothing, out):
    """Write the loss of every row into out (n_rows,), float64."""
    m = scores.shape[1]
    h, x = working_vector(m, scores), working_vector(m, scores)
    top, places = np.empty(rho.size, scores.dtype), np.empty(m, np.int64)
    one = scores.dtype.type(1)
    for i in range(scores.shape[0]):
        margins(scores[i], labels[i], one, h)
        if gamma == 0:
            largest_entries(h, rho.size, top)
            value = 0.0
            for j in range(rho.size):
                value += rho[j] * max(float(top[j]), 0.0)
            out[i] = value
            continue
        total = project_ordered(h, rho, gamma, 1.0 if smoothing == MOREAU else 0.0, top, places, x)
        h[labels[i]] = 0
        product = float(dot_minus_half_square(h, x))
        if smoothing == MOREAU:
            product -= 0.5 * total * total
        out[i] = product / gamma


@njit(cache=True, nogil=True, error_model="numpy")
def ordered_gradients(scores, labels, rho, gamma, smoothing, out):
    """Write the gradient of the smoothed loss at every row into out (n_rows, m), gamma > 0."""
    m = scores.shape[1]
    h = working_vector(m, scores)
    top, places = np.empty(rho.size, scores.dtype), np.empty(m, np.int64)
    one = scores.dtype.type(1)
    for i in range(scores.shape[0]):
        margins(scores[i], labels[i], one, h)
        bias = 1.0 if smoothing == MOREAU else 0.0
        total = project_ordered(h, rho, gamma, bias, top, places, out[i])
        out[i] /= gamma
        out[i, labels[i]] = -total / gamma


@njit(cache=True, nogil=True, error_model="numpy")
def feasible_ordered_duals(dual, labels, costs, rho, gamma, smoothing, values):
    """Put dual rows onto their domain, in place, and write D_i of each into values (n_rows,)."""
    m = dual.shape[1]
    b, x = working_vector(m, dual), working_vector(m, dual)
    top, places = np.empty(rho.size, dual.dtype), np.empty(m, np.int64)
    for i in range(dual.shape[0]):
        label = labels[i]
        if costs[i] == 0:
            dual[i] = 0
            values[i] = 0.0
            continue
        for j in range(m):
            b[j] = -dual[i, j]
        b[label] = -np.inf
        total = project_ordered(b, rho, costs[i], 0.0, top, places, x)
        penalty = float(sum_of_squares(x))
        if smoothing == MOREAU:
            penalty += total * total
        values[i] = total - gamma / (2 * costs[i]) * penalty
        for j in range(m):
            dual[i, j] = -x[j]
        dual[i, label] = total
