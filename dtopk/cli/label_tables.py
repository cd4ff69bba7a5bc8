"""What `train` and `evaluate` say of rows that have sets of labels."""

from collections.abc import Mapping

from dtopk.cli.output import format_table

_NAMES = {
    "rank_loss": "rank loss",
    "mean_average_precision": "mean average precision",
    "f1_samples": "F1 by row",
    "f1_macro": "F1 by class",
    "f1_micro": "F1 of all",
    "accuracy": "accuracy (Jaccard) by row",
    "subset_accuracy": "subset accuracy",
    "hamming_loss": "Hamming loss",
    "threshold": "at the threshold",
}


def format_label_metrics(metrics: Mapping[str, Mapping[str, float]]) -> str:
    """Lay out the metrics of some splits, one a column.

    Parameters
    ----------
    metrics : mapping of str to mapping of str to float
        By split and name.
    """
    rows = [
        [title, *(f"{by_name[name]:.4f}" for by_name in metrics.values())]
        for name, title in _NAMES.items()
    ]
    return format_table(rows, header=("metric", *metrics))
