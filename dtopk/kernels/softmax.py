"""Values, gradients and exact dual updates of the softmax loss, row by row.

Every update is written in the distribution ``p = e_y - a/C`` over all classes. With
``al = K C`` and ``b = q + al e_y`` its optimum is ``p_j = V(b_j - t)/al``, where V is Lambert's
function of the exponential, ``V(z) + log V(z) = z``, and t makes p sum to one [1]_.

References
----------
.. [1] Lapin, Hein, Schiele. Loss Functions for Top-k Error: Analysis and Insights. CVPR 2016.
"""

import math

import numpy as np
from numba import njit

from dtopk.kernels.corrections import correct_scores
from dtopk.kernels.elementary import fast_exp
from dtopk.kernels.projections import FASTMATH, largest_entry
from dtopk.kernels.workspace import working_vector

_MAX_SWEEPS = 60
# A guess that has not led to the solution by then is dropped for a fresh start.
_MAX_WARM_SWEEPS = 8
# e**(z - w), which is w at the solution, is cut off here: 24 times its fourth power is still
# finite, and a Householder step from further away moves w by about 4 whatever the exact value.
_MAX_GAP32, _MAX_GAP64 = 21.0, 170.0


@njit(cache=True, forceinline=True, nogil=True, fastmath=FASTMATH, error_model="numpy")
def start_lambert(b, t, w):
    """Write a first guess of V(b - t) into w, within a few units of it for b - t up to 1e4."""
    f = b.dtype.type
    for j in range(b.size):
        z = b[j] - t
        small = fast_exp(min(z, f(0)))
        middle = f(1) + (z - f(1)) * f(0.5) + (z - f(1)) * (z - f(1)) * f(0.0625)
        # z - log z, with a root in the logarithm's place, which vectorises.
        positive = max(z, f(2))
        large = positive - min(f(2) * math.sqrt(math.sqrt(positive)) - f(2), f(10))
        w[j] = small if z < f(-1) else (middle if z < f(2) else large)


@njit(cache=True, forceinline=True, nogil=True, fastmath=FASTMATH, error_model="numpy")
def refine_lambert(b, t, w):
    """Bring w closer to V(b - t) by one Householder step of order five.

    Its polynomials are divided by powers of 1 + e^(z - w), so that none of them overflows.
    Returns sum w, sum of the derivatives w/(1+w), and the sum of the moves' sizes.
    """
    f = b.dtype.type
    max_gap = f(_MAX_GAP32) if np.finfo(b.dtype).eps > 1e-10 else f(_MAX_GAP64)
    total, slope, moved = f(0), f(0), f(0)
    for j in range(b.size):
        v = w[j]
        y = fast_exp(min((b[j] - t) - v, max_gap))
        inverse = f(1) / (f(1) + y)
        e = y * inverse
        h = (v - y) * inverse
        he = h * e
        above = f(4) * h * (f(6) + (f(6) + h) * he)
        below = f(24) + he * (f(36) + h * (f(14) * e + h + f(8) * inverse))
        v = max(v - above / below, f(0))
        moved += abs(v - w[j])
        w[j] = v
        total += v
        slope += v / (f(1) + v)
    return total, slope, moved


@njit(cache=True, forceinline=True, nogil=True, error_model="numpy")
def _threshold_step(total, slope, al):
    """Return how far t must move for the sum of V to reach al, taking the sum for one V.

    One V at w moves to w' when its argument moves by ``w' - w + log(w'/w)``; the effective w of
    the sum is what its derivative says. The step is exact where all the mass is on one class and
    where all entries are tiny, the two ends between which Newton's own step slows down.
    """
    ratio = total / al
    effective = total / slope - 1
    return effective * (1 - 1 / ratio) + math.log(ratio)


@njit(cache=True, forceinline=True, nogil=True, error_model="numpy")
def solve_softmax_row(b, al, top, warm, w):
    """Solve sum_j V(b_j - t) = al for w = V(b - t).

    Parameters
    ----------
    b : ndarray of shape (m,), float32 or float64
    al : float, > 0
    top : float
        The largest entry of b.
    warm : bool
        Whether w holds a guess of the solution.
    w : ndarray of shape (m,), the dtype of b
        Overwritten by the solution.

    Returns
    -------
    float
        The threshold t.
    """
    f = b.dtype.type
    al = f(al)
    # One entry alone would carry the whole mass here, so the root is at least this.
    lowest = f(top - al - math.log(al))
    if warm:
        t, solved = _iterate(b, al, _warm_threshold(b, al, w, lowest), lowest, _MAX_WARM_SWEEPS, w)
        if solved:
            return t
    start_lambert(b, lowest, w)
    t, _ = _iterate(b, al, lowest, lowest, _MAX_SWEEPS, w)
    return t


@njit(cache=True, forceinline=True, nogil=True, error_model="numpy")
def _iterate(b, al, t, lowest, max_sweeps, w):
    """Improve t and w = V(b - t) in turn; return t and whether both have settled."""
    f = b.dtype.type
    eps = np.finfo(b.dtype).eps
    # A step of order five leaves the fifth power of the move before it, relative to w where w is
    # small. A large w must come close itself: from far away each step moves it by 4 or so, which
    # beside a large al would look like rest.
    close = min(al * f(1e-3), f(0.1)) if eps > 1e-10 else min(al * f(1e-4), f(3e-3))
    close = min(close + 4 * eps * al, 2.0)
    for _ in range(max_sweeps):
        total, slope, moved = refine_lambert(b, t, w)
        if not total > f(1e-6) * al:
            return t, False
        step = _threshold_step(total, slope, al)
        if moved <= close and abs(step) <= 8 * eps * max(abs(t), f(1)):
            return t, True
        t_next = max(f(t + step), lowest)
        if moved <= al:
            follow_threshold(w, t_next - t)
        t = t_next
    return t, False


@njit(cache=True, forceinline=True, nogil=True, fastmath=FASTMATH, error_model="numpy")
def follow_threshold(w, step):
    """Move w = V(z) to first order to V(z - step)."""
    f = w.dtype.type
    for j in range(w.size):
        w[j] = max(w[j] - step * w[j] / (f(1) + w[j]), f(0))


@njit(cache=True, forceinline=True, nogil=True, error_model="numpy")
def _warm_threshold(b, al, w, lowest):
    """Guess t from the class with the most mass: w + log w = b - t holds for the old scores."""
    heaviest = 0
    half = al * b.dtype.type(0.5)
    for j in range(b.size):
        if w[j] > w[heaviest]:
            heaviest = j
            if w[j] > half:
                break
    return max(lowest, b.dtype.type(b[heaviest] - w[heaviest] - math.log(w[heaviest])))


@njit(cache=True, forceinline=True, nogil=True, fastmath=FASTMATH, error_model="numpy")
def _prepare_row(scores, dual, norm, cost, label, b, w):
    """Write b = q + K C e_y and w = K C p of the old dual."""
    factor = -norm
    for j in range(b.size):
        b[j] = scores[j] - norm * dual[j]
        w[j] = max(factor * dual[j], b.dtype.type(0))
    b[label] += norm * cost
    w[label] = max(norm * (cost - dual[label]), b.dtype.type(0))


@njit(cache=True, forceinline=True, nogil=True, fastmath=FASTMATH, error_model="numpy")
def shift_down(b, top):
    """Take top off every entry of b."""
    for j in range(b.size):
        b[j] -= top


@njit(cache=True, forceinline=True, nogil=True, fastmath=FASTMATH, error_model="numpy")
def _moment(b, w, t, curved):
    """Return sum_j w_j (b_j - t - curved w_j), the sum of w log w but for a constant.

    The threshold is taken off entry by entry: where K C is large so is t, and in the sum of a w
    that is not quite K C it would leave C (K C)^2 times the rounding.
    """
    total = b.dtype.type(0)
    for j in range(b.size):
        total += w[j] * ((b[j] - t) - curved * w[j])
    return total


@njit(cache=True, forceinline=True, nogil=True, fastmath=FASTMATH, error_model="numpy")
def _write_dual(w, factor, label, dual, delta):
    """Turn w into the new dual row -factor w, the label's entry minus the sum of the others.

    Returns the sum of the sizes of its changes.
    """
    f = w.dtype.type
    rest, moved = f(0), f(0)
    w[label] = f(0)
    for j in range(w.size):
        w[j] *= factor
        rest += w[j]
    w[label] = -rest
    for j in range(w.size):
        change = -w[j] - dual[j]
        delta[j] = change
        dual[j] = -w[j]
        moved += abs(change)
    return moved


@njit(cache=True, forceinline=True, nogil=True, fastmath=FASTMATH, error_model="numpy")
def _exponentials(u, top, e):
    """Write exp(u - top) into e and return its sum."""
    total = u.dtype.type(0)
    for j in range(u.size):
        v = fast_exp(u[j] - top)
        e[j] = v
        total += v
    return total


@njit(cache=True, nogil=True, error_model="numpy")
def update_rows_softmax(scores, gram, dual, delta, labels, costs, first, last):
    """Maximise the dual over rows first to last of a block, each exactly and in order.

    Arguments and result are those of :func:`dtopk.kernels.hinge.update_rows_hinge`, less the
    parameters of the hinge.
    """
    m = scores.shape[1]
    f = scores.dtype.type
    b, w = working_vector(m, scores), working_vector(m, scores)
    changed = np.empty(last - first, np.int64)
    n_changed = 0
    value = 0.0
    eps = np.finfo(scores.dtype).eps
    for i in range(first, last):
        correct_scores(scores, gram, delta, changed, n_changed, i)
        label, cost, norm = labels[i], costs[i], gram[i, i]
        _prepare_row(scores[i], dual[i], norm, cost, label, b, w)
        top = largest_entry(b)
        shift_down(b, top)
        al = norm * cost
        if cost == 0:
            w[:] = 0
            factor = f(0)
        elif al > eps:
            t = solve_softmax_row(b, al, f(0), dual[i, label] > 0, w)
            factor = f(cost / al)
            # log p_j = b_j - t - w_j - log al, and p sums to one.
            value += cost * (math.log(al) - _moment(b, w, f(t), f(1)) / al)
        else:
            # Without curvature the optimum is the softmax of the scores.
            total = _exponentials(b, f(0), w)
            factor = f(cost / total)
            value += cost * (math.log(total) - _moment(b, w, f(0), f(0)) / total)
        if _write_dual(w, factor, label, dual[i], delta[i]) > 0:
            changed[n_changed] = i
            n_changed += 1
    return value


@njit(cache=True, nogil=True, error_model="numpy")
def softmax_values(scores, labels, out):
    """Write log sum_j exp(u_j - u_y) of every row into out (n_rows,), float64."""
    e = working_vector(scores.shape[1], scores)
    for i in range(scores.shape[0]):
        top = largest_entry(scores[i])
        total = _exponentials(scores[i], top, e)
        out[i] = math.log(total) + (float(top) - float(scores[i, labels[i]]))


@njit(cache=True, nogil=True, error_model="numpy")
def softmax_gradients(scores, labels, out):
    """Write the gradient p - e_y of every row into out (n_rows, m)."""
    for i in range(scores.shape[0]):
        total = _exponentials(scores[i], largest_entry(scores[i]), out[i])
        out[i] /= total
        out[i, labels[i]] -= 1


@njit(cache=True, nogil=True, error_model="numpy")
def feasible_softmax_duals(dual, labels, costs, values):
    """Put dual rows onto their domain, in place, and write D_i of each into values (n_rows,).

    D_i = -C sum_j p_j log p_j with p = e_y - a/C. The masses of the other classes are clipped at
    zero, and scaled down where they exceed one; the label has what they leave.
    """
    m = dual.shape[1]
    for i in range(dual.shape[0]):
        label, cost = labels[i], costs[i]
        if cost == 0:
            dual[i] = 0
            values[i] = 0.0
            continue
        rest = 0.0
        for j in range(m):
            if j != label:
                dual[i, j] = min(dual[i, j], 0.0)
                rest -= dual[i, j]
        if rest > cost:
            dual[i] *= cost / rest
            rest = cost
        dual[i, label] = rest
        entropy = negative_entropy(1 - rest / cost)
        for j in range(m):
            if j != label:
                entropy += negative_entropy(-dual[i, j] / cost)
        values[i] = -cost * entropy


@njit(cache=True, forceinline=True, nogil=True, error_model="numpy")
def negative_entropy(p):
    """Return p log p, 0 at 0."""
    return p * math.log(p) if p > 0 else 0.0
