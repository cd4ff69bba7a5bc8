"""`dtopk evaluate`: how accurate a model is on the splits of a store."""

import math
from collections.abc import Sequence
from typing import Any

import click
import numpy as np

from dtopk.cli.calibration_tables import (
    format_reliability,
    format_sets,
    summarise_reliability,
    summarise_sets,
)
from dtopk.cli.label_tables import format_label_metrics
from dtopk.cli.output import answer, answer_json, format_table, json_option
from dtopk.cli.progress import RowProgress
from dtopk.evaluation import AccuracyCounts, CalibrationCounts, MultilabelCounts
from dtopk.job.scoring import evaluate_label_sets, evaluate_split, summarise_label_sets
from dtopk.model import Model, load_model
from dtopk_storage import open_store

_K_MAX = 10
_CLASSES_SHOWN = 5
_PAIRS_SHOWN = 10
_PAIRS_LISTED = 100


@click.command()
@click.argument("model_path", metavar="RUN_OR_MODEL")
@click.argument("store_path", metavar="STORE")
@click.option(
    "--split", "splits", multiple=True, default=("test",), show_default=True,
    help="Split to evaluate; may be given more than once.",
)  # fmt: skip
@click.option(
    "--threshold", type=float,
    help="Of a multilabel model: predict labels that score more.  [default: the model's]",
)  # fmt: skip
@json_option
def evaluate(
    model_path: str,
    store_path: str,
    splits: tuple[str, ...],
    threshold: float | None,
    as_json: bool,
) -> None:
    """Show how accurate a model is on a store.

    RUN_OR_MODEL is a run folder or a model file; it and STORE may be in an object store. The
    classes of the store are matched with the model's by name. Rows with sets of labels are measured
    by how these are ranked and, with those that score more than the threshold predicted, by what
    F1, accuracy and Hamming loss say. Of a calibrated model there is also how far its probabilities
    are from the accuracy (ECE), and how many of its conformal sets hold their row's label.
    """
    model = load_model(model_path)
    store = open_store(store_path)
    if threshold is not None and model.target != "multilabel":
        raise click.UsageError("--threshold must be left out for a model of one class a row.")
    if threshold is not None and not math.isfinite(threshold):
        raise click.UsageError(f"--threshold must be a finite number, got {threshold}.")
    for split in splits:
        store.split_ranges(split)
    results = {}
    for split in splits:
        with RowProgress(f"evaluating {split}") as progress:
            if model.target == "multilabel":
                level = model.threshold if threshold is None else threshold
                found = evaluate_label_sets(model, store, split, progress=progress)
                results[split] = _summarise_sets(found, model, level)
                text = _describe_sets(split, found, model, level)
            else:
                held = None
                if model.calibration is not None:
                    held = CalibrationCounts(calibration=model.calibration)
                also = None if held is None else held.update
                counts = evaluate_split(model, store, split, progress=progress, also=also)
                results[split] = _summarise(counts, model) | _summarise_calibration(held)
                text = _describe(split, counts, model) + _describe_calibration(held)
        if not as_json:
            answer(text)
    if as_json:
        answer_json({"model": model_path, "store": store_path, "splits": results})


def _summarise(counts: AccuracyCounts, model: Model) -> dict[str, Any]:
    names = model.classes.tolist()
    accuracies = counts.accuracy_by_class()
    return {
        "n_samples": counts.n_rows,
        "top_k_accuracy": counts.topk_accuracies(_K_MAX),
        "class_accuracy": [
            {"class": name, "n_samples": int(n_rows), "accuracy": float(accuracy)}
            for name, n_rows, accuracy in zip(names, counts.rows_by_class, accuracies, strict=True)
        ],
        "most_confused": [
            {"class": names[true], "predicted": names[predicted], "n_samples": n_rows}
            for true, predicted, n_rows in counts.most_confused(_PAIRS_LISTED)
        ],
    }


def _summarise_calibration(counts: CalibrationCounts | None) -> dict[str, Any]:
    if counts is None:
        return {}
    return {
        "probabilities": summarise_reliability(counts.reliability),
        "sets": summarise_sets(counts.sets),
    }


def _describe_calibration(counts: CalibrationCounts | None) -> str:
    if counts is None:
        return ""
    fields = _summarise_calibration(counts)
    tables = [format_reliability({"calibrated": fields["probabilities"]})]
    tables += [format_sets(fields["sets"])] if fields["sets"] else []
    return "\n" + "\n\n".join(tables) + "\n"


def _summarise_sets(counts: MultilabelCounts, model: Model, threshold: float) -> dict[str, Any]:
    precision = counts.average_precision_by_class()
    return {
        "n_samples": counts.n_rows,
        "top_k_accuracy": counts.topk_accuracies(_K_MAX),
        "label_metrics": summarise_label_sets(counts, threshold),
        "class_average_precision": [
            {"class": name, "average_precision": float(value)}
            for name, value in zip(model.classes.tolist(), precision, strict=True)
        ],
    }


def _describe_sets(split: str, counts: MultilabelCounts, model: Model, threshold: float) -> str:
    topk = [[str(k), f"{100 * share:.2f}%"] for k, share in counts.topk_accuracies(_K_MAX).items()]
    precision = counts.average_precision_by_class()
    order = [int(c) for c in np.argsort(precision, kind="stable") if not np.isnan(precision[c])]
    shown = {"class": order}
    if len(order) > 2 * _CLASSES_SHOWN:
        shown = {
            "worst class": order[:_CLASSES_SHOWN],
            "best class": order[-_CLASSES_SHOWN:][::-1],
        }
    return (
        "\n\n".join(
            [
                f"split {split!r}: {counts.n_rows:,} rows, {model.n_classes:,} classes",
                format_label_metrics({split: summarise_label_sets(counts, threshold)}),
                format_table(topk, header=("k", "one label in the top k")),
                *(
                    format_table(
                        [[str(model.classes[c]), f"{precision[c]:.4f}"] for c in classes],
                        header=(title, "average precision"),
                    )
                    for title, classes in shown.items()
                ),
            ]
        )
        + "\n"
    )


def _describe(split: str, counts: AccuracyCounts, model: Model) -> str:
    topk = [[str(k), f"{100 * share:.2f}%"] for k, share in counts.topk_accuracies(_K_MAX).items()]
    parts = [
        f"split {split!r}: {counts.n_rows:,} rows, {model.n_classes:,} classes",
        format_table(topk, header=("k", "top-k accuracy")),
    ]
    accuracies = counts.accuracy_by_class()
    order = [int(c) for c in np.argsort(accuracies, kind="stable") if counts.rows_by_class[c]]
    if len(order) > 2 * _CLASSES_SHOWN:
        worst, best = order[:_CLASSES_SHOWN], order[-_CLASSES_SHOWN:][::-1]
        parts.append(_describe_classes("worst class", worst, counts, model))
        parts.append(_describe_classes("best class", best, counts, model))
    else:
        parts.append(_describe_classes("class", order, counts, model))
    confused = [
        [str(model.classes[true]), str(model.classes[predicted]), f"{n_rows:,}"]
        for true, predicted, n_rows in counts.most_confused(_PAIRS_SHOWN)
    ]
    if confused:
        parts.append(format_table(confused, header=("most confused", "taken for", "rows")))
    return "\n\n".join(parts) + "\n"


def _describe_classes(
    title: str, chosen: Sequence[int], counts: AccuracyCounts, model: Model
) -> str:
    accuracies = counts.accuracy_by_class()
    rows = [
        [str(model.classes[c]), f"{100 * accuracies[c]:.2f}%", f"{counts.rows_by_class[c]:,}"]
        for c in chosen
    ]
    return format_table(rows, header=(title, "accuracy", "rows"))
