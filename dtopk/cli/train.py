"""`dtopk train`: train a model as a job file says."""

import shlex
from collections.abc import Mapping
from pathlib import Path

import click

from dtopk.cli.label_tables import format_label_metrics
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
from dtopk.cli.run_info import describe_early_stopping
from dtopk.cli.train_progress import make_progress
from dtopk.job import TrainResult, load_job
from dtopk.job import train as run_job
from dtopk.job.resumption import check_resumable
from dtopk.job.run_folder import RunFolder
from dtopk.losses import what_is_certified
from dtopk_storage.paths import AnyPath, PathLike, as_path

_STOP_REASONS = {
    "tolerance": "the gap reached the tolerance",
    "max_epochs": "the epochs ran out (solver.max_epochs)",
    "time_limit": "the time ran out (solver.time_limit_s)",
    "interrupted": "interrupted",
    "early_stopping": "the validation metric got no better (early_stopping.patience)",
    "callback": "a callback asked for it",
}
_LIMITS = {"max_epochs": "solver.max_epochs", "time_limit": "solver.time_limit_s"}
"""What ended training too early, by the reason of the stop."""
_STATIONARY = (
    "The loss is not convex. No weights are better by more than the gap as long as each row is "
    "forgiven the classes that it is forgiven here; weights at which it is others may be."
)


@click.command()
@click.argument("job_path", metavar="[JOB.toml]", default="")
@click.option(
    "--set", "overrides", multiple=True, metavar="SECTION.KEY=VALUE",
    help="Replace a value of the job; may be given more than once.",
)  # fmt: skip
@click.option("--run-dir", default="", help="Folder of the run, instead of the job's.")
@click.option(
    "--resume", default="", metavar="RUN_DIR",
    help="Go on with the run in this folder, by its own job if no other is given.",
)  # fmt: skip
@json_option
def train(
    job_path: str, overrides: tuple[str, ...], run_dir: str, resume: str, as_json: bool
) -> int:
    """Train a model as a job file says.

    jobs/README.md describes every key of a job. Ctrl-C ends training early: what was reached is
    kept, with its gap, and the exit status is 130. A run that was killed, or stopped before it
    reached its tolerance, goes on by the same command, or by --resume.
    """
    found, run_dir = _find_job(job_path, run_dir, resume)
    job = load_job(found, overrides, run_dir=run_dir)
    check_store_folder(as_path(job.data.store, name="data.store"))
    progress = make_progress()
    try:
        with showing_progress_of("dtopk.job", "dtopk.launch"):
            result = run_job(job.data.store, job, callbacks=[progress])
    finally:
        progress.stop()
    for path in result.written:
        tell_written(path)
    if result.mlflow:
        tell(f"recorded as MLflow run {result.mlflow['run_id']} at {result.mlflow['uri']}")
    if as_json:
        answer_json(result.to_dict())
    else:
        answer(_describe(result))
    return EXIT_INTERRUPTED if result.stop_reason == "interrupted" else 0


def _find_job(job_path: str, run_dir: str, resume: str) -> tuple[PathLike, str]:
    """Return the job file and the run folder that were asked for."""
    if not resume:
        if not job_path:
            raise click.UsageError("JOB.toml must be given, or --resume RUN_DIR.")
        return job_path, run_dir
    if run_dir:
        raise click.UsageError("--resume and --run-dir must not both be given.")
    check_resumable(resume)
    return job_path or RunFolder(path=as_path(resume, name="--resume")).job, resume


def check_store_folder(path: AnyPath) -> None:
    """Refuse a path on this machine where there is no folder.

    Parameters
    ----------
    path : Path or ObjectPath
    """
    # An object store is asked once, when the store is opened.
    if isinstance(path, Path) and not path.is_dir():
        what = "which is a file" if path.exists() else "which does not exist"
        raise ValueError(
            f"data.store must be the folder of a feature store, got {str(path)!r}, {what}. "
            "`dtopk ingest` makes one."
        )


def _describe(result: TrainResult) -> str:
    certificate = result.certificate
    gap = f"relative gap {certificate.relative_gap:.2e}"
    kind = what_is_certified(result.model.loss)
    verdict = (
        f"{kind}: {gap}, at most {certificate.tol:g}"
        if certificate.certified
        else f"not {kind}: {gap}, asked {certificate.tol:g}"
    )
    parts = [
        f"{result.model.loss}, {result.epochs} epochs, {result.seconds:.1f} s; "
        f"{_STOP_REASONS[result.stop_reason]}",
        f"{verdict} (primal {certificate.primal:.8g}, dual {certificate.dual_value:.8g})",
    ]
    if result.early_stopping:
        parts.append(
            f"{describe_early_stopping(result.early_stopping)}. The model is that of epoch "
            f"{result.epochs}."
        )
    if kind != "certified":
        parts.append(_STATIONARY)
    if not certificate.certified:
        parts.append(_describe_going_on(result))
    if result.topk_accuracy:
        parts.append(_describe_accuracy(result.topk_accuracy))
    if result.label_metrics:
        parts.append(format_label_metrics(result.label_metrics))
    if result.n_skipped:
        parts.append(
            f"{result.n_skipped:,} of {result.n_samples:,} rows were left out: they have none of "
            "the labels, or all."
        )
    return "\n\n".join(parts)


def _describe_going_on(result: TrainResult) -> str:
    """Say how the gap comes down to what was asked."""
    limit = _LIMITS.get(result.stop_reason, "")
    run = shlex.quote(str(result.run_dir))
    if result.resumable:
        command = f"dtopk train --resume {run}"
        if result.stop_reason == "max_epochs":
            command += f" --set solver.max_epochs={2 * result.epochs}"
        if result.stop_reason == "early_stopping":
            command += f" --set early_stopping.patience={2 * result.early_stopping['patience']}"
        return f"To get there, go on: {command}"
    if result.duals_kept:
        how = f"go on from here with --set solver.warm_start={run}"
        return f"To get there, {how}" + (f", and raise {limit} if need be." if limit else ".")
    return f"To get there, raise {limit}." if limit else "To get there, train again."


def _describe_accuracy(accuracy: Mapping[str, Mapping[int, float]]) -> str:
    ks = next(iter(accuracy.values()))
    rows = [[str(k), *(f"{100 * by_k[k]:.2f}%" for by_k in accuracy.values())] for k in ks]
    return format_table(rows, header=("top-k", *accuracy))
