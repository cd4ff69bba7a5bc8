"""Values, gradients and exact dual updates of the top-k hinge losses, row by row.

Notation is that of :mod:`dtopk.losses.hinge`. ``lapin`` smoothing adds gamma/2 |x|^2 over the
other classes to the conjugate, ``moreau`` adds gamma/2 (|x|^2 + s^2), the label's own entry too.
"""

import numpy as np
from numba import njit

from dtopk.kernels.corrections import correct_scores
from dtopk.kernels.projections import ALPHA_INCL, BETA, FASTMATH, largest_entries, project_top_k
from dtopk.kernels.workspace import working_vector

LAPIN = 0
MOREAU = 1


@njit(cache=True, forceinline=True, nogil=True, fastmath=FASTMATH, error_model="numpy")
def negate_and_difference(x, total, label, old, delta):
    """Turn x into the new dual row in place of `old`; write the change; return sum |change|."""
    moved = x.dtype.type(0)
    x[label] = -total
    for j in range(x.size):
        change = -x[j] - old[j]
        delta[j] = change
        old[j] = -x[j]
        # A sum vectorises where a maximum does not.
        moved += abs(change)
    return moved


@njit(cache=True, forceinline=True, nogil=True, fastmath=FASTMATH, error_model="numpy")
def sum_of_squares(x):
    """Return |x|^2."""
    total = x.dtype.type(0)
    for j in range(x.size):
        total += x[j] * x[j]
    return total


@njit(cache=True, forceinline=True, nogil=True, fastmath=FASTMATH, error_model="numpy")
def shifted_margins(scores, dual, norm, label, scale, b):
    """Write (1 + q_j - q_label) * scale into b with q = scores - norm * dual, -inf at the label."""
    offset = b.dtype.type(1) - (scores[label] - norm * dual[label])
    for j in range(b.size):
        b[j] = ((scores[j] - norm * dual[j]) + offset) * scale
    b[label] = -np.inf


@njit(cache=True, forceinline=True, nogil=True, error_model="numpy")
def _fill_top(b, k, radius, top, out):
    """Spread the radius over the k largest entries of b: the linear problem of a zero row."""
    largest_entries(b, k, top)
    out[:] = 0
    if top[0] <= 0:
        return b.dtype.type(0)
    left = k
    for j in range(b.size):
        if b[j] > top[k - 1]:
            out[j] = radius / k
            left -= 1
    for j in range(b.size):
        if b[j] == top[k - 1] and left > 0:
            out[j] = radius / k
            left -= 1
    return b.dtype.type(radius)


@njit(cache=True, nogil=True, error_model="numpy")
def update_rows_hinge(
    scores, gram, dual, delta, labels, costs, domain, k, gamma, smoothing, first, last
):
    """Maximise the dual over rows first to last of a block, each exactly and in order.

    Row i solves max_a D_i(a) - K/2 |a|^2 - <q, a> with ``q = scores - K a_old`` and
    ``K = gram[i, i]``: with a = (-x, s) that is the biased projection of
    ``b = (1 + q_o - q_y) / (K + gamma/C)`` onto the domain of radius C.

    Parameters
    ----------
    scores : ndarray of shape (n_rows, m), float32 or float64
        X W before any of rows first to last has changed; each row holds its exact scores after.
    gram : ndarray of shape (n_rows, n_rows), the dtype of scores
        X X', lower triangle and diagonal.
    dual, delta : ndarray of shape (n_rows, m), the dtype of scores
        The duals, updated in place, and their changes.
    labels : ndarray of shape (n_rows,), int32
    costs : ndarray of shape (n_rows,), the dtype of scores
        C times the row's weight.
    domain, k, gamma, smoothing
        As in :func:`dtopk.kernels.projections.project_top_k`; ``LAPIN`` or ``MOREAU``.
    first, last : int

    Returns
    -------
    float
        sum_i D_i(a_i) over the rows, at their new duals.
    """
    m = scores.shape[1]
    dtype = scores.dtype.type
    b, x = working_vector(m, scores), working_vector(m, scores)
    top = np.empty(k + 1, scores.dtype)
    changed = np.empty(last - first, np.int64)
    n_changed = 0
    value = 0.0
    tiny = np.sqrt(np.finfo(scores.dtype).tiny)
    for i in range(first, last):
        correct_scores(scores, gram, delta, changed, n_changed, i)
        label, cost, norm = labels[i], costs[i], gram[i, i]
        if cost == 0:
            x[:] = 0
            total = dtype(0)
        else:
            curvature = dtype(norm + gamma / cost)
            if curvature > tiny:
                shifted_margins(scores[i], dual[i], norm, label, dtype(1 / curvature), b)
                rho = dtype(1) if smoothing == MOREAU else dtype(norm / curvature)
                total = project_top_k(b, domain, k, cost, rho, top, x)
            else:
                shifted_margins(scores[i], dual[i], norm, label, dtype(1), b)
                total = _fill_top(b, k, cost, top, x)
            penalty = float(sum_of_squares(x))
            if smoothing == MOREAU:
                penalty += float(total) * total
            value += total - gamma / (2 * cost) * penalty
        if negate_and_difference(x, total, label, dual[i], delta[i]) > 0:
            changed[n_changed] = i
            n_changed += 1
    return value


@njit(cache=True, forceinline=True, nogil=True, error_model="numpy")
def _plain_value(h, domain, k, top):
    """Return the unsmoothed loss from the margins h, -inf at the label."""
    largest_entries(h, k, top)
    total, clipped = 0.0, 0.0
    for i in range(k - 1):
        total += top[i]
        clipped += max(top[i], 0)
    without_last = total
    total += top[k - 1]
    clipped += max(top[k - 1], 0)
    if domain == BETA:
        return clipped / k
    if domain == ALPHA_INCL:
        return max(0.0, total / k, without_last / k)
    return max(0.0, total / k)


@njit(cache=True, forceinline=True, nogil=True, fastmath=FASTMATH, error_model="numpy")
def dot_minus_half_square(h, x):
    """Return <h, x> - |x|^2 / 2."""
    half = h.dtype.type(0.5)
    total = h.dtype.type(0)
    for j in range(h.size):
        total += x[j] * (h[j] - half * x[j])
    return total


@njit(cache=True, forceinline=True, nogil=True, error_model="numpy")
def _smoothed_value(h, label, domain, k, gamma, smoothing, top, x):
    """Return the smoothed loss from the margins h, and the sum of x, gamma times its gradient."""
    rho = h.dtype.type(1) if smoothing == MOREAU else h.dtype.type(0)
    total = float(project_top_k(h, domain, k, gamma, rho, top, x))
    # The label is outside the problem, and -inf times its zero would be NaN.
    h[label] = 0
    product = float(dot_minus_half_square(h, x))
    if smoothing == MOREAU:
        product -= 0.5 * total * total
    return product / gamma, total


@njit(cache=True, nogil=True, error_model="numpy")
def hinge_values(scores, labels, domain, k, gamma, smoothing, out):
    """Write the loss of every row into out (n_rows,), float64."""
    m = scores.shape[1]
    h, x = working_vector(m, scores), working_vector(m, scores)
    top = np.empty(k + 1, scores.dtype)
    one = scores.dtype.type(1)
    for i in range(scores.shape[0]):
        margins(scores[i], labels[i], one, h)
        if gamma == 0:
            out[i] = _plain_value(h, domain, k, top)
        else:
            out[i], _ = _smoothed_value(h, labels[i], domain, k, gamma, smoothing, top, x)


@njit(cache=True, forceinline=True, nogil=True, fastmath=FASTMATH, error_model="numpy")
def margins(scores, label, one, h):
    """Write 1 + u_j - u_label into h, -inf at the label."""
    offset = one - scores[label]
    for j in range(h.size):
        h[j] = scores[j] + offset
    h[label] = -np.inf


@njit(cache=True, nogil=True, error_model="numpy")
def hinge_gradients(scores, labels, domain, k, gamma, smoothing, out):
    """Write the gradient of the smoothed loss at every row into out (n_rows, m), gamma > 0."""
    m = scores.shape[1]
    h, x = working_vector(m, scores), working_vector(m, scores)
    top = np.empty(k + 1, scores.dtype)
    one = scores.dtype.type(1)
    for i in range(scores.shape[0]):
        margins(scores[i], labels[i], one, h)
        _, total = _smoothed_value(h, labels[i], domain, k, gamma, smoothing, top, x)
        for j in range(m):
            out[i, j] = x[j] / gamma
        out[i, labels[i]] = -total / gamma


@njit(cache=True, nogil=True, error_model="numpy")
def feasible_hinge_duals(dual, labels, costs, domain, k, gamma, smoothing, values):
    """Put dual rows onto their domain, in place, and write D_i of each into values (n_rows,).

    The nearest point of the domain in the coordinates of the other classes is taken, and the
    label's entry is minus the sum of the others.
    """
    m = dual.shape[1]
    b, x = working_vector(m, dual), working_vector(m, dual)
    top = np.empty(k + 1, dual.dtype)
    for i in range(dual.shape[0]):
        label = labels[i]
        if costs[i] == 0:
            dual[i] = 0
            values[i] = 0.0
            continue
        for j in range(m):
            b[j] = -dual[i, j]
        b[label] = -np.inf
        total = project_top_k(b, domain, k, costs[i], dual.dtype.type(0), top, x)
        penalty = float(sum_of_squares(x))
        if smoothing == MOREAU:
            penalty += float(total) * total
        values[i] = total - gamma / (2 * costs[i]) * penalty
        for j in range(m):
            dual[i, j] = -x[j]
        dual[i, label] = total
