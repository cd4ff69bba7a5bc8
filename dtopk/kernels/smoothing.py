"""The square that smoothing adds to a conjugate, as Frank-Wolfe's method needs it.

With a smoothing of strength gamma, D_i(a) is a linear function on its domain, less
``gamma / (2 C_i) |a|^2`` over all classes or over all but one of them, which `skipped` names:
-1 for none.
"""

import numpy as np
from numba import njit

from dtopk.kernels.projections import FASTMATH


@njit(cache=True, forceinline=True, nogil=True, fastmath=FASTMATH, error_model="numpy")
def _add_scaled(scores, dual, factor):
    """Add factor * dual to scores (m,), in place."""
    for j in range(scores.size):
        scores[j] += factor * dual[j]


@njit(cache=True, forceinline=True, nogil=True, fastmath=FASTMATH, error_model="numpy")
def _product(a, b):
    """Return <a, b> (m,), summed in float64."""
    total = 0.0
    for j in range(a.size):
        total += np.float64(a[j]) * np.float64(b[j])
    return total


@njit(cache=True, nogil=True, error_model="numpy")
def shift_scores(scores, dual, skipped, costs, gamma):
    """Add gamma/C_i * dual to scores (n, m), in place, but for the class skipped[i] of a row.

    Parameters
    ----------
    scores : ndarray of shape (n, m), float32 or float64
    dual : ndarray of shape (n, m), the dtype of scores
    skipped : ndarray of shape (n,), int32
    costs : ndarray of shape (n,), float64
        Rows of cost 0 are left as they are.
    gamma : float
    """
    for i in range(scores.shape[0]):
        if costs[i] == 0:
            continue
        own = skipped[i]
        kept = scores[i, own] if own >= 0 else scores.dtype.type(0)
        _add_scaled(scores[i], dual[i], scores.dtype.type(gamma / costs[i]))
        if own >= 0:
            scores[i, own] = kept


@njit(cache=True, nogil=True, error_model="numpy")
def smoothing_products(first, second, skipped, costs, gamma, out):
    """Write gamma/C_i <first_i, second_i> but for the class skipped[i] into out (n,), float64.

    Rows of cost 0 have 0.
    """
    for i in range(first.shape[0]):
        if costs[i] == 0:
            out[i] = 0.0
            continue
        total = _product(first[i], second[i])
        own = skipped[i]
        if own >= 0:
            total -= np.float64(first[i, own]) * np.float64(second[i, own])
        out[i] = gamma / costs[i] * total


@njit(cache=True, nogil=True, error_model="numpy")
def label_sums(dual, indptr, indices, out):
    """Write the sum of a dual row over the labels, less that over the others, into out (n,)."""
    for i in range(dual.shape[0]):
        total = 0.0
        for j in range(dual.shape[1]):
            total -= dual[i, j]
        for y in indices[indptr[i] : indptr[i + 1]]:
            total += 2 * np.float64(dual[i, y])
        out[i] = total
