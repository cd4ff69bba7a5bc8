"""Carry out a job: check all of it, fit, then save, evaluate, draw and record."""

import contextlib
import dataclasses
import errno
import logging
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dtopk.engine import Callback, FitResult, fit
from dtopk.evaluation import choose_threshold
from dtopk.job.calibration import keep_calibration
from dtopk.job.callbacks import (
    HoldLock,
    StopEarly,
    TrackEpochs,
    ValidateEpochs,
    WriteHistory,
)
from dtopk.job.config import TrainJob
from dtopk.job.disk_space import MODEL_OVERHEAD_BYTES, check_disk_space
from dtopk.job.files import flatten_job, job_to_dict, job_to_toml, load_job
from dtopk.job.place import lock_folder, open_given, resolve_paths
from dtopk.job.problem import Problem, build_problem
from dtopk.job.recording import check_tracking, record_outcome, recording
from dtopk.job.result import TrainResult
from dtopk.job.resumption import (
    check_same_loss,
    check_same_run,
    keep_resolved,
    plain_parameters,
    store_checksum,
)
from dtopk.job.run_folder import RunFolder, RunRecord
from dtopk.job.scoring import evaluate_label_sets, evaluate_split, summarise_label_sets
from dtopk.job.sweep_config import check_is_no_sweep
from dtopk.job.workers import check_sight, open_workers, spread_problem
from dtopk.kernels.blas import count_threads
from dtopk.losses import what_is_certified
from dtopk.model import Model
from dtopk.plots import draw_convergence, draw_topk_accuracy, save_png
from dtopk_storage import FeatureStore, RunLock, RunState, open_run_state
from dtopk_storage.paths import AnyPath, PathLike, delete_tree, size_below

if TYPE_CHECKING:
    from dtopk.launch import Client
    from dtopk.tracking import BackgroundRun

logger = logging.getLogger(__name__)

_RHO_SHOWN = 6
"""More weights of ranks than these are counted in titles, and not listed."""
_K_MAX = 10
"""Top-k accuracy is reported for k up to this."""


def train(
    store: FeatureStore | PathLike,
    job: TrainJob,
    *,
    client: "Client | None" = None,
    callbacks: Sequence[Callback] = (),
) -> TrainResult:
    """Train as a job says, and leave model, duals, figures and result in its run folder.

    Everything that can be checked is checked before the run folder is made. An interrupt
    (Ctrl-C) ends the fit; what was reached is kept as always, with its gap. A folder in which the
    same job was killed, failed or stopped before it reached its tolerance is gone on in from the
    last commit of its state, to the same bits as if it had never stopped.

    Parameters
    ----------
    store : FeatureStore, or the path of one, or its address in an object store
        Stands in for the job's `data.store`.
    job : TrainJob
        `dtopk.job.load_job` reads one from a file.
    client : distributed.Client, optional
        Of the workers to train on, instead of those that the job's section [cluster] names.
    callbacks : sequence of Callback
        Told of the start, every epoch and the end, and asked after every epoch whether to stop.

    Returns
    -------
    TrainResult

    Raises
    ------
    ValueError
        If the job is at odds with itself, the store or the run in its folder, or the folder is in
        use.
    dtopk.launch.ClusterError
        If workers do not start or come, or too few are left.
    OSError
        If the model or its result cannot be written. Files that were complete before are kept.
        That a figure or the history cannot is only logged.

    An error after the first commit carries a note that says how to go on.
    """
    check_is_no_sweep(job)
    opened = open_given(store)
    job, run_dir = resolve_paths(job, opened)
    folder = RunFolder(path=run_dir)
    folder.check_usable()
    goes_on = folder.find_checkpoint() is not None
    if goes_on:
        job = keep_resolved(job, folder)
    in_workers = client is not None or job.cluster.kind != "none"
    problem = build_problem(opened, job, in_workers=in_workers, goes_on=goes_on)
    check_disk_space(problem, folder.path)
    check_tracking(job)
    with lock_folder(folder) as lock, open_workers(job.cluster, client) as workers:
        part = _begin(problem, folder, workers)
        with _keeping_what_is_committed(part):
            return _train_part(part, lock, workers, callbacks)


@dataclass(frozen=True, kw_only=True, eq=False)
class _Part:
    """A run from its start, or from where it is taken up again, to its end."""

    problem: Problem
    folder: RunFolder
    record: RunRecord
    state: RunState

    @property
    def goes_on(self) -> bool:
        """Whether there was an earlier part."""
        return bool(self.record.resumed_at)


def _begin(problem: Problem, folder: RunFolder, workers: "Client | None") -> _Part:
    """Find out where the run begins, and whether the job may go on with what is in the folder."""
    folder.check_usable()
    done = folder.find_checkpoint()
    if done is None:
        problem = spread_problem(problem, workers, 0)
        record = _make_record(problem, folder)
    else:
        before = folder.read_record()
        check_same_run(problem.job, problem.store, folder, before, done)
        check_same_loss(problem.loss, folder, before)
        problem = spread_problem(problem, workers, before.threads)
        record = dataclasses.replace(before, resumed_at=(*before.resumed_at, done.epochs))
        problem = dataclasses.replace(problem, start=None)
    state = open_run_state(record.state)
    state.delete_leftovers()
    delete_tree(folder.new_dual)
    return _Part(problem=problem, folder=folder, record=record, state=state)


def _make_record(problem: Problem, folder: RunFolder) -> RunRecord:
    """Make the record of a run that begins; one that was killed early keeps its id."""
    record = RunRecord(
        store_checksum=store_checksum(problem.store),
        loss=plain_parameters(problem.loss),
        threads=problem.options.threads or count_threads(),
    )
    if folder.record.is_file():
        logger.info("The run in %r has no commit: it starts again.", str(folder.path))
        before = folder.read_record()
        is_same = _is_same_job(folder.job, problem.job)
        record = dataclasses.replace(record, id=before.id, mlflow=before.mlflow if is_same else {})
    place = problem.job.output.state_url
    name = f"{folder.path.name}-{record.id[:8]}"
    state = f"{place.rstrip('/')}/{name}" if place else str(folder.state)
    return dataclasses.replace(record, state=state)


def _is_same_job(path: AnyPath, job: TrainJob) -> bool:
    try:
        return flatten_job(load_job(path)) == flatten_job(job)
    except ValueError:
        # The kill may have come between the record and the job.
        return False


@contextlib.contextmanager
def _keeping_what_is_committed(part: _Part) -> Iterator[None]:
    """After an error say how to go on; a run that has nothing to go on from leaves nothing."""
    folder = part.folder
    try:
        yield
    except BaseException as error:
        done = None
        with contextlib.suppress(OSError, ValueError):
            done = folder.find_checkpoint()
        if done is not None:
            error.add_note(
                f"The run is kept up to epoch {done.epochs}; to go on: "
                f"dtopk train --resume {folder.quoted}"
            )
        elif not folder.model.is_file():
            part.state.clear()
            folder.release()
        raise


def _train_part(
    part: _Part, lock: RunLock, workers: "Client | None", callbacks: Sequence[Callback]
) -> TrainResult:
    problem, folder = part.problem, part.folder
    folder.claim(part.record, job_to_toml(problem.job))
    if workers is not None:
        check_sight(workers, problem, folder, part.state)
    validation = ValidateEpochs(problem) if problem.job.data.validation else None
    stopping = None
    if validation is not None and problem.job.early_stopping.metric:
        stopping = StopEarly(problem, folder, validation)
    history = WriteHistory(folder, validation)
    with recording(problem, folder, part.record) as run:
        own: list[Callback] = [] if validation is None else [validation]
        if stopping is not None:
            own.append(stopping)
        own.append(history)
        if run is not None:
            own.append(TrackEpochs(run, folder, validation))
        fitted = _fit(part, workers, [*own, *callbacks, HoldLock(lock, folder)])
        folder.put_dual()
        model = _save_model(problem, folder, fitted)
        found = {} if stopping is None else stopping.describe()
        result = _report(part, fitted, model, history, run, found)
        if run is not None:
            record_outcome(run, folder, result, problem.job.tracking)
            result = dataclasses.replace(result, mlflow=run.describe())
    return result


def _fit(part: _Part, workers: "Client | None", callbacks: Sequence[Callback]) -> FitResult:
    problem = part.problem
    dual_path = part.folder.new_dual if problem.job.output.save_dual else None
    if workers is None:
        return fit(
            problem.rows,
            problem.loss,
            problem.options,
            callbacks=callbacks,
            dual_path=dual_path,
            start=problem.start,
            state=part.state,
        )
    # Imported here: Dask takes most of a second.
    from dtopk.engine import fit_on_cluster

    cluster = problem.job.cluster
    return fit_on_cluster(
        workers,
        problem.rows,
        problem.loss,
        problem.options,
        callbacks=callbacks,
        dual_path=dual_path,
        start=problem.start,
        state=part.state,
        min_workers=cluster.min_workers,
        wait_s=cluster.wait_s,
        round_timeout_s=cluster.round_timeout_s,
    )


def _save_model(problem: Problem, folder: RunFolder, fitted: FitResult) -> Model:
    """Save the model first of all: what follows can be made from it again."""
    model = problem.make_model(
        fitted.W,
        fitted.intercept,
        job=job_to_dict(problem.job),
        certificate=fitted.certificate.to_dict(),
    )
    model = keep_calibration(model, folder)
    try:
        model.save(folder.model)
    except OSError as error:
        if not (error.errno == errno.ENOSPC and _duals_take_the_room(folder, model)):
            raise
        logger.warning("The duals are not kept: they leave no room for the model.")
        delete_tree(folder.dual)
        model.save(folder.model)
    return model


def _duals_take_the_room(folder: RunFolder, model: Model) -> bool:
    """Tell whether a model that found no room would find some without the duals."""
    if not isinstance(folder.path, Path):
        return False
    needed = MODEL_OVERHEAD_BYTES + model.W.nbytes
    free = shutil.disk_usage(folder.path).free
    return bool(folder.has_dual and free < needed <= free + size_below(folder.dual))


@contextlib.contextmanager
def _warning_of_failure(folder: RunFolder) -> Iterator[None]:
    """Log that a file cannot be written which the model does not need."""
    try:
        yield
    except OSError as error:
        what = f"{error.strerror}: {error.filename!r}" if error.filename else str(error)
        logger.warning("%s. The model is safe in %r.", what, str(folder.model))


def _report(
    part: _Part,
    fitted: FitResult,
    model: Model,
    history: WriteHistory,
    run: "BackgroundRun | None",
    early_stopping: dict[str, Any],
) -> TrainResult:
    """Evaluate and draw; the result is written before, marked as not complete, and anew after."""
    problem, folder = part.problem, part.folder
    if run is not None:
        run.wait_for_start()
    has_state = part.state.load() is not None
    is_final = fitted.certificate.certified or (
        # Who asked a run to stop in its first epoch means to start it again.
        not has_state and fitted.stop_reason != "interrupted"
    )
    result = TrainResult(
        run_dir=folder.path,
        model=model,
        certificate=fitted.certificate,
        history=fitted.history,
        solver=fitted.solver,
        stop_reason=fitted.stop_reason,
        early_stopping=early_stopping,
        epochs=fitted.epochs,
        seconds=fitted.seconds,
        n_samples=problem.n_samples,
        topk_accuracy={},
        label_metrics={},
        n_skipped=problem.n_skipped,
        duals_kept=folder.has_dual,
        resumable=not is_final,
        committed=has_state or part.goes_on,
        resumed_at=part.record.resumed_at,
        written=(),
        mlflow={} if run is None else run.describe(),
    )
    try:
        folder.write_result(result.to_dict() | {"complete": False})
    except OSError as error:
        error.add_note(f"The model is safe in {str(folder.model)!r}, with its certificate.")
        raise
    title = _describe(problem, result)
    with _warning_of_failure(folder):
        history.write()
    with _warning_of_failure(folder):
        figure = draw_convergence(fitted.history, tol=problem.job.solver.tol, title=title)
        save_png(figure, folder.convergence)
    if problem.job.data.threshold_metric:
        result = dataclasses.replace(result, model=_choose_threshold(problem, folder, model))
    result = _evaluate(problem, result)
    if result.topk_accuracy:
        with _warning_of_failure(folder):
            save_png(draw_topk_accuracy(result.topk_accuracy, title=title), folder.topk_accuracy)
    with _warning_of_failure(folder):
        folder.write_result(result.to_dict())
        # Where that fails the state stays, from which the same command comes to this end again.
        if is_final:
            part.state.clear()
        else:
            part.state.delete_leftovers()
    return dataclasses.replace(result, written=folder.list_written())


def _choose_threshold(problem: Problem, folder: RunFolder, model: Model) -> Model:
    """Choose a multilabel model's threshold on the validation split, and save it anew."""
    data = problem.job.data
    counts = evaluate_label_sets(model, problem.store, data.validation)
    chosen = choose_threshold(data.threshold_metric, counts)
    logger.info(
        "Threshold %.6g: %s %.4f on split %r.",
        chosen.delta, chosen.metric, chosen.value, data.validation,
    )  # fmt: skip
    model = dataclasses.replace(model, threshold=chosen.delta)
    with _warning_of_failure(folder):
        model.save(folder.model)
    return model


def _evaluate(problem: Problem, result: TrainResult) -> TrainResult:
    """Measure the model on the splits that the job names."""
    model, store = result.model, problem.store
    accuracy: dict[str, dict[int, float]] = {}
    metrics: dict[str, dict[str, float]] = {}
    for split in problem.job.data.evaluate:
        if store.kind == "multilabel":
            counts = evaluate_label_sets(model, store, split)
            accuracy[split] = counts.topk_accuracies(_K_MAX)
            metrics[split] = summarise_label_sets(counts, model.threshold)
        else:
            accuracy[split] = evaluate_split(model, store, split).topk_accuracies(_K_MAX)
    return dataclasses.replace(result, topk_accuracy=accuracy, label_metrics=metrics)


def _describe(problem: Problem, result: TrainResult) -> str:
    parameters = {"C": problem.job.model.C, **result.model.loss_parameters}
    if "label_cost" in parameters:
        parameters["label_cost"] = str(parameters["label_cost"])[: len("sha256 ") + 8]
    if len(parameters.get("rho", ())) > _RHO_SHOWN:
        parameters["rho"] = f"{len(parameters['rho'])} weights"
    listed = ", ".join(
        f"{name} = {value:g}" if isinstance(value, float) else f"{name} = {value}"
        for name, value in parameters.items()
    )
    gap = result.certificate.relative_gap
    kind = what_is_certified(result.model.loss)
    kind = kind if kind == "certified" else f"{kind}:"
    kind = kind if result.certificate.certified else "not converged:"
    return f"{result.model.loss}, {listed}: {kind} gap {gap:.1e} after {result.epochs} epochs"
