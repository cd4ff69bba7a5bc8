"""Products and sums of long arrays, in float64 whatever their own precision."""

import numpy as np
from numba import njit

from dtopk.kernels.projections import FASTMATH


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
