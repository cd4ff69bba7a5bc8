"""Block-coordinate Frank-Wolfe: the step of a row, of a block, and where they lead."""

import cvxpy as cp
import numpy as np
import pytest

from dtopk import testing
from dtopk.losses import make_loss
from dtopk.losses.ranked import RankedHinge
from dtopk.solvers.block_frank_wolfe import FrankWolfeSteps
from dtopk.solvers.sdca import BlockUpdater, RowConversion
from tests.loss_cases import loss_cases, loss_id, one_label, random_labels
from tests.solvers.definitions import define_loss

N_CLASSES = 6
CASES = [loss for loss in loss_cases(N_CLASSES) if loss.polyhedral]
every_polyhedral_loss = pytest.mark.parametrize("loss", CASES, ids=loss_id)
both_dtypes = pytest.mark.parametrize("dtype", [np.float32, np.float64], ids=["f4", "f8"])


def eps(dtype):
    return float(np.finfo(dtype).eps)


def block(loss, rng, dtype, *, n=30, d=4, C=2.0):
    """Feasible duals, and rows of which two repeat, one is zero and some do not count."""
    X = rng.normal(size=(n, d))
    X[3], X[7], X[8] = 0, X[6], np.round(X[8])
    labels = random_labels(loss, rng, n, N_CLASSES)
    costs = C * rng.choice([0.0, 0.5, 2.0], n, p=[0.2, 0.4, 0.4])
    dual = -costs[:, None] * rng.normal(size=(n, N_CLASSES))
    loss.make_feasible(dual, labels, costs)
    return X.astype(dtype), labels, costs.astype(dtype), dual.astype(dtype)


def step_block(update_rows, X, labels, costs, dual, *, first=0, last=None):
    """Make the steps of a block in one call; return duals, changes, scores and the sum."""
    dual, delta = dual.copy(), np.zeros_like(dual)
    scores = X @ (X.T @ dual)
    last = len(X) if last is None else last
    gram = np.where(np.tri(len(X), dtype=bool), X @ X.T, np.nan).astype(X.dtype)
    value = update_rows(scores, gram, dual, delta, labels, costs, first, last)
    return dual, delta, scores, value


@every_polyhedral_loss
@pytest.mark.parametrize(("cost", "norm"), [(0.1, 5.0), (3.0, 0.3), (3.0, 0.0)])
def test_the_step_is_the_best_one_towards_the_vertex(loss, cost, norm, rng):
    label = random_labels(loss, rng, 1, N_CLASSES)[0]
    labels, costs = one_label(label), np.array([cost])
    scores, old = rng.normal(size=(1, N_CLASSES)), -cost * rng.normal(size=(1, N_CLASSES))
    loss.make_feasible(old, labels, costs)
    shifted = scores.copy()
    loss.shift_scores(shifted, old, labels, costs)
    way = -cost * loss.vertices(shifted, labels) - old
    new, delta, gram = old.copy(), np.empty_like(old), np.full((1, 1), norm)
    FrankWolfeSteps(loss).update_rows(scores.copy(), gram, new, delta, labels, costs, 0, 1)
    # There may be no way to go, but for rounding.
    share = np.vdot(delta, way) / max(float(np.vdot(way, way)), 1e-28 * cost**2)
    assert 0 <= share <= 1 + 1e-15
    np.testing.assert_allclose(new, old + share * way, atol=1e-15 * (1 + cost))
    q = scores[0] - norm * old[0]

    def objective(a):
        return testing.dual_term(loss, a, label, cost) - 0.5 * norm * a @ a - q @ a

    best = max(objective((old + t * way)[0]) for t in np.linspace(0, 1, 101))
    assert objective(new[0]) >= best - 1e-14 * (1 + cost)


@pytest.mark.parametrize(
    "loss", [loss for loss in CASES if isinstance(loss, RankedHinge)], ids=loss_id
)
@both_dtypes
def test_compiled_steps_equal_those_by_the_methods_of_the_loss(loss, dtype, rng):
    steps, problem = FrankWolfeSteps(loss), block(loss, rng, dtype)
    fast = step_block(steps.update_rows, *problem)
    slow = step_block(steps.step_rows, *problem)
    for given, expected in zip(fast, slow, strict=True):
        np.testing.assert_allclose(given, expected, atol=2e3 * eps(dtype))


@every_polyhedral_loss
@both_dtypes
def test_steps_keep_rows_feasible_and_return_their_dual_terms(loss, dtype, rng):
    X, labels, costs, dual = block(loss, rng, dtype)
    for _ in range(20):
        dual, _, _, value = step_block(FrankWolfeSteps(loss).update_rows, X, labels, costs, dual)
    rows = list(zip(dual.astype(float), labels, costs.astype(float), strict=True))
    expected = [testing.dual_term(loss, a, label, cost) for a, label, cost in rows]
    assert value == pytest.approx(sum(expected), abs=64 * eps(dtype) * float(costs.sum()))
    for a, label, cost in rows:
        if cost == 0:
            assert not a.any()
        else:
            assert testing.infeasibility(loss, a, label, cost) <= 64 * eps(dtype)


@every_polyhedral_loss
def test_steps_never_lower_the_dual(loss, rng):
    X, labels, costs, dual = block(loss, rng, float, C=10.0)
    loss.make_feasible(dual, labels, costs)
    values = [testing.dual_value(loss, X, labels, costs, dual)]
    for _ in range(5):
        dual, _, _, _ = step_block(FrankWolfeSteps(loss).update_rows, X, labels, costs, dual)
        values.append(testing.dual_value(loss, X, labels, costs, dual))
    assert (np.diff(values) >= -1e-12 * np.abs(values).max()).all()


@every_polyhedral_loss
def test_steps_of_a_block_are_those_of_one_row_at_a_time(loss, rng):
    X, labels, costs, dual = block(loss, rng, float)
    together, delta, scores, value = step_block(
        FrankWolfeSteps(loss).update_rows, X, labels, costs, dual
    )
    W, alone, total = X.T @ dual, dual.copy(), 0.0
    for i in range(len(X)):
        x, row = X[i : i + 1], slice(i, i + 1)
        np.testing.assert_allclose(scores[i], (x @ W)[0], atol=1e-11)
        change = np.empty((1, N_CLASSES))
        total += FrankWolfeSteps(loss).update_rows(
            x @ W, x @ x.T, alone[row], change, labels[row], costs[row], 0, 1
        )
        W += x.T @ change
    np.testing.assert_allclose(together, alone, atol=1e-11)
    np.testing.assert_allclose(delta, alone - dual, atol=1e-11)
    assert value == pytest.approx(total, abs=1e-10)


@every_polyhedral_loss
def test_rows_outside_the_range_are_left_alone(loss, rng):
    X, labels, costs, dual = block(loss, rng, float)
    moved, delta, _, _ = step_block(
        FrankWolfeSteps(loss).update_rows, X, labels, costs, dual, first=10, last=20
    )
    outside = np.r_[0:10, 20:30]
    np.testing.assert_array_equal(moved[outside], dual[outside])
    assert not delta[outside].any()


def passes(rule, X, labels, costs, n_passes):
    """Make passes in blocks of few rows, in a new order every time; return duals and weights."""
    conversion = RowConversion(n_features=X.shape[1], dtype=X.dtype)
    updater = BlockUpdater(rule, conversion, N_CLASSES, 5)
    dual, W = np.zeros((len(X), N_CLASSES)), np.zeros((X.shape[1], N_CLASSES))
    rng = np.random.default_rng(1)
    for _ in range(n_passes):
        order = rng.permutation(len(X))
        for start in range(0, len(X), 5):
            updater.update(X, labels, costs, dual, order[start : start + 5], W, 1.0)
    return dual, W


def certify(loss, X, labels, costs, dual, W):
    """Return the values of both problems, the dual one at the duals as they are put in order."""
    primal = float(costs @ loss.values(X @ W, labels) + 0.5 * np.sum(W**2))
    feasible = dual.copy()
    loss.make_feasible(feasible, labels, costs)
    return primal, testing.dual_value(loss, X, labels, costs, feasible)


@every_polyhedral_loss
def test_passes_close_the_duality_gap(loss, rng):
    """It falls like one over their number, here from 1 to less than 1e-2."""
    X, labels, costs, _ = block(loss, rng, float, n=10, d=3, C=0.2)
    dual, W = passes(FrankWolfeSteps(loss), X, labels, costs, 300)
    np.testing.assert_allclose(W, X.T @ dual, atol=1e-12)
    primal, dual_value = certify(loss, X, labels, costs, dual, W)
    assert -1e-12 <= (primal - dual_value) / primal < 1e-2


@pytest.mark.parametrize(
    "loss",
    [
        make_loss("topk_hinge_alpha", k=2),
        make_loss("topk_hinge_alpha_incl", k=2, gamma=0.5),
        make_loss("topk_hinge_beta", k=2, gamma=0.5, smoothing="moreau"),
        make_loss("weighted_usunier", rho=[1.0, 0.5, 0.25]),
        make_loss("structured_hinge", gamma=0.5),
        make_loss("smooth_hinge_ova"),
    ],
    ids=loss_id,
)
def test_passes_lead_to_the_optimum_of_exact_updates(loss, rng):
    X, labels, costs, _ = block(loss, rng, float, n=10, d=3, C=0.2)
    values = certify(loss, X, labels, costs, *passes(FrankWolfeSteps(loss), X, labels, costs, 3000))
    optimum, _ = certify(loss, X, labels, costs, *passes(loss, X, labels, costs, 300))
    np.testing.assert_allclose(values, optimum, rtol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("rho", [[1.0, 0.5, 0.25], [1.0] * 4], ids=["falling", "equal"])
@pytest.mark.parametrize(
    "options", [{}, {"gamma": 0.5}, {"gamma": 0.5, "smoothing": "moreau"}], ids=str
)
def test_passes_lead_a_loss_without_an_update_to_the_optimum_of_a_convex_solver(rho, options, rng):
    loss = make_loss("weighted_topk_hinge", rho=rho, **options)
    X, labels, costs, _ = block(loss, rng, float, n=10, d=3, C=0.2)
    dual, W = passes(FrankWolfeSteps(loss), X, labels, costs, 10_000)
    variable = cp.Variable(W.shape)
    losses = [
        cost * define_loss(loss, x @ variable, label)
        for x, label, cost in zip(X, labels, costs, strict=True)
    ]
    objective = cp.sum(cp.hstack(losses)) + 0.5 * cp.sum_squares(variable)
    optimum = cp.Problem(cp.Minimize(objective)).solve(solver=cp.CLARABEL)
    values = certify(loss, X, labels, costs, dual, W)
    np.testing.assert_allclose(values, optimum, rtol=3e-4)
    assert values[1] <= optimum * (1 + 1e-7)


def test_a_loss_that_is_no_maximum_over_a_polytope_is_refused():
    expected = r"loss for 'block_frank_wolfe' must be a maximum over a polytope, got 'softmax'\."
    with pytest.raises(ValueError, match=expected):
        FrankWolfeSteps(make_loss("softmax"))


def test_a_step_gives_hand_computed_duals():
    """k = 1, two classes, K = 2, C = 1/5, W = 0: d = (1, -1)/5, slope 1/5, |d|^2 = 2/25.

    t = (1/5) / (2 * 2/25) = 5/4 is cut to 1; with K = 4 it is 5/8 and a = (1, -1)/8.
    """
    for norm, expected in ((2.0, 0.2), (4.0, 0.125)):
        dual, delta = np.zeros((1, 2)), np.empty((1, 2))
        value = FrankWolfeSteps(make_loss("topk_hinge_alpha")).update_rows(
            np.zeros((1, 2)),
            np.array([[norm]]),
            dual,
            delta,
            np.zeros(1, np.int32),
            np.array([0.2]),
            0,
            1,
        )
        np.testing.assert_allclose(dual, [[expected, -expected]])
        np.testing.assert_array_equal(delta, dual)
        assert value == pytest.approx(expected)
