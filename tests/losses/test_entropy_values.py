"""Values and updates of the top-k entropy losses worked out by hand. The label is class 0."""

import numpy as np
import pytest

from dtopk.losses import make_loss

LOG, EXP = np.log, np.exp
LABEL = np.zeros(1, np.int32)

# b = (0.5, -0.5, -2): e^b = (1.65, 0.61, 0.14), the label's is 1.
SCORES = [0.0, 0.5, -0.5, -2.0]
VALUES = {
    "alpha, k = 1": ("topk_entropy_alpha", 1, LOG(1 + EXP(0.5) + EXP(-0.5) + EXP(-2.0))),
    "beta, k = 1": ("topk_entropy_beta", 1, LOG(1 + EXP(0.5) + EXP(-0.5) + EXP(-2.0))),
    # z = (0.69, 0.25, 0.06) without the cap 1/2: z_1 = 1/2, the others share 1/2. With Z their
    # sum of e^b, z_j = e^b / (2 Z) and <b, z> - <z, log z> = (0.5 + log 2)/2 + log(2 Z)/2.
    "alpha, k = 2": (
        "topk_entropy_alpha",
        2,
        LOG(1 + 2 * EXP(0.25) * (EXP(-0.5) + EXP(-2)) ** 0.5),
    ),
    # All three are 1/3: mean b + log 3.
    "alpha, k = 3": ("topk_entropy_alpha", 3, LOG(1 + 3 * EXP(-2 / 3))),
    # p = (0.29, 0.49, 0.18, 0.04): none is above 1/2.
    "beta, k = 2": ("topk_entropy_beta", 2, LOG(1 + EXP(0.5) + EXP(-0.5) + EXP(-2.0))),
    # p_1 = 1/3, the others and the label share 2/3: (0.5 + log 3)/3 + (2/3) log(Z / (2/3)).
    "beta, k = 3": (
        "topk_entropy_beta",
        3,
        (0.5 + LOG(3)) / 3 + 2 / 3 * LOG(1.5 * (1 + EXP(-0.5) + EXP(-2.0))),
    ),
}


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("case", VALUES.values(), ids=VALUES.keys())
def test_entropy_loss_gives_hand_computed_values(case, dtype):
    name, k, expected = case
    value = make_loss(name, k=k).values(np.array([SCORES], dtype), LABEL)
    assert value.dtype == np.float64
    assert value[0] == pytest.approx(expected, rel=8 * float(np.finfo(dtype).eps))


def test_alpha_gradient_gives_hand_computed_values():
    """e^b = (4, 1, 1), k = 2: z = (1/2, 1/4, 1/4), as 4 is more than 1 + 1.

    v = (log 4 + log 2)/2 + log(4)/2 = log(2^(5/2)), s = 2^2.5 / (1 + 2^2.5).
    """
    gradient = make_loss("topk_entropy_alpha", k=2).gradients(np.log([[1.0, 4, 1, 1]]), LABEL)
    s = 2**2.5 / (1 + 2**2.5)
    np.testing.assert_allclose(gradient[0], [-s, s / 2, s / 4, s / 4], rtol=1e-14)


def test_beta_gradient_gives_hand_computed_values():
    """e^b = (6, 1, 1), k = 2: the first has 1/2, as 6 is more than 3, and three share the rest."""
    gradient = make_loss("topk_entropy_beta", k=2).gradients(np.log([[1.0, 6, 1, 1]]), LABEL)
    np.testing.assert_allclose(gradient[0], [-5 / 6, 1 / 2, 1 / 6, 1 / 6], rtol=1e-14)


@pytest.mark.parametrize("name", ["topk_entropy_alpha", "topk_entropy_beta"])
def test_values_of_scores_ten_thousand_apart_are_exact(name):
    """k = 2 and one class 1e4 above the label and the rest: it counts for half.

    alpha: log(1 + 2 e^((1e4 + 0) / 2)), beta: 1e4 / 2 + log(2) / 2 + log(2 * 2) / 2 of the other
    half, which the label and the third class share. With the label 1e4 above, both are 0.
    """
    loss = make_loss(name, k=2)
    expected = 5e3 + (LOG(2) if name == "topk_entropy_alpha" else 1.5 * LOG(2))
    assert loss.values(np.array([[0.0, 1e4, 0.0]]), LABEL)[0] == pytest.approx(expected, rel=1e-15)
    assert loss.values(np.array([[1e4, 0.0, 0.0]]), LABEL)[0] == 0


# scores, K, a, D_i: C = 1.
UPDATES = {
    # k = 2 others, both s/2: log(s / (1-s)) + al (1 + 1/2) s = log 2 has s = 1/2 at this al.
    "alpha, all capped": (
        "topk_entropy_alpha",
        [0, 0, 0],
        4 / 3 * LOG(2),
        [1 / 2, -1 / 4, -1 / 4],
        1.5 * LOG(2),
    ),
    # x = (1/4, 1/8, 1/8): the free ones say al/8 - log 8 = -t, and with the sum of the
    # multipliers t/2 = al/2 + log 2 - b_1/2 + (al/4 - log 4)/2, so b_1 = 11/8 al - 3 log 2.
    "alpha, one capped": (
        "topk_entropy_alpha",
        [0, 2.5 * LOG(2), 0, 0],
        4 * LOG(2),
        [1 / 2, -1 / 4, -1 / 8, -1 / 8],
        1.75 * LOG(2),
    ),
    # x = (1/2, 1/8, 1/8): al (1/8 + 3/4) + log(1/8) - log(1/4) = 0.
    "beta, one capped": (
        "topk_entropy_beta",
        [0, 2, 0, 0],
        8 / 7 * LOG(2),
        [3 / 4, -1 / 2, -1 / 8, -1 / 8],
        1.75 * LOG(2),
    ),
    # The same equation with the first far from its cap 1/2: x = (1/4, 1/4), s = 1/2, and
    # al (1/4 + 1/2) + log(1/4) - log(1/2) = 0.
    "beta, none capped": (
        "topk_entropy_beta",
        [0, 0, 0],
        4 / 3 * LOG(2),
        [1 / 2, -1 / 4, -1 / 4],
        1.5 * LOG(2),
    ),
    # Without curvature the dual is minus the gradient: four equal classes share alike.
    "alpha, no curvature": ("topk_entropy_alpha", [1, 1, 1, 1], 0, [3 / 4] + [-1 / 4] * 3, LOG(4)),
    "beta, no curvature": ("topk_entropy_beta", [1, 1, 1, 1], 0, [3 / 4] + [-1 / 4] * 3, LOG(4)),
}


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("case", UPDATES.values(), ids=UPDATES.keys())
def test_entropy_update_gives_hand_computed_duals(case, dtype):
    name, scores, norm, expected, value = case
    dual = np.zeros((1, len(scores)), dtype)
    delta = np.empty_like(dual)
    got = make_loss(name, k=2).update_rows(
        np.array([scores], dtype),
        np.array([[norm]], dtype),
        dual,
        delta,
        LABEL,
        np.ones(1, dtype),
        0,
        1,
    )
    tolerance = 16 * float(np.finfo(dtype).eps)
    np.testing.assert_allclose(dual[0], expected, rtol=tolerance)
    np.testing.assert_array_equal(delta, dual)
    assert got == pytest.approx(value, rel=tolerance)
