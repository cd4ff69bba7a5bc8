"""`dtopk sweep`: train a model of each setting of a job file, and choose the best."""

import shlex

import click

from dtopk.cli.output import (
    EXIT_INTERRUPTED,
    answer,
    answer_json,
    format_table,
    json_option,
    showing_progress_of,
    tell,
    tell_written,
)
from dtopk.cli.sweep_progress import make_sweep_progress
from dtopk.cli.train import check_store_folder
from dtopk.job import BestSetting, SettingResult, SweepResult, load_sweep
from dtopk.job import sweep as run_sweep
from dtopk_storage.paths import as_path

_LISTED = 10
"""Settings that are not certified are listed up to so many."""


@click.command()
@click.argument("job_path", metavar="JOB.toml")
@click.option(
    "--set", "overrides", multiple=True, metavar="SECTION.KEY=VALUE",
    help="Replace a value of the job; may be given more than once.",
)  # fmt: skip
@click.option("--run-dir", default="", help="Folder of the sweep, instead of the job's.")
@json_option
def sweep(job_path: str, overrides: tuple[str, ...], run_dir: str, as_json: bool) -> int:
    """Train a model of each setting of a job file, and choose the best.

    The section [sweep] of the job says which: every combination of its lists of C, loss, k, gamma
    and smoothing, scored on data.validation or by cross-validation. jobs/README.md describes every
    key. Ctrl-C ends it early with what is done, and SIGTERM or SIGUSR1 without scores of that; the
    exit status is 130. The same command with the same folder goes on with a sweep that was ended or
    killed: it trains what is missing.
    """
    job = load_sweep(job_path, overrides, run_dir=run_dir)
    check_store_folder(as_path(job.data.store, name="data.store"))
    watcher = make_sweep_progress()
    try:
        with showing_progress_of("dtopk.job", "dtopk.launch"):
            result = run_sweep(job.data.store, job, watcher=watcher)
    finally:
        watcher.stop()
    for path in result.written:
        tell_written(path)
    for best in result.best.values():
        tell_written(best.model_path)
    if result.mlflow:
        tell(f"recorded as MLflow run {result.mlflow['run_id']} at {result.mlflow['uri']}")
    if as_json:
        answer_json(result.to_dict())
    else:
        answer(_describe(result))
    return EXIT_INTERRUPTED if result.interrupted else 0


def _describe(result: SweepResult) -> str:
    parts = [_describe_training(result)]
    if result.best:
        parts.append(_describe_best(list(result.best.values()), result.chosen_on))
    if result.losses:
        parts += _describe_losses(result)
    if any(best.refit for best in result.best.values()):
        splits = " and ".join(map(repr, next(iter(result.best.values())).trained.splits))
        parts.append(
            f"The best settings were trained anew on the rows of {splits}; these models are "
            "those kept."
        )
    edges = _describe_edges(result)
    if edges:
        parts.append("\n".join(edges))
    unproved = [each for each in result.settings if not each.certified]
    if unproved:
        parts.append(_describe_unproved(unproved, result.tol))
    if result.interrupted:
        run = shlex.quote(str(result.run_dir))
        parts.append(f"Interrupted. To go on: the same command, with --run-dir {run}")
    return "\n\n".join(parts)


def _describe_training(result: SweepResult) -> str:
    n_done, n_certified = len(result.settings), sum(each.certified for each in result.settings)
    done = f"{n_done:,} settings" if n_done == result.n_settings else (
        f"{n_done:,} of {result.n_settings:,} settings"
    )  # fmt: skip
    proved = "all" if n_certified == n_done else f"{n_certified:,}"
    certified = f", {proved} certified to a relative gap of {result.tol:g}" if n_done else " done"
    models = "1 model" if result.n_trained == 1 else f"{result.n_trained:,} models"
    return f"{done}{certified}; {models} trained, {result.seconds:.1f} s"


def _describe_best(best: list[BestSetting], chosen_on: str) -> str:
    splits = list(best[0].evaluated)
    rows = [
        [
            each.metric,
            each.result.setting.describe_family(),
            f"{each.result.setting.C:g}",
            format_metric(each.metric, each.value),
            *(format_metric(each.metric, each.evaluated[split][each.metric]) for split in splits),
            _describe_gap(each),
        ]
        for each in best
    ]
    return format_table(rows, header=("best by", "loss", "C", chosen_on, *splits, "gap"))


def _describe_losses(result: SweepResult) -> list[str]:
    """Write a table of losses for each split."""
    tables = []
    for split in next(iter(result.losses)).evaluated or ("",):
        rows: dict[str, dict[str, str]] = {}
        for each in result.losses:
            value = each.evaluated[split] if split else each.result.metrics[each.metric]
            mark = "" if each.trained.certified else "*"
            row = rows.setdefault(each.result.setting.describe_family(), {})
            row[each.metric] = f"{format_metric(each.metric, value)}{mark}"
        tables.append(
            format_table(
                [[loss, *(row.get(metric, "") for metric in result.metrics)]
                 for loss, row in rows.items()],
                header=(f"on {split or result.chosen_on}, C by each metric", *result.metrics),
            )
        )  # fmt: skip
    if not all(each.trained.certified for each in result.losses):
        tables.append("* not certified")
    return tables


def _describe_gap(best: BestSetting) -> str:
    verdict = "" if best.trained.certified else " (not certified)"
    return f"{best.trained.relative_gap:.1e}{verdict}"


def _describe_edges(result: SweepResult) -> list[str]:
    """Say of which metrics the best C is the first or the last one that was tried."""
    at_ends: dict[tuple[float, str], list[str]] = {}
    for each in result.best.values():
        setting = each.result.setting
        tried = [
            other.setting.C for other in result.settings if other.setting.family == setting.family
        ]
        ends = {min(tried): "smaller", max(tried): "larger"}
        if len(tried) > 1 and setting.C in ends:
            at_ends.setdefault((setting.C, ends[setting.C]), []).append(each.metric)
    return [
        f"The best C by {', '.join(metrics)}, {C:g}, is at the end of those tried: {which} ones "
        "may be better."
        for (C, which), metrics in at_ends.items()
    ]


def format_metric(metric: str, value: float) -> str:
    """Write the value of a metric as `train` does: an accuracy in percent."""
    return f"{100 * value:.2f}%" if metric.startswith("top_") else f"{value:.4f}"


def _describe_unproved(settings: list[SettingResult], tol: float) -> str:
    rows = [
        [each.setting.describe_family(), f"{each.setting.C:g}", f"{each.relative_gap:.1e}",
         f"{each.epochs}", each.stop_reason]
        for each in settings[:_LISTED]
    ]  # fmt: skip
    more = f"\nand {len(settings) - _LISTED} more" if len(settings) > _LISTED else ""
    table = format_table(rows, header=("not certified", "C", "gap", "epochs", "stopped by"))
    return (
        f"{table}{more}\n\nThey are scored like the others. To have them within {tol:g}, raise "
        "solver.max_epochs or solver.time_limit_s, in another folder."
    )
