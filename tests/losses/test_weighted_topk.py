"""The weighted top-k hinge: hand-computed values, its domain, and the projection onto that."""

import itertools

import numpy as np
import pytest
from scipy.optimize import linprog

from dtopk import testing
from dtopk.losses import make_loss

# The label is the first class: h = (0, 1.5, 0.5, -1).
SCORES = np.array([[0.0, 0.5, -0.5, -2.0]])
LABEL = np.zeros(1, np.int32)
WEIGHTS = [[1.0], [2.0, 0.5, 0.2], [1.0, 1.0, 0.5, 0.5, 0.1], [1.0] * 5, [0.4, 0.3, 0.2, 0.1]]


def make(rho, **options):
    return make_loss("weighted_topk_hinge", rho=rho, **options)


def vertices(rho, m):
    """List 0 and the permutations of the weights without their last entry, the label's."""
    weights = np.pad(rho, (0, m - len(rho)))
    return np.unique([np.zeros(m - 1), *(p[:-1] for p in itertools.permutations(weights))], axis=0)


@pytest.mark.parametrize(
    ("rho", "expected"),
    [
        ([1.0], 1.5),
        ([2.0, 1.0], 3.5),
        # 2 * 1.5 + 0.5 + 0 - 1: the label's margin 0 is the third.
        ([2.0, 1.0, 1.0], 3.5),
        ([2.0, 1.0, 1.0, 1.0], 2.5),
        ([0.5, 0.5, 0.5, 0.5], 0.5),
    ],
)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_values_equal_those_worked_out_by_hand(rho, expected, dtype):
    assert make(rho).values(SCORES.astype(dtype), LABEL)[0] == expected


def test_a_weighted_sum_below_zero_counts_as_zero():
    """h = (1, -3): with weights of 1 on all three classes the sum is -2."""
    scores = np.array([[0.0, 0.0, -4.0]])
    assert make([1.0, 1.0, 1.0]).values(scores, LABEL)[0] == 0
    assert make([1.0, 1.0]).values(scores, LABEL)[0] == 1
    assert not make([1.0, 1.0, 1.0]).gradients(scores, LABEL).any()


@pytest.mark.parametrize(("smoothing", "expected"), [("lapin", 0.5), ("moreau", 1 / 6)])
def test_smoothed_values_equal_those_worked_out_by_hand(smoothing, expected):
    """Equal weights on all classes: x = theta (1, 1), h = (1.5, 0.5), gamma = 2.

    lapin: max 2 theta - 2 theta^2, at 1/2; moreau: max 2 theta - (2 + 4) theta^2, at 1/6.
    """
    loss = make([1.0, 1.0, 1.0], gamma=2.0, smoothing=smoothing)
    assert loss.values(SCORES[:, :3].copy(), LABEL)[0] == pytest.approx(expected, rel=1e-15)


def test_the_gradient_gives_the_ranks_below_zero_to_the_classes_after_the_label():
    """Ranks: h = 1.5 the first, 0.5 the second, the label the third, -1 the fourth."""
    np.testing.assert_array_equal(
        make([2.0, 1.0, 0.7, 0.5]).gradients(SCORES, LABEL), [[-3.5, 2.0, 1.0, 0.5]]
    )


@pytest.mark.parametrize("k", [1, 2, 4, 6])
@pytest.mark.parametrize("smoothing", ["none", "lapin", "moreau"])
def test_equal_weights_are_the_topk_hinge_with_the_label_among_the_k(k, smoothing, rng):
    options = {} if smoothing == "none" else {"gamma": 0.3, "smoothing": smoothing}
    loss = make(np.full(k, 1 / k), **options)
    other = make_loss("topk_hinge_alpha_incl", k=k, **options)
    scores, labels = 3 * rng.normal(size=(40, 7)), rng.integers(0, 7, 40).astype(np.int32)
    np.testing.assert_allclose(
        loss.values(scores, labels), other.values(scores, labels), atol=1e-14
    )
    np.testing.assert_allclose(
        loss.gradients(scores, labels), other.gradients(scores, labels), atol=1e-14
    )
    dual, costs = -rng.normal(size=(40, 7)), rng.uniform(0.1, 3, 40)
    expected = dual.copy()
    terms = loss.make_feasible(dual, labels, costs)
    np.testing.assert_allclose(terms, other.make_feasible(expected, labels, costs), atol=1e-14)
    np.testing.assert_allclose(dual, expected, atol=1e-14)


@pytest.mark.parametrize("rho", WEIGHTS)
def test_the_domain_is_the_hull_of_zero_and_the_permuted_weights(rho, rng):
    m = 5
    corners, loss = vertices(rho, m), make(rho)
    hull = np.vstack([corners.T, np.ones(len(corners))])
    inside = [rng.dirichlet(np.full(len(corners), 0.1)) @ corners for _ in range(10)]
    others = [rng.uniform(0, 0.6, m - 1) * rho[0] for _ in range(20)]
    found = []
    for x in [*inside, *others]:
        excess = testing.infeasibility(loss, np.append(-x, x.sum()), m - 1, 1.0)
        found.append(excess < 1e-9)
        assert linprog(np.zeros(len(corners)), A_eq=hull, b_eq=[*x, 1]).success is found[-1]
    assert all(found[:10])


@pytest.mark.parametrize("rho", WEIGHTS)
def test_make_feasible_takes_the_nearest_point(rho, rng):
    """<b - p, v - p> <= 0 for every vertex v is what tells the projection p of b."""
    m, cost = 5, 0.7
    corners, loss = cost * vertices(rho, m), make(rho)
    for scale in (0.1, 1.0, 30.0):
        for _ in range(20):
            b = scale * rng.normal(size=m - 1)
            dual = np.append(-b, 0.0)[None]
            loss.make_feasible(dual, np.full(1, m - 1, np.int32), np.full(1, cost))
            p = -dual[0, :-1]
            assert ((corners - p) @ (b - p)).max() <= 1e-14 * (1 + scale)


@pytest.mark.parametrize("smoothing", ["lapin", "moreau"])
def test_the_smoothed_gradient_is_where_the_smoothed_maximum_is(smoothing, rng):
    """<h - gamma (p + bias s), v - p> <= 0 for every vertex v."""
    m, gamma = 5, 0.4
    bias = float(smoothing == "moreau")
    for rho in WEIGHTS:
        corners, loss = vertices(rho, m), make(rho, gamma=gamma, smoothing=smoothing)
        for scale in (0.1, 1.0, 30.0):
            scores = scale * rng.normal(size=(1, m))
            h = 1 + scores[0, :-1] - scores[0, -1]
            p = loss.gradients(scores, np.full(1, m - 1, np.int32))[0, :-1]
            slope = h - gamma * (p + bias * p.sum())
            assert ((corners - p) @ slope).max() <= 1e-13 * (1 + scale)


def test_there_may_be_as_many_weights_as_classes_and_no_more():
    loss = make(np.ones(3))
    loss.check_n_classes(3)
    with pytest.raises(ValueError, match=r"rho must have at most n_classes = 2 weights, got 3\."):
        loss.check_n_classes(2)


def test_it_says_that_it_has_no_closed_update():
    loss, row = make([1.0]), np.zeros((1, 3))
    assert "sdca" not in loss.solvers
    with pytest.raises(ValueError, match=r"loss 'weighted_topk_hinge' has no closed update of a"):
        loss.update_rows(row, row[:, :1], row, row, LABEL, np.ones(1), 0, 1)
