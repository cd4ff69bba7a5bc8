"""Values, gradients and exact dual updates of the multilabel hinge and softmax, row by row.

Both compare the labels Y of a row with the other classes, so that a dual row sums to zero, and
both need a class on either side. Row i has the labels ``indices[indptr[i]:indptr[i + 1]]``.

References
----------
.. [1] Lapin, Hein, Schiele. Analysis and Optimization of Loss Functions for Multiclass, Top-k,
   and Multilabel Classification. PAMI 2017.
"""

import math

import numpy as np
from numba import njit

from dtopk.kernels.bipartite import project_bipartite
from dtopk.kernels.corrections import correct_scores
from dtopk.kernels.elementary import fast_exp
from dtopk.kernels.hinge import dot_minus_half_square, sum_of_squares
from dtopk.kernels.one_vs_all import replace_row
from dtopk.kernels.projections import FASTMATH, largest_entry, project_simplex
from dtopk.kernels.softmax import solve_softmax_row
from dtopk.kernels.workspace import working_vector


@njit(cache=True, forceinline=True, nogil=True, fastmath=FASTMATH, error_model="numpy")
def _scores_without_row(scores, dual, norm, q):
    for j in range(q.size):
        q[j] = scores[j] - norm * dual[j]


@njit(cache=True, forceinline=True, nogil=True, fastmath=FASTMATH, error_model="numpy")
def _shift_and_scale(b, shift, scale):
    for j in range(b.size):
        b[j] = (b[j] - shift) * scale


@njit(cache=True, forceinline=True, nogil=True, error_model="numpy")
def _split(q, labels, own):
    """Write -q of the labels into own, put -inf in their place, and return the largest of each."""
    highest_own = q.dtype.type(-np.inf)
    for i in range(labels.size):
        own[i] = -q[labels[i]]
        q[labels[i]] = -np.inf
        highest_own = max(highest_own, own[i])
    return highest_own, largest_entry(q)


@njit(cache=True, forceinline=True, nogil=True, error_model="numpy")
def _project_row(q, labels, scale, radius, own, p, n):
    """Project scale (1/2 - q) of the labels, scale (1/2 + q) of the others on B(radius).

    Leaves in own and q the entries less the largest of them, as :func:`project_bipartite` takes
    them, and -inf in q at the labels. Returns the sum of p and the sum of the two largest entries.
    """
    highest_own, highest = _split(q, labels, own)
    height = (q.dtype.type(1) + (highest + highest_own)) * scale
    if not height > 0:
        p[:] = 0
        n[:] = 0
        return q.dtype.type(0), height
    _shift_and_scale(own, highest_own, scale)
    _shift_and_scale(q, highest, scale)
    return project_bipartite(own, q, height, radius, p, n), height


@njit(cache=True, forceinline=True, nogil=True, error_model="numpy")
def _choose_pair(q, labels, radius, own, p, n):
    """Put the radius on the lowest label and the highest other class if they break the margin."""
    highest_own, highest = _split(q, labels, own)
    p[:] = 0
    n[:] = 0
    if not q.dtype.type(1) + (highest + highest_own) > 0:
        return q.dtype.type(0)
    p[np.argmax(own)] = radius
    n[np.argmax(q)] = radius
    return q.dtype.type(radius)


@njit(cache=True, forceinline=True, nogil=True, fastmath=FASTMATH, error_model="numpy")
def _negate(x):
    for j in range(x.size):
        x[j] = -x[j]


@njit(cache=True, nogil=True, error_model="numpy")
def update_rows_multilabel_hinge(
    scores, gram, dual, delta, indptr, indices, costs, gamma, first, last
):
    """Maximise the dual over rows first to last of a block, each exactly and in order.

    The dual row is p on the labels and -n on the others, where (p, n) is the projection of
    ``(1/2 - q_Y, 1/2 + q_others) / (K + gamma/C)`` on the bipartite simplex of radius C [1]_.
    Arguments and result are those of :func:`dtopk.kernels.one_vs_all.update_rows_hinge_ova`.
    """
    m = scores.shape[1]
    f = scores.dtype.type
    q, x = working_vector(m, scores), working_vector(m, scores)
    all_own, all_p = working_vector(m, scores), working_vector(m, scores)
    changed = np.empty(last - first, np.int64)
    n_changed = 0
    value = 0.0
    tiny = np.sqrt(np.finfo(scores.dtype).tiny)
    for i in range(first, last):
        correct_scores(scores, gram, delta, changed, n_changed, i)
        cost, norm = costs[i], gram[i, i]
        if cost > 0:
            labels = indices[indptr[i] : indptr[i + 1]]
            own, p = all_own[: labels.size], all_p[: labels.size]
            _scores_without_row(scores[i], dual[i], norm, q)
            curvature = norm + gamma / cost
            if curvature > tiny:
                total, _ = _project_row(q, labels, f(1 / curvature), cost, own, p, x)
            else:
                total = _choose_pair(q, labels, cost, own, p, x)
            squares = float(sum_of_squares(p)) + float(sum_of_squares(x))
            value += float(total) - gamma / (2 * cost) * squares
            _negate(x)
            for j in range(labels.size):
                x[labels[j]] = p[j]
        else:
            x[:] = 0
        if replace_row(x, dual[i], delta[i]) > 0:
            changed[n_changed] = i
            n_changed += 1
    return value


@njit(cache=True, nogil=True, error_model="numpy")
def multilabel_hinge_values(scores, indptr, indices, gamma, out):
    """Write max(0, 1 + max_{not Y} u - min_Y u), or its smooth form, of every row into out."""
    m = scores.shape[1]
    one = scores.dtype.type(1)
    q, n = working_vector(m, scores), working_vector(m, scores)
    all_own, all_p = working_vector(m, scores), working_vector(m, scores)
    for i in range(scores.shape[0]):
        labels = indices[indptr[i] : indptr[i + 1]]
        own, p = all_own[: labels.size], all_p[: labels.size]
        q[:] = scores[i]
        if gamma == 0:
            highest_own, highest = _split(q, labels, own)
            out[i] = max(0.0, 1.0 + (float(highest) + float(highest_own)))
            continue
        total, height = _project_row(q, labels, one, gamma, own, p, n)
        # The labels are outside of q, and -inf times their zeros would be NaN.
        for y in labels:
            q[y] = 0
        product = float(dot_minus_half_square(own, p)) + float(dot_minus_half_square(q, n))
        if total > 0:
            product += float(height) * float(total)
        out[i] = product / gamma


@njit(cache=True, nogil=True, error_model="numpy")
def multilabel_hinge_gradients(scores, indptr, indices, gamma, out):
    """Write a gradient, or a subgradient where gamma is 0, of every row into out (n_rows, m)."""
    m = scores.shape[1]
    one = scores.dtype.type(1)
    q = working_vector(m, scores)
    all_own, all_p = working_vector(m, scores), working_vector(m, scores)
    for i in range(scores.shape[0]):
        labels = indices[indptr[i] : indptr[i + 1]]
        own, p = all_own[: labels.size], all_p[: labels.size]
        q[:] = scores[i]
        if gamma == 0:
            _choose_pair(q, labels, one, own, p, out[i])
        else:
            _project_row(q, labels, one, gamma, own, p, out[i])
            out[i] /= gamma
            p /= gamma
        for j in range(labels.size):
            out[i, labels[j]] = -p[j]


@njit(cache=True, nogil=True, error_model="numpy")
def feasible_multilabel_hinge_duals(dual, indptr, indices, costs, gamma, values):
    """Put dual rows onto their domain, in place, and write D_i of each into values (n_rows,).

    Entries of the wrong sign become zero, and the side of the larger sum is scaled down to the
    other one's, or both to C: a row that is in the domain but for rounding hardly moves.
    """
    all_p = working_vector(dual.shape[1], dual)
    for i in range(dual.shape[0]):
        cost = costs[i]
        if cost == 0:
            dual[i] = 0
            values[i] = 0.0
            continue
        labels = indices[indptr[i] : indptr[i + 1]]
        p = all_p[: labels.size]
        total_own, total = 0.0, 0.0
        for j in range(labels.size):
            p[j] = max(dual[i, labels[j]], 0.0)
            total_own += p[j]
            dual[i, labels[j]] = 0
        for j in range(dual.shape[1]):
            dual[i, j] = min(dual[i, j], 0.0)
            total -= dual[i, j]
        radius = min(cost, total, total_own)
        if radius > 0:
            p *= radius / total_own
            dual[i] *= radius / total
        else:
            p[:] = 0
            dual[i] = 0
        for j in range(labels.size):
            dual[i, labels[j]] = p[j]
        values[i] = radius - gamma / (2 * cost) * float(sum_of_squares(dual[i]))


@njit(cache=True, forceinline=True, nogil=True, fastmath=FASTMATH, error_model="numpy")
def _start_row(scores, dual, norm, share, labels, b, w):
    """Write b = q + K C/k 1_Y and w = K C p of the old dual, for a share of K C/k.

    Returns whether the old dual is one to start from: at zero p is 1/k on the labels.
    """
    zero = b.dtype.type(0)
    for j in range(b.size):
        own = norm * dual[j]
        b[j] = scores[j] - own
        w[j] = max(-own, zero)
    warm = False
    for y in labels:
        b[y] += share
        w[y] = max(share - norm * dual[y], zero)
        warm |= dual[y] != 0
    return warm


@njit(cache=True, forceinline=True, nogil=True, fastmath=FASTMATH, error_model="numpy")
def _exponentials(u, top, e):
    """Write exp(u - top) into e and return its sum."""
    total = u.dtype.type(0)
    for j in range(u.size):
        v = fast_exp(u[j] - top)
        e[j] = v
        total += v
    return total


@njit(cache=True, forceinline=True, nogil=True, fastmath=FASTMATH, error_model="numpy")
def _moment(b, w, t, curved):
    """Return sum_j w_j (b_j - t - curved w_j), the sum of w log w but for a constant."""
    total = b.dtype.type(0)
    for j in range(b.size):
        total += w[j] * ((b[j] - t) - curved * w[j])
    return total


@njit(cache=True, forceinline=True, nogil=True, error_model="numpy")
def _negative_entropy(p):
    return p * math.log(p) if p > 0 else 0.0


@njit(cache=True, forceinline=True, nogil=True, error_model="numpy")
def _entropy(w, total):
    """Return -sum p log p of the distribution p = w / total."""
    entropy = 0.0
    for v in w:
        entropy -= _negative_entropy(float(v) / total)
    return entropy


@njit(cache=True, forceinline=True, nogil=True, fastmath=FASTMATH, error_model="numpy")
def _negate_and_scale(w, factor):
    """Turn w into -factor w and return the sum of factor w."""
    total = w.dtype.type(0)
    for j in range(w.size):
        v = factor * w[j]
        w[j] = -v
        total += v
    return total


@njit(cache=True, forceinline=True, nogil=True, error_model="numpy")
def _turn_into_dual(w, factor, cost, labels, own):
    """Turn masses w into the dual row ``C/k 1_Y - factor w``, which sums to zero.

    What rounding leaves of its sum is taken off the labels. It comes from the threshold, whose
    error moves an entry by ``w / (1 + w)`` times as much: where w is large this brings back
    digits that the subtraction from C/k has lost.
    """
    f = w.dtype.type
    for j in range(labels.size):
        own[j] = w[labels[j]]
        w[labels[j]] = 0
    rest = _negate_and_scale(w, factor)
    share = f(cost / labels.size)
    total, weight = f(0), f(0)
    for mass in own:
        total += share - factor * mass
        weight += mass / (f(1) + mass)
    correction = (rest - total) / weight if weight > 0 else f(0)
    for j in range(labels.size):
        a = share - factor * own[j] + correction * (own[j] / (f(1) + own[j]))
        w[labels[j]] = min(a, share)


@njit(cache=True, nogil=True, error_model="numpy")
def update_rows_multilabel_softmax(scores, gram, dual, delta, indptr, indices, costs, first, last):
    """Maximise the dual over rows first to last of a block, each exactly and in order.

    In the distribution ``p = 1_Y/k - a/C``, with ``al = K C`` and ``b = q + al/k 1_Y``, that is
    the problem of the softmax loss: ``p_j = V(b_j - t)/al`` for the t that makes p sum to one.
    Arguments and result are those of :func:`dtopk.kernels.one_vs_all.update_rows_hinge_ova`, less
    gamma.
    """
    m = scores.shape[1]
    f = scores.dtype.type
    b, w, all_own = working_vector(m, scores), working_vector(m, scores), working_vector(m, scores)
    changed = np.empty(last - first, np.int64)
    n_changed = 0
    value = 0.0
    eps = np.finfo(scores.dtype).eps
    for i in range(first, last):
        correct_scores(scores, gram, delta, changed, n_changed, i)
        cost, norm = costs[i], gram[i, i]
        if cost > 0:
            labels = indices[indptr[i] : indptr[i + 1]]
            al = norm * cost
            warm = _start_row(scores[i], dual[i], norm, f(al / labels.size), labels, b, w)
            _shift_and_scale(b, largest_entry(b), f(1))
            if al * eps > 1:
                # Beside al the logarithm of w is less than rounding, and V(b - t) is (b - t)+.
                project_simplex(b, f(al), w)
                factor = f(cost / al)
                value += cost * _entropy(w, al)
            elif al > eps:
                t = solve_softmax_row(b, al, f(0), warm, w)
                factor = f(cost / al)
                # log p_j = b_j - t - w_j - log al, and p sums to one.
                value += cost * (math.log(al) - _moment(b, w, f(t), f(1)) / al)
            else:
                # Without curvature the optimum is the softmax of the scores.
                total = _exponentials(b, f(0), w)
                factor = f(cost / total)
                value += cost * (math.log(total) - _moment(b, w, f(0), f(0)) / total)
            _turn_into_dual(w, factor, cost, labels, all_own[: labels.size])
        else:
            w[:] = 0
        if replace_row(w, dual[i], delta[i]) > 0:
            changed[n_changed] = i
            n_changed += 1
    return value


@njit(cache=True, nogil=True, error_model="numpy")
def multilabel_softmax_values(scores, indptr, indices, out):
    """Write logsumexp(u) - mean_Y u of every row into out (n_rows,), float64."""
    e = working_vector(scores.shape[1], scores)
    for i in range(scores.shape[0]):
        labels = indices[indptr[i] : indptr[i + 1]]
        top = largest_entry(scores[i])
        total = _exponentials(scores[i], top, e)
        below = 0.0
        for y in labels:
            below += float(top) - float(scores[i, y])
        # A row that does not count may have no labels, and a cost of zero times NaN is NaN.
        out[i] = math.log(total) + below / max(labels.size, 1)


@njit(cache=True, nogil=True, error_model="numpy")
def multilabel_softmax_gradients(scores, indptr, indices, out):
    """Write the gradient p - 1_Y/k of every row into out (n_rows, m)."""
    for i in range(scores.shape[0]):
        labels = indices[indptr[i] : indptr[i + 1]]
        total = _exponentials(scores[i], largest_entry(scores[i]), out[i])
        out[i] /= total
        for y in labels:
            out[i, y] -= 1 / labels.size


@njit(cache=True, nogil=True, error_model="numpy")
def feasible_multilabel_softmax_duals(dual, indptr, indices, costs, values):
    """Put dual rows onto their domain, in place, and write D_i of each into values (n_rows,).

    D_i = -C sum_j p_j log p_j with ``p = 1_Y/k - a/C``. Its entries are clipped at zero, those of
    the other classes are scaled down where they exceed one, and the labels share what they leave.
    """
    m = dual.shape[1]
    all_p = working_vector(m, dual)
    for i in range(dual.shape[0]):
        cost = costs[i]
        if cost == 0:
            dual[i] = 0
            values[i] = 0.0
            continue
        labels = indices[indptr[i] : indptr[i + 1]]
        p = all_p[: labels.size]
        share = 1.0 / labels.size
        total_own, total = 0.0, 0.0
        for j in range(labels.size):
            p[j] = max(share - dual[i, labels[j]] / cost, 0.0)
            total_own += p[j]
            dual[i, labels[j]] = 0
        for j in range(m):
            dual[i, j] = min(dual[i, j], 0.0)
            total -= dual[i, j]
        if total > cost:
            dual[i] *= cost / total
            total = cost
        left = 1 - total / cost
        entropy = 0.0
        for j in range(m):
            entropy += _negative_entropy(-dual[i, j] / cost)
        for j in range(labels.size):
            own = p[j] * (left / total_own) if total_own > 0 else left * share
            entropy += _negative_entropy(own)
            dual[i, labels[j]] = cost * (share - own)
        values[i] = -cost * entropy
