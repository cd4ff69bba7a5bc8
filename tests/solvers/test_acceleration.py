import numpy as np
import pytest

from dtopk import testing
from dtopk.solvers.acceleration import MovingCentre
from dtopk.solvers.sdca import BlockUpdater, RowConversion
from tests.loss_cases import fit_labels, loss_id, updated_loss_cases

N, D, M = 80, 6, 7


def test_the_first_centre_moves_nothing(rng):
    W = rng.normal(size=(D, M))
    before = W.copy()
    centre = MovingCentre(W, 5.0)
    np.testing.assert_allclose(centre.dual_weights(W), before, atol=1e-14)
    np.testing.assert_array_equal(W, before)


@pytest.mark.parametrize("loss", updated_loss_cases(M), ids=loss_id)
def test_weights_are_centre_and_duals_after_every_advance(loss):
    """W = c Z + X'A / r, so that X'A = r (W - c Z), whatever happened to Z."""
    X, y = testing.make_features(N, D, M, seed=7)
    y = fit_labels(loss, y, M)
    costs = np.full(N, 20.0)
    updater = BlockUpdater(loss, RowConversion(n_features=D, dtype=np.dtype(float)), M, 32)
    dual, W = np.zeros((N, M)), np.zeros((D, M))
    updater.update(X, y, costs, dual, np.arange(32), W, 1.0)
    centre = MovingCentre(W, 9.0)
    for _ in range(5):
        for start in (0, 32, 64):
            rows = np.arange(start, min(start + 32, N))
            updater.update(X, y, costs, dual, rows, W, centre.ratio)
        np.testing.assert_allclose(centre.dual_weights(W), X.T @ dual, atol=1e-10)
        centre.advance(W)
        np.testing.assert_allclose(centre.dual_weights(W), X.T @ dual, atol=1e-10)


def test_the_centre_moves_to_the_weights_and_takes_them_along():
    """r = 4: c = 3/4. From Z = 0 the weights moved to 1, the next Z, and W rises by 3/4."""
    W = np.zeros((1, 1))
    centre = MovingCentre(W, 4.0)
    W[:] = 1.0
    centre.advance(W)
    assert centre.centre[0, 0] == 1.0
    assert W[0, 0] == pytest.approx(1.75)
    # Stays: the weights of the duals are those of before the advance.
    assert centre.dual_weights(W)[0, 0] == pytest.approx(4.0)
    W[:] = 2.0
    centre.advance(W)
    assert W[0, 0] == pytest.approx(2.75)


def test_float32_weights_stay_float32():
    W = np.zeros((2, 2), np.float32)
    centre = MovingCentre(W, 10.0)
    W += 1
    centre.advance(W)
    assert W.dtype == np.float32
    assert centre.dual_weights(W).dtype == np.float32


@pytest.mark.parametrize("ratio", [3.0, 30.0])
def test_a_new_ratio_leaves_weights_and_duals_as_they_are(rng, ratio):
    W = rng.normal(size=(D, M))
    centre = MovingCentre(W, 10.0)
    W += rng.normal(size=(D, M))
    centre.advance(W)
    before, duals = W.copy(), centre.dual_weights(W)
    centre.set_ratio(W, ratio)
    assert centre.ratio == ratio
    np.testing.assert_array_equal(W, before)
    np.testing.assert_allclose(centre.dual_weights(W), duals, atol=1e-12)


def test_refreshed_weights_of_the_duals_are_those_given(rng):
    W = rng.normal(size=(D, M)).astype(np.float32)
    centre = MovingCentre(W, 10.0)
    exact = centre.dual_weights(W) + np.float32(1e-3)
    centre.refresh(W, exact)
    np.testing.assert_allclose(centre.dual_weights(W), exact, atol=1e-5)
