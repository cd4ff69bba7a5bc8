"""Turn a job and its store into what the engine takes, checking all that can be checked."""

import dataclasses
import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dtopk.engine import (
    FitOptions,
    StartPoint,
    StoreRows,
    balance_classes,
    choose_solver,
    class_totals,
    find_improper,
    plan_rows,
)
from dtopk.evaluation import RANKING_METRICS, check_metric
from dtopk.job.cluster_config import ClusterSection
from dtopk.job.config import TrainJob
from dtopk.job.files import load_job
from dtopk.job.names import build_loss, check_names, naming_key
from dtopk.job.run_folder import RunFolder
from dtopk.losses import LabelSets, Loss, available
from dtopk.model import Model, load_model
from dtopk_storage import FeatureStore, open_dual
from dtopk_storage.paths import AnyPath, as_path

_LABELS_READ = 1 << 20
"""Labels read at a time."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Problem:
    """A job whose every part has been found sound."""

    job: TrainJob
    """The job, with the paths in use."""
    store: FeatureStore
    """Where the rows are."""
    loss: Loss
    """The loss."""
    rows: StoreRows
    """The training rows."""
    class_rows: NDArray[np.int64]
    """How many of them have each class, shape (n_classes,)."""
    n_skipped: int
    """How many of them are left out."""
    options: FitOptions
    """What the engine is told."""
    duals_in_memory: bool
    """Whether the duals are to be held in memory, or streamed to disk and back; of workers that is
    not known yet."""
    start: StartPoint | None
    """Where training starts; None: at zero, or from the run's own state."""

    @property
    def n_samples(self) -> int:
        """Number of training rows."""
        return self.store.split_size(self.job.data.train)

    def spread(self, cluster: ClusterSection, threads: int) -> "Problem":
        """Say how the work is cut, now that the workers are known.

        Parameters
        ----------
        cluster : ClusterSection
            With the number of partitions.
        threads : int
            Of the matrix products of each; 0: all that the process may use.
        """
        options = dataclasses.replace(self.options, partitions=cluster.partitions, threads=threads)
        job = dataclasses.replace(self.job, cluster=cluster)
        return dataclasses.replace(self, job=job, options=options)

    def make_model(self, W: NDArray[Any], intercept: NDArray[Any], **fields: Any) -> Model:
        """Make the model of some weights.

        Parameters
        ----------
        W : ndarray of shape (n_features, n_classes)
        intercept : ndarray of shape (n_classes,)
        **fields
            More fields of the model.
        """
        data, options = self.job.data, self.options
        scale = None if options.inverse_scale is None else 1.0 / options.inverse_scale
        return Model(
            W=W,
            intercept=intercept,
            classes=self.store.classes,
            loss=self.loss.name,
            loss_parameters=self.loss.describe(),
            link=self.loss.link,
            target=self.store.kind,
            feature_mean=options.mean if data.center else None,
            feature_scale=scale if data.scale else None,
            class_rows=self.class_rows,
            **fields,
        )

    def split_weights(self, W: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
        """Cut the weights of the computation into those of the features and the intercept.

        Parameters
        ----------
        W : ndarray of shape (n_features, n_classes), or with a row more for the constant feature

        Returns
        -------
        W : ndarray of shape (n_features, n_classes)
        intercept : ndarray of shape (n_classes,)
        """
        n_features = self.store.n_features
        if len(W) == n_features:
            return W, np.zeros_like(W[0])
        return W[:n_features], (W[n_features] * self.options.constant).astype(W.dtype)


def build_problem(
    store: FeatureStore, job: TrainJob, *, in_workers: bool = False, goes_on: bool = False
) -> Problem:
    """Check a job against its store, reading labels and no features.

    Parameters
    ----------
    store : FeatureStore
    job : TrainJob
    in_workers : bool
        Whether other processes do the work; their memory is looked at later.
    goes_on : bool
        Whether the run has a state to go on from, and needs no other start.

    Raises
    ------
    ValueError
        If the job and the store do not fit together.
    """
    check_names(job)
    loss = build_loss(job)
    _check_kind(store, job, loss)
    _check_early_stopping(store, job)
    with naming_key(f"model.{'k' if 'k' in loss.parameters else 'loss'} of the job"):
        loss.check_n_classes(store.n_classes)
    class_rows = _check_splits(store, job)
    rows = open_rows(store, job, loss)
    n_skipped = _check_sets(rows, job) if loss.proper_sets else 0
    totals = class_totals(rows)
    with naming_key("solver.name of the job"):
        choose_solver(loss, job.solver.name)
    n_present = np.count_nonzero(totals)
    if n_present < (2 if store.kind == "multiclass" else 1):
        wanted = "of at least two classes" if store.kind == "multiclass" else "with a label"
        raise ValueError(
            f"split {job.data.train!r} of {store.path!r} must have rows {wanted}, "
            f"got {n_present}. Set by data.train of the job."
        )
    options = _make_options(store, job, totals)
    duals_in_memory = in_workers or _plan_duals(rows, options, loss)
    return Problem(
        job=job,
        store=store,
        loss=loss,
        rows=rows,
        class_rows=class_rows,
        n_skipped=n_skipped,
        options=options,
        duals_in_memory=duals_in_memory,
        start=None if goes_on else _make_start(store, job),
    )


def open_rows(store: FeatureStore, job: TrainJob, loss: Loss) -> StoreRows:
    """Open the training rows, less those that the job says to skip.

    Parameters
    ----------
    store : FeatureStore
    job : TrainJob
    loss : Loss
    """
    skip = loss.proper_sets and job.data.skip_unlabelled
    return StoreRows(store, job.data.train, skip_improper=skip)


def _check_kind(store: FeatureStore, job: TrainJob, loss: Loss) -> None:
    """Refuse a loss that cannot use labels of this kind."""
    if store.kind not in loss.targets:
        others = ", ".join(repr(info.name) for info in available() if store.kind in info.targets)
        raise ValueError(
            f"loss {loss.name!r} must have a {' or '.join(loss.targets)} store, got "
            f"{store.path!r}, which is {store.kind}. Set by model.loss of the job. For this store: "
            f"{others}."
        )
    for key in ("threshold_metric", "skip_unlabelled") if store.kind == "multiclass" else ():
        if getattr(job.data, key):
            raise ValueError(
                f"{key} must be left out for a multiclass store, got "
                f"{getattr(job.data, key)!r}. Set by data.{key} of the job."
            )
    if store.kind == "multilabel" and job.model.class_weight:
        raise ValueError(
            f"class_weight must be empty for a multilabel store, got {job.model.class_weight!r}. "
            "Set by model.class_weight of the job."
        )


def _check_early_stopping(store: FeatureStore, job: TrainJob) -> None:
    """Refuse a metric that rows of this store do not have."""
    if job.early_stopping.metric:
        others = RANKING_METRICS if store.kind == "multilabel" else ()
        with naming_key("early_stopping.metric of the job"):
            check_metric(
                "metric", job.early_stopping.metric, n_classes=store.n_classes, others=others
            )


def _check_sets(rows: StoreRows, job: TrainJob) -> int:
    """Refuse rows in which no label can be ranked above another, or count those to skip."""
    n_skipped = 0
    for piece in rows.pieces:
        labels, weight = rows.read_labels(piece)
        assert isinstance(labels, LabelSets)
        improper = find_improper(labels, rows.n_classes)
        n_skipped += int(np.count_nonzero(improper))
        wrong = np.flatnonzero(improper & (weight > 0))
        if len(wrong):
            n_labels = labels.counts[wrong[0]]
            raise ValueError(
                f"rows of split {rows.split!r} must have a label and lack one for loss "
                f"{job.model.loss!r}, got {n_labels} of {rows.n_classes} labels in row "
                f"{piece.start + wrong[0]} of {rows.store.path!r}. Leave such rows out with "
                "data.skip_unlabelled = true, or take a one-vs-all loss."
            )
    return n_skipped


def _plan_duals(rows: StoreRows, options: FitOptions, loss: Loss) -> bool:
    """Find out whether the duals fit into this process's memory."""
    try:
        return plan_rows(rows, options, loss).duals_in_memory
    except ValueError as error:
        is_cut = str(error).startswith("partitions")
        key = "cluster.partitions" if is_cut else "resources.memory_limit"
        raise ValueError(f"{error} Set by {key} of the job.") from error


def _check_splits(store: FeatureStore, job: TrainJob) -> NDArray[np.int64]:
    """Refuse splits without rows or with labels that training never sees; count its classes."""
    data = job.data
    class_rows = _count_classes(store, data.train, "data.train")
    others = [("data.evaluate", split) for split in data.evaluate]
    if data.validation:
        others.append(("data.validation", data.validation))
    for key, split in others:
        unseen = np.flatnonzero((_count_classes(store, split, key) > 0) & (class_rows == 0))
        # Of several labels, training learns of one that no row has that rows do not have it.
        if len(unseen) and store.kind == "multiclass":
            raise ValueError(
                f"labels of split {split!r} must have rows in split {data.train!r}, got "
                f"{store.class_names[unseen[0]]!r} in {store.path!r}, which has none. "
                f"Set by {key} of the job."
            )
    return class_rows


def _count_classes(store: FeatureStore, split: str, key: str) -> NDArray[np.int64]:
    """Count the rows of each class of the split that `key` of the job names; read no features."""
    with naming_key(f"{key} of the job"):
        ranges = store.split_ranges(split)
        if store.split_size(split) == 0:
            raise ValueError(f"split {split!r} of {store.path!r} must have rows, got none.")
    counts = np.zeros(store.n_classes, dtype=np.int64)
    for start, stop in ranges:
        for first in range(start, stop, _LABELS_READ):
            last = min(first + _LABELS_READ, stop)
            if store.kind == "multilabel":
                codes = store.read_label_rows(first, last).indices
            else:
                codes = store.read_labels(first, last)
            counts += np.bincount(codes, minlength=store.n_classes)
    return counts


def _make_options(store: FeatureStore, job: TrainJob, totals: NDArray[np.float64]) -> FitOptions:
    model, solver = job.model, job.solver
    mean, inverse_scale = _standardization(store, job)
    class_weight = balance_classes(totals) if model.class_weight == "balanced" else None
    return FitOptions(
        C=model.C,
        tol=solver.tol,
        max_epochs=solver.max_epochs,
        time_limit_s=solver.time_limit_s or math.inf,
        solver=solver.name,
        dtype=solver.dtype,
        block_size=solver.block_size,
        seed=solver.seed,
        acceleration=solver.acceleration,
        atoms=solver.atoms,
        constant=model.intercept_scaling if model.fit_intercept else 0.0,
        mean=mean,
        inverse_scale=inverse_scale,
        class_weight=class_weight,
        threads=job.cluster.threads_per_partition or job.resources.threads,
        partitions=max(job.cluster.partitions, 1),
        checkpoint_s=job.cluster.checkpoint_s,
        memory_limit_bytes=job.resources.memory_limit_bytes or None,
    )


def _standardization(
    store: FeatureStore, job: TrainJob
) -> tuple[NDArray[np.float64] | None, NDArray[np.float64] | None]:
    """Take mean and inverse deviation, rounded to the computation's type.

    Engine, certificate and saved model then have the same numbers, whatever they compute in.
    """
    if not (job.data.center or job.data.scale):
        return None, None
    mean, inverse_scale = np.zeros(store.n_features), np.ones(store.n_features)
    if job.data.center:
        mean = store.mean
    if job.data.scale:
        # A feature that never changes stays as it is.
        with np.errstate(over="ignore"):
            inverse_scale = 1.0 / np.where(store.std > 0, store.std, 1.0)
    dtype = job.solver.dtype
    # What the type cannot hold becomes infinite, and is refused with the other options.
    with np.errstate(over="ignore", under="ignore"):
        mean, inverse_scale = mean.astype(dtype), inverse_scale.astype(dtype)
    return mean.astype(np.float64), inverse_scale.astype(np.float64)


def _make_start(store: FeatureStore, job: TrainJob) -> StartPoint | None:
    if not job.solver.warm_start:
        return None
    with naming_key("solver.warm_start of the job"):
        path = as_path(job.solver.warm_start, name="run to start from")
        _check_ended(RunFolder(path=path))
        if RunFolder(path=path).has_dual:
            return _start_from_dual(path, store, job)
        return _start_from_model(path, store, job)


def _check_ended(folder: RunFolder) -> None:
    """Refuse a run under way, whose duals are not written yet."""
    if folder.record.is_file() and not folder.result.is_file():
        raise ValueError(
            f"run to start from must have ended, got {str(folder.path)!r}, which has not. Go on "
            f"with it first: dtopk train --resume {folder.quoted}"
        )


def _start_from_dual(path: AnyPath, store: FeatureStore, job: TrainJob) -> StartPoint:
    """Start from a run's duals, which scale with C; its model need not be there."""
    dual = open_dual(path / "dual")
    if (dual.n_samples, dual.n_classes) != (store.n_samples, store.n_classes):
        raise ValueError(
            f"duals to start from must have the {store.n_samples} rows and {store.n_classes} "
            f"classes of {store.path!r}, got {dual.n_samples} and {dual.n_classes} in "
            f"{dual.path!r}. Start from the model alone: {str(path / 'model.npz')!r}."
        )
    folder = RunFolder(path=path)
    if folder.model.is_file():
        _check_class_names(load_model(folder.model), store, dual.path)
    return StartPoint(dual=dual, dual_factor=job.model.C / load_job(path / "job.toml").model.C)


def _check_class_names(model: Model, store: FeatureStore, path: str) -> None:
    """Refuse duals of other classes, or of the same ones in another order."""
    pairs = zip(model.classes.tolist(), store.classes.tolist(), strict=True)
    for place, (trained, stored) in enumerate(pairs):
        if trained != stored:
            raise ValueError(
                f"duals to start from must have the classes of {store.path!r} in their order, got "
                f"{trained!r} for {stored!r}, class {place}, in {path!r}."
            )


def _start_from_model(path: AnyPath, store: FeatureStore, job: TrainJob) -> StartPoint:
    model = load_model(path)
    if model.n_features != store.n_features or model.classes.tolist() != store.classes.tolist():
        raise ValueError(
            f"model to start from must have the {store.n_features} features and the "
            f"{store.n_classes} classes of {store.path!r} in their order, got another one: "
            f"{str(path)!r}."
        )
    if not job.model.fit_intercept:
        return StartPoint(W=model.W)
    return StartPoint(W=np.vstack([model.W, model.intercept / job.model.intercept_scaling]))
