"""The losses that are a minimum over masks: by hand, row by row, and minimised by turns."""

import cvxpy as cp
import numpy as np
import pytest

from dtopk import testing
from dtopk.losses import MaskedLabels, make_loss
from dtopk.solvers.certificate import CertificateSums
from dtopk.solvers.sdca import BlockUpdater, RowConversion
from tests.loss_cases import loss_cases, loss_id, random_labels
from tests.solvers.definitions import define_loss

LOG, EXP = np.log, np.exp
N, D, M = 60, 5, 7
every_nonconvex_loss = pytest.mark.parametrize(
    "loss", [loss for loss in loss_cases(M) if not loss.convex], ids=loss_id
)

# The label is the first class: the others are 0.5 above, 0.5 and 2 below it.
SCORES = [0.0, 0.5, -0.5, -2.0]
VALUES = {
    "truncated, k = 1": (
        "truncated_topk_entropy",
        {"k": 1},
        LOG(1 + EXP(0.5) + EXP(-0.5) + EXP(-2)),
    ),
    "truncated, k = 2": ("truncated_topk_entropy", {"k": 2}, LOG(1 + EXP(-0.5) + EXP(-2))),
    "truncated, k = 3": ("truncated_topk_entropy", {"k": 3}, LOG(1 + EXP(-2))),
    # In descending order the scores are (0.5, 0, -0.5, -2): 1 + 0, 1 - 0.5, and 1 - 2 < 0.
    "calibrated, k = 1": ("calibrated_topk_hinge", {"k": 1}, 1.0),
    "calibrated, k = 2": ("calibrated_topk_hinge", {"k": 2}, 0.5),
    "calibrated, k = 3": ("calibrated_topk_hinge", {"k": 3}, 0.0),
    # With y masked the margins are (1.5, 0.5, -1), whose smooth hinge is 0.625 (gamma = 2, lapin);
    # with class 1 in its place it is 1 and the smooth hinge of (-0.5, -2), which is 0.
    "smooth, k = 1": ("calibrated_topk_hinge", {"k": 1, "gamma": 2.0}, 0.625),
    # With y and class 1 masked, (0.5, -1): max 0.5 x - x^2 at x = 1/4, or 0.5 x - 2 x^2 at 1/8.
    "smooth, k = 2": ("calibrated_topk_hinge", {"k": 2, "gamma": 2.0}, 1 / 16),
    "moreau, k = 2": (
        "calibrated_topk_hinge",
        {"k": 2, "gamma": 2.0, "smoothing": "moreau"},
        1 / 32,
    ),
}


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("case", VALUES.values(), ids=VALUES.keys())
def test_loss_gives_hand_computed_values(case, dtype):
    name, parameters, expected = case
    scores = np.array([SCORES], dtype)
    value = make_loss(name, **parameters).values(scores, np.zeros(1, np.int32))
    assert value.dtype == np.float64
    assert value[0] == pytest.approx(expected, rel=8 * float(np.finfo(dtype).eps))


def test_a_label_far_below_the_top_k_costs_one_and_pulls_at_nothing():
    """k = 1: u_(2) is the label's own score 0, whatever the largest is."""
    loss, label = make_loss("calibrated_topk_hinge"), np.zeros(1, np.int32)
    scores = np.array([[0.0, 5.0, -1.0]])
    assert loss.choose_masks(scores, label).masked.tolist() == [[1]]
    assert loss.values(scores, label)[0] == 1
    assert not loss.gradients(scores, label).any()


def test_the_label_is_masked_where_that_is_no_worse():
    """At equal scores the loss is 1 with any mask, and a hinge in y alone has a gradient."""
    loss, labels = make_loss("calibrated_topk_hinge", k=2), np.arange(4, dtype=np.int32)
    scores = np.zeros((4, 4))
    assert loss.choose_masks(scores, labels).masks_label.all()
    gradients = loss.gradients(scores, labels)
    np.testing.assert_array_equal(gradients[np.arange(4), labels], -1)


def test_truncated_entropy_masks_the_largest_other_classes():
    loss = make_loss("truncated_topk_entropy", k=3)
    scores = np.array([[9.0, 1.0, 3.0, 2.0, -1.0], [0.0, 5.0, 5.0, 5.0, 7.0]])
    masks = loss.choose_masks(scores, np.array([0, 4], np.int32))
    assert masks.masked[0].tolist() == [2, 3]
    assert set(masks.masked[1].tolist()) < {1, 2, 3}
    assert masks.masked.dtype == np.int32


def test_truncated_entropy_of_k_one_is_softmax(rng):
    truncated, softmax = make_loss("truncated_topk_entropy"), make_loss("softmax")
    scores, costs = rng.normal(size=(10, M)), rng.uniform(0.1, 10, 10)
    labels = rng.integers(0, M, 10).astype(np.int32)
    results = []
    for loss in (truncated, softmax):
        dual, delta = np.zeros((2, 10, M))
        value = loss.update_rows(scores.copy(), np.eye(10), dual, delta, labels, costs, 0, 10)
        terms = loss.make_feasible(dual.copy(), labels, costs)
        results.append((loss.values(scores, labels), value, dual, delta, terms))
    for ours, theirs in zip(*results, strict=True):
        np.testing.assert_array_equal(ours, theirs)


def test_masking_the_label_alone_leaves_the_hinge_of_all_others(rng):
    scores, costs = rng.normal(size=(10, M)), rng.uniform(0.1, 10, 10)
    labels = rng.integers(0, M, 10).astype(np.int32)
    for gamma in (0.0, 0.5):
        masked = make_loss("calibrated_topk_hinge", gamma=gamma)
        hinge = make_loss("topk_hinge_beta", gamma=gamma)
        masks = MaskedLabels(labels, labels[:, None].copy())
        np.testing.assert_array_equal(masked.values(scores, masks), hinge.values(scores, labels))
        dual = -rng.normal(size=(10, M))
        terms = [
            loss.make_feasible(dual.copy(), given, costs)
            for loss, given in ((masked, masks), (hinge, labels))
        ]
        np.testing.assert_array_equal(*terms)


def test_make_feasible_takes_the_mass_of_masked_classes_off_the_label():
    """C = 1: 0.4 goes, 0.3 and 0.1 stay, and D_i is the entropy of (0.6, 0.3, 0.1)."""
    dual = np.array([[0.8, -0.4, -0.3, -0.1]])
    masks = MaskedLabels(np.zeros(1, np.int32), np.array([[1]], np.int32))
    terms = make_loss("truncated_topk_entropy", k=2).make_feasible(dual, masks, np.ones(1))
    np.testing.assert_allclose(dual, [[0.4, 0, -0.3, -0.1]], atol=1e-15)
    assert terms[0] == pytest.approx(-sum(p * LOG(p) for p in (0.6, 0.3, 0.1)))


def test_a_lifted_row_with_no_class_left_has_a_constant_loss_and_no_dual():
    """k = m - 1, all others masked: the loss is 1 whatever the scores, and D_i = C."""
    loss = make_loss("calibrated_topk_hinge", k=2)
    masks = MaskedLabels(np.zeros(1, np.int32), np.array([[1, 2]], np.int32))
    scores, costs = np.array([[-3.0, 1.0, 2.0]]), np.array([5.0])
    assert loss.values(scores, masks)[0] == 1
    dual, delta = np.zeros((2, 1, 3))
    assert loss.update_rows(scores, np.ones((1, 1)), dual, delta, masks, costs, 0, 1) == 5
    assert not dual.any()
    assert loss.make_feasible(dual, masks, costs)[0] == 5


@every_nonconvex_loss
def test_duals_of_the_start_are_feasible_but_for_the_masked_classes(loss, rng):
    masks, costs = random_labels(loss, rng, 20, M), rng.uniform(0.1, 10, 20)
    dual = rng.normal(size=(20, M)) * costs[:, None]
    assert loss.convex_start.convex
    loss.convex_start.make_feasible(dual, masks.labels, costs)
    expected = dual.copy()
    np.put_along_axis(expected, masks.masked, 0, axis=1)
    expected[np.arange(20), masks.labels] = 0
    expected[np.arange(20), masks.labels] = -expected.sum(axis=1)
    loss.make_feasible(dual, masks, costs)
    np.testing.assert_allclose(dual, expected, atol=1e-14 * costs.max())


@every_nonconvex_loss
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_an_update_frees_masked_classes_of_their_duals(loss, dtype, rng):
    """Duals that belong to other masks: what a class had is in the change of its row."""
    n = 12
    labels = random_labels(loss, rng, n, M)
    others = loss.choose_masks(rng.normal(size=(n, M)), labels.labels)
    costs = np.full(n, 2.0)
    dual = rng.normal(size=(n, M))
    loss.make_feasible(dual, others, costs)
    before, dual = dual.astype(dtype), dual.astype(dtype)
    X = rng.normal(size=(n, 4)).astype(dtype)
    delta = np.empty_like(dual)
    scores = (X @ (X.T @ dual)).astype(dtype)
    loss.update_rows(scores, X @ X.T, dual, delta, labels, costs.astype(dtype), 0, n)
    for i in range(n):
        masked = np.setdiff1d(labels.masked[i], labels.labels[i])
        assert not dual[i, masked].any()
        np.testing.assert_array_equal(delta[i, masked], -before[i, masked])
    np.testing.assert_allclose(dual.sum(axis=1), 0, atol=16 * float(np.finfo(dtype).eps))


def train_masked(loss, X, masks, costs, dual, *, n_passes, tol):
    """Solve a masked problem from feasible duals; return weights, duals and certificate."""
    conversion = RowConversion(n_features=D, dtype=np.dtype(float))
    updater = BlockUpdater(loss, conversion, M, 32)
    dual = dual.copy()
    loss.make_feasible(dual, masks, costs)
    W = X.T @ dual
    for n in range(n_passes):
        order = np.random.default_rng(n).permutation(N)
        for start in range(0, N, 32):
            updater.update(X, masks, costs, dual, order[start : start + 32], W, 1.0)
        if n % 10 < 9:
            continue
        sums = CertificateSums(loss, conversion, W)
        sums.add(X, masks, costs, dual)
        if sums.certificate(tol).certified:
            break
    return W, dual, sums.certificate(tol)


@every_nonconvex_loss
def test_choosing_masks_and_solving_by_turns_never_raises_the_objective(loss):
    X, y = testing.make_features(N, D, M, seed=6)
    X, costs, tol = X.astype(float), np.full(N, 0.5), 3e-3
    masks = loss.choose_masks(np.zeros((N, M)), y)
    dual, objectives = np.zeros((N, M)), []
    for _ in range(4):
        W, dual, certificate = train_masked(loss, X, masks, costs, dual, n_passes=300, tol=tol)
        assert certificate.certified
        # What is solved lies nowhere below the loss, and met it where its masks were chosen.
        objectives.append(costs @ loss.values(X @ W, y) + 0.5 * np.sum(W**2))
        assert objectives[-1] <= certificate.primal * (1 + 1e-12)
        masks = loss.choose_masks(X @ W, y)
    assert (np.diff(objectives) <= tol * np.array(objectives[:-1])).all()
    assert objectives[-1] < objectives[0] or loss.n_masked == 0


@every_nonconvex_loss
def test_masked_optimum_is_that_of_a_convex_solver(loss, rng):
    X, _ = testing.make_features(N, D, M, seed=6)
    X = X.astype(float)
    masks = random_labels(loss, rng, N, M)
    costs = rng.choice([0.0, 0.5, 1.0], N)
    _, _, certificate = train_masked(
        loss, X, masks, costs, np.zeros((N, M)), n_passes=500, tol=1e-4
    )
    W = cp.Variable((D, M))
    losses = [
        c * define_loss(loss, x @ W, label)
        for x, label, c in zip(X, masks, costs, strict=True)
        if c > 0
    ]
    problem = cp.Problem(cp.Minimize(cp.sum(cp.hstack(losses)) + 0.5 * cp.sum_squares(W)))
    optimum = problem.solve(solver=cp.CLARABEL)
    assert certificate.certified
    # The solver's own tolerance is far below the gap.
    slack = 1e-7 * optimum
    assert certificate.dual_value - slack <= optimum <= certificate.primal + slack
