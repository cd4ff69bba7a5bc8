"""Choosing the threshold that makes a metric best."""

import itertools

import numpy as np
import pytest

from dtopk.evaluation import (
    LABEL_METRICS,
    MultilabelCounts,
    ThresholdGrid,
    choose_threshold,
    score_spool,
)
from dtopk.evaluation.descending import iter_descending
from dtopk.evaluation.label_metrics import measure_thresholds
from tests.evaluation.label_cases import CASES, N_CLASSES, count_labels, make_case

REL = 1e-13
"""Sums of some hundred numbers in another order differ by so much at most."""

every_metric = pytest.mark.parametrize("metric", list(LABEL_METRICS))
every_case = pytest.mark.parametrize("case", CASES)


def best_by_force(counts, scores):
    """Measure every set of labels that a threshold can predict, for the best of each metric."""
    deltas = np.append(np.unique(scores), scores.min() - 1)
    measured = measure_thresholds(counts.spool, deltas, counts.zero_division)
    return {
        name: metric.sign * max(metric.sign * values[name] for values in measured)
        for name, metric in LABEL_METRICS.items()
    }


@pytest.mark.parametrize("zero_division", [0.0, 1.0])
@every_case
def test_exact_threshold_is_as_good_as_the_best_by_force(case, zero_division):
    indicator, scores = make_case(case)
    counts = count_labels(indicator, scores, zero_division=zero_division)
    values = {metric: choose_threshold(metric, counts).value for metric in LABEL_METRICS}
    assert values == pytest.approx(best_by_force(counts, scores), rel=REL, abs=REL)


@every_metric
def test_value_is_the_metric_at_the_threshold(metric):
    counts = count_labels(*make_case("random"))
    chosen = choose_threshold(metric, counts)
    assert chosen.metric == metric
    assert chosen.value == counts.label_metrics(chosen.delta)[metric]


@every_metric
def test_threshold_between_separated_scores_lies_midway(metric):
    """All labels score 3 or more, all others 2 or less."""
    indicator = np.array([[0, 0, 1, 1], [0, 0, 0, 1]])
    counts = count_labels(indicator, np.array([[1.0, 2, 3, 4], [0, 1, 2, 5]]), zero_division=1.0)
    chosen = choose_threshold(metric, counts)
    assert chosen.delta == 2.5
    assert chosen.value == (1 if LABEL_METRICS[metric].sign > 0 else 0)


def test_threshold_by_hand():
    """One class. From the highest: a label, none, three labels, none.

    After each, F1 is 2/5, 2/6, and, the three being equal, 8/9, and last 8/10.
    """
    indicator = np.array([[1], [0], [1], [1], [1], [0]])
    scores = np.array([[9.0], [8], [6], [6], [6], [1]])
    chosen = choose_threshold("f1_micro", count_labels(indicator, scores))
    assert chosen.delta == 3.5
    assert chosen.value == pytest.approx(8 / 9, rel=REL)


@pytest.mark.parametrize(("label", "delta"), [(0, 4.0), (1, -2.0)])
def test_no_label_and_every_label_are_thresholds_too(label, delta):
    indicator = np.full((2, 2), label)
    counts = count_labels(indicator, np.array([[-1.0, 2], [3, 0]]))
    chosen = choose_threshold("hamming_loss", counts)
    assert (chosen.delta, chosen.value) == (delta, 0)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("lower", [0.0, 1.0, -1e30, 3e38])
def test_threshold_separates_neighbours_of_the_type(dtype, lower):
    """There is no number between the two scores, or their sum is infinite."""
    lower = dtype(lower)
    upper = np.nextafter(lower, dtype(np.inf))
    counts = count_labels(np.array([[0, 1]]), np.array([[lower, upper]]), dtype=dtype)
    delta = choose_threshold("hamming_loss", counts).delta
    assert [lower > delta, upper > delta] == [False, True]


def test_every_label_is_predicted_where_scores_are_huge():
    """1 below is no other number here."""
    counts = count_labels(np.array([[1, 1]]), np.array([[-1e30, 1e30]]))
    assert choose_threshold("hamming_loss", counts).value == 0


def test_highest_of_equally_good_thresholds_is_chosen():
    """From the highest: a label, none, a label, none: two places are wrong after 1, 2, 3 and 4."""
    indicator, scores = np.array([[1, 0, 1, 0]]), np.array([[4.0, 3, 2, 1]])
    chosen = choose_threshold("hamming_loss", count_labels(indicator, scores))
    assert (chosen.delta, chosen.value) == (3.5, 1 / 4)


@every_metric
@every_case
def test_threshold_does_not_depend_on_batches_or_memory(case, metric, monkeypatch):
    """With 600 bytes six scores are sorted at a time, and the others are in a file."""
    whole = choose_threshold(metric, count_labels(*make_case(case)))
    monkeypatch.setattr(score_spool, "_CHUNK_BYTES", 6 * N_CLASSES * 5)
    counts = count_labels(*make_case(case), batch_rows=7, memory_bytes=600)
    chosen = choose_threshold(metric, counts)
    assert chosen.delta == whole.delta
    assert chosen.value == pytest.approx(whole.value, rel=REL)


@pytest.mark.parametrize("memory_bytes", [1, 96 * 20, 96 * 300, 96 * 1000])
def test_descending_ranges_are_the_sorted_whole(rng, memory_bytes):
    scores = [rng.integers(0, 400, size=size) for size in (100, 1, 399, 500)]
    pieces = [(piece, piece + 7) for piece in scores]
    ranges = list(iter_descending(pieces, 1000, memory_bytes))
    descending = np.sort(np.concatenate(scores))[::-1]
    np.testing.assert_array_equal(np.concatenate([piece for piece, _ in ranges]), descending)
    np.testing.assert_array_equal(np.concatenate([piece for _, piece in ranges]), descending + 7)


def test_descending_ranges_keep_to_their_memory(rng):
    """The scores are distinct; all those of one piece are higher than those of the other."""
    scores = [rng.permutation(500), 500 + rng.permutation(500)]
    ranges = list(iter_descending([(piece, piece) for piece in scores], 1000, 96 * 100))
    assert max(len(piece) for piece, _ in ranges) <= 100


def test_descending_ranges_do_not_part_equal_scores(rng):
    scores = rng.integers(0, 5, size=(10, 30))
    ranges = [piece for piece, _ in iter_descending(zip(scores, scores, strict=True), 300, 96)]
    for above, below in itertools.pairwise(ranges):
        assert above.min() > below.max()


@every_metric
@pytest.mark.parametrize("case", ["random", "tied", "equal"])
def test_grid_threshold_is_the_best_of_the_grid(case, metric):
    indicator, scores = make_case(case)
    counts = count_labels(indicator, scores)
    chosen = choose_threshold(metric, counts, grid=ThresholdGrid())
    ends = float(scores.max()), float(scores.min())
    deltas = np.linspace(*ends, 71).astype(np.float32).tolist()
    measured = measure_thresholds(counts.spool, deltas, 0.0)
    values = np.array([metrics[metric] for metrics in measured])
    best = int(np.argmax(LABEL_METRICS[metric].sign * values))
    assert (chosen.delta, chosen.value) == (deltas[best], values[best])


def test_grid_keeps_to_its_ends():
    """Only 0, 1 and 2 are tried; 2 and 1 predict the same."""
    counts = count_labels(np.array([[1, 0, 0]]), np.array([[9.0, 0.5, -5]]))
    grid = ThresholdGrid(n_values=3, low=0.0, high=2.0)
    assert choose_threshold("hamming_loss", counts, grid=grid).delta == 2


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"n_values": 1}, r"n_values must be at least 2, got 1\."),
        ({"low": float("nan")}, r"low must be finite, got nan\."),
        ({"high": float("inf")}, r"high must be finite, got inf\."),
        ({"low": 1.0, "high": 1.0}, r"low must be below high = 1\.0, got 1\.0\."),
    ],
)
def test_grid_that_is_none_is_refused(options, message):
    with pytest.raises(ValueError, match=message):
        ThresholdGrid(**options)


@pytest.mark.parametrize("ends", [{"low": 10.0}, {"high": -10.0}])
def test_grid_that_misses_the_scores_needs_both_ends(ends):
    counts = count_labels(np.array([[1, 0]]), np.array([[1.0, 0]]))
    with pytest.raises(ValueError, match=r"low must be at most high, got .* Give both\."):
        choose_threshold("accuracy", counts, grid=ThresholdGrid(**ends))


def test_unknown_metric_is_refused_with_the_nearest():
    counts = count_labels(*make_case("one row"))
    with pytest.raises(
        ValueError,
        match=r"metric 'f1_sample' is unknown\. Did you mean 'f1_samples'\? Available: 'f1_samp",
    ):
        choose_threshold("f1_sample", counts)


def test_threshold_of_no_rows_is_refused():
    with pytest.raises(ValueError, match=r"counts must hold at least 1 row, got 0\."):
        choose_threshold("accuracy", MultilabelCounts(n_classes=2))
