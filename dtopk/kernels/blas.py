"""Matrix products in place, by the BLAS that scipy carries.

All the gemms of a pass go through here, for three reasons. numpy and scipy each bring an
OpenBLAS with a thread pool of its own, and calling both in turn makes the idle pool spin on the
cores that the other one needs. Only the raw routine accumulates into its output (``beta``), so
that ``W += X.T @ D`` needs no temporary of W's size. And scipy's own wrappers hold the
interpreter lock for the length of the product, which would stop the thread that reads ahead;
a ctypes call releases it.
"""

import ctypes
from typing import Any

import numpy as np
from numba.extending import get_cython_function_address
from threadpoolctl import threadpool_info


def _routine(name: str, n_arguments: int) -> Any:
    address = get_cython_function_address("scipy.linalg.cython_blas", name)
    return ctypes.CFUNCTYPE(None, *([ctypes.c_void_p] * n_arguments))(address)


_GEMM = {np.dtype(np.float32): _routine("sgemm", 13), np.dtype(np.float64): _routine("dgemm", 13)}
_SCALAR = {np.dtype(np.float32): ctypes.c_float, np.dtype(np.float64): ctypes.c_double}

_PANEL = 64
"""Columns of a Gram matrix that are one product, at least."""
_MOST_PANELS = 8


def _layout(a: np.ndarray) -> tuple[bytes, int]:
    """Say how column-major BLAS must read `a`: as it lies (N) for rows, transposed for columns."""
    if a.size == 0:
        return b"N", max(a.shape[1], 1)
    row, column = a.strides[0] // a.itemsize, a.strides[1] // a.itemsize
    if column == 1 or a.shape[1] == 1:
        return b"N", max(row, a.shape[1], 1)
    assert row == 1 or a.shape[0] == 1, "gemm needs unit stride along one axis"
    return b"T", max(column, a.shape[0], 1)


def count_threads() -> int:
    """Count the threads that matrix products take where nobody says how many."""
    pools = [pool["num_threads"] for pool in threadpool_info() if pool["user_api"] == "blas"]
    return max(pools, default=1)


def gemm(
    a: np.ndarray, b: np.ndarray, out: np.ndarray, *, alpha: float = 1.0, beta: float = 0.0
) -> None:
    """Compute ``out = alpha * a @ b + beta * out`` in place, without the interpreter lock.

    Parameters
    ----------
    a : ndarray of shape (p, q), float32 or float64
        Unit stride along one axis (a slice or a transpose of a C-contiguous array will do).
    b : ndarray of shape (q, r), the dtype of `a`
    out : ndarray of shape (p, r), the dtype of `a`
        Unit stride along its rows.
    alpha, beta : float
    """
    assert a.dtype == b.dtype == out.dtype
    assert a.shape[1] == b.shape[0]
    assert out.shape == (a.shape[0], b.shape[1])
    p, r = out.shape
    if p == 0 or r == 0:
        return
    # Row-major out = a b is column-major out' = b' a'.
    trans_a, lda = _layout(a)
    trans_b, ldb = _layout(b)
    trans_out, ldc = _layout(out)
    assert trans_out == b"N", "out needs unit stride along its rows"
    scalar = _SCALAR[out.dtype]
    integer = ctypes.c_int
    ref = ctypes.byref
    _GEMM[out.dtype](
        trans_b,
        trans_a,
        ref(integer(r)),
        ref(integer(p)),
        ref(integer(a.shape[1])),
        ref(scalar(alpha)),
        b.ctypes.data,
        ref(integer(ldb)),
        a.ctypes.data,
        ref(integer(lda)),
        ref(scalar(beta)),
        out.ctypes.data,
        ref(integer(ldc)),
    )


def gram(a: np.ndarray, out: np.ndarray, *, alpha: float = 1.0) -> None:
    """Compute the lower triangle of ``out = alpha * a @ a.T``; the upper one is of no use.

    Parameters
    ----------
    a : ndarray of shape (p, q), float32 or float64
        Unit stride along its rows.
    out : ndarray of shape (p, p), the dtype of `a`
        Unit stride along its rows.
    alpha : float
    """
    assert out.shape == (a.shape[0], a.shape[0])
    # BLAS has a routine for this, but with few rows its threads wait for each other.
    size = max(_PANEL, -(-a.shape[0] // _MOST_PANELS))
    for first in range(0, a.shape[0], size):
        panel = slice(first, first + size)
        gemm(a[first:], a[panel].T, out[first:, panel], alpha=alpha)
