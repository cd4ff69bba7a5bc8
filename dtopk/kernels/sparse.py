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
def take_nonzeros(rows, indptr, indices, values):
    """Write the entries of rows (n, m) that are not zero.

    Parameters
    ----------
    rows : ndarray of shape (n, m), float32 or float64
    indptr : ndarray of shape (n + 1,), int64
    indices : ndarray of int32
        Its last m places are of no use.
    values : ndarray of the same length, the dtype of rows

    Returns
    -------
    int
        How many there are; -1 if there was no place for them.
    """
    n_classes = rows.shape[1]
    place, last = 0, len(values) - n_classes
    indptr[0] = 0
    for i in range(rows.shape[0]):
        # Every entry is written where the next one goes: without a branch, which would be missed.
        for j in range(n_classes):
            indices[place] = j
            values[place] = rows[i, j]
            place += rows[i, j] != 0
        if place > last:
            return -1
        indptr[i + 1] = place
    return place


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
def add_tiles(tiles, keeps, out):
    """Add what :func:`add_outer_products` has summed to out (width, n_classes), float64.

    Unless `keeps`, what out holds does not count.
    """
    tile = tiles.shape[2]
    width, n_classes = out.shape
    for number in range(tiles.shape[0]):
        first = number * tile
        for start in range(0, n_classes, _LINE):
            stop = min(start + _LINE, n_classes)
            for f in range(first, min(first + tile, width)):
                for j in range(start, stop):
                    out[f, j] = tiles[number, j, f - first] + (out[f, j] if keeps else 0.0)


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
