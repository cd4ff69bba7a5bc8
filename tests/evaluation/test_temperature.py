"""The temperature of least negative log-likelihood."""

import numpy as np
import pytest
from scipy.optimize import minimize_scalar
from scipy.special import log_softmax

from dtopk.evaluation import fit_temperature


def draw(rng, *, scale, n_rows=500, n_classes=5):
    """Draw scores, and labels from the softmax of scores / scale."""
    u = rng.normal(size=(n_rows, n_classes))
    p = np.exp(log_softmax(u, axis=1))
    y = (p.cumsum(axis=1) < rng.random(size=(n_rows, 1))).sum(axis=1).clip(max=n_classes - 1)
    return y, (scale * u).astype(np.float32)


def in_batches(y, scores, size=64):
    def batches():
        for start in range(0, len(y), size):
            yield y[start : start + size], scores[start : start + size]

    return batches


def likelihood(inverse, y, scores):
    return -log_softmax(inverse * scores.astype(np.float64), axis=1)[np.arange(len(y)), y].sum()


@pytest.mark.parametrize("scale", [1e-4, 0.1, 1, 7, 1e3])
def test_temperature_equals_scipys_minimiser(rng, scale):
    y, scores = draw(rng, scale=scale)
    expected = minimize_scalar(
        lambda log_inverse: likelihood(np.exp(log_inverse), y, scores),
        bracket=(-np.log(scale) - 1, -np.log(scale) + 1),
        options={"xtol": 1e-10},
    )
    assert fit_temperature(in_batches(y, scores)) == pytest.approx(np.exp(-expected.x), rel=1e-6)


def test_temperature_by_hand():
    """Two classes, scores (1, 0): right three times of four, so that 1/(1 + exp(-1/T)) = 3/4."""
    scores = np.array([[1.0, 0]] * 4)
    found = fit_temperature(in_batches(np.array([0, 0, 0, 1]), scores))
    assert found == pytest.approx(1 / np.log(3), rel=1e-12)


def test_temperature_does_not_depend_on_batches(rng):
    y, scores = draw(rng, scale=3)
    found = [fit_temperature(in_batches(y, scores, size)) for size in (1, 64, 500)]
    np.testing.assert_allclose(found, found[0], rtol=1e-12)


def test_temperature_takes_few_passes(rng):
    y, scores = draw(rng, scale=3)
    passes = []

    def batches():
        passes.append(1)
        return in_batches(y, scores)()

    fit_temperature(batches)
    assert len(passes) <= 8


def test_temperature_bears_an_offset_of_the_scores(rng):
    """A constant added to a row changes nothing: differences alone count."""
    y, scores = draw(rng, scale=1)
    expected = fit_temperature(in_batches(y, scores))
    shifted = scores.astype(np.float64) + 1e6
    assert fit_temperature(in_batches(y, shifted)) == pytest.approx(expected, rel=1e-6)


def test_rows_that_are_all_right_have_no_temperature():
    with pytest.raises(ValueError, match="must hold one that is not predicted right, got 3 whose"):
        fit_temperature(in_batches(np.array([0, 1, 2]), np.eye(3)))


def test_scores_no_better_than_chance_have_no_temperature():
    with pytest.raises(ValueError, match="no better than chance"):
        fit_temperature(in_batches(np.array([1, 2, 0]), np.eye(3)))


def test_no_rows_have_no_temperature():
    with pytest.raises(ValueError, match="must be at least 1, got none"):
        fit_temperature(lambda: iter(()))
