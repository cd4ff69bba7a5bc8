"""Mixtures of atoms, against projected gradients and the definition of the dual value."""

import numpy as np
import pytest

from dtopk.solvers.bundle import BASE, Bundle, maximise_on_simplex


def random_problem(rng, n, rank):
    vectors = rng.normal(size=(n, rank)) * 10.0 ** rng.integers(-3, 4)
    linear = rng.normal(size=n) * np.square(vectors).sum(axis=1).max()
    return linear, vectors @ vectors.T


def value(linear, gram, w):
    return linear @ w - 0.5 * w @ gram @ w


@pytest.mark.parametrize("rank", [1, 3, 30], ids=["one line", "flat", "full"])
@pytest.mark.parametrize("n", [1, 2, 12])
def test_best_weights_meet_the_conditions_of_an_optimum(rng, n, rank):
    for _ in range(50):
        linear, gram = random_problem(rng, n, rank)
        start = rng.dirichlet(np.ones(n))
        w = maximise_on_simplex(linear, gram, start)
        assert w.min() >= 0
        assert w.sum() == pytest.approx(1, abs=1e-12)
        slopes = linear - gram @ w
        # No corner is uphill: what the best of them could gain is rounding.
        scale = np.abs(linear).max() + np.abs(gram).max()
        assert slopes.max() - w @ slopes <= 1e-9 * scale
        assert value(linear, gram, w) >= value(linear, gram, start) - 1e-12 * scale


def test_equal_atoms_share_a_weight(rng):
    vector = rng.normal(size=5)
    gram = np.full((3, 3), vector @ vector)
    w = maximise_on_simplex(np.ones(3), gram, np.array([1.0, 0.0, 0.0]))
    assert w.sum() == pytest.approx(1)


@pytest.mark.parametrize("weight", [1e-16, 1e-15, 1e-3])
def test_a_weight_that_is_rounding_ends_the_search(weight):
    """The best weight of the second atom is 5e-15, and so it may be, or 0."""
    linear = np.array([1.0, 1e-14])
    w = maximise_on_simplex(linear, np.eye(2), np.array([1 - weight, weight]))
    np.testing.assert_allclose(w, [1, 0], atol=1e-13)


class Vectors:
    """The atoms that a bundle knows by their products alone."""

    def __init__(self, limit):
        self.bundle = Bundle(limit)
        self.linear = {BASE: 0.0}
        self.atoms = {BASE: np.zeros(6)}

    def add(self, name, linear, vector):
        products = np.array([self.atoms[other] @ vector for other in self.bundle.names])
        gap = self.bundle.add(name, linear, products, vector @ vector)
        self.linear[name], self.atoms[name] = linear, vector
        return gap

    def follow(self, shares):
        if shares:
            self.linear[BASE], self.atoms[BASE] = self.mix(shares)

    def mix(self, weights):
        linear = sum(weight * self.linear[name] for name, weight in weights.items())
        return linear, sum(weight * self.atoms[name] for name, weight in weights.items())

    def value(self):
        linear, vector = self.mix(self.bundle.mixture)
        return linear - 0.5 * vector @ vector


@pytest.mark.parametrize("limit", [0, 1, 4])
def test_value_is_that_of_the_mixture_through_folds_and_drops(rng, limit):
    vectors = Vectors(limit)
    values = [0.0]
    for name in range(1, 25):
        vectors.add(name, float(rng.uniform(0, 2)), rng.normal(size=6))
        vectors.bundle.maximise()
        vectors.bundle.drop_idle()
        vectors.follow(vectors.bundle.fold())
        assert len(vectors.bundle.names) <= limit + 1
        assert vectors.bundle.value == pytest.approx(vectors.value(), rel=1e-9)
        values.append(vectors.bundle.value)
        again = Bundle.from_dict(vectors.bundle.to_dict())
        assert again.value == vectors.bundle.value
        assert again.mixture == vectors.bundle.mixture
    assert (np.diff(values) >= -1e-12).all()


def test_gap_is_the_slope_towards_the_new_atom(rng):
    vectors = Vectors(3)
    for name in range(1, 4):
        vectors.add(name, 1.0, rng.normal(size=6))
        vectors.bundle.maximise()
    linear, vector = 2.0, rng.normal(size=6)
    before = vectors.value()
    gap = vectors.add(9, linear, vector)
    step = 1e-6
    vectors.bundle.step(step)
    assert (vectors.value() - before) / step == pytest.approx(gap, rel=1e-4)


def test_shrunk_duals_have_a_share_of_their_weights():
    bundle = Bundle(0)
    bundle.restart(3.0, 2.0)
    bundle.shrink(0.5)
    assert bundle.value == pytest.approx(1.5 - 0.5 * 0.25 * 2.0)


def test_a_bound_takes_rounding_off_both_parts_of_the_value():
    """One atom of norm 3 and linear term 4: D is 4 - 9/2, and with an eps of 1% at least
    4 - 0.04 - (3 + 0.03)^2/2 = -0.63045."""
    bundle = Bundle(0)
    bundle.restart(4.0, 9.0)
    assert bundle.value == pytest.approx(-0.5)
    assert bundle.bound(0.01) == pytest.approx(-0.63045, rel=1e-12)


def test_a_bound_of_atoms_that_cancel_is_below_what_their_products_leave():
    """Two atoms of norm 1e18 that are opposite but for rounding: their products sum to -1e21."""
    bundle = Bundle(2)
    bundle.restart(0.0, 1e36)
    bundle.add(1, 1.0, np.array([-1e36 * (1 + 4e-15)]), 1e36)
    bundle.step(0.5)
    assert bundle.value > 1e20
    assert bundle.bound(np.finfo(float).eps) < 0
