"""Counting accuracy batch by batch."""

import numpy as np
import pytest
from sklearn.metrics import accuracy_score, confusion_matrix, top_k_accuracy_score

from dtopk.evaluation import AccuracyCounts, match_classes, rank_true_classes


@pytest.fixture
def rows():
    rng = np.random.default_rng(0)
    return rng.integers(0, 7, size=400), rng.normal(size=(400, 7))


def count(y, scores):
    counts = AccuracyCounts(n_classes=scores.shape[1])
    counts.update(y, scores)
    return counts


def test_rank_by_hand():
    """In turn: the highest; one above; equal to an earlier class; equal to later ones only."""
    scores = np.array([[3.0, 1, 2], [3, 1, 2], [5, 5, 0], [5, 5, 5]])
    np.testing.assert_array_equal(rank_true_classes(np.array([0, 2, 1, 0]), scores), [0, 1, 1, 0])


@pytest.mark.parametrize("k", range(1, 7))
def test_topk_accuracy_equals_sklearn_without_ties(rows, k):
    y, scores = rows
    assert count(y, scores).topk_accuracy(k) == pytest.approx(
        top_k_accuracy_score(y, scores, k=k, labels=range(7)), rel=1e-12
    )


def test_topk_accuracy_of_all_classes_is_one(rows):
    assert count(*rows).topk_accuracy(7) == 1


def test_equal_scores_earn_no_more_than_chance():
    """All scores equal, as of W = 0: the first of four classes is predicted for every row."""
    counts = count(np.array([0, 1, 2, 3]), np.zeros((4, 4)))
    assert counts.topk_accuracies() == {1: 0.25, 2: 0.5, 3: 0.75, 4: 1.0}


def test_class_accuracy_and_confusions_equal_sklearn(rows):
    y, scores = rows
    counts = count(y, scores)
    predicted = scores.argmax(axis=1)
    matrix = confusion_matrix(y, predicted, labels=range(7))
    np.testing.assert_allclose(counts.accuracy_by_class(), matrix.diagonal() / matrix.sum(axis=1))
    assert counts.topk_accuracy(1) == accuracy_score(y, predicted)
    np.fill_diagonal(matrix, 0)
    for true, chosen, n_rows in counts.most_confused(5):
        assert matrix[true, chosen] == n_rows
    assert counts.most_confused(1)[0][2] == matrix.max()


def test_batches_add_up_to_the_whole(rows):
    y, scores = rows
    whole, batches = count(y, scores), AccuracyCounts(n_classes=7)
    for start in range(0, 400, 90):
        batches.update(y[start : start + 90], scores[start : start + 90])
    np.testing.assert_array_equal(batches.rows_by_rank, whole.rows_by_rank)
    np.testing.assert_array_equal(batches.correct_by_class, whole.correct_by_class)
    assert batches.confusions == whole.confusions


def test_class_without_rows_has_no_accuracy():
    counts = count(np.array([0]), np.array([[1.0, 0]]))
    np.testing.assert_array_equal(counts.accuracy_by_class(), [1, np.nan])


def test_empty_batch_counts_nothing():
    counts = count(np.zeros(0, dtype=np.int32), np.zeros((0, 3)))
    assert counts.n_rows == 0
    assert np.isnan(counts.topk_accuracy(1))


@pytest.mark.parametrize("k", [0, 8])
def test_topk_accuracy_refuses_k_out_of_range(rows, k):
    with pytest.raises(ValueError, match=rf"k must be between 1 and n_classes = 7, got {k}\."):
        count(*rows).topk_accuracy(k)


def test_classes_are_matched_by_name():
    columns = match_classes(("b", "z", "a"), np.array(["a", "b", "c"]))
    np.testing.assert_array_equal(columns, [1, -1, 0])
    np.testing.assert_array_equal(match_classes(("20", "10"), np.array([10, 20])), [1, 0])
