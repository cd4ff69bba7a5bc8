"""Odd rows, and odd values of C, k and the number of classes."""

from typing import Any

import numpy as np
import pytest

from dtopk.engine import FitOptions, fit
from dtopk.engine.rows import ArrayRows
from dtopk.losses import make_loss
from tests.edges.certified import fit_and_check, label_rows
from tests.edges.odd_rows import ODD_ROWS, M, plain_rows

LOSSES: dict[str, tuple[str, dict[str, Any]]] = {
    "softmax": ("softmax", {}),
    "hinge": ("topk_hinge_alpha", {"k": 2}),
    "hinge, lapin": ("topk_hinge_alpha", {"k": 2, "gamma": 0.5}),
    "hinge, moreau": ("topk_hinge_beta", {"k": 2, "gamma": 0.5, "smoothing": "moreau"}),
    "entropy alpha": ("topk_entropy_alpha", {"k": 2}),
    "entropy beta": ("topk_entropy_beta", {"k": 2}),
    "one against the rest": ("logistic_ova", {}),
    "sparsemax": ("sparsemax", {}),
    "multilabel": ("multilabel_softmax", {}),
}
losses = pytest.mark.parametrize("name", LOSSES)


def make(name):
    loss, parameters = LOSSES[name]
    return make_loss(loss, **parameters)


@losses
@pytest.mark.parametrize("edge", ODD_ROWS)
def test_odd_rows_are_certified(edge, name, tmp_path):
    X, y = ODD_ROWS[edge]()
    result = fit_and_check(
        X, y, M, make(name), tmp_path, constant=1.0, dtype="float64", max_epochs=200
    )
    assert result.certificate.certified


@losses
def test_float32_rows_of_one_value_are_certified(name, tmp_path):
    X, y = ODD_ROWS["constant features"]()
    result = fit_and_check(X.astype(np.float32), y, M, make(name), tmp_path)
    assert result.certificate.certified


@losses
@pytest.mark.parametrize("C", [1e-12, 1e-6, 1e6, 1e12])
def test_extreme_costs_end_with_a_true_certificate(C, name, tmp_path):
    X, y = plain_rows()
    fit_and_check(X, y, M, make(name), tmp_path, C=C, constant=1.0, dtype="float64")


@losses
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_cost_of_next_to_nothing_is_certified_at_once(dtype, name, tmp_path):
    """At C = 1e-12 the optimum is W = 0 but for 1e-12, whatever the loss."""
    X, y = plain_rows()
    result = fit_and_check(X, y, M, make(name), tmp_path, C=1e-12, dtype=dtype)
    assert result.certificate.certified
    assert np.abs(result.W).max() < 1e-9


@pytest.mark.parametrize("loss", ["topk_hinge_alpha", "topk_hinge_beta", "topk_entropy_alpha"])
@pytest.mark.parametrize("k", [1, M - 1])
def test_the_least_and_the_greatest_k_are_certified(loss, k, tmp_path):
    X, y = plain_rows()
    result = fit_and_check(X, y, M, make_loss(loss, k=k), tmp_path, dtype="float64", max_epochs=60)
    assert result.certificate.certified


@losses
def test_two_classes_are_certified(name, tmp_path):
    X, y = plain_rows()
    kind, parameters = LOSSES[name]
    loss = make_loss(kind, **{key: 1 if key == "k" else parameters[key] for key in parameters})
    result = fit_and_check(X, y % 2, 2, loss, tmp_path, constant=1.0, dtype="float64")
    assert result.certificate.certified


@losses
@pytest.mark.parametrize("n_rows", [1, 24])
def test_one_class_is_refused(name, n_rows):
    X, _ = plain_rows()
    loss = make(name)
    labels = label_rows(loss, np.zeros(n_rows, np.int32), M)
    if "multiclass" not in loss.targets:
        pytest.skip("a row of it has two labels")
    with pytest.raises(ValueError, match=r"must have at least two classes, got 1\."):
        fit(ArrayRows(X[:n_rows], labels, M), loss, FitOptions())


@pytest.mark.parametrize(("loss", "k"), [("topk_hinge_alpha", M), ("topk_entropy_beta", M + 3)])
def test_k_of_all_classes_is_refused(loss, k):
    X, y = plain_rows()
    with pytest.raises(ValueError, match=r"k must be between 1 and n_classes - 1 = 4"):
        fit(ArrayRows(X, y, M), make_loss(loss, k=k), FitOptions())


def test_fifty_thousand_classes_are_certified(tmp_path):
    """Forty rows of forty of them: all others have none."""
    n_classes, n = 50_000, 40
    X = np.random.default_rng(0).normal(size=(n, 2)).astype(np.float32)
    y = np.linspace(0, n_classes - 1, n).astype(np.int32)
    result = fit_and_check(X, y, n_classes, make_loss("softmax"), tmp_path, C=1e-3)
    assert result.certificate.certified
    assert result.W.shape == (2, n_classes)
