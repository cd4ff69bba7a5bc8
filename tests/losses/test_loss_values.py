"""Values worked out by hand. The label is the first class, with score 0."""

import numpy as np
import pytest

from dtopk.losses import make_loss

LOG = np.log

# h = (1.5, 0.5, -1) for the scores (0, 0.5, -0.5, -2).
SCORES = [0.0, 0.5, -0.5, -2.0]
VALUES = {
    # k = 1: the largest margin.
    "alpha, k = 1": ("topk_hinge_alpha", {"k": 1}, 1.5),
    "incl, k = 1": ("topk_hinge_alpha_incl", {"k": 1}, 1.5),
    "beta, k = 1": ("topk_hinge_beta", {"k": 1}, 1.5),
    # (1.5 + 0.5) / 2.
    "alpha, k = 2": ("topk_hinge_alpha", {"k": 2}, 1.0),
    "incl, k = 2": ("topk_hinge_alpha_incl", {"k": 2}, 1.0),
    "beta, k = 2": ("topk_hinge_beta", {"k": 2}, 1.0),
    # alpha takes the negative margin in, the label's margin 0 takes its place in incl,
    # and beta clips it: (1.5 + 0.5 - 1) / 3 and (1.5 + 0.5 + 0) / 3.
    "alpha, k = 3": ("topk_hinge_alpha", {"k": 3}, 1 / 3),
    "incl, k = 3": ("topk_hinge_alpha_incl", {"k": 3}, 2 / 3),
    "beta, k = 3": ("topk_hinge_beta", {"k": 3}, 2 / 3),
    # k = 1, x in the simplex of radius 1: max 1.5 x1 + 0.5 x2 - gamma/2 |x|^2 with gamma = 2;
    # x1 + x2 = 1 gives x1 = 3/4: (9 + 1)/8 - (9 + 1)/16.
    "lapin, k = 1": ("topk_hinge_beta", {"k": 1, "gamma": 2.0}, 0.625),
    # With the square of the sum only the first is worth its cost: max 1.5 x1 - 2 x1^2 at
    # x1 = 3/8, where the slope along x2 is 0.5 - 2 x1 < 0.
    "moreau, k = 1": ("topk_hinge_beta", {"k": 1, "gamma": 2.0, "smoothing": "moreau"}, 0.28125),
    # k = 2, alpha: both at s/2 = c, max 2 c - 2 c^2 with c <= 1/2 (gamma = 2).
    "lapin, k = 2": ("topk_hinge_alpha", {"k": 2, "gamma": 2.0}, 0.5),
    # The square of the sum 2 c costs 4 c^2 more: c = 1/6. The threshold t = 0.5/gamma - c is
    # above the third class's -1/gamma, which stays out.
    "moreau, k = 2": (
        "topk_hinge_alpha",
        {"k": 2, "gamma": 2.0, "smoothing": "moreau"},
        1 / 6,
    ),
    "softmax": ("softmax", {}, LOG(1 + np.exp(0.5) + np.exp(-0.5) + np.exp(-2.0))),
}


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("case", VALUES.values(), ids=VALUES.keys())
def test_loss_gives_hand_computed_values(case, dtype):
    name, parameters, expected = case
    scores = np.array([SCORES], dtype)
    value = make_loss(name, **parameters).values(scores, np.zeros(1, np.int32))
    assert value.dtype == np.float64
    assert value[0] == pytest.approx(expected, rel=8 * float(np.finfo(dtype).eps))


def test_topk_hinge_alpha_counts_a_negative_margin_that_the_inclusive_one_leaves_out():
    """h = (2, -3, -3), k = 2: T_2 = -1, T_1 = 2."""
    scores, label = np.array([[0.0, 1.0, -4.0, -4.0]]), np.zeros(1, np.int32)
    assert make_loss("topk_hinge_alpha", k=2).values(scores, label)[0] == 0
    assert make_loss("topk_hinge_alpha_incl", k=2).values(scores, label)[0] == 1
    assert make_loss("topk_hinge_beta", k=2).values(scores, label)[0] == 1


def test_softmax_of_two_classes_is_the_logistic_loss():
    """log(1 + e^-3) for a margin of 3."""
    value = make_loss("softmax").values(np.array([[1.0, 4.0]]), np.ones(1, np.int32))
    assert value[0] == pytest.approx(np.log1p(np.exp(-3)))


def test_softmax_of_scores_ten_thousand_apart_is_their_difference():
    scores = np.array([[1e4, 0.0, -1e4]])
    values = [make_loss("softmax").values(scores, np.array([y], np.int32))[0] for y in range(3)]
    np.testing.assert_allclose(values, [0, 1e4, 2e4], atol=1e-300)


def test_softmax_gradient_is_the_probabilities_less_the_label():
    """Scores log 1, log 2, log 5: p = (1, 2, 5)/8."""
    scores = np.log([[1.0, 2.0, 5.0]])
    loss = make_loss("softmax")
    gradient = loss.gradients(scores, np.array([1], np.int32))
    np.testing.assert_allclose(gradient[0], [1 / 8, 2 / 8 - 1, 5 / 8], rtol=1e-14)
    np.testing.assert_allclose(loss.probabilities(scores)[0], [1 / 8, 2 / 8, 5 / 8], rtol=1e-14)


def test_probabilities_sum_to_one_at_any_scores():
    loss = make_loss("softmax")
    for dtype in (np.float32, np.float64):
        p = loss.probabilities(np.array([[1e4, -1e4, 0], [-1e4, -1e4, -1e4]], dtype))
        np.testing.assert_allclose(p, [[1, 0, 0], [1 / 3] * 3], rtol=1e-6)


def test_hinge_update_of_one_row_gives_hand_computed_duals():
    """k = 1, two classes, K = 2, C = 10, W = 0.

    max_s s - K/2 (s^2 + s^2) = s - 2 s^2: s = 1/4, far from the bound.
    """
    loss = make_loss("topk_hinge_alpha")
    dual, delta = np.zeros((1, 2)), np.empty((1, 2))
    value = loss.update_rows(
        np.zeros((1, 2)),
        np.array([[2.0]]),
        dual,
        delta,
        np.zeros(1, np.int32),
        np.array([10.0]),
        0,
        1,
    )
    np.testing.assert_allclose(dual, [[0.25, -0.25]])
    np.testing.assert_allclose(delta, dual)
    assert value == pytest.approx(0.25)


def test_softmax_update_of_a_row_without_curvature_is_the_softmax_of_its_scores():
    """K = 0, equal scores of four classes, C = 2: p = 1/4, a = -C p, D_i = C log 4."""
    dual, delta = np.zeros((1, 4)), np.empty((1, 4))
    value = make_loss("softmax").update_rows(
        np.zeros((1, 4)),
        np.zeros((1, 1)),
        dual,
        delta,
        np.array([1], np.int32),
        np.array([2.0]),
        0,
        1,
    )
    np.testing.assert_allclose(dual, [[-0.5, 1.5, -0.5, -0.5]])
    assert value == pytest.approx(2 * LOG(4))
