import numpy as np
import pytest
from sklearn.kernel_approximation import Nystroem, RBFSampler
from sklearn.metrics.pairwise import rbf_kernel

from dtopk.lifting import draw_map, load_map, scale_gamma
from tests.small_stores import make_rows, make_store


@pytest.fixture
def store(tmp_path):
    return make_store(tmp_path / "small.zarr")


def rows_of(store):
    return store.read_features(0, store.n_samples).astype(np.float64)


def test_fourier_features_are_those_of_sklearn(store):
    mapping = draw_map(store, "fourier", n_components=40, gamma=0.3, seed=1)
    expected = RBFSampler(gamma=0.3, n_components=40, random_state=1).fit_transform(rows_of(store))
    np.testing.assert_allclose(mapping.apply(rows_of(store)), expected, atol=1e-6)


@pytest.mark.parametrize(("kind", "n_components"), [("fourier", 4000), ("nystroem", 110)])
def test_products_of_lifted_rows_are_close_to_the_kernel(store, kind, n_components):
    mapping = draw_map(store, kind, n_components=n_components, gamma=0.05, seed=0)
    Z = mapping.apply(rows_of(store)).astype(np.float64)
    errors = np.abs(Z @ Z.T - rbf_kernel(rows_of(store), gamma=0.05))
    # Of the first 1 / sqrt(2 * 4000) or so; of the second near 0 but far from the chosen rows.
    assert np.median(errors) < 0.02


def test_nystroem_is_made_of_training_rows_and_exact_on_them(store):
    mapping = draw_map(store, "nystroem", n_components=30, gamma=0.1, seed=0)
    X = rows_of(store)
    for row in mapping.arrays["components_"]:
        assert (np.abs(X[:120] - row).max(axis=1) == 0).any()
    Z = mapping.apply(mapping.arrays["components_"]).astype(np.float64)
    expected = rbf_kernel(mapping.arrays["components_"], gamma=0.1)
    np.testing.assert_allclose(Z @ Z.T, expected, atol=1e-4)
    assert isinstance(mapping._estimator, Nystroem)


@pytest.mark.parametrize("kind", ["fourier", "nystroem"])
def test_a_map_that_is_read_back_makes_the_same_bits(store, kind, tmp_path):
    mapping = draw_map(store, kind, n_components=20, gamma=0.3, seed=1)
    mapping.save(tmp_path / "map.npz")
    again = load_map(tmp_path / "map.npz")
    assert again.key == mapping.key
    X, _ = make_rows(30, seed=9)
    np.testing.assert_array_equal(again.apply(X), mapping.apply(X))


def test_scale_gamma_is_that_of_sklearn(store):
    X = rows_of(store)[:120]
    assert scale_gamma(store) == pytest.approx(1 / (6 * X.var()))


def test_more_components_than_training_rows_are_refused(store):
    with pytest.raises(ValueError, match=r"components must be at most the 120 training rows of"):
        draw_map(store, "nystroem", n_components=121, gamma=1.0, seed=0)


def test_a_file_that_is_no_map_is_refused(tmp_path):
    with pytest.raises(ValueError, match=r"map '.*none.npz' does not exist\."):
        load_map(tmp_path / "none.npz")
    np.savez(tmp_path / "other.npz", X=np.ones(3))
    with pytest.raises(ValueError, match=r"must be a map of features, but is damaged or another"):
        load_map(tmp_path / "other.npz")
