"""Record a job's run with the tracker, from its start to what it came to."""

import contextlib
import dataclasses
import math
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from dtopk.job.config import TrackingSection, TrainJob
from dtopk.job.files import flatten_job
from dtopk.job.names import naming_key
from dtopk.job.problem import Problem
from dtopk.job.result import TrainResult
from dtopk.job.run_folder import RunFolder, RunRecord
from dtopk.losses import what_is_certified
from dtopk_storage import RunLock
from dtopk_storage.paths import as_path

if TYPE_CHECKING:
    from dtopk.tracking import BackgroundRun

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
) -> Iterator["BackgroundRun | None"]:
    """Start a run with the tracker, or go on with it, where the job asks for it; end it whatever.

    Parameters
    ----------
    problem : Problem
    folder : RunFolder
        Its record is written anew when the id of the run is known.
    record : RunRecord

    Yields
    ------
    BackgroundRun or None
    """
    if not problem.job.tracking.mlflow:
        yield None
        return
    run = _open_run(problem, folder, record)
    try:
        yield run
    except BaseException as error:
        killed = isinstance(error, KeyboardInterrupt)
        run.end(
            status="KILLED" if killed else "FAILED",
            tags={"dtopk.error": str(error)},
            # A run that has come to nothing leaves no folder.
            is_kept=_is_left(folder),
        )
        raise


def _is_left(folder: RunFolder) -> bool:
    """Tell whether a run that has failed leaves its folder, to go on from or with a model."""
    with contextlib.suppress(OSError, ValueError):
        return folder.find_checkpoint() is not None or folder.model.is_file()
    return True


def _open_run(problem: Problem, folder: RunFolder, record: RunRecord) -> "BackgroundRun":
    from dtopk.tracking import BackgroundRun, name_uri

    tracking, store = problem.job.tracking, problem.store
    uri = tracking.uri or _default_uri(folder)
    same_place = record.mlflow.get("uri") == name_uri(uri)
    run = BackgroundRun(
        uri=uri,
        folder=folder.path,
        kept=folder.unsent,
        # The id alone is also that of another job, whose run was killed early in this folder.
        key=f"{record.id}-{record.started:.3f}",
        experiment=tracking.experiment,
        run_name=tracking.run_name or folder.path.name,
        tags={"dtopk.run_dir": str(folder.path), "dtopk.version": record.version},
        # Parameters of a run are there for good: what a later part stops at is in its job.toml.
        params=flatten_job(problem.job),
        dataset={
            "name": as_path(store.path, name="store").name,
            "path": store.path,
            "profile": {
                "n_samples": store.n_samples,
                "n_features": store.n_features,
                "n_classes": store.n_classes,
                "splits": {split: store.split_size(split) for split in store.splits},
                "provenance": store.provenance,
            },
        },
        run_id=record.mlflow["run_id"] if same_place else "",
        wait_s=tracking.wait_s,
        on_start=lambda described: folder.write_record(
            dataclasses.replace(record, mlflow=described)
        ),
    )
    if record.resumed_at:
        run.set_tags({"dtopk.resumed_at": ", ".join(map(str, record.resumed_at))})
    return run


def _default_uri(folder: RunFolder) -> str:
    from dtopk.tracking import default_tracking_uri

    # An object store is no place for SQLite.
    return default_tracking_uri(folder.path.parent if isinstance(folder.path, Path) else Path.cwd())


def record_outcome(
    run: "BackgroundRun", folder: RunFolder, result: TrainResult, tracking: TrackingSection
) -> None:
    """Send what the run came to, and end it.

    Parameters
    ----------
    run : BackgroundRun
    folder : RunFolder
    result : TrainResult
    tracking : TrackingSection
    """
    for split, by_k in result.topk_accuracy.items():
        metrics = {f"{split}/top_{k}_accuracy": by_k[k] for k in _TRACKED_K if k in by_k}
        run.log_metrics(metrics, step=result.epochs)
    for split, metrics in result.label_metrics.items():
        finite = {f"{split}/{name}": v for name, v in metrics.items() if math.isfinite(v)}
        run.log_metrics(finite, step=result.epochs)
    kept_here = (folder.model, folder.record)
    stopping = result.early_stopping
    if stopping and stopping["best_value"] is not None:
        best = {f"early_stopping/{name}": stopping[name] for name in ("best_epoch", "best_value")}
        run.log_metrics(best, step=result.epochs)
    run.log_files(
        [path.name for path in result.written if path.is_file() and path not in kept_here]
    )
    is_registered = result.certificate.certified
    run.log_model(
        folder.model.name,
        register_as=tracking.register_as if is_registered else "",
        alias=tracking.alias if is_registered else "",
    )
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


def send_unsent(folder: RunFolder, uri: str = "") -> tuple[dict[str, str], int]:
    """Send what a run has kept because the tracker was away.

    Parameters
    ----------
    folder : RunFolder
    uri : str
        Tracking URI; empty: the one that the run was recorded at.

    Returns
    -------
    described : dict
        Where the run is recorded; empty if nothing is kept.
    n_entries : int
        How many things were kept.

    Raises
    ------
    dtopk.tracking.SendError
        If the tracker is still away.
    ValueError
        If the folder is no run's, or a run is at work in it, or what is kept is damaged.
    """
    if not folder.record.is_file():
        raise ValueError(f"RUN_DIR must be the folder of a run, got {str(folder.path)!r}.")
    with RunLock(str(folder.path)):
        if not folder.unsent.is_file():
            return {}, 0
        from dtopk.tracking import send_kept

        described, n_entries = send_kept(folder.unsent, folder.path, uri=uri)
        folder.write_record(dataclasses.replace(folder.read_record(), mlflow=described))
    return described, n_entries


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
