import dataclasses

import numpy as np
import pytest

from dtopk.losses import available, make_loss
from tests.loss_cases import loss_cases, loss_id

HINGES = ("topk_hinge_alpha", "topk_hinge_alpha_incl", "topk_hinge_beta")


def test_available_lists_what_make_loss_makes():
    for info in available():
        loss = make_loss(info.name)
        assert loss.name == info.name
        assert loss.kind == info.kind
        assert loss.parameters == info.parameters
        assert loss.summary == info.summary
        assert loss.convex is info.convex
        assert "sdca" in info.solvers
        assert info.smooth == ("gamma > 0" if info.name in HINGES else "always")


def test_a_loss_cannot_be_changed():
    with pytest.raises(dataclasses.FrozenInstanceError):
        make_loss("topk_hinge_alpha").k = 3


@pytest.mark.parametrize("name", HINGES)
def test_a_hinge_is_smooth_just_if_gamma_is_positive(name):
    assert not make_loss(name).smooth
    assert make_loss(name, gamma=1e-9).smooth


def test_softmax_is_smooth_and_has_probabilities():
    assert make_loss("softmax").smooth
    assert make_loss("softmax").has_probabilities


@pytest.mark.parametrize("name", HINGES)
def test_a_hinge_says_that_it_has_no_probabilities(name):
    loss = make_loss(name)
    assert not loss.has_probabilities
    with pytest.raises(ValueError, match=rf"loss '{name}' gives no probabilities\. Train with"):
        loss.probabilities(np.zeros((1, 2)))


@pytest.mark.parametrize(
    ("given", "near"),
    [
        ("topk_hinge", "topk_hinge_"),
        ("softmx", "softmax"),
        ("topk_hinge_alhpa", "topk_hinge_alpha"),
        ("topk_hinge_alpha_inc", "topk_hinge_alpha_incl"),
    ],
)
def test_an_unknown_loss_is_refused_with_the_nearest_name(given, near):
    with pytest.raises(ValueError, match=rf"loss '{given}' is unknown\. Did you mean '{near}"):
        make_loss(given)


@pytest.mark.parametrize("given", ["", "xyz", None, 3])
def test_an_unknown_loss_is_refused_with_the_names_there_are(given):
    expected = r"loss .* is unknown\. Available: 'softmax', 'topk_hinge_alpha', "
    with pytest.raises(ValueError, match=expected):
        make_loss(given)


@pytest.mark.parametrize("name", HINGES)
@pytest.mark.parametrize("k", [0, -1])
def test_k_below_one_is_refused(name, k):
    with pytest.raises(ValueError, match=rf"k must be at least 1, got {k}\."):
        make_loss(name, k=k)


@pytest.mark.parametrize("name", HINGES)
@pytest.mark.parametrize("k", [1.0, "1", True, None])
def test_k_that_is_no_integer_is_refused(name, k):
    with pytest.raises(TypeError, match=r"k must be an integer, got"):
        make_loss(name, k=k)


@pytest.mark.parametrize("name", HINGES)
def test_k_may_be_a_numpy_integer(name):
    assert make_loss(name, k=np.int64(3)).k == 3


@pytest.mark.parametrize("name", HINGES)
@pytest.mark.parametrize("gamma", [-1e-9, np.nan, np.inf, -np.inf])
def test_gamma_must_be_finite_and_not_negative(name, gamma):
    with pytest.raises(ValueError, match=r"gamma must be finite and at least 0, got"):
        make_loss(name, gamma=gamma)


@pytest.mark.parametrize("name", HINGES)
def test_an_unknown_smoothing_is_refused(name):
    with pytest.raises(ValueError, match=r"smoothing must be 'lapin' or 'moreau', got 'laplace'\."):
        make_loss(name, gamma=1.0, smoothing="laplace")


@pytest.mark.parametrize(
    ("parameter", "value"), [("k", 5), ("gamma", 1.0), ("smoothing", "moreau")]
)
def test_softmax_refuses_the_parameters_of_a_hinge(parameter, value):
    expected = rf"{parameter} must be left out for loss 'softmax', got {value!r}\."
    with pytest.raises(ValueError, match=expected):
        make_loss("softmax", **{parameter: value})


@pytest.mark.parametrize("loss", loss_cases(7), ids=loss_id)
def test_check_n_classes_refuses_fewer_than_two_classes(loss):
    for n_classes in (0, 1):
        with pytest.raises(ValueError, match=rf"n_classes must be at least 2, got {n_classes}\."):
            loss.check_n_classes(n_classes)
    loss.check_n_classes(7)


@pytest.mark.parametrize("name", HINGES)
def test_check_n_classes_refuses_k_of_all_classes(name):
    loss = make_loss(name, k=6)
    loss.check_n_classes(7)
    expected = r"k must be between 1 and n_classes - 1 = 5, got 6\."
    with pytest.raises(ValueError, match=expected):
        loss.check_n_classes(6)
