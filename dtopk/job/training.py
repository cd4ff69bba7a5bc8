"""Carry out a job: check all of it, fit, then save, evaluate, draw and record."""

import contextlib
import dataclasses
import errno
import logging
import os
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dtopk.engine import Callback, EpochRecord, FitResult, fit
from dtopk.job.callbacks import TrackEpochs, ValidateEpochs
from dtopk.job.config import TrainJob
from dtopk.job.disk_space import MODEL_OVERHEAD_BYTES, check_disk_space
from dtopk.job.files import job_to_dict, job_to_toml
from dtopk.job.names import naming_key
from dtopk.job.problem import Problem, build_problem, flatten_job
from dtopk.job.run_folder import RunFolder, name_run_folder
from dtopk.job.scoring import evaluate_split
from dtopk.model import Model
from dtopk.plots import draw_convergence, draw_topk_accuracy, save_png
from dtopk.solvers.certificate import Certificate
from dtopk_storage import FeatureStore, open_store
from dtopk_storage.files import size_on_disk

if TYPE_CHECKING:
    from dtopk.tracking import MlflowRun

logger = logging.getLogger(__name__)

_K_MAX = 10
"""Top-k accuracy is reported for k up to this."""
_TRACKED_K = (1, 3, 5, 10)
"""The tracker shows a chart for each of these; the figure has all k."""


@dataclass(frozen=True, kw_only=True)
class TrainResult:
    """What a job came to, and where it lies."""

    run_dir: Path
    """The run folder."""
    model: Model
    """The model, as saved in the run folder."""
    certificate: Certificate
    """Primal and dual value of the model and duals as saved."""
    history: tuple[EpochRecord, ...]
    """What every epoch found."""
    solver: str
    """Name of the solver."""
    stop_reason: str
    """'tolerance', 'max_epochs', 'time_limit' or 'interrupted'."""
    epochs: int
    """Passes over the training split."""
    seconds: float
    """Time that fitting took, in seconds."""
    n_samples: int
    """Rows of the training split."""
    topk_accuracy: dict[str, dict[int, float]]
    """Top-k accuracy by split and k, 0 to 1."""
    duals_kept: bool
    """Whether the duals are in the run folder, for another run to start from."""
    written: tuple[Path, ...]
    """Files and folders in the run folder."""
    mlflow: dict[str, str]
    """Tracking URI, experiment id and run id; empty if the run is not recorded."""

    def to_dict(self) -> dict[str, Any]:
        """Make a dict of plain values, for JSON."""
        return {
            "run_dir": str(self.run_dir),
            "model": str(self.run_dir / "model.npz"),
            "loss": self.model.loss,
            "loss_parameters": dict(self.model.loss_parameters),
            "solver": self.solver,
            "stop_reason": self.stop_reason,
            "epochs": self.epochs,
            "seconds": self.seconds,
            "primal": self.certificate.primal,
            "dual": self.certificate.dual_value,
            "duality_gap": self.certificate.duality_gap,
            "relative_gap": self.certificate.relative_gap,
            "tol": self.certificate.tol,
            "certified": self.certificate.certified,
            "n_samples": self.n_samples,
            "n_features": self.model.n_features,
            "n_classes": self.model.n_classes,
            "top_k_accuracy": self.topk_accuracy,
            "mlflow": self.mlflow,
        }


def train(
    store: FeatureStore | str | os.PathLike[str],
    job: TrainJob,
    *,
    callbacks: Sequence[Callback] = (),
) -> TrainResult:
    """Train as a job says, and leave model, duals, figures and result in its run folder.

    Everything that can be checked is checked before the run folder is made. An interrupt
    (Ctrl-C) ends the fit; what was reached is kept as always, with its gap.

    Parameters
    ----------
    store : FeatureStore, or the path of one
        Stands in for the job's `data.store`.
    job : TrainJob
        `dtopk.job.load_job` reads one from a file.
    callbacks : sequence of Callback
        Told of the start, every epoch and the end.

    Returns
    -------
    TrainResult

    Raises
    ------
    ValueError
        If the job is at odds with itself or the store, or the run folder is in use.
    OSError
        If the model or its result cannot be written. Files that were complete before are kept.
        That a figure or the history cannot is only logged.

    An error after the first epoch carries a note where duals of the run lie on disk: they are
    kept, and a run can start from them.
    """
    opened = store if isinstance(store, FeatureStore) else open_store(store)
    job = _resolve(job, opened)
    problem = build_problem(opened, job)
    folder = RunFolder(path=Path(job.output.run_dir))
    folder.check_unused()
    check_disk_space(problem, folder.path)
    _check_tracking(job)
    folder.claim(job_to_toml(job))
    validation = ValidateEpochs(problem) if job.data.validation else None
    with _recording(problem, folder) as run:
        own: list[Callback] = [] if validation is None else [validation]
        if run is not None:
            own.append(TrackEpochs(run, validation))
        fitted = _fit(problem, folder, [*own, *callbacks])
        model = _save_model(problem, folder, fitted)
        result = _report(problem, folder, fitted, model, run, validation)
        if run is not None:
            _record(run, folder, result)
    return result


def _resolve(job: TrainJob, store: FeatureStore) -> TrainJob:
    """Put the paths in use into the job."""
    run_dir = name_run_folder(job.output.run_dir).absolute()
    return dataclasses.replace(
        job,
        data=dataclasses.replace(job.data, store=str(Path(store.path).absolute())),
        output=dataclasses.replace(job.output, run_dir=str(run_dir)),
    )


def _fit(problem: Problem, folder: RunFolder, callbacks: Sequence[Callback]) -> FitResult:
    """Fit; a fit that fails leaves nothing behind, or the duals of the epochs it finished."""
    epochs = _CountEpochs()
    try:
        return fit(
            problem.rows,
            problem.loss,
            problem.options,
            callbacks=[epochs, *callbacks],
            dual_path=folder.dual if problem.job.output.save_dual else None,
            scratch=folder.path,
            start=problem.start,
        )
    except BaseException as error:
        if epochs.done and folder.has_dual_values():
            error.add_note(_describe_kept(folder))
        else:
            folder.release()
        raise


class _CountEpochs(Callback):
    """Count the epochs that were finished."""

    done = 0

    def on_epoch(self, record: EpochRecord, W: object) -> None:
        """Count one."""
        self.done = record.epoch


def _describe_kept(folder: RunFolder) -> str:
    return (
        f"The duals in {str(folder.dual)!r} are kept: start a run from them with "
        f"--set solver.warm_start={folder.path}"
    )


def _save_model(problem: Problem, folder: RunFolder, fitted: FitResult) -> Model:
    """Save the model first of all: what follows can be made from it again."""
    model = problem.make_model(
        fitted.W,
        fitted.intercept,
        job=job_to_dict(problem.job),
        certificate=fitted.certificate.to_dict(),
    )
    try:
        model.save(folder.model)
    except OSError as error:
        if error.errno == errno.ENOSPC and _duals_take_the_room(folder, model):
            logger.warning("The duals are not kept: they leave no room for the model.")
            shutil.rmtree(folder.dual)
            model.save(folder.model)
        else:
            if folder.has_dual_values():
                error.add_note(_describe_kept(folder))
            else:
                folder.release()
            raise
    return model


def _duals_take_the_room(folder: RunFolder, model: Model) -> bool:
    """Tell whether a model that found no room would find some without the duals."""
    needed = MODEL_OVERHEAD_BYTES + model.W.nbytes
    free = shutil.disk_usage(folder.path).free
    return bool(folder.dual.is_dir() and free < needed <= free + size_on_disk(folder.dual))


@contextlib.contextmanager
def _warning_of_failure(folder: RunFolder) -> Iterator[None]:
    """Log that a file cannot be written which the model does not need."""
    try:
        yield
    except OSError as error:
        what = f"{error.strerror}: {error.filename!r}" if error.filename else str(error)
        logger.warning("%s. The model is safe in %r.", what, str(folder.model))


def _write_history(folder: RunFolder, fitted: FitResult, validation: ValidateEpochs | None) -> None:
    accuracy = [{}] * len(fitted.history) if validation is None else validation.accuracy
    folder.write_history(
        [
            dataclasses.asdict(record) | row
            for record, row in zip(fitted.history, accuracy, strict=True)
        ]
    )


def _report(
    problem: Problem,
    folder: RunFolder,
    fitted: FitResult,
    model: Model,
    run: "MlflowRun | None",
    validation: ValidateEpochs | None,
) -> TrainResult:
    """Evaluate and draw; the result is written before, and anew with the accuracy."""
    result = TrainResult(
        run_dir=folder.path,
        model=model,
        certificate=fitted.certificate,
        history=fitted.history,
        solver=fitted.solver,
        stop_reason=fitted.stop_reason,
        epochs=fitted.epochs,
        seconds=fitted.seconds,
        n_samples=problem.n_samples,
        topk_accuracy={},
        duals_kept=folder.has_dual_values(),
        written=(),
        mlflow={} if run is None else run.describe(),
    )
    try:
        folder.write_result(result.to_dict())
    except OSError as error:
        error.add_note(f"The model is safe in {str(folder.model)!r}, with its certificate.")
        raise
    title = _describe(problem, result)
    with _warning_of_failure(folder):
        _write_history(folder, fitted, validation)
    with _warning_of_failure(folder):
        figure = draw_convergence(fitted.history, tol=problem.job.solver.tol, title=title)
        save_png(figure, folder.convergence)
    accuracy = {
        split: evaluate_split(model, problem.store, split).topk_accuracies(_K_MAX)
        for split in problem.job.data.evaluate
    }
    if accuracy:
        with _warning_of_failure(folder):
            save_png(draw_topk_accuracy(accuracy, title=title), folder.topk_accuracy)
    result = dataclasses.replace(result, topk_accuracy=accuracy, written=folder.list_written())
    with _warning_of_failure(folder):
        folder.write_result(result.to_dict())
    return result


def _describe(problem: Problem, result: TrainResult) -> str:
    parameters = {"C": problem.job.model.C, **result.model.loss_parameters}
    listed = ", ".join(
        f"{name} = {value:g}" if isinstance(value, float) else f"{name} = {value}"
        for name, value in parameters.items()
    )
    gap = result.certificate.relative_gap
    kind = "certified" if result.certificate.certified else "not converged:"
    return f"{result.model.loss}, {listed}: {kind} gap {gap:.1e} after {result.epochs} epochs"


def _check_tracking(job: TrainJob) -> None:
    # Imported here: MLflow takes a second or more, which a job without it need not spend.
    if job.tracking.mlflow:
        from dtopk.tracking import check_tracking_uri

        given = job.tracking.uri or os.environ.get("MLFLOW_TRACKING_URI", "")
        key = "tracking.uri of the job" if job.tracking.uri else "MLFLOW_TRACKING_URI"
        with naming_key(key):
            check_tracking_uri(given)


@contextlib.contextmanager
def _recording(problem: Problem, folder: RunFolder) -> Iterator["MlflowRun | None"]:
    """Start a run with the tracker, where the job asks for it; end it whatever happens."""
    tracking = problem.job.tracking
    if not tracking.mlflow:
        yield None
        return
    from dtopk.tracking import MlflowRun, default_tracking_uri

    run = MlflowRun(
        uri=tracking.uri or default_tracking_uri(folder.path.parent),
        experiment=tracking.experiment,
        run_name=tracking.run_name or folder.path.name,
        tags={"dtopk.run_dir": str(folder.path), "dtopk.version": version("dtopk")},
    )
    run.log_params(flatten_job(problem.job))
    run.log_dataset(
        name=Path(problem.store.path).name,
        path=problem.store.path,
        profile={
            "n_samples": problem.store.n_samples,
            "n_features": problem.store.n_features,
            "n_classes": problem.store.n_classes,
            "splits": {split: problem.store.split_size(split) for split in problem.store.splits},
            "provenance": problem.store.provenance,
        },
    )
    try:
        yield run
    except BaseException as error:
        killed = isinstance(error, KeyboardInterrupt)
        run.end(status="KILLED" if killed else "FAILED", tags={"dtopk.error": str(error)})
        raise


def _record(run: "MlflowRun", folder: RunFolder, result: TrainResult) -> None:
    """Send what the run came to, and end it."""
    for split, by_k in result.topk_accuracy.items():
        metrics = {f"{split}/top_{k}_accuracy": by_k[k] for k in _TRACKED_K if k in by_k}
        run.log_metrics(metrics, step=result.epochs)
    run.log_files([path for path in result.written if path.is_file() and path != folder.model])
    run.log_model(folder.model)
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


def _note(result: TrainResult) -> str:
    """Describe the run in Markdown; MLflow's page shows the first three lines or so."""
    certificate = result.certificate
    verdict = "certified" if certificate.certified else "**not converged**"
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
