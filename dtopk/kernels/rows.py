"""Rows of features into a block in the precision of the computation.

Picking rows, converting them, centring and scaling are one pass, so that no copy of the data is
made for any of them. The mean is subtracted from the values themselves, in their own precision
where that is the wider one: where it is large beside the standard deviation, products of raw values
would have lost the digits that matter.
"""

import numpy as np
from numba import njit

from dtopk.kernels.elementary import half_to_single


@njit(cache=True, nogil=True, error_model="numpy")
def _gather(X, rows, out):
    for i in range(rows.size):
        source, target = X[rows[i]], out[i]
        for j in range(source.size):
            target[j] = source[j]


@njit(cache=True, nogil=True, error_model="numpy")
def _gather_half(bits, rows, out):
    for i in range(rows.size):
        source, target = bits[rows[i]], out[i]
        for j in range(source.size):
            target[j] = half_to_single(source[j])


@njit(cache=True, nogil=True, error_model="numpy")
def _gather_standardized(X, rows, mean, inverse_scale, out):
    for i in range(rows.size):
        source, target = X[rows[i]], out[i]
        for j in range(source.size):
            target[j] = (source[j] - mean[j]) * inverse_scale[j]


@njit(cache=True, nogil=True, error_model="numpy")
def _gather_half_standardized(bits, rows, mean, inverse_scale, out):
    for i in range(rows.size):
        source, target = bits[rows[i]], out[i]
        for j in range(source.size):
            target[j] = (half_to_single(source[j]) - mean[j]) * inverse_scale[j]


def gather_rows(X, rows, mean, inverse_scale, constant, out):
    """Write ``(X[rows] - mean) * inverse_scale`` into out, and a constant into a last column.

    Parameters
    ----------
    X : ndarray of shape (n, d), float16, float32 or float64
        Finite.
    rows : ndarray of shape (n_rows,), int64
    mean, inverse_scale : ndarray of shape (d,), the dtype of out, or None
        Both, or None for the values as they are.
    constant : float
        Value of the column d of out, where out has one.
    out : ndarray of shape (n_rows, d) or (n_rows, d + 1), float32 or float64
    """
    d = X.shape[1]
    half = X.dtype == np.float16
    values = X.view(np.uint16) if half else X
    if mean is None:
        (_gather_half if half else _gather)(values, rows, out)
    else:
        gather = _gather_half_standardized if half else _gather_standardized
        gather(values, rows, mean, inverse_scale, out)
    if out.shape[1] > d:
        out[:, d] = constant


@njit(cache=True, nogil=True, error_model="numpy")
def take_duals(dual, rows, factor, out):
    """Write ``factor * dual[rows]`` into out (n_rows, m)."""
    for i in range(rows.size):
        source, target = dual[rows[i]], out[i]
        for j in range(source.size):
            target[j] = factor * source[j]


@njit(cache=True, nogil=True, error_model="numpy")
def put_duals(values, rows, factor, dual):
    """Write ``factor * values`` into dual[rows]."""
    for i in range(rows.size):
        source, target = values[i], dual[rows[i]]
        for j in range(source.size):
            target[j] = factor * source[j]


@njit(cache=True, nogil=True, error_model="numpy")
def pack_moved_rows(delta, first, last, moved, n_moved):
    """Pack rows first to last of delta that are not zero behind those packed before.

    Parameters
    ----------
    delta : ndarray of shape (n_rows, m), float32 or float64
        Its first `n_moved` rows are packed; so are those that come to them.
    first, last : int
        Rows that are not; n_moved <= first.
    moved : ndarray of shape (n_rows,), int64
        The numbers that packed rows have had.
    n_moved : int

    Returns
    -------
    int
        How many are packed now.
    """
    for i in range(first, last):
        row = delta[i]
        j = 0
        while j < row.size and row[j] == 0:
            j += 1
        if j == row.size:
            continue
        if i != n_moved:
            delta[n_moved] = row
        moved[n_moved] = i
        n_moved += 1
    return n_moved


@njit(cache=True, nogil=True, error_model="numpy")
def take_columns(values, columns, out):
    """Write values[:, columns] into out (n_rows, n_columns)."""
    for i in range(out.shape[0]):
        source, target = values[i], out[i]
        for place in range(columns.size):
            target[place] = source[columns[place]]


@njit(cache=True, nogil=True, error_model="numpy")
def pack_rows(values, rows):
    """Move rows of values, ascending, to its beginning."""
    for place in range(rows.size):
        if rows[place] != place:
            values[place] = values[rows[place]]
