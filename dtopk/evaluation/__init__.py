"""How good scores are, counted batch by batch: one true class a row, or a set of labels."""

from dtopk.evaluation.accuracy import AccuracyCounts, match_classes, rank_true_classes
from dtopk.evaluation.conformal import CalibrationCounts, fit_calibration
from dtopk.evaluation.early_stopping import (
    RANKING_METRICS,
    ImprovementWatch,
    check_metric,
    lower_is_better,
    parse_topk_accuracy,
)
from dtopk.evaluation.label_metrics import LABEL_METRICS, LabelMetric
from dtopk.evaluation.multilabel import MultilabelCounts
from dtopk.evaluation.reliability import Binning, ReliabilityBins, ReliabilityCounts, SetCounts
from dtopk.evaluation.temperature import ScoreBatches, fit_temperature
from dtopk.evaluation.thresholds import ChosenThreshold, ThresholdGrid, choose_threshold

__all__ = [
    "LABEL_METRICS",
    "RANKING_METRICS",
    "AccuracyCounts",
    "Binning",
    "CalibrationCounts",
    "ChosenThreshold",
    "ImprovementWatch",
    "LabelMetric",
    "MultilabelCounts",
    "ReliabilityBins",
    "ReliabilityCounts",
    "ScoreBatches",
    "SetCounts",
    "ThresholdGrid",
    "check_metric",
    "choose_threshold",
    "fit_calibration",
    "fit_temperature",
    "lower_is_better",
    "match_classes",
    "parse_topk_accuracy",
    "rank_true_classes",
]
