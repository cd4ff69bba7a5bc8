"""The exact dual update of a row and of a block, for every registered loss."""

import numpy as np
import pytest

from dtopk import testing
from dtopk.losses import Softmax, TopKHinge
from tests.loss_cases import loss_id, one_label, random_labels, updated_loss_cases

N_CLASSES = 7
every_loss = pytest.mark.parametrize("loss", updated_loss_cases(N_CLASSES), ids=loss_id)
both_dtypes = pytest.mark.parametrize("dtype", [np.float32, np.float64], ids=["f4", "f8"])
NORMS = (0.0, 1e-6, 1.0, 1e3)
COSTS = (1e-8, 1e-2, 1.0, 1e2, 1e6)


def eps(dtype):
    return float(np.finfo(dtype).eps)


def update_one(loss, scores, norm, dual, label, cost, dtype):
    """Update one row; return its new dual and the D_i that the kernel says it has."""
    a, delta = dual[None].astype(dtype), np.empty((1, len(dual)), dtype)
    value = loss.update_rows(
        scores[None].astype(dtype),
        np.full((1, 1), norm, dtype),
        a,
        delta,
        one_label(label),
        np.array([cost], dtype),
        0,
        1,
    )
    np.testing.assert_allclose(delta, a - dual[None].astype(dtype), atol=2 * eps(dtype) * cost)
    return a[0].astype(float), value


def row_problems(loss, rng, dtype):
    """Scores, norm, old dual, label and cost; the old dual is feasible, zero or at the border."""
    for norm in NORMS:
        for cost in COSTS:
            for scale in (0.0, 1.0, 1e4):
                label = random_labels(loss, rng, 1, N_CLASSES)[0]
                # A zero row has zero scores.
                scores = scale * rng.normal(size=N_CLASSES) * (norm > 0)
                if rng.random() < 0.3:
                    scores = np.round(scores)
                dual = cost * rng.normal(size=(1, N_CLASSES)) * rng.choice([0.0, 0.1, 10.0])
                loss.make_feasible(dual, one_label(label), np.array([cost]))
                scores, a = scores.astype(dtype).astype(float), dual[0].astype(dtype).astype(float)
                yield (
                    scores,
                    float(dtype(norm)),
                    a,
                    label,
                    float(dtype(cost)),
                )


def row_objective(loss, a, q, norm, label, cost):
    return testing.dual_term(loss, a, label, cost) - 0.5 * norm * a @ a - q @ a


def objective_size(scores, norm, dual, cost):
    """What the terms of a row's objective can be as large as: their rounding is in units of it.

    40 stands for the logarithms of the masses that count, those above the rounding of float64.
    """
    return cost * (40 + np.abs(scores).max() + 2 * norm * (cost + np.abs(dual).max()))


@pytest.mark.parametrize(
    "loss",
    [loss for loss in updated_loss_cases(N_CLASSES) if isinstance(loss, Softmax | TopKHinge)],
    ids=loss_id,
)
def test_update_equals_an_independent_solution(loss, rng):
    for scores, norm, dual, label, cost in row_problems(loss, rng, np.float64):
        q = scores - norm * dual
        a, _ = update_one(loss, scores, norm, dual, label, cost, np.float64)
        expected = testing.update_row(loss, q, norm, label, cost)
        if norm == 0 and not loss.smooth:
            # A linear problem with ties: only its value is determined.
            assert q @ a - a[label] == pytest.approx(q @ expected - expected[label], rel=1e-12)
            continue
        # b is made of scores and K a: where it is large, so is the rounding of its differences.
        rounding = eps(float) * (1 + np.abs(scores).max() + norm * cost)
        curvature = norm + getattr(loss, "gamma", 0.0) / cost
        if "gamma" in loss.parameters:
            tolerance = 64 * rounding / curvature
        else:
            tolerance = 64 * cost * rounding
        np.testing.assert_allclose(a, expected, rtol=0, atol=min(tolerance, 2 * cost))


@every_loss
@both_dtypes
def test_update_closes_the_gap_of_the_row(loss, dtype, rng):
    for scores, norm, dual, label, cost in row_problems(loss, rng, dtype):
        q = scores - norm * dual
        a, _ = update_one(loss, scores, norm, dual, label, cost, dtype)
        feasible = a[None].copy()
        loss.make_feasible(feasible, one_label(label), np.array([cost]))
        slack = 64 * eps(dtype) * objective_size(scores, norm, dual, cost)
        assert abs(testing.row_gap(loss, feasible[0], q, norm, label, cost)) <= slack


@every_loss
@both_dtypes
def test_update_closes_the_gap_of_the_row_whatever_its_curvature(loss, dtype, rng):
    """K C from 1e-12 to 1e12, as the entropies take it, with scores of any size beside it."""
    for curvature in 10.0 ** np.arange(-12, 13):
        for scale in (1.0, curvature, 1e4):
            label = random_labels(loss, rng, 1, N_CLASSES)[0]
            cost = float(10.0 ** rng.uniform(-3, 3))
            norm = float(dtype(curvature / cost))
            scores = (scale * rng.normal(size=N_CLASSES)).astype(dtype).astype(float)
            zero, cost = np.zeros(N_CLASSES), float(dtype(cost))
            a, _ = update_one(loss, scores, norm, zero, label, cost, dtype)
            assert np.isfinite(a).all()
            feasible = a[None].copy()
            loss.make_feasible(feasible, one_label(label), np.array([cost]))
            slack = 64 * eps(dtype) * objective_size(scores, norm, zero, cost)
            gap = testing.row_gap(loss, feasible[0], scores, norm, label, cost)
            assert abs(gap) <= slack


@every_loss
@both_dtypes
def test_no_feasible_dual_is_better_than_the_update(loss, dtype, rng):
    for scores, norm, dual, label, cost in row_problems(loss, rng, dtype):
        q = scores - norm * dual
        a, _ = update_one(loss, scores, norm, dual, label, cost, dtype)
        labels, costs = one_label(label), np.array([cost])
        feasible = a[None].copy()
        loss.make_feasible(feasible, labels, costs)
        best = row_objective(loss, feasible[0], q, norm, label, cost)
        slack = 64 * eps(dtype) * objective_size(scores, norm, dual, cost)
        for share in (1.0, 0.1, 1e-3):
            other = -cost * rng.normal(size=(1, N_CLASSES))
            loss.make_feasible(other, labels, costs)
            moved = a + share * (other[0] - a)
            assert row_objective(loss, moved, q, norm, label, cost) <= best + slack


@every_loss
@both_dtypes
def test_update_is_feasible_to_rounding(loss, dtype, rng):
    for scores, norm, dual, label, cost in row_problems(loss, rng, dtype):
        a, _ = update_one(loss, scores, norm, dual, label, cost, dtype)
        assert testing.infeasibility(loss, a, label, cost) <= 64 * eps(dtype)


@every_loss
@both_dtypes
def test_update_returns_the_dual_term_of_the_new_row(loss, dtype, rng):
    for scores, norm, dual, label, cost in row_problems(loss, rng, dtype):
        a, value = update_one(loss, scores, norm, dual, label, cost, dtype)
        expected = testing.dual_term(loss, a, label, cost)
        slack = 64 * eps(dtype) * objective_size(scores, norm, dual, cost)
        assert value == pytest.approx(expected, abs=slack)


@every_loss
@both_dtypes
def test_a_second_update_changes_nothing(loss, dtype, rng):
    for scores, norm, dual, label, cost in row_problems(loss, rng, dtype):
        a, _ = update_one(loss, scores, norm, dual, label, cost, dtype)
        moved = scores + norm * (a - dual)
        again, _ = update_one(loss, moved, norm, a, label, cost, dtype)
        before = row_objective(loss, a, scores - norm * dual, norm, label, cost)
        after = row_objective(loss, again, scores - norm * dual, norm, label, cost)
        slack = 128 * eps(dtype) * objective_size(scores, norm, dual, cost)
        assert after == pytest.approx(before, abs=slack)


def block(loss, rng, dtype, *, n=40, d=5, weights=None):
    """Rows with a tie, a repeated row and a zero row among them."""
    X = rng.normal(size=(n, d)).astype(dtype)
    X[3], X[7], X[8] = 0, X[6], np.round(X[8])
    labels = random_labels(loss, rng, n, N_CLASSES)
    costs = np.ones(n) if weights is None else weights
    return X, labels, costs.astype(dtype)


@every_loss
@both_dtypes
@pytest.mark.parametrize("C", [1e-8, 0.1, 10.0, 1e6])
def test_block_updates_never_lower_the_dual(loss, dtype, rng, C):
    X, labels, costs = block(loss, rng, dtype)
    costs = (C * costs * rng.choice([0.0, 1.0, 2.5], len(costs))).astype(dtype)
    gram = X @ X.T
    dual, delta = np.zeros((len(X), N_CLASSES), dtype), np.empty((len(X), N_CLASSES), dtype)
    exact = costs.astype(float)
    values = [0.0]
    for _ in range(4):
        scores = X @ (X.T @ dual)
        loss.update_rows(scores, gram, dual, delta, labels, costs, 0, len(X))
        feasible = dual.astype(float)
        terms = loss.make_feasible(feasible, labels, exact)
        values.append(terms.sum() - 0.5 * np.sum((X.T.astype(float) @ feasible) ** 2))
        size = sum(
            objective_size(u, float(x @ x), a, c)
            for u, x, a, c in zip(scores, X, feasible, exact, strict=True)
        )
        assert values[-1] >= values[-2] - 16 * eps(dtype) * size


@every_loss
def test_block_update_equals_one_row_at_a_time(loss, rng):
    X, labels, costs = block(loss, rng, float, weights=rng.choice([0.0, 0.5, 2.0], 40))
    dual, delta = np.zeros((40, N_CLASSES)), np.empty((40, N_CLASSES))
    slow, W = np.zeros((40, N_CLASSES)), np.zeros((5, N_CLASSES))
    for _ in range(2):
        loss.update_rows(X @ (X.T @ dual), X @ X.T, dual, delta, labels, costs, 0, 40)
        testing.sdca_pass(loss, X, labels, costs, slow, W, range(40))
        counted = np.einsum("ij,ij->i", X, X) > 0
        # A zero row may break the ties of its linear problem in any way.
        np.testing.assert_allclose(dual[counted], slow[counted], atol=1e-11)


@every_loss
def test_rows_outside_the_range_are_left_alone(loss, rng):
    X, labels, costs = block(loss, rng, float)
    dual, delta = np.zeros((40, N_CLASSES)), np.full((40, N_CLASSES), 7.0)
    loss.update_rows(np.zeros((40, N_CLASSES)), X @ X.T, dual, delta, labels, costs, 10, 20)
    assert not dual[:10].any()
    assert not dual[20:].any()
    assert (delta[:10] == 7).all()
    assert (delta[20:] == 7).all()
    assert dual[10:20].any()


@every_loss
def test_update_reads_the_lower_triangle_of_the_gram_matrix_only(loss, rng):
    X, labels, costs = block(loss, rng, float)
    results = []
    whole = X @ X.T
    for gram in (whole, np.where(np.tri(40, dtype=bool), whole, np.nan)):
        dual, delta = np.zeros((40, N_CLASSES)), np.empty((40, N_CLASSES))
        loss.update_rows(np.zeros((40, N_CLASSES)), gram, dual, delta, labels, costs, 0, 40)
        results.append(dual)
    np.testing.assert_array_equal(*results)


@every_loss
def test_update_leaves_the_scores_at_which_each_row_was_solved(loss, rng):
    X, labels, costs = block(loss, rng, float)
    W = rng.normal(size=(5, N_CLASSES))
    dual, delta = np.zeros((40, N_CLASSES)), np.empty((40, N_CLASSES))
    scores = X @ W
    loss.update_rows(scores, X @ X.T, dual, delta, labels, costs, 0, 40)
    for i in (0, 1, 7, 39):
        expected = X[i] @ (W + X[:i].T @ delta[:i])
        np.testing.assert_allclose(scores[i], expected, atol=1e-12)
