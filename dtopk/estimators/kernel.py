"""The scikit-learn estimator of kernel machines."""

import warnings
from collections.abc import Callable, Sequence
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils import Tags
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import _check_sample_weight

from dtopk.engine import FLOAT32_TOL, Callback
from dtopk.estimators.evaluation_sets import check_callbacks
from dtopk.estimators.gram import Gram, check_kernel, check_memory, choose_gamma
from dtopk.estimators.inputs import validate_data
from dtopk.estimators.kernel_predictions import KernelPredictions
from dtopk.estimators.kernel_run import KernelFit, KernelRows, fit_kernel
from dtopk.estimators.linear import STOPS_ON_REQUEST, EpochLines, feature_dtypes
from dtopk.estimators.parameters import make_class_loss, make_options, weigh_classes
from dtopk.losses import Loss

Array = NDArray[Any]

_LINEAR_ONLY = {"fit_intercept": False, "intercept_scaling": 1.0, "solver": "auto", "partitions": 1}
"""What parameters of the linear estimator stand for here."""


class KernelTopKClassifier(KernelPredictions):
    r"""Kernel machine with a top-k loss, trained until a duality gap proves it optimal.

    Minimises

    .. math:: P(W) = C \sum_i s_i L(y_i, W'\varphi(x_i)) + \tfrac12 \|W\|^2

    over W in the space of the kernel ``k(x, z) = <phi(x), phi(z)>``, with the sample weights s_i
    and no intercept, by dual coordinate ascent over the a_i of ``W = sum_i phi(x_i) a_i'``.
    Training stops once the relative duality gap ``(P - D) / max(|P|, |D|)`` is at most `tol`, as
    that of :class:`TopKClassifier` does.

    The Gram matrix of the training rows is held in memory, which suits up to some 20,000 of them.
    For more rows, lift the features (`dtopk features`) and train a linear model.

    Parameters
    ----------
    loss : str, default='softmax'
        'softmax', 'topk_hinge_alpha' or another of the convex losses of one class a row that
        `dtopk losses` lists and 'sdca' trains.
    kernel : {'rbf', 'linear', 'precomputed'} or callable, default='rbf'
        'rbf' is ``exp(-kernel_gamma |x - z|^2)``; for 'precomputed' X holds the values of the
        kernel; a callable gets X and Y and returns those of every row of X with every row of Y.
        The matrix must be symmetric and positive semidefinite.
    kernel_gamma : {'scale', 'auto'} or float, default='scale'
        Of the kernel 'rbf', as `gamma` of `sklearn.svm.SVC`: 'scale' is
        ``1 / (n_features * X.var())``, 'auto' is ``1 / n_features``.
    k : int, default=1
        The k of a top-k loss, from 1 to n_classes - 1.
    C : float, default=1.0
        Weight of the loss: scikit-learn's C.
    gamma : float, default=0.0
        Smoothing of a hinge loss; 0 leaves it nonsmooth. 'smooth_hinge_ova' needs one above 0.
    smoothing : {'lapin', 'moreau'}, default='lapin'
        Form of the smoothing.
    rho : array-like of shape (n_weights,) or None, default=None
        Weights of the margins for 'weighted_usunier', as of :class:`TopKClassifier`.
    label_cost : array-like of shape (n_classes, n_classes) or None, default=None
        Costs of mistakes for 'structured_hinge', as of :class:`TopKClassifier`.
    class_weight : dict, 'balanced' or None, default=None
        Weights of the classes, multiplied with those of the samples. 'balanced': n_samples /
        (n_classes * n_samples of the class), samples counted by their weights.
    tol : float, default=1e-3
        Relative duality gap at which training stops.
    max_epochs : int, default=200
        Passes over the rows after which training stops all the same, with a
        `ConvergenceWarning`.
    time_limit_s : float or None, default=None
        Seconds after which training stops all the same, with a `ConvergenceWarning`; None: no
        limit.
    acceleration : {'auto', 'off'}, default='auto'
        Accelerated outer loop, 'auto' as strong as it pays. It changes the passes needed, and
        leaves more rows with coefficients.
    dtype : {'float32', 'float64'}, default='float32'
        Type of the Gram matrix and of the computation. Coefficients and certificate are float64.
    block_size : int or None, default=None
        Rows that are solved together; None: chosen from the size of W. Results depend on
        it by rounding alone.
    n_jobs : int or None, default=None
        Threads of the matrix products; None or -1: as many as the BLAS library is set to.
    random_state : int, RandomState or None, default=None
        Draws the order of the rows.
    verbose : int, default=0
        Above 0: one line on standard error for every epoch.
    callbacks : sequence of dtopk.Callback or None, default=None
        Told of training while it goes on, and asked after every epoch whether to stop. Of their
        methods `on_epoch` and `should_stop` are called, without weights.
        `sklearn.base.clone` copies them.

    Attributes
    ----------
    classes_ : ndarray of shape (n_classes,)
        The labels.
    dual_coef_ : ndarray of shape (n_support, n_classes), float64
        The score of x for class j is ``sum_i k(x, x_i) dual_coef_[i, j]``, for two classes too.
    support_ : ndarray of shape (n_support,), intp
        Numbers of the training rows that have coefficients; the others have zeros.
    support_vectors_ : ndarray of shape (n_support, n_features)
        These rows, of the type of X; empty with a precomputed kernel.
    kernel_gamma_ : float
        The width used; 1 for other kernels than 'rbf'.
    n_iter_ : int
        Epochs.
    n_features_in_ : int
        Features seen by `fit`; with a precomputed kernel the number of its rows.
    feature_names_in_ : ndarray of shape (n_features_in_,)
        Their names, where X had any.
    duality_gap_ : float
        P(W) - D: no W has an objective that is smaller by more.
    certificate_ : dtopk.solvers.certificate.Certificate
        P, D, and their absolute and relative gap, recomputed for the coefficients kept, with the
        kernel's values in float64.
    history_ : tuple of dtopk.engine.EpochRecord
        One record for every epoch. Their gaps are of all rows, in the type of the computation.
    stop_reason_ : {'tolerance', 'max_epochs', 'time_limit', 'interrupted', 'callback'}
        Why training ended.
    calibration_ : dtopk.calibration.Calibration
        Temperature and conformal scores; there from :meth:`calibrate` on, until the next `fit`.

    Notes
    -----
    An epoch takes ``2 n_samples^2 n_classes`` operations, and fewer where rows have no loss. A
    float32 array that holds a precomputed kernel is used as it is, with dtype='float32'; anything
    else is copied once.

    The certificate holds if the kernel is one: if its matrix is positive semidefinite. Of 'rbf' and
    'linear' that is known. Others are refused where a negative eigenvalue shows; one that is small
    beside the largest may not.

    An interrupt (Ctrl-C) ends training after the block in work. The coefficients reached are kept
    with their certificate before `KeyboardInterrupt` is raised.

    References
    ----------
    .. [1] Lapin, Hein, Schiele. Top-k Multiclass SVM. NIPS 2015.
    .. [2] Shalev-Shwartz, Zhang. Stochastic Dual Coordinate Ascent Methods for Regularized Loss
       Minimization. JMLR 2013.

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> from dtopk import KernelTopKClassifier
    >>> X, y = load_iris(return_X_y=True)
    >>> clf = KernelTopKClassifier("topk_hinge_alpha", k=2, gamma=0.5, random_state=0).fit(X, y)
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
        kernel: str | Callable[[Array, Array], ArrayLike] = "rbf",
        kernel_gamma: float | str = "scale",
        k: int = 1,
        C: float = 1.0,
        gamma: float = 0.0,
        smoothing: str = "lapin",
        rho: ArrayLike | None = None,
        label_cost: ArrayLike | None = None,
        class_weight: dict[Any, float] | str | None = None,
        tol: float = 1e-3,
        max_epochs: int = 200,
        time_limit_s: float | None = None,
        acceleration: str = "auto",
        dtype: str = "float32",
        block_size: int | None = None,
        n_jobs: int | None = None,
        random_state: int | np.random.RandomState | None = None,
        verbose: int = 0,
        callbacks: Sequence[Callback] | None = None,
    ) -> None:
        self.loss = loss
        self.kernel = kernel
        self.kernel_gamma = kernel_gamma
        self.k = k
        self.C = C
        self.gamma = gamma
        self.smoothing = smoothing
        self.rho = rho
        self.label_cost = label_cost
        self.class_weight = class_weight
        self.tol = tol
        self.max_epochs = max_epochs
        self.time_limit_s = time_limit_s
        self.acceleration = acceleration
        self.dtype = dtype
        self.block_size = block_size
        self.n_jobs = n_jobs
        self.random_state = random_state
        self.verbose = verbose
        self.callbacks = callbacks

    def __sklearn_tags__(self) -> Tags:
        tags: Tags = super().__sklearn_tags__()
        tags.input_tags.pairwise = self._is_given
        return tags

    def fit(self, X: ArrayLike, y: ArrayLike, sample_weight: ArrayLike | None = None) -> Self:
        """Train on all of X.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features), or (n_samples, n_samples)
            Features, or the values of the kernel for kernel='precomputed'.
        y : array-like of shape (n_samples,)
            Labels.
        sample_weight : array-like of shape (n_samples,), optional
            At least 0; None weighs every sample 1.

        Returns
        -------
        KernelTopKClassifier
            This one.

        Raises
        ------
        ValueError
            If a parameter breaks its rule, X or y cannot be used, memory does not suffice, or the
            kernel is seen to be none.
        TypeError
            If a parameter or an array is not of a type that can be used.
        """
        loss = self._make_loss()
        check_kernel(self.kernel, self.kernel_gamma)
        options = make_options({**self.get_params(deep=False), **_LINEAR_ONLY})
        callbacks = check_callbacks(self.callbacks)
        if self.verbose:
            callbacks.insert(0, EpochLines())
        features, labels = validate_data(self, X, y, dtype=feature_dtypes(self.dtype), order="C")
        check_classification_targets(labels)
        classes, codes = np.unique(labels, return_inverse=True)
        weight = _check_sample_weight(
            sample_weight, features, dtype=np.float64, ensure_non_negative=True
        )
        totals = np.bincount(codes, weight, len(classes)).astype(np.float64, copy=False)
        class_weight = weigh_classes(self.class_weight, classes, totals)
        loss.check_n_classes(len(classes))
        gamma = choose_gamma(self.kernel_gamma, features) if self.kernel == "rbf" else 1.0
        check_memory(
            len(features),
            0 if self._is_given else features.shape[1],
            len(classes),
            np.dtype(self.dtype).itemsize,
            is_given=self._is_given and features.dtype == self.dtype,
        )
        rows = KernelRows(
            gram=Gram(self.kernel, features, gamma),
            labels=codes.astype(np.int32),
            costs=options.C * weight * class_weight[codes],
            n_classes=len(classes),
        )
        result = fit_kernel(rows, loss, options, callbacks=callbacks)
        self.classes_ = classes
        self.kernel_gamma_ = gamma
        self._keep(result, features)
        return self

    def _make_loss(self) -> Loss:
        return make_class_loss(
            self,
            lambda loss: "multiclass" in loss.targets and loss.convex and "sdca" in loss.solvers,
            "with a kernel",
        )

    def _keep(self, result: KernelFit, features: Array) -> None:
        """Take over what training reached; warn where that is not what was asked for."""
        self._forget_calibration()
        self.support_ = np.flatnonzero(result.coefficients.any(axis=1))
        self.dual_coef_ = result.coefficients[self.support_]
        self.support_vectors_ = features[:0] if self._is_given else features[self.support_]
        self.n_iter_ = len(result.history)
        self.certificate_ = result.certificate
        self.duality_gap_ = result.certificate.duality_gap
        self.history_ = result.history
        self.stop_reason_ = result.stop_reason
        if result.stop_reason == "interrupted":
            raise KeyboardInterrupt
        if not (result.certificate.certified or result.stop_reason in STOPS_ON_REQUEST):
            warnings.warn(self._unconverged(result), ConvergenceWarning, stacklevel=3)

    def _unconverged(self, result: KernelFit) -> str:
        advice = "Raise max_epochs"
        if result.stop_reason == "time_limit":
            advice = "Raise time_limit_s"
        if self.dtype == "float32" and self.tol < FLOAT32_TOL:
            advice += ", set dtype='float64'"
        return (
            f"The relative duality gap is {result.certificate.relative_gap:.3g} after "
            f"{len(result.history)} epochs ({result.seconds:.1f} s), above tol={self.tol:g}: the "
            f"coefficients are this far from the optimum at most. {advice}, or lower C."
        )
