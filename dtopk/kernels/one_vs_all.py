"""Values, gradients and exact dual updates of the one-vs-all losses, row by row.

Each class is a binary problem of its own. With ``z_j = 1`` for the labels of a row and -1 for the
other classes a loss is ``sum_j l(z_j u_j)``, and ``D_i`` is a sum over the classes too: a dual row
is ``a_j = z_j beta_j`` with ``0 <= beta_j <= C`` [1]_ [2]_.

Labels come as sets: row i has ``indices[indptr[i]:indptr[i + 1]]``, any number of them. Loops over
all classes take none for a label, and what they wrote for the labels is turned around after.

References
----------
.. [1] Shalev-Shwartz, Zhang. Stochastic Dual Coordinate Ascent Methods for Regularized Loss
   Minimization. JMLR 2013.
.. [2] Lapin, Hein, Schiele. Analysis and Optimization of Loss Functions for Multiclass, Top-k,
   and Multilabel Classification. PAMI 2017.
"""

import math

import numpy as np
from numba import njit

from dtopk.kernels.corrections import correct_scores
from dtopk.kernels.elementary import fast_exp
from dtopk.kernels.projections import FASTMATH
from dtopk.kernels.workspace import working_vector

_FINITE = FASTMATH | {"nnan"}
_MAX_SWEEPS = 60
# The cube of the last step, over twelve, is the error that it leaves: half a rounding.
_CLOSE32, _CLOSE64 = 9e-3, 1e-5
# Up to this K C two bounds of the logistic root are close to it.
_SMALL_CURVATURE = 4.0
# Above this log-odds a tangent is.
_TANGENT_RANGE = -1.2
# Below, e**w is zero: the smallest numbers are slow to compute with.
_LOWEST32, _LOWEST64 = -80.0, -690.0
# A float32's bits are 2**23 (127 + log2 v), less a remainder of 0.086 at most, which this halves.
_LOG_SLOPE = np.float32(math.log(2.0) / 2.0**23)
_LOG_OFFSET = np.float32(math.log(2.0) * (127.0 - 0.043))


@njit(cache=True, forceinline=True, nogil=True, fastmath=FASTMATH, error_model="numpy")
def _flip(labels, r):
    for y in labels:
        r[y] = -r[y]


@njit(cache=True, forceinline=True, nogil=True, fastmath=FASTMATH, error_model="numpy")
def _negated_margins(scores, labels, r):
    """Write -z_j u_j into r, which may have another dtype."""
    for j in range(r.size):
        r[j] = scores[j]
    _flip(labels, r)


@njit(cache=True, forceinline=True, nogil=True, fastmath=FASTMATH, error_model="numpy")
def _negated_margins_without_row(scores, dual, norm, labels, r):
    """Write -z_j q_j into r with q = scores - norm * dual."""
    for j in range(r.size):
        r[j] = scores[j] - norm * dual[j]
    _flip(labels, r)


@njit(cache=True, forceinline=True, nogil=True, fastmath=FASTMATH, error_model="numpy")
def replace_row(x, old, delta):
    """Put x in place of a dual row, write the change, and return the sum of its sizes."""
    moved = x.dtype.type(0)
    for j in range(x.size):
        change = x[j] - old[j]
        delta[j] = change
        old[j] = x[j]
        moved += abs(change)
    return moved


@njit(cache=True, forceinline=True, nogil=True, fastmath=FASTMATH, error_model="numpy")
def _hinge_row(r, scale, cost, x):
    """Write -beta = -clip((1 + r) * scale, 0, C) into x; return sum beta and sum beta^2."""
    zero, one = r.dtype.type(0), r.dtype.type(1)
    total, squares = zero, zero
    for j in range(r.size):
        beta = min(max((one + r[j]) * scale, zero), cost)
        x[j] = -beta
        total += beta
        squares += beta * beta
    return total, squares


@njit(cache=True, nogil=True, error_model="numpy")
def update_rows_hinge_ova(scores, gram, dual, delta, indptr, indices, costs, gamma, first, last):
    """Maximise the dual over rows first to last of a block, each exactly and in order.

    Row i solves max_a D_i(a) - K/2 |a|^2 - <q, a> with ``q = scores - K a_old`` and
    ``K = gram[i, i]``: ``beta_j = clip((1 - z_j q_j) / (K + gamma/C), 0, C)``.

    Parameters
    ----------
    scores : ndarray of shape (n_rows, m), float32 or float64
        X W before any of rows first to last has changed; each row holds its exact scores after.
    gram : ndarray of shape (n_rows, n_rows), the dtype of scores
        X X', lower triangle and diagonal.
    dual, delta : ndarray of shape (n_rows, m), the dtype of scores
        The duals, updated in place, and their changes.
    indptr : ndarray of shape (n_rows + 1,), int64
    indices : ndarray of int32
        The labels, row by row.
    costs : ndarray of shape (n_rows,), the dtype of scores
        C times the row's weight.
    gamma : float, >= 0
    first, last : int

    Returns
    -------
    float
        sum_i D_i(a_i) over the rows, at their new duals.
    """
    m = scores.shape[1]
    f = scores.dtype.type
    r, x = working_vector(m, scores), working_vector(m, scores)
    changed = np.empty(last - first, np.int64)
    n_changed = 0
    value = 0.0
    # Without curvature beta is C or 0, by the sign of 1 + r: what dividing by next to nothing and
    # clipping comes to.
    tiny = np.sqrt(np.finfo(scores.dtype).tiny)
    for i in range(first, last):
        correct_scores(scores, gram, delta, changed, n_changed, i)
        cost, norm = costs[i], gram[i, i]
        if cost > 0:
            labels = indices[indptr[i] : indptr[i + 1]]
            _negated_margins_without_row(scores[i], dual[i], norm, labels, r)
            curvature = max(norm + gamma / cost, tiny)
            total, squares = _hinge_row(r, f(1 / curvature), cost, x)
            _flip(labels, x)
            value += float(total) - gamma / (2 * cost) * float(squares)
        else:
            x[:] = 0
        if replace_row(x, dual[i], delta[i]) > 0:
            changed[n_changed] = i
            n_changed += 1
    return value


@njit(cache=True, forceinline=True, nogil=True, fastmath=FASTMATH, error_model="numpy")
def _hinge_sum(r, gamma):
    """Return the sum of the losses l at margins -r."""
    total = 0.0
    if gamma == 0:
        for j in range(r.size):
            total += max(1.0 + r[j], 0.0)
        return total
    scale = 1.0 / gamma
    for j in range(r.size):
        h = 1.0 + r[j]
        beta = min(max(h * scale, 0.0), 1.0)
        total += beta * (h - 0.5 * gamma * beta)
    return total


@njit(cache=True, nogil=True, error_model="numpy")
def hinge_ova_values(scores, indptr, indices, gamma, out):
    """Write sum_j max(0, 1 - z_j u_j), or its smooth form, of every row into out, float64."""
    r = working_vector(scores.shape[1], out)
    for i in range(scores.shape[0]):
        _negated_margins(scores[i], indices[indptr[i] : indptr[i + 1]], r)
        out[i] = _hinge_sum(r, gamma)


@njit(cache=True, nogil=True, error_model="numpy")
def hinge_ova_gradients(scores, indptr, indices, gamma, out):
    """Write a gradient, or a subgradient where gamma is 0, of every row into out (n_rows, m)."""
    m = scores.shape[1]
    one = scores.dtype.type(1)
    r = working_vector(m, scores)
    for i in range(scores.shape[0]):
        labels = indices[indptr[i] : indptr[i + 1]]
        _negated_margins(scores[i], labels, r)
        for j in range(m):
            h = one + r[j]
            if gamma > 0:
                out[i, j] = min(max(h / gamma, 0), 1)
            else:
                out[i, j] = 1 if h > 0 else 0
        _flip(labels, out[i])


@njit(cache=True, forceinline=True, nogil=True, error_model="numpy")
def _clip_row(labels, cost, dual):
    """Put a dual row into 0 <= z_j a_j <= C."""
    _flip(labels, dual)
    for j in range(dual.size):
        dual[j] = max(min(dual[j], 0.0), -cost)
    _flip(labels, dual)


@njit(cache=True, nogil=True, error_model="numpy")
def feasible_hinge_ova_duals(dual, indptr, indices, costs, gamma, values):
    """Put dual rows onto their domain, in place, and write D_i of each into values (n_rows,).

    The domain is a box, and every entry goes to the nearest point of its interval.
    """
    for i in range(dual.shape[0]):
        _clip_row(indices[indptr[i] : indptr[i + 1]], costs[i], dual[i])
        total, squares = 0.0, 0.0
        for j in range(dual.shape[1]):
            beta = abs(dual[i, j])
            total += beta
            squares += beta * beta
        values[i] = total - gamma / (2 * costs[i]) * squares if costs[i] > 0 else 0.0


@njit(cache=True, forceinline=True, nogil=True, fastmath=FASTMATH, error_model="numpy")
def _log1p(y, like):
    """Return log(1 + y) for y in [0, 1], to a few units in the last place of the dtype of `like`.

    That is 2 atanh(z) with ``z = y / (2 + y)``, at most 1/3, by its series.
    """
    f = like.dtype.type
    terms = 7 if np.finfo(like.dtype).eps > 1e-10 else 16
    z = y / (f(2) + y)
    square = z * z
    total = f(0)
    for i in range(terms - 1, -1, -1):
        total = total * square + f(2.0 / (2 * i + 1))
    return total * z


@njit(cache=True, forceinline=True, nogil=True, error_model="numpy")
def _rough_log(bits):
    """Return log v to within 0.03, from the bits of a positive float32 v as int32."""
    return np.float32(bits) * _LOG_SLOPE - _LOG_OFFSET


@njit(cache=True, forceinline=True, nogil=True, fastmath=_FINITE, error_model="numpy")
def _bound_log_odds(r, al, w):
    """Write into w the smaller of two upper bounds of the roots of :func:`_refine_log_odds`.

    For w <= 0 the sigmoid is at least zero, and at least its tangent 1/2 + w/4.
    """
    f = r.dtype.type
    slope = f(1) / (f(1) + f(0.25) * al)
    for j in range(r.size):
        target = min(r[j], al - r[j])
        w[j] = min(target, (target - f(0.5) * al) * slope)


@njit(cache=True, forceinline=True, nogil=True, fastmath=_FINITE, error_model="numpy")
def _start_log_odds(r, al, log_al, first, second, w):
    """Write first guesses of the roots of :func:`_refine_log_odds` into w, for al above 4.

    They are within 0.4. Where the tangent of :func:`_bound_log_odds` is no use e**w stands for the
    sigmoid: ``v = al e**w`` is Lambert's function of the exponential of ``z = r + log al``,
    ``v + log v = z``. A parabola is close to it up to z = 2, and two rough logarithms give it
    above. `first` and `second` are float32 workspace.
    """
    f = r.dtype.type
    single = np.float32
    for j in range(r.size):
        first[j] = max(single(min(r[j], al - r[j]) + log_al), single(2))
    bits = first.view(np.int32)
    for j in range(r.size):
        log = _rough_log(bits[j])
        v = first[j] - log + log / first[j]
        second[j] = v / (single(al) - v)
    bits = second.view(np.int32)
    for j in range(r.size):
        target = min(r[j], al - r[j])
        z = single(target + log_al)
        root = single(0.25) * max(z + single(3), single(0))
        guess = f(_rough_log(bits[j])) if z > single(2) else target - f(root * root)
        w[j] = w[j] if w[j] > f(_TANGENT_RANGE) else min(w[j], guess)


@njit(cache=True, forceinline=True, nogil=True, fastmath=_FINITE, error_model="numpy")
def _refine_log_odds(r, al, w):
    """Bring w closer to the roots of ``w + al sigmoid(w) = min(r, al - r)`` by one Halley step.

    All are at most zero, where the left side is increasing and convex: from above the root a step
    of Newton's does not pass it. Returns the sum of the fourth powers of the moves.
    """
    f = r.dtype.type
    moved = f(0)
    for j in range(r.size):
        v = w[j]
        y = fast_exp(v)
        weight = f(1) + y
        part = al * y
        # The sides' difference, and its derivative, times weight and weight squared.
        excess = (v - min(r[j], al - r[j])) * weight + part
        slope = weight * weight + part
        square = slope * slope
        bend = f(0.5) * min(excess * part * (f(1) - y), square)
        next_w = min(v - weight * excess * slope / (square - bend), f(0))
        move = (next_w - v) * (next_w - v)
        moved += move * move
        w[j] = next_w
    return moved


@njit(cache=True, forceinline=True, nogil=True, error_model="numpy")
def solve_logistic_row(r, al, first, second, w):
    """Solve ``log(x / (1 - x)) + al x = r`` for each r, by the log-odds w of min(x, 1 - x).

    With x for 1 - x the equation has al - r for r: the smaller of the two always has a root of at
    most zero.

    Parameters
    ----------
    r : ndarray of shape (m,), float32 or float64
    al : float, >= 0
    first, second : ndarray of shape (m,), float32
        Workspace.
    w : ndarray of shape (m,), the dtype of r
        The solution. x is the smaller one of the two where ``r <= al / 2``.
    """
    al = r.dtype.type(al)
    close = r.dtype.type(_CLOSE32 if np.finfo(r.dtype).eps > 1e-10 else _CLOSE64)
    close *= close
    _bound_log_odds(r, al, w)
    if al > _SMALL_CURVATURE:
        _start_log_odds(r, al, r.dtype.type(math.log(al)), first, second, w)
    for _ in range(_MAX_SWEEPS):
        if _refine_log_odds(r, al, w) <= close * close:
            break


@njit(cache=True, forceinline=True, nogil=True, fastmath=_FINITE, error_model="numpy")
def _logistic_row(r, al, cost, w, x):
    """Write -beta = -C x of the solution w into x; return the sum of the entropies.

    The entropy of x and 1 - x is log(1 + e**w) - w x, with the smaller one for x.
    """
    f = r.dtype.type
    lowest = f(_LOWEST32) if np.finfo(r.dtype).eps > 1e-10 else f(_LOWEST64)
    half = f(0.5) * al
    total = f(0)
    for j in range(r.size):
        v = w[j]
        y = fast_exp(v) if v > lowest else f(0)
        larger = f(1) / (f(1) + y)
        smaller = y * larger
        total += _log1p(y, r) - smaller * v
        x[j] = -cost * (smaller if r[j] <= half else larger)
    return total


@njit(cache=True, nogil=True, error_model="numpy")
def update_rows_logistic_ova(scores, gram, dual, delta, indptr, indices, costs, first, last):
    """Maximise the dual over rows first to last of a block, each exactly and in order.

    With ``beta_j = C x_j`` class j of a row has ``log(x / (1 - x)) = -z_j q_j - K C x``. Arguments
    and result are those of :func:`update_rows_hinge_ova`, less gamma.
    """
    m = scores.shape[1]
    f = scores.dtype.type
    r, w, x = working_vector(m, scores), working_vector(m, scores), working_vector(m, scores)
    single = np.empty(0, np.float32)
    guess1, guess2 = working_vector(m, single), working_vector(m, single)
    changed = np.empty(last - first, np.int64)
    n_changed = 0
    value = 0.0
    for i in range(first, last):
        correct_scores(scores, gram, delta, changed, n_changed, i)
        cost, norm = costs[i], gram[i, i]
        if cost > 0:
            labels = indices[indptr[i] : indptr[i + 1]]
            _negated_margins_without_row(scores[i], dual[i], norm, labels, r)
            al = f(norm * cost)
            solve_logistic_row(r, al, guess1, guess2, w)
            value += float(cost) * float(_logistic_row(r, al, cost, w, x))
            _flip(labels, x)
        else:
            x[:] = 0
        if replace_row(x, dual[i], delta[i]) > 0:
            changed[n_changed] = i
            n_changed += 1
    return value


@njit(cache=True, forceinline=True, nogil=True, fastmath=_FINITE, error_model="numpy")
def _logistic_sum(r):
    """Return the sum of the losses log(1 + e**r)."""
    total = 0.0
    for j in range(r.size):
        total += max(r[j], 0.0) + _log1p(fast_exp(-abs(r[j])), r)
    return total


@njit(cache=True, nogil=True, error_model="numpy")
def logistic_ova_values(scores, indptr, indices, out):
    """Write sum_j log(1 + exp(-z_j u_j)) of every row into out (n_rows,), float64."""
    r = working_vector(scores.shape[1], out)
    for i in range(scores.shape[0]):
        _negated_margins(scores[i], indices[indptr[i] : indptr[i + 1]], r)
        out[i] = _logistic_sum(r)


@njit(cache=True, forceinline=True, nogil=True, fastmath=_FINITE, error_model="numpy")
def _sigmoids(r, out):
    f = r.dtype.type
    for j in range(r.size):
        y = fast_exp(-abs(r[j]))
        larger = f(1) / (f(1) + y)
        out[j] = y * larger if r[j] < 0 else larger


@njit(cache=True, nogil=True, error_model="numpy")
def logistic_ova_gradients(scores, indptr, indices, out):
    """Write the gradient -z_j / (1 + exp(z_j u_j)) of every row into out (n_rows, m)."""
    r = working_vector(scores.shape[1], scores)
    for i in range(scores.shape[0]):
        labels = indices[indptr[i] : indptr[i + 1]]
        _negated_margins(scores[i], labels, r)
        _sigmoids(r, out[i])
        _flip(labels, out[i])


@njit(cache=True, nogil=True, error_model="numpy")
def feasible_logistic_ova_duals(dual, indptr, indices, costs, values):
    """Put dual rows onto their domain, in place, and write D_i of each into values (n_rows,).

    D_i is C times the sum of the entropies of ``beta_j / C`` and what it leaves to one. The domain
    is that of the hinge.
    """
    for i in range(dual.shape[0]):
        cost = costs[i]
        _clip_row(indices[indptr[i] : indptr[i + 1]], cost, dual[i])
        entropy = 0.0
        if cost > 0:
            for j in range(dual.shape[1]):
                x = min(abs(dual[i, j]) / cost, 1.0)
                if 0 < x < 1:
                    entropy -= x * math.log(x) + (1 - x) * math.log1p(-x)
        values[i] = cost * entropy
