"""The certified optimum is that of independent solvers."""

import os
import warnings

import cvxpy as cp
import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression
from sklearn.svm import LinearSVC

from dtopk import testing
from dtopk.engine import ArrayRows, FitOptions, fit
from dtopk.losses import make_loss
from tests.loss_cases import loss_cases, loss_id, random_labels, updated_loss_cases
from tests.solvers.definitions import define_loss

N_CLASSES = 6
TOL = 1e-7
"""Relative gap asked for: ten times below what the values are compared to."""
AGREEMENT = 1e-6
N_PROBLEMS = int(os.environ.get("DTOPK_TEST_PROBLEMS", "1"))
"""Random problems for each loss; 20 for a thorough check."""


def train(loss, X, y, *, n_classes=N_CLASSES, weight=None, **options):
    options = {"dtype": "float64", "tol": TOL, "max_epochs": 5000, "acceleration": "off"} | options
    return fit(ArrayRows(X, y, n_classes, weight), loss, FitOptions(**options))


def small_problem(seed=0):
    """Rows of which two are zero, two are the same with other labels, and some tie."""
    rng = np.random.default_rng(seed)
    y = rng.integers(0, N_CLASSES, 24).astype(np.int32)
    X = np.eye(N_CLASSES, 4)[y] + rng.normal(size=(24, 4))
    X[5], X[11], X[7] = 0, 0, X[6]
    X[12:16] = np.round(X[12:16])
    y[7], y[11] = (y[6] + 1) % N_CLASSES, (y[5] + 1) % N_CLASSES
    return X, y


def random_problem(loss, seed, n_classes=N_CLASSES):
    """Rows of any size, with zeros, repeats and ties among them, weights and a C."""
    rng = np.random.default_rng([seed, n_classes])
    n = int(rng.integers(10, 61))
    y = random_labels(loss, rng, n, n_classes)
    X = rng.normal(size=(n, int(rng.integers(2, 7))))
    X[0], X[2], X[3:6] = 0, X[1], np.round(X[3:6])
    weight = rng.choice([0.0, 0.5, 1.0, 3.0], n, p=[0.1, 0.3, 0.5, 0.1])
    return X, y, weight, float(10 ** rng.uniform(-2, 1))


def optimum_by_cvxpy(loss, X, y, costs, n_classes=N_CLASSES):
    W = cp.Variable((X.shape[1], n_classes))
    losses = [
        c * define_loss(loss, x @ W, label)
        for x, label, c in zip(X, y, costs, strict=True)
        if c > 0
    ]
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Objective contains too many subexpressions")
        problem = cp.Problem(cp.Minimize(cp.sum(cp.hstack(losses)) + 0.5 * cp.sum_squares(W)))
    # Exponential cones cannot always be solved to the last digits wanted; all are below AGREEMENT.
    for tol in (1e-9, 1e-8, 5e-8):
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Solution may be inaccurate")
            value = problem.solve(
                solver=cp.CLARABEL, tol_gap_rel=tol, tol_gap_abs=tol, tol_feas=tol
            )
        if problem.status == cp.OPTIMAL:
            return value
    raise AssertionError(f"Clarabel ended with status {problem.status!r}.")


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(N_PROBLEMS))
@pytest.mark.parametrize(
    ("loss", "n_classes"),
    [
        (loss, m)
        for m in (N_CLASSES, 12)[: 2 if N_PROBLEMS > 1 else 1]
        for loss in updated_loss_cases(m)
        if loss.convex
    ],
    ids=lambda value: value if isinstance(value, int) else loss_id(value),
)
def test_certified_value_equals_that_of_a_convex_solver(loss, n_classes, seed):
    X, y, weight, C = random_problem(loss, seed, n_classes)
    # Without smoothing the last digits take thousands of passes over few rows.
    tol = 1e-8 if loss.smooth else 0.9 * AGREEMENT
    options = {"C": C, "weight": weight, "tol": tol, "acceleration": "auto", "max_epochs": 20_000}
    result = train(loss, X, y, n_classes=n_classes, **options)
    assert result.stop_reason == "tolerance"
    expected = optimum_by_cvxpy(loss, X, y, C * weight, n_classes)
    assert result.certificate.primal == pytest.approx(expected, rel=AGREEMENT)
    assert result.certificate.dual_value == pytest.approx(expected, rel=AGREEMENT)


POLYHEDRAL = [loss for loss in loss_cases(N_CLASSES) if loss.polyhedral]


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(N_PROBLEMS))
@pytest.mark.parametrize("loss", POLYHEDRAL[:: 1 if N_PROBLEMS > 1 else 4], ids=loss_id)
def test_frank_wolfe_certifies_the_value_of_a_convex_solver(loss, seed):
    X, y, weight, C = random_problem(loss, seed)
    result = train(loss, X, y, C=C, weight=weight, solver="frank_wolfe", tol=5e-5)
    assert result.stop_reason == "tolerance"
    expected = optimum_by_cvxpy(loss, X, y, C * weight)
    assert result.certificate.primal == pytest.approx(expected, rel=1e-4)
    assert result.certificate.dual_value == pytest.approx(expected, rel=1e-4)
    assert result.certificate.dual_value <= expected * (1 + 1e-7)


@pytest.mark.slow
@pytest.mark.parametrize("C", [1e-3, 100.0])
@pytest.mark.parametrize("name", ["softmax", "topk_hinge_alpha", "topk_hinge_alpha_incl"])
def test_certified_value_equals_that_of_a_convex_solver_for_any_C(name, C, rng):
    loss = make_loss(name) if name == "softmax" else make_loss(name, k=3, gamma=0.1)
    X, y = small_problem(seed=1)
    weight = rng.choice([0.0, 0.5, 3.0], len(y))
    result = train(loss, X, y, C=C, weight=weight)
    assert result.stop_reason == "tolerance"
    expected = optimum_by_cvxpy(loss, X, y, C * weight)
    assert result.certificate.primal == pytest.approx(expected, rel=AGREEMENT)


@pytest.mark.parametrize("name", ["topk_hinge_alpha", "topk_hinge_alpha_incl", "topk_hinge_beta"])
@pytest.mark.parametrize("C", [1.0, 10.0])
def test_accelerated_training_of_a_nonsmooth_loss_does_not_swing_for_ever(name, C):
    """With few rows one pass is too coarse for a large ratio, which must then be lowered."""
    X, y = small_problem()
    for k in (1, 2):
        loss = make_loss(name, k=k)
        result = train(loss, X, y, C=C, tol=1e-5, max_epochs=1500, acceleration="auto")
        assert result.stop_reason == "tolerance"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "options", "C"),
    [
        ("softmax", {}, 1e4),
        ("topk_hinge_alpha", {"gamma": 1.0}, 1e4),
        ("topk_hinge_alpha", {"gamma": 0.01}, 1e3),
        ("topk_hinge_alpha", {}, 1e3),
    ],
)
def test_large_C_is_certified(name, options, C):
    """The gap first grows for a while, or falls slowly, which is no reason for shorter steps."""
    X, y = testing.make_features(400, 40, 4, seed=0)
    loss = make_loss(name, **options)
    result = train(loss, X, y, n_classes=4, C=C, tol=1e-3, max_epochs=500, acceleration="auto")
    assert result.stop_reason == "tolerance"


@pytest.mark.parametrize(
    "loss", [loss for loss in updated_loss_cases(N_CLASSES) if loss.convex], ids=loss_id
)
@pytest.mark.parametrize("C", [1e-8, 1e-2, 1.0])
def test_certificate_holds_the_value_of_the_slow_twin(loss, C, rng):
    X, y = small_problem()
    if "multilabel" in loss.targets:
        y = random_labels(loss, rng, len(X), N_CLASSES)
    result = train(loss, X, y, C=C, tol=1e-5)
    assert result.certificate.certified
    primal = testing.primal_value(loss, X, y, np.full(len(y), C), result.W)
    assert result.certificate.primal == pytest.approx(primal, rel=1e-12)


@pytest.mark.parametrize("C", [0.01, 1.0, 50.0])
def test_softmax_coefficients_equal_those_of_logistic_regression(C):
    X, y = testing.make_features(150, 8, 5, seed=2)
    result = train(make_loss("softmax"), X, y, n_classes=5, C=C, tol=1e-11)
    model = LogisticRegression(C=C, fit_intercept=False, tol=1e-10, max_iter=10_000)
    model.fit(X.astype(float), y)
    np.testing.assert_allclose(result.W.T, model.coef_, atol=1e-5 * np.abs(model.coef_).max())


def test_softmax_of_two_classes_equals_logistic_regression_at_twice_the_C():
    """|W|^2 = |w|^2 / 2 for the difference w of the two columns."""
    X, y = testing.make_features(120, 6, 2, seed=3)
    result = train(make_loss("softmax"), X, y, n_classes=2, C=0.7, tol=1e-12)
    model = LogisticRegression(C=1.4, fit_intercept=False, tol=1e-10, max_iter=10_000)
    model.fit(X.astype(float), y)
    difference = result.W[:, 1] - result.W[:, 0]
    np.testing.assert_allclose(difference, model.coef_[0], atol=1e-5 * np.abs(difference).max())


@pytest.mark.parametrize("C", [0.01, 0.3])
def test_hinge_with_k_one_equals_the_multiclass_svm_of_liblinear(C):
    """Crammer and Singer: 1/2 |W|^2 + C sum_i max_j (1 - [j = y] + u_j - u_y), the same C."""
    X, y = testing.make_features(200, 10, 4, seed=4)
    model = LinearSVC(
        C=C, multi_class="crammer_singer", fit_intercept=False, tol=1e-9, max_iter=200_000
    )
    model.fit(X.astype(float), y)
    costs = np.full(len(y), C)
    for name in ("topk_hinge_alpha", "topk_hinge_alpha_incl", "topk_hinge_beta"):
        loss = make_loss(name, k=1)
        result = train(loss, X, y, n_classes=4, C=C)
        theirs = testing.primal_value(loss, X, y, costs, model.coef_.T)
        assert result.certificate.primal == pytest.approx(theirs, rel=AGREEMENT)
        np.testing.assert_allclose(result.W, model.coef_.T, atol=1e-2 * np.abs(result.W).max())
