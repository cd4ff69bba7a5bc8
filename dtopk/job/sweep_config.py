"""What a sweep is: a job with a section [sweep], and the settings that it stands for."""

import dataclasses
import itertools
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from dtopk.evaluation import LABEL_METRICS
from dtopk.job.checks import (
    JobValueError,
    check_above_zero,
    check_at_least,
    check_choice,
    check_not_negative,
    coerce_fields,
    unknown_name,
)
from dtopk.job.config import ModelSection, TrainJob
from dtopk.losses import available

K_MAX = 10
"""Top-k accuracy is reported for k up to this."""
TOPK_METRICS = tuple(f"top_{k}" for k in range(1, K_MAX + 1))
"""Names of the metrics of top-k accuracy."""
MULTILABEL_METRICS = ("map", "rank_loss", *LABEL_METRICS)
"""Names of those that rows with sets of labels have beside."""
_LOWER_IS_BETTER = frozenset({"rank_loss", "hamming_loss"})
_LISTS = ("C", "loss", "k", "gamma", "smoothing", "metric")
_GRID = ("loss", "k", "gamma", "smoothing", "C")
"""Keys whose product the settings are."""


@dataclass(frozen=True, kw_only=True)
class SweepSection:
    """Which models a sweep trains, and how it chooses among them."""

    C: tuple[float, ...] = ()
    """Values of model.C; a list, or one value. Empty, here and in the next four: that of
    [model]."""
    loss: tuple[str, ...] = ()
    """Names of losses."""
    k: tuple[int, ...] = ()
    """Values of k, for the losses that take it."""
    gamma: tuple[float, ...] = ()
    """Values of gamma, for the losses that take it."""
    smoothing: tuple[str, ...] = ()
    """Forms of the smoothing, for the losses that take it, where gamma is above 0."""
    metric: tuple[str, ...] = ()
    """What the best setting is chosen by, or a list: the best by each. 'top_1' to 'top_10', and of
    a multilabel store also 'map', 'rank_loss', 'f1_samples', 'f1_macro', 'f1_micro', 'accuracy',
    'subset_accuracy', 'hamming_loss'; empty: 'top_1', or 'map' of a multilabel store."""
    folds: int = 0
    """0: metrics are those of the split `data.validation`. 2 or more: cross-validation, the rows of
    `data.train` are cut into so many folds, each is scored by a model that has not seen it, and the
    metrics are those of all these scores; the best settings are then trained on all of the rows."""
    seed: int = 0
    """Of the permutation that cuts the folds."""
    refit: bool = False
    """Train the best settings anew on the rows of `data.train` and `data.validation` together,
    starting at the weights found."""
    by_loss: bool = False
    """Choose the best C of every loss with its k, gamma and smoothing too, by each metric, and
    measure these models like the best of all: a table of losses, for a comparison of them."""
    width: int = 0
    """Most models that are trained at a time; 0: chosen from what a pass over the rows is seen to
    cost. Without workers only: those train one after the other."""

    def __post_init__(self) -> None:
        for name in _LISTS:
            value = getattr(self, name)
            if not isinstance(value, list | tuple):
                object.__setattr__(self, name, (value,))
        coerce_fields(self, "sweep")
        for name in _LISTS:
            _check_once(f"sweep.{name}", getattr(self, name))
        for C in self.C:
            check_above_zero("sweep.C", C)
        for k in self.k:
            check_at_least("sweep.k", k, 1)
        for gamma in self.gamma:
            check_not_negative("sweep.gamma", gamma)
        for smoothing in self.smoothing:
            check_choice("sweep.smoothing", smoothing, ("lapin", "moreau"))
        known = [info.name for info in available()]
        for loss in self.loss:
            check_choice("sweep.loss", loss, known)
        for metric in self.metric:
            _check_metric(metric)
        check_at_least("sweep.folds", self.folds, 0)
        if self.folds == 1:
            raise JobValueError(
                "sweep.folds must be 0, for the split data.validation, or at least 2, got 1.",
                "sweep.folds",
            )
        check_at_least("sweep.seed", self.seed, 0)
        check_at_least("sweep.width", self.width, 0)


def _check_once(key: str, values: Sequence[object]) -> None:
    for value in values:
        if values.count(value) > 1:
            raise JobValueError(f"{key} must have each value once, got {value!r} again.", key)


def _check_metric(name: str) -> None:
    if name in TOPK_METRICS or name in MULTILABEL_METRICS:
        return
    if re.fullmatch(r"top_\d+", name):
        raise JobValueError(
            f"sweep.metric must be 'top_k' with k between 1 and {K_MAX}, got {name!r}.",
            "sweep.metric",
        )
    error = unknown_name("sweep.metric", name, (*TOPK_METRICS, *MULTILABEL_METRICS))
    raise JobValueError(str(error), "sweep.metric")


def metric_sign(name: str) -> int:
    """Return 1 for a metric of which more is better, -1 for one of which less is."""
    return -1 if name in _LOWER_IS_BETTER else 1


@dataclass(frozen=True, kw_only=True)
class SweepJob(TrainJob):
    """A job that trains a model of each of some settings, and chooses among them."""

    sweep: SweepSection = field(default_factory=SweepSection)
    """Which models are trained, and how the best is chosen."""

    def __post_init__(self) -> None:
        if self.early_stopping.metric:
            raise JobValueError(
                "early_stopping.metric must be left out for a sweep, whose models are compared at "
                f"their optima, got {self.early_stopping.metric!r}.",
                "early_stopping.metric",
            )
        if not self.sweep.folds and not self.data.validation:
            raise JobValueError(
                "data.validation must name the split that the best setting is chosen on, got ''. "
                "Or choose by cross-validation, with sweep.folds.",
                "data.validation", "sweep.folds",
            )  # fmt: skip
        if self.solver.warm_start:
            raise JobValueError(
                "solver.warm_start must be left out for a sweep, whose models start from each "
                f"other, got {self.solver.warm_start!r}.",
                "solver.warm_start",
            )


def check_is_no_sweep(job: TrainJob) -> None:
    """Refuse a job with a section [sweep] where one model is to be trained.

    Raises
    ------
    ValueError
    """
    if isinstance(job, SweepJob):
        raise ValueError(
            "job must have no section [sweep] to train one model, got one that has. Run it with "
            "`dtopk sweep`, or dtopk.sweep, which trains all of its settings."
        )


@dataclass(frozen=True, kw_only=True)
class Setting:
    """One model of a sweep: its loss with the parameters that it takes, and C."""

    loss: str
    """Name of the loss."""
    k: int | None = None
    """None for a loss that takes none; so are the next two."""
    gamma: float | None = None
    """Smoothing."""
    smoothing: str | None = None
    """Form of the smoothing; None also where gamma is 0."""
    C: float
    """Weight of the loss."""

    @property
    def family(self) -> str:
        """All but C, as it stands in names of files."""
        parts = [self.loss]
        if self.k is not None:
            parts.append(f"k{self.k}")
        if self.gamma is not None:
            parts.append(f"gamma{_format(self.gamma)}")
        if self.smoothing not in (None, "lapin"):
            parts.append(str(self.smoothing))
        return "-".join(parts)

    @property
    def name(self) -> str:
        """Name of its folder."""
        return f"{self.family}-C{_format(self.C)}"

    @property
    def parameters(self) -> dict[str, Any]:
        """Loss, k, gamma, smoothing and C, less those that it does not take."""
        return {key: value for key, value in self._values().items() if value is not None}

    def _values(self) -> dict[str, Any]:
        return {key: getattr(self, key) for key in _GRID}

    def describe_family(self) -> str:
        """Describe all but C in words, such as 'topk_hinge_alpha, k = 3, gamma = 1'."""
        shown = [
            f"{key} = {value:g}" if isinstance(value, float) else f"{key} = {value}"
            for key, value in self.parameters.items()
            if key not in ("loss", "C") and not (key == "smoothing" and value == "lapin")
        ]
        return ", ".join([self.loss, *shown])

    def describe(self) -> str:
        """Describe it in words."""
        return f"{self.describe_family()}, C = {self.C:g}"

    def make_job(self, job: TrainJob, run_dir: str) -> TrainJob:
        """Make the job that trains this model alone.

        Parameters
        ----------
        job : TrainJob
            That of the sweep.
        run_dir : str
            Its folder.
        """
        taken = _PARAMETERS[self.loss]
        model = dataclasses.replace(
            job.model,
            loss=self.loss,
            k=ModelSection.k if self.k is None else self.k,
            gamma=ModelSection.gamma if self.gamma is None else self.gamma,
            smoothing=self.smoothing or ModelSection.smoothing,
            rho=job.model.rho if "rho" in taken else (),
            label_cost=job.model.label_cost if "label_cost" in taken else "",
            C=self.C,
        )
        sections = {each.name: getattr(job, each.name) for each in dataclasses.fields(TrainJob)}
        output = dataclasses.replace(job.output, run_dir=run_dir)
        return TrainJob(**(sections | {"model": model, "output": output}))


_PARAMETERS = {info.name: info.parameters for info in available()}


def _format(value: float) -> str:
    """Write a number as it is, so that two that differ have two names."""
    return repr(value).removesuffix(".0")


def iter_grid(job: SweepJob) -> Iterator[Setting]:
    """List the settings that a sweep stands for, whether or not their losses take the values.

    Those of one loss follow each other, by the order of the lists, and from small to large C.

    Parameters
    ----------
    job : SweepJob
    """
    values = {key: getattr(job.sweep, key) or (getattr(job.model, key),) for key in _GRID}
    for loss in values["loss"]:
        if loss not in _PARAMETERS:
            # Named in [model]; `build_loss` says what is wrong.
            yield Setting(loss=loss, C=values["C"][0])
            continue
        taken = _PARAMETERS[loss]
        chosen = [values[key] if key in taken else (None,) for key in ("k", "gamma", "smoothing")]
        seen = set()
        for k, gamma, smoothing, C in itertools.product(*chosen, sorted(values["C"])):
            setting = Setting(
                loss=loss, k=k, gamma=gamma, smoothing=smoothing if gamma else None, C=C
            )
            if setting not in seen:
                seen.add(setting)
                yield setting


def values_key(job: SweepJob, key: str) -> str:
    """Name the key that values of the grid come from, such as 'sweep.k' or 'model.k'."""
    return f"sweep.{key}" if key in _GRID and getattr(job.sweep, key) else f"model.{key}"
