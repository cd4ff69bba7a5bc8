"""What a model has learnt of its own mistakes: a temperature, and the scores of conformal sets.

It is numpy's alone, as the model file is. What fits it lies in `dtopk.evaluation`.
"""

import io
import json
import math
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dtopk.archive import read_array, read_header

CALIBRATION_VERSION = 1
"""The newest version of a calibration that this program reads."""
CONFORMAL_SCORES = {
    "lac": "-log p_j: sets of the labels whose probability is above a threshold",
    "aps": "-log(1 - s_j), s_j the sum of the probabilities before p_j, from the highest on",
    "raps": "s_j - 1, and a penalty for each place of the label after the k-th",
    "margin": "the k-th highest score of the other classes less u_j; it needs no probabilities",
}
"""Nonconformity scores of a label j by name, with what they are."""
RANKED_SCORES = ("raps", "margin")
"""Those that take k."""
DEFAULT_PENALTY = 0.1
"""Of 'raps', for each place."""

_HEADER = "calibration.json"
_SCORES = "conformal_scores.npy"


@dataclass(frozen=True, kw_only=True, eq=False)
class Calibration:
    r"""A temperature and the nonconformity scores of rows that were not trained on.

    With scores u and p = softmax(u / temperature) the nonconformity of label j is one of

    - 'lac': ``-log p_j``, which orders labels as ``1 - p_j`` does [1]_;
    - 'aps': ``-log(1 - s_j)``, s_j the sum of all p_i placed before j, which orders labels as s_j
      does: the set is the shortest beginning of the ranking whose sum passes a threshold [2]_,
      without its randomisation;
    - 'raps': ``s_j - 1 + penalty * max(0, place of j - k)`` [3]_, places counted from 1;
    - 'margin': the k-th highest score of the other classes less u_j.

    As ``1 - s_j`` is summed from the smallest probability on, float32 tells scores of 'aps' apart
    however near to 1 their s_j are; those of 'raps' down to a difference from 1 of 1e-38, and after
    the k-th place, where it is small, by the place alone.

    A set holds the labels whose nonconformity is at most the ``ceil((n + 1) * coverage)``-th
    smallest of the n kept. Where rows are exchangeable, the label of a new one is in its set with a
    probability of at least `coverage`; where no two of them are equal, of less than
    ``coverage + 1 / (n + 1)`` [4]_. A set consists of the best labels of a row. That of 'lac' or
    'margin' may be empty. That of 'aps' or 'raps' holds the best label, whose score is the lowest
    there is for every row: sets cover no less than the accuracy, whatever is asked for.

    References
    ----------
    .. [1] Sadinle, Lei, Wasserman. Least Ambiguous Set-Valued Classifiers with Bounded Error
       Levels. JASA 114(525), 2019.
    .. [2] Romano, Sesia, Candes. Classification with Valid and Adaptive Coverage. NeurIPS 2020.
    .. [3] Angelopoulos, Bates, Malik, Jordan. Uncertainty Sets for Image Classifiers using
       Conformal Prediction. ICLR 2021.
    .. [4] Lei, G'Sell, Rinaldo, Tibshirani, Wasserman. Distribution-Free Predictive Inference for
       Regression. JASA 113(523), 2018.
    """

    temperature: float
    """What scores are divided by before their softmax is taken."""
    n_classes: int
    """Number of classes of the model."""
    score: str
    """Name of the nonconformity score, one of `CONFORMAL_SCORES`."""
    conformal_scores: NDArray[np.float32]
    """Nonconformity of the true labels, in ascending order, shape (n_rows,), float32."""
    k: int | None = None
    """Of 'raps' and 'margin', 1 to n_classes - 1; None: the score takes none."""
    penalty: float | None = None
    """Of 'raps', above 0; None: the score takes none."""
    source: Mapping[str, Any] = field(default_factory=dict)
    """What it was fitted on, as far as is known: store and split."""

    def __post_init__(self) -> None:
        """Check the values."""
        if not (math.isfinite(self.temperature) and self.temperature > 0):
            raise ValueError(f"temperature must be finite and above 0, got {self.temperature!r}.")
        check_score(self.score, self.k, self.penalty, self.n_classes)
        values = self.conformal_scores
        if values.ndim != 1 or len(values) == 0 or values.dtype != np.float32:
            raise ValueError(
                "conformal_scores must be float32 of shape (n_rows,) and not empty, got "
                f"{values.dtype} of shape {values.shape}."
            )
        if not (np.isfinite(values).all() and (np.diff(values) >= 0).all()):
            raise ValueError("conformal_scores must be finite and in ascending order.")

    @property
    def n_rows(self) -> int:
        """Rows that it was fitted on."""
        return len(self.conformal_scores)

    def probabilities(self, scores: NDArray[Any]) -> NDArray[Any]:
        """Compute the class probabilities, softmax(scores / temperature).

        Parameters
        ----------
        scores : ndarray of shape (n_samples, n_classes), float32 or float64

        Returns
        -------
        ndarray of shape (n_samples, n_classes), the type of `scores`
            Computed in float64. The highest is that of the highest score, but where both round to
            the same number.
        """
        self._check_scores(scores)
        return np.exp(log_softmax(scores, self.temperature)).astype(scores.dtype)

    def nonconformity(self, scores: NDArray[Any]) -> NDArray[np.float32]:
        """Compute how little each label fits the scores of a row.

        Parameters
        ----------
        scores : ndarray of shape (n_samples, n_classes), float32 or float64

        Returns
        -------
        ndarray of shape (n_samples, n_classes), float32
            Computed in float64.
        """
        self._check_scores(scores)
        return score_labels(
            scores, self.score, temperature=self.temperature, k=self.k, penalty=self.penalty
        )

    def threshold(self, coverage: float) -> float:
        """Return the nonconformity up to which labels are in a set.

        Parameters
        ----------
        coverage : float, 0 < coverage <= n_rows / (n_rows + 1)

        Returns
        -------
        float
            The ``ceil((n_rows + 1) * coverage)``-th smallest of the scores kept.

        Raises
        ------
        ValueError
            If it is out of range: above the bound only the set of all labels would do.
        """
        if not 0 < coverage < 1:
            raise ValueError(f"coverage must be above 0 and below 1, got {coverage!r}.")
        # The decimal number that was written: in binary 10 * 0.9 could be above 9.
        place = math.ceil((self.n_rows + 1) * Fraction(repr(float(coverage))))
        if place > self.n_rows:
            bound = self.n_rows / (self.n_rows + 1)
            raise ValueError(
                f"coverage must be at most n / (n + 1) = {bound:.6g} with the n = {self.n_rows:,} "
                f"rows of the calibration, got {coverage!r}. Calibrate on more rows."
            )
        return float(self.conformal_scores[place - 1])

    def find_sets(self, scores: NDArray[Any], coverage: float) -> NDArray[np.bool_]:
        """Mark the labels of every row's set.

        Parameters
        ----------
        scores : ndarray of shape (n_samples, n_classes), float32 or float64
        coverage : float
            Probability that the label of a row is to be in its set.

        Returns
        -------
        ndarray of shape (n_samples, n_classes), bool
        """
        threshold = self.threshold(coverage)
        marked: NDArray[np.bool_] = self.nonconformity(scores) <= threshold
        return marked

    def to_bytes(self) -> bytes:
        """Return the content of a .npz file with the scores and, as JSON, all else."""
        header = {
            "version": CALIBRATION_VERSION,
            "temperature": self.temperature,
            "n_classes": self.n_classes,
            "score": self.score,
            "k": self.k,
            "penalty": self.penalty,
            "source": dict(self.source),
        }
        file = io.BytesIO()
        with zipfile.ZipFile(file, "w") as archive:
            archive.writestr(_HEADER, json.dumps(header, indent=1, sort_keys=True))
            with archive.open(_SCORES, "w") as member:
                np.lib.format.write_array(member, self.conformal_scores, allow_pickle=False)
        return file.getvalue()

    def _check_scores(self, scores: NDArray[Any]) -> None:
        if scores.ndim != 2 or scores.shape[1] != self.n_classes:
            raise ValueError(
                f"scores must have shape (n_samples, {self.n_classes}), as those that were "
                f"calibrated, got {scores.shape}."
            )


class NewerCalibrationError(ValueError):
    """A calibration is sound, but of a version that this program does not know."""


def read_calibration(content: bytes) -> Calibration:
    """Read what `Calibration.to_bytes` returned.

    Parameters
    ----------
    content : bytes

    Returns
    -------
    Calibration

    Raises
    ------
    NewerCalibrationError
        If a newer program wrote it.
    One of `dtopk.archive.DAMAGE`
        If it is damaged.
    """
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        header = read_header(archive, _HEADER)
        version = header.pop("version")
        if version > CALIBRATION_VERSION:
            raise NewerCalibrationError(
                f"version of the calibration must be at most {CALIBRATION_VERSION}, got "
                f"{version}. A newer dtopk wrote it: upgrade this one."
            )
        values = read_array(archive, _SCORES)
    if not isinstance(header.get("source", {}), dict):
        raise TypeError(f"source of the calibration must be an object, got {header['source']!r}")
    return Calibration(**header, conformal_scores=values)


def check_score(score: str, k: int | None, penalty: float | None, n_classes: int) -> None:
    """Refuse a nonconformity score that is unknown, or lacks or has too many parameters.

    Parameters
    ----------
    score : str
    k : int or None
    penalty : float or None
    n_classes : int

    Raises
    ------
    ValueError
    TypeError
        If k is no integer.
    """
    if score not in CONFORMAL_SCORES:
        names = ", ".join(map(repr, CONFORMAL_SCORES))
        raise ValueError(f"score {score!r} is unknown. Available: {names}.")
    if score not in RANKED_SCORES:
        if k is not None:
            raise ValueError(f"k must be left out with the score {score!r}, got {k!r}.")
    elif isinstance(k, bool) or not isinstance(k, int | np.integer):
        raise TypeError(f"k must be an integer with the score {score!r}, got {k!r}.")
    elif not 1 <= k <= n_classes - 1:
        raise ValueError(f"k must be between 1 and n_classes - 1 = {n_classes - 1}, got {k}.")
    if score != "raps":
        if penalty is not None:
            raise ValueError(f"penalty must be left out with the score {score!r}, got {penalty!r}.")
    elif penalty is None or not (math.isfinite(penalty) and penalty > 0):
        raise ValueError(
            f"penalty must be finite and above 0 with the score 'raps', got {penalty!r}. "
            "Without one it is the score 'aps'."
        )


def complete_score(
    score: str, k: int | None, penalty: float | None, *, loss_k: int
) -> tuple[int | None, float | None]:
    """Fill in the parameters of a nonconformity score that were not given.

    Parameters
    ----------
    score : str
    k : int or None
    penalty : float or None
    loss_k : int
        The k of the loss, which is taken where the score has one.

    Returns
    -------
    k : int or None
    penalty : float or None
    """
    if score in RANKED_SCORES and k is None:
        k = loss_k
    if score == "raps" and penalty is None:
        penalty = DEFAULT_PENALTY
    return k, penalty


def log_softmax(scores: NDArray[Any], temperature: float) -> NDArray[np.float64]:
    """Compute log(softmax(scores / temperature)) of every row, in float64.

    That of the best class is exact to rounding however near to 0 it is.

    Parameters
    ----------
    scores : ndarray of shape (n_samples, n_classes)
    temperature : float
    """
    u = scores.astype(np.float64)
    u -= u.max(axis=1, keepdims=True)
    u /= temperature
    others = np.exp(u)
    # Beside the 1 of the best class the sum of the others would be rounded away.
    others[np.arange(len(u)), u.argmax(axis=1)] = 0
    u -= np.log1p(others.sum(axis=1, keepdims=True))
    return u


def score_labels(
    scores: NDArray[Any], score: str, *, temperature: float, k: int | None, penalty: float | None
) -> NDArray[np.float32]:
    """Compute the nonconformity of every label; `Calibration` says by which formulas.

    Parameters
    ----------
    scores : ndarray of shape (n_samples, n_classes), float32 or float64
    score : str
    temperature : float
    k : int or None
    penalty : float or None

    Returns
    -------
    ndarray of shape (n_samples, n_classes), float32
    """
    if score == "margin":
        assert k is not None
        return _margins(scores, k)
    log_p = log_softmax(scores, temperature)
    if score == "lac":
        return (0.0 - log_p).astype(np.float32)
    order = np.argsort(-scores, axis=1, kind="stable")
    log_tails = _sum_tails(np.take_along_axis(log_p, order, axis=1))
    if score == "aps":
        in_order = 0.0 - log_tails
    else:
        assert k is not None
        assert penalty is not None
        places = np.arange(1, scores.shape[1] + 1)
        in_order = penalty * np.maximum(places - k, 0) - np.exp(log_tails)
    values = np.empty(scores.shape, np.float32)
    np.put_along_axis(values, order, in_order.astype(np.float32), axis=1)
    return values


def _sum_tails(log_p: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return log(p_j + p_(j+1) + ...) of probabilities in descending order, given their logarithms.

    Summed from the smallest on, by logarithms: one minus the sum of those before would be 0 from
    some place on, and so would p itself where scores are far apart.
    """
    log_tails = np.logaddexp.accumulate(log_p[:, ::-1], axis=1)[:, ::-1]
    # Without the rounding of the sum: the best labels of all rows are equal.
    log_tails[:, 0] = 0
    return log_tails


def _margins(scores: NDArray[Any], k: int) -> NDArray[np.float32]:
    """Return the k-th highest score of the other classes less that of each class."""
    # Of the k best classes the k-th of the others is the (k + 1)-th of all.
    part = -np.partition(-scores, [k - 1, k], axis=1)[:, k - 1 : k + 1].astype(np.float64)
    kth, next_one = part[:, :1], part[:, 1:]
    u = scores.astype(np.float64)
    return np.where(u >= kth, next_one - u, kth - u).astype(np.float32)
