"""How probabilities and sets of labels are laid out for reading."""

from collections.abc import Mapping, Sequence
from typing import Any

from dtopk.calibration import Calibration
from dtopk.cli.output import format_table
from dtopk.evaluation import ReliabilityCounts, SetCounts

_BINS = 15


def summarise_reliability(counts: ReliabilityCounts, n_bins: int = _BINS) -> dict[str, Any]:
    """Collect what there is to say about probabilities, in values that JSON has."""
    return {
        "accuracy": counts.accuracy(),
        "confidence": counts.confidence(),
        "negative_log_likelihood": counts.negative_log_likelihood,
        "expected_calibration_error": {
            "equal_width": counts.bins(n_bins, "equal_width").calibration_error,
            "equal_mass": counts.bins(n_bins, "equal_mass").calibration_error,
            "n_bins": n_bins,
        },
    }


def summarise_sets(sets: Sequence[SetCounts]) -> list[dict[str, Any]]:
    """Collect what there is to say about sets of each coverage, in values that JSON has."""
    return [
        {
            "coverage": counts.coverage,
            "reached": counts.reached,
            "mean_size": counts.mean_size,
            "largest": counts.largest,
            "n_empty": counts.n_empty,
        }
        for counts in sets
    ]


def format_reliability(by_name: Mapping[str, dict[str, Any]]) -> str:
    """Lay out what `summarise_reliability` returns, a line a name."""
    rows = []
    for name, fields in by_name.items():
        errors = fields["expected_calibration_error"]
        rows.append(
            [
                name,
                f"{100 * fields['accuracy']:.2f}%",
                f"{100 * fields['confidence']:.2f}%",
                f"{fields['negative_log_likelihood']:.4f}",
                f"{100 * errors['equal_width']:.2f}%",
                f"{100 * errors['equal_mass']:.2f}%",
            ]
        )
    header = ("probabilities", "accuracy", "confidence", "NLL", "ECE", "ECE, equal mass")
    return format_table(rows, header=header)


def format_sets(sets: Sequence[dict[str, Any]]) -> str:
    """Lay out what `summarise_sets` returns, a line a coverage."""
    rows = [
        [
            f"{100 * fields['coverage']:g}%",
            f"{100 * fields['reached']:.2f}%",
            f"{fields['mean_size']:.2f}",
            f"{fields['largest']:,}",
            f"{fields['n_empty']:,}",
        ]
        for fields in sets
    ]
    return format_table(rows, header=("coverage", "reached", "mean size", "largest", "empty"))


def describe_score(calibration: Calibration) -> str:
    """Name the nonconformity score with its parameters."""
    parameters = [
        f"{name} = {value:g}"
        for name, value in (("k", calibration.k), ("penalty", calibration.penalty))
        if value is not None
    ]
    return ", ".join([calibration.score, *parameters])
