"""What holds for every registered loss, whatever its parameters."""

import pickle

import numpy as np
import pytest

from dtopk import testing
from dtopk.losses import LabelSets
from tests.loss_cases import loss_cases, loss_id, random_labels

N_CLASSES = 7
every_loss = pytest.mark.parametrize("loss", loss_cases(N_CLASSES), ids=loss_id)
every_smooth_loss = pytest.mark.parametrize(
    "loss", [loss for loss in loss_cases(N_CLASSES) if loss.smooth], ids=loss_id
)
every_nonconvex_loss = pytest.mark.parametrize(
    "loss", [loss for loss in loss_cases(N_CLASSES) if not loss.convex], ids=loss_id
)
both_dtypes = pytest.mark.parametrize("dtype", [np.float32, np.float64], ids=["f4", "f8"])


def eps(dtype):
    return float(np.finfo(dtype).eps)


VERTEX_ROUNDING = 64 * eps(float)
"""D_i is of the size of C, and zero at some vertices, next to which it is rounding: that of a mass
times its logarithm, which is 36 for a mass of that size."""


def scores_and_labels(loss, rng, n_classes=N_CLASSES):
    """Scores of every kind: random at four scales, ties, all equal, far apart."""
    random = [scale * rng.normal(size=(6, n_classes)) for scale in (1e-3, 1.0, 30.0, 1e4)]
    ties = np.round(rng.normal(size=(12, n_classes)))
    equal = np.full((3, n_classes), 0.5) * np.array([[0.0], [1.0], [-1e4]])
    scores = np.concatenate([*random, ties, equal])
    return scores, random_labels(loss, rng, len(scores), n_classes)


def random_duals(loss, rng, labels, costs, n_classes=N_CLASSES):
    """Feasible duals inside the domain and on its border, with their D_i."""
    n = len(labels)
    dual = -costs[:, None] * rng.normal(size=(n, n_classes)) * 10.0 ** rng.integers(-2, 2, (n, 1))
    return dual, loss.make_feasible(dual, labels, costs)


@every_loss
@both_dtypes
def test_values_equal_the_definition(loss, dtype, rng):
    scores, labels = scores_and_labels(loss, rng)
    scores = scores.astype(dtype)
    expected = [testing.loss_value(loss, u, y) for u, y in zip(scores, labels, strict=True)]
    # Rounding of the scores, and of sums over the classes.
    tolerance = 16 * eps(dtype) * (1 + np.abs(scores).max(axis=1))
    assert (np.abs(loss.values(scores, labels) - expected) <= tolerance).all()


@every_smooth_loss
def test_gradients_equal_differences_of_the_values(loss, rng):
    scores = rng.normal(size=(20, N_CLASSES))
    labels = random_labels(loss, rng, 20, N_CLASSES)
    step = 1e-5
    differences = np.empty_like(scores)
    for j in range(N_CLASSES):
        move = step * np.eye(N_CLASSES)[j]
        above, below = loss.values(scores + move, labels), loss.values(scores - move, labels)
        differences[:, j] = (above - below) / (2 * step)
    # The gradient is Lipschitz: a kink of it inside the step costs at most this.
    tolerance = 4 * N_CLASSES * step / getattr(loss, "gamma", 1.0)
    np.testing.assert_allclose(loss.gradients(scores, labels), differences, atol=tolerance)


@every_loss
def test_gradients_give_lower_bounds_of_the_loss_everywhere(loss, rng):
    scores, labels = scores_and_labels(loss, rng)
    values, gradients = loss.values(scores, labels), loss.gradients(scores, labels)
    for scale in (1e-3, 1.0, 100.0):
        move = scale * rng.normal(size=scores.shape)
        bound = values + np.sum(gradients * move, axis=1)
        slack = 64 * eps(float) * (1 + np.abs(scores).max(axis=1) + scale)
        assert (loss.values(scores + move, labels) >= bound - slack).all()


@every_loss
@both_dtypes
def test_gradients_sum_to_zero_where_classes_are_compared(loss, dtype, rng):
    scores, labels = scores_and_labels(loss, rng)
    sums = loss.gradients(scores.astype(dtype), labels).sum(axis=1, dtype=float)
    if loss.compares_classes:
        np.testing.assert_allclose(sums, 0, atol=16 * eps(dtype))
    else:
        assert np.abs(sums).max() > 0.1


@every_loss
def test_gradients_reach_equality_in_the_inequality_of_fenchel_and_young(loss, rng):
    """C L(u) = <u, C v> + D_i(-C v) at a gradient v, and v is in the domain."""
    scores, labels = scores_and_labels(loss, rng)
    costs = rng.uniform(0.1, 10, len(labels))
    gradients = loss.gradients(scores, labels)
    dual = -costs[:, None] * gradients
    terms = loss.make_feasible(dual, labels, costs)
    np.testing.assert_allclose(dual, -costs[:, None] * gradients, atol=1e-13 * costs.max())
    bound = costs * np.sum(scores * gradients, axis=1) + terms
    slack = 64 * eps(float) * costs * (1 + np.abs(scores).max(axis=1))
    assert (np.abs(costs * loss.values(scores, labels) - bound) <= slack).all()


@every_loss
def test_no_feasible_dual_exceeds_the_loss(loss, rng):
    """C L(u) >= <u, -a> + D_i(a): weak duality, row by row."""
    scores, labels = scores_and_labels(loss, rng)
    costs = 10.0 ** rng.uniform(-8, 6, len(labels))
    values = costs * loss.values(scores, labels)
    for _ in range(10):
        dual, terms = random_duals(loss, rng, labels, costs)
        bound = terms - np.sum(dual * scores, axis=1)
        slack = 64 * eps(float) * costs * (1 + np.abs(scores).max(axis=1))
        assert (bound <= values + slack).all()


@every_loss
def test_make_feasible_puts_every_row_into_its_domain(loss, rng):
    _, labels = scores_and_labels(loss, rng)
    costs = 10.0 ** rng.uniform(-8, 6, len(labels))
    for _ in range(10):
        dual, terms = random_duals(loss, rng, labels, costs)
        for a, term, label, cost in zip(dual, terms, labels, costs, strict=True):
            assert testing.infeasibility(loss, a, label, cost) <= 16 * eps(float)
            expected = testing.dual_term(loss, a, label, cost)
            assert term == pytest.approx(expected, rel=1e-12, abs=VERTEX_ROUNDING * cost)


@every_loss
def test_make_feasible_leaves_feasible_rows_as_they_are(loss, rng):
    _, labels = scores_and_labels(loss, rng)
    costs = 10.0 ** rng.uniform(-8, 6, len(labels))
    dual, terms = random_duals(loss, rng, labels, costs)
    again = dual.copy()
    values = loss.make_feasible(again, labels, costs)
    assert (np.abs(again - dual).max(axis=1) <= 16 * eps(float) * costs).all()
    slack = 1e-12 * np.abs(terms) + VERTEX_ROUNDING * costs
    assert (np.abs(values - terms) <= slack).all()


@every_loss
def test_make_feasible_zeroes_rows_that_do_not_count(loss, rng):
    dual = rng.normal(size=(3, N_CLASSES))
    terms = loss.make_feasible(dual, random_labels(loss, rng, 3, N_CLASSES), np.zeros(3))
    assert not dual.any()
    assert not terms.any()


@every_nonconvex_loss
@both_dtypes
def test_values_without_masks_equal_the_definition(loss, dtype, rng):
    scores, masks = scores_and_labels(loss, rng)
    scores, labels = scores.astype(dtype), masks.labels
    expected = [testing.loss_value(loss, u, y) for u, y in zip(scores, labels, strict=True)]
    tolerance = 16 * eps(dtype) * (1 + np.abs(scores).max(axis=1))
    assert (np.abs(loss.values(scores, labels) - expected) <= tolerance).all()


@every_nonconvex_loss
def test_gradients_without_masks_equal_differences_of_the_values(loss, rng):
    """At random scores, which are further than a step from where the masks or a hinge change."""
    scores, step = rng.normal(size=(20, N_CLASSES)), 1e-6
    labels = random_labels(loss, rng, 20, N_CLASSES).labels
    differences = np.empty_like(scores)
    for j in range(N_CLASSES):
        move = step * np.eye(N_CLASSES)[j]
        above, below = loss.values(scores + move, labels), loss.values(scores - move, labels)
        differences[:, j] = (above - below) / (2 * step)
    np.testing.assert_allclose(loss.gradients(scores, labels), differences, atol=1e-5)


@every_nonconvex_loss
@both_dtypes
def test_masked_losses_majorise_and_the_chosen_one_touches(loss, dtype, rng):
    scores, masks = scores_and_labels(loss, rng)
    scores, labels = scores.astype(dtype), masks.labels
    values = loss.values(scores, labels)
    slack = 16 * eps(dtype) * (1 + np.abs(scores).max(axis=1))
    assert (loss.values(scores, masks) >= values - slack).all()
    chosen = loss.choose_masks(scores, labels)
    assert chosen.masked.shape == (len(scores), loss.n_masked)
    assert all(len(np.unique(row)) == loss.n_masked for row in chosen.masked)
    np.testing.assert_array_equal(loss.values(scores, chosen), values)
    np.testing.assert_array_equal(loss.gradients(scores, chosen), loss.gradients(scores, labels))


@pytest.mark.parametrize(
    "loss",
    [
        loss
        for loss in loss_cases(2)
        if loss.compares_classes and not np.size(getattr(loss, "label_cost", ()))
    ],
    ids=loss_id,
)
def test_a_loss_of_two_classes_is_that_of_their_difference(loss, rng):
    scores = rng.normal(size=(20, 2))
    labels = rng.integers(0, 2, 20).astype(np.int32)
    others = 1 - labels
    if "multiclass" not in loss.targets:
        labels, others = LabelSets.from_labels(labels), LabelSets.from_labels(others)
    shifted = scores - scores[:, :1]
    np.testing.assert_allclose(
        loss.values(scores, labels), loss.values(shifted, labels), atol=1e-14
    )
    flipped = loss.values(scores[:, ::-1].copy(), others)
    np.testing.assert_allclose(loss.values(scores, labels), flipped, atol=1e-14)


@pytest.mark.parametrize(
    "loss", [loss for loss in loss_cases(N_CLASSES) if len(loss.targets) == 2], ids=loss_id
)
def test_a_set_of_one_label_is_that_label(loss, rng):
    labels = rng.integers(0, N_CLASSES, 20).astype(np.int32)
    sets = LabelSets.from_labels(labels)
    scores, costs = rng.normal(size=(20, N_CLASSES)), rng.uniform(0.1, 10, 20)
    np.testing.assert_array_equal(loss.values(scores, labels), loss.values(scores, sets))
    np.testing.assert_array_equal(loss.gradients(scores, labels), loss.gradients(scores, sets))
    dual = rng.normal(size=(20, N_CLASSES))
    terms = [loss.make_feasible(dual.copy(), given, costs) for given in (labels, sets)]
    np.testing.assert_array_equal(*terms)


@every_loss
def test_a_loss_pickles(loss):
    again = pickle.loads(pickle.dumps(loss))
    assert again == loss
    assert hash(again) == hash(loss)
    assert type(again) is type(loss)
