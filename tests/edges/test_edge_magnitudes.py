"""Features of any size: squares that overflow or vanish, subnormal numbers, half precision."""

from typing import Any

import numpy as np
import pytest

from dtopk.engine import FitOptions, fit
from dtopk.engine.rows import ArrayRows
from dtopk.losses import make_loss
from tests.edges.certified import fit_and_check, label_rows
from tests.edges.odd_rows import M, plain_rows, scaled_rows

SOLVERS: dict[str, tuple[str, dict[str, Any], str]] = {
    "softmax": ("softmax", {}, "sdca"),
    "hinge": ("topk_hinge_alpha", {"k": 2}, "sdca"),
    "smooth hinge": ("topk_hinge_alpha", {"k": 2, "gamma": 0.5}, "sdca"),
    "entropy": ("topk_entropy_alpha", {"k": 2}, "sdca"),
    "one against the rest": ("logistic_ova", {}, "sdca"),
    "multilabel": ("multilabel_softmax", {}, "sdca"),
    "weighted": ("weighted_topk_hinge", {"rho": [1.0, 0.5]}, "frank_wolfe"),
    "frank_wolfe": ("topk_hinge_alpha", {"k": 2}, "frank_wolfe"),
    "frank_wolfe, smooth": ("topk_hinge_alpha", {"k": 2, "gamma": 0.5}, "frank_wolfe"),
    "block_frank_wolfe": ("topk_hinge_alpha", {"k": 2}, "block_frank_wolfe"),
    "lbfgs": ("softmax", {}, "lbfgs"),
    "gradient_descent": ("softmax", {}, "gradient_descent"),
    "pegasos": ("topk_hinge_alpha", {"k": 2}, "pegasos"),
}
solvers = pytest.mark.parametrize("name", SOLVERS)
SQUARING = {
    "softmax", "hinge", "smooth hinge", "entropy", "one against the rest", "multilabel", "lbfgs",
}  # fmt: skip
"""Those that take squares of features, which overflow where the features themselves do not."""
TOO_LARGE = r"must stay finite, (got|but) .* are too large for float\d\d\. Scale the features"


def make(name):
    loss, parameters, solver = SOLVERS[name]
    return make_loss(loss, **parameters), solver


def fit_or_refuse(X, y, name, folder, *, may_refuse, **options):
    """Train to a true certificate or, where it may, to the error that says what is too large."""
    loss, solver = make(name)
    try:
        fit_and_check(X, y, M, loss, folder, solver=solver, max_epochs=12, **options)
    except ValueError as error:
        if not may_refuse:
            raise
        with pytest.raises(ValueError, match=TOO_LARGE):
            raise error


@solvers
@pytest.mark.parametrize("scale", [1e-30, 1e-42], ids=["tiny", "subnormal"])
def test_tiny_features_are_certified(scale, name, tmp_path):
    """Nothing can be learnt of them at C = 1: the optimum is W = 0, but for a rounding."""
    X, y = scaled_rows(scale, np.float32)
    loss, solver = make(name)
    result = fit_and_check(X, y, M, loss, tmp_path, solver=solver, max_epochs=12)
    assert result.certificate.certified


@solvers
@pytest.mark.parametrize("scale", [1e18, 3e19, 1e30], ids=str)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_huge_features_are_trained_truly_or_refused(scale, dtype, name, tmp_path):
    X, y = scaled_rows(scale, np.float32)
    # Of softmax, scores of 1e18 times their weights are too large for float32 before squares are.
    too_large = name in SQUARING if scale > 1e19 else name == "softmax"
    may_refuse = dtype == "float32" and too_large
    fit_or_refuse(X, y, name, tmp_path, may_refuse=may_refuse, dtype=dtype)


@solvers
def test_features_of_very_different_sizes_are_trained_truly_or_refused(name, tmp_path):
    """In float32 a mixture of large atoms cancels to its rounding, of which no bound is made."""
    X, y = scaled_rows(np.array([1e-19, 1.0, 1e10, 1e-10]), np.float32)
    fit_or_refuse(X, y, name, tmp_path, may_refuse=name == "softmax", dtype="float32")


@pytest.mark.parametrize("C", [1e-12, 1.0, 1e12], ids=str)
@pytest.mark.parametrize("scale", [1e10, 1e30], ids=str)
def test_a_mixture_of_atoms_that_cancel_proves_no_more_than_is_true(scale, C, tmp_path):
    """Its D was once far above P, by what was left of products of 1e37 in float64."""
    X, y = scaled_rows(np.array([1e-10, 1.0, scale, 1e-5]), np.float32)
    loss = make_loss("weighted_topk_hinge", rho=[1.0, 0.5])
    result = fit_and_check(X, y, M, loss, tmp_path, C=C, constant=1.0, dtype="float64")
    assert result.certificate.dual_value <= result.certificate.primal


@pytest.mark.parametrize("loss", ["softmax", "multilabel_softmax"])
@pytest.mark.parametrize("C", [1e-12, 1.0], ids=str)
def test_the_subgradient_method_bounds_smooth_losses_truly_in_float32(loss, C, tmp_path):
    """Its linear terms are float32 sums, which were once above P by 1e-8 of it."""
    X, y = plain_rows()
    X = np.repeat(X[:5], 5, axis=0).astype(np.float32)
    y = np.tile(np.arange(5, dtype=np.int32), 5)
    made = make_loss(loss)
    result = fit_and_check(X, y, M, made, tmp_path, C=C, constant=1.0, solver="pegasos")
    assert result.certificate.dual_value <= result.certificate.primal


@solvers
def test_one_huge_row_is_trained_truly_or_refused(name, tmp_path):
    X, y = plain_rows()
    X[3] *= 1e30
    X = X.astype(np.float32)
    fit_or_refuse(X, y, name, tmp_path, may_refuse=name in SQUARING, dtype="float32")


@solvers
@pytest.mark.parametrize("scale", [1e300, 1e-300, 1e-310], ids=str)
def test_float64_features_at_its_ends_are_trained_truly_or_refused(scale, name, tmp_path):
    X, y = scaled_rows(scale, np.float64)
    # The blocks' own steps have no squares in them.
    may_refuse = scale > 1 and name != "block_frank_wolfe"
    fit_or_refuse(X, y, name, tmp_path, may_refuse=may_refuse, dtype="float64")


@pytest.mark.parametrize("scale", [6e-8, 8192.0], ids=["subnormal", "large"])
def test_half_precision_at_its_ends_is_trained_truly(scale, tmp_path):
    X, y = scaled_rows(scale, np.float16)
    assert np.isfinite(X).all()
    fit_and_check(X, y, M, make_loss("softmax"), tmp_path)


def test_features_too_large_for_float32_say_that_float64_would_do():
    X, y = scaled_rows(1e30, np.float32)
    with pytest.raises(ValueError, match=r"too large for float32.* or compute in float64\.$"):
        fit(ArrayRows(X, y, M), make_loss("softmax"), FitOptions())


def test_features_too_large_for_float64_do_not_say_so():
    X, y = scaled_rows(1e300, np.float64)
    with pytest.raises(ValueError, match=r"too large for float64\. Scale the features\.$"):
        fit(ArrayRows(X, y, M), make_loss("softmax"), FitOptions(dtype="float64"))


@pytest.mark.parametrize("deviation", [1e-42, 1e42], ids=["subnormal", "huge"])
def test_a_scale_that_float32_cannot_hold_is_refused(deviation):
    with pytest.raises(ValueError, match=r"inverse_scale must be between .* for feature 1\."):
        FitOptions(mean=np.zeros(3), inverse_scale=1 / np.array([1.0, deviation, 1.0]))


@pytest.mark.parametrize("value", [1e300, np.nan, np.inf])
def test_a_mean_that_float32_cannot_hold_is_refused(value):
    with pytest.raises(ValueError, match=r"mean must be between .* for feature 0\."):
        FitOptions(mean=np.array([value, 0.0]), inverse_scale=np.ones(2))


def test_scaled_tiny_features_are_certified(tmp_path):
    X, y = scaled_rows(1e-30, np.float32)
    wide = X.astype(np.float64)
    # Rounded to the type of the computation, as jobs have them.
    mean, scale = (
        values.astype(np.float32).astype(np.float64)
        for values in (wide.mean(axis=0), 1 / wide.std(axis=0))
    )
    result = fit_and_check(X, y, M, make_loss("softmax"), tmp_path, mean=mean, inverse_scale=scale)
    assert result.certificate.certified
    # As the rows unscaled, of which something can be learnt.
    assert np.abs(result.W).max() > 0.1


def test_label_sets_of_two_classes_have_one_label():
    loss = make_loss("multilabel_softmax")
    assert label_rows(loss, np.array([0, 1]), 2).counts.tolist() == [1, 1]
