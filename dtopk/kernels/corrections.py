"""The exact scores inside a block, from the block's Gram matrix."""

from numba import njit

from dtopk.kernels.projections import FASTMATH


@njit(cache=True, forceinline=True, nogil=True, fastmath=FASTMATH, error_model="numpy")
def correct_scores(scores, gram, delta, changed, n_changed, row):
    """Add to one row of scores what the changed dual rows of its block have done to W since.

    ``scores[row] += sum_j gram[row, j] delta[j]`` over ``j = changed[:n_changed]``, four at a
    time, so that the row is loaded once for four of them. Rows whose dual did not move cost
    nothing, and late in training with a hinge loss most do not.

    Parameters
    ----------
    scores : ndarray of shape (n_rows, m), float32 or float64
    gram : ndarray of shape (n_rows, n_rows), the dtype of scores
        The lower triangle is read.
    delta : ndarray of shape (n_rows, m), the dtype of scores
    changed : ndarray of shape (n_rows,), int64
    n_changed : int
    row : int
    """
    target = scores[row]
    whole = n_changed - n_changed % 4
    for i in range(0, whole, 4):
        j0, j1, j2, j3 = changed[i], changed[i + 1], changed[i + 2], changed[i + 3]
        g0, g1, g2, g3 = gram[row, j0], gram[row, j1], gram[row, j2], gram[row, j3]
        d0, d1, d2, d3 = delta[j0], delta[j1], delta[j2], delta[j3]
        for c in range(target.size):
            target[c] += (g0 * d0[c] + g1 * d1[c]) + (g2 * d2[c] + g3 * d3[c])
    for i in range(whole, n_changed):
        g0, d0 = gram[row, changed[i]], delta[changed[i]]
        for c in range(target.size):
            target[c] += g0 * d0[c]
