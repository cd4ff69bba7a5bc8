"""How well the scores of a row, or of a class, put the relevant before the irrelevant."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from dtopk.evaluation.accuracy import rank_true_classes


def compute_rank_losses(relevant: NDArray[np.bool_], scores: NDArray[Any]) -> NDArray[np.float64]:
    """Compute the share of wrongly ordered pairs of every row.

    With Y the labels of a row and Z the other classes,
    ``|{(y, z) in Y x Z : scores_y <= scores_z}| / (|Y| |Z|)``: a tie counts as wrong, as in
    scikit-learn's `label_ranking_loss`.

    Parameters
    ----------
    relevant : ndarray of shape (n_rows, n_classes), bool
        True labels.
    scores : ndarray of shape (n_rows, n_classes)
        Finite.

    Returns
    -------
    ndarray of shape (n_rows,), float64
        0 to 1; 0 for a row without labels or with all of them, which has no pairs.
    """
    # Lowest first, and of equal scores the relevant ones, so that a tie is seen as wrong.
    order = np.lexsort((~relevant, scores), axis=1)
    in_order = np.take_along_axis(relevant, order, axis=1)
    wrong = (np.cumsum(in_order, axis=1) * ~in_order).sum(axis=1)
    n_labels = np.count_nonzero(relevant, axis=1)
    n_pairs = n_labels * (relevant.shape[1] - n_labels)
    losses = np.zeros(len(wrong))
    np.divide(wrong, n_pairs, out=losses, where=n_pairs > 0)
    return losses


def rank_best_labels(relevant: NDArray[np.bool_], scores: NDArray[Any]) -> NDArray[np.int64]:
    """Count the classes placed before the first of a row's labels.

    Parameters
    ----------
    relevant : ndarray of shape (n_rows, n_classes), bool
        True labels, at least one in every row.
    scores : ndarray of shape (n_rows, n_classes)
        Finite.

    Returns
    -------
    ndarray of shape (n_rows,), int64
        In the order of `rank_true_classes`: the least of the ranks of the row's labels.
    """
    best = np.argmax(np.where(relevant, scores, -np.inf), axis=1)
    return rank_true_classes(best, scores)


def compute_average_precision(relevant: NDArray[np.bool_], scores: NDArray[Any]) -> float:
    """Compute the average precision of one class over all rows.

    ``sum_n (R_n - R_(n-1)) P_n``, with the precision P_n and the recall R_n of the rows that score
    at least as much as the n-th highest distinct score, as scikit-learn's `average_precision_score`
    has it.

    Parameters
    ----------
    relevant : ndarray of shape (n_rows,), bool
        Whether the row has the label.
    scores : ndarray of shape (n_rows,)
        Finite.

    Returns
    -------
    float
        0 to 1; NaN where no row has the label.
    """
    n_relevant = np.count_nonzero(relevant)
    if n_relevant == 0:
        return float("nan")
    order = np.argsort(scores)[::-1]
    last = last_of_equals(scores[order])
    hits = np.cumsum(relevant[order])[last]
    return float(np.diff(hits, prepend=0) @ (hits / (last + 1)) / n_relevant)


def last_of_equals(values: NDArray[Any]) -> NDArray[np.intp]:
    """Find where each run of equal values ends.

    Parameters
    ----------
    values : ndarray of shape (n_values,), not empty
        In ascending or descending order.

    Returns
    -------
    ndarray of shape (n_distinct,), intp
    """
    return np.flatnonzero(np.append(values[1:] != values[:-1], True))
