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
        assert loss.targets == info.targets
        assert info.kind == info.targets[0]
        assert loss.parameters == info.parameters
        assert loss.summary == info.summary
        assert loss.convex is info.convex
        assert ("sdca" in info.solvers) is loss.has_update
        assert ("block_frank_wolfe" in info.solvers) is loss.polyhedral
        assert loss.solvers[0] == info.solvers[0]
        assert info.smooth in ("always", "never", "gamma > 0")
        assert loss.smooth is (info.smooth == "always")
        assert info.formula
        assert info.cost


def test_solvers_that_need_a_gradient_train_a_loss_just_if_it_is_smooth():
    assert make_loss("topk_hinge_alpha").solvers == (
        "sdca",
        "frank_wolfe",
        "block_frank_wolfe",
        "frank_wolfe_fixed",
        "pegasos",
    )
    smooth = make_loss("topk_hinge_alpha", gamma=1.0)
    assert smooth.solvers[4:] == ("lbfgs", "gradient_descent", "pegasos")
    assert make_loss("softmax").solvers == ("sdca", "lbfgs", "gradient_descent", "pegasos")


def test_available_names_the_condition_of_a_solver():
    solvers = {info.name: info.solvers for info in available()}
    assert "lbfgs (gamma > 0)" in solvers["topk_hinge_alpha"]
    assert "lbfgs" in solvers["smooth_hinge_ova"]
    assert not any(solver.startswith("lbfgs") for solver in solvers["hinge_ova"])


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
    expected = r"loss .* is unknown\. Available: 'softmax', 'topk_entropy_alpha', "
    with pytest.raises(ValueError, match=expected):
        make_loss(given)


@pytest.mark.parametrize("name", HINGES)
@pytest.mark.parametrize("k", [0, -1])
def test_k_below_one_is_refused(name, k):
    with pytest.raises(ValueError, match=rf"k must be at least 1, got {k}\."):
        make_loss(name, k=k)


@pytest.mark.parametrize("name", HINGES)
@pytest.mark.parametrize("k", [1.0, "1", True])
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


def test_what_is_left_out_has_the_default_of_the_loss():
    assert make_loss("smooth_hinge_ova").gamma == 1.0
    assert make_loss("multilabel_hinge").gamma == 0.0
    assert make_loss("weighted_usunier").rho == (1.0,)
    assert make_loss("topk_hinge_alpha", k=None, gamma=None) == make_loss("topk_hinge_alpha")


def test_smooth_hinge_ova_names_the_loss_without_smoothing():
    with pytest.raises(ValueError, match=r"gamma must be above 0 .* Loss 'hinge_ova' is the one"):
        make_loss("smooth_hinge_ova", gamma=0.0)


@pytest.mark.parametrize("rho", [[0.5, 0.6], [0.0], [1.0, -0.1], [np.nan], []])
def test_rho_must_not_rise_or_be_negative(rho):
    with pytest.raises(ValueError, match=r"rho must be"):
        make_loss("weighted_usunier", rho=rho)


def test_rho_must_be_numbers_and_no_more_than_there_are_other_classes():
    with pytest.raises(TypeError, match=r"rho must be a sequence of numbers, got \['a'\]\."):
        make_loss("weighted_usunier", rho=["a"])
    loss = make_loss("weighted_usunier", rho=np.ones(3))
    loss.check_n_classes(4)
    with pytest.raises(ValueError, match=r"rho must have at most n_classes - 1 = 2 weights, got 3"):
        loss.check_n_classes(3)


def test_weights_of_zero_at_the_end_of_rho_ask_for_nothing():
    assert make_loss("weighted_usunier", rho=[2, 1, 0, 0]).rho == (2.0, 1.0)


@pytest.mark.parametrize(
    ("costs", "message"),
    [
        (np.ones(3), r"label_cost must have shape \(n_classes, n_classes\), got shape \(3,\)"),
        (np.ones((2, 3)), r"got shape \(2, 3\)\."),
        ([[0, -1], [1, 0]], r"label_cost must be finite and at least 0, got -1\.0 in row 0, col"),
        ([[0, 1], [np.inf, 0]], r"got inf in row 1, column 0\."),
        ([[0, 1], [1, 2]], r"label_cost must be 0 on its diagonal, got 2\.0 in row 1, column 1\."),
    ],
)
def test_label_costs_must_be_a_square_matrix_of_costs(costs, message):
    with pytest.raises(ValueError, match=message):
        make_loss("structured_hinge", label_cost=costs)


def test_label_costs_tell_losses_apart():
    costs = 1.0 - np.eye(3)
    loss = make_loss("structured_hinge", label_cost=costs)
    assert loss == make_loss("structured_hinge", label_cost=costs.copy())
    assert loss != make_loss("structured_hinge", label_cost=2 * costs)
    assert loss != make_loss("structured_hinge", label_cost=costs, gamma=1.0)
    assert len({loss, make_loss("structured_hinge", label_cost=costs)}) == 1
