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
    """The sums before are 7/8, 5/8 and 0."""
    np.testing.assert_allclose(score_by_hand("aps"), -np.log([1 / 8, 3 / 8, 1]), rtol=1e-6)


def test_raps_by_hand():
    """The sums before, less 1; places 3, 2, 1: the third pays once where k = 2."""
    np.testing.assert_allclose(score_by_hand("raps", 2, 0.5), [3 / 8, -3 / 8, -1], rtol=1e-6)


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
    np.testing.assert_allclose(found, [[0, np.log(2)]])


def score_probabilities(p, score, **parameters):
    """Score labels of some probabilities, which need not sum to 1."""
    parameters = {"k": None, "penalty": None} | parameters
    return score_labels(np.log(np.array([p])), score, temperature=1.0, **parameters)[0]


@pytest.mark.parametrize("score", [{"score": "aps"}, {"score": "raps", "k": 2, "penalty": 0.1}])
def test_sets_of_sums_hold_the_best_label_of_every_row(rng, score):
    """Of a row of p_1 = 0.999 too, where p_1 alone is above the sum that is asked for."""
    fitted = np.array([score_probabilities([0.5, 0.3, 0.15, 0.05], **score)[0]] * 9)
    calibration = make_calibration(conformal_scores=fitted, temperature=1.0, **score)
    sure = np.log([[0.999, 0.0005, 0.0003, 0.0002]])
    np.testing.assert_array_equal(calibration.find_sets(sure, 0.5), [[True, False, False, False]])
    scores = 20 * rng.standard_normal((500, 4))
    assert calibration.find_sets(scores, 0.5).any(axis=1).all()


def test_set_of_aps_is_the_shortest_beginning_that_passes_the_threshold():
    """Of a sum of 0.6 passed: 0.5 + 0.3, and 0.7 alone, which crosses it at once."""
    fitted = np.full(9, -np.log1p(-0.6), np.float32)
    calibration = make_calibration(score="aps", conformal_scores=fitted, temperature=1.0)
    scores = np.log([[0.5, 0.3, 0.15, 0.05], [0.1, 0.1, 0.1, 0.7]])
    np.testing.assert_array_equal(
        calibration.find_sets(scores, 0.5),
        [[True, True, False, False], [False, False, False, True]],
    )


@pytest.mark.parametrize(
    "score", [{"score": "lac"}, {"score": "aps"}, {"score": "raps", "k": 199, "penalty": 0.1}]
)
def test_labels_of_sure_rows_are_told_apart(score):
    """200 labels, each of a probability e^-0.2 of the one before, the second of e^-40 = 4e-18."""
    u = np.concatenate([[0.0], -40 - 0.2 * np.arange(199)])
    parameters = {"k": None, "penalty": None} | score
    (found,) = score_labels(u[np.newaxis].astype(np.float32), temperature=1.0, **parameters)
    assert found.dtype == np.float32
    assert (np.diff(found) > 0).all()


def test_lac_of_the_best_label_is_the_sum_of_the_others():
    """-log(1 - 2e) is 2e to rounding where e = exp(-50)."""
    found = score_labels(np.array([[0.0, -50, -50]]), "lac", temperature=1.0, k=None, penalty=None)
    np.testing.assert_allclose(found[0], [2 * np.exp(-50), 50, 50], rtol=1e-6)


def test_aps_counts_the_tail_from_its_small_end():
    """-log(p_2 + p_3) of 1e-30 and 1e-32, which beside p_1 are nothing in float64 either."""
    found = score_probabilities([1, 1e-30, 1e-32], "aps")
    np.testing.assert_allclose(found, -np.log([1, 1.01e-30, 1e-32]), rtol=1e-6)
    assert np.isfinite(
        score_labels(np.array([[0.0, -2000]]), "aps", temperature=1.0, k=None, penalty=None)
    ).all()


@pytest.mark.parametrize("score", SCORES, ids=name)
def test_ties_keep_the_coverage(rng, score):
    """Rows of two kinds only: the labels' scores are of few values, and sets cover all the same."""
    kinds = rng.normal(size=(2, 4))
    scores = kinds[rng.integers(2, size=999)]
    y = (scores + rng.gumbel(size=scores.shape)).argmax(axis=1)
    parameters = {"k": None, "penalty": None} | score
    found = score_labels(scores, temperature=1.0, **parameters)[np.arange(999), y]
    calibration = make_calibration(temperature=1.0, conformal_scores=np.sort(found), **score)
    for coverage in (0.3, 0.6, 0.9):
        assert calibration.find_sets(scores, coverage)[np.arange(999), y].sum() >= 1000 * coverage


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
