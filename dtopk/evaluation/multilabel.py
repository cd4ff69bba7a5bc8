"""Quality of scores for rows that have a set of labels each, counted batch by batch.

What does not depend on a threshold and is of one row each, the rank loss and the top-k accuracy, is
summed up as the batches come. Average precision compares the scores of all rows, and a threshold is
chosen after all have been seen: for these every score is kept (`ScoreSpool`), in memory up to a
limit and beyond it in a temporary file.
"""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from dtopk.evaluation.accuracy import share_within_topk
from dtopk.evaluation.label_metrics import measure_thresholds
from dtopk.evaluation.ranking import (
    compute_average_precision,
    compute_rank_losses,
    rank_best_labels,
)
from dtopk.evaluation.score_spool import ScoreSpool


@dataclass(kw_only=True, eq=False)
class MultilabelCounts:
    """What was counted over the rows seen so far, and their scores.

    A row may have no label, or all. Every metric counts it among its rows: its rank loss is 0; it
    is never right in top-k accuracy without a label, and always with all. `label_metrics` says what
    a threshold makes of it.

    Scores take 5 bytes each in float32 and 9 in float64, with their label. At most `memory_bytes`
    of them are in memory, the rest in an unlinked file in TMPDIR. Work on them takes about 150 MB
    more, and for what goes by class some 80 bytes for every row; see `choose_threshold` for what
    its search takes.
    """

    n_classes: int
    """Number of classes of the model."""
    dtype: DTypeLike = np.float32
    """float32 or float64: scores are rounded to it before anything is counted."""
    memory_bytes: int = 1 << 30
    """Bytes of scores and labels that are held in memory at most."""
    zero_division: float = 0.0
    """F1 score and accuracy where there is no label, neither true nor predicted: 0 or 1."""
    n_rows: int = field(init=False, default=0)
    """Number of rows counted."""
    rank_loss_sum: float = field(init=False, default=0.0)
    """Sum of the rank losses of the rows."""
    rows_by_rank: NDArray[np.int64] = field(init=False)
    """Rows whose best label has rank 0, 1, ..., shape (n_classes,); none without labels."""
    spool: ScoreSpool = field(init=False)
    """Scores and labels of all rows."""

    def __post_init__(self) -> None:
        """Start at zero."""
        if np.dtype(self.dtype) not in (np.float32, np.float64):
            raise ValueError(f"dtype must be float32 or float64, got {np.dtype(self.dtype).name}.")
        if self.memory_bytes < 1:
            raise ValueError(f"memory_bytes must be at least 1, got {self.memory_bytes}.")
        if self.zero_division not in (0, 1):
            raise ValueError(f"zero_division must be 0 or 1, got {self.zero_division!r}.")
        self.rows_by_rank = np.zeros(self.n_classes, dtype=np.int64)
        self.spool = ScoreSpool(
            n_classes=self.n_classes, dtype=self.dtype, memory_bytes=self.memory_bytes
        )

    def update(self, indicator: NDArray[Any], scores: NDArray[Any]) -> None:
        """Count one batch.

        Parameters
        ----------
        indicator : ndarray of shape (n_rows, n_classes), bool or integer
            True, or 1, for the labels of a row.
        scores : ndarray of shape (n_rows, n_classes), float

        Raises
        ------
        ValueError
            If a shape is another, the indicator holds anything but 0 and 1, or a score is NaN,
            infinite, or too large for `dtype`.
        OSError
            If there is no room in TMPDIR for scores that memory is not to hold.
        """
        relevant = self._check_indicator(indicator)
        scores = self._check_scores(scores, len(relevant))
        self.spool.append(relevant, scores)
        self.rank_loss_sum += float(compute_rank_losses(relevant, scores).sum())
        labelled = relevant.any(axis=1)
        ranks = rank_best_labels(relevant[labelled], scores[labelled])
        self.rows_by_rank += np.bincount(ranks, minlength=self.n_classes)
        self.n_rows += len(relevant)

    def rank_loss(self) -> float:
        """Compute the mean over the rows of the share of wrongly ordered pairs.

        A pair is a label of the row and a class that is none, and wrongly ordered where the label
        does not score more, as in scikit-learn's `label_ranking_loss`.

        Returns
        -------
        float
            0 to 1; NaN before the first row. A row without labels or with all of them adds 0.
        """
        return self.rank_loss_sum / self.n_rows if self.n_rows else float("nan")

    def topk_accuracy(self, k: int) -> float:
        """Compute the share of rows that have one of their labels among the k highest scores.

        Equal scores are in class order, as in `AccuracyCounts`.

        Parameters
        ----------
        k : int, 1 <= k <= n_classes

        Returns
        -------
        float
            0 to 1; NaN before the first row. A row without labels is never right.
        """
        return share_within_topk(self.rows_by_rank, k, self.n_rows)

    def topk_accuracies(self, k_max: int = 10) -> dict[int, float]:
        """Compute the top-k accuracy of k = 1, ..., k_max, or to n_classes where that is less."""
        return {k: self.topk_accuracy(k) for k in range(1, min(k_max, self.n_classes) + 1)}

    def average_precision_by_class(self) -> NDArray[np.float64]:
        """Compute the average precision of every class, as `compute_average_precision` has it.

        Returns
        -------
        ndarray of shape (n_classes,), float64
            NaN for a class that no row has.
        """
        return np.array(
            [
                compute_average_precision(*one_class)
                for some_classes in self.spool.iter_classes()
                for one_class in zip(*some_classes, strict=True)
            ]
        )

    def mean_average_precision(self) -> float:
        """Compute the mean of `average_precision_by_class` over the classes that have rows.

        Returns
        -------
        float
            0 to 1; NaN where no row has a label.
        """
        values = self.average_precision_by_class()
        values = values[~np.isnan(values)]
        return float(values.mean()) if len(values) else float("nan")

    def label_metrics(self, delta: float) -> dict[str, float]:
        """Compute the metrics of the labels predicted, those that score more than delta.

        * ``f1_samples``: mean over the rows of ``2 |P and T| / (|P| + |T|)``, with P the labels
          predicted and T the true ones;
        * ``f1_macro``: the same over the classes, with P and T the rows of a class;
        * ``f1_micro``: the same of all rows and classes at once;
        * ``accuracy``: mean over the rows of ``|P and T| / |P or T|``;
        * ``subset_accuracy``: share of rows where P = T;
        * ``hamming_loss``: share of all rows and classes that are in one of P and T only.

        All are scikit-learn's. Where P and T are both empty, the F1 score and the accuracy are
        `zero_division`, and the subset accuracy is 1. A row without labels has an F1 score and an
        accuracy of 0 as soon as one is predicted; so has a class without rows, which counts in the
        mean.

        Parameters
        ----------
        delta : float
            Rounded to `dtype`.

        Returns
        -------
        dict of str to float
            0 to 1; NaN before the first row.
        """
        if np.isnan(delta):
            raise ValueError(f"delta must be a number, got {delta!r}.")
        return measure_thresholds(self.spool, [delta], self.zero_division)[0]

    def _check_indicator(self, indicator: NDArray[Any]) -> NDArray[np.bool_]:
        if indicator.ndim != 2 or indicator.shape[1] != self.n_classes:
            raise ValueError(
                f"indicator must have shape (n_rows, {self.n_classes}), got {indicator.shape}."
            )
        relevant: NDArray[np.bool_] = indicator.astype(np.bool_)
        if indicator.dtype != np.bool_ and (indicator != relevant).any():
            row, column = np.argwhere(indicator != relevant)[0].tolist()
            raise ValueError(
                f"indicator must hold 0 and 1, got {indicator[row, column]} in row "
                f"{self.n_rows + row}, column {column}."
            )
        return relevant

    def _check_scores(self, scores: NDArray[Any], n_rows: int) -> NDArray[Any]:
        if scores.shape != (n_rows, self.n_classes):
            raise ValueError(
                f"scores must have shape ({n_rows}, {self.n_classes}), as the indicator, got "
                f"{scores.shape}."
            )
        with np.errstate(over="ignore"):
            rounded = scores.astype(self.spool.dtype, copy=False)
        finite = np.isfinite(rounded)
        if not finite.all():
            row, column = np.argwhere(~finite)[0].tolist()
            raise ValueError(
                f"scores must be finite in {self.spool.dtype.name}, got {scores[row, column]} in "
                f"row {self.n_rows + row}, column {column}."
            )
        return rounded
