"""Products and sums of long arrays, in float64 whatever their own precision."""

import numpy as np
from numba import njit

from dtopk.kernels.projections import FASTMATH

_PIECE = 1 << 15


@njit(cache=True, nogil=True, fastmath=FASTMATH, error_model="numpy")
def dot(a, b):
    """Return <a, b> of arrays of shape (n,), float32 or float64."""
    total = 0.0
    for i in range(a.size):
        total += np.float64(a[i]) * np.float64(b[i])
    return total


@njit(cache=True, nogil=True, fastmath=FASTMATH, error_model="numpy")
def add_multiple(factor, a, out):
    """Add factor * a, of shape (n,), float32 or float64, to out (n,), float64."""
    for i in range(a.size):
        out[i] += factor * np.float64(a[i])


def combine(factors, vectors, out):
    """Set out to a sum of multiples, some thousand entries at a time: they stay in the cache.

    Parameters
    ----------
    factors : sequence of float
    vectors : sequence of ndarray of shape (n,), float32 or float64
    out : ndarray of shape (n,), float32 or float64
        May be one of the vectors.
    """
    scratch = np.empty(min(_PIECE, out.size))
    for first in range(0, out.size, _PIECE):
        part = slice(first, min(first + _PIECE, out.size))
        total = scratch[: part.stop - first]
        total[:] = 0
        for factor, vector in zip(factors, vectors, strict=True):
            add_multiple(float(factor), vector[part], total)
        out[part] = total


def multiply(left, right):
    """Return the products of vectors with vectors, some thousand entries at a time.

    Parameters
    ----------
    left, right : sequence of ndarray of shape (n,), float32 or float64

    Returns
    -------
    ndarray of shape (n_left, n_right), float64
    """
    products = np.zeros((len(left), len(right)))
    for first in range(0, left[0].size, _PIECE):
        part = slice(first, first + _PIECE)
        for i, one in enumerate(left):
            for j, other in enumerate(right):
                products[i, j] += dot(one[part], other[part])
    return products
