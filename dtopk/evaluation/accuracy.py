"""Accuracy of scores, counted batch by batch so that no more than one batch is in memory.

The rank of a row is the number of classes placed before its true one: those of a higher score,
and of an equal score those earlier in class order. This is the order of `Model.predict_topk`, so
top-k accuracy is the share of rows whose label is among the k that it names. (scikit-learn's
`top_k_accuracy_score` takes the later of equal classes first.)
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray


@dataclass(kw_only=True)
class AccuracyCounts:
    """What was counted over the rows seen so far."""

    n_classes: int
    """Number of classes of the model."""
    rows_by_rank: NDArray[np.int64] = field(init=False)
    """Rows whose true class has rank 0, 1, ..., shape (n_classes,)."""
    rows_by_class: NDArray[np.int64] = field(init=False)
    """Rows of every true class, shape (n_classes,)."""
    correct_by_class: NDArray[np.int64] = field(init=False)
    """Rows of every true class that have rank 0, shape (n_classes,)."""
    confusions: Counter[tuple[int, int]] = field(init=False, default_factory=Counter)
    """Rows by (true class, class predicted instead)."""

    def __post_init__(self) -> None:
        """Start at zero."""
        self.rows_by_rank = np.zeros(self.n_classes, dtype=np.int64)
        self.rows_by_class = np.zeros(self.n_classes, dtype=np.int64)
        self.correct_by_class = np.zeros(self.n_classes, dtype=np.int64)

    def update(self, y: NDArray[Any], scores: NDArray[Any]) -> None:
        """Count one batch.

        Parameters
        ----------
        y : ndarray of shape (n_rows,), integer
            True classes, 0 to n_classes - 1.
        scores : ndarray of shape (n_rows, n_classes)
        """
        if len(y) == 0:
            return
        ranks = rank_true_classes(y, scores)
        self.rows_by_rank += np.bincount(ranks, minlength=self.n_classes)
        self.rows_by_class += np.bincount(y, minlength=self.n_classes)
        self.correct_by_class += np.bincount(y[ranks == 0], minlength=self.n_classes)
        wrong = np.flatnonzero(ranks)
        predicted = np.argmax(scores[wrong], axis=1)
        self.confusions.update(zip(y[wrong].tolist(), predicted.tolist(), strict=True))

    @property
    def n_rows(self) -> int:
        """Number of rows counted."""
        return int(self.rows_by_rank.sum())

    def topk_accuracy(self, k: int) -> float:
        """Compute the share of rows whose true class is among the k highest scores.

        Parameters
        ----------
        k : int, 1 <= k <= n_classes

        Returns
        -------
        float
            0 to 1; NaN before the first row.
        """
        return share_within_topk(self.rows_by_rank, k, self.n_rows)

    def topk_accuracies(self, k_max: int = 10) -> dict[int, float]:
        """Compute the top-k accuracy of k = 1, ..., k_max, or to n_classes where that is less."""
        return {k: self.topk_accuracy(k) for k in range(1, min(k_max, self.n_classes) + 1)}

    def accuracy_by_class(self) -> NDArray[np.float64]:
        """Compute the share of each true class's rows that have rank 0; NaN for no rows.

        Returns
        -------
        ndarray of shape (n_classes,), float64
        """
        seen = self.rows_by_class > 0
        shares = np.full(self.n_classes, np.nan)
        shares[seen] = self.correct_by_class[seen] / self.rows_by_class[seen]
        return shares

    def most_confused(self, n_pairs: int) -> list[tuple[int, int, int]]:
        """List the commonest mistakes, as (true class, predicted class, rows)."""
        ordered = sorted(self.confusions.items(), key=lambda item: (-item[1], item[0]))
        return [(true, predicted, rows) for (true, predicted), rows in ordered[:n_pairs]]


def share_within_topk(rows_by_rank: NDArray[np.int64], k: int, n_rows: int) -> float:
    """Compute the share of rows that have a rank below k.

    Parameters
    ----------
    rows_by_rank : ndarray of shape (n_classes,), int64
        Rows of rank 0, 1, ...
    k : int, 1 <= k <= n_classes
    n_rows : int
        All rows; some may have no rank.

    Returns
    -------
    float
        0 to 1; NaN for no rows.

    Raises
    ------
    ValueError
        If k is out of range.
    """
    if not 1 <= k <= len(rows_by_rank):
        raise ValueError(f"k must be between 1 and n_classes = {len(rows_by_rank)}, got {k}.")
    if n_rows == 0:
        return float("nan")
    return float(rows_by_rank[:k].sum() / n_rows)


def rank_true_classes(y: NDArray[Any], scores: NDArray[Any]) -> NDArray[np.int64]:
    """Count the classes placed before the true one of every row.

    Parameters
    ----------
    y : ndarray of shape (n_rows,), integer
        True classes, 0 to n_classes - 1.
    scores : ndarray of shape (n_rows, n_classes)
        Finite.

    Returns
    -------
    ndarray of shape (n_rows,), int64
        Higher scores, and equal ones earlier in class order.
    """
    true_scores = np.take_along_axis(scores, y[:, np.newaxis].astype(np.intp), axis=1)
    higher = (scores > true_scores).sum(axis=1)
    earlier = np.arange(scores.shape[1]) < y[:, np.newaxis]
    ranks: NDArray[np.int64] = higher + ((scores == true_scores) & earlier).sum(axis=1)
    return ranks


def match_classes(store_names: Sequence[str], model_classes: NDArray[Any]) -> NDArray[np.int64]:
    """Find the model's column of each of a store's classes, by name.

    Parameters
    ----------
    store_names : sequence of str
        Class names of the store, in the order of its codes.
    model_classes : ndarray of shape (n_classes,)
        Class names of the model, of any type; compared as strings.

    Returns
    -------
    ndarray of shape (len(store_names),), int64
        The model's column; -1 for a class that the model does not know.
    """
    columns = {str(name): column for column, name in enumerate(model_classes.tolist())}
    return np.array([columns.get(name, -1) for name in store_names], dtype=np.int64)
