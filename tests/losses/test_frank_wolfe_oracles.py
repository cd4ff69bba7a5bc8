"""What Frank-Wolfe's method asks of a loss: vertices, linear terms and the smoothing's square."""

import dataclasses

import numpy as np
import pytest

from dtopk import testing
from dtopk.losses import HingeOva, make_loss
from tests.loss_cases import loss_cases, loss_id, random_labels
from tests.losses.test_loss_contract import random_duals, scores_and_labels

N_CLASSES = 7
every_polyhedral_loss = pytest.mark.parametrize(
    "loss", [loss for loss in loss_cases(N_CLASSES) if loss.polyhedral], ids=loss_id
)
both_dtypes = pytest.mark.parametrize("dtype", [np.float32, np.float64], ids=["f4", "f8"])


def eps(dtype):
    return float(np.finfo(dtype).eps)


def plain(loss):
    """Return the loss without its smoothing, by another way than the loss itself."""
    if loss.name == "smooth_hinge_ova":
        return HingeOva()
    return dataclasses.replace(loss, gamma=0.0) if loss.smooth else loss


def squared(loss, labels):
    """Mark the coordinates that the smoothing squares."""
    marks = np.ones((len(labels), N_CLASSES), bool)
    if getattr(loss, "smoothing", "moreau") == "lapin":
        marks[np.arange(len(labels)), labels] = False
    return marks


@every_polyhedral_loss
@both_dtypes
def test_vertices_give_the_loss_without_its_smoothing(loss, dtype, rng):
    """With a = -C v, linear_terms(a) - <a, u> = C L(u): they are where the maximum is attained."""
    scores, labels = scores_and_labels(loss, rng)
    scores = scores.astype(dtype)
    costs = rng.uniform(0.1, 10, len(labels))
    vertices = loss.vertices(scores, labels)
    assert vertices.dtype == dtype
    dual = -costs[:, None] * vertices.astype(float)
    bound = loss.linear_terms(dual, labels, costs) - np.sum(dual * scores, axis=1)
    losses = [testing.loss_value(plain(loss), u, y) for u, y in zip(scores, labels, strict=True)]
    slack = 64 * eps(dtype) * costs * (1 + np.abs(scores).max(axis=1))
    assert (np.abs(costs * losses - bound) <= slack).all()


@every_polyhedral_loss
def test_vertices_are_in_the_domain(loss, rng):
    scores, labels = scores_and_labels(loss, rng)
    for u, label, vertex in zip(scores, labels, loss.vertices(scores, labels), strict=True):
        assert testing.infeasibility(loss, -vertex, label, 1.0) <= 8 * eps(float), u


@every_polyhedral_loss
def test_vertices_of_a_row_do_not_depend_on_the_rows_beside_it(loss, rng):
    scores, labels = scores_and_labels(loss, rng)
    together = loss.vertices(scores, labels)
    for i in range(0, len(scores), 3):
        rows = slice(i, i + 1)
        np.testing.assert_array_equal(loss.vertices(scores[rows], labels[rows]), together[rows])


@every_polyhedral_loss
@both_dtypes
def test_linear_terms_and_products_add_up_to_the_dual_terms(loss, dtype, rng):
    labels = random_labels(loss, rng, 40, N_CLASSES)
    costs = 10.0 ** rng.uniform(-6, 4, 40)
    dual, _ = random_duals(loss, rng, labels, costs)
    dual = dual.astype(dtype)
    terms = loss.linear_terms(dual, labels, costs)
    products = loss.smoothing_products(dual, dual, labels, costs)
    assert terms.dtype == products.dtype == np.float64
    rows = zip(dual, labels, costs, strict=True)
    expected = [testing.dual_term(loss, a, label, cost) for a, label, cost in rows]
    # Rows sum to zero but for rounding, which is in one sum of their entries and not in another.
    assert (np.abs(terms - products / 2 - expected) <= 64 * eps(dtype) * costs).all()
    if not loss.smooth:
        assert not products.any()


@every_polyhedral_loss
@both_dtypes
def test_the_smoothing_is_a_square_of_some_coordinates(loss, dtype, rng):
    labels = random_labels(loss, rng, 20, N_CLASSES)
    costs = np.where(np.arange(20) % 5, 10.0 ** rng.uniform(-3, 3, 20), 0.0)
    first, second, scores = rng.normal(size=(3, 20, N_CLASSES)).astype(dtype)
    gamma = getattr(loss, "gamma", 0.0)
    factors = np.divide(gamma, costs, out=np.zeros(20), where=costs > 0)[:, None]
    squares = factors * squared(loss, labels)
    expected = np.sum(squares * first.astype(float) * second, axis=1)
    given = loss.smoothing_products(first, second, labels, costs)
    np.testing.assert_allclose(given, expected, rtol=1e-13, atol=1e-14 * factors.max())
    shifted = scores.copy()
    loss.shift_scores(shifted, second, labels, costs.astype(dtype))
    tolerance = 4 * eps(dtype) * (1 + factors * np.abs(second))
    assert (np.abs(shifted - (scores + squares * second)) <= tolerance).all()
    np.testing.assert_array_equal(shifted[squares == 0], scores[squares == 0])


def test_a_loss_that_is_no_maximum_over_a_polytope_says_so():
    loss, labels, costs = make_loss("softmax"), np.zeros(1, np.int32), np.ones(1)
    rows = np.zeros((1, N_CLASSES))
    for ask in (
        lambda: loss.vertices(rows, labels),
        lambda: loss.shift_scores(rows, rows, labels, costs),
        lambda: loss.linear_terms(rows, labels, costs),
        lambda: loss.smoothing_products(rows, rows, labels, costs),
    ):
        with pytest.raises(ValueError, match=r"loss 'softmax' is not a maximum over a polytope"):
            ask()


def test_vertices_of_the_topk_hinges_give_hand_computed_weights():
    """h = (2, -3, -3) for the label 0, k = 2: alpha is 0, incl counts h_y = 0 in, beta one."""
    scores, labels = np.array([[0.0, 1.0, -4.0, -4.0]]), np.zeros(1, np.int32)
    expected = {
        "topk_hinge_alpha": [0, 0, 0, 0],
        "topk_hinge_alpha_incl": [-0.5, 0.5, 0, 0],
        "topk_hinge_beta": [-0.5, 0.5, 0, 0],
    }
    for name, vertex in expected.items():
        loss = make_loss(name, k=2, gamma=3.0)
        np.testing.assert_array_equal(loss.vertices(scores, labels)[0], vertex)
