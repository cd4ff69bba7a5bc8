"""How far probabilities are from what happens, counted batch by batch."""

from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

Binning = Literal["equal_width", "equal_mass"]


@dataclass(frozen=True, kw_only=True, eq=False)
class ReliabilityBins:
    """Rows by the probability of the class predicted, its confidence; bins without rows left out.

    All have shape (n_bins,).
    """

    n_rows: NDArray[np.int64]
    """Rows of each bin."""
    confidence: NDArray[np.float64]
    """Mean confidence, in ascending order."""
    accuracy: NDArray[np.float64]
    """Share of rows whose class is the one predicted."""

    @property
    def calibration_error(self) -> float:
        r"""The expected calibration error of the class predicted.

        .. math:: \sum_b \frac{n_b}{n} \left| accuracy_b - confidence_b \right|

        with bins of equal width as in [1]_, with bins of equally many rows as in [2]_.

        References
        ----------
        .. [1] Guo, Pleiss, Sun, Weinberger. On Calibration of Modern Neural Networks. ICML 2017,
           section 2, expected calibration error.
        .. [2] Nixon, Dusenberry, Zhang, Jerfel, Tran. Measuring Calibration in Deep Learning. CVPR
           Workshops 2019, adaptive binning, here of the class predicted alone.
        """
        gaps = np.abs(self.accuracy - self.confidence)
        return float(self.n_rows @ gaps / self.n_rows.sum())


@dataclass(kw_only=True)
class ReliabilityCounts:
    """What is known of the probabilities of the rows seen so far: two numbers a row."""

    negative_log_likelihood_sum: float = field(init=False, default=0.0)
    """Of the labels; infinite where one has probability 0."""
    _confidences: list[NDArray[np.float32]] = field(init=False, default_factory=list)
    _hits: list[NDArray[np.bool_]] = field(init=False, default_factory=list)

    def update(self, y: NDArray[Any], probabilities: NDArray[Any]) -> None:
        """Count one batch.

        Parameters
        ----------
        y : ndarray of shape (n_rows,), integer
            True classes, 0 to n_classes - 1.
        probabilities : ndarray of shape (n_rows, n_classes)
        """
        predicted = probabilities.argmax(axis=1)[:, np.newaxis]
        true = np.take_along_axis(probabilities, y[:, np.newaxis].astype(np.intp), axis=1)
        with np.errstate(divide="ignore"):
            self.negative_log_likelihood_sum -= float(np.log(true, dtype=np.float64).sum())
        best = np.take_along_axis(probabilities, predicted, axis=1)
        self._confidences.append(best[:, 0].astype(np.float32))
        self._hits.append(predicted[:, 0] == y)

    @property
    def n_rows(self) -> int:
        """Number of rows counted."""
        return sum(map(len, self._hits))

    @property
    def negative_log_likelihood(self) -> float:
        """Mean of minus the logarithm of the label's probability."""
        return self.negative_log_likelihood_sum / self.n_rows

    def accuracy(self) -> float:
        """Compute the share of rows whose class is the one predicted."""
        return float(np.concatenate(self._hits).mean())

    def confidence(self) -> float:
        """Compute the mean probability of the class predicted."""
        return float(np.concatenate(self._confidences).mean(dtype=np.float64))

    def bins(self, n_bins: int = 15, binning: Binning = "equal_width") -> ReliabilityBins:
        """Put the rows into bins by their confidence.

        Parameters
        ----------
        n_bins : int, at least 1
        binning : {'equal_width', 'equal_mass'}
            Intervals (b / n_bins, (b + 1) / n_bins], or as many rows in each, to one row; equal
            confidences may then be in two bins.

        Returns
        -------
        ReliabilityBins

        Raises
        ------
        ValueError
            If there are no rows, or n_bins or the binning is none.
        """
        if n_bins < 1:
            raise ValueError(f"n_bins must be at least 1, got {n_bins}.")
        if binning not in ("equal_width", "equal_mass"):
            raise ValueError(f"binning must be 'equal_width' or 'equal_mass', got {binning!r}.")
        if self.n_rows == 0:
            raise ValueError("counts must hold at least 1 row, got 0. Update them first.")
        confidences = np.concatenate(self._confidences).astype(np.float64)
        hits = np.concatenate(self._hits)
        if binning == "equal_width":
            places = np.ceil(confidences * n_bins).astype(np.int64) - 1
            # A softmax in float32 may exceed 1 by rounding.
            np.clip(places, 0, n_bins - 1, out=places)
        else:
            places = np.empty(len(hits), np.int64)
            # Equal ones in the order of the rows: the bins do not depend on how batches are cut.
            order = np.argsort(confidences, kind="stable")
            places[order] = np.arange(len(hits)) * n_bins // len(hits)
        n_rows = np.bincount(places, minlength=n_bins)
        filled = n_rows > 0
        return ReliabilityBins(
            n_rows=n_rows[filled],
            confidence=np.bincount(places, confidences, n_bins)[filled] / n_rows[filled],
            accuracy=np.bincount(places, hits, n_bins)[filled] / n_rows[filled],
        )


@dataclass(kw_only=True)
class SetCounts:
    """How large sets of labels are, and how many hold their row's label."""

    coverage: float
    """What was asked for."""
    n_rows: int = field(init=False, default=0)
    """Rows counted."""
    n_covered: int = field(init=False, default=0)
    """Rows whose label is in their set."""
    rows_by_size: NDArray[np.int64] = field(init=False)
    """Rows whose set holds 0, 1, ... labels, shape (n_classes + 1,)."""

    def __post_init__(self) -> None:
        """Start at zero."""
        self.rows_by_size = np.zeros(1, np.int64)

    def update(self, y: NDArray[Any], sets: NDArray[np.bool_]) -> None:
        """Count one batch.

        Parameters
        ----------
        y : ndarray of shape (n_rows,), integer
            True classes, 0 to n_classes - 1.
        sets : ndarray of shape (n_rows, n_classes), bool
        """
        if self.n_rows == 0:
            self.rows_by_size = np.zeros(sets.shape[1] + 1, np.int64)
        self.n_rows += len(y)
        self.n_covered += int(sets[np.arange(len(y)), y].sum())
        self.rows_by_size += np.bincount(sets.sum(axis=1), minlength=sets.shape[1] + 1)

    @property
    def reached(self) -> float:
        """Share of rows whose label is in their set; NaN for no rows."""
        return self.n_covered / self.n_rows if self.n_rows else float("nan")

    @property
    def mean_size(self) -> float:
        """Mean number of labels in a set; NaN for no rows."""
        total = int(np.arange(len(self.rows_by_size)) @ self.rows_by_size)
        return total / self.n_rows if self.n_rows else float("nan")

    @property
    def largest(self) -> int:
        """Number of labels in the largest set."""
        return int(np.flatnonzero(self.rows_by_size).max(initial=0))

    @property
    def n_empty(self) -> int:
        """Number of sets without a label."""
        return int(self.rows_by_size[0])
