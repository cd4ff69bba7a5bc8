"""Values of the multilabel losses worked out by hand, and what is theirs alone."""

import numpy as np
import pytest

from dtopk.losses import LabelSets, make_loss
from dtopk.testing import row_gap
from dtopk.testing.twins import twin_of

LOG = np.log
both_dtypes = pytest.mark.parametrize("dtype", [np.float32, np.float64], ids=["f4", "f8"])

SCORES = [2.0, 0.5, 1.0, -1.0]
VALUES = {
    # The lowest label has 0.5, the highest other class 1.
    "hinge": ("multilabel_hinge", {}, [0, 1], 1.5),
    "hinge, one label": ("multilabel_hinge", {}, [2], 2.0),
    "hinge, all but one": ("multilabel_hinge", {}, [0, 1, 2], 0.0),
    "hinge, all but the highest": ("multilabel_hinge", {}, [1, 2, 3], 4.0),
    # 1/2 - u = (-1.5, 0), 1/2 + u = (1.5, -0.5). A pair (s, s): 1.5 s - s^2 gamma, s <= 1, with
    # gamma = 1: s = 3/4; the thresholds -3/4 and 3/4 leave -1.5 and -0.5 out. 9/16.
    "smooth, a pair": ("multilabel_hinge", {"gamma": 1.0}, [0, 1], 0.5625),
    # gamma = 1/2: s = 1, at the radius: 1.5 - 0.5.
    "smooth, a pair at the radius": ("multilabel_hinge", {"gamma": 0.5}, [0, 1], 1.0),
    # gamma = 4, all labels but class 0: b = (0, -0.5, 1.5), c = 2.5. Over gamma, t + s = 0 at
    # t = (1.5 + 0 - 2.5)/3/4 = -1/12 with two labels in, and -0.5/4 = -1/8 stays out.
    # n = 2.5/4 - 1/12 = 13/24, p = (1/12, 11/24). <b, p> + <c, n> = 33/48 + 65/48 = 98/48, less
    # 2 (p^2 + n^2) = 2 (4 + 121 + 169)/576 = 49/48.
    "smooth, two labels in": ("multilabel_hinge", {"gamma": 4.0}, [1, 2, 3], 49 / 48),
    "softmax": (
        "multilabel_softmax",
        {},
        [0, 3],
        LOG(np.exp(2) + np.exp(0.5) + np.exp(1) + np.exp(-1)) - 0.5,
    ),
}


def one_set(*labels):
    return LabelSets(np.array([0, len(labels)]), np.array(labels, np.int32))


def update(loss, scores, norm, cost, labels, dtype=np.float64):
    """Update one row whose dual is zero; return its dual and D_i."""
    scores = np.array([scores], dtype)
    dual, delta = np.zeros_like(scores), np.empty_like(scores)
    value = loss.update_rows(
        scores, np.full((1, 1), norm, dtype), dual, delta, labels, np.array([cost], dtype), 0, 1
    )
    np.testing.assert_array_equal(delta, dual)
    return dual[0], value


@both_dtypes
@pytest.mark.parametrize("case", VALUES.values(), ids=VALUES.keys())
def test_loss_gives_hand_computed_values(case, dtype):
    name, parameters, labels, expected = case
    value = make_loss(name, **parameters).values(np.array([SCORES], dtype), one_set(*labels))
    assert value.dtype == np.float64
    assert value[0] == pytest.approx(expected, rel=8 * float(np.finfo(dtype).eps))


def test_hinge_subgradient_is_on_the_lowest_label_and_the_highest_other_class():
    loss = make_loss("multilabel_hinge")
    gradient = loss.gradients(np.array([SCORES]), one_set(0, 1))
    np.testing.assert_array_equal(gradient, [[0, -1, 1, 0]])
    assert not loss.gradients(np.array([SCORES]), one_set(0, 1, 2)).any()


def test_smooth_hinge_gradient_is_hand_computed():
    """The projection of the value's case of gamma = 4."""
    gradient = make_loss("multilabel_hinge", gamma=4.0).gradients(
        np.array([SCORES]), one_set(1, 2, 3)
    )
    np.testing.assert_allclose(gradient, [[13 / 24, -1 / 12, 0, -11 / 24]], rtol=1e-14)


def test_softmax_gradient_is_the_probabilities_less_those_of_the_labels():
    """Scores log 1, log 2, log 5: p = (1, 2, 5)/8."""
    gradient = make_loss("multilabel_softmax").gradients(LOG([[1.0, 2.0, 5.0]]), one_set(0, 2))
    np.testing.assert_allclose(gradient, [[1 / 8 - 1 / 2, 2 / 8, 5 / 8 - 1 / 2]], rtol=1e-14)


@both_dtypes
def test_hinge_update_gives_hand_computed_duals(dtype):
    """Two labels against one other class, K = 2, W = 0: p = (s/2, s/2), n = s.

    s - K/2 (s^2/2 + s^2) = s - 1.5 s^2 at s = 1/3; at C = 1/4 the radius binds.
    """
    loss = make_loss("multilabel_hinge")
    rtol = 8 * float(np.finfo(dtype).eps)
    dual, value = update(loss, [0, 0, 0], 2, 10, one_set(0, 2), dtype)
    np.testing.assert_allclose(dual, [1 / 6, -1 / 3, 1 / 6], rtol=rtol)
    assert value == pytest.approx(1 / 3, rel=rtol)
    dual, value = update(loss, [0, 0, 0], 2, 0.25, one_set(0, 2), dtype)
    np.testing.assert_allclose(dual, [1 / 8, -1 / 4, 1 / 8], rtol=rtol)
    assert value == pytest.approx(1 / 4, rel=rtol)


@both_dtypes
def test_smooth_hinge_update_gives_hand_computed_duals(dtype):
    """gamma/C = 1 adds one to K = 2: s - 1.5/2 (K + 1) s^2 at s = 2/9; D_i = s - 1.5/2 s^2."""
    loss = make_loss("multilabel_hinge", gamma=10.0)
    dual, value = update(loss, [0, 0, 0], 2, 10, one_set(0, 2), dtype)
    rtol = 8 * float(np.finfo(dtype).eps)
    np.testing.assert_allclose(dual, [1 / 9, -2 / 9, 1 / 9], rtol=rtol)
    assert value == pytest.approx(2 / 9 - 0.75 * 4 / 81, rel=rtol)


@both_dtypes
def test_hinge_update_of_a_row_without_curvature_puts_all_on_one_pair(dtype):
    """K = 0: the lowest label and the highest other class at C, if they break the margin."""
    for cost in (1e-8, 1.0, 1e6):
        dual, value = update(
            make_loss("multilabel_hinge"), [1, 2, 0.5, 0], 0, cost, one_set(0, 1), dtype
        )
        np.testing.assert_array_equal(dual, np.array([cost, 0, -cost, 0], dtype))
        assert value == dtype(cost)
    dual, value = update(make_loss("multilabel_hinge"), [2, 1, 0, -1], 0, 1, one_set(0, 1), dtype)
    assert not dual.any()
    assert value == 0


@both_dtypes
def test_softmax_update_of_a_row_without_curvature_is_the_softmax_of_its_scores(dtype):
    """K = 0, equal scores of four classes, C = 2: a = C (1_Y/2 - 1/4), D_i = C log 4."""
    dual, value = update(make_loss("multilabel_softmax"), [0, 0, 0, 0], 0, 2, one_set(1, 3), dtype)
    rtol = 8 * float(np.finfo(dtype).eps)
    np.testing.assert_allclose(dual, [-0.5, 0.5, -0.5, 0.5], rtol=rtol)
    assert value == pytest.approx(2 * LOG(4), rel=rtol)


@both_dtypes
def test_softmax_update_gives_hand_computed_duals(dtype):
    """p = (1, 1, 2)/4 and Y = {0, 1}: a/C = (1, 1, -2)/4; K C = 4 so that u = q + (1, 1, -2).

    At the optimum p is the softmax of u = (0, 0, log 2): q = (-1, -1, log 2 + 2).
    """
    dual, value = update(
        make_loss("multilabel_softmax"), [-1, -1, LOG(2) + 2], 2, 2, one_set(0, 1), dtype
    )
    rtol = 16 * float(np.finfo(dtype).eps)
    np.testing.assert_allclose(dual, [0.5, 0.5, -1], rtol=rtol)
    assert value == pytest.approx(2 * 1.5 * LOG(2), rel=rtol)


def problems(rng, n=60, m=6):
    labels = rng.integers(0, m, n).astype(np.int32)
    scores = rng.normal(size=(n, m)) * 10.0 ** rng.integers(-2, 3, (n, 1))
    return scores, labels, LabelSets.from_labels(labels), 10.0 ** rng.uniform(-4, 4, n)


def updated(loss, scores, norms, labels, costs):
    dual, delta = np.zeros_like(scores), np.empty_like(scores)
    gram = np.diag(norms)
    for _ in range(2):
        now = scores + norms[:, None] * dual
        value = loss.update_rows(now, gram, dual, delta, labels, costs, 0, len(scores))
    return dual, value


@pytest.mark.parametrize(
    ("multilabel", "multiclass"),
    [("multilabel_softmax", "softmax"), ("multilabel_hinge", "topk_hinge_alpha")],
)
def test_with_one_label_a_row_it_is_the_multiclass_loss(multilabel, multiclass, rng):
    ours, theirs = make_loss(multilabel), make_loss(multiclass)
    scores, labels, sets, costs = problems(rng)
    rtol = 1e-12 * (1 + np.abs(scores).max())
    np.testing.assert_allclose(ours.values(scores, sets), theirs.values(scores, labels), rtol=rtol)
    np.testing.assert_allclose(
        ours.gradients(scores, sets), theirs.gradients(scores, labels), rtol=rtol
    )
    norms = 10.0 ** rng.uniform(-3, 3, len(scores))
    dual, value = updated(ours, scores, norms, sets, costs)
    expected, expected_value = updated(theirs, scores, norms, labels, costs)
    assert np.abs((dual - expected) / costs[:, None]).max() <= 1e-11
    assert value == pytest.approx(expected_value, rel=1e-11)
    term = ours.make_feasible(dual, sets, costs)
    np.testing.assert_allclose(term, theirs.make_feasible(expected, labels, costs), rtol=1e-9)


@pytest.mark.parametrize("gamma", [0.0, 0.5])
def test_hinge_update_equals_a_slow_projection(gamma, rng):
    loss = make_loss("multilabel_hinge", gamma=gamma)
    for cost in (1e-8, 1e-2, 1.0, 1e6):
        for norm in (1e-6, 1.0, 1e3):
            for scale in (0.0, 1.0, 1e4):
                q = scale * rng.normal(size=9)
                label = np.flatnonzero(rng.permutation(9) < rng.integers(1, 9)).astype(np.int32)
                dual, _ = update(loss, q, norm, cost, one_set(*label))
                expected = twin_of(loss).update_row(q, norm, label, cost)
                size = np.abs(expected).max()
                np.testing.assert_allclose(dual, expected, rtol=0, atol=1e-12 * size)


@both_dtypes
@pytest.mark.parametrize("name", ["multilabel_hinge", "multilabel_softmax"])
def test_updates_close_the_gap_of_their_row_from_tiny_to_huge_curvature(name, dtype, rng):
    """K C from 1e-12 to 1e12, in units of the rounding of the scores at the new dual."""
    loss = make_loss(name)
    for exponent in range(-12, 13, 2):
        for cost in (1e-6, 1.0, 1e6):
            norm = float(dtype(10.0**exponent / cost))
            for scale in (0.0, 1.0, 1e4):
                q = (scale * rng.normal(size=8)).astype(dtype)
                label = np.flatnonzero(rng.permutation(8) < rng.integers(1, 8)).astype(np.int32)
                dual, _ = update(loss, q, norm, cost, one_set(*label), dtype)
                assert np.isfinite(dual).all()
                feasible = dual[None].astype(float)
                loss.make_feasible(feasible, one_set(*label), np.array([cost]))
                gap = row_gap(loss, feasible[0], q, norm, label, cost)
                size = cost * (40 + np.abs(q).max() + 2 * norm * cost)
                assert abs(gap) <= 64 * float(np.finfo(dtype).eps) * size


@pytest.mark.parametrize(
    ("name", "gamma"),
    [("multilabel_hinge", 0.0), ("multilabel_hinge", 0.5), ("multilabel_softmax", 0.0)],
)
def test_a_row_that_does_not_count_may_have_any_labels(name, gamma, rng):
    loss = make_loss(name, gamma=gamma)
    sets = LabelSets.from_indicator(np.array([[0, 0, 0], [1, 1, 1], [1, 0, 0]]))
    scores, costs = rng.normal(size=(3, 3)), np.array([0.0, 0.0, 1.0])
    dual, delta = rng.normal(size=(3, 3)), np.empty((3, 3))
    old = dual.copy()
    value = loss.update_rows(scores, np.eye(3), dual, delta, sets, costs, 0, 3)
    assert np.isfinite(value)
    assert not dual[:2].any()
    np.testing.assert_array_equal(delta[:2], -old[:2])
    terms = loss.make_feasible(old, sets, costs)
    assert not old[:2].any()
    assert not terms[:2].any()
    assert np.isfinite(costs @ loss.values(scores, sets))


@pytest.mark.parametrize("gamma", [-1e-9, np.nan, np.inf])
def test_the_multilabel_hinge_refuses_a_gamma_that_is_negative_or_not_finite(gamma):
    with pytest.raises(ValueError, match=r"gamma must be finite and at least 0, got"):
        make_loss("multilabel_hinge", gamma=gamma)


def test_the_multilabel_hinge_takes_no_kind_of_smoothing():
    expected = r"smoothing must be left out for loss 'multilabel_hinge', got 'moreau'\."
    with pytest.raises(ValueError, match=expected):
        make_loss("multilabel_hinge", smoothing="moreau")


def test_multilabel_losses_say_what_they_are():
    for name in ("multilabel_hinge", "multilabel_softmax"):
        loss = make_loss(name)
        assert loss.targets == ("multilabel",)
        assert loss.compares_classes
        assert loss.proper_sets
        assert not loss.has_probabilities
    assert not make_loss("multilabel_hinge").smooth
    assert make_loss("multilabel_hinge", gamma=1e-9).smooth
    assert make_loss("multilabel_softmax").smooth
