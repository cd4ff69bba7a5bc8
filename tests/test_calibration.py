"""Temperatures, and labels' nonconformity with its quantiles."""

from typing import Any

import numpy as np
import pytest

from dtopk.calibration import (
    CALIBRATION_VERSION,
    CONFORMAL_SCORES,
    RANKED_SCORES,
    Calibration,
    NewerCalibrationError,
    read_calibration,
    score_labels,
)

SCORES: list[dict[str, Any]] = [
    {"score": "lac"},
    {"score": "aps"},
    {"score": "raps", "k": 2, "penalty": 0.1},
    {"score": "margin", "k": 1},
    {"score": "margin", "k": 3},
]


def make_calibration(n_rows=9, **changes):
    """Scores 1, 2, ..., n_rows."""
    fields = {
        "temperature": 2.0,
        "n_classes": 4,
        "score": "lac",
        "conformal_scores": np.arange(1, n_rows + 1, dtype=np.float32),
        "source": {"split": "val"},
    }
    return Calibration(**(fields | changes))


def name(score):
    return "-".join(map(str, score.values()))


def score_by_hand(score, k=None, penalty=None):
    """Score u = (0, log 2, log 5), whose probabilities are 1/8, 2/8 and 5/8."""
    scores = np.log(np.array([[1.0, 2, 5]]))
    return score_labels(scores, score, temperature=1.0, k=k, penalty=penalty)[0]


def test_lac_by_hand():
    np.testing.assert_allclose(score_by_hand("lac"), -np.log([1 / 8, 2 / 8, 5 / 8]), rtol=1e-6)


def test_aps_by_hand():
    """5/8 alone, 5/8 + 2/8, and all."""
    np.testing.assert_allclose(score_by_hand("aps"), [1, 7 / 8, 5 / 8], rtol=1e-6)


def test_raps_by_hand():
    """Places 3, 2, 1: the last one pays once where k = 2."""
    np.testing.assert_allclose(score_by_hand("raps", 2, 0.5), [1.5, 7 / 8, 5 / 8], rtol=1e-6)


@pytest.mark.parametrize(
    ("k", "others"), [(1, (np.log(5), np.log(5), np.log(2))), (2, (np.log(2), 0, 0))]
)
def test_margin_by_hand(k, others):
    """The highest of the others is log 5, and log 2 for the best; the second is log 2, 0 and 0."""
    expected = np.array(others) - np.log([1, 2, 5])
    np.testing.assert_allclose(score_by_hand("margin", k), expected, rtol=1e-6)


@pytest.mark.parametrize("score", SCORES, ids=name)
def test_sets_hold_the_best_labels(rng, score):
    """A better label never fits less, so that a set is the beginning of a row's ranking."""
    scores = rng.normal(size=(200, 6)).astype(np.float32)
    parameters = {"k": None, "penalty": None} | {n: v for n, v in score.items() if n != "score"}
    found = score_labels(scores, score["score"], temperature=0.7, **parameters)
    in_order = np.take_along_axis(found, np.argsort(-scores, axis=1), axis=1)
    assert (np.diff(in_order, axis=1) >= 0).all()


def test_equal_scores_fit_in_class_order():
    """Two best labels of 1/2 each: the first is placed first."""
    found = score_labels(np.zeros((1, 2)), "aps", temperature=1.0, k=None, penalty=None)
    np.testing.assert_allclose(found, [[0.5, 1.0]])


@pytest.mark.parametrize(("coverage", "threshold"), [(0.05, 1), (0.1, 1), (0.11, 2), (0.9, 9)])
def test_threshold_is_the_quantile_of_finite_samples(coverage, threshold):
    """Of 9 rows the ceil(10 coverage)-th: 0.9 * 10 is 9, and not a little more."""
    assert make_calibration().threshold(coverage) == threshold


@pytest.mark.parametrize("n_rows", [9, 99, 999, 4999])
def test_threshold_counts_decimals_as_they_are_written(n_rows):
    calibration = make_calibration(n_rows)
    for hundredths in range(1, 100):
        place = -(-(n_rows + 1) * hundredths // 100)
        if place <= n_rows:
            assert calibration.threshold(hundredths / 100) == place


def test_coverage_beyond_the_rows_is_refused():
    with pytest.raises(
        ValueError, match=r"at most n / \(n \+ 1\) = 0\.9 with the n = 9 rows.*0.95"
    ):
        make_calibration().threshold(0.95)


@pytest.mark.parametrize("coverage", [0, 1, -1, float("nan")])
def test_coverage_must_be_a_share(coverage):
    with pytest.raises(ValueError, match="coverage must be above 0 and below 1"):
        make_calibration().threshold(coverage)


def test_probabilities_are_of_scores_by_temperature():
    """Scores 2 log (1, 2, 5, 0+) by 2."""
    scores = np.array([[0, 2 * np.log(2), 2 * np.log(5), -2000]])
    expected = [[1 / 8, 2 / 8, 5 / 8, 0]]
    np.testing.assert_allclose(make_calibration().probabilities(scores), expected, rtol=1e-12)


def test_probabilities_have_the_type_of_scores():
    assert make_calibration().probabilities(np.zeros((1, 4), np.float32)).dtype == np.float32


def test_calibration_refuses_another_number_of_classes():
    for method in (make_calibration().probabilities, make_calibration().nonconformity):
        with pytest.raises(ValueError, match=r"shape \(n_samples, 4\), as those that were cali"):
            method(np.zeros((2, 3)))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"temperature": 0.0}, "temperature must be finite and above 0, got 0.0"),
        ({"score": "rank"}, "score 'rank' is unknown. Available: 'lac', 'aps', 'raps', 'margin'"),
        ({"k": 1}, "k must be left out with the score 'lac', got 1"),
        ({"penalty": 0.1}, "penalty must be left out with the score 'lac', got 0.1"),
        ({"score": "margin", "k": 4}, "k must be between 1 and n_classes - 1 = 3, got 4"),
        ({"score": "raps", "k": 1}, "penalty must be finite and above 0 with the score 'raps'"),
        ({"conformal_scores": np.ones(0, np.float32)}, "must be float32 .* and not empty"),
        ({"conformal_scores": np.array([2, 1], np.float32)}, "must be finite and in ascending"),
    ],
)
def test_calibration_refuses_what_it_cannot_be(changes, message):
    with pytest.raises(ValueError, match=message):
        make_calibration(**changes)


@pytest.mark.parametrize("k", [None, 1.5, True])
def test_score_by_rank_wants_an_integer(k):
    with pytest.raises(TypeError, match="k must be an integer with the score 'margin', got"):
        make_calibration(score="margin", k=k)


@pytest.mark.parametrize("score", SCORES, ids=name)
def test_calibration_comes_back_from_its_bytes(score):
    calibration = make_calibration(**score)
    again = read_calibration(calibration.to_bytes())
    np.testing.assert_array_equal(again.conformal_scores, calibration.conformal_scores)
    for each in ("temperature", "n_classes", "score", "k", "penalty", "source"):
        assert getattr(again, each) == getattr(calibration, each)


def test_calibration_of_a_newer_version_is_refused(monkeypatch):
    content = make_calibration().to_bytes()
    monkeypatch.setattr("dtopk.calibration.CALIBRATION_VERSION", CALIBRATION_VERSION - 1)
    with pytest.raises(NewerCalibrationError, match=r"must be at most 0, got 1\. A newer dtopk"):
        read_calibration(content)


def test_every_score_is_tested():
    assert {score["score"] for score in SCORES} == set(CONFORMAL_SCORES)
    assert {score["score"] for score in SCORES if "k" in score} == set(RANKED_SCORES)
