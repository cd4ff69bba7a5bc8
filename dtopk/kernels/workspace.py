"""Vectors for a kernel to work in."""

import numpy as np
from numba import njit

_MARGIN = 256
"""More entries than a vectorised loop takes at a time."""


@njit(cache=True, forceinline=True, nogil=True)
def working_vector(size, like):
    """Return an uninitialised vector with nothing else nearby.

    A vectorised loop that reads one array and writes another first looks whether the second
    begins within a few vectors of the first, and falls back on single steps if so, which sum in
    another order. With short arrays that depends on where the allocator happens to put them: the
    same input would not always give the same bits.

    Parameters
    ----------
    size : int
    like : ndarray
        Its dtype is that of the vector.

    Returns
    -------
    ndarray of shape (size,)
    """
    return np.empty(size + 2 * _MARGIN, like.dtype)[_MARGIN : _MARGIN + size]
