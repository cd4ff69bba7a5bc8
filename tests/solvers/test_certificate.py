"""The certificate is P - D of what it is given, and no damage makes it better."""

import json

import numpy as np
import pytest

from dtopk import testing
from dtopk.losses import make_loss
from dtopk.solvers.block_frank_wolfe import FrankWolfeSteps
from dtopk.solvers.certificate import Certificate, CertificateSums, relative_gap
from dtopk.solvers.sdca import BlockUpdater, RowConversion
from tests.loss_cases import fit_labels, loss_cases, loss_id

N, D, M = 60, 5, 7
every_loss = pytest.mark.parametrize("loss", loss_cases(M), ids=loss_id)


def trained(loss, C=2.0, n_passes=60):
    X, y = testing.make_features(N, D, M, seed=6)
    y = fit_labels(loss, y, M)
    costs = C * np.random.default_rng(0).choice([0.5, 1.0, 2.0], N)
    if loss.has_update:
        rule = loss
    else:
        # Steps that are not exact take more passes to come as far.
        rule, n_passes = FrankWolfeSteps(loss), 10 * n_passes
    updater = BlockUpdater(rule, conversion(), M, N)
    dual, W = np.zeros((N, M)), np.zeros((D, M))
    for n in range(n_passes):
        order = np.random.default_rng(n).permutation(N)
        updater.update(X, y, costs, dual, order, W, 1.0)
    return X, y, costs, dual, W


def conversion(dtype=np.float64):
    return RowConversion(n_features=D, dtype=np.dtype(dtype))


def certify(loss, X, y, costs, dual, W, pieces=(slice(None),)):
    sums = CertificateSums(loss, conversion(), W)
    for piece in pieces:
        sums.add(X[piece], y[piece], costs[piece], dual[piece])
    return sums.certificate(1e-3)


@every_loss
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_certificate_is_what_the_slow_twins_give(loss, dtype):
    X, y, costs, dual, W = trained(loss, n_passes=3)
    dual, W = dual.astype(dtype), W.astype(dtype)
    certificate = certify(loss, X, y, costs, dual, W)
    feasible = dual.astype(float)
    loss.make_feasible(feasible, y, costs)
    primal = testing.primal_value(loss, X, y, costs, W)
    dual_value = testing.dual_value(loss, X, y, costs, feasible)
    assert certificate.primal == pytest.approx(primal, rel=1e-12)
    assert certificate.dual_value == pytest.approx(dual_value, rel=1e-12)
    assert certificate.duality_gap == certificate.primal - certificate.dual_value
    assert certificate.relative_gap == relative_gap(certificate.primal, certificate.dual_value)


@every_loss
def test_gap_is_never_negative_whatever_the_weights_and_duals(loss, rng):
    X, y = testing.make_features(N, D, M, seed=6)
    y = fit_labels(loss, y, M)
    for scale in (0.0, 1e-3, 1.0, 1e3):
        costs = 10.0 ** rng.uniform(-3, 3, N)
        dual, W = scale * rng.normal(size=(N, M)), scale * rng.normal(size=(D, M))
        certificate = certify(loss, X, y, costs, dual, W)
        assert certificate.duality_gap >= -1e-12 * abs(certificate.primal)


@every_loss
def test_damage_to_weights_or_duals_makes_the_gap_larger(loss, rng):
    X, y, costs, dual, W = trained(loss)
    gap = certify(loss, X, y, costs, dual, W).relative_gap
    assert gap < 2e-2
    wrong = W.copy()
    wrong[1, 2] += 3.0
    assert certify(loss, X, y, costs, dual, wrong).relative_gap > gap
    wrong = dual.copy()
    wrong[:10] = 0
    assert certify(loss, X, y, costs, wrong, W).relative_gap > gap
    wrong = np.roll(dual, 1, axis=0)
    assert certify(loss, X, y, costs, wrong, W).relative_gap > gap
    assert certify(loss, X, y[np.roll(np.arange(N), 1)], costs, dual, W).relative_gap > gap


def test_certificate_does_not_depend_on_the_pieces(rng):
    loss = make_loss("topk_hinge_beta", k=2)
    X, y, costs, dual, W = trained(loss, n_passes=2)
    whole = certify(loss, X, y, costs, dual, W)
    parts = [slice(0, 1), slice(1, 37), slice(37, 37), slice(37, N)]
    in_parts = certify(loss, X, y, costs, dual, W, parts)
    assert in_parts.primal == pytest.approx(whole.primal, rel=1e-14)
    assert in_parts.dual_value == pytest.approx(whole.dual_value, rel=1e-14)


def test_certificate_leaves_the_duals_as_they_are(rng):
    loss = make_loss("softmax")
    X, y = testing.make_features(N, D, M, seed=6)
    dual = rng.normal(size=(N, M))
    before = dual.copy()
    certify(loss, X, y, np.ones(N), dual, np.zeros((D, M)))
    np.testing.assert_array_equal(dual, before)


def test_values_at_zero_are_those_worked_out_by_hand():
    """W = 0, A = 0: P = C n log m for softmax, C n for a hinge; D = 0."""
    X, y = testing.make_features(N, D, M, seed=6)
    zero = np.zeros((N, M))
    costs = np.full(N, 0.5)
    softmax = certify(make_loss("softmax"), X, y, costs, zero, np.zeros((D, M)))
    assert softmax.primal == pytest.approx(0.5 * N * np.log(M))
    hinge = certify(make_loss("topk_hinge_alpha", k=3), X, y, costs, zero, np.zeros((D, M)))
    assert hinge.primal == pytest.approx(0.5 * N)
    assert softmax.dual_value == hinge.dual_value == 0
    assert hinge.relative_gap == 1
    assert not hinge.certified


def test_relative_gap_is_taken_of_the_larger_value():
    assert relative_gap(4.0, 3.0) == 0.25
    assert relative_gap(1.0, -4.0) == 1.25
    assert relative_gap(0.0, 0.0) == 0.0


def test_a_certificate_says_whether_the_tolerance_is_met_and_goes_into_json():
    certificate = Certificate.from_values(10.0, 9.0, tol=0.1)
    assert certificate.certified
    assert not Certificate.from_values(10.0, 8.9, tol=0.1).certified
    assert json.loads(json.dumps(certificate.to_dict())) == {
        "primal": 10.0,
        "dual_value": 9.0,
        "duality_gap": 1.0,
        "relative_gap": 0.1,
        "tol": 0.1,
        "certified": True,
    }


@pytest.mark.parametrize("primal", [np.nan, np.inf, 1.0])
@pytest.mark.parametrize("dual_value", [np.nan, -np.inf])
def test_values_that_are_not_finite_certify_nothing(primal, dual_value):
    """A comparison with NaN is false: neither a missing scale nor a gap may read as zero."""
    assert not Certificate.from_values(primal, dual_value, tol=0.1).certified
    assert not Certificate.from_values(dual_value, primal, tol=0.1).certified


def test_a_primal_below_the_dual_certifies_nothing():
    assert not Certificate.from_values(10.0, 10.1, tol=1e-3).certified
    assert Certificate.from_values(10.0, 10.0 * (1 + 1e-12), tol=1e-3).certified
