"""Projections onto the domains of the top-k hinge losses, by scans instead of a sort.

Every projection here is ``x = clip(b - t, 0, cap)`` for a threshold t and a cap that solve one
monotone, piecewise linear equation. Newton's method finds the active piece in a few scans of the
vector, which vectorise, where a sort of it would cost more than all of them. Should rounding keep
Newton from settling, a bisection over the sorted breakpoints ends the search exactly.

The biased projections minimise ``0.5 |x|^2 + 0.5 rho (sum x)^2 - <b, x>`` over a domain of
radius r, where s stands for ``sum x``:

=================  ==========================================  ============================
code               domain                                      reference
=================  ==========================================  ============================
``ALPHA``          ``x >= 0, s <= r, x_j <= s / k``            [1]_, the top-k simplex
``ALPHA_INCL``     ``x >= 0, s <= r, x_j <= min(r/k, s/(k-1))``  the conjugate of [2]_ eq. 6
``BETA``           ``x >= 0, s <= r, x_j <= r / k``            [1]_, the knapsack polytope
=================  ==========================================  ============================

References
----------
.. [1] Lapin, Hein, Schiele. Analysis and Optimization of Loss Functions for Multiclass, Top-k,
   and Multilabel Classification. PAMI 2017.
.. [2] Lapin, Hein, Schiele. Loss Functions for Top-k Error: Analysis and Insights. CVPR 2016.
"""

import numpy as np
from numba import njit

ALPHA = 0
ALPHA_INCL = 1
BETA = 2

# Reassociation lets sums vectorise; NaN and infinity keep their meaning, as -inf marks the label.
FASTMATH = {"contract", "reassoc", "nsz", "arcp"}
_MAX_NEWTON = 40
# Up to this k the largest entries are kept by insertion; above it the vector is sorted.
_MAX_INSERTION = 32
LANES = 16


@njit(cache=True, forceinline=True, nogil=True, fastmath=FASTMATH | {"nnan"}, error_model="numpy")
def largest_entry(b):
    """Return the largest entry of b."""
    top = b[0]
    for j in range(b.size):
        top = max(top, b[j])
    return top


@njit(cache=True, forceinline=True, nogil=True, error_model="numpy")
def largest_entries(b, k, top):
    """Write the k largest entries of b into top[:k], in descending order."""
    if k > _MAX_INSERTION:
        ordered = np.sort(b)
        for i in range(k):
            top[i] = ordered[b.size - 1 - i]
        return
    top[:k] = -np.inf
    last = k - 1
    for start in range(0, b.size, LANES):
        stop = min(start + LANES, b.size)
        if largest_entry(b[start:stop]) <= top[last]:
            continue
        for j in range(start, stop):
            v = b[j]
            if v <= top[last]:
                continue
            i = last
            while i > 0 and top[i - 1] < v:
                top[i] = top[i - 1]
                i -= 1
            top[i] = v


@njit(cache=True, forceinline=True, nogil=True, fastmath=FASTMATH, error_model="numpy")
def _clipped_sum(b, t, cap):
    """Return sum clip(b - t, 0, cap) and the number of entries strictly between the bounds."""
    zero, one = b.dtype.type(0), b.dtype.type(1)
    total, count = zero, zero
    for j in range(b.size):
        v = b[j] - t
        total += min(max(v, zero), cap)
        count += one if (v > zero) & (v < cap) else zero
    return total, count


@njit(cache=True, forceinline=True, nogil=True, error_model="numpy")
def _bisect_breakpoints(b, cap, scale, slope, target):
    """Solve scale * sum clip(b - t, 0, cap) = slope * t + target by its sorted breakpoints."""
    finite = b[b > -np.inf]
    points = np.sort(np.concatenate((finite, finite - cap)))
    low, high = 0, points.size - 1
    while high - low > 1:
        middle = (low + high) // 2
        total, _ = _clipped_sum(b, points[middle], cap)
        if scale * total >= slope * points[middle] + target:
            low = middle
        else:
            high = middle
    left, right = points[low], points[high]
    at_left = scale * _clipped_sum(b, left, cap)[0] - slope * left - target
    at_right = scale * _clipped_sum(b, right, cap)[0] - slope * right - target
    if at_left <= 0 or at_left == at_right:
        return left
    return b.dtype.type(left + (right - left) * at_left / (at_left - at_right))


@njit(cache=True, forceinline=True, nogil=True, error_model="numpy")
def _clip_threshold(b, top, cap, scale, slope, target, start):
    """Solve scale * sum clip(b - t, 0, cap) = slope * t + target for t in [start, top]."""
    t = start
    low, high = start, top
    tolerance = 4 * np.finfo(b.dtype).eps
    for _ in range(_MAX_NEWTON):
        total, count = _clipped_sum(b, t, cap)
        excess = scale * total - slope * t - target
        # Nearer than the rounding of the sum there is nothing to find.
        if abs(excess) <= tolerance * (scale * total + abs(slope * t) + target):
            return t
        if excess > 0:
            low = t
        else:
            high = t
        steepness = scale * count + slope
        if steepness == 0:
            step_to = b.dtype.type(0.5) * (low + high)
        else:
            step_to = b.dtype.type(t + excess / steepness)
            if step_to < low or step_to > high:
                step_to = b.dtype.type(0.5) * (low + high)
        if abs(step_to - t) <= tolerance * max(abs(t), abs(step_to)) or step_to == t:
            return step_to
        t = step_to
    return _bisect_breakpoints(b, cap, scale, slope, target)


@njit(cache=True, forceinline=True, nogil=True, fastmath=FASTMATH, error_model="numpy")
def _write_clipped(b, t, cap, out):
    """Write clip(b - t, 0, cap) into out and return its sum."""
    zero = b.dtype.type(0)
    total = zero
    for j in range(b.size):
        v = min(max(b[j] - t, zero), cap)
        out[j] = v
        total += v
    return total


@njit(cache=True, forceinline=True, nogil=True, error_model="numpy")
def _project_fixed_sum(b, kth, radius, cap, out):
    """Project b onto ``sum x = radius, 0 <= x <= cap`` with cap = radius / k; return radius.

    With the k-th largest entry at its cap so are k of them, and with it at zero no more than
    k - 1 are above: the threshold is within one cap below it. Entries are taken relative to it,
    so that ties stay ties and a radius far below the rounding of b keeps its meaning. `out` holds
    the shifted entries meanwhile.
    """
    zero = b.dtype.type(0)
    for j in range(b.size):
        out[j] = b[j] - kth
    t = _clip_threshold(out, zero, cap, b.dtype.type(1), zero, radius, -cap)
    total = _write_clipped(out, t, cap, out)
    if total > 0:
        # The scans above sum in the vector's precision: rounding must not leave the domain.
        factor = radius / total
        for j in range(b.size):
            out[j] *= factor
    return radius


@njit(cache=True, forceinline=True, nogil=True, error_model="numpy")
def project_simplex(b, radius, out):
    """Project b (m,) onto ``x >= 0, sum x = radius``, its largest entry being zero."""
    _project_fixed_sum(b, b.dtype.type(0), radius, radius, out)


@njit(cache=True, forceinline=True, nogil=True, error_model="numpy")
def project_bounded_simplex(b, radius, rho, out):
    """Project b (m,) onto ``x >= 0, sum x <= radius`` with a bias on the sum; return the sum.

    What :func:`project_top_k` does for k = 1, with its conventions and less to compile.
    """
    radius = b.dtype.type(radius)
    top = largest_entry(b)
    return _project_knapsack(b, top, top, radius, radius, rho, out)


@njit(cache=True, forceinline=True, nogil=True, error_model="numpy")
def _project_knapsack(b, top, kth, radius, cap, rho, out):
    """Biased projection onto ``x >= 0, sum x <= radius, x_j <= cap``; return sum x."""
    zero, one = b.dtype.type(0), b.dtype.type(1)
    if top <= 0:
        out[:] = zero
        return zero
    # t - rho G(t) increases, so that the sum reaches the radius just if it does so at rho radius.
    if _clipped_sum(b, b.dtype.type(rho * radius), cap)[0] >= radius:
        return _project_fixed_sum(b, kth, radius, cap, out)
    t = zero
    if rho > 0:
        t = _clip_threshold(b, top, cap, b.dtype.type(rho), one, zero, zero)
    return _write_clipped(b, t, cap, out)


@njit(cache=True, forceinline=True, nogil=True, fastmath=FASTMATH, error_model="numpy")
def _positive_sum_below(b, t, bound, n_left_out):
    """Return sum max(b - t, 0) and the number of entries above t, without the largest entries.

    Those are `n_left_out` entries, the smallest of them equal to `bound`. They are not added and
    taken away again: they may be larger than the sum by more than the precision.
    """
    zero, one = b.dtype.type(0), b.dtype.type(1)
    total, count, n_above = zero, zero, zero
    for j in range(b.size):
        v = b[j] - t if b[j] < bound else zero
        total += max(v, zero)
        count += one if v > zero else zero
        n_above += zero if b[j] < bound else one
    if n_left_out > 0 and bound > t:
        n_tied = n_above - n_left_out
        total += n_tied * (bound - t)
        count += n_tied
    return total, count


@njit(cache=True, forceinline=True, nogil=True, error_model="numpy")
def _cone_threshold(b, top, u, k, rho, start):
    """Find t and the cap of the top-k cone when its u largest entries are at the cap, u < k.

    The other active entries M carry the rest of the mass, ``G = sum_M (b - t) = (k - u) cap``, and
    stationarity says ``(u + rho k^2) cap = (k - u) t + sum_U b``. Without the cap this is one
    equation in t with a convex decreasing left side: Newton's method lands left of the root at
    the first step and then climbs to it, until a step leaves the active entries as they were.
    """
    sum_top = b.dtype.type(0)
    for i in range(u):
        sum_top += top[i]
    bound = top[u - 1] if u > 0 else b.dtype.type(np.inf)
    weight = u + rho * k * k
    rest = b.dtype.type(k - u)
    t, others, active = b.dtype.type(start), b.dtype.type(0), b.dtype.type(-1)
    for _ in range(_MAX_NEWTON):
        others, count = _positive_sum_below(b, t, bound, b.dtype.type(u))
        if count == active:
            break
        active = count
        excess = weight * others - rest * (rest * t + sum_top)
        t = b.dtype.type(t + excess / (weight * count + rest * rest))
    return t, max(others, b.dtype.type(0)) / rest


@njit(cache=True, forceinline=True, nogil=True, error_model="numpy")
def _project_cone(b, k, rho, sum_top, top, out):
    """Biased projection onto ``0 <= x_j <= sum x / k``, where top[:k + 1] holds the largest b.

    Returns the sum of x. With sum_top, the sum of the k largest, these alone at a common cap are
    the solution if the threshold that this means leaves the others out. It is never above the
    solution's, and Newton's method starts there. The number u of entries at the cap is found by
    bisection: with too few of them, the largest of the others would exceed the cap.
    """
    zero = b.dtype.type(0)
    if sum_top <= 0:
        out[:] = zero
        return zero
    cap = b.dtype.type(sum_top / (k + rho * k * k))
    lowest = top[k - 1] - cap
    if lowest >= top[k]:
        for j in range(b.size):
            out[j] = cap if b[j] >= top[k - 1] else zero
        return _trim_ties(b, top[k - 1], k, cap, out)
    t = lowest
    low, high = 0, k - 1
    while True:
        u = (low + high) // 2
        t, cap = _cone_threshold(b, top, u, k, rho, t)
        if low == high:
            return _write_clipped(b, t, cap, out)
        if top[u] <= cap + t:
            high = u
        else:
            low = u + 1


@njit(cache=True, forceinline=True, nogil=True, error_model="numpy")
def _trim_ties(b, kth, k, cap, out):
    """Leave just k entries of out at the cap when b ties at its k-th largest; return their sum."""
    kept = 0
    for j in range(b.size):
        if b[j] > kth:
            kept += 1
    for j in range(b.size):
        if b[j] == kth:
            kept += 1
            if kept > k:
                out[j] = 0
    return b.dtype.type(k * cap)


@njit(cache=True, forceinline=True, nogil=True, error_model="numpy")
def project_top_k(b, domain, k, radius, rho, top, out):
    """Project b onto the domain of a top-k hinge loss, with a bias on the sum.

    Solves min_x 0.5 |x|^2 + 0.5 rho (sum x)^2 - <b, x> over the domain with that code.

    Parameters
    ----------
    b : ndarray of shape (m,), float32 or float64
        An entry of -inf is outside the problem: its x is 0. At least k others are finite.
    domain : int
        ``ALPHA``, ``ALPHA_INCL`` or ``BETA``.
    k : int, 1 <= k <= number of finite entries
    radius : float, > 0
    rho : float, >= 0
    top : ndarray of shape (k + 1,) or longer, the dtype of b
        Workspace.
    out : ndarray of shape (m,), the dtype of b
        The projection. It may not share memory with b.

    Returns
    -------
    float
        The sum of the projection.
    """
    radius = b.dtype.type(radius)
    cap = b.dtype.type(radius / k)
    top[k] = -np.inf
    largest_entries(b, min(k + 1, b.size), top)
    if domain == BETA or k == 1:
        return _project_knapsack(b, top[0], top[k - 1], radius, cap, rho, out)
    sum_top = b.dtype.type(0)
    if domain == ALPHA:
        for i in range(k):
            sum_top += top[i]
        # The cone's solution has at least this sum, so that the radius binds for certain.
        if sum_top <= radius * (1 + rho * k):
            total = _project_cone(b, k, rho, sum_top, top, out)
            if total <= radius:
                return total
        return _project_fixed_sum(b, top[k - 1], radius, cap, out)
    total = _project_knapsack(b, top[0], top[k - 1], radius, cap, rho, out)
    threshold = b.dtype.type(radius * (k - 1) / k)
    if k == 2 or total >= threshold:
        return total
    for i in range(k - 1):
        sum_top += top[i]
    total = _project_cone(b, k - 1, rho, sum_top, top, out)
    if total <= threshold:
        return total
    return _project_fixed_sum(b, top[k - 2], threshold, cap, out)
