"""The projection onto the bipartite simplex, by variable fixing or by sorting.

The set is ``B(r) = {(p, n) : p >= 0, n >= 0, sum p = sum n <= r}``, on which the multilabel hinge
has its dual [1]_. The projection of ``(b, c)`` is ``p = max(b - t, 0)``, ``n = max(c - s, 0)``.
With the thresholds at which both sums are r it is the answer if ``t + s >= 0``; else the sums are
below r and equal, with ``s = -t``.

Both vectors come less their largest entry, which makes that zero, and with ``height``, the sum of
the two entries so removed. Thresholds relative to them are of the size of the answer: a radius far
below the rounding of the entries themselves keeps its meaning, and ``t + s >= 0`` becomes
``t + s >= -height``. An entry of -inf is outside the problem.

References
----------
.. [1] Lapin, Hein, Schiele. Analysis and Optimization of Loss Functions for Multiclass, Top-k,
   and Multilabel Classification. PAMI 2017. Section 5.3.
"""

import numpy as np
from numba import njit

from dtopk.kernels.projections import FASTMATH

# Each round of variable fixing but the last drops an entry; three to seven are usual. For a round
# to drop just one its distance from the threshold must be a multiple, ever larger, of that of the
# one before, which numbers of a finite range allow 20 times or so.
_MAX_FIXINGS = 40


@njit(cache=True, forceinline=True, nogil=True, fastmath=FASTMATH, error_model="numpy")
def _sum_above(b, t):
    """Return the sum of max(b - t, 0) and the number of entries above t."""
    zero, one = b.dtype.type(0), b.dtype.type(1)
    total, count = zero, zero
    for j in range(b.size):
        v = b[j] - t
        total += max(v, zero)
        count += one if v > zero else zero
    return total, count


@njit(cache=True, forceinline=True, nogil=True, fastmath=FASTMATH, error_model="numpy")
def _write_above(b, t, out):
    """Write max(b - t, 0) into out and return its sum."""
    zero = b.dtype.type(0)
    total = zero
    for j in range(b.size):
        v = max(b[j] - t, zero)
        out[j] = v
        total += v
    return total


@njit(cache=True, forceinline=True, nogil=True, error_model="numpy")
def _balance_by_fixing(b, c, height):
    """Solve sum max(b - t, 0) = sum max(c - s, 0) with t + s = -height, without a sort.

    The equation is solved as if all entries that may be positive were. Where that makes entries
    negative, setting them to zero raises the sums, one of them more than the other; the solution's
    threshold of that side is higher, so that its negative entries are zero for good.

    Returns
    -------
    t, s : float
    settled : bool
        False where that takes more rounds than a sort would be worth.
    """
    f = b.dtype.type
    height = f(height)
    # Both thresholds are negative: neither can be further than the height below zero. From here
    # on sum_b is the sum of the n_b entries less t_b, and so for c.
    t_b, t_c = -height, -height
    sum_b, n_b = _sum_above(b, t_b)
    sum_c, n_c = _sum_above(c, t_c)
    t, s = f(0), f(0)
    for _ in range(_MAX_FIXINGS):
        t = f((sum_b + n_b * t_b - sum_c - n_c * (t_c + height)) / (n_b + n_c))
        s = f(-height - t)
        above_b, count_b = _sum_above(b, t)
        above_c, count_c = _sum_above(c, s)
        if above_b > above_c and count_b < n_b:
            sum_b, n_b, t_b = above_b, count_b, t
        elif above_b < above_c and count_c < n_c:
            sum_c, n_c, t_c = above_c, count_c, s
        else:
            return t, s, True
    return t, s, False


@njit(cache=True, forceinline=True, nogil=True, error_model="numpy")
def _simplex_threshold_by_fixing(b, radius):
    """Solve sum max(b - t, 0) = radius without a sort, as :func:`_balance_by_fixing` does.

    With one side only the threshold never falls: what is below it is zero for good.
    """
    f = b.dtype.type
    t = f(-radius)
    total, count = _sum_above(b, t)
    for _ in range(_MAX_FIXINGS):
        t = f(t + (total - radius) / count)
        before = count
        total, count = _sum_above(b, t)
        if count == before:
            return t, True
    return t, False


@njit(cache=True, forceinline=True, nogil=True, error_model="numpy")
def _balance_by_sorting(b, c, height):
    """Solve the equation of :func:`_balance_by_fixing`, the entries in descending order.

    Starting with the largest of each side, an entry above its side's threshold is taken in: that
    raises the threshold, but not above the entry, and lowers the other one, so that no entry ever
    leaves.
    """
    f = b.dtype.type
    sum_b, sum_c = f(0), f(0)
    n_b, n_c = 1, 1
    while True:
        t = f((sum_b - sum_c - n_c * height) / (n_b + n_c))
        s = f(-height - t)
        if n_b < b.size and b[n_b] > t:
            sum_b += b[n_b]
            n_b += 1
        elif n_c < c.size and c[n_c] > s:
            sum_c += c[n_c]
            n_c += 1
        else:
            return t, s


@njit(cache=True, forceinline=True, nogil=True, error_model="numpy")
def _simplex_threshold_by_sorting(b, radius):
    """Solve sum max(b - t, 0) = radius, the entries of b in descending order."""
    total = b.dtype.type(0)
    t = b.dtype.type(-radius)
    for j in range(1, b.size):
        if not b[j] > t:
            break
        total += b[j]
        t = b.dtype.type((total - radius) / (j + 1))
    return t


@njit(cache=True, forceinline=True, nogil=True, error_model="numpy")
def _write_balanced(b, c, t, s, p, n):
    """Write both sides of the projection, of equal sums, and return the sum."""
    total, other = _write_above(b, t, p), _write_above(c, s, n)
    if other > 0:
        # The sums are equal but for rounding, which must not leave the domain.
        _scale(n, b.dtype.type(total / other))
    return total


@njit(cache=True, forceinline=True, nogil=True, fastmath=FASTMATH, error_model="numpy")
def _scale(x, factor):
    for j in range(x.size):
        x[j] *= factor


@njit(cache=True, forceinline=True, nogil=True, error_model="numpy")
def _write_simplex(b, t, radius, out):
    """Write max(b - t, 0) into out, of that sum in spite of rounding."""
    _scale(out, b.dtype.type(radius / _write_above(b, t, out)))


@njit(cache=True, forceinline=True, nogil=True, error_model="numpy")
def _project_simplex(b, radius, out):
    t, settled = _simplex_threshold_by_fixing(b, radius)
    if not settled:
        t = _simplex_threshold_by_sorting(np.sort(b)[::-1], radius)
    _write_simplex(b, t, radius, out)


@njit(cache=True, forceinline=True, nogil=True, error_model="numpy")
def project_bipartite(b, c, height, radius, p, n):
    """Project (b, c) onto the bipartite simplex of that radius, in a few scans.

    Solves min 0.5 |p - b|^2 + 0.5 |n - c|^2 subject to p, n >= 0, sum p = sum n <= radius.

    Parameters
    ----------
    b : ndarray of shape (k,), float32 or float64
    c : ndarray of shape (m,), the dtype of b
        Each less its largest entry, so that this is zero. Entries of -inf are left out.
    height : float
        The sum of the two entries that were subtracted.
    radius : float, > 0
    p : ndarray of shape (k,), the dtype of b
    n : ndarray of shape (m,), the dtype of b
        The projection. Neither may share memory with b or c.

    Returns
    -------
    float
        The sum of p, which is that of n.
    """
    f = b.dtype.type
    height, radius = f(height), f(radius)
    if not height > 0:
        p[:] = 0
        n[:] = 0
        return f(0)
    # With a sum of r no threshold is further than r below the largest entry.
    if height < 2 * radius:
        t, s, settled = _balance_by_fixing(b, c, height)
        if not settled:
            t, s = _balance_by_sorting(np.sort(b)[::-1], np.sort(c)[::-1], height)
        total = _write_balanced(b, c, t, s, p, n)
        if total <= radius:
            return total
    _project_simplex(b, radius, p)
    _project_simplex(c, radius, n)
    return radius


@njit(cache=True, forceinline=True, nogil=True, error_model="numpy")
def project_bipartite_by_sorting(b, c, height, radius, p, n):
    """Project (b, c) onto the bipartite simplex of that radius, by one sort of each.

    Arguments and result are those of :func:`project_bipartite`.
    """
    f = b.dtype.type
    height, radius = f(height), f(radius)
    if not height > 0:
        p[:] = 0
        n[:] = 0
        return f(0)
    b_sorted, c_sorted = np.sort(b)[::-1], np.sort(c)[::-1]
    t = _simplex_threshold_by_sorting(b_sorted, radius)
    s = _simplex_threshold_by_sorting(c_sorted, radius)
    if t + s >= -height:
        _write_simplex(b, t, radius, p)
        _write_simplex(c, s, radius, n)
        return radius
    t, s = _balance_by_sorting(b_sorted, c_sorted, height)
    return _write_balanced(b, c, t, s, p, n)
