"""Projections and proximal maps of every row of a matrix, for the public library of them."""

import numpy as np
from numba import njit

from dtopk.kernels.bipartite import project_bipartite
from dtopk.kernels.entropy import update_rows_entropy
from dtopk.kernels.ordered import project_ordered
from dtopk.kernels.projections import largest_entry, project_simplex, project_top_k
from dtopk.kernels.softmax import refine_lambert, solve_softmax_row, start_lambert

_LAMBERT_STEPS = 6


@njit(cache=True, nogil=True, error_model="numpy")
def project_rows_simplex(b, radius, out):
    """Project every row of b (n, m) onto ``x >= 0, sum x = radius``."""
    for i in range(b.shape[0]):
        project_simplex(b[i] - largest_entry(b[i]), b.dtype.type(radius), out[i])


@njit(cache=True, nogil=True, error_model="numpy")
def project_rows_top_k(b, domain, k, radius, rho, out):
    """Project every row of b (n, m), as :func:`dtopk.kernels.projections.project_top_k` does."""
    top = np.empty(k + 1, b.dtype)
    for i in range(b.shape[0]):
        project_top_k(b[i], domain, k, radius, b.dtype.type(rho), top, out[i])


@njit(cache=True, nogil=True, error_model="numpy")
def project_rows_ordered(b, weights, radius, rho, out):
    """Project every row of b (n, m), as :func:`dtopk.kernels.ordered.project_ordered` does."""
    top, places = np.empty(weights.size, b.dtype), np.empty(b.shape[1], np.int64)
    for i in range(b.shape[0]):
        project_ordered(b[i], weights, radius, rho, top, places, out[i])


@njit(cache=True, nogil=True, error_model="numpy")
def project_rows_bipartite(b, c, radius, p, n):
    """Project every pair of rows of b (n, k) and c (n, m) onto the bipartite simplex."""
    for i in range(b.shape[0]):
        top_b, top_c = largest_entry(b[i]), largest_entry(c[i])
        project_bipartite(b[i] - top_b, c[i] - top_c, top_b + top_c, radius, p[i], n[i])


@njit(cache=True, nogil=True, error_model="numpy")
def shrink_rows_softmax(b, al, out):
    """Minimise ``al/2 |p|^2 - <b, p> + sum p log p`` over distributions, for every row of b."""
    for i in range(b.shape[0]):
        solve_softmax_row(b[i], al, largest_entry(b[i]), False, out[i])
        total = 0.0
        for j in range(b.shape[1]):
            total += out[i, j]
        # The threshold is as good as its type: what is left of the sum is taken out.
        out[i] /= b.dtype.type(total)


@njit(cache=True, nogil=True, error_model="numpy")
def shrink_rows_entropy(b, al, domain, k, out):
    """Minimise ``al/2 (|x|^2 + s^2) - <b, x> + sum x log x + (1 - s) log(1 - s)`` over a domain."""
    m = b.shape[1] + 1
    scores, dual = np.zeros((1, m), b.dtype), np.zeros((1, m), b.dtype)
    delta = np.zeros((1, m), b.dtype)
    gram, costs = np.full((1, 1), al, b.dtype), np.ones(1, b.dtype)
    labels = np.zeros(1, np.int32)
    for i in range(b.shape[0]):
        # The first class is the label, at a score of 0, with the mass 1 - s.
        scores[0, 0] = 0
        scores[0, 1:] = b[i]
        dual[:] = 0
        update_rows_entropy(scores, gram, dual, delta, labels, costs, domain, k, 0, 1)
        for j in range(m - 1):
            out[i, j] = -dual[0, j + 1]


@njit(cache=True, nogil=True, error_model="numpy")
def lambert_rows(t, out):
    """Write V(t) = W(e^t) of every entry of t (n, m) into out."""
    zero = t.dtype.type(0)
    for i in range(t.shape[0]):
        start_lambert(t[i], zero, out[i])
        for _ in range(_LAMBERT_STEPS):
            refine_lambert(t[i], zero, out[i])
