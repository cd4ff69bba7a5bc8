"""The multiclass hinge with label costs, row by row: the hinge of k = 1 with margins of its own.

With ``h_j = Delta_j + u_j - u_y`` for the row ``Delta`` of the true label in the matrix of label
costs, ``Delta_y = 0``, the loss is ``max(0, max_j h_j)``. The conjugate has its domain on
``x >= 0, sum x <= 1`` and is ``-<Delta, x>`` there [1]_; smoothing is that of
:mod:`dtopk.kernels.hinge`.

References
----------
.. [1] Tajima, Hirohashi, Zara, Kato. Frank-Wolfe algorithm for learning SVM-type multi-category
   classifiers. Theorem 2.1 is the case of costs 0 and 1.
"""

import numpy as np
from numba import njit

from dtopk.kernels.corrections import correct_scores
from dtopk.kernels.hinge import (
    MOREAU,
    dot_minus_half_square,
    negate_and_difference,
    sum_of_squares,
)
from dtopk.kernels.projections import FASTMATH, largest_entry, project_bounded_simplex
from dtopk.kernels.workspace import working_vector


@njit(cache=True, forceinline=True, nogil=True, fastmath=FASTMATH, error_model="numpy")
def _margins(scores, dual, norm, delta_cost, label, scale, h):
    """Write (Delta_j + q_j - q_label) * scale into h, q = scores - norm * dual; -inf at label."""
    own = scores[label] - norm * dual[label]
    for j in range(h.size):
        h[j] = ((scores[j] - norm * dual[j]) - own + delta_cost[j]) * scale
    h[label] = -np.inf


@njit(cache=True, forceinline=True, nogil=True, error_model="numpy")
def _fill_largest(h, radius, out):
    """Put the radius on the first largest entry of h if it is positive; return the sum."""
    out[:] = 0
    best = np.argmax(h)
    if h[best] <= 0:
        return h.dtype.type(0)
    out[best] = radius
    return h.dtype.type(radius)


@njit(cache=True, forceinline=True, nogil=True, fastmath=FASTMATH, error_model="numpy")
def _dot(a, x):
    total = x.dtype.type(0)
    for j in range(x.size):
        total += a[j] * x[j]
    return total


@njit(cache=True, forceinline=True, nogil=True, error_model="numpy")
def _dual_term(x, total, delta_cost, cost, gamma, smoothing):
    """Return <Delta, x> - gamma/(2C) times the squares that the smoothing counts."""
    squares = float(sum_of_squares(x))
    if smoothing == MOREAU:
        squares += float(total) * total
    return float(_dot(delta_cost, x)) - gamma / (2 * cost) * squares


@njit(cache=True, nogil=True, error_model="numpy")
def update_rows_structured(
    scores, gram, dual, delta, labels, costs, label_cost, gamma, smoothing, first, last
):
    """Maximise the dual over rows first to last of a block, each exactly and in order.

    Arguments and result are those of :func:`dtopk.kernels.hinge.update_rows_hinge`, with
    label_cost (m, m), the dtype of scores, in the place of domain and k.
    """
    m = scores.shape[1]
    dtype = scores.dtype.type
    b, x = working_vector(m, scores), working_vector(m, scores)
    changed = np.empty(last - first, np.int64)
    n_changed = 0
    value = 0.0
    tiny = np.sqrt(np.finfo(scores.dtype).tiny)
    for i in range(first, last):
        correct_scores(scores, gram, delta, changed, n_changed, i)
        label, cost, norm = labels[i], costs[i], gram[i, i]
        delta_cost = label_cost[label]
        total = dtype(0)
        x[:] = 0
        if cost > 0:
            curvature = dtype(norm + gamma / cost)
            scale = dtype(1 / curvature) if curvature > tiny else dtype(1)
            _margins(scores[i], dual[i], norm, delta_cost, label, scale, b)
            if curvature > tiny:
                rho = dtype(1) if smoothing == MOREAU else dtype(norm / curvature)
                total = project_bounded_simplex(b, cost, rho, x)
            else:
                total = _fill_largest(b, cost, x)
            value += _dual_term(x, total, delta_cost, cost, gamma, smoothing)
        if negate_and_difference(x, total, label, dual[i], delta[i]) > 0:
            changed[n_changed] = i
            n_changed += 1
    return value


@njit(cache=True, nogil=True, error_model="numpy")
def structured_values(scores, labels, label_cost, gamma, smoothing, out):
    """Write the loss of every row into out (n_rows,), float64."""
    m = scores.shape[1]
    one = scores.dtype.type(1)
    zeros = np.zeros(m, scores.dtype)
    h, x = working_vector(m, scores), working_vector(m, scores)
    for i in range(scores.shape[0]):
        label = labels[i]
        _margins(scores[i], zeros, one, label_cost[label], label, one, h)
        if gamma == 0:
            out[i] = max(0.0, float(largest_entry(h)))
            continue
        rho = one if smoothing == MOREAU else scores.dtype.type(0)
        total = float(project_bounded_simplex(h, gamma, rho, x))
        h[label] = 0
        product = float(dot_minus_half_square(h, x))
        if smoothing == MOREAU:
            product -= 0.5 * total * total
        out[i] = product / gamma


@njit(cache=True, nogil=True, error_model="numpy")
def structured_gradients(scores, labels, label_cost, gamma, smoothing, out):
    """Write the gradient of the smoothed loss at every row into out (n_rows, m), gamma > 0."""
    m = scores.shape[1]
    one = scores.dtype.type(1)
    zeros = np.zeros(m, scores.dtype)
    h = working_vector(m, scores)
    for i in range(scores.shape[0]):
        label = labels[i]
        _margins(scores[i], zeros, one, label_cost[label], label, one, h)
        rho = one if smoothing == MOREAU else scores.dtype.type(0)
        total = project_bounded_simplex(h, gamma, rho, out[i])
        out[i] /= gamma
        out[i, label] = -total / gamma


@njit(cache=True, nogil=True, error_model="numpy")
def feasible_structured_duals(dual, labels, costs, label_cost, gamma, smoothing, values):
    """Put dual rows onto their domain, in place, and write D_i of each into values (n_rows,)."""
    m = dual.shape[1]
    b, x = working_vector(m, dual), working_vector(m, dual)
    for i in range(dual.shape[0]):
        label = labels[i]
        if costs[i] == 0:
            dual[i] = 0
            values[i] = 0.0
            continue
        for j in range(m):
            b[j] = -dual[i, j]
        b[label] = -np.inf
        total = project_bounded_simplex(b, costs[i], dual.dtype.type(0), x)
        values[i] = _dual_term(x, total, label_cost[label], costs[i], gamma, smoothing)
        for j in range(m):
            dual[i, j] = -x[j]
        dual[i, label] = total
