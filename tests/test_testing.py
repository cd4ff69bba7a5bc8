import numpy as np
import pytest
from scipy.optimize import minimize

from dtopk import testing
from dtopk.losses import make_loss


def test_make_features_has_unit_rows_that_are_not_negative():
    X, y = testing.make_features(200, 16, 5, seed=3)
    assert X.shape == (200, 16)
    assert X.dtype == np.float32
    assert y.dtype == np.int32
    assert X.min() == 0
    np.testing.assert_allclose(np.linalg.norm(X, axis=1), 1, rtol=1e-6)
    assert set(y) == set(range(5))


def test_make_features_depends_on_the_seed_alone():
    X, y = testing.make_features(20, 4, 3, seed=0)
    again, labels = testing.make_features(20, 4, 3, seed=0)
    np.testing.assert_array_equal(X, again)
    np.testing.assert_array_equal(y, labels)
    assert not np.array_equal(X, testing.make_features(20, 4, 3, seed=1)[0])


def test_make_features_leaves_a_row_without_positive_entries_zero():
    X, _ = testing.make_features(2000, 1, 2, seed=0)
    assert np.isfinite(X).all()
    assert (X == 0).any()


def solve_by_slsqp(b, domain, k, rho):
    """Project onto the domain of radius 1 as it is written down, by scipy's general optimiser."""

    def objective(x):
        return float(0.5 * x @ x + 0.5 * rho * x.sum() ** 2 - b @ x)

    def slacks(x):
        caps = [x.sum() / k - x] if domain == "alpha" else [1 / k - x]
        if domain == "alpha_incl" and k > 1:
            caps.append(x.sum() / (k - 1) - x)
        return np.concatenate([*caps, [1 - x.sum()], x])

    return minimize(
        objective,
        np.zeros(len(b)),
        constraints={"type": "ineq", "fun": slacks},
        method="SLSQP",
        options={"ftol": 1e-14, "maxiter": 500},
    ).x


@pytest.mark.parametrize("domain", ["alpha", "alpha_incl", "beta"])
def test_slow_projection_equals_a_general_optimiser(rng, domain):
    for k, rho in [(1, 0.0), (2, 1.0), (3, 0.5)]:
        b = rng.normal(size=5)
        expected = solve_by_slsqp(b, domain, k, rho)
        np.testing.assert_allclose(testing.project(b, domain, k, 1.0, rho), expected, atol=1e-6)


@pytest.mark.parametrize("domain", ["alpha", "alpha_incl", "beta"])
def test_smallest_product_is_below_every_point_of_the_domain(rng, domain):
    for _ in range(20):
        g = rng.normal(size=6)
        value, vertex = testing.smallest_product(g, domain, 3, 2.0)
        assert value == pytest.approx(g @ vertex)
        assert testing.fw_gap(vertex, np.zeros(6), domain, 3, 2.0, 0.0) >= 0
        for _ in range(20):
            assert g @ testing.project(3 * rng.normal(size=6), domain, 3, 2.0, 0.0) >= value - 1e-12


def test_infeasibility_measures_each_broken_rule():
    loss = make_loss("topk_hinge_alpha", k=2)
    # x = (0.5, 0.5, 0) with C = 2 is on the border of the domain.
    assert testing.infeasibility(loss, [-1, -1, 0, 2], 3, 2.0) == 0
    assert testing.infeasibility(loss, [-1, -1, 0, 2.2], 3, 2.0) == pytest.approx(0.1)
    assert testing.infeasibility(loss, [-1.5, -1, 0, 2.5], 3, 2.0) == pytest.approx(0.25)
    assert testing.infeasibility(loss, [-1, 0, 0, 1], 3, 2.0) == pytest.approx(0.25)
    assert testing.infeasibility(loss, [-0.5, -0.5, 0.2, 0.8], 3, 2.0) == pytest.approx(0.1)
