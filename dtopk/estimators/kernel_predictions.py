"""What a kernel machine predicts."""

from collections.abc import Callable, Iterator
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils.metaestimators import available_if
from sklearn.utils.validation import check_consistent_length, check_is_fitted

from dtopk.estimators.calibrated import (
    CalibratedClassifier,
    has_probabilities,
    has_sets,
    pair_batches,
)
from dtopk.estimators.gram import GivenProducts, Products, make_products
from dtopk.estimators.inputs import validate_data
from dtopk.estimators.linear import feature_dtypes
from dtopk.model import select_topk

Array = NDArray[Any]
Float64 = NDArray[np.float64]

_BATCH_BYTES = 64 * 10**6
"""Features, products and scores of a batch of predictions take about so much memory."""


class KernelPredictions(CalibratedClassifier, ClassifierMixin, BaseEstimator):
    """Scores, classes, probabilities and sets of a fitted kernel machine.

    Its class has `_make_loss`.
    """

    kernel: str | Callable[[Array, Array], ArrayLike]
    dtype: str
    dual_coef_: Float64
    support_: NDArray[np.intp]
    support_vectors_: Array
    kernel_gamma_: float

    def decision_function(self, X: ArrayLike) -> Float64:
        """Compute the scores.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features), or (n_samples, n_train)
            Features, or the values of the kernel with the training rows.

        Returns
        -------
        ndarray of shape (n_samples, n_classes), or (n_samples,) for two classes
            For two classes the second score less the first; half of that with a loss of one class
            against the rest, whose two problems are the same.
        """
        check_is_fitted(self)
        scores = np.concatenate(list(self._iter_scores(X)))
        if len(self.classes_) > 2:
            return scores
        difference: Float64 = scores[:, 1] - scores[:, 0]
        return difference if self._make_loss().compares_classes else difference / 2

    def predict(self, X: ArrayLike) -> Array:
        """Name the class of the highest score; of equal ones the first in `classes_`.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features), or (n_samples, n_train)

        Returns
        -------
        ndarray of shape (n_samples,), the type of `classes_`
        """
        check_is_fitted(self)
        best = [scores.argmax(axis=1) for scores in self._iter_scores(X)]
        labels: Array = self.classes_[np.concatenate(best)]
        return labels

    def predict_topk(
        self, X: ArrayLike, k: int, *, return_scores: bool = False
    ) -> Array | tuple[Array, Float64]:
        """Name the k classes of the highest scores, best first; equal ones as in `classes_`.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features), or (n_samples, n_train)
        k : int, 1 <= k <= n_classes
        return_scores : bool, default=False
            Whether to return the scores too.

        Returns
        -------
        labels : ndarray of shape (n_samples, k), the type of `classes_`
        scores : ndarray of shape (n_samples, k), float64
            Only if asked for.
        """
        check_is_fitted(self)
        columns, best = [], []
        for scores in self._iter_scores(X):
            columns.append(select_topk(scores, k))
            best.append(np.take_along_axis(scores, columns[-1], axis=1))
        labels: Array = self.classes_[np.concatenate(columns)]
        return (labels, np.concatenate(best)) if return_scores else labels

    @available_if(has_probabilities)  # type: ignore[untyped-decorator]
    def predict_proba(self, X: ArrayLike) -> Float64:
        """Compute the probability of every class.

        It is there with 'softmax' and 'sparsemax', and with any loss once :meth:`calibrate` has
        been called.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features), or (n_samples, n_train)

        Returns
        -------
        ndarray of shape (n_samples, n_classes)
            After :meth:`calibrate` the softmax of the scores divided by the temperature, whatever
            the loss; before, the softmax, or sparsemax, of the scores.
        """
        check_is_fitted(self)
        return np.concatenate([self._convert_scores(scores) for scores in self._iter_scores(X)])

    @available_if(has_probabilities)  # type: ignore[untyped-decorator]
    def predict_log_proba(self, X: ArrayLike) -> Float64:
        """Compute the logarithm of `predict_proba`, minus infinity where that is 0.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features), or (n_samples, n_train)

        Returns
        -------
        ndarray of shape (n_samples, n_classes)
        """
        with np.errstate(divide="ignore"):
            log_probabilities: Float64 = np.log(self.predict_proba(X))
        return log_probabilities

    def calibrate(
        self,
        X: ArrayLike,
        y: ArrayLike,
        *,
        score: str = "lac",
        k: int | None = None,
        penalty: float | None = None,
    ) -> Self:
        """Fit probabilities and conformal sets on rows that the estimator was not fitted on.

        As :meth:`TopKClassifier.calibrate`; the scores of all rows are held.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features), or (n_samples, n_train)
        y : array-like of shape (n_samples,)
            Labels among `classes_`.
        score : {'lac', 'aps', 'raps', 'margin'}, default='lac'
        k : int or None, default=None
        penalty : float or None, default=None

        Returns
        -------
        KernelTopKClassifier
            This one, with `calibration_`.
        """
        codes = self._encode(y)
        # Held, since each of them took a row of the kernel.
        scores = list(self._iter_scores(X))
        check_consistent_length(X, codes)
        batches = pair_batches(codes, lambda: scores)
        return self._calibrate(batches, score=score, k=k, penalty=penalty)

    @available_if(has_sets)  # type: ignore[untyped-decorator]
    def predict_set(self, X: ArrayLike, coverage: float = 0.9) -> NDArray[np.bool_]:
        """Mark the labels of every row's conformal set; there after :meth:`calibrate`.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features), or (n_samples, n_train)
        coverage : float, default=0.9
            Probability that the label of a row is in its set, at least.

        Returns
        -------
        ndarray of shape (n_samples, n_classes), bool
            The columns are those of `classes_`.
        """
        check_is_fitted(self)
        return np.concatenate(
            [self.calibration_.find_sets(scores, coverage) for scores in self._iter_scores(X)]
        )

    @property
    def _is_given(self) -> bool:
        return isinstance(self.kernel, str) and self.kernel == "precomputed"

    def _iter_scores(self, X: ArrayLike) -> Iterator[Float64]:
        """Validate what is to be predicted, and compute scores batch by batch."""
        features = validate_data(self, X, dtype=feature_dtypes(self.dtype), reset=False)
        n_support, n_classes = self.dual_coef_.shape
        n_rows = max(1, _BATCH_BYTES // (8 * (n_support + features.shape[1] + n_classes)))
        products: Products
        if self._is_given:
            products = GivenProducts(self.support_)
        else:
            products = make_products(self.kernel, self.support_vectors_, self.kernel_gamma_)
        for start in range(0, len(features), n_rows):
            yield products.between(features[start : start + n_rows]) @ self.dual_coef_
