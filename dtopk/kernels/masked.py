"""Rows some of whose classes are left out of the loss, for the kernels that know no such classes.

While a kernel runs, a class left out of a row has :data:`STAND_IN` for its score. That is far
below every score, so that the class gets no mass, and finite, unlike minus infinity, whose product
with that mass would be NaN. One more compiled kernel for every loss, with masks in it, would take
longer to compile than all that is done here costs.
"""

import numpy as np
from numba import njit

STAND_IN = -1e20
"""The score of a class that is left out. Its square is beyond float32, which selects cope with."""


@njit(cache=True, nogil=True, error_model="numpy")
def put_stand_ins(scores, labels, masked, lifts, first, last, kept):
    """Put stand-ins in the place of the scores of masked classes, and lift those of the labels.

    Parameters
    ----------
    scores : ndarray of shape (n_rows, m), float32 or float64
        Changed in rows first to last, as :func:`remove_stand_ins` undoes it.
    labels : ndarray of shape (n_rows,), int32
    masked : ndarray of shape (n_rows, n_masked), int32
        The classes left out. A label among them keeps its score.
    lifts : ndarray of shape (n_rows,), the dtype of scores
        Added to the scores of the labels.
    first, last : int
    kept : ndarray of shape (last - first, n_masked + 1), the dtype of scores
        Receives the scores of the masked classes and, last, those of the labels.
    """
    n_masked = masked.shape[1]
    for i in range(first, last):
        label = labels[i]
        for e in range(n_masked):
            j = masked[i, e]
            kept[i - first, e] = scores[i, j]
            if j != label:
                scores[i, j] = STAND_IN
        kept[i - first, n_masked] = scores[i, label]
        scores[i, label] += lifts[i]


@njit(cache=True, forceinline=True, nogil=True, error_model="numpy")
def _moved_score(score, gram, delta, first, row, j):
    """Return the score of class j in a row after rows first to row have changed by delta."""
    for i in range(first, row):
        score += gram[row, i] * delta[i, j]
    return score


@njit(cache=True, nogil=True, error_model="numpy")
def remove_stand_ins(scores, gram, dual, delta, labels, masked, costs, lifts, first, last, kept):
    """Put back the scores for which there were stand-ins, after an update of the rows.

    The scores are those at which each row was solved, as all others of it are. Masked classes
    have duals of zero, where the update leaves what is below the rounding of every mass.

    Parameters
    ----------
    scores, gram, dual, delta, costs
        As :func:`dtopk.kernels.hinge.update_rows_hinge` leaves them.
    labels, masked, lifts, first, last, kept
        Those of :func:`put_stand_ins`, which has filled kept.

    Returns
    -------
    float
        sum_i lifts_i (C_i - a_iy), what the lifts add to the dual's terms.
    """
    n_masked = masked.shape[1]
    total = 0.0
    for i in range(first, last):
        label = labels[i]
        for e in range(n_masked):
            j = masked[i, e]
            if j != label:
                delta[i, j] -= dual[i, j]
                dual[i, j] = 0
                scores[i, j] = _moved_score(kept[i - first, e], gram, delta, first, i, j)
        if lifts[i] != 0:
            own = kept[i - first, n_masked]
            scores[i, label] = _moved_score(own, gram, delta, first, i, label)
            total += np.float64(lifts[i]) * (np.float64(costs[i]) - np.float64(dual[i, label]))
    return total
