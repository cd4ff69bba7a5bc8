"""Calibration error and the coverage of sets."""

import numpy as np
import pytest
from sklearn.calibration import calibration_curve
from sklearn.metrics import log_loss

from dtopk.evaluation import ReliabilityCounts, SetCounts


@pytest.fixture
def rows(rng):
    p = rng.dirichlet(np.full(4, 0.5), size=300)
    return rng.integers(0, 4, size=300), p


def count(y, probabilities, size=50):
    counts = ReliabilityCounts()
    for start in range(0, len(y), size):
        counts.update(y[start : start + size], probabilities[start : start + size])
    return counts


@pytest.mark.parametrize("binning", ["equal_width", "equal_mass"])
def test_calibration_error_by_hand(binning):
    """Two rows of confidence 0.6, one right: |1/2 - 0.6|; two of 0.9, both right: |1 - 0.9|."""
    p = np.array([[0.6, 0.4], [0.6, 0.4], [0.1, 0.9], [0.9, 0.1]])
    bins = count(np.array([0, 1, 1, 0]), p).bins(2 if binning == "equal_mass" else 10, binning)
    np.testing.assert_array_equal(bins.n_rows, [2, 2])
    np.testing.assert_allclose(bins.confidence, [0.6, 0.9], rtol=1e-6)
    np.testing.assert_array_equal(bins.accuracy, [0.5, 1])
    assert bins.calibration_error == pytest.approx((2 * 0.1 + 2 * 0.1) / 4, rel=1e-6)


@pytest.mark.parametrize(
    ("binning", "strategy"), [("equal_width", "uniform"), ("equal_mass", "quantile")]
)
def test_bins_equal_scikit_learns(rows, binning, strategy):
    """Whose bins hold as many rows where their number divides the rows but by one at a border."""
    y, p = rows
    bins = count(y, p).bins(10, binning)
    right, confidence = p.argmax(axis=1) == y, p.max(axis=1)
    accuracy, mean = calibration_curve(right, confidence, n_bins=10, strategy=strategy)
    tolerance = 1e-6 if binning == "equal_width" else 0.05
    np.testing.assert_allclose(bins.confidence, mean, rtol=tolerance)
    np.testing.assert_allclose(bins.accuracy, accuracy, atol=tolerance)


def test_bins_of_equal_mass_are_within_one_row(rows):
    n_rows = count(*rows).bins(7, "equal_mass").n_rows
    assert n_rows.sum() == 300
    assert np.ptp(n_rows) <= 1


def test_bins_of_equal_mass_leave_out_those_without_rows():
    counts = count(np.array([0, 1]), np.array([[0.7, 0.3], [0.6, 0.4]]))
    np.testing.assert_array_equal(counts.bins(15, "equal_mass").n_rows, [1, 1])


def test_batches_change_nothing(rows):
    y, p = rows
    whole, batches = count(y, p, size=300), count(y, p, size=7)
    for binning in ("equal_width", "equal_mass"):
        np.testing.assert_array_equal(
            batches.bins(9, binning).accuracy, whole.bins(9, binning).accuracy
        )


def test_likelihood_and_means_are_the_usual(rows):
    y, p = rows
    counts = count(y, p)
    assert counts.negative_log_likelihood == pytest.approx(log_loss(y, p), rel=1e-9)
    assert counts.accuracy() == (p.argmax(axis=1) == y).mean()
    assert counts.confidence() == pytest.approx(p.max(axis=1).mean(), rel=1e-6)


def test_impossible_labels_have_no_likelihood():
    assert count(np.array([1]), np.array([[1.0, 0]])).negative_log_likelihood == np.inf


def test_bins_refuse_what_they_cannot_be(rows):
    with pytest.raises(ValueError, match="n_bins must be at least 1, got 0"):
        count(*rows).bins(0)
    with pytest.raises(ValueError, match="binning must be 'equal_width' or 'equal_mass'"):
        count(*rows).bins(3, "quantile")
    with pytest.raises(ValueError, match="counts must hold at least 1 row"):
        ReliabilityCounts().bins()


def test_sets_are_counted_by_hand():
    """Sizes 2, 0 and 1; the first and last hold their label."""
    counts = SetCounts(coverage=0.9)
    counts.update(np.array([1, 0]), np.array([[True, True, False], [False] * 3]))
    counts.update(np.array([2]), np.array([[False, False, True]]))
    assert (counts.n_rows, counts.n_covered, counts.n_empty, counts.largest) == (3, 2, 1, 2)
    assert counts.reached == 2 / 3
    assert counts.mean_size == 1


def test_no_sets_have_no_coverage():
    assert np.isnan(SetCounts(coverage=0.9).reached)
    assert np.isnan(SetCounts(coverage=0.9).mean_size)
