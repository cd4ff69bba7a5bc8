import cvxpy as cp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dtopk import testing
from dtopk.kernels.entropy import solve_log_odds
from dtopk.losses import make_loss

both_losses = pytest.mark.parametrize("name", ["topk_entropy_alpha", "topk_entropy_beta"])
both_dtypes = pytest.mark.parametrize("dtype", [np.float32, np.float64], ids=["f4", "f8"])
CURVATURES = (0.0, 1e-12, 1e-6, 1e-2, 1.0, 30.0, 1e3, 1e6, 1e9, 1e12)


def eps(dtype):
    return float(np.finfo(dtype).eps)


def update(loss, scores, norm, cost, label=0, dual=None):
    """Update one row in the dtype of its scores; return its dual and D_i."""
    dtype = scores.dtype
    a = np.zeros((1, scores.size), dtype) if dual is None else dual[None].astype(dtype)
    value = loss.update_rows(
        scores[None].copy(),
        np.full((1, 1), norm, dtype),
        a,
        np.empty_like(a),
        np.array([label], np.int32),
        np.array([cost], dtype),
        0,
        1,
    )
    return a[0].astype(float), value


def assert_optimal(loss, scores, norm, cost, label=0, dual=None):
    """The gap of the row's own problem, which only its solution closes, is rounding."""
    dtype = scores.dtype
    a, value = update(loss, scores, norm, cost, label, dual)
    norm, cost = float(dtype.type(norm)), float(dtype.type(cost))
    old = np.zeros(scores.size) if dual is None else dual.astype(dtype).astype(float)
    q = scores.astype(float) - norm * old
    assert np.isfinite(a).all()
    assert testing.infeasibility(loss, a, label, cost) <= 64 * eps(dtype)
    feasible = a[None].copy()
    loss.make_feasible(feasible, np.array([label], np.int32), np.array([cost]))
    # The loss compares scores only; a common part of theirs would add the rounding of a's sum.
    gap = testing.row_gap(loss, feasible[0], q - q[label], norm, label, cost)
    # 40 stands for the logarithms of the masses that count.
    size = cost * (40 + np.abs(scores).max() + 2 * norm * (cost + np.abs(old).max()))
    assert abs(gap) <= 16 * eps(dtype) * size
    expected = testing.dual_term(loss, a, label, cost)
    assert value == pytest.approx(expected, abs=16 * eps(dtype) * size)
    return a


def scores_of_every_kind(rng, m):
    """Spread out at five scales, tied, all equal, one far above, one far below, in two groups."""
    for scale in (1e-6, 1.0, 30.0, 1e4):
        yield scale * rng.normal(size=m)
    yield np.round(rng.normal(size=m))
    yield 100 * np.round(rng.normal(size=m))
    yield np.zeros(m)
    yield np.full(m, -1e4)
    for value in (1e4, -1e4, 20.0):
        scores = rng.normal(size=m)
        scores[rng.integers(m)] = value
        yield scores
    yield rng.normal(size=m) + 300.0 * (np.arange(m) % 2)


@both_losses
@both_dtypes
@pytest.mark.parametrize(("m", "k"), [(3, 2), (7, 2), (7, 5), (7, 6), (40, 10), (40, 39), (300, 5)])
def test_update_leaves_no_gap_at_any_curvature(name, dtype, m, k, rng):
    loss = make_loss(name, k=k)
    for scores in scores_of_every_kind(rng, m):
        for al in CURVATURES:
            cost = 10.0 ** rng.integers(-3, 4)
            label = int(rng.integers(m))
            assert_optimal(loss, scores.astype(dtype), al / cost, cost, label)


@both_losses
@both_dtypes
@pytest.mark.parametrize("cost", [1e-20, 1e-12, 1e12, 1e20])
def test_update_leaves_no_gap_at_any_cost(name, dtype, cost, rng):
    loss = make_loss(name, k=3)
    for scores in scores_of_every_kind(rng, 9):
        for norm in (0.0, 1e-6 / cost, 1.0 / cost, 1e6 / cost):
            assert_optimal(loss, scores.astype(dtype), norm, cost)


@both_losses
@both_dtypes
@pytest.mark.parametrize("k", [2, 5, 8])
def test_update_from_any_dual_leaves_no_gap(name, dtype, k, rng):
    """Good guesses and bad: the old dual of near and of unrelated scores."""
    loss = make_loss(name, k=k)
    for scores in scores_of_every_kind(rng, 9):
        for al in CURVATURES[2:]:
            cost = 2.0
            for other in (
                scores + 1e-3 * rng.normal(size=9),
                scores + 10 * rng.normal(size=9),
                1e4 * rng.normal(size=9),
            ):
                old, _ = update(loss, other.astype(dtype), al / cost, cost)
                moved = (scores + al / cost * old).astype(dtype)
                assert_optimal(loss, moved, al / cost, cost, dual=old)


@both_losses
@both_dtypes
def test_update_of_many_capped_classes_leaves_no_gap(name, dtype, rng):
    """More of them than are kept by insertion."""
    loss = make_loss(name, k=200)
    for scores in scores_of_every_kind(rng, 300):
        for al in (0.0, 1e-2, 1.0, 1e3):
            assert_optimal(loss, scores.astype(dtype), al, 1.0)


@st.composite
def rows(draw):
    """Few distinct scores and many, over twelve decades of curvature."""
    m = draw(st.integers(2, 24))
    k = draw(st.integers(1, m - 1))
    entries = draw(
        st.one_of(
            st.lists(st.integers(-3, 3), min_size=m, max_size=m),
            st.lists(st.floats(-1, 1, width=32), min_size=m, max_size=m),
        )
    )
    scores = 10.0 ** draw(st.integers(-3, 4)) * np.array(entries, float)
    return scores, k, 10.0 ** draw(st.floats(-8, 6)), 10.0 ** draw(st.floats(-3, 3))


@both_losses
@both_dtypes
@settings(deadline=None, max_examples=300, derandomize=True)
@given(row=rows())
def test_update_of_any_row_leaves_no_gap(name, dtype, row):
    scores, k, norm, cost = row
    assert_optimal(make_loss(name, k=k), scores.astype(dtype), norm, cost)


def solve_by_cones(name, b, al, k):
    """Minimise al/2 (|x|^2 + s^2) - <b, x> + sum x log x + (1-s) log(1-s) over the domain."""
    x = cp.Variable(b.size)
    s = cp.sum(x)
    objective = al / 2 * (cp.sum_squares(x) + cp.square(s)) - b @ x
    objective -= cp.sum(cp.entr(x)) + cp.entr(1 - s)
    cap = s / k if name == "topk_entropy_alpha" else 1 / k
    problem = cp.Problem(cp.Minimize(objective), [x >= 0, s <= 1, x <= cap])
    problem.solve(solver=cp.CLARABEL, tol_gap_abs=1e-9, tol_gap_rel=1e-9, tol_feas=1e-9)
    return np.asarray(x.value)


@both_losses
@pytest.mark.parametrize("k", [1, 2, 3, 6])
def test_update_equals_an_exponential_cone_solver(name, k, rng):
    loss = make_loss(name, k=k)
    cases = [
        rng.normal(size=6),
        5 * rng.normal(size=6),
        np.round(rng.normal(size=6)),
        np.zeros(6),
        np.array([3.0, 3.0, 3.0, -3.0, -3.0, -3.0]),
        np.array([8.0, 0.0, 0.0, 0.0, 0.0, 0.0]),
    ]
    for b in cases:
        for al in (0.0, 0.1, 1.0, 20.0):
            a, _ = update(loss, np.append(0.0, b), al, 1.0)
            # The objective is strongly convex, of modulus 1 at least: an error of 1e-9 in it is
            # one of 5e-5 in x at most.
            np.testing.assert_allclose(-a[1:], solve_by_cones(name, b, al, k), atol=5e-5)


@both_losses
@both_dtypes
def test_one_class_gives_the_softmax_update(name, dtype, rng):
    softmax, loss = make_loss("softmax"), make_loss(name, k=1)
    for scores in scores_of_every_kind(rng, 11):
        for al in (0.0, 1e-4, 1.0, 1e3):
            u = scores.astype(dtype)
            expected, expected_value = update(softmax, u, al / 2, 2.0, label=4)
            a, value = update(loss, u, al / 2, 2.0, label=4)
            rounding = 64 * eps(dtype) * (1 + np.abs(scores).max() + al)
            np.testing.assert_allclose(a, expected, rtol=0, atol=rounding)
            assert value == pytest.approx(expected_value, abs=2 * rounding)


@both_losses
def test_one_class_gives_the_softmax_loss(name, rng):
    softmax, loss = make_loss("softmax"), make_loss(name, k=1)
    scores = np.stack(list(scores_of_every_kind(rng, 11)))
    labels = rng.integers(0, 11, len(scores)).astype(np.int32)
    values = loss.values(scores, labels)
    np.testing.assert_allclose(values, softmax.values(scores, labels), rtol=1e-13, atol=1e-13)
    expected = softmax.gradients(scores, labels)
    np.testing.assert_allclose(loss.gradients(scores, labels), expected, atol=1e-13)


@both_losses
def test_a_row_without_curvature_gives_the_gradient(name, rng):
    loss = make_loss(name, k=4)
    for scores in scores_of_every_kind(rng, 9):
        gradient = loss.gradients(scores[None], np.zeros(1, np.int32))[0]
        np.testing.assert_allclose(update(loss, scores, 0.0, 3.0)[0], -3 * gradient, atol=1e-15)


@pytest.mark.parametrize("beta", [0.0, 1e-12, 1.0, 1e3, 1e12])
@pytest.mark.parametrize("kappa", [-1e12, -1e4, -30.0, -1e-9, 0.0, 0.5, 30.0, 500.0, 1e4, 1e12])
def test_solve_log_odds_solves_its_equation(beta, kappa):
    y = solve_log_odds(beta, kappa)
    share = np.exp(y) / (1 + np.exp(y)) if y < 0 else 1 / (1 + np.exp(-y))
    slope = 1 + beta * share * (1 - share)
    residual = y + beta * share - kappa
    assert abs(residual) <= 8 * eps(float) * (abs(y) * slope + beta + abs(kappa))


@both_losses
@pytest.mark.parametrize("k", [2, 5])
def test_rounding_a_dual_to_single_costs_its_dual_term_nothing_of_first_order(name, k, rng):
    """A cap broken by rounding is mended by factors: small masses keep their digits."""
    loss, label = make_loss(name, k=k), np.zeros(1, np.int32)
    scores = np.concatenate((rng.normal(size=20) + 8, -14 + rng.normal(size=1000)))
    # The small masses are below the rounding of the large ones, but together count.
    a, _ = update(loss, scores, 1.0, 1.0)
    rounded = a[None].astype(np.float32).astype(float)
    loss.make_feasible(rounded, label, np.ones(1))
    assert testing.infeasibility(loss, rounded[0], 0, 1.0) <= 16 * eps(float)
    assert testing.row_gap(loss, rounded[0], scores, 1.0, 0, 1.0) <= 1e-12
