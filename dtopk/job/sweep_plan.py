"""Turn a sweep and its store into trainings, checking all that can be checked."""

import contextlib
import dataclasses
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from dtopk.engine import (
    FitOptions,
    FitResult,
    Fold,
    FoldNumbers,
    StoreRows,
    balance_classes,
    class_totals,
)
from dtopk.job.disk_space import MODEL_OVERHEAD_BYTES
from dtopk.job.files import job_to_dict
from dtopk.job.names import list_settings
from dtopk.job.problem import Problem, build_problem
from dtopk.job.sweep_config import (
    MULTILABEL_METRICS,
    TOPK_METRICS,
    Setting,
    SweepJob,
    values_key,
)
from dtopk.job.sweep_folder import SweepFolder
from dtopk.job.sweep_units import Unit, list_units
from dtopk.model import Model
from dtopk_storage import FeatureStore


@dataclass(frozen=True, kw_only=True, eq=False)
class SweepPlan:
    """A sweep whose every part has been found sound."""

    job: SweepJob
    """The job, with the paths in use."""
    store: FeatureStore
    """Where the rows are."""
    folder: SweepFolder
    """Where the files go."""
    settings: Sequence[Setting]
    """What is trained: those of a loss follow each other, from small to large C."""
    left_out: Mapping[str, str]
    """Combinations that a loss does not take, by name: why."""
    problems: Mapping[str, Problem]
    """By all of a setting but C: the problem, for some C."""
    metrics: tuple[str, ...]
    """What the best settings are chosen by."""

    @property
    def units(self) -> list[Unit]:
        """The trainings: each setting once, or once for each fold."""
        return list_units(self.settings, self.job.sweep.folds)

    def units_of(self, setting: Setting) -> list[Unit]:
        """List the trainings of one setting."""
        return [unit for unit in self.units if unit.setting == setting]

    @property
    def scored_split(self) -> str:
        """The split whose rows are scored to choose by."""
        data = self.job.data
        return data.train if self.job.sweep.folds else data.validation

    @property
    def chosen_on(self) -> str:
        """What the settings are chosen on, in words."""
        folds = self.job.sweep.folds
        where = f"split {self.scored_split!r}"
        return f"{folds} folds of {where}" if folds else where

    def splits_of(self, unit: Unit) -> tuple[str, ...]:
        """Name the splits whose rows a training has."""
        data = self.job.data
        if unit.refit and self.job.sweep.refit and data.validation:
            return data.train, data.validation
        return (data.train,)

    def open_rows(self, unit: Unit) -> StoreRows:
        """Open the rows of a training.

        Parameters
        ----------
        unit : Unit
        """
        sweep = self.job.sweep
        train, *more = self.splits_of(unit)
        held_out = None
        if unit.fold:
            held_out = Fold(number=unit.fold, n_folds=sweep.folds, seed=sweep.seed)
        skip = self.problems[unit.setting.family].rows.skip_improper
        return StoreRows(self.store, train, skip_improper=skip, more=more, held_out=held_out)

    def number_folds(self) -> FoldNumbers | None:
        """Return the fold of each training row; None: there are no folds."""
        sweep = self.job.sweep
        if not sweep.folds:
            return None
        return FoldNumbers(self.store.split_ranges(self.job.data.train), sweep.folds, sweep.seed)

    def make_options(self, unit: Unit, rows: StoreRows) -> FitOptions:
        """Say how a training is done, on its rows.

        Parameters
        ----------
        unit : Unit
        rows : StoreRows
            As `open_rows` gives them.
        """
        options = self.problems[unit.setting.family].options
        if options.class_weight is not None:
            weights = balance_classes(class_totals(rows))
            options = dataclasses.replace(options, class_weight=weights)
        return dataclasses.replace(options, C=unit.setting.C)

    def make_model(self, unit: Unit, fitted: FitResult) -> Model:
        """Make the model of a training.

        Parameters
        ----------
        unit : Unit
        fitted : FitResult
        """
        problem = self.problems[unit.setting.family]
        job = unit.setting.make_job(self.job, str(self.folder.unit(unit)))
        counts = sum(self._count_classes(split) for split in self.splits_of(unit)[1:])
        problem = dataclasses.replace(problem, class_rows=problem.class_rows + counts)
        return problem.make_model(
            fitted.W,
            fitted.intercept,
            job=job_to_dict(job),
            trained_on=self.splits_of(unit),
            certificate=fitted.certificate.to_dict(),
        )

    def _count_classes(self, split: str) -> Any:
        counts = np.zeros(self.store.n_classes, dtype=np.int64)
        for batch_start, batch_stop in self.store.split_ranges(split):
            if self.store.kind == "multilabel":
                codes = self.store.read_label_rows(batch_start, batch_stop).indices
            else:
                codes = self.store.read_labels(batch_start, batch_stop)
            counts += np.bincount(codes, minlength=self.store.n_classes)
        return counts


def plan_sweep(
    store: FeatureStore, job: SweepJob, folder: SweepFolder, *, in_workers: bool
) -> SweepPlan:
    """Check a sweep against its store, reading labels and no features.

    Parameters
    ----------
    store : FeatureStore
    job : SweepJob
        With the paths in use.
    folder : SweepFolder
    in_workers : bool
        Whether other processes do the work.

    Raises
    ------
    ValueError
        If job and store do not fit together, or the disk has no room for the models.
    """
    if not in_workers and job.cluster.partitions > 1:
        raise ValueError(
            "partitions must be 0 or 1 for a sweep without workers, got "
            f"{job.cluster.partitions}. Set by cluster.partitions of the job."
        )
    settings, left_out = list_settings(job)
    metrics = _choose_metrics(store, job)
    problems: dict[str, Problem] = {}
    for setting in settings:
        if setting.family not in problems:
            with _naming_sweep(job):
                problems[setting.family] = build_problem(
                    store, setting.make_job(job, job.output.run_dir), in_workers=in_workers
                )
    plan = SweepPlan(
        job=job, store=store, folder=folder, settings=settings, left_out=left_out,
        problems=problems, metrics=metrics,
    )  # fmt: skip
    _check_room(plan)
    return plan


@contextlib.contextmanager
def _naming_sweep(job: SweepJob) -> Iterator[None]:
    """Have an error name the key of [sweep] that a value comes from, and not that of [model]."""
    try:
        yield
    except ValueError as error:
        text = str(error)
        for key in ("loss", "k", "gamma", "smoothing", "C"):
            text = text.replace(f"Set by model.{key} ", f"Set by {values_key(job, key)} ")
        raise type(error)(text) from error


def _choose_metrics(store: FeatureStore, job: SweepJob) -> tuple[str, ...]:
    metrics = job.sweep.metric
    if not metrics:
        return ("map",) if store.kind == "multilabel" else ("top_1",)
    for name in metrics:
        if name in MULTILABEL_METRICS and store.kind != "multilabel":
            raise ValueError(
                f"metric {name!r} must have a multilabel store, got {store.path!r}, which is "
                f"{store.kind}. Set by sweep.metric of the job."
            )
        if name in TOPK_METRICS and int(name.removeprefix("top_")) >= store.n_classes:
            raise ValueError(
                f"metric {name!r} must have k below n_classes = {store.n_classes} of "
                f"{store.path!r}, where it is 1 for every model. Set by sweep.metric of the job."
            )
    return metrics


def _check_room(plan: SweepPlan) -> None:
    """Refuse a disk that has no room for the models."""
    path = plan.folder.path
    if not isinstance(path, Path):
        return
    itemsize = np.dtype(plan.job.solver.dtype).itemsize
    model_bytes = MODEL_OVERHEAD_BYTES + plan.store.n_features * plan.store.n_classes * itemsize
    missing = [unit for unit in plan.units if not (plan.folder.unit(unit) / "model.npz").is_file()]
    needed = (len(missing) + 2 * len(plan.metrics)) * model_bytes
    free = shutil.disk_usage(next(each for each in (path, *path.parents) if each.exists())).free
    if free < needed:
        raise ValueError(
            f"disk of {str(path)!r} must have at least {needed:,} bytes free for {len(missing)} "
            f"models, got {free:,}. Free some, choose another disk with --run-dir, or sweep over "
            "fewer settings."
        )
