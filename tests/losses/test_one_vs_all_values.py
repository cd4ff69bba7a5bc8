"""Values of the one-vs-all losses worked out by hand, and what is theirs alone."""

import numpy as np
import pytest

from dtopk.kernels import one_vs_all
from dtopk.kernels.one_vs_all import solve_logistic_row, update_rows_hinge_ova
from dtopk.losses import LabelSets, make_loss
from dtopk.testing.twins import twin_of

LOG = np.log
NAMES = ("hinge_ova", "smooth_hinge_ova", "logistic_ova")
both_dtypes = pytest.mark.parametrize("dtype", [np.float32, np.float64], ids=["f4", "f8"])

SCORES = [0.5, -2.0, 0.0]
# 1 - z u is (0.5, 3, 1) for a label and (1.5, -1, 1) for a class that is none.
VALUES = {
    "hinge, first class": ("hinge_ova", {}, [0], 0.5 + 0 + 1),
    "hinge, two labels": ("hinge_ova", {}, [0, 2], 0.5 + 0 + 1),
    "hinge, no label": ("hinge_ova", {}, [], 1.5 + 0 + 1),
    "hinge, all labels": ("hinge_ova", {}, [0, 1, 2], 0.5 + 3 + 1),
    # h^2/2 up to h = 1, h - 1/2 above.
    "smooth, gamma = 1": ("smooth_hinge_ova", {}, [0], 0.125 + 0 + 0.5),
    "smooth, gamma = 1, no label": ("smooth_hinge_ova", {}, [], 1.0 + 0 + 0.5),
    # h - 1/8 above h = 1/4.
    "smooth, gamma = 1/4": ("smooth_hinge_ova", {"gamma": 0.25}, [0], 0.375 + 0 + 0.875),
    # h^2/8 up to h = 4.
    "smooth, gamma = 4": ("smooth_hinge_ova", {"gamma": 4.0}, [1], (2.25 + 9 + 1) / 8),
    "logistic, first class": (
        "logistic_ova",
        {},
        [0],
        LOG(1 + np.exp(-0.5)) + LOG(1 + np.exp(-2.0)) + LOG(2),
    ),
    "logistic, two labels": (
        "logistic_ova",
        {},
        [1, 2],
        LOG(1 + np.exp(0.5)) + LOG(1 + np.exp(2.0)) + LOG(2),
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
    assert value[0] == pytest.approx(expected, rel=8 * np.finfo(float).eps)


def test_a_confident_row_keeps_the_digits_of_its_small_loss():
    """log(1 + e^-40) of each of three classes, at a size that 1 + e^-40 has lost."""
    value = make_loss("logistic_ova").values(np.array([[40.0, -40.0, -40.0]]), one_set(0))
    assert value[0] == pytest.approx(3 * np.log1p(np.exp(-40.0)), rel=1e-14)


@pytest.mark.parametrize("name", NAMES)
def test_gradient_of_a_label_is_minus_that_of_another_class_at_the_opposite_score(name):
    """The loss of a class is one function of z u."""
    scores = np.linspace(-3, 3, 7)[None]
    loss = make_loss(name)
    label, none = loss.gradients(scores, one_set(*range(7))), loss.gradients(-scores, one_set())
    np.testing.assert_array_equal(label, -none)


def test_gradients_are_hand_computed():
    """h = (0.5, -1, 1): beta = (1, 0, 1), (0.5, 0, 1) for gamma = 1, and sigmoids of h - 1."""
    scores, labels = np.array([SCORES]), np.zeros(1, np.int32)
    np.testing.assert_array_equal(make_loss("hinge_ova").gradients(scores, labels), [[-1, 0, 1]])
    smooth = make_loss("smooth_hinge_ova").gradients(scores, labels)
    np.testing.assert_array_equal(smooth, [[-0.5, 0, 1]])
    expected = [[-1 / (1 + np.exp(0.5)), 1 / (1 + np.exp(2.0)), 0.5]]
    logistic = make_loss("logistic_ova").gradients(scores, labels)
    np.testing.assert_allclose(logistic, expected, rtol=1e-15)


@both_dtypes
def test_hinge_update_gives_hand_computed_duals(dtype):
    """K = 2, W = 0: beta = min(1/K, C); with gamma/C = 1, 1/(K + 1)."""
    hinge, smooth = make_loss("hinge_ova"), make_loss("smooth_hinge_ova", gamma=10.0)
    dual, value = update(hinge, [0, 0, 0], 2, 10, one_set(1, 2), dtype)
    np.testing.assert_array_equal(dual, [-0.5, 0.5, 0.5])
    assert value == 1.5
    dual, value = update(hinge, [0, 0, 0], 2, 0.25, one_set(1, 2), dtype)
    np.testing.assert_array_equal(dual, [-0.25, 0.25, 0.25])
    assert value == 0.75
    dual, value = update(smooth, [0, 0, 0], 2, 10, one_set(1, 2), dtype)
    np.testing.assert_allclose(dual, [-1 / 3, 1 / 3, 1 / 3], rtol=1e-6)
    assert value == pytest.approx(1 - 0.5 * 3 / 9, rel=1e-6)


@both_dtypes
def test_hinge_update_of_a_row_without_curvature_goes_to_the_ends(dtype):
    """K = 0: beta is C where 1 - z q > 0 and 0 where it is not, whatever the size of C."""
    for cost in (1e-8, 1.0, 1e6):
        scores, labels = [2, 1, 1 - 1e-6, 0], one_set(0, 1, 2)
        dual, value = update(make_loss("hinge_ova"), scores, 0, cost, labels, dtype)
        np.testing.assert_array_equal(dual, np.array([0, 0, cost, -cost], dtype))
        assert value == 2 * float(dtype(cost))


@both_dtypes
def test_logistic_update_gives_hand_computed_duals(dtype):
    """x = 1/4 solves log(x/(1-x)) = -q - K C x with K C = 4 for q = log 3 - 1."""
    scores = [LOG(3) - 1, 1 - LOG(3), 1 - LOG(3)]
    dual, value = update(make_loss("logistic_ova"), scores, 2, 2, one_set(0), dtype)
    rtol = 8 * float(np.finfo(dtype).eps)
    np.testing.assert_allclose(dual, [0.5, -0.5, -0.5], rtol=rtol)
    assert value == pytest.approx(-2 * 3 * (0.25 * LOG(0.25) + 0.75 * LOG(0.75)), rel=rtol)


@both_dtypes
def test_logistic_update_of_a_row_without_curvature_is_the_sigmoid_of_its_scores(dtype):
    """K = 0 and scores of zero: x = 1/2, D_i = C m log 2."""
    dual, value = update(make_loss("logistic_ova"), [0, 0, 0, 0], 0, 2, one_set(), dtype)
    np.testing.assert_array_equal(dual, [-1, -1, -1, -1])
    assert value == pytest.approx(8 * LOG(2), rel=8 * float(np.finfo(dtype).eps))


def log_odds_problems(dtype):
    """The values of r for each of many al: all over, and where x is small or near 1/2."""
    sizes = 10.0 ** np.linspace(-12, 12, 193)
    for al in np.concatenate(([0.0], sizes)):
        at = np.linspace(-45, 45, 361)
        roots = at + al / (1 + np.exp(-at))
        far = np.concatenate((-sizes[::8], sizes[::8], [-1e4, 0.0, 1e4]))
        r = np.concatenate((roots, far, al / 2 + far, al + far)).astype(dtype)
        yield r, dtype(al)


def solve(r, al):
    w = np.empty_like(r)
    first, second = np.empty((2, r.size), np.float32)
    solve_logistic_row(r, al, first, second, w)
    return w


@both_dtypes
def test_solve_logistic_row_solves_its_equation(dtype):
    """In units of the rounding of its terms, divided by the slope."""
    eps = float(np.finfo(dtype).eps)
    for r, al in log_odds_problems(dtype):
        w = solve(r, al).astype(float)
        target = np.minimum(r, al - r).astype(float)
        assert (w <= 0).all()
        x = 1 / (1 + np.exp(-np.maximum(w, -700)))
        residual = w + float(al) * x - target
        slope = 1 + float(al) * x * (1 - x)
        size = np.abs(w) + float(al) * x + np.abs(target)
        # The solver stops within half a rounding of the root in w, which is relative to x.
        assert (np.abs(residual) / slope <= 8 * eps * (1 + size / slope)).all()


@both_dtypes
def test_solve_logistic_row_takes_few_sweeps(dtype):
    """Two steps of order three from the start are all that float32 needs, and float64 three."""
    close = 9e-3 if dtype == np.float32 else 1e-5
    allowed = 2 if dtype == np.float32 else 3
    for r, al in log_odds_problems(dtype):
        w = np.empty_like(r)
        first, second = np.empty((2, r.size), np.float32)
        one_vs_all._bound_log_odds(r, al, w)
        if al > one_vs_all._SMALL_CURVATURE:
            one_vs_all._start_log_odds(r, al, dtype(np.log(al)), first, second, w)
        moves = [one_vs_all._refine_log_odds(r, al, w) for _ in range(allowed)]
        # The sum of the fourth powers of all moves.
        assert moves[-1] <= close**4 * r.size


def test_logistic_update_equals_bracketed_roots(rng):
    loss = make_loss("logistic_ova")
    for cost in (1e-8, 1.0, 1e6):
        for norm in (0.0, 1e-6, 1.0, 1e3, 1e6):
            q = np.concatenate((rng.normal(size=20), 1e4 * rng.normal(size=10), np.zeros(3)))
            label = np.array([0, 3, 25, 32])
            dual, _ = update(loss, q, norm, cost, one_set(*label))
            expected = twin_of(loss).update_row(q, norm, label, cost)
            np.testing.assert_allclose(dual, expected, rtol=1e-11, atol=1e-290)


@pytest.mark.parametrize("name", NAMES)
def test_labels_may_begin_in_the_middle_of_the_indices(name, rng):
    sets = LabelSets.from_indicator(rng.random((9, 5)) < 0.4)
    scores = rng.normal(size=(9, 5))
    loss = make_loss(name)
    part = LabelSets(sets.indptr[4:8], sets.indices)
    np.testing.assert_array_equal(loss.values(scores, sets)[4:7], loss.values(scores[4:7], part))


def test_rows_that_did_not_change_are_not_counted(rng):
    """The scores of later rows are corrected by those that did only: delta of others is unread."""
    scores, gram = np.array([[5.0, -5.0], [0.0, 0.0]]), np.ones((2, 2))
    dual, delta = np.zeros((2, 2)), np.empty((2, 2))
    sets = LabelSets.from_labels(np.zeros(2, np.int32))
    costs = np.ones(2)
    update_rows_hinge_ova(scores, gram, dual, delta, sets.indptr, sets.indices, costs, 0.0, 0, 2)
    np.testing.assert_array_equal(delta, [[0, 0], [1, -1]])
    np.testing.assert_array_equal(scores, [[5, -5], [0, 0]])


def test_the_smooth_hinge_refuses_a_gamma_of_zero():
    expected = (
        r"gamma must be above 0 for loss 'smooth_hinge_ova', got 0\.0\. "
        r"Loss 'hinge_ova' is the one without smoothing\."
    )
    with pytest.raises(ValueError, match=expected):
        make_loss("smooth_hinge_ova", gamma=0.0)


@pytest.mark.parametrize("gamma", [-1e-9, np.nan, np.inf])
def test_the_smooth_hinge_refuses_a_gamma_that_is_negative_or_not_finite(gamma):
    with pytest.raises(ValueError, match=r"gamma must be finite and at least 0, got"):
        make_loss("smooth_hinge_ova", gamma=gamma)


def test_the_plain_hinge_takes_no_gamma():
    with pytest.raises(
        ValueError, match=r"gamma must be left out for loss 'hinge_ova', got 1\.0\."
    ):
        make_loss("hinge_ova", gamma=1.0)


def test_one_vs_all_losses_say_what_they_are():
    for name in NAMES:
        loss = make_loss(name)
        assert loss.targets == ("multiclass", "multilabel")
        assert not loss.compares_classes
        assert not loss.has_probabilities
        assert not loss.proper_sets
        assert loss.smooth == (name != "hinge_ova")
    assert make_loss("smooth_hinge_ova").gamma == 1
