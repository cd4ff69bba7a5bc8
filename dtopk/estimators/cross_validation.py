"""The scikit-learn estimator that chooses C by cross-validation."""

import warnings
from collections.abc import Iterable, Sequence
from dataclasses import replace
from numbers import Integral, Real
from typing import Any, Self, TypeAlias

import numpy as np
import zarr
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator
from sklearn.exceptions import ConvergenceWarning
from sklearn.metrics import get_scorer
from sklearn.model_selection import BaseCrossValidator, check_cv
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import (
    _check_sample_weight,
    check_is_fitted,
    column_or_1d,
)

from dtopk.engine import (
    ArrayRows,
    Callback,
    Candidate,
    FitOptions,
    FitResult,
    StartPoint,
    fit,
    fit_many,
)
from dtopk.estimators.class_rows import Features
from dtopk.estimators.classifier import TopKClassifier
from dtopk.estimators.dask_arrays import DaskArray, is_dask_array
from dtopk.estimators.evaluation_sets import check_callbacks, make_evaluation_options
from dtopk.estimators.fold_scores import TOPK, Scorer, choose_scorer, count_scored
from dtopk.estimators.inputs import load_zarr, validate_data
from dtopk.estimators.linear import feature_dtypes
from dtopk.estimators.parameters import make_options, weigh_classes
from dtopk.losses import Loss
from dtopk_storage import FeatureStore

Array = NDArray[Any]
Splitter: TypeAlias = int | BaseCrossValidator | Iterable[tuple[ArrayLike, ArrayLike]] | None

_FIRST_C, _LAST_C = 1e-4, 1e4
"""Ends of the grid where `Cs` is a number."""


class TopKClassifierCV(TopKClassifier):
    r"""Linear classifier with a top-k loss, its C chosen by cross-validation.

    For each fold the models of all C are trained on the rows outside of it, from small to large C,
    each starting where the one before has ended, if its C was at least a tenth, and each until a
    duality gap certifies it. Then a model of the best C is trained on all rows. See
    `TopKClassifier` for the problem that is solved. `calibrate` wants rows beside those of `fit`:
    each of these is trained on in some fold, also without `refit`.

    Parameters
    ----------
    loss : str, default='softmax'
        As in `TopKClassifier`, and so are all that are not described here.
    Cs : int or array-like of shape (n_Cs,), default=10
        Values of C; a number stands for so many, evenly spaced in their logarithm from 1e-4 to
        1e4.
    cv : int, splitter, iterable of (train, test) or None, default=None
        As in scikit-learn: None for 5 stratified folds, a number for so many, or what gives them.
        A row that is several times in a training set weighs as many times as much.
    scoring : str or callable, default='top_k_accuracy'
        What C is chosen by, as high as can be. 'top_k_accuracy': the share of rows, by their
        weights, whose class is among the `scoring_k` of the highest scores; else a name of
        scikit-learn's scorers, or a callable of estimator, X and y.
    scoring_k : int or None, default=None
        The k of 'top_k_accuracy'; None: that of the loss, 1 for a loss without one.
    refit : bool, default=True
        Whether to train on all rows at the best C. If not, coefficients and intercept are the means
        of those of the folds at the best C, for which there is no certificate.
    k, gamma, smoothing, rho, label_cost, fit_intercept, intercept_scaling, class_weight
        As in `TopKClassifier`.
    tol, max_epochs, time_limit_s, solver, acceleration, dtype, block_size, random_state, verbose
        As in `TopKClassifier`; each model has `max_epochs` and `time_limit_s` of its own.
    n_jobs : int or None, default=None
        Threads of the matrix products.
    eval_metric : str, sequence of str, or None, default=None
        'top_1_accuracy', 'top_2_accuracy', ..., up to n_classes - 1: what is measured on `eval_set`
        after every epoch of the model on all rows. None: that of the loss's k, or 'top_1_accuracy'.
    callbacks : sequence of dtopk.Callback or None, default=None
        Told of every training, one after the other: of each fold those of all C, then of that on
        all rows. A model of a fold that one stops is scored as it is. `sklearn.base.clone` copies
        them.

    Attributes
    ----------
    classes_ : ndarray of shape (n_classes,)
        The labels.
    Cs_ : ndarray of shape (n_Cs,)
        The values of C.
    C_ : float
        The best of them; of equally good ones the smallest.
    scores_ : ndarray of shape (n_folds, n_Cs)
        The score of each fold's rows.
    relative_gaps_ : ndarray of shape (n_folds, n_Cs)
        Relative duality gap of each fold's model.
    coef_ : ndarray of shape (n_classes, n_features), or (1, n_features) for two classes
        As in `TopKClassifier`.
    intercept_ : ndarray of shape (n_classes,), or (1,) for two classes
        As in `TopKClassifier`.
    n_iter_ : int
        Epochs of the model on all rows; without `refit` the most that a model took.
    n_features_in_ : int
        Features seen by `fit`.
    feature_names_in_ : ndarray of shape (n_features_in_,)
        Their names, where X had any.
    duality_gap_, certificate_, history_, stop_reason_
        Of the model on all rows, as in `TopKClassifier`; with `refit` only.
    evals_result_ : dict
        As in `TopKClassifier`, of the model on all rows; there after a fit with an `eval_set`.

    Notes
    -----
    Training stops by certificates, and not by metrics: C is chosen among models at their optima,
    whose scores are on the rows of the folds. There is no `early_stopping_rounds` therefore.

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> from dtopk import TopKClassifierCV
    >>> X, y = load_iris(return_X_y=True)
    >>> clf = TopKClassifierCV(Cs=[0.01, 1.0], cv=3, random_state=0).fit(X, y)
    >>> clf.C_
    1.0
    >>> clf.scores_.shape
    (3, 2)
    """

    client = None
    partitions = None
    """This process trains, on arrays in memory."""
    eval_metric: str | Sequence[str] | None = None
    callbacks: Sequence[Callback] | None = None
    """Of one that an earlier version has pickled."""

    def __init__(
        self,
        loss: str = "softmax",
        *,
        Cs: int | ArrayLike = 10,
        cv: Splitter = None,
        scoring: Scorer = TOPK,
        scoring_k: int | None = None,
        refit: bool = True,
        k: int = 1,
        gamma: float = 0.0,
        smoothing: str = "lapin",
        rho: ArrayLike | None = None,
        label_cost: ArrayLike | None = None,
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
        n_jobs: int | None = None,
        random_state: int | np.random.RandomState | None = None,
        verbose: int = 0,
        eval_metric: str | Sequence[str] | None = None,
        callbacks: Sequence[Callback] | None = None,
    ) -> None:
        self.loss = loss
        self.Cs = Cs
        self.cv = cv
        self.scoring: Any = scoring
        self.scoring_k = scoring_k
        self.refit = refit
        self.k = k
        self.gamma = gamma
        self.smoothing = smoothing
        self.rho = rho
        self.label_cost = label_cost
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
        self.n_jobs = n_jobs
        self.random_state = random_state
        self.verbose = verbose
        self.eval_metric = eval_metric
        self.callbacks = callbacks

    # The parent has a client in its state and in its copies; here is none.

    def __getstate__(self) -> dict[str, Any]:
        state: dict[str, Any] = BaseEstimator.__getstate__(self)
        return state

    def __sklearn_clone__(self) -> Self:
        other: Self = BaseEstimator.__sklearn_clone__(self)
        return other

    def fit(  # type: ignore[override]
        self,
        X: ArrayLike | zarr.Array[Any],
        y: ArrayLike | None = None,
        sample_weight: ArrayLike | None = None,
        *,
        eval_set: Sequence[tuple[Features, Any]] | None = None,
    ) -> Self:
        """Choose C, and train at it on all of X.

        Parameters
        ----------
        X : array-like or zarr.Array of shape (n_samples, n_features)
            A zarr array is read into memory.
        y : array-like of shape (n_samples,)
            Labels.
        sample_weight : array-like of shape (n_samples,), optional
            At least 0; None weighs every sample 1. Scores are weighted too, but for those of a
            callable.
        eval_set : list of pairs (X, y), optional
            As of `TopKClassifier.fit`: rows on which `eval_metric` is measured while the model on
            all rows is trained. C is not chosen by them. With `refit` only.

        Returns
        -------
        TopKClassifierCV
            This one.

        Raises
        ------
        ValueError
            If a parameter breaks its rule, X or y cannot be used, a fold leaves fewer than two
            classes to train on, or memory does not suffice.
        TypeError
            If a parameter is not of a type that can be used, or X is not in memory.
        """
        loss = self._make_loss()
        Cs = _make_grid(self.Cs)
        options = make_options(self.get_params(deep=False) | {"C": Cs[0], "partitions": None})
        score_rows = choose_scorer(self.scoring)
        callbacks = check_callbacks(self.callbacks)
        evaluation = make_evaluation_options(
            eval_set,
            self.eval_metric,
            None,
            default_metric=f"top_{loss.describe().get('k', 1)}_accuracy",
        )
        if eval_set is not None and not self.refit:
            raise ValueError(
                "eval_set must be left out with refit=False, got "
                f"{len(eval_set)}: no model is trained on all rows."
            )
        features, labels, weight = self._take(X, y, sample_weight)
        self.classes_, numbers = np.unique(labels, return_inverse=True)
        codes = numbers.astype(np.int32)
        weigh_classes(self.class_weight, self.classes_, self._total(codes, weight))
        evaluate = self._open_sets(eval_set, evaluation, self.classes_, options.constant)
        given = None if sample_weight is None else weight
        scores, gaps, fitted = [], [], []
        for train, test in check_cv(self.cv, labels, classifier=True).split(features, labels):
            times = np.bincount(np.arange(len(labels))[train], minlength=len(labels))
            results = self._fit_path(loss, options, Cs, features, codes, weight * times, callbacks)
            rows = np.arange(len(labels))[test]
            scores.append(
                [score_rows(self, each, features, codes, rows, given) for each in results]
            )
            gaps.append([each.certificate.relative_gap for each in results])
            fitted.append(results)
        self.Cs_, self.scores_, self.relative_gaps_ = Cs, np.array(scores), np.array(gaps)
        best = self._find_best()
        self.C_ = float(Cs[best])
        self._warn_of_gaps()
        folds = [results[best] for results in fitted]
        if self.refit:
            start = self._start(loss, folds[0])
            weights = weigh_classes(self.class_weight, self.classes_, self._total(codes, weight))
            options = replace(options, C=self.C_, class_weight=weights)
            rows_of_all = ArrayRows(features, codes, len(self.classes_), weight)
            told = self._list_callbacks(callbacks, evaluate)
            result = fit(rows_of_all, loss, options, start=start, callbacks=told)
            self._keep_evaluation(evaluate)
            self._keep(result, self.classes_)
        else:
            self._keep_evaluation(None)
            self._keep_mean(folds)
            self.n_iter_ = max(each.epochs for results in fitted for each in results)
        return self

    def score(
        self,
        X: ArrayLike | zarr.Array[Any] | FeatureStore | DaskArray,
        y: ArrayLike | DaskArray,
        sample_weight: ArrayLike | DaskArray | None = None,
    ) -> float:
        """Compute the score of some rows, as of `scoring`.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
        y : array-like of shape (n_samples,)
        sample_weight : array-like of shape (n_samples,), optional

        Returns
        -------
        float
        """
        check_is_fitted(self)
        weighted = {} if sample_weight is None else {"sample_weight": sample_weight}
        if self.scoring != TOPK:
            scorer = get_scorer(self.scoring)
            return float(scorer(self, X, y, **(weighted if isinstance(self.scoring, str) else {})))
        k = count_scored(self.scoring_k, self.k, len(self.classes_))
        best = self.predict_topk(X, k)
        hits = (np.asarray(best) == column_or_1d(y)[:, np.newaxis]).any(axis=1)
        weight = None if sample_weight is None else np.asarray(sample_weight)
        return float(np.average(hits, weights=weight))

    def _take(
        self, X: ArrayLike | zarr.Array[Any], y: ArrayLike | None, sample_weight: ArrayLike | None
    ) -> tuple[Array, Array, Array]:
        """Return the features, the labels and the weights, all checked."""
        given: tuple[object, ...] = (X, y, sample_weight)
        if isinstance(given[0], FeatureStore) or any(map(is_dask_array, given)):
            raise TypeError(
                f"X must be an array in memory, got a {type(X).__name__}. `dtopk sweep` chooses "
                "among models on a feature store, also by cross-validation."
            )
        if isinstance(X, zarr.Array):
            X = load_zarr(X)
        features, labels = validate_data(self, X, y, dtype=feature_dtypes(self.dtype), order="C")
        check_classification_targets(labels)
        weight = _check_sample_weight(
            sample_weight, features, dtype=np.float64, ensure_non_negative=True
        )
        return features, labels, weight

    def _total(self, codes: NDArray[np.int32], weight: Array) -> NDArray[np.float64]:
        return np.bincount(codes, weight, len(self.classes_)).astype(np.float64, copy=False)

    def _fit_path(
        self,
        loss: Loss,
        options: FitOptions,
        Cs: NDArray[np.float64],
        features: Array,
        codes: NDArray[np.int32],
        weight: Array,
        callbacks: Sequence[Callback],
    ) -> list[FitResult]:
        """Train a model of each C on the rows of a weight above 0."""
        weights = weigh_classes(self.class_weight, self.classes_, self._total(codes, weight))
        rows = ArrayRows(features, codes, len(self.classes_), weight)
        found = fit_many(
            rows,
            [Candidate(name=str(place), loss=loss, C=float(C)) for place, C in enumerate(Cs)],
            replace(options, class_weight=weights),
            callbacks=lambda candidate: self._list_callbacks(callbacks),
            # One after the other: chosen from times that a pass takes, the last digits, and so
            # what is predicted for rows near a boundary, would not be the same every time.
            width=1,
        )
        results = [found.get(str(place)) for place in range(len(Cs))]
        if any(each is None or each.stop_reason == "interrupted" for each in results):
            raise KeyboardInterrupt
        return [each for each in results if each is not None]

    def _start(self, loss: Loss, before: FitResult) -> StartPoint | None:
        """Start at the weights of a fold's model, where they say enough of the duals."""
        if not loss.smooth or loss.n_masked or before.solver == "pegasos":
            return None
        if not self.fit_intercept:
            return StartPoint(W=before.W)
        return StartPoint(W=np.vstack([before.W, before.intercept / self.intercept_scaling]))

    def _find_best(self) -> int:
        """Return the place of the best C, of equally good ones that of the smallest."""
        means = self.scores_.mean(axis=0)
        if np.isnan(means).all():
            raise ValueError("scoring must give numbers, got NaN for every C.")
        best = np.flatnonzero(means == np.nanmax(means))
        return int(best[np.argmin(self.Cs_[best])])

    def _warn_of_gaps(self) -> None:
        """Warn of models of folds that are not certified."""
        n_open = int((self.relative_gaps_ > self.tol).sum())
        if n_open:
            warnings.warn(
                f"The relative duality gap of {n_open} of {self.relative_gaps_.size} models in the "
                f"cross-validation is above tol={self.tol:g}, at most "
                f"{self.relative_gaps_.max():.3g} (relative_gaps_). Raise max_epochs, or leave out "
                "the largest of Cs.",
                ConvergenceWarning,
                stacklevel=3,
            )

    def _keep_mean(self, folds: Sequence[FitResult]) -> None:
        """Take the mean of the folds' weights, for which there is no certificate."""
        W = np.mean([each.W for each in folds], axis=0)
        intercept = np.mean([each.intercept for each in folds], axis=0)
        self._keep_weights(W, intercept, self.classes_)
        for name in ("certificate_", "duality_gap_", "history_", "stop_reason_"):
            self.__dict__.pop(name, None)


def _make_grid(Cs: object) -> NDArray[np.float64]:
    """Return the values of C."""
    if isinstance(Cs, bool) or (isinstance(Cs, Real) and not isinstance(Cs, Integral)):
        raise TypeError(f"Cs must be an integer or an array of numbers, got {Cs!r}.")
    if isinstance(Cs, Integral):
        n_values = int(Cs)
        if n_values < 1:
            raise ValueError(f"Cs must be at least 1, got {Cs!r}.")
        return np.geomspace(_FIRST_C, _LAST_C, n_values) if n_values > 1 else np.ones(1)
    grid: NDArray[np.float64] = np.array(Cs, dtype=np.float64)
    if grid.ndim != 1 or not len(grid) or not (np.isfinite(grid) & (grid > 0)).all():
        raise ValueError(f"Cs must be finite numbers above 0 in one dimension, got {Cs!r}.")
    return grid
