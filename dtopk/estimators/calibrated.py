"""What the classifiers share of calibration: temperature scaling and conformal sets."""

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.utils.validation import check_is_fitted, column_or_1d

from dtopk.calibration import Calibration, complete_score
from dtopk.evaluation import ScoreBatches, fit_calibration
from dtopk.losses import Loss

Array = NDArray[Any]


def has_probabilities(estimator: "CalibratedClassifier") -> bool:
    """Tell whether there is `predict_proba`: the loss has it, or the estimator is calibrated."""
    return hasattr(estimator, "calibration_") or estimator._make_loss().has_probabilities


def has_sets(estimator: "CalibratedClassifier") -> bool:
    """Tell whether there is `predict_set`; otherwise say what makes it."""
    if not hasattr(estimator, "calibration_"):
        raise AttributeError(
            f"{type(estimator).__name__} must be calibrated for sets. Call its method calibrate "
            "with rows that it was not fitted on."
        )
    return True


class CalibratedClassifier:
    """A classifier that may be calibrated once it is fitted, and is not any more when fitted anew.

    Its class has `classes_` and `_make_loss`.
    """

    classes_: Array
    calibration_: Calibration

    if TYPE_CHECKING:

        def _make_loss(self) -> Loss:
            """Make the loss that the classifier is trained with."""

    def _calibrate(
        self, batches: ScoreBatches, *, score: str, k: int | None, penalty: float | None
    ) -> Self:
        """Keep what fits labels and scores of some rows."""
        loss_k = self._make_loss().describe().get("k", 1)
        k, penalty = complete_score(score, k, penalty, loss_k=loss_k)
        self.calibration_ = fit_calibration(
            batches, n_classes=len(self.classes_), score=score, k=k, penalty=penalty
        )
        return self

    def _forget_calibration(self) -> None:
        """Drop the calibration, which was of other weights."""
        self.__dict__.pop("calibration_", None)

    def _convert_scores(self, scores: Array) -> Array:
        """Make probabilities of scores (n_samples, n_classes)."""
        if hasattr(self, "calibration_"):
            return self.calibration_.probabilities(scores)
        return self._make_loss().probabilities(scores)

    def _encode(self, y: ArrayLike) -> NDArray[np.int64]:
        """Return the places in `classes_` of labels, all of which must be there."""
        check_is_fitted(self)
        return encode_labels("y", y, self.classes_)


def encode_labels(name: str, y: ArrayLike, classes: Array) -> NDArray[np.int64]:
    """Return the places of labels among the classes, where all of them must be.

    Parameters
    ----------
    name : str
        What the labels are called in the message.
    y : array-like of shape (n_samples,)
    classes : ndarray of shape (n_classes,)

    Raises
    ------
    ValueError
        If a label is not there.
    """
    names, places = np.unique(column_or_1d(y, warn=True), return_inverse=True)
    known = {label: place for place, label in enumerate(classes.tolist())}
    codes = np.array([known.get(label, -1) for label in names.tolist()], np.int64)
    if (codes < 0).any():
        raise ValueError(
            f"{name} must hold labels that the estimator was fitted on, its {len(known)} classes_, "
            f"got {names.tolist()[int(np.argmin(codes))]!r}."
        )
    return codes[places]


def pair_batches(
    codes: NDArray[np.int64], iter_scores: Callable[[], Iterable[Array]]
) -> ScoreBatches:
    """Put labels beside scores that come in batches.

    Parameters
    ----------
    codes : ndarray of shape (n_samples,), int64
    iter_scores : callable
        Called for each pass; yields ndarrays of shape (n_rows, n_classes).

    Returns
    -------
    callable
        As `fit_calibration` takes it.
    """

    def batches() -> Iterator[tuple[NDArray[np.int64], Array]]:
        start = 0
        for scores in iter_scores():
            yield codes[start : start + len(scores)], scores
            start += len(scores)

    return batches
