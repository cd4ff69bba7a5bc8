"""Multilabel metrics, counted batch by batch."""

import numpy as np
import pytest
from sklearn.metrics import (
    accuracy_score,
    average_precision_score,
    f1_score,
    hamming_loss,
    jaccard_score,
    label_ranking_loss,
)

from dtopk.evaluation import LABEL_METRICS, AccuracyCounts, MultilabelCounts, score_spool
from tests.evaluation.label_cases import CASES, N_CLASSES, count_labels, make_case

REL = 1e-13
"""Sums of some hundred numbers in another order differ by so much at most."""

SKLEARN = {
    "f1_samples": lambda y, p, zero: f1_score(y, p, average="samples", zero_division=zero),
    "f1_macro": lambda y, p, zero: f1_score(y, p, average="macro", zero_division=zero),
    "f1_micro": lambda y, p, zero: f1_score(y, p, average="micro", zero_division=zero),
    "accuracy": lambda y, p, zero: jaccard_score(y, p, average="samples", zero_division=zero),
    "subset_accuracy": lambda y, p, zero: accuracy_score(y, p),
    "hamming_loss": lambda y, p, zero: hamming_loss(y, p),
}


def test_rank_loss_by_hand():
    """Labels 0 and 2. Of their pairs with 1 and 3 those with 1 are wrong: a tie, and 1 < 3."""
    counts = count_labels(np.array([[1, 0, 1, 0]]), np.array([[3.0, 3, 1, 0]]))
    assert counts.rank_loss() == 0.5


def test_average_precision_by_hand():
    """Scores in order, with the label or not: 4 yes, 3 no and yes (a tie), 1 yes.

    Recall grows by 1/3 at 4, 3 and 1, where the precision is 1/1, 2/3 and 3/4. The second class
    has no row.
    """
    indicator = np.array([[1, 0], [0, 0], [1, 0], [1, 0]])
    counts = count_labels(indicator, np.array([[4.0, 0], [3, 0], [3, 0], [1, 0]]))
    expected = [(1 + 2 / 3 + 3 / 4) / 3, np.nan]
    np.testing.assert_allclose(counts.average_precision_by_class(), expected, rtol=REL)
    assert counts.mean_average_precision() == pytest.approx(expected[0], rel=REL)


def test_topk_accuracy_by_hand():
    """In turn: label 1 after 3 (higher) and 0 (equal, earlier); a highest one; no label."""
    indicator = np.array([[0, 1, 1, 0], [1, 0, 0, 1], [0, 0, 0, 0]])
    scores = np.array([[2.0, 2, 2, 3], [1, 2, 3, 4], [1, 2, 3, 4]])
    counts = count_labels(indicator, scores)
    np.testing.assert_array_equal(counts.rows_by_rank, [1, 0, 1, 0])
    assert counts.topk_accuracies() == {1: 1 / 3, 2: 1 / 3, 3: 2 / 3, 4: 2 / 3}


def test_label_metrics_by_hand():
    """Row 0: true {0, 1}, predicted {0, 2}; row 1: {1} twice. A score of delta is not above it.

    F1 is 2/4 and 1, the Jaccard index 1/3 and 1. By class: 2/2, 2/3 and 0/1. Two of three labels
    predicted are true, and of three true ones are predicted; two of six places are wrong.
    """
    counts = count_labels(np.array([[1, 1, 0], [0, 1, 0]]), np.array([[1.0, 0.5, 2], [0.5, 1, -1]]))
    assert counts.label_metrics(0.5) == pytest.approx(
        {
            "f1_samples": 3 / 4,
            "f1_macro": (1 + 2 / 3 + 0) / 3,
            "f1_micro": 2 / 3,
            "accuracy": (1 / 3 + 1) / 2,
            "subset_accuracy": 1 / 2,
            "hamming_loss": 2 / 6,
        },
        rel=REL,
    )


@pytest.mark.parametrize("case", CASES)
def test_rank_loss_equals_sklearn(case):
    indicator, scores = make_case(case)
    expected = label_ranking_loss(indicator, scores)
    assert count_labels(indicator, scores).rank_loss() == pytest.approx(expected, rel=REL)


@pytest.mark.parametrize("case", CASES)
def test_average_precision_equals_sklearn(case):
    indicator, scores = make_case(case)
    counts = count_labels(indicator, scores)
    seen = indicator.any(axis=0)
    values = counts.average_precision_by_class()
    np.testing.assert_array_equal(np.isnan(values), ~seen)
    expected = [
        average_precision_score(indicator[:, j], scores[:, j]) for j in np.flatnonzero(seen)
    ]
    np.testing.assert_allclose(values[seen], expected, rtol=REL)
    mean = np.mean(expected) if expected else np.nan
    assert counts.mean_average_precision() == pytest.approx(mean, rel=REL, nan_ok=True)


@pytest.mark.parametrize("zero_division", [0.0, 1.0])
@pytest.mark.parametrize("case", CASES)
def test_label_metrics_equal_sklearn(case, zero_division):
    indicator, scores = make_case(case)
    counts = count_labels(indicator, scores, zero_division=zero_division)
    # Half of the labels, few, and none.
    for delta in (0.0, 1.5, 50.0):
        predicted = (scores > delta).astype(np.uint8)
        expected = {name: f(indicator, predicted, zero_division) for name, f in SKLEARN.items()}
        assert counts.label_metrics(delta) == pytest.approx(expected, rel=REL)


def test_every_label_metric_is_compared_with_sklearn():
    assert set(SKLEARN) == set(LABEL_METRICS)


def test_topk_accuracy_of_one_label_a_row_equals_that_of_classes(rng):
    y = rng.integers(0, 5, size=80)
    scores = rng.integers(0, 4, size=(80, 5)).astype(np.float64)
    by_class = AccuracyCounts(n_classes=5)
    by_class.update(y, scores)
    counts = count_labels(np.eye(5, dtype=bool)[y], scores)
    np.testing.assert_array_equal(counts.rows_by_rank, by_class.rows_by_rank)


@pytest.mark.parametrize("k", [1, 3, N_CLASSES])
@pytest.mark.parametrize("case", CASES)
def test_topk_accuracy_finds_labels_among_the_first_k(case, k):
    indicator, scores = make_case(case)
    # Stable, so that equal scores stay in class order.
    first = np.argsort(-scores, axis=1, kind="stable")[:, :k]
    expected = np.take_along_axis(indicator, first, axis=1).any(axis=1).mean()
    assert count_labels(indicator, scores).topk_accuracy(k) == pytest.approx(expected, rel=REL)


@pytest.mark.parametrize("batch_rows", [1, 7, 39])
@pytest.mark.parametrize("case", CASES)
def test_batches_add_up_to_the_whole(case, batch_rows):
    whole = count_labels(*make_case(case))
    counts = count_labels(*make_case(case), batch_rows=batch_rows)
    assert_same(counts, whole)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("case", CASES)
def test_scores_in_a_file_count_as_those_in_memory(case, dtype, monkeypatch):
    whole = count_labels(*make_case(case), dtype=dtype)
    # One class at a time, and six rows or four.
    monkeypatch.setattr(score_spool, "_CHUNK_BYTES", 6 * N_CLASSES * 5)
    counts = count_labels(*make_case(case), dtype=dtype, batch_rows=7, memory_bytes=600)
    assert counts.spool.held_bytes <= 600
    assert_same(counts, whole)


def assert_same(counts, whole):
    assert counts.n_rows == whole.n_rows
    assert counts.rank_loss() == pytest.approx(whole.rank_loss(), rel=REL)
    np.testing.assert_array_equal(counts.rows_by_rank, whole.rows_by_rank)
    np.testing.assert_array_equal(
        counts.average_precision_by_class(), whole.average_precision_by_class()
    )
    for delta in (0.0, 1.0):
        assert counts.label_metrics(delta) == pytest.approx(whole.label_metrics(delta), rel=REL)


def test_scores_are_compared_in_the_type_kept():
    """In float32 the two are equal, which is wrong; in float64 the label scores more."""
    indicator, scores = np.array([[1, 0]]), np.array([[1 + 1e-12, 1]])
    assert count_labels(indicator, scores).rank_loss() == 1
    assert count_labels(indicator, scores, dtype=np.float64).rank_loss() == 0


@pytest.mark.parametrize("delta", [0.1, 1e300, -1e300])
def test_threshold_is_rounded_as_numpy_does(delta):
    scores = np.array([[0.1, 0.2]], dtype=np.float32)
    with np.errstate(over="ignore"):
        n_predicted = int((scores > np.float32(delta)).sum())
    counts = count_labels(np.zeros((1, 2), dtype=bool), scores)
    assert counts.label_metrics(delta)["hamming_loss"] == n_predicted / 2


def test_no_rows_have_no_metrics():
    counts = MultilabelCounts(n_classes=3)
    counts.update(np.zeros((0, 3), dtype=bool), np.zeros((0, 3)))
    values = [counts.rank_loss(), counts.topk_accuracy(1), counts.mean_average_precision()]
    assert np.isnan([*values, *counts.label_metrics(0.0).values()]).all()
    assert np.isnan(counts.average_precision_by_class()).tolist() == [True] * 3


@pytest.mark.parametrize(
    ("indicator", "scores", "message"),
    [
        ([1, 0], [[1, 0]], r"indicator must have shape \(n_rows, 2\), got \(2,\)\."),
        ([[1, 0, 0]], [[1, 0]], r"indicator must have shape \(n_rows, 2\), got \(1, 3\)\."),
        ([[1, 0]], [[1, 0, 2]], r"scores must have shape \(1, 2\), .*, got \(1, 3\)\."),
        ([[1, 2]], [[1, 0]], r"indicator must hold 0 and 1, got 2 in row 1, column 1\."),
        ([[1, 0]], [[1, np.nan]], r"scores must be finite in float32, got nan in row 1, column 1"),
        ([[1, 0]], [[1e39, 0]], r"scores must be finite in float32, got 1e\+39 in row 1, column 0"),
    ],
)
def test_batch_that_is_none_is_refused_with_its_row(indicator, scores, message):
    counts = count_labels(np.array([[1, 0]]), np.array([[1.0, 0]]))
    with pytest.raises(ValueError, match=message):
        counts.update(np.array(indicator), np.array(scores, dtype=np.float64))
    assert counts.n_rows == counts.spool.n_rows == 1


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"dtype": np.float16}, r"dtype must be float32 or float64, got float16\."),
        ({"memory_bytes": 0}, r"memory_bytes must be at least 1, got 0\."),
        ({"zero_division": 0.5}, r"zero_division must be 0 or 1, got 0\.5\."),
    ],
)
def test_options_out_of_range_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        MultilabelCounts(n_classes=2, **options)


def test_threshold_that_is_no_number_is_refused():
    with pytest.raises(ValueError, match=r"delta must be a number, got nan\."):
        MultilabelCounts(n_classes=2).label_metrics(float("nan"))
