"""Record a job's run with the tracker, from its start to what it came to."""

import contextlib
import dataclasses
import math
import os
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from dtopk.job.config import TrainJob
from dtopk.job.files import flatten_job
from dtopk.job.names import naming_key
from dtopk.job.problem import Problem
from dtopk.job.result import TrainResult
from dtopk.job.run_folder import RunFolder, RunRecord
from dtopk.losses import what_is_certified
from dtopk_storage.paths import AnyPath, as_path

if TYPE_CHECKING:
    from dtopk.tracking import MlflowRun

_TRACKED_K = (1, 3, 5, 10)
"""The tracker shows a chart for each of these; the figure has all k."""


def check_tracking(job: TrainJob) -> None:
    """Refuse a tracking store that cannot be.

    Raises
    ------
    ValueError
    """
    # Imported here: MLflow takes a second or more, which a job without it need not spend.
    if job.tracking.mlflow:
        from dtopk.tracking import check_tracking_uri

        given = job.tracking.uri or os.environ.get("MLFLOW_TRACKING_URI", "")
        key = "tracking.uri of the job" if job.tracking.uri else "MLFLOW_TRACKING_URI"
        with naming_key(key):
            check_tracking_uri(given)


@contextlib.contextmanager
def recording(
    problem: Problem, folder: RunFolder, record: RunRecord
) -> Iterator["MlflowRun | None"]:
    """Start a run with the tracker, or go on with it, where the job asks for it; end it whatever.

    Parameters
    ----------
    problem : Problem
    folder : RunFolder
        Its record is written anew, with the id of the run.
    record : RunRecord

    Yields
    ------
    MlflowRun or None
    """
    if not problem.job.tracking.mlflow:
        yield None
        return
    run = _open_run(problem, folder, record)
    # A tracker that is away for once is tried again by the next part.
    folder.write_record(dataclasses.replace(record, mlflow=run.describe() or record.mlflow))
    try:
        yield run
    except BaseException as error:
        killed = isinstance(error, KeyboardInterrupt)
        run.end(status="KILLED" if killed else "FAILED", tags={"dtopk.error": str(error)})
        raise


def _open_run(problem: Problem, folder: RunFolder, record: RunRecord) -> "MlflowRun":
    from dtopk.tracking import MlflowRun, default_tracking_uri, name_uri

    tracking = problem.job.tracking
    # An object store is no place for SQLite.
    place = folder.path.parent if isinstance(folder.path, Path) else Path.cwd()
    uri = tracking.uri or default_tracking_uri(place)
    same_place = record.mlflow.get("uri") == name_uri(uri)
    run = MlflowRun(
        uri=uri,
        experiment=tracking.experiment,
        run_name=tracking.run_name or folder.path.name,
        tags={"dtopk.run_dir": str(folder.path), "dtopk.version": record.version},
        run_id=record.mlflow["run_id"] if same_place else "",
    )
    if record.resumed_at:
        run.set_tags({"dtopk.resumed_at": ", ".join(map(str, record.resumed_at))})
    if not run.goes_on:
        # Parameters of a run are there for good: what a later part stops at is in its job.toml.
        run.log_params(flatten_job(problem.job))
        _log_dataset(run, problem)
    return run


def _log_dataset(run: "MlflowRun", problem: Problem) -> None:
    store = problem.store
    run.log_dataset(
        name=as_path(store.path, name="store").name,
        path=store.path,
        profile={
            "n_samples": store.n_samples,
            "n_features": store.n_features,
            "n_classes": store.n_classes,
            "splits": {split: store.split_size(split) for split in store.splits},
            "provenance": store.provenance,
        },
    )


def record_outcome(run: "MlflowRun", folder: RunFolder, result: TrainResult) -> None:
    """Send what the run came to, and end it.

    Parameters
    ----------
    run : MlflowRun
    folder : RunFolder
    result : TrainResult
    """
    for split, by_k in result.topk_accuracy.items():
        metrics = {f"{split}/top_{k}_accuracy": by_k[k] for k in _TRACKED_K if k in by_k}
        run.log_metrics(metrics, step=result.epochs)
    for split, metrics in result.label_metrics.items():
        finite = {f"{split}/{name}": v for name, v in metrics.items() if math.isfinite(v)}
        run.log_metrics(finite, step=result.epochs)
    kept_here = (folder.model, folder.record)
    logged = [path for path in result.written if path.is_file() and path not in kept_here]
    with _on_disk([*logged, folder.model]) as paths:
        run.log_files(paths[:-1])
        run.log_model(paths[-1])
    interrupted = result.stop_reason == "interrupted"
    run.end(
        status="KILLED" if interrupted else "FINISHED",
        tags={
            "dtopk.certified": str(result.certificate.certified).lower(),
            "dtopk.stop_reason": result.stop_reason,
            "dtopk.solver": result.solver,
            "mlflow.note.content": _note(result),
        },
    )


@contextlib.contextmanager
def _on_disk(paths: Sequence[AnyPath]) -> Iterator[list[Path]]:
    """Give files as files on a disk; those of an object store are copied to a temporary folder."""
    with contextlib.ExitStack() as stack:
        found, folder = [], None
        for path in paths:
            if not isinstance(path, Path):
                folder = folder or Path(stack.enter_context(tempfile.TemporaryDirectory()))
                copy = folder / path.name
                copy.write_bytes(path.read_bytes())
                path = copy
            found.append(path)
        yield found


def _note(result: TrainResult) -> str:
    """Describe the run in Markdown; MLflow's page shows the first three lines or so."""
    certificate = result.certificate
    kind = what_is_certified(result.model.loss)
    verdict = kind if certificate.certified else "**not converged**"
    accuracies = [
        f"{split} " + ", ".join(f"top-{k} {100 * by_k[k]:.2f}%" for k in _TRACKED_K if k in by_k)
        for split, by_k in result.topk_accuracy.items()
    ]
    return "\n\n".join(
        [
            f"`{result.model.loss}` on {result.n_samples:,} rows, {result.model.n_features:,} "
            f"features, {result.model.n_classes:,} classes: {verdict}, relative duality gap "
            f"{certificate.relative_gap:.2e} (tolerance {certificate.tol:g}) after "
            f"{result.epochs} epochs, {result.seconds:.1f} s. Stopped by: {result.stop_reason}.",
            *(["Accuracy: " + "; ".join(accuracies) + "."] if accuracies else []),
        ]
    )
