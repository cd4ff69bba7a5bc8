"""The step along several partitions' changes never loses, and is the best there is."""

import numpy as np
import pytest
from scipy.optimize import minimize

from dtopk.solvers.dual_step import RoundProducts, adapt_sigma, choose_theta, maximise_on_box


def random_products(K, seed, rank=None):
    rng = np.random.default_rng(seed)
    F = rng.normal(size=(K, rank or 3 * K))
    W = rng.normal(size=F.shape[1])
    return RoundProducts(gram=F @ F.T, slopes=F @ W), rng.normal(size=K) * 3


@pytest.mark.parametrize("K", [1, 2, 5, 16])
@pytest.mark.parametrize("rank", [1, None])
def test_box_maximum_agrees_with_a_general_solver(K, rank):
    products, linear = random_products(K, K, rank)

    def loss(t):
        return 0.5 * t @ products.gram @ t - linear @ t

    best = minimize(  # type: ignore[call-overload]
        loss, np.full(K, 0.5), jac=lambda t: products.gram @ t - linear, bounds=[(0, 1)] * K,
        method="L-BFGS-B", options={"ftol": 1e-15, "gtol": 1e-10, "maxiter": 10_000},
    )  # fmt: skip
    t = maximise_on_box(linear, products.gram)
    assert ((t >= 0) & (t <= 1)).all()
    assert loss(t) <= best.fun + 1e-8 * max(abs(best.fun), 1)


def test_box_maximum_by_hand():
    """G = I: t = clip(linear, 0, 1). A zero change is taken whole if it gains, else not at all."""
    t = maximise_on_box(np.array([0.25, 3.0, -1.0]), np.eye(3))
    np.testing.assert_array_equal(t, [0.25, 1.0, 0.0])
    t = maximise_on_box(np.array([1.0, -1.0]), np.zeros((2, 2)))
    np.testing.assert_array_equal(t, [1.0, 0.0])


@pytest.mark.parametrize("seed", range(20))
def test_theta_never_loses(seed):
    products, gains = random_products(6, seed)
    theta = choose_theta(gains, products)
    linear = gains - products.slopes
    assert linear @ theta - 0.5 * theta @ products.gram @ theta >= -1e-12


def test_the_whole_way_is_taken_where_hardly_anything_is_better():
    """linear = (1, 1), G = I: the whole way is the best. At linear = 0.9, t = 0.9 gains 0.405 and
    t = 1 gains 0.4 in each: 98.8% of it.
    """
    products = RoundProducts(gram=np.eye(2), slopes=np.zeros(2))
    np.testing.assert_array_equal(choose_theta(np.array([0.9, 0.9]), products), [1.0, 1.0])
    np.testing.assert_allclose(choose_theta(np.array([0.5, 0.5]), products), [0.5, 0.5])


def test_sigma_is_one_for_orthogonal_changes_and_K_for_equal_ones():
    orthogonal = RoundProducts(gram=np.eye(4), slopes=np.zeros(4))
    equal = RoundProducts(gram=np.ones((4, 4)), slopes=np.zeros(4))
    assert orthogonal.correlation == 1.0
    assert equal.correlation == 4.0
    assert adapt_sigma(orthogonal, 4.0, steady=False) == pytest.approx(1.1)
    assert adapt_sigma(orthogonal, 4.0, steady=True) == pytest.approx(3.6)
    assert adapt_sigma(equal, 1.0, steady=True) == 4.0


def test_no_change_at_all_has_a_sigma():
    nothing = RoundProducts(gram=np.zeros((3, 3)), slopes=np.zeros(3))
    assert nothing.correlation == 1.0
    np.testing.assert_array_equal(choose_theta(np.zeros(3), nothing), np.ones(3))
