"""Every projection and proximal map against a cone solver, many rows in one program."""

import warnings

import cvxpy as cp
import numpy as np
import pytest

from dtopk import projections
from dtopk.testing import lambert_v

N_ROWS, BATCH, M, K = 1000, 100, 6, 3
WEIGHTS = np.array([0.5, 0.3, 0.3, 0.1])
CLOSE = 1e-7
"""No better than the solver's optimum by more than what the solver leaves open, and no worse. All
objectives are strongly convex, so that the points are as near as the root of this."""


def random_rows(rng, m=M):
    """Rows at several scales, with ties, equal entries and entries all negative among them."""
    scale = 10.0 ** rng.integers(-2, 2, size=(N_ROWS, 1))
    b = scale * rng.normal(size=(N_ROWS, m))
    b[::10] = np.round(b[::10])
    b[1::50] = b[1::50, :1]
    b[2::50] = -np.abs(b[2::50])
    return b


def batches(*arrays):
    """Cut arrays into batches: a program of all rows at once is too ill-conditioned."""
    for start in range(0, N_ROWS, BATCH):
        yield tuple(array[start : start + BATCH] for array in arrays)


def assert_optimal(objective, constraints, found):
    """Compare the points found, by variable, with the optimum of a program."""
    problem = cp.Problem(cp.Minimize(objective), constraints)
    with warnings.catch_warnings():
        # The solver may doubt its last digit.
        warnings.simplefilter("ignore", UserWarning)
        problem.solve(solver=cp.CLARABEL, tol_gap_rel=1e-10, tol_gap_abs=1e-10, tol_feas=1e-10)
    optimum = problem.value
    for variable, value in found:
        assert np.abs(variable.value - value).max() <= 3e-3
        variable.value = value
    assert abs(objective.value - optimum) <= CLOSE * (1 + abs(optimum))
    known = {variable.id for variable, _ in found}
    for constraint in constraints:
        # Those of the ordered simplex have variables of their own; see the test below.
        if known.issuperset(variable.id for variable in constraint.variables()):
            assert np.max(constraint.violation()) <= 1e-9


def bounds_of(domain, X, radius):
    """What the domains of the duals allow."""
    total = cp.sum(X, axis=1, keepdims=True)
    spread = total @ np.ones((1, M))
    constraints = [X >= 0, total <= radius]
    if domain == "alpha":
        return [*constraints, spread / K >= X]
    if domain == "alpha_incl":
        return [*constraints, spread / (K - 1) >= X, radius / K >= X]
    if domain == "beta":
        return [*constraints, radius / K >= X]
    constraints = [X >= 0]
    limits = radius * np.cumsum(np.pad(WEIGHTS, (0, M - len(WEIGHTS))))
    for j, limit in enumerate(limits, start=1):
        # The sum of the j largest is min_t j t + sum max(x - t, 0).
        t = cp.Variable((BATCH, 1))
        above = cp.sum(cp.pos(X - t @ np.ones((1, M))), axis=1, keepdims=True)
        constraints.append(j * t + above <= limit)
    return constraints


PROJECT = {
    "alpha": lambda b, **options: projections.project_topk_simplex(b, K, **options),
    "alpha_incl": lambda b, **options: projections.project_topk_simplex_incl(b, K, **options),
    "beta": lambda b, **options: projections.project_knapsack(b, K, **options),
    "ordered": lambda b, **options: projections.project_ordered_simplex(b, WEIGHTS, **options),
}


@pytest.mark.slow
@pytest.mark.parametrize("rho", [0.0, 0.7])
@pytest.mark.parametrize("domain", PROJECT)
def test_projections_equal_the_solutions_of_a_quadratic_program(domain, rho, rng):
    b = random_rows(rng)
    found = PROJECT[domain](b, radius=0.8, rho=rho)
    for some, projection in batches(b, found):
        X = cp.Variable(some.shape)
        objective = 0.5 * cp.sum_squares(X) - cp.sum(cp.multiply(some, X))
        objective += 0.5 * rho * cp.sum_squares(cp.sum(X, axis=1))
        assert_optimal(objective, bounds_of(domain, X, 0.8), [(X, projection)])


@pytest.mark.slow
def test_project_simplex_equals_the_solution_of_a_quadratic_program(rng):
    b = random_rows(rng)
    for some, projection in batches(b, projections.project_simplex(b, radius=0.8)):
        X = cp.Variable(some.shape)
        objective = 0.5 * cp.sum_squares(X) - cp.sum(cp.multiply(some, X))
        assert_optimal(objective, [X >= 0, cp.sum(X, axis=1) == 0.8], [(X, projection)])


@pytest.mark.slow
def test_project_bipartite_simplex_equals_the_solution_of_a_quadratic_program(rng):
    b, c = random_rows(rng, 3), random_rows(rng, 4)
    found = projections.project_bipartite_simplex(b, c, radius=0.8)
    for left, right, p, n in batches(b, c, *found):
        P, N = cp.Variable(left.shape), cp.Variable(right.shape)
        sums = cp.sum(P, axis=1)
        objective = 0.5 * (cp.sum_squares(P) + cp.sum_squares(N))
        objective -= cp.sum(cp.multiply(left, P)) + cp.sum(cp.multiply(right, N))
        constraints = [P >= 0, N >= 0, sums == cp.sum(N, axis=1), sums <= 0.8]
        assert_optimal(objective, constraints, [(P, p), (N, n)])


SHRINK = {
    "softmax": lambda b, alpha: projections.shrink_to_softmax(b, alpha=alpha),
    "alpha": lambda b, alpha: projections.shrink_to_topk_entropy(b, K, alpha=alpha),
    "beta": lambda b, alpha: projections.shrink_to_capped_softmax(b, K, alpha=alpha),
}


@pytest.mark.slow
@pytest.mark.parametrize("alpha", [0.1, 20.0])
@pytest.mark.parametrize("domain", SHRINK)
def test_proximal_maps_equal_the_solutions_of_an_exponential_program(domain, alpha, rng):
    b = random_rows(rng) * alpha
    for some, point in batches(b, SHRINK[domain](b, alpha)):
        X = cp.Variable(some.shape)
        total = cp.sum(X, axis=1)
        objective = 0.5 * alpha * cp.sum_squares(X) - cp.sum(cp.multiply(some, X))
        objective -= cp.sum(cp.entr(X))
        if domain == "softmax":
            constraints = [total == 1]
        else:
            objective += 0.5 * alpha * cp.sum_squares(total) - cp.sum(cp.entr(1 - total))
            constraints = bounds_of(domain, X, 1.0)
        # A sum of 1 but for rounding leaves a mass that is negative.
        assert_optimal(objective, constraints, [(X, point * (1 - 1e-12))])


@pytest.mark.parametrize("domain", PROJECT)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_projection_is_its_own_projection(domain, dtype, rng):
    b = random_rows(rng).astype(dtype)
    x = PROJECT[domain](b, radius=0.8)
    again = PROJECT[domain](x, radius=0.8)
    np.testing.assert_allclose(again, x, atol=8 * np.finfo(dtype).eps)


def test_a_projection_on_the_ordered_simplex_is_in_it(rng):
    for rho in (0.0, 0.7):
        x = projections.project_ordered_simplex(random_rows(rng), WEIGHTS, radius=0.8, rho=rho)
        sums = np.cumsum(np.sort(x, axis=1)[:, ::-1], axis=1)
        assert (x >= 0).all()
        assert (sums <= 0.8 * np.cumsum(np.pad(WEIGHTS, (0, M - len(WEIGHTS)))) + 1e-14).all()


def test_lambert_v_equals_scipys_function(rng):
    t = np.concatenate([rng.normal(size=500) * 30, [-700.0, 0.0, 1.0, 1e4]])
    np.testing.assert_allclose(projections.lambert_v(t), lambert_v(t), rtol=1e-13)
    single = projections.lambert_v(t.astype(np.float32))
    assert single.dtype == np.float32
    np.testing.assert_allclose(single, lambert_v(t), rtol=3e-5, atol=1e-37)


def test_ordered_simplex_with_equal_weights_is_the_knapsack(rng):
    b = random_rows(rng)
    for rho in (0.0, 2.0):
        ordered = projections.project_ordered_simplex(b, np.full(K, 1 / K), rho=rho)
        np.testing.assert_allclose(ordered, projections.project_knapsack(b, K, rho=rho), atol=1e-13)


def test_results_are_written_where_the_caller_says(rng):
    b = rng.normal(size=(4, 5))
    out = np.empty_like(b)
    assert projections.project_knapsack(b, 2, out=out) is out
    np.testing.assert_array_equal(out, projections.project_knapsack(b, 2))
    with pytest.raises(ValueError, match=r"out must have shape \(4, 5\) and dtype float64, got"):
        projections.project_knapsack(b, 2, out=out.astype(np.float32))


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        ([0.2, 0.5], r"weights must be finite, nonincreasing and not negative"),
        ([0.0], r"weights must be finite, nonincreasing and not negative"),
        (np.ones(7), r"weights must be 1 to m = 6 numbers, got shape \(7,\)\."),
    ],
)
def test_weights_that_break_their_rule_are_refused(weights, message):
    with pytest.raises(ValueError, match=message):
        projections.project_ordered_simplex(np.zeros(6), weights)
