r"""Hinges that weigh margins by their rank: the vertices of their domains, and steps to them.

With the margins ``h_j = Delta_j + u_j - u_y`` of the classes other than y, Delta_j being 1 or a
cost of its own, and weights ``rho_1 >= rho_2 >= ... >= 0`` there are three losses:

==============  ==========================================================================
``ALPHA``       ``max(0, sum_j rho_j h_(j))``, h_(j) the j-th largest margin
``ALPHA_INCL``  ``max(0, sum_j rho_j h_[j])``, the margin 0 of the label itself among them
``BETA``        ``sum_j rho_j max(0, h_(j))``
==============  ==========================================================================

Each is the maximum of <x, h> over a polytope, 0 and the other vertices of which have the weights
for their entries. Ties go to the class that comes first.

A step of Frank and Wolfe's method on the problem of one row goes from its dual towards C times
the vertex where the linearised problem is largest, as far as is best for the problem itself [1]_
[2]_.

References
----------
.. [1] Lacoste-Julien, Jaggi, Schmidt, Pletscher. Block-Coordinate Frank-Wolfe Optimization for
   Structural SVMs. ICML 2013.
.. [2] Tajima, Hirohashi, Zara, Kato. Frank-Wolfe algorithm for learning SVM-type multi-category
   classifiers.
"""

import numpy as np
from numba import njit

from dtopk.kernels.corrections import correct_scores
from dtopk.kernels.hinge import MOREAU
from dtopk.kernels.projections import (
    ALPHA_INCL,
    BETA,
    FASTMATH,
    LANES,
    largest_entry,
)
from dtopk.kernels.workspace import working_vector


@njit(cache=True, nogil=True, error_model="numpy")
def _sift(top, places, root, size):
    """Put entry root of a heap of that size, the smallest at its root, where it belongs.

    Of equal entries the one whose place comes last is smaller.
    """
    while 2 * root + 1 < size:
        child = 2 * root + 1
        for other in (child + 1, root):
            if other < size and (
                top[other] < top[child]
                or (top[other] == top[child] and places[other] > places[child])
            ):
                child = other
        if child == root:
            return
        top[root], top[child] = top[child], top[root]
        places[root], places[child] = places[child], places[root]
        root = child


@njit(cache=True, nogil=True, error_model="numpy")
def largest_places(b, k, top, places):
    """Find the k largest entries of b, in descending order, equal ones in that of their places.

    Where k is large a heap takes fewer steps than insertion, and compiles faster than a sort.

    Parameters
    ----------
    b : ndarray of shape (m,), float32 or float64
        Entries of -inf are never taken; k or more are finite.
    k : int, 1 <= k <= m
    top : ndarray of shape (k,) or longer, the dtype of b
        Receives the entries.
    places : ndarray of shape (k,) or longer, int64
        Receives their places.
    """
    top[:k] = -np.inf
    places[:k] = -1
    for start in range(0, b.size, LANES):
        stop = min(start + LANES, b.size)
        if largest_entry(b[start:stop]) <= top[0]:
            continue
        for j in range(start, stop):
            if b[j] > top[0]:
                top[0] = b[j]
                places[0] = j
                _sift(top, places, 0, k)
    for last in range(k - 1, 0, -1):
        top[0], top[last] = top[last], top[0]
        places[0], places[last] = places[last], places[0]
        _sift(top, places, 0, last)


@njit(cache=True, forceinline=True, nogil=True, error_model="numpy")
def _choose_vertex(h, rho, domain, top, places, weights):
    """Find the vertex of the largest <x, h>.

    Parameters
    ----------
    h : ndarray of shape (m,), float32 or float64
        The margins, -inf at the label.
    rho : ndarray of shape (n_weights,), float64
    domain : int
        ``ALPHA``, ``ALPHA_INCL`` or ``BETA``.
    top : ndarray of shape (n_weights,), the dtype of h
        Workspace.
    places : ndarray of shape (n_weights,), int64
        Receives the classes on which the vertex is not zero.
    weights : ndarray of shape (n_weights,), float64
        Receives its entries there.

    Returns
    -------
    int
        How many classes those are.
    """
    n = min(rho.size, h.size - 1)
    largest_places(h, n, top, places)
    if domain == BETA:
        while n > 0 and h[places[n - 1]] <= 0:
            n -= 1
    above = n
    if domain == ALPHA_INCL:
        # The label takes a rank, after those of margins that are not below its own.
        while above > 0 and h[places[above - 1]] < 0:
            above -= 1
    value = 0.0
    for j in range(n):
        rank = j if j < above else j + 1
        weights[j] = rho[rank] if rank < rho.size else 0.0
        value += weights[j] * h[places[j]]
    return n if value > 0 else 0


@njit(cache=True, forceinline=True, nogil=True, fastmath=FASTMATH, error_model="numpy")
def _shifted_margins(scores, dual, shift, own_shift, margin_costs, label, h):
    """Write Delta_j + u_j - u_label into h, u = scores + shift * dual, own_shift for the label."""
    own = scores[label] + own_shift * dual[label]
    for j in range(h.size):
        h[j] = ((scores[j] + shift * dual[j]) - own) + margin_costs[j]
    h[label] = -np.inf


@njit(cache=True, nogil=True, error_model="numpy")
def ranked_vertices(scores, labels, margin_costs, rho, domain, out):
    """Write a subgradient of the loss of every row, a vertex, into out (n_rows, m).

    Parameters
    ----------
    scores : ndarray of shape (n_rows, m), float32 or float64
    labels : ndarray of shape (n_rows,), int32
    margin_costs : ndarray of shape (m, m) or (1, m), the dtype of scores
        The Delta of every label, or the one that all have; the label's own entry is not read.
    rho : ndarray of shape (n_weights,), float64
    domain : int
        ``ALPHA``, ``ALPHA_INCL`` or ``BETA``.
    out : ndarray of shape (n_rows, m), the dtype of scores
    """
    m = scores.shape[1]
    zero = scores.dtype.type(0)
    h = working_vector(m, scores)
    top, places = np.empty(rho.size, scores.dtype), np.empty(rho.size, np.int64)
    weights = np.empty(rho.size)
    for i in range(scores.shape[0]):
        label = labels[i]
        costs = margin_costs[label if margin_costs.shape[0] > 1 else 0]
        _shifted_margins(scores[i], scores[i], zero, zero, costs, label, h)
        count = _choose_vertex(h, rho, domain, top, places, weights)
        out[i] = 0
        total = 0.0
        for j in range(count):
            out[i, places[j]] = weights[j]
            total += weights[j]
        out[i, label] = -total


@njit(cache=True, forceinline=True, nogil=True, fastmath=FASTMATH, error_model="numpy")
def _measure(direction, h):
    """Return the sum of a direction, its product with h, and its square."""
    total, product, square = 0.0, 0.0, 0.0
    for j in range(h.size):
        d = np.float64(direction[j])
        total += d
        product += d * np.float64(h[j])
        square += d * d
    return total, product, square


@njit(cache=True, forceinline=True, nogil=True, fastmath=FASTMATH, error_model="numpy")
def _move(dual, direction, step, margin_costs):
    """Make a step, and the direction the change.

    Returns the sum of the new dual, its product with the costs, its square, and the sum of the
    sizes of the changes.
    """
    total, product, square, moved = 0.0, 0.0, 0.0, 0.0
    for j in range(dual.size):
        direction[j] *= step
        dual[j] += direction[j]
        a = np.float64(dual[j])
        total += a
        product += a * np.float64(margin_costs[j])
        square += a * a
        moved += abs(direction[j])
    return total, product, square, moved


@njit(cache=True, forceinline=True, nogil=True, error_model="numpy")
def _step_length(slope, curvature):
    """Return the step in [0, 1] that is best for ``slope t - curvature t^2 / 2``."""
    if not slope > 0:
        return 0.0
    return 1.0 if slope >= curvature else slope / curvature


@njit(cache=True, nogil=True, error_model="numpy")
def step_rows_ranked(
    scores,
    gram,
    dual,
    delta,
    labels,
    costs,
    margin_costs,
    rho,
    domain,
    gamma,
    smoothing,
    first,
    last,
):
    """Make a Frank-Wolfe step on the dual problems of rows first to last of a block, in order.

    Row i has the problem max_a D_i(a) - K/2 |a|^2 - <q, a> with ``q = scores - K a_old`` and
    ``K = gram[i, i]``.

    Parameters
    ----------
    scores, gram, dual, delta, labels, costs, gamma, smoothing, first, last
        As in :func:`dtopk.kernels.hinge.update_rows_hinge`.
    margin_costs, rho, domain
        As in :func:`ranked_vertices`.

    Returns
    -------
    float
        sum_i D_i(a_i) over the rows, at their new duals.
    """
    m = scores.shape[1]
    f = scores.dtype.type
    h = working_vector(m, scores)
    top, places = np.empty(rho.size, scores.dtype), np.empty(rho.size, np.int64)
    weights = np.empty(rho.size)
    changed = np.empty(last - first, np.int64)
    n_changed = 0
    value = 0.0
    for i in range(first, last):
        correct_scores(scores, gram, delta, changed, n_changed, i)
        label, cost, norm = labels[i], costs[i], gram[i, i]
        a, d, u = dual[i], delta[i], scores[i]
        if cost == 0:
            moved = 0.0
            for j in range(m):
                d[j] = -a[j]
                a[j] = 0
                moved += abs(d[j])
        else:
            strength = np.float64(gamma) / np.float64(cost)
            own_strength = strength if smoothing == MOREAU else 0.0
            deltas = margin_costs[label if margin_costs.shape[0] > 1 else 0]
            _shifted_margins(u, a, f(strength), f(own_strength), deltas, label, h)
            count = _choose_vertex(h, rho, domain, top, places, weights)
            h[label] = 0
            for j in range(m):
                d[j] = -a[j]
            for j in range(count):
                d[places[j]] -= f(cost * weights[j])
            own = a[label]
            # The label's entry follows from the others, as rows sum to zero.
            a[label] = 0
            d[label] = 0
            total, product, square = _measure(d, h)
            curvature = (norm + strength) * square + (norm + own_strength) * total * total
            step = _step_length(-product, curvature)
            total, reward, square, moved = _move(a, d, f(step), deltas)
            a[label] = f(-total) if step > 0 else own
            d[label] = a[label] - own
            moved += abs(d[label])
            value -= reward + 0.5 * (strength * square + own_strength * total * total)
        if moved > 0:
            changed[n_changed] = i
            n_changed += 1
    return value
