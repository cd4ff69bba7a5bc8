"""A trained linear model."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dtopk.atomic import FilePath
from dtopk.calibration import Calibration
from dtopk.model.file import write_model_file
from dtopk.model.links import LINKS
from dtopk.model.top_k import select_topk


@dataclass(frozen=True, kw_only=True, eq=False)
class Model:
    """A linear classifier: scores = ((X - feature_mean) / feature_scale) @ W + intercept."""

    W: NDArray[Any]
    """Weights, shape (n_features, n_classes), float32 or float64."""
    intercept: NDArray[Any]
    """Shape (n_classes,), the type of W; zeros for a model without one."""
    classes: NDArray[Any]
    """Class names in the order of the columns of W, shape (n_classes,), int64 or strings."""
    loss: str
    """Name of the loss that the model was trained with."""
    loss_parameters: Mapping[str, Any] = field(default_factory=dict)
    """The loss's parameters, such as k and gamma."""
    link: str = ""
    """What makes class probabilities of the scores, 'softmax' or 'sparsemax', where there is no
    calibration; empty: nothing."""
    target: str = "multiclass"
    """What a row has: one class, 'multiclass', or any number of them, 'multilabel'."""
    threshold: float = 0.0
    """Of a multilabel model: classes are predicted that score more."""
    feature_mean: NDArray[np.float64] | None = None
    """What is subtracted from the features, shape (n_features,), rounded to the type of W before;
    None: nothing."""
    feature_scale: NDArray[np.float64] | None = None
    """What the features are divided by, shape (n_features,), by way of its inverse in the type of
    W; None: nothing."""
    class_rows: NDArray[np.int64] | None = None
    """Training rows of each class, shape (n_classes,); None: not known."""
    job: Mapping[str, Any] = field(default_factory=dict)
    """The job that trained the model, as resolved."""
    trained_on: tuple[str, ...] = ()
    """The splits of the job's store whose rows it was trained on; empty: the job's `data.train`."""
    chosen_on: str = ""
    """The split by whose rows a sweep chose this model among others; empty: none is known."""
    certificate: Mapping[str, Any] = field(default_factory=dict)
    """How far from the optimum the weights are at most: primal, dual value and gap. Of which
    optimum, where the loss is not convex, :class:`dtopk.solvers.certificate.Certificate` says."""
    calibration: Calibration | None = None
    """What makes probabilities and conformal sets of the scores, of a multiclass model; None: it
    has not been calibrated."""

    def __post_init__(self) -> None:
        """Hold the shapes together."""
        if self.W.ndim != 2:
            raise ValueError(f"W must be (n_features, n_classes), got shape {self.W.shape}.")
        for name in ("W", "intercept"):
            values = getattr(self, name)
            if values.dtype.kind != "f" or values.dtype.itemsize not in (4, 8):
                raise ValueError(f"{name} must be of float32 or float64, got {values.dtype}.")
            odd = np.argwhere(~np.isfinite(values))
            if len(odd):
                place = tuple(odd[0].tolist())
                raise ValueError(f"{name} must be finite, got {values[place]} at {place}.")
        if self.classes.dtype.kind not in "iuU":
            raise ValueError(f"classes must be integers or strings, got {self.classes.dtype}.")
        self._check_shape("intercept", self.intercept, self.n_classes)
        self._check_shape("classes", self.classes, self.n_classes)
        if self.feature_mean is not None:
            self._check_shape("feature_mean", self.feature_mean, self.n_features)
        if self.feature_scale is not None:
            self._check_shape("feature_scale", self.feature_scale, self.n_features)
        if self.class_rows is not None:
            self._check_shape("class_rows", self.class_rows, self.n_classes)
        if self.link not in ("", *LINKS):
            raise ValueError(f"link must be 'softmax', 'sparsemax' or '', got {self.link!r}.")
        if not math.isfinite(self.threshold):
            raise ValueError(f"threshold must be finite, got {self.threshold!r}.")
        if self.target not in ("multiclass", "multilabel"):
            raise ValueError(f"target must be 'multiclass' or 'multilabel', got {self.target!r}.")
        if self.calibration is not None:
            self._check_calibration(self.calibration)

    def _check_calibration(self, calibration: Calibration) -> None:
        if self.target != "multiclass":
            raise ValueError("calibration must be left out of a multilabel model.")
        if calibration.n_classes != self.n_classes:
            raise ValueError(
                f"calibration must be of the {self.n_classes} classes of the model, got one of "
                f"{calibration.n_classes}."
            )

    @staticmethod
    def _check_shape(name: str, values: NDArray[Any], n_values: int) -> None:
        if values.shape != (n_values,):
            raise ValueError(f"{name} must have shape ({n_values},), got {values.shape}.")

    @property
    def n_features(self) -> int:
        """Number of features."""
        return int(self.W.shape[0])

    @property
    def n_classes(self) -> int:
        """Number of classes."""
        return int(self.W.shape[1])

    def decision_function(self, X: ArrayLike) -> NDArray[Any]:
        """Compute the score of every class.

        Parameters
        ----------
        X : array of shape (n_samples, n_features)
            Any real type. Mean and scale are taken off in the wider of its type and that of W,
            and the scores computed in that of W.

        Returns
        -------
        ndarray of shape (n_samples, n_classes), the type of W
            Also for two classes.

        Raises
        ------
        ValueError
            If X has another number of features, or holds NaN or infinity.
        """
        X = np.asarray(X)
        if X.ndim != 2 or X.shape[1] != self.n_features:
            raise ValueError(
                f"X must have shape (n_samples, {self.n_features}), as the features that the "
                f"model was trained on, got {X.shape}."
            )
        scores: NDArray[Any] = self._standardize(X) @ self.W + self.intercept
        if not np.isfinite(scores).all():
            row = int(np.flatnonzero(~np.isfinite(scores).all(axis=1))[0])
            raise ValueError(f"X must hold finite numbers, but row {row} has a score that is not.")
        return scores

    def _standardize(self, X: NDArray[Any]) -> NDArray[Any]:
        """Take off mean and scale as training did, with the same roundings."""
        dtype = self.W.dtype
        # A mean that is large beside the deviation leaves few digits to a value rounded before.
        wide = np.result_type(X, dtype)
        features = X
        if self.feature_mean is not None:
            features = np.subtract(features, self.feature_mean.astype(dtype), dtype=wide)
        if self.feature_scale is not None:
            inverse_scale = (1.0 / self.feature_scale).astype(dtype)
            features = np.multiply(features, inverse_scale, dtype=wide)
        return features.astype(dtype, copy=False)

    def predict(self, X: ArrayLike) -> NDArray[Any]:
        """Name the class of the highest score, or mark the classes above the threshold.

        Returns
        -------
        ndarray of shape (n_samples,), the type of `classes`
            The first in class order where scores are equal. Of a multilabel model instead of shape
            (n_samples, n_classes), uint8: 1 for the classes that score more than `threshold`.
        """
        if self.target == "multilabel":
            marked: NDArray[Any] = (self.decision_function(X) > self.threshold).astype(np.uint8)
            return marked
        labels: NDArray[Any] = self.classes[np.argmax(self.decision_function(X), axis=1)]
        return labels

    def predict_topk(self, X: ArrayLike, k: int) -> tuple[NDArray[Any], NDArray[Any]]:
        """Name the k classes of the highest scores, best first; equal scores in class order.

        Parameters
        ----------
        X : array of shape (n_samples, n_features)
        k : int, 1 <= k <= n_classes

        Returns
        -------
        labels : ndarray of shape (n_samples, k), the type of `classes`
        scores : ndarray of shape (n_samples, k), the type of W
        """
        scores = self.decision_function(X)
        top = select_topk(scores, k)
        return self.classes[top], np.take_along_axis(scores, top, axis=1)

    @property
    def has_probabilities(self) -> bool:
        """Whether :meth:`predict_proba` has an answer."""
        return self.calibration is not None or self.link != ""

    def predict_proba(self, X: ArrayLike) -> NDArray[Any]:
        """Compute the probability of every class, where the model is calibrated or its loss has it.

        Returns
        -------
        ndarray of shape (n_samples, n_classes), the type of W
            Of a calibrated model softmax(scores / temperature), whatever its loss; otherwise
            softmax(scores), or their projection on the distributions, sparsemax(scores).

        Raises
        ------
        ValueError
            If the model is not calibrated and its loss gives no probabilities.
        """
        return self.score_probabilities(self.decision_function(X))

    def score_probabilities(self, scores: NDArray[Any]) -> NDArray[Any]:
        """Compute what :meth:`predict_proba` does, from scores.

        Parameters
        ----------
        scores : ndarray of shape (n_samples, n_classes)
            As :meth:`decision_function` returns them.

        Returns
        -------
        ndarray of shape (n_samples, n_classes), the type of `scores`

        Raises
        ------
        ValueError
            As of :meth:`predict_proba`.
        """
        if not self.has_probabilities:
            raise ValueError(
                f"predict_proba must have a loss with probabilities, got {self.loss!r}. "
                "Calibrate the model with `dtopk calibrate`, use decision_function, or train with "
                "loss 'softmax'."
            )
        if self.calibration is not None:
            return self.calibration.probabilities(scores)
        return LINKS[self.link](scores)

    def predict_set(self, X: ArrayLike, coverage: float = 0.9) -> NDArray[np.bool_]:
        """Mark the labels of every row's conformal set.

        Parameters
        ----------
        X : array of shape (n_samples, n_features)
        coverage : float
            Probability that the label of a row is to be in its set, where rows are exchangeable
            with those that the model was calibrated on. See :class:`dtopk.calibration.Calibration`.

        Returns
        -------
        ndarray of shape (n_samples, n_classes), bool
            The columns are those of `classes`.

        Raises
        ------
        ValueError
            If the model is not calibrated, or on too few rows for this coverage.
        """
        return self.get_calibration().find_sets(self.decision_function(X), coverage)

    def get_calibration(self) -> Calibration:
        """Return the calibration.

        Raises
        ------
        ValueError
            If there is none.
        """
        if self.calibration is None:
            raise ValueError(
                "model must be calibrated for sets of a coverage, got one that is not. Calibrate "
                "it with `dtopk calibrate`."
            )
        return self.calibration

    def save(self, path: FilePath) -> None:
        """Write the model to one file, whole or not at all.

        Parameters
        ----------
        path : path of the file, or ObjectPath
            A file that is there is replaced once the new one is complete.
        """
        write_model_file(path, self._fields(), self._arrays(), self.calibration)

    def _fields(self) -> dict[str, Any]:
        multilabel = {"target": self.target, "threshold": self.threshold}
        # Left out where they say nothing: older programs refuse keys that they do not know.
        selection = {
            name: value
            for name, value in (
                ("trained_on", list(self.trained_on)),
                ("chosen_on", self.chosen_on),
            )
            if value
        }
        return {
            **(multilabel if self.target == "multilabel" else {}),
            **selection,
            "loss": self.loss,
            "loss_parameters": dict(self.loss_parameters),
            "link": self.link,
            "job": dict(self.job),
            "certificate": dict(self.certificate),
        }

    def _arrays(self) -> dict[str, NDArray[Any]]:
        arrays: dict[str, NDArray[Any]] = {
            "W": self.W,
            "intercept": self.intercept,
            "classes": self.classes,
        }
        for name in ("feature_mean", "feature_scale", "class_rows"):
            values = getattr(self, name)
            if values is not None:
                arrays[name] = values
        return arrays
