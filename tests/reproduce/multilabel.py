"""Multilabel losses, and multiclass losses that are shown one label a row, on the Yeast data.

    python -m tests.reproduce.multilabel [jobs/reproduce/multilabel.toml] [--out build/reproduce]

Writes a line for each seed, loss and metric to multilabel.csv, and the tables of
jobs/reproduce/README.md to multilabel.md. A loss that is in multilabel.csv already is not trained
again.
"""

from dataclasses import dataclass
from functools import partial

import numpy as np

from dtopk.engine import FitResult
from dtopk.evaluation import LABEL_METRICS, MultilabelCounts, choose_threshold
from dtopk.losses import LabelSets
from tests.reproduce.lines import (
    collect,
    format_mean,
    group_lines,
    parse_arguments,
    read_config,
    write_tables,
)
from tests.reproduce.selection import train

KEYS = ("shown", "loss", "seed")
SMALLER_IS_BETTER = ("rank_loss", "hamming_loss")


@dataclass(frozen=True, kw_only=True)
class Choice:
    """What was chosen for one metric on the validation rows."""

    C: float
    """The smallest of those that are best."""
    delta: float
    """Labels are predicted that score more; NaN for a metric of scores alone."""
    value: float
    """The metric on the validation rows."""
    result: FitResult
    """Trained on the training rows with this C."""


def draw_splits(config, folder, seed):
    """Draw training and validation rows of those that are not for the test.

    Returns
    -------
    list of (X, indicator)
        Of training, validation and test.
    """
    data = config["data"]
    with np.load(folder / data["archive"]) as archive:
        X, Y = archive["X"], archive["Y"].astype(bool)
    order = np.random.default_rng(seed).permutation(data["n_train"] + data["n_validation"])
    parts = np.split(order, [data["n_train"]])
    parts.append(np.arange(len(order), len(X)))
    return [(X[rows], Y[rows]) for rows in parts]


def show(indicator, shown, rng):
    """Return the labels as training sees them: all of a row's, or one drawn at random."""
    if shown == "all":
        return LabelSets.from_indicator(indicator)
    keys = np.where(indicator, rng.random(indicator.shape), -1.0)
    return keys.argmax(axis=1).astype(np.int32)


def count(result, X, indicator):
    """Evaluate on all labels of some rows."""
    scores = X @ result.W + result.intercept
    counts = MultilabelCounts(n_classes=scores.shape[1], dtype=scores.dtype)
    counts.update(indicator, scores)
    return counts


def measure_scores(metric, counts):
    """Return a metric of scores alone."""
    return counts.rank_loss() if metric == "rank_loss" else counts.mean_average_precision()


def choose(training, validation, labels, loss, config):
    """Choose C, and the threshold where there is one, for each metric by itself."""
    best: dict[str, Choice] = {}
    n_classes = training[1].shape[1]
    for C in config["C"]:
        result = train(training[0], labels, n_classes, loss, C, config["solver"])
        counts = count(result, *validation)
        for metric in config["metrics"]:
            if metric in LABEL_METRICS:
                chosen = choose_threshold(metric, counts)
                found = Choice(C=C, delta=chosen.delta, value=chosen.value, result=result)
            else:
                value = measure_scores(metric, counts)
                found = Choice(C=C, delta=np.nan, value=value, result=result)
            if metric not in best or _is_better(metric, found.value, best[metric].value):
                best[metric] = found
    return best


def _is_better(metric, value, other):
    return value < other if metric in SMALLER_IS_BETTER else value > other


def measure_loss(config, folder, task):
    """Choose, and test what was chosen."""
    training, validation, test = draw_splits(config, folder, task["seed"])
    labels = show(training[1], task["shown"], np.random.default_rng(task["seed"]))
    loss = config["losses"][task["shown"]][task["loss"]]
    lines = []
    for metric, choice in choose(training, validation, labels, loss, config).items():
        counts = count(choice.result, *test)
        if metric in LABEL_METRICS:
            value = counts.label_metrics(choice.delta)[metric]
        else:
            value = measure_scores(metric, counts)
        lines.append(
            task
            | {
                "metric": metric,
                "C": choice.C,
                "delta": f"{choice.delta:.6g}",
                "validation": f"{choice.value:.6f}",
                "test": f"{value:.6f}",
                "gap": f"{choice.result.certificate.relative_gap:.1e}",
            }
        )
    return lines


def make_table(lines, config, shown):
    """Return the metrics of the losses that were shown so many labels, in percent."""
    grouped = group_lines(lines, "shown", "loss", "metric")
    table = [["loss", *config["metrics"].values()]]
    for loss in config["losses"][shown]:
        cells = [grouped[shown, loss, metric] for metric in config["metrics"]]
        table.append([loss, *(format_mean([x["test"] for x in cell]) for cell in cells)])
    return table


def main():
    """Make what is missing, then the tables."""
    arguments = parse_arguments("multilabel", __doc__)
    config = read_config(arguments.config, arguments.out)
    run(config, arguments.config.parent, arguments.out, arguments.jobs)


def run(config, folder, out, jobs):
    """Test every loss with every seed.

    Parameters
    ----------
    config : dict
    folder : Path
        Where relative paths start.
    out : Path
    jobs : int
        Processes.
    """
    tasks = [
        {"shown": shown, "loss": loss, "seed": seed}
        for shown, losses in config["losses"].items()
        for loss in losses
        for seed in config["seeds"]
    ]
    work = partial(measure_loss, config, folder)
    lines = collect(out / "multilabel.csv", KEYS, tasks, work, jobs)
    tables = [make_table(lines, config, shown) for shown in config["losses"]]
    write_tables(out / "multilabel.md", *tables)


if __name__ == "__main__":
    main()
