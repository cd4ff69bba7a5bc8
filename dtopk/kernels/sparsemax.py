"""Values, gradients and exact dual updates of the sparsemax loss, row by row.

The loss is ``max_p <u, p> - |p|^2 / 2 + 1/2 - u_y`` over the distributions p, and its maximiser,
the projection of u onto them, is sparse [1]_. With ``p = e_y - a/C`` a dual row has
``D_i(a) = C/2 (1 - |p|^2)``, and its exact update is the projection of
``(q + K C e_y) / (1 + K C)``.

References
----------
.. [1] Martins, Astudillo. From Softmax to Sparsemax: A Sparse Model of Attention and Multi-Label
   Classification. ICML 2016.
"""

import numpy as np
from numba import njit

from dtopk.kernels.corrections import correct_scores
from dtopk.kernels.hinge import negate_and_difference
from dtopk.kernels.projections import FASTMATH, largest_entry, project_simplex
from dtopk.kernels.workspace import working_vector


@njit(cache=True, forceinline=True, nogil=True, fastmath=FASTMATH, error_model="numpy")
def _shrunk_scores(scores, dual, norm, cost, label, b):
    """Write (q + K C e_y) / (1 + K C) into b, q = scores - K dual, less its largest entry."""
    f = b.dtype.type
    al = norm * cost
    factor = f(1) / (f(1) + al)
    for j in range(b.size):
        b[j] = (scores[j] - norm * dual[j]) * factor
    b[label] += al * factor
    top = largest_entry(b)
    for j in range(b.size):
        b[j] -= top


@njit(cache=True, nogil=True, error_model="numpy")
def update_rows_sparsemax(scores, gram, dual, delta, labels, costs, first, last):
    """Maximise the dual over rows first to last of a block, each exactly and in order.

    Arguments and result are those of :func:`dtopk.kernels.hinge.update_rows_hinge`, less the
    parameters of the hinge.
    """
    m = scores.shape[1]
    f = scores.dtype.type
    b, x = working_vector(m, scores), working_vector(m, scores)
    changed = np.empty(last - first, np.int64)
    n_changed = 0
    value = 0.0
    for i in range(first, last):
        correct_scores(scores, gram, delta, changed, n_changed, i)
        label, cost, norm = labels[i], costs[i], gram[i, i]
        total = f(0)
        x[:] = 0
        if cost > 0:
            _shrunk_scores(scores[i], dual[i], norm, cost, label, b)
            project_simplex(b, f(1), x)
            value += 0.5 * float(cost) * _spread(x)
            total = _other_masses(x, cost, label)
        if negate_and_difference(x, total, label, dual[i], delta[i]) > 0:
            changed[n_changed] = i
            n_changed += 1
    return value


@njit(cache=True, forceinline=True, nogil=True, fastmath=FASTMATH, error_model="numpy")
def _spread(p):
    """Return 1 - |p|^2 of a distribution, as the sum of p (1 - p), which has no cancellation."""
    total = p.dtype.type(0)
    for j in range(p.size):
        total += p[j] * (p.dtype.type(1) - p[j])
    return float(total)


@njit(cache=True, forceinline=True, nogil=True, fastmath=FASTMATH, error_model="numpy")
def _other_masses(x, cost, label):
    """Turn p into C p of the other classes, 0 at the label, and return its sum."""
    total = x.dtype.type(0)
    x[label] = total
    for j in range(x.size):
        x[j] *= cost
        total += x[j]
    return total


@njit(cache=True, nogil=True, error_model="numpy")
def sparsemax(scores, out):
    """Write the projection of every row of scores onto the distributions into out (n, m)."""
    for i in range(scores.shape[0]):
        project_simplex(scores[i] - largest_entry(scores[i]), scores.dtype.type(1), out[i])


@njit(cache=True, nogil=True, error_model="numpy")
def sparsemax_values(scores, labels, out):
    """Write the loss of every row into out (n_rows,), float64."""
    m = scores.shape[1]
    p, u = working_vector(m, scores), working_vector(m, scores)
    for i in range(scores.shape[0]):
        own = scores[i, labels[i]]
        top = largest_entry(scores[i])
        for j in range(m):
            u[j] = scores[i, j] - top
        project_simplex(u, scores.dtype.type(1), p)
        total = 0.5 * _spread(p) + (float(top) - float(own))
        for j in range(m):
            total += float(p[j]) * float(u[j])
        out[i] = total


@njit(cache=True, nogil=True, error_model="numpy")
def feasible_sparsemax_duals(dual, labels, costs, values):
    """Put dual rows onto their domain, in place, and write D_i of each into values (n_rows,).

    The masses of the other classes are clipped at zero and scaled down where they exceed one;
    the label has what they leave.
    """
    m = dual.shape[1]
    for i in range(dual.shape[0]):
        label, cost = labels[i], costs[i]
        if cost == 0:
            dual[i] = 0
            values[i] = 0.0
            continue
        dual[i, label] = 0
        rest = 0.0
        for j in range(m):
            dual[i, j] = min(dual[i, j], 0.0)
            rest -= dual[i, j]
        if rest > cost:
            dual[i] *= cost / rest
            rest = cost
        share = rest / cost
        # 1 - |p|^2 as the sum of p (1 - p), p_y = 1 - share: no term is negative, none cancels.
        spread = share * (1 - share)
        for j in range(m):
            p = -dual[i, j] / cost
            spread += p * (1 - p)
        values[i] = 0.5 * cost * spread
        dual[i, label] = rest
