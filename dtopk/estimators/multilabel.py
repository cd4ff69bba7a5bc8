"""The scikit-learn estimator of rows that have any number of labels."""

import math
from collections.abc import Sequence
from functools import partial
from numbers import Real
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import ClassifierMixin
from sklearn.utils import Tags
from sklearn.utils.metaestimators import available_if
from sklearn.utils.validation import check_consistent_length, check_is_fitted

from dtopk.engine import Callback, fit
from dtopk.estimators.evaluation_sets import (
    EvaluateSets,
    KeepsEvaluation,
    check_callbacks,
    make_evaluation_options,
)
from dtopk.estimators.label_rows import Features, open_label_set, take_label_rows
from dtopk.estimators.label_sets import read_label_sets
from dtopk.estimators.linear import CertifiedLinearModel, EpochLines
from dtopk.estimators.parameters import make_options
from dtopk.evaluation import (
    RANKING_METRICS,
    ChosenThreshold,
    MultilabelCounts,
    choose_threshold,
)
from dtopk.losses import Loss, available, make_loss
from dtopk.model import select_topk

Array = NDArray[Any]


def _is_logistic(estimator: "MultilabelClassifier") -> bool:
    return estimator.loss == "logistic_ova"


class MultilabelClassifier(KeepsEvaluation, ClassifierMixin, CertifiedLinearModel):
    r"""Linear classifier of rows with sets of labels, trained until proved optimal.

    Minimises

    .. math:: P(W) = C \sum_i s_i L(Y_i, W'x_i) + \tfrac12 \|W\|^2

    over ``W`` (n_features, n_classes) for label sets Y_i and sample weights s_i, by stochastic dual
    coordinate ascent, and stops once the relative duality gap is at most `tol`, as
    :class:`TopKClassifier` does.

    Parameters
    ----------
    loss : str, default='logistic_ova'
        'logistic_ova', 'hinge_ova' and 'smooth_hinge_ova' are binary relevance: one problem for
        each label. 'multilabel_hinge' and 'multilabel_softmax' rank the labels of a row above the
        others; every row that counts must then have a label, and lack one.
    gamma : float or None, default=None
        Smoothing of a hinge; None: the loss's own, 1 for 'smooth_hinge_ova' and none for others.
    C : float, default=1.0
        Weight of the loss: scikit-learn's C.
    threshold : float, default=0.0
        Labels are predicted whose score is above it, until :meth:`tune_threshold` finds another.
    skip_unlabelled : bool, default=False
        Whether rows that have none of the labels, or all, are left out where the loss cannot use
        them; otherwise they are an error.
    fit_intercept : bool, default=True
        Whether to add a constant feature, penalised like the others.
    intercept_scaling : float, default=1.0
        Value of the constant feature.
    tol : float, default=1e-3
        Relative duality gap at which training stops.
    max_epochs : int, default=200
        Passes over the data after which training stops all the same, with a
        `ConvergenceWarning`.
    time_limit_s : float or None, default=None
        Seconds after which training stops all the same; None: no limit.
    solver : str, default='auto'
        'sdca', 'frank_wolfe', 'frank_wolfe_fixed', 'block_frank_wolfe', 'lbfgs',
        'gradient_descent' or 'pegasos', of which `dtopk losses` lists those that serve the loss;
        'auto' takes the one that suits it.
    acceleration : {'auto', 'off'}, default='auto'
        Accelerated outer loop, 'auto' as strong as it pays.
    dtype : {'float32', 'float64'}, default='float32'
        Type of the weights and of the computation. The certificate is taken in float64.
    block_size : int or None, default=None
        Rows that are solved together; None: chosen from the size of W.
    n_jobs : int or None, default=None
        Threads of the matrix products; None or -1: as many as the BLAS library is set to.
    random_state : int, RandomState or None, default=None
        Draws the order of the rows.
    verbose : int, default=0
        Above 0: one line on standard error for every epoch.
    partitions : int or None, default=None
        Parts that the rows are dealt to; None: 1.
    early_stopping_rounds : int or None, default=None
        Epochs in a row without a better value of the last metric on the last set of `eval_set`,
        after which training stops, as of :class:`TopKClassifier`.
    eval_metric : str, sequence of str, or None, default=None
        'mean_average_precision', 'rank_loss', 'top_1_accuracy', 'top_2_accuracy', ...: what is
        measured on `eval_set` after every epoch. None: 'mean_average_precision'.
    callbacks : sequence of dtopk.Callback or None, default=None
        Told of training while it goes on, and asked after every epoch whether to stop.
        `sklearn.base.clone` copies them.

    Attributes
    ----------
    classes_ : ndarray of shape (n_classes,)
        The labels: the columns of an indicator matrix by number, or what lists or a store name.
    coef_ : ndarray of shape (n_classes, n_features)
        ``W.T``, of type `dtype`.
    intercept_ : ndarray of shape (n_classes,)
        Of type `dtype`; zeros without `fit_intercept`.
    threshold_ : float
        The threshold in use.
    n_skipped_ : int
        Rows left out for want of labels to rank.
    n_iter_, n_features_in_, duality_gap_, certificate_, history_, stop_reason_
    evals_result_, best_iteration_, best_score_
        As of :class:`TopKClassifier`.

    Examples
    --------
    >>> from sklearn.datasets import make_multilabel_classification
    >>> from dtopk import MultilabelClassifier
    >>> X, Y = make_multilabel_classification(n_classes=3, random_state=0)
    >>> clf = MultilabelClassifier(random_state=0).fit(X, Y)
    >>> clf.certificate_.relative_gap <= 1e-3
    True
    >>> clf.predict(X[:2])
    array([[0, 1, 0],
           [0, 1, 0]])
    """

    classes_: Array
    threshold_: float

    def __init__(
        self,
        loss: str = "logistic_ova",
        *,
        gamma: float | None = None,
        C: float = 1.0,
        threshold: float = 0.0,
        skip_unlabelled: bool = False,
        fit_intercept: bool = True,
        intercept_scaling: float = 1.0,
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
        partitions: int | None = None,
        early_stopping_rounds: int | None = None,
        eval_metric: str | Sequence[str] | None = None,
        callbacks: Sequence[Callback] | None = None,
    ) -> None:
        self.loss = loss
        self.gamma = gamma
        self.C = C
        self.threshold = threshold
        self.skip_unlabelled = skip_unlabelled
        self.fit_intercept = fit_intercept
        self.intercept_scaling = intercept_scaling
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
        self.partitions = partitions
        self.early_stopping_rounds = early_stopping_rounds
        self.eval_metric = eval_metric
        self.callbacks = callbacks

    def __sklearn_tags__(self) -> Tags:
        tags: Tags = super().__sklearn_tags__()
        tags.classifier_tags.multi_label = True
        tags.classifier_tags.multi_class = False
        tags.target_tags.multi_output = True
        tags.target_tags.single_output = False
        return tags

    def fit(
        self,
        X: Features,
        Y: Any = None,
        sample_weight: ArrayLike | None = None,
        *,
        eval_set: Sequence[tuple[Features, Any]] | None = None,
    ) -> Self:
        """Train on all of X, or on the split 'train' of a multilabel feature store.

        Parameters
        ----------
        X : array-like or zarr.Array of shape (n_samples, n_features), or FeatureStore
        Y : array or sparse matrix of shape (n_samples, n_classes), or list of lists
            An array has 1 where a row has a label and 0 elsewhere; a list has a list of the
            labels of each row, all of them strings or all whole numbers. None for a store.
        sample_weight : array-like of shape (n_samples,), optional
            At least 0; None weighs every sample 1. None for a store, which may hold its own.
        eval_set : list of pairs (X, Y), optional
            Rows on which `eval_metric` is measured after every epoch, arrays as X and Y, or a
            FeatureStore and the name of one of its splits.

        Returns
        -------
        MultilabelClassifier
            This one.

        Raises
        ------
        ValueError
            If a parameter breaks its rule, or X or Y cannot be used.
        TypeError
            If a parameter or an array is not of a type that can be used.
        DatasetError
            If a chunk of the store is damaged, or holds NaN or infinity.
        """
        loss = self._make_loss()
        if not (isinstance(self.threshold, Real) and math.isfinite(self.threshold)):
            raise ValueError(f"threshold must be a finite number, got {self.threshold!r}.")
        options = make_options({**self.get_params(deep=False), "partitions": self.partitions or 1})
        callbacks = check_callbacks(self.callbacks)
        evaluation = make_evaluation_options(
            eval_set,
            self.eval_metric,
            self.early_stopping_rounds,
            default_metric="mean_average_precision",
            others=RANKING_METRICS,
        )
        rows, classes = take_label_rows(self, loss, X, Y, sample_weight)
        loss.check_n_classes(rows.n_classes)
        evaluate = None
        if eval_set is not None:
            evaluate = EvaluateSets(
                [open_label_set(self, *each, classes) for each in enumerate(eval_set)],
                evaluation,
                start_counts=partial(MultilabelCounts, n_classes=len(classes), dtype=np.float64),
                n_classes=len(classes),
                constant=options.constant,
                verbose=bool(self.verbose),
            )
            callbacks.insert(0, evaluate)
        if self.verbose:
            callbacks.insert(0, EpochLines())
        result = fit(rows, loss, options, callbacks=callbacks)
        self.classes_ = classes
        self.coef_ = np.ascontiguousarray(result.W.T)
        self.intercept_ = result.intercept
        self.threshold_ = float(self.threshold)
        self._keep_evaluation(evaluate)
        self._take_over(result)
        return self

    def decision_function(self, X: Features) -> Array:
        """Compute the scores, ``X @ coef_.T + intercept_``.

        Parameters
        ----------
        X : array-like or zarr.Array of shape (n_samples, n_features), or FeatureStore

        Returns
        -------
        ndarray of shape (n_samples, n_classes)
        """
        check_is_fitted(self)
        return np.concatenate([self._decide(batch) for batch in self._iter_batches(X)])

    def predict(self, X: Features) -> NDArray[np.int64]:
        """Mark the labels that score more than `threshold_`.

        Parameters
        ----------
        X : array-like or zarr.Array of shape (n_samples, n_features), or FeatureStore

        Returns
        -------
        ndarray of shape (n_samples, n_classes), int64
            1 for a label that is predicted, 0 for others; the columns are those of `classes_`.
        """
        marked: NDArray[np.int64] = (self.decision_function(X) > self.threshold_).astype(np.int64)
        return marked

    def predict_topk(self, X: Features, k: int) -> Array:
        """Name the k labels of the highest scores, best first; equal ones as in `classes_`.

        Parameters
        ----------
        X : array-like or zarr.Array of shape (n_samples, n_features), or FeatureStore
        k : int, 1 <= k <= n_classes

        Returns
        -------
        ndarray of shape (n_samples, k), the type of `classes_`
        """
        check_is_fitted(self)
        best = [select_topk(self._decide(batch), k) for batch in self._iter_batches(X)]
        labels: Array = self.classes_[np.concatenate(best)]
        return labels

    @available_if(_is_logistic)  # type: ignore[untyped-decorator]
    def predict_proba(self, X: Features) -> Array:
        """Compute the probability of each label by itself; there with 'logistic_ova' alone.

        Parameters
        ----------
        X : array-like or zarr.Array of shape (n_samples, n_features), or FeatureStore

        Returns
        -------
        ndarray of shape (n_samples, n_classes)
            The logistic function of the scores; a row need not sum to one.
        """
        half = 0.5 * self.decision_function(X)
        probabilities: Array = 0.5 * (1 + np.tanh(half))
        return probabilities

    def tune_threshold(self, X: Features, Y: Any, metric: str = "f1_samples") -> ChosenThreshold:
        """Choose the threshold that makes a metric best, on rows that were not trained on.

        Parameters
        ----------
        X : array-like or zarr.Array of shape (n_samples, n_features)
        Y : array or sparse matrix of shape (n_samples, n_classes), or list of lists
            As `fit` takes it.
        metric : str, default='f1_samples'
            'f1_samples', 'f1_macro', 'f1_micro', 'accuracy', 'subset_accuracy' or 'hamming_loss'.

        Returns
        -------
        ChosenThreshold
            The threshold, which is `threshold_` from now on, and the metric there: no threshold
            has a better one on these rows.

        Raises
        ------
        ValueError
            If the metric is unknown, or Y does not belong to X.
        """
        check_is_fitted(self)
        sets, _ = read_label_sets(Y, self.classes_)
        scores = self.decision_function(X)
        check_consistent_length(scores, sets)
        counts = MultilabelCounts(n_classes=len(self.classes_), dtype=scores.dtype)
        counts.update(sets.to_indicator(len(self.classes_)), scores)
        chosen = choose_threshold(metric, counts)
        self.threshold_ = chosen.delta
        return chosen

    def _make_loss(self) -> Loss:
        loss = make_loss(self.loss, gamma=self.gamma)
        if "multilabel" not in loss.targets:
            names = [info.name for info in available() if "multilabel" in info.targets]
            raise ValueError(
                f"loss must be one of {', '.join(map(repr, names))} for sets of labels, "
                f"got {self.loss!r}."
            )
        return loss
