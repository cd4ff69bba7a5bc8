"""When a metric has stopped getting better, and how metrics are named."""

import math

import pytest

from dtopk.evaluation import ImprovementWatch, check_metric, lower_is_better, parse_topk_accuracy

NAN = math.nan


def stop_epoch(values, **options):
    watch = ImprovementWatch(**options)
    for epoch, value in enumerate(values, 1):
        if watch.add(epoch, value):
            return epoch, watch.best_epoch
    return None, watch.best_epoch


@pytest.mark.parametrize(
    ("values", "options", "expected"),
    [
        # 0.6 after epoch 2 is never beaten: epochs 3, 4, 5 are the three without a better one.
        ([0.5, 0.6, 0.55, 0.6, 0.59, 0.7], {"patience": 3}, (5, 2)),
        ([0.5, 0.6, 0.55, 0.61, 0.6, 0.6], {"patience": 3}, (None, 4)),
        ([0.1, 0.2, 0.3, 0.4], {"patience": 1}, (None, 4)),
        ([0.1, 0.1], {"patience": 1}, (2, 1)),
        # From 0.5 the first gain above 0.25 is that of 0.8; 0.75 gains just as much.
        ([0.5, 0.6, 0.75, 0.8, 0.8, 0.8, 0.8], {"patience": 3, "min_delta": 0.25}, (7, 4)),
        ([0.5, 0.4, 0.6, 0.7], {"patience": 2, "lower_is_better": True}, (4, 2)),
        ([NAN, NAN, 0.1, NAN, 0.05], {"patience": 3}, (None, 3)),
        ([NAN, NAN, NAN], {"patience": 2}, (3, 1)),
    ],
)
def test_watch_stops_after_patience_epochs_without_a_better_one(values, options, expected):
    assert stop_epoch(values, **options) == expected


def test_watch_that_hears_of_an_epoch_again_says_the_same():
    watch = ImprovementWatch(patience=2)
    said = [watch.add(epoch, value) for epoch, value in [(1, 0.5), (1, 0.5), (2, 0.4), (2, 0.4)]]
    assert said == [False] * 4
    assert (watch.best_epoch, watch.best_value) == (1, 0.5)


@pytest.mark.parametrize(("metric", "k"), [
    ("top_1_accuracy", 1), ("top_12_accuracy", 12), ("top_0_accuracy", 0), ("top_5", 0),
    ("rank_loss", 0),
])  # fmt: skip
def test_topk_accuracy_is_known_by_its_name(metric, k):
    assert parse_topk_accuracy(metric) == k


def test_less_of_the_rank_loss_is_better():
    assert lower_is_better("rank_loss")
    assert not lower_is_better("mean_average_precision")
    assert not lower_is_better("top_1_accuracy")


@pytest.mark.parametrize("metric", ["accuracy", "top_0_accuracy", "top_4_accuracy", "rank_loss"])
def test_metric_that_there_is_not_is_refused_with_those_there_are(metric):
    with pytest.raises(
        ValueError,
        match=rf"^metric must be 'top_k_accuracy' with a number k from 1 to n_classes - 1 = 3, "
        rf"got '{metric}'\.$",
    ):
        check_metric("metric", metric, n_classes=4, others=())
