"""What a linear classifier predicts, of arrays in memory, on disk and of Dask."""

from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import ClassifierMixin
from sklearn.utils.metaestimators import available_if
from sklearn.utils.validation import check_consistent_length, check_is_fitted

from dtopk.estimators.calibrated import (
    CalibratedClassifier,
    has_probabilities,
    has_sets,
    pair_batches,
)
from dtopk.estimators.class_rows import Features, check_dask, iter_split
from dtopk.estimators.dask_arrays import (
    DaskArray,
    check_sizes,
    compute_column,
    is_dask_array,
    iter_blocks,
    map_method,
    map_topk,
    mean_accuracy,
)
from dtopk.estimators.inputs import validate_data
from dtopk.estimators.linear import CertifiedLinearModel, feature_dtypes, kept_dtype
from dtopk.evaluation import ScoreBatches
from dtopk.model import select_topk
from dtopk_storage import FeatureStore

if TYPE_CHECKING:
    from dtopk.launch import Client

Array = NDArray[Any]


class LinearPredictions(CalibratedClassifier, ClassifierMixin, CertifiedLinearModel):
    """Scores, classes, probabilities and sets of a fitted linear classifier.

    Its class has `_make_loss`, and the client that computes Dask arrays.
    """

    client: "Client | None"

    def decision_function(self, X: Features) -> Array | DaskArray:
        """Compute the scores.

        Parameters
        ----------
        X : array-like, dask or zarr.Array of shape (n_samples, n_features), or FeatureStore
            What is on disk is read batch by batch. All rows of a store are taken, in their order.

        Returns
        -------
        ndarray of shape (n_samples, n_classes), or (n_samples,) for two classes
            ``X @ coef_.T + intercept_``, in the wider of the types of X and `coef_`. Of a Dask
            array this is a Dask array, here and in all other predictions.
        """
        check_is_fitted(self)
        if is_dask_array(X):
            width = len(self.coef_) if len(self.coef_) > 1 else None
            return self._map(X, "decision_function", self._score_dtype(X.dtype), width)
        scores = np.concatenate([self._decide(batch) for batch in self._iter_batches(X)])
        return scores[:, 0] if scores.shape[1] == 1 else scores

    def predict(self, X: Features) -> Array | DaskArray:
        """Name the class of the highest score; of equal ones the first in `classes_`.

        Parameters
        ----------
        X : array-like, dask or zarr.Array of shape (n_samples, n_features), or FeatureStore

        Returns
        -------
        ndarray of shape (n_samples,), the type of `classes_`
        """
        check_is_fitted(self)
        if is_dask_array(X):
            return self._map(X, "predict", self.classes_.dtype)
        best = [self._score_classes(batch).argmax(axis=1) for batch in self._iter_batches(X)]
        labels: Array = self.classes_[np.concatenate(best)]
        return labels

    def predict_topk(
        self, X: Features, k: int, *, return_scores: bool = False
    ) -> Array | DaskArray | tuple[Array | DaskArray, Array | DaskArray]:
        """Name the k classes of the highest scores, best first; equal ones as in `classes_`.

        Parameters
        ----------
        X : array-like, dask or zarr.Array of shape (n_samples, n_features), or FeatureStore
        k : int, 1 <= k <= n_classes
        return_scores : bool, default=False
            Whether to return the scores too.

        Returns
        -------
        labels : ndarray of shape (n_samples, k), the type of `classes_`
        scores : ndarray of shape (n_samples, k)
            Only if asked for; for two classes minus and plus half the decision function.
        """
        check_is_fitted(self)
        if is_dask_array(X):
            check_dask(self, X)
            pair = map_topk(self, X, k, score_dtype=self._score_dtype(X.dtype))
            return pair if return_scores else pair[0]
        columns, scores = self._find_topk(X, k)
        labels: Array = self.classes_[columns]
        return (labels, scores) if return_scores else labels

    @available_if(has_probabilities)  # type: ignore[untyped-decorator]
    def predict_proba(self, X: Features) -> Array | DaskArray:
        """Compute the probability of every class.

        It is there with 'softmax' and 'sparsemax', and with any loss once :meth:`calibrate` has
        been called.

        Parameters
        ----------
        X : array-like, dask or zarr.Array of shape (n_samples, n_features), or FeatureStore

        Returns
        -------
        ndarray of shape (n_samples, n_classes)
            After :meth:`calibrate` the softmax of the scores divided by the temperature, whatever
            the loss. Before, the softmax, or sparsemax, of the scores; with softmax and two classes
            the second column is the logistic function of the decision function.
        """
        check_is_fitted(self)
        if is_dask_array(X):
            width = len(self.classes_)
            return self._map(X, "predict_proba", self._score_dtype(X.dtype), width)
        return np.concatenate(
            [self._convert_scores(self._score_classes(batch)) for batch in self._iter_batches(X)]
        )

    @available_if(has_probabilities)  # type: ignore[untyped-decorator]
    def predict_log_proba(self, X: Features) -> Array | DaskArray:
        """Compute the logarithm of `predict_proba`, minus infinity where that is 0.

        Parameters
        ----------
        X : array-like, dask or zarr.Array of shape (n_samples, n_features), or FeatureStore

        Returns
        -------
        ndarray of shape (n_samples, n_classes)
        """
        check_is_fitted(self)
        if is_dask_array(X):
            width = len(self.classes_)
            return self._map(X, "predict_log_proba", self._score_dtype(X.dtype), width)
        with np.errstate(divide="ignore"):
            log_probabilities: Array = np.log(self.predict_proba(X))
        return log_probabilities

    def calibrate(
        self,
        X: Features,
        y: ArrayLike | DaskArray | None = None,
        *,
        split: str | None = None,
        score: str = "lac",
        k: int | None = None,
        penalty: float | None = None,
    ) -> Self:
        """Fit probabilities and conformal sets on rows that the estimator was not fitted on.

        The temperature T is the one of the greatest likelihood of softmax(scores / T), and the
        labels' nonconformity is kept for :meth:`predict_set`. What is predicted otherwise stays as
        it is. `fit` drops the calibration.

        Parameters
        ----------
        X : array-like, dask or zarr.Array of shape (n_samples, n_features), or FeatureStore
            The scores are computed anew in each of some eight passes, and never held as a whole.
        y : array-like or dask.array.Array of shape (n_samples,)
            Labels among `classes_`; None for a store, which holds its own.
        split : str or None, default=None
            Split of a store, other than 'train'; None: 'val'. None for others than stores.
        score : {'lac', 'aps', 'raps', 'margin'}, default='lac'
            Nonconformity of a label, as :class:`dtopk.calibration.Calibration` defines them; all
            but 'margin' are of the probabilities. 'lac' makes the smallest sets, 'aps' and 'raps'
            none that is empty.
        k : int or None, default=None
            Of 'raps' and 'margin', 1 to n_classes - 1; None: the loss's, or 1 where it has none.
        penalty : float or None, default=None
            Of 'raps', above 0; None: 0.1.

        Returns
        -------
        TopKClassifier
            This one, with `calibration_`.

        Raises
        ------
        ValueError
            If a parameter breaks its rule, a label is not among `classes_`, or there is no best
            temperature, since the scores of all labels are the highest, or none better than chance.
        """
        check_is_fitted(self)
        if isinstance(X, FeatureStore):
            if y is not None:
                raise ValueError(
                    "y must be left out for a feature store, which holds its own, got a "
                    f"{type(y).__name__}."
                )
            batches = self._score_split(X, "val" if split is None else split)
            return self._calibrate(batches, score=score, k=k, penalty=penalty)
        if split is not None:
            raise ValueError(
                f"split must be left out for others than a feature store, got {split!r}."
            )
        if y is None:
            raise ValueError("y must be given for an array of features, got None.")
        if is_dask_array(X):
            check_dask(self, X)
            check_sizes("X", X)
        codes = self._encode(compute_column(self.client, y) if is_dask_array(y) else y)
        check_consistent_length(X, codes)
        batches = pair_batches(codes, partial(self._iter_scores, X))
        return self._calibrate(batches, score=score, k=k, penalty=penalty)

    @available_if(has_sets)  # type: ignore[untyped-decorator]
    def predict_set(self, X: Features, coverage: float = 0.9) -> NDArray[np.bool_] | DaskArray:
        """Mark the labels of every row's conformal set; there after :meth:`calibrate`.

        Parameters
        ----------
        X : array-like, dask or zarr.Array of shape (n_samples, n_features), or FeatureStore
        coverage : float, default=0.9
            Probability that the label of a row is in its set, at least, where rows are exchangeable
            with those of the calibration. It is that of all rows together, not of each kind of row.

        Returns
        -------
        ndarray of shape (n_samples, n_classes), bool
            The columns are those of `classes_`. A row's labels are its best ones; there may be
            none.

        Raises
        ------
        ValueError
            If the rows of the calibration are too few for this coverage.
        """
        check_is_fitted(self)
        if is_dask_array(X):
            self.calibration_.threshold(coverage)
            check_dask(self, X)
            width = len(self.classes_)
            return map_method(self, X, "predict_set", coverage, dtype=np.bool_, width=width)
        return np.concatenate(
            [self.calibration_.find_sets(scores, coverage) for scores in self._iter_scores(X)]
        )

    def score(
        self,
        X: Features,
        y: ArrayLike | DaskArray,
        sample_weight: ArrayLike | DaskArray | None = None,
    ) -> float:
        """Compute the share of rows, by their weights, whose class is predicted.

        Parameters
        ----------
        X : array-like, dask or zarr.Array of shape (n_samples, n_features), or FeatureStore
        y : array-like or dask.array.Array of shape (n_samples,)
        sample_weight : array-like or dask.array.Array of shape (n_samples,), optional

        Returns
        -------
        float
        """
        if any(map(is_dask_array, (X, y, sample_weight))):
            return mean_accuracy(self.client, self.predict(X), y, sample_weight)
        accuracy: float = super().score(X, y, sample_weight)
        return accuracy

    def _half(self) -> float:
        """Return by what the score of two classes is multiplied for that of the second alone."""
        return 0.5 if self._make_loss().compares_classes else 1.0

    def _map(
        self, X: DaskArray, method: str, dtype: np.dtype[Any], width: int | None = None
    ) -> DaskArray:
        """Have a method called on each block of a Dask array."""
        check_dask(self, X)
        return map_method(self, X, method, dtype=dtype, width=width)

    def _score_dtype(self, features: np.dtype[Any]) -> np.dtype[Any]:
        """Return the type of the scores of features of a type."""
        return np.result_type(kept_dtype(features, self.coef_.dtype), self.coef_)

    def _find_topk(self, X: Features, k: int) -> tuple[NDArray[np.intp], Array]:
        """Return number and score of the classes of the k highest scores of every row."""
        columns, scores = [], []
        for batch in self._iter_batches(X):
            batch_scores = self._score_classes(batch)
            columns.append(select_topk(batch_scores, k))
            scores.append(np.take_along_axis(batch_scores, columns[-1], axis=1))
        return np.concatenate(columns), np.concatenate(scores)

    def _pack_topk(self, X: Array, k: int) -> Array:
        """Return what `_find_topk` does in one array with two fields."""
        columns, scores = self._find_topk(X, k)
        packed = np.empty(columns.shape, [("column", columns.dtype), ("score", scores.dtype)])
        packed["column"], packed["score"] = columns, scores
        return packed

    def _iter_scores(self, X: Features) -> Iterator[Array]:
        """Return the scores of all rows batch by batch, with two columns for two classes."""
        if not is_dask_array(X):
            for batch in self._iter_batches(X):
                yield self._score_classes(batch)
            return
        for scores in iter_blocks(self.client, self.decision_function(X)):
            yield self._spread_scores(scores if scores.ndim == 2 else scores[:, np.newaxis])

    def _score_split(self, store: FeatureStore, split: str) -> ScoreBatches:
        """Return what goes through labels and scores of a split."""
        if store.kind != "multiclass":
            raise ValueError(f"kind of {store.path!r} must be 'multiclass', got {store.kind!r}.")
        if split == "train":
            raise ValueError(
                "split must be another than 'train', which `fit` takes, got 'train'. Make one with "
                "`dtopk ingest --split`."
            )

        def batches() -> Iterator[tuple[NDArray[np.int64], Array]]:
            for y, rows in iter_split(store, split, self.classes_, self._batch_rows()):
                X = validate_data(self, rows, dtype=feature_dtypes(self.coef_.dtype), reset=False)
                yield y, self._score_classes(X)

        return batches

    def _score_classes(self, X: Array) -> Array:
        """Return the scores of a batch, with two columns for two classes."""
        return self._spread_scores(self._decide(X))

    def _spread_scores(self, scores: Array) -> Array:
        """Make two columns of one."""
        return scores if scores.shape[1] > 1 else np.hstack([-scores, scores]) * self._half()
