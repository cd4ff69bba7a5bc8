"""The scikit-learn estimator."""

import copy
import os
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator

from dtopk.engine import Callback, FitResult, StartPoint
from dtopk.estimators.class_rows import Features, open_set, take_rows
from dtopk.estimators.dask_arrays import DaskArray
from dtopk.estimators.evaluation_sets import (
    EvaluateSets,
    EvaluationOptions,
    KeepsEvaluation,
    check_callbacks,
    make_evaluation_options,
)
from dtopk.estimators.linear import EpochLines, count_rows
from dtopk.estimators.linear_predictions import LinearPredictions
from dtopk.estimators.parameters import make_class_loss, make_options, weigh_classes
from dtopk.estimators.place import open_place
from dtopk.evaluation import AccuracyCounts
from dtopk.losses import Loss

if TYPE_CHECKING:
    from dtopk.launch import Client

Array = NDArray[Any]


class TopKClassifier(KeepsEvaluation, LinearPredictions):
    r"""Linear classifier with a top-k loss, trained until a duality gap proves it optimal.

    Minimises

    .. math:: P(W) = C \sum_i s_i L(y_i, W'x_i) + \tfrac12 \|W\|^2

    over ``W`` (n_features, n_classes), with the sample weights s_i, by stochastic dual coordinate
    ascent. Training stops once the relative duality gap ``(P - D) / max(|P|, |D|)`` is at most
    `tol`: the dual value D is a lower bound of the minimum, so no weights can be better by more.
    For the two losses that are not convex, 'truncated_topk_entropy' and 'calibrated_topk_hinge', D
    bounds the problem that leaves out the classes which each row is forgiven at the weights: these
    are a stationary point, and not always the best of all.

    Parameters
    ----------
    loss : str, default='softmax'
        'softmax' (multinomial logistic regression), 'topk_hinge_alpha' or another of those that
        `dtopk losses` lists; :func:`dtopk.losses.available` describes them.
    k : int, default=1
        The k of a top-k loss, from 1 to n_classes - 1. With k = 1 the unsmoothed hinge losses are
        the multiclass SVM of Crammer and Singer.
    C : float, default=1.0
        Weight of the loss: scikit-learn's C. See the notes for two classes.
    gamma : float, default=0.0
        Smoothing of a hinge loss; 0 leaves it nonsmooth. 'smooth_hinge_ova' needs one above 0.
    smoothing : {'lapin', 'moreau'}, default='lapin'
        Form of the smoothing.
    rho : array-like of shape (n_weights,) or None, default=None
        Weights of the largest, second largest, ... margin for 'weighted_usunier': not negative,
        none above the one before; None: 1 for the largest.
    label_cost : array-like of shape (n_classes, n_classes) or None, default=None
        What naming class j costs where i is true, row i and column j in the order of `classes_`,
        for 'structured_hinge'; None: 1 for every mistake.
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
    solver : str, default='auto'
        'sdca', 'frank_wolfe', 'frank_wolfe_fixed', 'block_frank_wolfe', 'lbfgs',
        'gradient_descent' or 'pegasos', of which `dtopk losses` lists those that serve the loss;
        'auto' takes the one that suits it.
    acceleration : {'auto', 'off'}, default='auto'
        Accelerated outer loop, 'auto' as strong as it pays. It changes the passes needed alone.
    dtype : {'float32', 'float64'}, default='float32'
        Type of the weights and of the computation. The certificate is taken in float64.
    block_size : int or None, default=None
        Rows that are solved together; None: chosen from the size of W. Results depend on
        it by rounding alone.
    warm_start : bool, default=False
        Whether to start at the weights of the previous fit, of the same features and classes. It
        saves passes where the loss is smooth and the problem nearly the same; with gamma = 0 the
        weights say too little about the dual variables.
    n_jobs : int or None, default=None
        Threads of the matrix products, in each worker where a client trains; None or -1: as many
        as the BLAS library is set to, or as the worker owns.
    random_state : int, RandomState or None, default=None
        Draws the order of the rows.
    verbose : int, default=0
        Above 0: one line on standard error for every epoch.
    partitions : int or None, default=None
        Parts that the rows are dealt to, to be solved side by side; more of them take more epochs.
        Results depend on their number, and not on how many workers there are. None: one for each
        worker of the client, and 1 without a client.
    early_stopping_rounds : int or None, default=None
        Epochs in a row in which the last metric on the last set of `eval_set` has not got better
        than ever before, after which training stops; `fit` then needs an `eval_set`. The weights
        kept are those of the last epoch, with their certificate, not those of `best_iteration_`.
        There is no warning that `tol` was not reached. None: training does not stop by metrics.
    eval_metric : str, sequence of str, or None, default=None
        'top_1_accuracy', 'top_2_accuracy', ..., up to n_classes - 1: what is measured on `eval_set`
        after every epoch. None: that of the loss's k, or 'top_1_accuracy'.
    callbacks : sequence of dtopk.Callback or None, default=None
        Told of training while it goes on, and asked after every epoch whether to stop.
        `sklearn.base.clone` copies them.
    spool_dir : path-like or None, default=None
        Folder in which `fit` keeps what it needs on disk for as long as it lasts: the rows of Dask
        arrays, and those of other arrays where a client trains; what does not fit into memory; the
        state from which a run goes on that has lost a worker. Every worker must see it under the
        same name. None: Dask's temporary directory if it is set, or the system's, which serves
        where all workers are on this machine.
    client : distributed.Client or None, default=None
        Of the workers that train, whatever X is. None: Dask's default client for Dask arrays, if
        there is one, and otherwise this process. Copies made by pickling have None, those that
        `sklearn.base.clone` makes have the same one.

    Attributes
    ----------
    classes_ : ndarray of shape (n_classes,)
        The labels.
    coef_ : ndarray of shape (n_classes, n_features), or (1, n_features) for two classes
        ``W.T``, of type `dtype`; for two classes ``w_1 - w_0``, and half of that with a loss of
        one class against the rest, whose two problems are the same.
    intercept_ : ndarray of shape (n_classes,), or (1,) for two classes
        Of type `dtype`; zeros without `fit_intercept`.
    n_iter_ : int
        Epochs.
    n_features_in_ : int
        Features seen by `fit`.
    feature_names_in_ : ndarray of shape (n_features_in_,)
        Their names, where X had any.
    duality_gap_ : float
        P(W) - D: no weights have an objective that is smaller by more, if the loss is convex.
    certificate_ : dtopk.solvers.certificate.Certificate
        P, D, and their absolute and relative gap, recomputed in float64 for the weights kept.
    history_ : tuple of dtopk.engine.EpochRecord
        One record for every epoch.
    stop_reason_ : str
        'tolerance', 'max_epochs', 'time_limit', 'interrupted', 'early_stopping' or 'callback':
        why training ended.
    evals_result_ : dict
        Values of every epoch, such as ``evals_result_["validation_0"]["top_1_accuracy"]``, the
        lists by the number of the set in `eval_set` and by metric; there after a fit with an
        `eval_set`.
    best_iteration_ : int
        The epoch of the best value, counted from 1 as in `history_`; there with
        `early_stopping_rounds`, as is `best_score_`.
    best_score_ : float
        The best value of the last metric on the last set.
    calibration_ : dtopk.calibration.Calibration
        Temperature and conformal scores; there from :meth:`calibrate` on, until the next `fit`.

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

    Dask arrays may be chunked in any way, X, y and `sample_weight` each in its own, but must know
    the sizes of their chunks. They are computed once, and their rows, checked, written to
    `spool_dir` by those who hold them: with a client the workers, past the scheduler and this
    process. This one writes those of its own arrays, and the codes of the labels, a chunk at a
    time. Predictions of a Dask array are Dask arrays, computed when asked for. Weights of more
    than 1 MB are sent to the workers of the client ahead; such predictions can only be computed by
    that client.

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
        warm_start: bool = False,
        n_jobs: int | None = None,
        random_state: int | np.random.RandomState | None = None,
        verbose: int = 0,
        partitions: int | None = None,
        early_stopping_rounds: int | None = None,
        eval_metric: str | Sequence[str] | None = None,
        callbacks: Sequence[Callback] | None = None,
        spool_dir: str | os.PathLike[str] | None = None,
        client: "Client | None" = None,
    ) -> None:
        self.loss = loss
        self.k = k
        self.C = C
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
        self.warm_start = warm_start
        self.n_jobs = n_jobs
        self.random_state = random_state
        self.verbose = verbose
        self.partitions = partitions
        self.early_stopping_rounds = early_stopping_rounds
        self.eval_metric = eval_metric
        self.callbacks = callbacks
        self.spool_dir = spool_dir
        self.client = client

    def __getstate__(self) -> dict[str, Any]:
        # A client is a connection of this process.
        return {**super().__getstate__(), "client": None}

    def __sklearn_clone__(self) -> Self:
        # scikit-learn makes deep copies of parameters, and there can be none of a client.
        other: Self = BaseEstimator.__sklearn_clone__(copy.copy(self))
        other.client = self.client
        return other

    def fit(
        self,
        X: Features,
        y: ArrayLike | DaskArray | None = None,
        sample_weight: ArrayLike | DaskArray | None = None,
        *,
        eval_set: Sequence[tuple[Features, Any]] | None = None,
    ) -> Self:
        """Train on all of X, or on the split 'train' of a feature store.

        Parameters
        ----------
        X : array-like, dask or zarr.Array of shape (n_samples, n_features), or FeatureStore
            A zarr array is read into memory; a store that does not fit is streamed from disk, and
            so are Dask arrays.
        y : array-like or dask.array.Array of shape (n_samples,)
            Labels; None for a store, which holds its own.
        sample_weight : array-like or dask.array.Array of shape (n_samples,), optional
            At least 0; None weighs every sample 1. None for a store, which may hold its own.
        eval_set : list of pairs (X, y), optional
            Rows on which `eval_metric` is measured after every epoch, all counting the same; arrays
            as X and y, or a FeatureStore and the name of one of its splits. A store is read batch
            by batch, all else is held in the memory of this process.

        Returns
        -------
        TopKClassifier
            This one.

        Raises
        ------
        ValueError
            If a parameter breaks its rule, X or y cannot be used, `eval_set` has a label that is
            not in y, or memory does not suffice.
        TypeError
            If a parameter or an array is not of a type that can be used.
        DatasetError
            If a chunk of the store is damaged, or holds NaN or infinity.
        dtopk.launch.ClusterError
            If the client has no workers, too few are left, or its scheduler is gone.
        """
        loss = self._make_loss()
        options = make_options(self.get_params(deep=False))
        callbacks = check_callbacks(self.callbacks)
        evaluation = make_evaluation_options(
            eval_set,
            self.eval_metric,
            self.early_stopping_rounds,
            default_metric=f"top_{loss.describe().get('k', 1)}_accuracy",
        )
        previous = self._previous_weights() if self.warm_start else None
        with open_place(self.client, self.spool_dir, (X, y, sample_weight)) as place:
            rows, classes, totals = take_rows(self, place, X, y, sample_weight)
            options = replace(
                options,
                class_weight=weigh_classes(self.class_weight, classes, totals),
                partitions=place.count_partitions(self.partitions, count_rows(rows)),
            )
            evaluate = self._open_sets(eval_set, evaluation, classes, options.constant)
            result = place.train(
                rows,
                loss,
                options,
                callbacks=self._list_callbacks(callbacks, evaluate),
                start=None if previous is None else self._start_from(previous, classes),
            )
        self._keep_evaluation(evaluate)
        self._keep(result, classes)
        return self

    def _make_loss(self) -> Loss:
        return make_class_loss(
            self,
            lambda loss: "multiclass" in loss.targets,
            "for one class a row",
            " MultilabelClassifier takes sets of labels.",
        )

    def _open_sets(
        self,
        eval_set: Sequence[tuple[Features, Any]] | None,
        evaluation: EvaluationOptions,
        classes: Array,
        constant: float,
    ) -> EvaluateSets | None:
        """Return what measures the rows of `eval_set`, if there are any."""
        if eval_set is None:
            return None
        return EvaluateSets(
            [open_set(self, *each, classes) for each in enumerate(eval_set)],
            evaluation,
            start_counts=partial(AccuracyCounts, n_classes=len(classes)),
            n_classes=len(classes),
            constant=constant,
            verbose=bool(self.verbose),
        )

    def _list_callbacks(
        self, callbacks: Sequence[Callback], evaluate: EvaluateSets | None = None
    ) -> list[Callback]:
        """List all that is told of a training, the estimator's own callbacks last."""
        found: list[Callback] = [EpochLines()] if self.verbose else []
        if evaluate is not None:
            found.append(evaluate)
        return [*found, *callbacks]

    def _previous_weights(self) -> tuple[Array, Array] | None:
        """Return the weights to start from and their classes, with a row for the constant."""
        if not hasattr(self, "coef_"):
            return None
        W, intercept = self.coef_.T, self.intercept_
        if len(self.classes_) == 2:
            half = self._half()
            W, intercept = np.hstack([-W, W]) * half, np.hstack([-intercept, intercept]) * half
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
        self._keep_weights(result.W, result.intercept, classes)
        self._take_over(result)

    def _keep_weights(self, W: Array, intercept: Array, classes: Array) -> None:
        """Keep the weights of all classes in scikit-learn's shapes."""
        self._forget_calibration()
        if len(classes) == 2:
            W, intercept = (W[:, 1:] - W[:, :1]), intercept[1:] - intercept[:1]
            if not self._make_loss().compares_classes:
                # The two problems are one, with weights of opposite sign.
                W, intercept = W / 2, intercept / 2
        self.classes_ = classes
        self.coef_ = np.ascontiguousarray(W.T)
        self.intercept_ = intercept
