"""Values, gradients and exact dual updates of the top-k entropy losses, row by row.

With ``b_j = u_j - u_y`` of the classes other than y, and s for the sum of x, a loss is the
maximum of ``<b, x> - sum x_j log x_j - (1 - s) log(1 - s)`` over the domain ``ALPHA`` or ``BETA``
of radius one (:mod:`dtopk.kernels.projections`), and the maximiser its gradient [1]_. The exact
update takes ``al/2 (|x|^2 + s^2)``, al = K C, off what is maximised; then ``a = (-C x, C s)``.

At the maximum the u largest b are capped, at s/k (alpha) or 1/k (beta), and the other classes are
free: ``x_j = V(b_j - t)/al`` with the function V of :mod:`dtopk.kernels.softmax`, or e^(b_j - t)
where al is 0. Everything else follows from one number y, a log-odds. With rho = u/k and the
logistic function sigma

===========  ============================  =============================
part         alpha                         beta
===========  ============================  =============================
free mass    ``(1 - rho) sigma(y)``        ``(1 - rho) sigma(y)``
a cap        ``sigma(y) / k``              ``1 / k``
label        ``sigma(-y)``                 ``(1 - rho) sigma(-y)``
===========  ============================  =============================

Where al is 0, y is a known function of the sum of e^b over the free classes. Elsewhere that sum is
one of V, which is taken for a single V with its value and its derivative at the present t, and y
then solves ``y + beta sigma(y) = kappa``: a step that is exact in all but the spread of the free
classes' masses.

Scores are taken relative to the k-th largest of the others, which is never capped: free masses
depend on small differences of scores of any size.

References
----------
.. [1] Lapin, Hein, Schiele. Analysis and Optimization of Loss Functions for Multiclass, Top-k,
   and Multilabel Classification. PAMI 2017.
"""

import math

import numpy as np
from numba import njit

from dtopk.kernels.corrections import correct_scores
from dtopk.kernels.elementary import fast_exp
from dtopk.kernels.hinge import negate_and_difference
from dtopk.kernels.projections import ALPHA, BETA, FASTMATH, largest_entry, project_top_k
from dtopk.kernels.softmax import (
    follow_threshold,
    negative_entropy,
    refine_lambert,
    shift_down,
    start_lambert,
)
from dtopk.kernels.workspace import working_vector

_MAX_SWEEPS = 60
# A guess that has not led to the solution by then is dropped for a fresh start.
_MAX_WARM_SWEEPS = 8
# From then on the threshold is bisected, wherever it is known to lie between two.
_MAX_FREE_SWEEPS = 12
# By how much, in units of the threshold, such bounds may be off.
_BOUND_SLACK = 1e-3
# Masses follow a step of the threshold of this size to first order. A larger one they start afresh
# from, as what has vanished would not come back. The fresh masses are rough where they are large,
# and the step that this leads to may itself be large: each time the size is raised.
_FARTHEST, _FARTHER = 2.0, 8.0
_MAX_NEWTON = 40
# Below this K a_y there is so little curvature that the solution without it is the better guess.
_LEAST_WARM = 1e-2
# Masses of single precision are solved for in double above this K C: the powers of them in a
# Householder step would overflow.
_LARGEST_SINGLE = 1e6
# Up to this k the largest entries are kept by insertion; above it the vector is sorted.
_MAX_INSERTION = 128
_LANES = 16
_MAX_EXPONENT = 700.0
# A cap is kept to within rounding; a row that breaks it by no more is left as it is.
_CAP_SLACK = 8 * np.finfo(np.float64).eps

# Rows of the workspace, a float64 array of shape (6, k). Of the k largest scores in descending
# order: the scores relative to the k-th, the sums of those before over k, the values of V of all
# but the k-th, and these before they were refined. Then, for u = 0, ..., k - 1 capped classes, the
# sums of V and of its derivative over the free ones.
_TOP, _BEFORE_SUM, _MASS, _OLD_MASS, _FREE_SUM, _FREE_SLOPE = range(6)


@njit(cache=True, forceinline=True, nogil=True, error_model="numpy")
def _largest_places(v, k, top, places):
    """Write the k largest entries of v and where they are into top and places, largest first."""
    if k > _MAX_INSERTION:
        order = np.argsort(v)
        for i in range(k):
            places[i] = order[v.size - 1 - i]
            top[i] = v[places[i]]
        return
    top[:k] = -np.inf
    last = k - 1
    for start in range(0, v.size, _LANES):
        stop = min(start + _LANES, v.size)
        if largest_entry(v[start:stop]) <= top[last]:
            continue
        for j in range(start, stop):
            if v[j] <= top[last]:
                continue
            i = last
            while i > 0 and top[i - 1] < v[j]:
                top[i] = top[i - 1]
                places[i] = places[i - 1]
                i -= 1
            top[i] = v[j]
            places[i] = j


@njit(cache=True, forceinline=True, nogil=True, error_model="numpy")
def split_row(c, label, k, space, places):
    """Take the label's score and the k - 1 largest others out of the scores c.

    Their entries become -inf, and the rest is shifted to have its largest, the k-th, at 0. Fills
    the first two rows of the workspace, and the places of the k largest.

    Returns
    -------
    float
        The label's score, relative to the k-th largest.
    """
    top, before = space[_TOP], space[_BEFORE_SUM]
    own = float(c[label])
    c[label] = -np.inf
    _largest_places(c, k, top, places)
    kth = top[k - 1]
    total = 0.0
    for i in range(k):
        top[i] -= kth
        before[i] = total
        total += top[i] / k
        if i < k - 1:
            c[places[i]] = -np.inf
    shift_down(c, c.dtype.type(kth))
    return own - kth


@njit(cache=True, forceinline=True, nogil=True, error_model="numpy")
def _log_sigma(y):
    """Return the logarithm of 1/(1 + e^-y)."""
    return -math.log1p(math.exp(-y)) if y >= 0 else y - math.log1p(math.exp(y))


@njit(cache=True, forceinline=True, nogil=True, error_model="numpy")
def _guess_lambert(z):
    """Return V(z) to within 0.3, and closer where it is small."""
    if z < -1:
        return math.exp(z)
    return 1 + 0.5 * (z - 1) + 0.0625 * (z - 1) ** 2 if z < 2 else z - math.log(z)


@njit(cache=True, nogil=True, error_model="numpy")
def solve_log_odds(beta, kappa):
    """Solve y + beta sigma(y) = kappa for y, beta >= 0.

    With -y for y the equation keeps its form, so that y <= 0 may be assumed. There the left side
    is convex, and Newton's method descends to the root from any point right of it. It starts at
    the solution with e^y for sigma(y), which is a V, or near it.
    """
    flipped = kappa > 0.5 * beta
    if flipped:
        kappa = beta - kappa
    highest = min(kappa, 0.0)
    y = kappa
    if beta > 0:
        y -= _guess_lambert(kappa + math.log(beta))
    for _ in range(_MAX_NEWTON):
        e = math.exp(y)
        share = beta * e / (1 + e)
        step = (y + share - kappa) / (1 + share / (1 + e))
        y = min(y - step, highest)
        if abs(step) <= 1e-15 * max(1.0, abs(y)):
            break
    return -y if flipped else y


@njit(cache=True, forceinline=True, nogil=True, error_model="numpy")
def _uncurved_log_odds(own, domain, k, u, before, log_sum):
    """Return y where al is 0, from the logarithm of the sum of e^c over the free classes."""
    if domain == BETA:
        return log_sum - own
    rho = u / k
    return (1 - rho) * (log_sum - math.log(1 - rho)) + rho * math.log(k) + before - own


@njit(cache=True, forceinline=True, nogil=True, fastmath=FASTMATH, error_model="numpy")
def _exponentials(c, w):
    """Write e^c into w, c <= 0; return the sum and the sum of squares."""
    total, squares = c.dtype.type(0), c.dtype.type(0)
    for j in range(c.size):
        v = fast_exp(c[j])
        w[j] = v
        total += v
        squares += v * v
    return total, squares


@njit(cache=True, nogil=True, error_model="numpy")
def _solve_uncurved(c, own, domain, k, space, w):
    """Solve the problem where al is 0: x_j = e^(c_j - t) of the free classes.

    With S the sum of e^c over the free classes (and the label's, for beta), relative to the
    largest of them, this one keeps below its cap just if S is at least k - u. Should one u fail,
    so do all smaller ones.

    Parameters
    ----------
    c : ndarray of shape (m,), float32 or float64
        As :func:`split_row` leaves it.
    own : float
        The label's score.
    domain : int
        ``ALPHA`` or ``BETA``.
    k : int
    space : ndarray of shape (6, k), float64
        The workspace.
    w : ndarray of shape (m,), the dtype of c
        Receives e^c.

    Returns
    -------
    u : int
        How many classes are capped.
    y : float
        The log-odds.
    log_sum : float
        The logarithm of the sum of e^c over the free classes.
    squares : float
        The sum of the squares of their shares of that sum.
    """
    top = space[_TOP]
    total, squares = _exponentials(c, w)
    running, running_squares = float(total), float(squares)
    u, free, free_squares = k - 1, running, running_squares
    for i in range(k - 2, -1, -1):
        ratio = math.exp(top[i + 1] - top[i])
        running = 1 + ratio * running
        running_squares = 1 + ratio * ratio * running_squares
        with_label = running
        if domain == BETA:
            with_label += math.exp(min(own - top[i], _MAX_EXPONENT))
        if with_label < k - i:
            break
        u, free, free_squares = i, running, running_squares
    log_sum = top[u] + math.log(free)
    y = _uncurved_log_odds(own, domain, k, u, space[_BEFORE_SUM, u], log_sum)
    return u, y, log_sum, free_squares / free**2


@njit(cache=True, forceinline=True, nogil=True, error_model="numpy")
def _other_masses(domain, k, u, y):
    """Return the masses of all classes but the label together, and of the free ones, at al = 0."""
    sigma = math.exp(_log_sigma(y))
    free = (1 - u / k) * sigma
    return (u / k + free if domain == BETA else sigma), free


@njit(cache=True, forceinline=True, nogil=True, error_model="numpy")
def _first_threshold(al, domain, k, u, y, log_sum, squares):
    """Guess t from the solution at al = 0, and bound it from below.

    The guess takes the shares of the solution without curvature and lets the curvature shrink
    their sum s. Curvature never lets s grow, which bounds the mass of the k-th largest, whose
    score is 0.
    """
    total, free = _other_masses(domain, k, u, y)
    concentration = (free / total) ** 2 * squares
    if domain == BETA:
        concentration += u / (k * total) ** 2
        odds = math.log(total) - math.log1p(-u / k) - _log_sigma(-y)
    else:
        concentration += u / k**2
        odds = y
    log_shrunk = _log_sigma(solve_log_odds(al * (1 + concentration), odds))
    largest = al * min(total, 1 / k) if domain == BETA else al * total / k
    lowest = -largest - math.log(largest)
    log_mass = math.log(al * (1 - u / k) / total) + _log_sigma(y) - log_sum + log_shrunk
    return max(-math.exp(log_mass) - log_mass, lowest), lowest


@njit(cache=True, forceinline=True, nogil=True, error_model="numpy")
def _sum_free(total, slope, k, space):
    """Write the sums of V and its derivative over the free classes, for every u."""
    free, slopes, mass = space[_FREE_SUM], space[_FREE_SLOPE], space[_MASS]
    free[k - 1], slopes[k - 1] = total, slope
    for i in range(k - 2, -1, -1):
        free[i] = free[i + 1] + mass[i]
        slopes[i] = slopes[i + 1] + mass[i] / (1 + mass[i])


@njit(cache=True, nogil=True, error_model="numpy")
def _choose_capped(al, own, domain, k, t, u, space):
    """Find which classes are capped, and y, for the sums of V at the threshold t.

    With too few capped classes the largest of the free ones exceeds the cap, and with too many the
    smallest of the capped ones is worth less than it: a bisection that begins at the given u.

    Returns
    -------
    u : int
    y : float
    log_ratio : float
        The logarithm of what the sum over the free classes must be, over what it is.
    step : float
        How far t must move for that.
    effective : float
        The single V.
    """
    top, before = space[_TOP], space[_BEFORE_SUM]
    low, high = 0, k - 1
    while True:
        rho = u / k
        free = space[_FREE_SUM, u]
        # Of the single V: V/V' = 1 + V. It lies between the smallest and the largest of them.
        effective = min(max(free / space[_FREE_SLOPE, u] - 1, 0.0), free)
        log_free = math.log(free)
        y = _uncurved_log_odds(own, domain, k, u, before[u], t + effective + log_free)
        if domain == BETA:
            y = solve_log_odds(al * (1 - rho) * (1 + effective / free), y - al * rho)
            log_cap = math.log(al / k)
        else:
            y = solve_log_odds(al * (1 + rho / k + (1 - rho) ** 2 * effective / free), y)
            log_cap = math.log(al / k) + _log_sigma(y)
        log_ratio = math.log(al * (1 - rho)) + _log_sigma(y) - log_free
        step = effective * (1 - math.exp(min(log_ratio, _MAX_EXPONENT))) - log_ratio
        # V of a score above this one exceeds the cap.
        level = t + step + math.exp(log_cap) + log_cap
        if top[u] > level and u < high:
            low = u + 1
        elif u > low and top[u - 1] < level:
            high = u - 1
        else:
            return u, y, log_ratio, step, effective
        u = (low + high) // 2


@njit(cache=True, forceinline=True, nogil=True, error_model="numpy")
def _start_largest(t, k, space):
    """Guess V of the k - 1 largest, to within one refinement: which are capped rests on them."""
    for i in range(k - 1):
        space[_MASS, i] = _guess_lambert(space[_TOP, i] - t)


@njit(cache=True, forceinline=True, nogil=True, error_model="numpy")
def _refine_largest(t, k, u, space):
    """Refine V of the k - 1 largest; return the sum of the moves of those that are free."""
    mass, old = space[_MASS], space[_OLD_MASS]
    old[: k - 1] = mass[: k - 1]
    refine_lambert(space[_TOP, : k - 1], t, mass[: k - 1])
    moved = 0.0
    for i in range(u, k - 1):
        moved += abs(mass[i] - old[i])
    return moved


@njit(cache=True, forceinline=True, nogil=True, error_model="numpy")
def _bounded(t, step, low, high, sweep):
    """Return t + step, or the middle between two bounds where it leaves them or many have gone."""
    slack = _BOUND_SLACK * max(abs(t), 1.0)
    outside = t + step < low - slack or t + step > high + slack
    late = sweep >= _MAX_FREE_SWEEPS and high - low > slack
    return 0.5 * (low + high) if high < np.inf and (outside or late) else t + step


@njit(cache=True, nogil=True, error_model="numpy")
def _iterate(c, al, own, domain, k, u, t, lowest, max_sweeps, space, w):
    """Improve t and w, near V(c - t), in turn.

    Every sweep is one Householder step of w and one of t. Where w has come close enough for the
    sign of the latter to be certain, the former t bounds the solution, and steps that leave the
    bounds are replaced by bisections.

    Returns
    -------
    u : int
    y : float
    log_ratio : float
        As of :func:`_choose_capped`.
    t : float
        The threshold of w.
    solved : bool
        Whether all have settled.
    """
    f = c.dtype.type
    eps = np.finfo(c.dtype).eps
    share, most = (1e-3, 0.1) if eps > 1e-10 else (1e-4, 3e-3)
    low, high = lowest, np.inf
    y, log_ratio, last_step, farthest = 0.0, 0.0, np.inf, _FARTHEST
    _start_largest(t, k, space)
    for sweep in range(max_sweeps):
        total, slope, moved_rest = refine_lambert(c, f(t), w)
        moved = float(moved_rest) + _refine_largest(t, k, u, space)
        if not total > 0:
            return u, y, log_ratio, t, False
        _sum_free(float(total), float(slope), k, space)
        u, y, log_ratio, step, effective = _choose_capped(al, own, domain, k, t, u, space)
        free = space[_FREE_SUM, u]
        # The step that follows leaves the fifth power of a move, relative to w where w is small. A
        # large w must come close itself: from far away each step moves it by 4 or so.
        close = min(free * share, most) + 4 * eps * free
        rounding = 8 * eps * max(abs(t), effective, 1.0)
        at_rest = abs(step) <= 8 * rounding and abs(step) >= last_step
        if moved <= close and (abs(step) <= rounding or at_rest):
            return u, y, log_ratio, t, True
        if moved <= min(0.1 * free, 1.0):
            if step > 0:
                low = max(low, t)
            else:
                high = min(high, t)
        last_step = abs(step)
        t_next = float(f(max(_bounded(t, step, low, high, sweep), lowest)))
        if abs(t_next - t) > farthest:
            farthest *= _FARTHER
            start_lambert(c, f(t_next), w)
            _start_largest(t_next, k, space)
        elif moved <= free:
            follow_threshold(w, f(t_next - t))
            follow_threshold(space[_MASS, : k - 1], t_next - t)
        t = t_next
    return u, y, log_ratio, t, False


@njit(cache=True, forceinline=True, nogil=True, error_model="numpy")
def _warm_threshold(c, w):
    """Guess t from the heaviest of the rest: w + log w = c - t holds for the old scores."""
    heaviest = largest_entry(w)
    if heaviest <= 0:
        return np.inf
    j = 0
    while w[j] < heaviest:
        j += 1
    return float(c[j]) - float(heaviest) - math.log(float(heaviest))


@njit(cache=True, forceinline=True, nogil=True, fastmath=FASTMATH, error_model="numpy")
def _scale_rest(c, w, t, curved, factor):
    """Multiply w by factor; return its sum after, the sum before, and sum w log w before.

    The logarithm of w_j is c_j - t - curved w_j. The threshold is taken off entry by entry: where
    al is large so is t.
    """
    f = c.dtype.type
    after, before, moment = f(0), f(0), f(0)
    for j in range(c.size):
        v = w[j]
        moment += v * ((c[j] - t) - curved * v)
        before += v
        w[j] = v * factor
        after += w[j]
    return after, before, moment


@njit(cache=True, nogil=True, error_model="numpy")
def _write_masses(c, cost, label, domain, k, u, y, t, curved, log_scale, space, places, w):
    """Turn w into C x, 0 at the label, where x_j = e^log_scale w_j is the mass of a free class.

    Parameters
    ----------
    curved : float
        1 where w is V(c - t), 0 where it is e^c and t is 0.

    Returns
    -------
    total : float
        The sum of C x.
    entropy : float
        sum x log x + (1 - s) log(1 - s).
    """
    f = c.dtype.type
    rho, scale = u / k, math.exp(log_scale)
    log_cap, log_own = -math.log(k), _log_sigma(-y)
    if domain == BETA:
        log_own += math.log1p(-rho)
    else:
        log_cap += _log_sigma(y)
    cap = math.exp(log_cap)
    entropy = u * cap * log_cap + math.exp(log_own) * log_own
    c[label], w[label] = f(0), f(0)
    for i in range(k - 1):
        c[places[i]], w[places[i]] = f(0), f(0)
    after, before, moment = _scale_rest(c, w, f(t), f(curved), f(scale * cost))
    entropy += scale * (float(moment) + log_scale * float(before))
    total = float(after)
    for i in range(k - 1):
        x = cap
        if i >= u:
            free = scale * space[_MASS, i] if curved > 0 else math.exp(space[_TOP, i] + log_scale)
            x = min(free, cap)
            entropy += negative_entropy(x)
        w[places[i]] = f(cost * x)
        total += cost * x
    return total, entropy


@njit(cache=True, nogil=True, error_model="numpy")
def solve_entropy_row(c, al, cost, own, label, domain, k, warm, space, places, w):
    """Minimise al/2 (|x|^2 + s^2) - <b, x> + sum x log x + (1 - s) log(1 - s) over a domain.

    Parameters
    ----------
    c : ndarray of shape (m,), float32 or float64
        Scores as :func:`split_row` leaves them, b + own at the rest. Overwritten.
    al : float, >= 0
    cost : float, > 0
        What the solution is multiplied by.
    own : float
        The label's score.
    label : int
    domain : int
        ``ALPHA`` or ``BETA``.
    k : int, 1 <= k <= m - 1
    warm : bool
        Whether w holds a guess of al x.
    space : ndarray of shape (6, k), float64
    places : ndarray of shape (k,), int64
        As :func:`split_row` fills them.
    w : ndarray of shape (m,), the dtype of c
        Overwritten by cost times the solution, 0 at the label.

    Returns
    -------
    total : float
        cost times s.
    entropy : float
        sum x log x + (1 - s) log(1 - s).
    """
    f = c.dtype.type
    u, y, log_ratio, t, solved = 0, 0.0, 0.0, 0.0, False
    if warm:
        lowest = -al / k - math.log(al / k)
        t = float(f(max(_warm_threshold(c, w), lowest)))
        if t < np.inf:
            u, y, log_ratio, t, solved = _iterate(
                c, al, own, domain, k, u, t, lowest, _MAX_WARM_SWEEPS, space, w
            )
    if not solved:
        u, y, log_sum, squares = _solve_uncurved(c, own, domain, k, space, w)
        if al * _other_masses(domain, k, u, y)[0] <= np.finfo(c.dtype).eps:
            # The curvature would move nothing by more than rounding.
            log_scale = math.log1p(-u / k) + _log_sigma(y) - log_sum
            return _write_masses(
                c, cost, label, domain, k, u, y, 0.0, 0.0, log_scale, space, places, w
            )
        t, lowest = _first_threshold(al, domain, k, u, y, log_sum, squares)
        t = float(f(t))
        start_lambert(c, f(t), w)
        u, y, log_ratio, t, _ = _iterate(c, al, own, domain, k, u, t, lowest, _MAX_SWEEPS, space, w)
    log_scale = log_ratio - math.log(al)
    return _write_masses(c, cost, label, domain, k, u, y, t, 1.0, log_scale, space, places, w)


@njit(cache=True, forceinline=True, nogil=True, fastmath=FASTMATH, error_model="numpy")
def _prepare_row(scores, dual, norm, c, w):
    """Write the scores without the row's own part into c, and K C x of the old dual into w."""
    for j in range(c.size):
        c[j] = scores[j] - norm * dual[j]
        w[j] = max(-norm * dual[j], c.dtype.type(0))


@njit(cache=True, nogil=True, error_model="numpy")
def update_rows_entropy(scores, gram, dual, delta, labels, costs, domain, k, first, last):
    """Maximise the dual over rows first to last of a block, each exactly and in order.

    Arguments and result are those of :func:`dtopk.kernels.hinge.update_rows_hinge`, less gamma and
    smoothing, with ``ALPHA`` or ``BETA`` for the domain.
    """
    m = scores.shape[1]
    c, w = working_vector(m, scores), working_vector(m, scores)
    space, places = np.empty((6, k)), np.empty(k, np.int64)
    c64, w64 = working_vector(m, space), working_vector(m, space)
    single = np.finfo(scores.dtype).eps > 1e-10
    changed = np.empty(last - first, np.int64)
    n_changed = 0
    value = 0.0
    for i in range(first, last):
        correct_scores(scores, gram, delta, changed, n_changed, i)
        label, cost, norm = labels[i], float(costs[i]), gram[i, i]
        total = 0.0
        if cost == 0:
            w[:] = 0
        else:
            al = float(norm) * cost
            _prepare_row(scores[i], dual[i], norm, c, w)
            own = split_row(c, label, k, space, places)
            w[label] = 0
            for j in places[: k - 1]:
                w[j] = 0
            warm = float(norm) * float(dual[i, label]) > _LEAST_WARM
            if single and al > _LARGEST_SINGLE:
                c64[:], w64[:] = c, w
                total, entropy = solve_entropy_row(
                    c64, al, cost, own, label, domain, k, warm, space, places, w64
                )
                w[:] = w64
            else:
                total, entropy = solve_entropy_row(
                    c, al, cost, own, label, domain, k, warm, space, places, w
                )
            value -= cost * entropy
        total = scores.dtype.type(total)
        if negate_and_difference(w, total, label, dual[i], delta[i]) > 0:
            changed[n_changed] = i
            n_changed += 1
    return value


@njit(cache=True, nogil=True, error_model="numpy")
def entropy_values(scores, labels, domain, k, out):
    """Write the loss of every row into out (n_rows,), float64.

    It is log(1 + e^y) for alpha, and for beta that times 1 - rho and what the capped classes add.
    """
    m = scores.shape[1]
    c, w = working_vector(m, scores), working_vector(m, scores)
    space, places = np.empty((6, k)), np.empty(k, np.int64)
    for i in range(scores.shape[0]):
        c[:] = scores[i]
        own = split_row(c, labels[i], k, space, places)
        u, y, _, _ = _solve_uncurved(c, own, domain, k, space, w)
        out[i] = -_log_sigma(-y)
        if domain == BETA and u > 0:
            rho = u / k
            out[i] *= 1 - rho
            out[i] += space[_BEFORE_SUM, u] - rho * own
            out[i] += rho * math.log(k) - (1 - rho) * math.log(1 - rho)


@njit(cache=True, nogil=True, error_model="numpy")
def entropy_gradients(scores, labels, domain, k, out):
    """Write the gradient (x, -s) of every row into out (n_rows, m)."""
    m = scores.shape[1]
    c, w = working_vector(m, scores), working_vector(m, scores)
    space, places = np.empty((6, k)), np.empty(k, np.int64)
    for i in range(scores.shape[0]):
        c[:] = scores[i]
        own = split_row(c, labels[i], k, space, places)
        total, _ = solve_entropy_row(
            c, 0.0, 1.0, own, labels[i], domain, k, False, space, places, w
        )
        out[i] = w
        out[i, labels[i]] = -total


@njit(cache=True, forceinline=True, nogil=True, error_model="numpy")
def _lower_to_cap(x, k, total, top, places):
    """Bring x onto ``x_j <= total / k`` with its sum kept; return whether that can be done.

    Of all such points it is the nearest in relative entropy: the largest entries are capped, and
    the others multiplied by one factor. It takes k positive entries.
    """
    _largest_places(x, k, top, places)
    if top[k - 1] <= 0:
        return False
    free = 0.0
    for j in places[: k - 1]:
        x[j] = 0
    for j in range(x.size):
        free += x[j]
    u, running = k - 1, free
    for i in range(k - 2, -1, -1):
        running += top[i]
        if top[i] * (k - i) > running:
            break
        u, free = i, running
    cap, factor = total / k, total * (1 - u / k) / free
    for i in range(k - 1):
        x[places[i]] = top[i]
    if not factor < np.inf:
        return False
    for j in range(x.size):
        x[j] = min(x[j] * factor, cap)
    for i in range(u):
        x[places[i]] = cap
    return True


@njit(cache=True, nogil=True, error_model="numpy")
def feasible_entropy_duals(dual, labels, costs, domain, k, values):
    """Put dual rows onto their domain, in place, and write D_i of each into values (n_rows,).

    D_i = -C (sum x log x + (1 - s) log(1 - s)) with x = -a/C of the other classes. Negative masses
    become zero, a sum above one is scaled down, and caps are enforced in ways that multiply small
    masses: what is added to these, or subtracted, would cost the entropy most. Only a row of fewer
    than k positive masses must move otherwise, to the nearest point of the domain.
    """
    m = dual.shape[1]
    x, spread = working_vector(m, dual), working_vector(m, dual)
    top, places = np.empty(k + 1), np.empty(k, np.int64)
    for i in range(dual.shape[0]):
        label, cost = labels[i], costs[i]
        if cost == 0:
            dual[i] = 0
            values[i] = 0.0
            continue
        total, largest = 0.0, 0.0
        most = cost / k if domain == BETA else np.inf
        for j in range(m):
            x[j] = min(max(-dual[i, j], 0.0), most) if j != label else 0.0
            total += x[j]
            largest = max(largest, x[j])
        if total > cost:
            x *= cost / total
            largest *= cost / total
            total = cost
        if domain == ALPHA and largest > total / k * (1 + _CAP_SLACK):
            if not _lower_to_cap(x, k, total, top, places):
                x[label] = -np.inf
                total = project_top_k(x, ALPHA, k, cost, 0.0, top, spread)
                x[:] = spread
        entropy = negative_entropy(1 - total / cost)
        for j in range(m):
            if j != label:
                entropy += negative_entropy(x[j] / cost)
            dual[i, j] = -x[j]
        dual[i, label] = total
        values[i] = -cost * entropy
