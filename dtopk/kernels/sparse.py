"""Rows of which few entries are not zero: found, multiplied and added up.

Such rows are the columns `indices[indptr[i]:indptr[i + 1]]` with their `values`, as in a CSR
matrix.
"""

import numpy as np
from numba import njit

from dtopk.kernels.projections import FASTMATH

_LINE = 8
"""Classes that are transposed together: float64 values of one line of the cache."""


@njit(cache=True, nogil=True, error_model="numpy")
def count_nonzeros(rows):
    """Return the number of entries of rows (n, m) that are not zero."""
    count = 0
    for i in range(rows.shape[0]):
        here = 0
        for j in range(rows.shape[1]):
            here += rows[i, j] != 0
        count += here
    return count


@njit(cache=True, nogil=True, error_model="numpy")
def take_nonzeros(rows, indptr, indices, values):
    """Write the entries of rows (n, m) that are not zero.

    Parameters
    ----------
    rows : ndarray of shape (n, m), float32 or float64
    indptr : ndarray of shape (n + 1,), int64
    indices : ndarray of int32, as long as there are entries
    values : ndarray of the same length, the dtype of rows
    """
    place = 0
    indptr[0] = 0
    for i in range(rows.shape[0]):
        for j in range(rows.shape[1]):
            if rows[i, j] != 0:
                indices[place] = j
                values[place] = rows[i, j]
                place += 1
        indptr[i + 1] = place


@njit(cache=True, forceinline=True, nogil=True, fastmath=FASTMATH, error_model="numpy")
def _axpy(x, factor, out):
    for f in range(x.size):
        out[f] += factor * x[f]


@njit(cache=True, nogil=True, error_model="numpy")
def add_outer_products(X, indptr, indices, values, out):
    """Add X' V to out, V the sparse rows; out is transposed, and cut into tiles of features.

    Parameters
    ----------
    X : ndarray of shape (n, width), float32 or float64
    indptr : ndarray of shape (n + 1,), int64
    indices : ndarray of int32
    values : ndarray of the dtype of X
    out : ndarray of shape (n_tiles, n_classes, tile), the dtype of X
        Changed in place. A tile is one piece of memory, which the cache can hold: rows of a
        matrix with a power of 2 of columns would all want the same places in it.
    """
    width, tile = X.shape[1], out.shape[2]
    for number in range(out.shape[0]):
        first = number * tile
        last = min(first + tile, width)
        sums = out[number]
        for i in range(X.shape[0]):
            x = X[i, first:last]
            for place in range(indptr[i], indptr[i + 1]):
                _axpy(x, values[place], sums[indices[place], : last - first])


@njit(cache=True, nogil=True, error_model="numpy")
def add_tiles(tiles, out):
    """Add what :func:`add_outer_products` has summed to out (width, n_classes), float64."""
    tile = tiles.shape[2]
    width, n_classes = out.shape
    for number in range(tiles.shape[0]):
        first = number * tile
        for start in range(0, n_classes, _LINE):
            stop = min(start + _LINE, n_classes)
            for f in range(first, min(first + tile, width)):
                for j in range(start, stop):
                    out[f, j] += tiles[number, j, f - first]


@njit(cache=True, nogil=True, error_model="numpy")
def add_sparse_rows(indptr, indices, values, factor, out):
    """Add factor times sparse rows to rows of out (n, m)."""
    for i in range(out.shape[0]):
        for place in range(indptr[i], indptr[i + 1]):
            out[i, indices[place]] += factor * values[place]


@njit(cache=True, nogil=True, error_model="numpy")
def dot_sparse_rows(indptr, indices, values, rows):
    """Return the sum of the products of sparse rows with rows (n, m), in float64."""
    total = 0.0
    for i in range(rows.shape[0]):
        for place in range(indptr[i], indptr[i + 1]):
            total += np.float64(values[place]) * np.float64(rows[i, indices[place]])
    return total
