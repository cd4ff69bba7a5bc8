"""Products of a row's duals with its scores."""

from numba import njit

from dtopk.kernels.projections import FASTMATH


@njit(cache=True, nogil=True, fastmath=FASTMATH, error_model="numpy")
def products_with_scores(dual, delta, scores, label):
    """Return <a, u> and <da, u> of a row.

    The label's score is taken off u, as the entries of a and of da each sum to zero: what is left
    of their rounding is not multiplied by scores that are large together. This is a sweep of its
    own that writes nothing. In one that writes, the order of the sums would depend on where the
    rows lie in memory (:mod:`dtopk.kernels.workspace`).

    Parameters
    ----------
    dual, delta, scores : ndarray of shape (m,), float32 or float64
        a, da and u.
    label : int

    Returns
    -------
    product : float
    change : float
    """
    own = scores[label]
    product, change = dual.dtype.type(0), dual.dtype.type(0)
    for j in range(dual.size):
        product += dual[j] * (scores[j] - own)
        change += delta[j] * (scores[j] - own)
    return product, change
