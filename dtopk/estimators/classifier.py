"""The scikit-learn estimator."""

import sys
import warnings
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, Self

import numpy as np
import zarr
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils.metaestimators import available_if
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import _check_sample_weight, check_is_fitted, validate_data

from dtopk.engine import (
    FLOAT32_TOL,
    ArrayRows,
    Callback,
    EpochRecord,
    FitResult,
    Rows,
    StartPoint,
    StoreRows,
    class_totals,
)
from dtopk.engine import fit as fit_rows
from dtopk.estimators.inputs import iter_features, load_zarr
from dtopk.estimators.parameters import make_options, weigh_classes
from dtopk.losses import Loss, make_loss
from dtopk.model import select_topk
from dtopk_storage import FeatureStore

Array = NDArray[Any]
Features = ArrayLike | FeatureStore | zarr.Array[Any]

_BATCH_BYTES = 64 * 10**6
"""Features and scores of a batch of predictions take about so much memory."""


def _loss_has_probabilities(estimator: "TopKClassifier") -> bool:
    return estimator._make_loss().has_probabilities


def _feature_dtypes(first: Any) -> list[Any]:
    """List the types that features are left in; others are converted to the first."""
    return [np.dtype(first), np.float32, np.float64, np.float16]


class TopKClassifier(ClassifierMixin, BaseEstimator):
    r"""Linear classifier with a top-k loss, trained until a duality gap proves it optimal.

    Minimises

    .. math:: P(W) = C \sum_i s_i L(y_i, W'x_i) + \tfrac12 \|W\|^2

    over ``W`` (n_features, n_classes), with the sample weights s_i, by stochastic dual coordinate
    ascent. Training stops once the relative duality gap ``(P - D) / max(|P|, |D|)`` is at most
    `tol`: the dual value D is a lower bound of the minimum, so no weights can be better by more.

    Parameters
    ----------
    loss : str, default='softmax'
        'softmax' (multinomial logistic regression), 'topk_hinge_alpha', 'topk_hinge_alpha_incl'
        or 'topk_hinge_beta'; :func:`dtopk.losses.available` describes them.
    k : int, default=1
        The k of a top-k loss, from 1 to n_classes - 1. With k = 1 the unsmoothed hinge losses are
        the multiclass SVM of Crammer and Singer.
    C : float, default=1.0
        Weight of the loss: scikit-learn's C. See the notes for two classes.
    gamma : float, default=0.0
        Smoothing of a hinge loss; 0 leaves it nonsmooth.
    smoothing : {'lapin', 'moreau'}, default='lapin'
        Form of the smoothing.
    fit_intercept : bool, default=True
        Whether to add a constant feature, whose weights times `intercept_scaling` are the
        intercept. As in `sklearn.svm.LinearSVC` these weights are penalised like all others, and
        the certificate is for that problem.
    intercept_scaling : float, default=1.0
        Value of the constant feature; the larger, the less the intercept is penalised.
    class_weight : dict, 'balanced' or None, default=None
        Weights of the classes, multiplied with those of the samples. 'balanced': n_samples /
        (n_classes * n_samples of the class), samples counted by their weights.
    tol : float, default=1e-3
        Relative duality gap at which training stops.
    max_epochs : int, default=200
        Passes over the data after which training stops all the same, with a
        `ConvergenceWarning`.
    time_limit_s : float or None, default=None
        Seconds after which training stops all the same, with a `ConvergenceWarning`; None: no
        limit.
    solver : {'auto', 'sdca'}, default='auto'
        'auto' takes the solver that suits the loss.
    acceleration : {'auto', 'off'}, default='auto'
        Accelerated outer loop, 'auto' as strong as it pays. It changes the passes needed alone.
    dtype : {'float32', 'float64'}, default='float32'
        Type of the weights and of the computation. The certificate is taken in float64.
    block_size : int or None, default=None
        Rows that are solved together; None: chosen from the number of classes. Results depend on
        it by rounding alone.
    warm_start : bool, default=False
        Whether to start at the weights of the previous fit, of the same features and classes. It
        saves passes where the loss is smooth and the problem nearly the same; with gamma = 0 the
        weights say too little about the dual variables.
    n_jobs : int or None, default=None
        Threads of the matrix products; None or -1: as many as the BLAS library is set to.
    random_state : int, RandomState or None, default=None
        Draws the order of the rows.
    verbose : int, default=0
        Above 0: one line on standard error for every epoch.

    Attributes
    ----------
    classes_ : ndarray of shape (n_classes,)
        The labels.
    coef_ : ndarray of shape (n_classes, n_features), or (1, n_features) for two classes
        ``W.T``, of type `dtype`; for two classes ``w_1 - w_0``.
    intercept_ : ndarray of shape (n_classes,), or (1,) for two classes
        Of type `dtype`; zeros without `fit_intercept`.
    n_iter_ : int
        Epochs.
    n_features_in_ : int
        Features seen by `fit`.
    feature_names_in_ : ndarray of shape (n_features_in_,)
        Their names, where X had any.
    duality_gap_ : float
        P(W) - D: no weights have an objective that is smaller by more.
    certificate_ : dtopk.solvers.certificate.Certificate
        P, D, and their absolute and relative gap, recomputed in float64 for the weights kept.
    history_ : tuple of dtopk.engine.EpochRecord
        One record for every epoch.
    stop_reason_ : {'tolerance', 'max_epochs', 'time_limit', 'interrupted'}
        Why training ended.

    Notes
    -----
    Without intercept the coefficients for 'softmax' and three classes or more equal those of
    `sklearn.linear_model.LogisticRegression` at the same C. For two classes this estimator still
    has one column of W for each. At the optimum ``w_0 = -w_1``, so that |W|^2 is half of
    |w_1 - w_0|^2, and softmax at C equals LogisticRegression at 2 C.

    X is not copied if it is a C-contiguous array of type float32, float64 or float16; rows are
    converted to `dtype` a block at a time. Anything else is converted once: integers to `dtype`,
    other orders of memory to C-contiguous. The dual variables take n_samples * n_classes numbers
    of type `dtype`.

    An interrupt (Ctrl-C) ends training after the block in work. The weights reached are kept with
    their certificate before `KeyboardInterrupt` is raised.

    References
    ----------
    .. [1] Lapin, Hein, Schiele. Top-k Multiclass SVM. NIPS 2015.
    .. [2] Lapin, Hein, Schiele. Loss Functions for Top-k Error: Analysis and Insights. CVPR 2016.

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> from dtopk import TopKClassifier
    >>> X, y = load_iris(return_X_y=True)
    >>> clf = TopKClassifier("topk_hinge_alpha", k=2, gamma=0.5, random_state=0).fit(X, y)
    >>> clf.certificate_.relative_gap <= 1e-3
    True
    >>> clf.predict_topk(X[[0, 75]], 2)
    array([[0, 1],
           [1, 2]])
    """

    def __init__(
        self,
        loss: str = "softmax",
        *,
        k: int = 1,
        C: float = 1.0,
        gamma: float = 0.0,
        smoothing: str = "lapin",
        fit_intercept: bool = True,
        intercept_scaling: float = 1.0,
        class_weight: dict[Any, float] | str | None = None,
        tol: float = 1e-3,
        max_epochs: int = 200,
        time_limit_s: float | None = None,
        solver: str = "auto",
        acceleration: str = "auto",
        dtype: str = "float32",
        block_size: int | None = None,
        warm_start: bool = False,
        n_jobs: int | None = None,
        random_state: int | np.random.RandomState | None = None,
        verbose: int = 0,
    ) -> None:
        self.loss = loss
        self.k = k
        self.C = C
        self.gamma = gamma
        self.smoothing = smoothing
        self.fit_intercept = fit_intercept
        self.intercept_scaling = intercept_scaling
        self.class_weight = class_weight
        self.tol = tol
        self.max_epochs = max_epochs
        self.time_limit_s = time_limit_s
        self.solver = solver
        self.acceleration = acceleration
        self.dtype = dtype
        self.block_size = block_size
        self.warm_start = warm_start
        self.n_jobs = n_jobs
        self.random_state = random_state
        self.verbose = verbose

    def fit(
        self, X: Features, y: ArrayLike | None = None, sample_weight: ArrayLike | None = None
    ) -> Self:
        """Train on all of X, or on the split 'train' of a feature store.

        Parameters
        ----------
        X : array-like or zarr.Array of shape (n_samples, n_features), or FeatureStore
            A zarr array is read into memory; a store that does not fit is streamed from disk.
        y : array-like of shape (n_samples,)
            Labels; None for a store, which holds its own.
        sample_weight : array-like of shape (n_samples,), optional
            At least 0; None weighs every sample 1. None for a store, which may hold its own.

        Returns
        -------
        TopKClassifier
            This one.

        Raises
        ------
        ValueError
            If a parameter breaks its rule, X or y cannot be used, or memory does not suffice.
        DatasetError
            If a chunk of the store is damaged, or holds NaN or infinity.
        """
        loss = self._make_loss()
        options = make_options(self.get_params(deep=False))
        previous = self._previous_weights() if self.warm_start else None
        if isinstance(X, FeatureStore):
            rows, classes, totals = self._open_store(X, y, sample_weight)
        else:
            rows, classes, totals = self._take_arrays(X, y, sample_weight)
        class_weight = weigh_classes(self.class_weight, classes, totals)
        start = None if previous is None else self._start_from(previous, classes)
        result = fit_rows(
            rows,
            loss,
            replace(options, class_weight=class_weight),
            callbacks=[_EpochLines()] if self.verbose else [],
            start=start,
        )
        self._keep(result, classes)
        return self

    def decision_function(self, X: Features) -> Array:
        """Compute the scores.

        Parameters
        ----------
        X : array-like or zarr.Array of shape (n_samples, n_features), or FeatureStore
            What is on disk is read batch by batch. All rows of a store are taken, in their order.

        Returns
        -------
        ndarray of shape (n_samples, n_classes), or (n_samples,) for two classes
            ``X @ coef_.T + intercept_``, in the wider of the types of X and `coef_`.
        """
        check_is_fitted(self)
        scores = np.concatenate([self._decide(batch) for batch in self._iter_batches(X)])
        return scores[:, 0] if scores.shape[1] == 1 else scores

    def predict(self, X: Features) -> Array:
        """Name the class of the highest score; of equal ones the first in `classes_`.

        Parameters
        ----------
        X : array-like or zarr.Array of shape (n_samples, n_features), or FeatureStore

        Returns
        -------
        ndarray of shape (n_samples,), the type of `classes_`
        """
        check_is_fitted(self)
        best = [self._score_classes(batch).argmax(axis=1) for batch in self._iter_batches(X)]
        labels: Array = self.classes_[np.concatenate(best)]
        return labels

    def predict_topk(
        self, X: Features, k: int, *, return_scores: bool = False
    ) -> Array | tuple[Array, Array]:
        """Name the k classes of the highest scores, best first; equal ones as in `classes_`.

        Parameters
        ----------
        X : array-like or zarr.Array of shape (n_samples, n_features), or FeatureStore
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
        columns, scores = [], []
        for batch in self._iter_batches(X):
            batch_scores = self._score_classes(batch)
            columns.append(select_topk(batch_scores, k))
            scores.append(np.take_along_axis(batch_scores, columns[-1], axis=1))
        labels: Array = self.classes_[np.concatenate(columns)]
        return (labels, np.concatenate(scores)) if return_scores else labels

    @available_if(_loss_has_probabilities)  # type: ignore[untyped-decorator]
    def predict_proba(self, X: Features) -> Array:
        """Compute the probability of every class; there with the loss 'softmax' alone.

        Parameters
        ----------
        X : array-like or zarr.Array of shape (n_samples, n_features), or FeatureStore

        Returns
        -------
        ndarray of shape (n_samples, n_classes)
            The softmax of the scores; for two classes the second column is the logistic function
            of the decision function.
        """
        check_is_fitted(self)
        loss = self._make_loss()
        return np.concatenate(
            [loss.probabilities(self._score_classes(batch)) for batch in self._iter_batches(X)]
        )

    @available_if(_loss_has_probabilities)  # type: ignore[untyped-decorator]
    def predict_log_proba(self, X: Features) -> Array:
        """Compute the logarithm of `predict_proba`, minus infinity where that is 0.

        Parameters
        ----------
        X : array-like or zarr.Array of shape (n_samples, n_features), or FeatureStore

        Returns
        -------
        ndarray of shape (n_samples, n_classes)
        """
        with np.errstate(divide="ignore"):
            log_probabilities: Array = np.log(self.predict_proba(X))
        return log_probabilities

    def _make_loss(self) -> Loss:
        return make_loss(self.loss, k=self.k, gamma=self.gamma, smoothing=self.smoothing)

    def _take_arrays(
        self, X: ArrayLike | zarr.Array[Any], y: ArrayLike | None, sample_weight: ArrayLike | None
    ) -> tuple[Rows, Array, NDArray[np.float64]]:
        """Return the rows, the classes and the sum of the weights of each."""
        if isinstance(X, zarr.Array):
            X = load_zarr(X)
        features, labels = validate_data(self, X, y, dtype=_feature_dtypes(self.dtype), order="C")
        check_classification_targets(labels)
        classes, codes = np.unique(labels, return_inverse=True)
        weight = _check_sample_weight(
            sample_weight, features, dtype=np.float64, ensure_non_negative=True
        )
        totals = np.bincount(codes, weight, len(classes)).astype(np.float64, copy=False)
        return ArrayRows(features, codes.astype(np.int32), len(classes), weight), classes, totals

    def _open_store(
        self, store: FeatureStore, y: ArrayLike | None, sample_weight: ArrayLike | None
    ) -> tuple[Rows, Array, NDArray[np.float64]]:
        """Return the rows of the training split, the classes and the sum of each one's weights."""
        for name, value in (("y", y), ("sample_weight", sample_weight)):
            if value is not None:
                raise ValueError(
                    f"{name} must be left out for a feature store, which holds its own, "
                    f"got a {type(value).__name__}."
                )
        if store.kind != "multiclass":
            raise ValueError(f"kind of {store.path!r} must be 'multiclass', got {store.kind!r}.")
        rows = StoreRows(store, "train")
        totals = class_totals(rows)
        self.n_features_in_ = store.n_features
        self.__dict__.pop("feature_names_in_", None)
        return rows, store.classes, totals

    def _previous_weights(self) -> tuple[Array, Array] | None:
        """Return the weights to start from and their classes, with a row for the constant."""
        if not hasattr(self, "coef_"):
            return None
        W, intercept = self.coef_.T, self.intercept_
        if len(self.classes_) == 2:
            W, intercept = np.hstack([-W / 2, W / 2]), np.hstack([-intercept, intercept]) / 2
        if self.fit_intercept:
            W = np.vstack([W, intercept / self.intercept_scaling])
        return W, self.classes_

    def _start_from(self, previous: tuple[Array, Array], classes: Array) -> StartPoint:
        W, old_classes = previous
        n_features = len(W) - bool(self.fit_intercept)
        if n_features != self.n_features_in_ or old_classes.tolist() != classes.tolist():
            raise ValueError(
                f"with warm_start=True, X and y must have the {n_features} features and the "
                f"{len(old_classes)} classes of the previous fit, got {self.n_features_in_} "
                f"features and {len(classes)} classes, or others. Set warm_start=False."
            )
        return StartPoint(W=W)

    def _keep(self, result: FitResult, classes: Array) -> None:
        """Take over what training reached; warn where that is not what was asked for."""
        W, intercept = result.W, result.intercept
        if len(classes) == 2:
            W, intercept = W[:, 1:] - W[:, :1], intercept[1:] - intercept[:1]
        self.classes_ = classes
        self.coef_ = np.ascontiguousarray(W.T)
        self.intercept_ = intercept
        self.n_iter_ = result.epochs
        self.certificate_ = result.certificate
        self.duality_gap_ = result.certificate.duality_gap
        self.history_ = result.history
        self.stop_reason_ = result.stop_reason
        if result.stop_reason == "interrupted":
            raise KeyboardInterrupt
        if not result.certificate.certified:
            warnings.warn(self._unconverged(result), ConvergenceWarning, stacklevel=3)

    def _unconverged(self, result: FitResult) -> str:
        advice = "Raise max_epochs"
        if result.stop_reason == "time_limit":
            advice = "Raise time_limit_s"
        if self.dtype == "float32" and self.tol < FLOAT32_TOL:
            advice += ", set dtype='float64'"
        return (
            f"The relative duality gap is {result.certificate.relative_gap:.3g} after "
            f"{result.epochs} epochs ({result.seconds:.1f} s), above tol={self.tol:g}: the weights "
            f"are this far from the optimum at most. {advice}, scale the features "
            "(StandardScaler), or lower C."
        )

    def _iter_batches(self, X: Features) -> Iterator[Array]:
        """Validate features for a prediction, and cut them into batches."""
        row_bytes = 8 * (self.n_features_in_ + 2 * len(self.classes_))
        n_rows = max(1, _BATCH_BYTES // row_bytes)
        dtypes = _feature_dtypes(self.coef_.dtype)
        if isinstance(X, FeatureStore | zarr.Array):
            for batch in iter_features(X, n_rows):
                yield validate_data(self, batch, dtype=dtypes, reset=False)
            return
        features = validate_data(self, X, dtype=dtypes, reset=False)
        for start in range(0, len(features), n_rows):
            yield features[start : start + n_rows]

    def _decide(self, X: Array) -> Array:
        """Return the decision function of a batch, with one column for two classes."""
        dtype = np.result_type(X, self.coef_)
        scores: Array = X.astype(dtype, copy=False) @ self.coef_.T.astype(dtype, copy=False)
        scores += self.intercept_
        return scores

    def _score_classes(self, X: Array) -> Array:
        """Return the scores of a batch, with two columns for two classes."""
        scores = self._decide(X)
        return scores if scores.shape[1] > 1 else np.hstack([-scores / 2, scores / 2])


class _EpochLines(Callback):
    """Writes one line to standard error for every epoch."""

    def on_epoch(self, record: EpochRecord, W: object) -> None:
        gap = "gap" if record.exact else "gap about"
        print(
            f"epoch {record.epoch}: objective {record.primal:.6g}, {gap} "
            f"{record.relative_gap:.3g}, {record.seconds:.1f} s",
            file=sys.stderr,
        )
