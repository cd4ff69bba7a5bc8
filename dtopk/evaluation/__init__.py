"""How good scores are, counted batch by batch: one true class a row, or a set of labels."""

from dtopk.evaluation.accuracy import AccuracyCounts, match_classes, rank_true_classes
from dtopk.evaluation.label_metrics import LABEL_METRICS, LabelMetric
from dtopk.evaluation.multilabel import MultilabelCounts
from dtopk.evaluation.thresholds import ChosenThreshold, ThresholdGrid, choose_threshold

__all__ = [
    "LABEL_METRICS",
    "AccuracyCounts",
    "ChosenThreshold",
    "LabelMetric",
    "MultilabelCounts",
    "ThresholdGrid",
    "choose_threshold",
    "match_classes",
    "rank_true_classes",
]
