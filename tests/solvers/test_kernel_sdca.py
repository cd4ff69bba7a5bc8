"""Dual coordinate ascent in a kernel's space is that of the linear solver, and proves as much."""

import numpy as np
import pytest
from scipy.linalg import cholesky
from scipy.optimize import minimize
from scipy.special import logsumexp

from dtopk import testing
from dtopk.losses import make_loss
from dtopk.solvers.certificate import relative_gap
from dtopk.solvers.kernel_sdca import KernelProblem, KernelSdca
from dtopk.solvers.policy import first_ratio, steer_ratio
from dtopk.solvers.sdca import BlockUpdater, RowConversion
from tests.loss_cases import fit_labels, loss_cases, loss_id

N, D, M = 80, 6, 7
BLOCK = 24  # Neither a divisor of the rows nor a multiple of the rows corrected one by one.
every_loss = pytest.mark.parametrize(
    "loss", [loss for loss in loss_cases(M) if "sdca" in loss.solvers], ids=loss_id
)


def make_rows(loss, *, n=N, seed=7):
    """Draw rows of which one is zero and two are the same with other labels."""
    X, y = testing.make_features(n, D, M, seed=seed)
    X = X.astype(float)
    X[3], X[5], y[5] = 0, X[4], (y[4] + 1) % M
    costs = np.random.default_rng(0).choice([0.0, 0.5, 1.0, 2.0], n)
    return X, fit_labels(loss, y, M), costs


def make_sdca(loss, X, y, costs, dtype=np.float64, block_size=BLOCK):
    K = np.ascontiguousarray(X @ X.T, dtype=dtype)
    return KernelSdca(KernelProblem(loss=loss, K=K, labels=y, costs=costs, n_classes=M), block_size)


def primal_at(loss, X, y, costs, W):
    return costs @ loss.values(X @ W, y) + 0.5 * np.sum(W**2)


def dual_at(loss, X, y, costs, dual):
    feasible = dual.astype(float)
    terms = loss.make_feasible(feasible, y, costs)
    return terms.sum() - 0.5 * np.sum((X.T @ feasible) ** 2)


def orders(n_passes, n=N):
    return [np.random.default_rng(number).permutation(n) for number in range(n_passes)]


def certify(sdca, X, tol=1e-3):
    return sdca.certify(lambda start, stop: X[start:stop] @ X.T, tol)


def accelerate(sdca, n_passes, *, tol=0.0):
    """Steer the outer loop as a run does; return the last measures."""
    sdca.move_centre(first_ratio(1), advance=False)
    for order in orders(n_passes, len(sdca.problem.costs)):
        sdca.sweep(order)
        measures = sdca.measure()
        if relative_gap(measures.primal, measures.dual_value) <= tol:
            break
        ratio = steer_ratio(sdca.ratio, measures.inner, measures.outer)
        sdca.move_centre(ratio, advance=True)
    return measures


@every_loss
@pytest.mark.parametrize("ratio", [1.0, 4.0])
def test_steps_are_those_of_the_linear_solver(loss, ratio):
    X, y, costs = make_rows(loss)
    sdca = make_sdca(loss, X, y, costs)
    if ratio > 1:
        sdca.move_centre(ratio, advance=False)
    updater = BlockUpdater(loss, RowConversion(n_features=D, dtype=np.dtype(float)), M, BLOCK)
    dual, W = np.zeros((N, M)), np.zeros((D, M))
    for order in orders(3):
        assert sdca.sweep(order) == N
        for start in range(0, N, BLOCK):
            updater.update(X, y, costs, dual, order[start : start + BLOCK], W, ratio)
    np.testing.assert_allclose(sdca.dual, dual, atol=1e-9)
    np.testing.assert_allclose(X.T @ sdca.coefficients, W, atol=1e-9)


@every_loss
def test_scores_are_those_of_the_coefficients(loss):
    """Though rows whose duals stay are left out of the products that bring them up to date."""
    X, y, costs = make_rows(loss)
    sdca = make_sdca(loss, X, y, costs)
    sdca.move_centre(1.5, advance=False)
    for number, order in enumerate(orders(4)):
        sdca.sweep(order)
        sdca.move_centre(1.5 + number, advance=True)
        np.testing.assert_allclose(sdca.scores.T, X @ (X.T @ sdca.coefficients), atol=1e-9)


@every_loss
@pytest.mark.parametrize("accelerated", [False, True])
def test_measures_are_those_of_the_features(loss, accelerated):
    X, y, costs = make_rows(loss)
    costs *= 20
    sdca = make_sdca(loss, X, y, costs)
    if accelerated:
        accelerate(sdca, 3)
    sdca.sweep(orders(1)[0])
    measures = sdca.measure()
    W = X.T @ sdca.coefficients
    primal = primal_at(loss, X, y, costs, W)
    outer = 0.5 * np.sum((W - X.T @ sdca.dual) ** 2)
    assert measures.primal == pytest.approx(primal, rel=1e-9)
    assert measures.dual_value == pytest.approx(dual_at(loss, X, y, costs, sdca.dual), rel=1e-9)
    assert measures.outer == pytest.approx(outer, abs=1e-9 * primal)
    assert measures.inner + measures.outer == pytest.approx(
        measures.primal - measures.dual_value, rel=1e-6, abs=1e-9 * primal
    )


@every_loss
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_certificate_is_of_the_coefficients_returned(loss, dtype):
    X, y, costs = make_rows(loss)
    sdca = make_sdca(loss, X, y, costs, dtype)
    accelerate(sdca, 4)
    solution = certify(sdca, X)
    primal = primal_at(loss, X, y, costs, X.T @ solution.coefficients)
    dual_value = dual_at(loss, X, y, costs, sdca.dual)
    assert solution.certificate.primal == pytest.approx(primal, rel=1e-12)
    assert solution.certificate.dual_value == pytest.approx(dual_value, rel=1e-12)
    assert solution.certificate.duality_gap >= -1e-12 * primal


def test_softmax_optimum_equals_that_of_a_quasi_newton_method():
    """K = L L', so that rows of L are features with these products."""
    X, y = testing.make_features(60, D, M, seed=1)
    X = X.astype(float)
    K = np.exp(-0.1 * ((X[:, None] - X) ** 2).sum(axis=2))
    costs = np.linspace(0.5, 4.0, len(y))
    L = cholesky(K, lower=True)

    def objective(flat):
        V = flat.reshape(len(y), M)
        scores = L @ V
        logs = logsumexp(scores, axis=1, keepdims=True)
        residuals = costs[:, None] * np.exp(scores - logs)
        residuals[np.arange(len(y)), y] -= costs
        value = costs @ (logs[:, 0] - scores[np.arange(len(y)), y]) + 0.5 * flat @ flat
        return value, (L.T @ residuals + V).ravel()

    theirs = minimize(
        objective, np.zeros(len(y) * M), jac=True, method="L-BFGS-B",
        options={"maxiter": 2000, "ftol": 1e-15, "gtol": 1e-8},
    )  # fmt: skip
    problem = KernelProblem(loss=make_loss("softmax"), K=K, labels=y, costs=costs, n_classes=M)
    sdca = KernelSdca(problem, BLOCK)
    accelerate(sdca, 200, tol=1e-13)
    solution = sdca.certify(lambda start, stop: K[start:stop], 1e-11)
    assert solution.certificate.certified
    assert solution.certificate.dual_value <= theirs.fun
    assert solution.certificate.primal == pytest.approx(theirs.fun, rel=1e-9)
    expected = L @ theirs.x.reshape(len(y), M)
    np.testing.assert_allclose(K @ solution.coefficients, expected, atol=1e-5)


def test_duals_that_prove_enough_are_the_coefficients():
    loss = make_loss("topk_hinge_alpha", k=2, gamma=0.5)
    X, y, costs = make_rows(loss)
    sdca = make_sdca(loss, X, y, 0.01 * costs)
    accelerate(sdca, 100, tol=1e-9)
    solution = certify(sdca, X, tol=1e-2)
    dual = sdca.dual.copy()
    loss.make_feasible(dual, y, 0.01 * costs)
    np.testing.assert_array_equal(solution.coefficients, dual)
    assert not solution.coefficients[costs == 0].any()


def test_a_certificate_takes_the_drift_off():
    """In float32, scores drift from those of the coefficients: here by force."""
    loss = make_loss("softmax")
    X, y, costs = make_rows(loss)
    for accelerated in (False, True):
        sdca = make_sdca(loss, X, y, costs, np.float32)
        if accelerated:
            accelerate(sdca, 2)
        sdca.sweep(orders(1)[0])
        sdca.scores += np.float32(1e-3)
        certify(sdca, X)
        np.testing.assert_allclose(sdca.scores.T, X @ (X.T @ sdca.coefficients), atol=1e-5)
        dual_value = dual_at(loss, X, y, costs, sdca.dual)
        assert sdca.measure().dual_value == pytest.approx(dual_value, rel=1e-5)


def test_a_stop_ends_a_sweep_after_the_block_in_work():
    loss = make_loss("softmax")
    sdca = make_sdca(loss, *make_rows(loss))
    assert sdca.sweep(np.arange(N), lambda: True) == BLOCK
    assert sdca.dual[:BLOCK].any()
    assert not sdca.dual[BLOCK:].any()
    assert sdca.measure().primal > sdca.measure().dual_value


def test_weights_of_a_negative_squared_norm_are_refused():
    """A step up along -K makes the norm negative at once: K = -1 but for a diagonal of 1."""
    y = np.array([0, 0, 1, 1], np.int32)
    K = np.where(np.equal.outer(y, y), -1.0, 1.0)
    np.fill_diagonal(K, 0.1)
    problem = KernelProblem(loss=make_loss("softmax"), K=K, labels=y, costs=np.ones(4), n_classes=2)
    sdca = KernelSdca(problem, 4)
    for _ in range(5):
        sdca.sweep(np.arange(4))
    with pytest.raises(ValueError, match=r"semidefinite, got weights of squared norm -\d"):
        sdca.certify(lambda start, stop: K[start:stop], 1e-3)
