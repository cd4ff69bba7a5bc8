"""What KernelTopKClassifier computes, refuses, and how it works with the rest of scikit-learn."""

import doctest
import pickle
import re
import signal

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.datasets import load_iris
from sklearn.exceptions import ConvergenceWarning, NotFittedError
from sklearn.metrics.pairwise import (
    euclidean_distances,
    laplacian_kernel,
    linear_kernel,
    rbf_kernel,
)
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import SVC
from sklearn.utils.estimator_checks import estimator_checks_generator

from dtopk import KernelTopKClassifier, TopKClassifier
from dtopk.engine import FitOptions
from dtopk.estimators import gram, kernel_predictions, linear
from dtopk.estimators import kernel as module
from dtopk.estimators.gram import Gram
from dtopk.estimators.kernel_run import KernelRows, fit_kernel
from dtopk.losses import make_loss
from tests.loss_cases import fit_labels, loss_cases, loss_id
from tests.small_stores import make_rows

EXACT = {"dtype": "float64", "tol": 1e-13, "max_epochs": 5000, "random_state": 0}
# By strong convexity |W - W*|^2 / 2 is at most the gap, 1e-13 times an objective below 100 here.
ATOL = 1e-5
N_CLASSES = 5


@pytest.fixture
def data():
    X, y = make_rows(120, seed=3)
    return X.astype(np.float64), y


def unseen():
    return make_rows(40, seed=5)[0].astype(np.float64)


@pytest.mark.parametrize("name", ["softmax", "topk_hinge_alpha", "logistic_ova"])
@pytest.mark.parametrize("n_classes", [2, 4])
def test_linear_kernel_equals_the_linear_estimator(data, name, n_classes):
    X, y = data
    X, y = X[y < n_classes], y[y < n_classes]
    given = {"k": 1, "gamma": 0.5} if name == "topk_hinge_alpha" else {}
    ours = KernelTopKClassifier(name, kernel="linear", C=0.3, **given, **EXACT).fit(X, y)
    theirs = TopKClassifier(name, C=0.3, fit_intercept=False, **given, **EXACT).fit(X, y)
    assert ours.certificate_.certified
    assert ours.certificate_.primal == pytest.approx(theirs.certificate_.primal, rel=1e-12)
    np.testing.assert_allclose(
        ours.decision_function(unseen()), theirs.decision_function(unseen()), atol=10 * ATOL
    )
    np.testing.assert_array_equal(ours.predict(X), theirs.predict(X))


def test_precomputed_and_called_kernels_equal_that_by_name(data):
    X, y = data
    by_name = KernelTopKClassifier(kernel_gamma=0.2, **EXACT).fit(X, y)
    given = KernelTopKClassifier(kernel="precomputed", **EXACT).fit(rbf_kernel(X, gamma=0.2), y)
    called = KernelTopKClassifier(kernel=lambda X, Y: rbf_kernel(X, Y, gamma=0.2), **EXACT)
    called.fit(X, y)
    expected = by_name.decision_function(unseen())
    products = rbf_kernel(unseen(), X, gamma=0.2)
    np.testing.assert_allclose(given.decision_function(products), expected, atol=ATOL)
    np.testing.assert_allclose(called.decision_function(unseen()), expected, atol=ATOL)
    assert given.support_vectors_.size == 0


@pytest.mark.parametrize(
    "loss",
    [loss for loss in loss_cases(N_CLASSES) if loss.convex and "sdca" in loss.solvers],
    ids=loss_id,
)
def test_certificate_proves_the_last_digits(loss):
    """To 1e-8 where the loss is smooth; others take too many passes for that."""
    X, y = make_rows(40, n_classes=N_CLASSES, seed=1)
    X[1], y[1] = X[0], (y[0] + 1) % N_CLASSES
    rows = KernelRows(
        gram=Gram("rbf", X, 0.1),
        labels=fit_labels(loss, y, N_CLASSES),
        costs=np.linspace(0.0, 2.0, len(y)),
        n_classes=N_CLASSES,
    )
    tol = 1e-8 if loss.smooth else 1e-6
    result = fit_kernel(rows, loss, FitOptions(tol=tol, max_epochs=5000, dtype="float64"))
    assert result.stop_reason == "tolerance"
    assert result.certificate.relative_gap <= tol


@pytest.mark.parametrize("given", [{}, {"loss": "topk_hinge_alpha", "k": 2}])
def test_large_c_is_certified_with_acceleration_alone(data, given):
    common = {"kernel": "linear", "C": 100.0, "max_epochs": 400, "random_state": 0, **given}
    assert KernelTopKClassifier(**common).fit(*data).stop_reason_ == "tolerance"
    with pytest.warns(ConvergenceWarning, match="after 400 epochs"):
        KernelTopKClassifier(acceleration="off", **common).fit(*data)


def test_certificate_repeats_from_what_is_kept(data):
    X, y = data
    clf = KernelTopKClassifier("topk_hinge_alpha", k=2, gamma=0.5, C=3.0, random_state=0)
    clf.fit(X, y)
    products = rbf_kernel(X, clf.support_vectors_, gamma=clf.kernel_gamma_)
    scores = products @ clf.dual_coef_
    loss = make_loss("topk_hinge_alpha", k=2, gamma=0.5)
    norm = np.sum(clf.dual_coef_ * scores[clf.support_])
    primal = 3.0 * loss.values(scores, y).sum() + 0.5 * norm
    assert clf.certificate_.primal == pytest.approx(primal, rel=1e-12)
    assert clf.duality_gap_ == clf.certificate_.primal - clf.certificate_.dual_value
    assert clf.certificate_.certified
    assert clf.stop_reason_ == "tolerance"
    assert clf.n_iter_ == len(clf.history_) == clf.history_[-1].epoch
    assert clf.history_[-1].exact
    np.testing.assert_allclose(clf.decision_function(X), scores, atol=1e-12)


def test_rows_without_coefficients_are_not_kept():
    X, y = load_iris(return_X_y=True)
    clf = KernelTopKClassifier("topk_hinge_alpha", acceleration="off", random_state=0).fit(X, y)
    assert 0 < len(clf.support_) < len(y)
    np.testing.assert_array_equal(clf.support_vectors_, X[clf.support_])
    assert clf.dual_coef_.any(axis=1).all()


def test_sample_weights_are_repeated_rows(data, rng):
    X, y = data
    weight = rng.integers(0, 3, len(y))
    params = {"kernel_gamma": 0.2, **EXACT}
    weighted = KernelTopKClassifier(**params).fit(X, y, sample_weight=weight)
    repeated = KernelTopKClassifier(**params).fit(np.repeat(X, weight, 0), np.repeat(y, weight))
    np.testing.assert_allclose(
        weighted.decision_function(unseen()), repeated.decision_function(unseen()), atol=ATOL
    )


def test_balanced_classes_weigh_samples_by_their_weights(data, rng):
    X, y = data
    weight = rng.integers(1, 4, len(y)).astype(float)
    totals = np.bincount(y, weight)
    by_hand = {label: totals.sum() / (4 * total) for label, total in enumerate(totals)}
    ours = KernelTopKClassifier(class_weight="balanced", **EXACT).fit(X, y, weight)
    same = KernelTopKClassifier(class_weight=by_hand, **EXACT).fit(X, y, weight)
    np.testing.assert_allclose(ours.decision_function(X), same.decision_function(X), atol=ATOL)


@pytest.mark.parametrize("kernel_gamma", ["scale", "auto", 0.3])
def test_kernel_gamma_is_that_of_svc(data, kernel_gamma):
    ours = KernelTopKClassifier(kernel_gamma=kernel_gamma, random_state=0).fit(*data)
    assert ours.kernel_gamma_ == pytest.approx(SVC(gamma=kernel_gamma).fit(*data)._gamma)
    constant = KernelTopKClassifier(random_state=0).fit(np.ones((4, 2)), [0, 0, 1, 1])
    assert constant.kernel_gamma_ == 1.0


def test_rbf_kernel_of_rows_far_from_the_origin_has_its_digits():
    """Squared norms of 1e12 have no digits left for distances of 1: the mean comes off first."""
    X = make_rows(300, seed=4)[0].astype(np.float64)
    far = np.round(X, 3) + 1e6
    near = far - 1e6
    expected = np.exp(-0.5 * ((near[:, None] - near) ** 2).sum(axis=2))
    made = Gram("rbf", far, 0.5)
    for dtype, tolerance in (("float32", 1e-7), ("float64", 1e-10)):
        K = made.make_matrix(dtype)
        np.testing.assert_allclose(K, expected, atol=tolerance)
        np.testing.assert_array_equal(K, K.T)
    np.testing.assert_allclose(made.read_rows(7, 20), expected[7:20], atol=1e-10)


def test_a_matrix_of_the_type_of_the_computation_is_not_copied(data):
    K = linear_kernel(data[0]).astype(np.float32)
    assert Gram("precomputed", K, 1.0).make_matrix("float32") is K


def test_two_classes_have_one_decision(data):
    X, y = data
    X, y = X[y < 2], y[y < 2]
    clf = KernelTopKClassifier(random_state=0).fit(X, y)
    decision = clf.decision_function(X)
    assert decision.shape == (len(y),)
    np.testing.assert_array_equal(clf.predict(X), (decision > 0).astype(int))
    labels, scores = clf.predict_topk(X, 2, return_scores=True)
    np.testing.assert_array_equal(labels[:, 0], clf.predict(X))
    np.testing.assert_allclose(scores[:, 0] - scores[:, 1], np.abs(decision))


def test_predictions_agree_with_each_other(data):
    X, y = data
    names = np.array(["ant", "bee", "cat", "dog"])
    clf = KernelTopKClassifier(random_state=0).fit(X, names[y])
    labels, scores = clf.predict_topk(X, 3, return_scores=True)
    order = np.argsort(-clf.decision_function(X), axis=1)[:, :3]
    np.testing.assert_array_equal(labels, names[order])
    np.testing.assert_array_equal(labels[:, 0], clf.predict(X))
    np.testing.assert_array_equal(clf.predict_topk(X, 3), labels)
    assert (np.diff(scores, axis=1) <= 0).all()
    probabilities = clf.predict_proba(X)
    np.testing.assert_allclose(probabilities.sum(axis=1), 1)
    np.testing.assert_array_equal(clf.classes_[probabilities.argmax(axis=1)], clf.predict(X))
    np.testing.assert_allclose(clf.predict_log_proba(X), np.log(probabilities))


def test_probabilities_are_there_for_links_alone():
    assert hasattr(KernelTopKClassifier("sparsemax"), "predict_proba")
    for name in ("predict_proba", "predict_log_proba"):
        assert not hasattr(KernelTopKClassifier("topk_hinge_beta"), name)


def test_predictions_in_batches_equal_those_at_once(data, monkeypatch):
    X, y = data
    clf = KernelTopKClassifier(random_state=0).fit(X, y)
    at_once = clf.decision_function(X)
    monkeypatch.setattr(kernel_predictions, "_BATCH_BYTES", 5000)
    np.testing.assert_allclose(clf.decision_function(X), at_once)
    np.testing.assert_array_equal(clf.predict(X), clf.classes_[at_once.argmax(axis=1)])


_NEEDS_SEVEN_DIGITS = "check_sample_weight_equivalence_on_dense_data"
"""Compares two trainings to 1e-7: of which kernel_gamma='scale' makes two kernels besides, of the
variance of rows whose weights it does not know."""


@pytest.mark.filterwarnings("ignore:The relative duality gap")
@pytest.mark.parametrize(
    "check",
    [check for _, check in estimator_checks_generator(KernelTopKClassifier())],
    ids=lambda check: check.func.__name__,
)
def test_estimator_keeps_conventions(check):
    estimator = KernelTopKClassifier(random_state=0)
    if check.func.__name__ == _NEEDS_SEVEN_DIGITS:
        estimator.set_params(dtype="float64", tol=1e-16, max_epochs=5000, C=1e-6, kernel_gamma=0.1)
    check(estimator)


_GIVES_NO_KERNEL = {
    "check_positive_only_tag_during_fit": "features of random signs as a Gram matrix",
    "check_estimators_dtypes": "products rounded to integers",
    "check_decision_proba_consistency": "80 rows of 2 features as a Gram matrix",
    "check_class_weight_classifiers": "needs an intercept with the linear kernel",
    _NEEDS_SEVEN_DIGITS: "as above",
}
"""Checks that hand over something else than the Gram matrix of a kernel."""


@pytest.mark.filterwarnings("ignore:The relative duality gap")
@pytest.mark.parametrize(
    "check",
    [
        check
        for _, check in estimator_checks_generator(KernelTopKClassifier(kernel="precomputed"))
        if check.func.__name__ not in _GIVES_NO_KERNEL
    ],
    ids=lambda check: check.func.__name__,
)
def test_estimator_of_given_kernels_keeps_conventions(check):
    check(KernelTopKClassifier(kernel="precomputed", random_state=0))


def test_cross_validation_slices_a_given_kernel_both_ways():
    X, y = load_iris(return_X_y=True)
    clf = KernelTopKClassifier(kernel="linear", random_state=0)
    by_name = cross_val_score(clf, X, y, cv=3)
    given = cross_val_score(clone(clf).set_params(kernel="precomputed"), X @ X.T, y, cv=3)
    np.testing.assert_allclose(given, by_name)


def test_grid_search_tunes_a_pipeline():
    X, y = load_iris(return_X_y=True)
    pipeline = make_pipeline(
        StandardScaler(), KernelTopKClassifier("topk_hinge_alpha", random_state=0)
    )
    grid = {"kerneltopkclassifier__kernel_gamma": [0.1, 1.0], "kerneltopkclassifier__k": [1, 2]}
    search = GridSearchCV(pipeline, grid, cv=3).fit(X, y)
    assert search.best_score_ > 0.9


def test_estimator_survives_pickling(data):
    X, y = data
    clf = KernelTopKClassifier(random_state=0).fit(X, y)
    copy = pickle.loads(pickle.dumps(clf))
    np.testing.assert_array_equal(copy.decision_function(X), clf.decision_function(X))
    assert copy.certificate_ == clf.certificate_


def test_same_random_state_gives_the_same_coefficients(data):
    first, second = (KernelTopKClassifier(random_state=5).fit(*data).dual_coef_ for _ in range(2))
    np.testing.assert_array_equal(first, second)


def test_verbose_writes_a_line_an_epoch_to_standard_error(data, capsys):
    clf = KernelTopKClassifier(verbose=1, random_state=0).fit(*data)
    written = capsys.readouterr()
    assert len(written.err.splitlines()) == clf.n_iter_
    assert written.out == ""


def test_example_of_the_docstring_is_true():
    assert doctest.testmod(module).failed == 0


def test_fit_warns_of_a_gap_above_the_tolerance(data):
    clf = KernelTopKClassifier(max_epochs=1, tol=1e-7, random_state=0)
    match = r"gap is \d\S* after 1 epochs .* above tol=1e-07.*Raise max_epochs, set dtype='float64'"
    with pytest.warns(ConvergenceWarning, match=match):
        clf.fit(*data)
    assert clf.stop_reason_ == "max_epochs"
    assert clf.certificate_.relative_gap > 1e-7


def test_fit_names_the_time_limit_that_stopped_it(data):
    clf = KernelTopKClassifier(time_limit_s=1e-9, tol=1e-6, block_size=16, random_state=0)
    with pytest.warns(ConvergenceWarning, match="Raise time_limit_s"):
        clf.fit(*data)
    assert clf.stop_reason_ == "time_limit"
    assert clf.certificate_.primal > clf.certificate_.dual_value


def test_interrupt_keeps_the_coefficients_and_goes_on_to_the_caller(data, monkeypatch):
    def interrupt_once(self, record, W):
        if record.epoch == 1:
            signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(linear.EpochLines, "on_epoch", interrupt_once)
    clf = KernelTopKClassifier(verbose=1, tol=1e-6, random_state=0)
    with pytest.raises(KeyboardInterrupt):
        clf.fit(*data)
    assert clf.stop_reason_ == "interrupted"
    assert clf.n_iter_ == 2
    assert clf.predict(data[0]).shape == data[1].shape


@pytest.mark.parametrize(
    ("parameters", "error", "match"),
    [
        ({"loss": "softmx"}, ValueError, "loss 'softmx' is unknown. Did you mean 'softmax'?"),
        ({"loss": "multilabel_softmax"}, ValueError, "with a kernel, got 'multilabel_softmax'."),
        ({"kernel": "rfb"}, ValueError, "kernel must be one of 'rbf', 'linear', 'precomputed' or"),
        ({"kernel": None}, ValueError, "or a callable, got None."),
        ({"kernel_gamma": "scal"}, ValueError, "'scale', 'auto' or a number, got 'scal'."),
        ({"kernel_gamma": None}, TypeError, "'scale', 'auto' or a number, got None."),
        ({"kernel_gamma": 0.0}, ValueError, "kernel_gamma must be finite and above 0, got 0.0."),
        ({"C": 0}, ValueError, "C must be finite and above 0, got 0."),
        ({"tol": "1"}, TypeError, "tol must be a number, got '1'."),
        ({"acceleration": "on"}, ValueError, "acceleration must be one of 'auto', 'off', got"),
        ({"loss": "topk_hinge_alpha", "k": 4}, ValueError, "n_classes - 1 = 3, got 4."),
        ({"class_weight": {0: -1.0}}, ValueError, "class_weight must be finite and at least 0"),
    ],
)  # fmt: skip
def test_fit_refuses_a_parameter(data, parameters, error, match):
    with pytest.raises(error, match=re.escape(match)):
        KernelTopKClassifier(**parameters).fit(*data)


def fit_matrix(K, y, **parameters):
    return KernelTopKClassifier(kernel="precomputed", random_state=0, **parameters).fit(K, y)


def test_a_matrix_that_is_not_square_is_refused(data):
    X, y = data
    with pytest.raises(ValueError, match=r"square matrix .* got shape \(120, 6\)"):
        fit_matrix(X, y)


def test_a_matrix_that_is_not_symmetric_is_refused(data):
    X, y = data
    K = rbf_kernel(X)
    K[7, 3] += 0.01
    with pytest.raises(
        ValueError, match=r"symmetric, got \S+ in row 3, column 7, and \S+ in row 7"
    ):
        fit_matrix(K, y)


def test_a_negative_diagonal_is_refused_by_its_row(data):
    X, y = data
    K = rbf_kernel(X)
    K[50, 50] = -0.5
    with pytest.raises(ValueError, match=r"must not be negative, got -0\.5 in row 50\."):
        fit_matrix(K, y)


def less_distance(X, Y):
    return 1 - 0.5 * euclidean_distances(X, Y)


@pytest.mark.parametrize("n_rows", [100, 400])
def test_an_indefinite_matrix_is_refused(n_rows):
    """Its least eigenvalue is found among all of them, or in a Krylov space."""
    X, y = make_rows(n_rows)
    K = less_distance(X, X)
    least = np.linalg.eigvalsh(K)[0]
    match = rf"semidefinite, got an eigenvalue of {int(least)}\.\d+ or below"
    with pytest.raises(ValueError, match=match):
        fit_matrix(K, y)
    with pytest.raises(ValueError, match=match):
        KernelTopKClassifier(kernel=less_distance).fit(X, y)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("kernel", [linear_kernel, laplacian_kernel])
def test_a_kernel_is_not_refused_for_its_rounding(kernel, dtype):
    """The linear one has rank 6, and all other eigenvalues are rounding of the largest."""
    X, y = make_rows(400)
    K = kernel(X + 1).astype(dtype)
    centred = K - K.mean(axis=0) - K.mean(axis=1)[:, None] + K.mean()
    for matrix in (K, 0.5 * (centred + centred.T)):
        gram.check_gram(np.ascontiguousarray(matrix))
    assert fit_matrix(K, y, C=1e-3).certificate_.certified


def test_infinite_products_are_refused(data):
    K = linear_kernel(data[0])
    K[3, 4] = np.inf
    with pytest.raises(ValueError, match="infinity"):
        fit_matrix(K, data[1])


@pytest.mark.parametrize(
    ("kernel", "match"),
    [
        (lambda X, Y: X[:, :1], r"array of shape \(120, 120\) .* got shape \(120, 1\)"),
        (lambda X, Y: np.full((len(X), len(Y)), np.nan), "finite values, got NaN or infinity"),
    ],
)
def test_what_a_called_kernel_returns_is_checked(data, kernel, match):
    with pytest.raises(ValueError, match=match):
        KernelTopKClassifier(kernel=kernel).fit(*data)


def test_a_matrix_beyond_memory_is_refused_before_it_is_made(data, monkeypatch):
    monkeypatch.setattr(gram, "free_memory", lambda: 100_000)
    match = r"kernel of 120 rows, got 80,000: Gram matrix 57,600; .*`dtopk features`"
    with pytest.raises(ValueError, match=match):
        KernelTopKClassifier().fit(*data)


@pytest.mark.filterwarnings("ignore:.*encountered in:RuntimeWarning")
def test_products_that_overflow_are_refused(data):
    with pytest.raises(ValueError, match=r"too large for float32\. Scale the kernel"):
        KernelTopKClassifier(kernel="linear", random_state=0).fit(1e20 * data[0], data[1])


def test_one_class_of_positive_weight_is_refused(data):
    X, y = data
    with pytest.raises(ValueError, match="only one class: 2"):
        KernelTopKClassifier().fit(X, y, sample_weight=(y == 2).astype(float))


def test_predictions_need_a_fit_and_its_number_of_columns(data):
    X, y = data
    with pytest.raises(NotFittedError):
        KernelTopKClassifier().predict(X)
    clf = fit_matrix(linear_kernel(X), y)
    with pytest.raises(ValueError, match="X has 6 features, but KernelTopKClassifier is expecting"):
        clf.predict(X)
