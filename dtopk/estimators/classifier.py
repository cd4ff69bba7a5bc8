"""The scikit-learn estimator."""

import copy
import os
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import zarr
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils.metaestimators import available_if
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import (
    _check_feature_names,
    _check_n_features,
    _check_sample_weight,
    check_consistent_length,
    check_is_fitted,
    column_or_1d,
)

from dtopk.engine import (
    ArrayRows,
    Callback,
    FitResult,
    Rows,
    StartPoint,
    StoreRows,
    class_totals,
)
from dtopk.estimators.calibrated import (
    CalibratedClassifier,
    encode_labels,
    has_probabilities,
    has_sets,
    pair_batches,
)
from dtopk.estimators.dask_arrays import (
    DaskArray,
    check_column,
    check_features,
    check_sizes,
    compute_column,
    fill_spool,
    is_dask_array,
    iter_blocks,
    map_method,
    map_topk,
    mean_accuracy,
)
from dtopk.estimators.evaluation_sets import (
    Batches,
    EvaluateSets,
    KeepsEvaluation,
    check_callbacks,
    check_split,
    make_evaluation_options,
)
from dtopk.estimators.inputs import load_zarr, validate_data
from dtopk.estimators.linear import (
    CertifiedLinearModel,
    EpochLines,
    batch_rows,
    count_rows,
    feature_dtypes,
    kept_dtype,
)
from dtopk.estimators.parameters import make_options, weigh_classes
from dtopk.estimators.place import Place, open_place
from dtopk.estimators.spool import plan_spool
from dtopk.evaluation import AccuracyCounts, ScoreBatches, match_classes
from dtopk.losses import Loss, available, make_loss
from dtopk.model import select_topk
from dtopk_storage import FeatureStore, check_batch

if TYPE_CHECKING:
    from dtopk.launch import Client

Array = NDArray[Any]
Features = ArrayLike | FeatureStore | zarr.Array[Any] | DaskArray


class TopKClassifier(CalibratedClassifier, KeepsEvaluation, ClassifierMixin, CertifiedLinearModel):
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
            if isinstance(X, FeatureStore):
                rows, classes, totals = self._open_store(X, y, sample_weight)
            elif place.spool is None:
                rows, classes, totals = self._take_arrays(X, y, sample_weight)
            else:
                rows, classes, totals = self._spool_arrays(place, X, y, sample_weight)
            options = replace(
                options,
                class_weight=weigh_classes(self.class_weight, classes, totals),
                partitions=place.count_partitions(self.partitions, count_rows(rows)),
            )
            evaluate = None
            if eval_set is not None:
                evaluate = EvaluateSets(
                    [self._open_set(*each, classes) for each in enumerate(eval_set)],
                    evaluation,
                    start_counts=partial(AccuracyCounts, n_classes=len(classes)),
                    n_classes=len(classes),
                    constant=options.constant,
                    verbose=bool(self.verbose),
                )
                callbacks = [evaluate, *callbacks]
            result = place.train(
                rows,
                loss,
                options,
                callbacks=[*([EpochLines()] if self.verbose else []), *callbacks],
                start=None if previous is None else self._start_from(previous, classes),
            )
        self._keep_evaluation(evaluate)
        self._keep(result, classes)
        return self

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
            self._check_dask(X)
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
            self._check_dask(X)
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
            self._check_dask(X)
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

    def _make_loss(self) -> Loss:
        loss = make_loss(
            self.loss,
            k=self.k,
            gamma=self.gamma,
            smoothing=self.smoothing,
            rho=self.rho,
            label_cost=self.label_cost,
        )
        if "multiclass" not in loss.targets:
            names = [info.name for info in available() if "multiclass" in info.targets]
            raise ValueError(
                f"loss must be one of {', '.join(map(repr, names))} for one class a row, got "
                f"{self.loss!r}. MultilabelClassifier takes sets of labels."
            )
        return loss

    def _half(self) -> float:
        """Return by what the score of two classes is multiplied for that of the second alone."""
        return 0.5 if self._make_loss().compares_classes else 1.0

    def _take_arrays(
        self, X: ArrayLike | zarr.Array[Any], y: ArrayLike | None, sample_weight: ArrayLike | None
    ) -> tuple[Rows, Array, NDArray[np.float64]]:
        """Return the rows, the classes and the sum of the weights of each."""
        if isinstance(X, zarr.Array):
            X = load_zarr(X)
        features, labels = validate_data(self, X, y, dtype=feature_dtypes(self.dtype), order="C")
        check_classification_targets(labels)
        classes, codes = np.unique(labels, return_inverse=True)
        weight = _check_sample_weight(
            sample_weight, features, dtype=np.float64, ensure_non_negative=True
        )
        totals = np.bincount(codes, weight, len(classes)).astype(np.float64, copy=False)
        return ArrayRows(features, codes.astype(np.int32), len(classes), weight), classes, totals

    def _open_set(self, number: int, pair: tuple[Features, Any], classes: Array) -> Batches:
        """Return what goes through the rows of a set of `eval_set`, checked."""
        X, y = pair
        name = f"eval_set[{number}]"
        if isinstance(X, FeatureStore):
            return self._open_split(name, X, y, classes)
        if is_dask_array(X):
            self._check_dask(X)
            check_sizes(name, X)
            X = np.concatenate(list(iter_blocks(self.client, X.rechunk({1: -1}))))
        elif isinstance(X, zarr.Array):
            X = load_zarr(X)
        features = validate_data(self, X, dtype=feature_dtypes(self.dtype), reset=False)
        codes = encode_labels(
            f"y of {name}", compute_column(self.client, y) if is_dask_array(y) else y, classes
        )
        check_consistent_length(features, codes)
        n_rows = batch_rows(self.n_features_in_, len(classes))

        def batches() -> Iterator[tuple[NDArray[np.int64], Array]]:
            for start in range(0, len(codes), n_rows):
                yield codes[start : start + n_rows], features[start : start + n_rows]

        return batches

    def _open_split(self, name: str, store: FeatureStore, split: Any, classes: Array) -> Batches:
        """Return what goes through the rows of a split of a store, checked."""
        split = check_split(name, store, split, "multiclass", self.n_features_in_)
        unknown = np.flatnonzero(match_classes(store.class_names, classes) < 0)
        for start, stop in store.split_ranges(split) if len(unknown) else ():
            found = np.intersect1d(store.read_labels(start, stop), unknown)
            if len(found):
                raise ValueError(
                    f"y of {name} must hold labels that the estimator was fitted on, its "
                    f"{len(classes)} classes_, got {store.class_names[int(found[0])]!r}."
                )
        n_rows = batch_rows(store.n_features, len(classes))
        return lambda: _iter_split(store, split, classes, n_rows)

    def _spool_arrays(
        self,
        place: Place,
        X: ArrayLike | zarr.Array[Any] | DaskArray,
        y: ArrayLike | DaskArray | None,
        sample_weight: ArrayLike | DaskArray | None,
    ) -> tuple[Rows, Array, NDArray[np.float64]]:
        """Write the rows to where workers see them; return as of `_take_arrays`."""
        features: Array | DaskArray
        if is_dask_array(X):
            features = X
            self._check_dask(features, reset=True)
            check_sizes("X", features)
        else:
            features = load_zarr(X) if isinstance(X, zarr.Array) else X
            features = validate_data(self, features, dtype=feature_dtypes(self.dtype), order="C")
        n_samples, n_features = features.shape
        if n_samples == 0:
            raise ValueError("X must have at least 1 row, got none.")
        if y is None:
            raise ValueError("y must be given for an array of features, got None.")
        y = _take_column("y", y, n_samples)
        if sample_weight is not None:
            sample_weight = _take_column("sample_weight", sample_weight, n_samples)
        assert place.spool is not None
        spool = plan_spool(
            place.spool,
            n_samples=n_samples,
            n_features=n_features,
            dtype=kept_dtype(features.dtype, self.dtype),
            sample_weight=sample_weight is not None,
            n_parts=place.count_partitions(self.partitions, n_samples),
        )
        fill_spool(spool, place.client, features, y, sample_weight)
        store, classes = spool.finish()
        rows = StoreRows(store, "train")
        return rows, classes.astype(object) if y.dtype == object else classes, class_totals(rows)

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

    def _check_dask(self, X: DaskArray, *, reset: bool = False) -> None:
        """Check the features of a Dask array as far as they are known before it is computed."""
        check_features(X)
        _check_feature_names(self, X, reset=reset)
        _check_n_features(self, X, reset=reset)

    def _map(
        self, X: DaskArray, method: str, dtype: np.dtype[Any], width: int | None = None
    ) -> DaskArray:
        """Have a method called on each block of a Dask array."""
        self._check_dask(X)
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
            for y, rows in _iter_split(store, split, self.classes_, self._batch_rows()):
                X = validate_data(self, rows, dtype=feature_dtypes(self.coef_.dtype), reset=False)
                yield y, self._score_classes(X)

        return batches

    def _score_classes(self, X: Array) -> Array:
        """Return the scores of a batch, with two columns for two classes."""
        return self._spread_scores(self._decide(X))

    def _spread_scores(self, scores: Array) -> Array:
        """Make two columns of one."""
        return scores if scores.shape[1] > 1 else np.hstack([-scores, scores]) * self._half()


def _iter_split(
    store: FeatureStore, split: str, classes: Array, n_rows: int
) -> Iterator[tuple[NDArray[np.int64], Array]]:
    """Read a split batch by batch, with labels as places among the classes.

    Raises
    ------
    DatasetError
        If a chunk is damaged, or holds NaN or infinity.
    ValueError
        If a label is not among the classes.
    """
    columns = match_classes(store.class_names, classes)
    for batch in store.iter_batches(split, n_rows):
        check_batch(batch.X, batch.y, batch.weight, start=batch.start, store=store)
        assert isinstance(batch.y, np.ndarray)
        y = columns[batch.y]
        if (y < 0).any():
            name = store.class_names[int(batch.y[np.argmin(y)])]
            raise ValueError(
                "labels must be classes that the estimator was fitted on, got "
                f"{name!r} in split {split!r} of {store.path!r}."
            )
        yield y, batch.X


def _take_column(name: str, values: ArrayLike | DaskArray, n_samples: int) -> Array | DaskArray:
    """Check what has a value for each row, as far as its type and size go."""
    if is_dask_array(values):
        check_column(name, values, n_samples)
        return values
    column: Array
    if name == "sample_weight" and np.ndim(values) == 0:
        column = np.broadcast_to(np.asarray(values), (n_samples,))
    else:
        column = column_or_1d(values, warn=name == "y")
    check_column(name, column, n_samples)
    return column
