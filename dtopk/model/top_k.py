"""The classes of the highest scores."""

from typing import Any

import numpy as np
from numpy.typing import NDArray


def select_topk(scores: NDArray[Any], k: int) -> NDArray[np.intp]:
    """Find the k highest scores of every row, best first; equal ones in the order of columns.

    Parameters
    ----------
    scores : ndarray of shape (n_samples, n_classes)
    k : int, 1 <= k <= n_classes

    Returns
    -------
    ndarray of shape (n_samples, k), intp
        Column numbers.
    """
    n_classes = scores.shape[1]
    if not 1 <= k <= n_classes:
        raise ValueError(f"k must be between 1 and n_classes = {n_classes}, got {k}.")
    if k == n_classes:
        return np.argsort(-scores, axis=1, kind="stable")
    top = np.argpartition(-scores, k - 1, axis=1)[:, :k]
    top_scores = np.take_along_axis(scores, top, axis=1)
    # argpartition takes any of the scores that are equal at the k-th place: do those rows anew.
    tied = np.flatnonzero((scores >= top_scores.min(axis=1, keepdims=True)).sum(axis=1) > k)
    top[tied] = np.argsort(-scores[tied], axis=1, kind="stable")[:, :k]
    top.sort(axis=1)
    order = np.argsort(-np.take_along_axis(scores, top, axis=1), axis=1, kind="stable")
    return np.take_along_axis(top, order, axis=1)
