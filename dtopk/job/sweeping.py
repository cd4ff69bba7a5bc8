"""Carry out a sweep: train a model of each setting, score all of them, and keep the best."""

import contextlib
import dataclasses
import json
import logging
import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from dtopk.atomic import write_text
from dtopk.engine import Callback
from dtopk.engine.interruption import EndRequests
from dtopk.job.callbacks import HoldLock
from dtopk.job.files import job_to_toml
from dtopk.job.place import lock_folder, open_given, resolve_paths
from dtopk.job.recording import check_tracking
from dtopk.job.resumption import keep_cluster, plain_parameters, store_checksum
from dtopk.job.run_folder import RunRecord
from dtopk.job.sweep_best import SweepScorer, choose_best, choose_by_loss
from dtopk.job.sweep_config import Setting, SweepJob
from dtopk.job.sweep_folder import (
    SweepFolder,
    check_same_sweep,
    make_folder,
)
from dtopk.job.sweep_plan import SweepPlan, plan_sweep
from dtopk.job.sweep_recording import SweepRecorder, recording_sweep
from dtopk.job.sweep_result import (
    SweepResult,
    format_table_csv,
)
from dtopk.job.sweep_training import UnitTrainer
from dtopk.job.sweep_units import Unit, UnitResult
from dtopk.job.workers import open_workers, spread_problem
from dtopk.plots import SweepLine, draw_sweep, save_png
from dtopk_storage import FeatureStore, RunLock
from dtopk_storage.paths import PathLike, delete_tree

if TYPE_CHECKING:
    from dtopk.launch import Client

logger = logging.getLogger(__name__)


class SweepWatcher:
    """What a caller can do while a sweep goes on; every method does nothing by default."""

    def on_start(self, units: Sequence[Unit], n_done: int) -> None:
        """Take note of what is to be trained, and of how much is done already.

        Parameters
        ----------
        units : sequence of Unit
            All trainings, the best ones that are trained anew left out.
        n_done : int
        """

    def make_callbacks(self, unit: Unit) -> Sequence[Callback]:
        """Return the callbacks of one training; they are called in threads that take turns."""
        return ()

    def on_done(self, unit: Unit, result: UnitResult) -> None:
        """Take note that a training is done, and kept."""

    def on_rows(self, what: str, done: int, total: int) -> None:
        """Take note that models are scored: `done` of `total` rows of `what` are."""

    def stop(self) -> None:
        """Take note that nothing more comes; called after an error too."""


def sweep(
    store: FeatureStore | PathLike,
    job: SweepJob,
    *,
    client: "Client | None" = None,
    watcher: SweepWatcher | None = None,
) -> SweepResult:
    """Train a model of each setting of a job, and choose the best ones.

    All of them are trained to their certificates in passes over the rows that they share, or on
    workers one after the other. Each is kept as soon as it is done: the same call, after a kill or
    an interrupt, trains what is missing. Then all are scored in one pass. Ctrl-C ends training, and
    what is done is scored; SIGTERM and SIGUSR1, by which a batch system asks a job to end in time,
    leave the scores to the call that goes on.

    Parameters
    ----------
    store : FeatureStore, or the path of one, or its address in an object store
        Stands in for the job's `data.store`.
    job : SweepJob
        `dtopk.job.load_sweep` reads one from a file.
    client : distributed.Client, optional
        Of the workers to train on, instead of those that the job's section [cluster] names.
    watcher : SweepWatcher, optional
        Told how it goes.

    Returns
    -------
    SweepResult

    Raises
    ------
    ValueError
        If the job is at odds with itself, the store or the sweep in its folder, or the folder is in
        use.
    dtopk.launch.ClusterError
        If workers do not start or come, or too few are left.
    OSError
        If a model or the result cannot be written.
    KeyboardInterrupt
        By SIGTERM or SIGUSR1, once what is under way is at an end; by Ctrl-C outside of training.
    """
    if not isinstance(job, SweepJob):
        raise ValueError(
            f"job must be a SweepJob, with a section [sweep], got a {type(job).__name__}. "
            "dtopk.job.load_sweep reads one."
        )
    opened = open_given(store)
    job, run_dir = resolve_paths(job, opened)
    folder = SweepFolder(path=run_dir)
    folder.check_usable()
    record = folder.read_record()
    in_workers = client is not None or job.cluster.kind != "none"
    if record is not None:
        check_same_sweep(job, store_checksum(opened), folder, record)
        job = keep_cluster(job, folder.load_job()) if in_workers else job
    plan = plan_sweep(opened, job, folder, in_workers=in_workers)
    check_tracking(job)
    costs = _describe_costs(plan)
    if record is None:
        record = RunRecord(store_checksum=store_checksum(opened), loss=costs)
    elif costs and record.loss and costs != record.loss:
        raise ValueError(
            f"model.label_cost must hold the costs that the sweep in {str(folder.path)!r} began "
            "with, got others. Take them, or another folder with --run-dir."
        )
    watcher = watcher or SweepWatcher()
    try:
        with (
            EndRequests() as requests,
            lock_folder(folder.run) as lock,
            open_workers(job.cluster, client) as workers,
        ):
            folder.check_usable()
            plan = _spread(plan, workers)
            with _keeping_what_is_done(plan):
                return _Sweep(plan, record, lock, requests, workers, watcher).run()
    finally:
        watcher.stop()


def _describe_costs(plan: SweepPlan) -> dict[str, Any]:
    """Tell the matrix of label costs, which lies in a file of its own, from another."""
    for problem in plan.problems.values():
        costs = plain_parameters(problem.loss).get("label_cost")
        if costs is not None:
            return {"label_cost": costs}
    return {}


def _spread(plan: SweepPlan, workers: "Client | None") -> SweepPlan:
    """Decide how the work is cut on workers, where the job leaves it open."""
    if workers is None:
        return plan
    problems = {
        family: spread_problem(problem, workers, 0) for family, problem in plan.problems.items()
    }
    cluster = next(iter(problems.values())).job.cluster
    return dataclasses.replace(
        plan, job=dataclasses.replace(plan.job, cluster=cluster), problems=problems
    )


@contextlib.contextmanager
def _keeping_what_is_done(plan: SweepPlan) -> Iterator[None]:
    """After an error say how to go on; a sweep of which nothing is done leaves nothing."""
    try:
        yield
    except BaseException as error:
        n_done = 0
        with contextlib.suppress(OSError, ValueError):
            n_done = sum(plan.folder.find_result(unit) is not None for unit in plan.units)
        if n_done:
            error.add_note(
                f"{n_done} of {len(plan.units)} models are done and kept in "
                f"{str(plan.folder.path)!r}; the same command goes on, with --run-dir "
                f"{plan.folder.quoted}."
            )
        elif not any((plan.folder.path / name).exists() for name in ("settings", "best")):
            plan.folder.run.release()
        raise


class _Sweep:
    """A sweep from its start, or from where it is taken up again, to its end."""

    def __init__(
        self,
        plan: SweepPlan,
        record: RunRecord,
        lock: RunLock,
        requests: EndRequests,
        workers: "Client | None",
        watcher: SweepWatcher,
    ) -> None:
        self._plan = plan
        self._requests = requests
        self._folder = plan.folder
        self._record = record
        self._workers = workers
        self._watcher = watcher
        self._hold = HoldLock(lock, plan.folder.run)
        self._scorer = SweepScorer(plan, watcher.on_rows)
        self._trainer = UnitTrainer(plan, self._make_callbacks, self._take)
        self._recorder: SweepRecorder | None = None
        self._began = time.perf_counter()

    def run(self) -> SweepResult:
        """Train, score and choose."""
        make_folder(self._folder.path)
        self._folder.write_record(self._record)
        write_text(self._folder.job, job_to_toml(self._plan.job))
        for name, why in self._plan.left_out.items():
            logger.info("Left out: %s. %s", name, why)
        with recording_sweep(self._plan, self._record) as self._recorder:
            self._record_what_is_done()
            result = self._run()
            if self._recorder is not None:
                self._recorder.finish(result)
                result = dataclasses.replace(result, mlflow=self._recorder.parent.describe())
                self._write_result(result)
        return dataclasses.replace(result, written=self._folder.list_written())

    def _run(self) -> SweepResult:
        missing = [unit for unit in self._plan.units if self._folder.find_result(unit) is None]
        self._watcher.on_start(self._plan.units, len(self._plan.units) - len(missing))
        self._train(missing)
        interrupted = self._trainer.n_trained < len(missing)
        done = self._list_done()
        settings = self._scorer.score(done)
        result = SweepResult(
            run_dir=self._folder.path,
            settings=tuple(settings),
            best={},
            losses=(),
            metrics=self._plan.metrics,
            n_settings=len(self._plan.settings),
            n_trained=self._trainer.n_trained,
            left_out=self._plan.left_out,
            chosen_on=self._plan.chosen_on,
            tol=self._plan.job.solver.tol,
            seconds=time.perf_counter() - self._began,
            interrupted=interrupted,
            mlflow={} if self._recorder is None else self._recorder.parent.describe(),
        )
        self._write_table(result)
        chosen = choose_best(settings, self._plan.metrics)
        by_loss = (
            choose_by_loss(settings, self._plan.metrics) if self._plan.job.sweep.by_loss else {}
        )
        wanted = [*chosen.values(), *(each for some in by_loss.values() for each in some.values())]
        if not interrupted:
            interrupted = not self._refit([each.setting for each in wanted])
        evaluated = self._scorer.evaluate(wanted)
        result = dataclasses.replace(
            result,
            best=self._scorer.keep_best(chosen, evaluated),
            losses=tuple(self._scorer.compare_losses(by_loss, evaluated)),
            interrupted=interrupted,
            n_trained=self._trainer.n_trained,
            seconds=time.perf_counter() - self._began,
        )
        self._write_result(result)
        self._draw(result)
        return dataclasses.replace(result, written=self._folder.list_written())

    # Training.

    def _train(self, units: Sequence[Unit]) -> None:
        if not units:
            return
        before = self._trainer.n_trained
        if self._workers is None:
            self._trainer.train_together(units)
        else:
            self._trainer.train_on_workers(units, self._workers, self._record)
        if self._workers is not None and self._trainer.n_trained == before + len(units):
            # After an interrupt the next training starts from them.
            self._trainer.tidy()
        # Scores may take longer than a batch system waits.
        self._requests.raise_if_came()

    def _make_callbacks(self, unit: Unit) -> Sequence[Callback]:
        return [*self._watcher.make_callbacks(unit), self._hold]

    def _take(self, unit: Unit, result: UnitResult) -> None:
        self._watcher.on_done(unit, result)
        if self._recorder is not None and not unit.refit and self._is_done(unit.setting):
            self._recorder.record_setting(unit.setting)

    def _is_done(self, setting: Setting) -> bool:
        units = self._plan.units_of(setting)
        return all(self._folder.find_result(unit) is not None for unit in units)

    def _record_what_is_done(self) -> None:
        """Record settings that were done while the tracker was away, or before a kill."""
        if self._recorder is None:
            return
        for setting in self._plan.settings:
            if self._is_done(setting):
                self._recorder.record_setting(setting)

    def _list_done(self) -> list[Setting]:
        return [setting for setting in self._plan.settings if self._is_done(setting)]

    def _refit(self, settings: Sequence[Setting]) -> bool:
        """Train the best settings on all rows that there are; say whether that was done."""
        if not self._scorer.trains_anew:
            return True
        wanted = [Unit(setting=setting, refit=True) for setting in dict.fromkeys(settings)]
        missing = [unit for unit in wanted if self._scorer.find_refit(unit) is None]
        for unit in missing:
            delete_tree(self._folder.unit(unit))
        before = self._trainer.n_trained
        self._train(missing)
        return self._trainer.n_trained == before + len(missing)

    # Writing.

    def _write_table(self, result: SweepResult) -> None:
        write_text(self._folder.table, format_table_csv(result.settings))

    def _write_result(self, result: SweepResult) -> None:
        text = json.dumps(_without_nan(result.to_dict()), indent=2)
        write_text(self._folder.result, text + "\n")
        if result.losses:
            write_text(self._folder.losses, format_table_csv(result.losses))
        else:
            # Of an earlier call, which was asked for them.
            self._folder.losses.unlink(missing_ok=True)

    def _draw(self, result: SweepResult) -> None:
        lines: dict[str, SweepLine] = {}
        for each in result.settings:
            label = each.setting.describe_family()
            line = lines.setdefault(label, SweepLine(label=label, points=[]))
            line.points.append((each.setting.C, each.certified, each.metrics))
        if not lines:
            return
        chosen = {
            metric: (best.result.setting.describe_family(), best.result.setting.C)
            for metric, best in result.best.items()
        }
        figure = draw_sweep(
            list(lines.values()), result.metrics, chosen=chosen, chosen_on=result.chosen_on
        )
        try:
            save_png(figure, self._folder.figure)
        except OSError as error:
            logger.warning("The figure is not written: %s.", error)


def _without_nan(value: object) -> object:
    """Put null in the place of numbers that JSON lacks."""
    if isinstance(value, dict):
        return {key: _without_nan(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_without_nan(item) for item in value]
    if isinstance(value, float) and value != value:
        return None
    return value
