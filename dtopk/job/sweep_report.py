"""Collect what a page about a sweep shows, from its folder and its store."""

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dtopk.job.report import RunReport, describe_environment, evaluate_model, read_epochs
from dtopk.job.run_folder import RunFolder, RunRecord
from dtopk.job.sweep_config import TOPK_METRICS, Setting, SweepJob
from dtopk.job.sweep_folder import SweepFolder
from dtopk.job.sweep_units import Unit, UnitResult
from dtopk.model import load_model
from dtopk_storage import CheckpointError
from dtopk_storage.paths import PathLike, as_path

logger = logging.getLogger(__name__)

_SHOWN = ("gap", "certified", "epochs", "seconds", "solver", "stop_reason")
"""What a line of the table has beside setting and metrics."""


@dataclass(frozen=True, kw_only=True)
class Chosen:
    """A setting that is best by one metric or by several, whose model is kept."""

    setting: Setting
    """The setting."""
    metrics: tuple[str, ...]
    """Those that it is best by."""
    refit: bool
    """Whether its model was trained anew, on more rows than it was chosen by."""
    evaluated: Mapping[str, Mapping[str, float]]
    """Every metric of this model on the splits that the job names."""
    run: RunReport
    """What there is to show of its training."""


@dataclass(frozen=True, kw_only=True)
class SweepReport:
    """What there is to show of a sweep."""

    name: str
    """Name of its folder."""
    path: str
    """The folder."""
    job: SweepJob
    """The job as resolved."""
    result: Mapping[str, Any]
    """What sweep.json says."""
    settings: tuple[tuple[Setting, Mapping[str, Any]], ...]
    """Each setting that is done, with its line of the table."""
    losses: tuple[tuple[Setting, Mapping[str, Any]], ...]
    """Each loss at the C that is best by a metric, with its line of that table; empty where the job
    does not want losses compared."""
    chosen: tuple[Chosen, ...]
    """The best settings, each of them once."""


def is_sweep(path: PathLike) -> bool:
    """Tell whether a folder is that of a sweep.

    Parameters
    ----------
    path : path of a folder, or its address in an object store
    """
    return SweepFolder(path=as_path(path, name="RUN")).record.is_file()


def collect_sweep(
    path: PathLike, *, progress: Callable[[int, int], None] = lambda done, total: None
) -> SweepReport:
    """Collect what there is to show of a sweep; its best models are evaluated by class.

    Parameters
    ----------
    path : path of the folder of a sweep, or its address in an object store
    progress : callable, optional
        Called with the rows done and the rows to do, for each model.

    Returns
    -------
    SweepReport

    Raises
    ------
    ValueError
        If the sweep has not come to its end, or its files are damaged.
    """
    folder = SweepFolder(path=as_path(path, name="RUN"))
    record = folder.read_record()
    if record is None or not folder.result.is_file():
        raise ValueError(
            f"sweep {str(folder.path)!r} must have a 'sweep.json', but it did not come to its end. "
            "The command that began it goes on."
        )
    job, result = folder.load_job(), folder.read_result()
    try:
        settings = tuple((_read_setting(row, _SHOWN), row) for row in result["settings"])
        losses = tuple((_read_setting(row), row) for row in result["losses"])
        by_setting: dict[Setting, list[str]] = {}
        for metric, best in result["best"].items():
            by_setting.setdefault(_read_setting(best), []).append(metric)
        chosen = tuple(
            _collect_chosen(folder, job, record, setting, result["best"], metrics, progress)
            for setting, metrics in by_setting.items()
        )
    except (KeyError, TypeError, AttributeError) as error:
        raise CheckpointError(
            f"{str(folder.result)!r} must be as dtopk wrote it, but it is not: {error!r}."
        ) from error
    return SweepReport(
        name=folder.path.name,
        path=str(folder.path),
        job=job,
        result=result,
        settings=settings,
        losses=losses,
        chosen=chosen,
    )


def _read_setting(fields: Mapping[str, Any], shown: Sequence[str] = ()) -> Setting:
    for name in shown:
        if name not in fields:
            raise KeyError(name)
    values: dict[str, Any] = {name: fields[name] for name in ("loss", "C")}
    values |= {name: fields.get(name) for name in ("k", "gamma", "smoothing")}
    return Setting(**values)


def _collect_chosen(
    folder: SweepFolder,
    job: SweepJob,
    record: RunRecord,
    setting: Setting,
    best: Mapping[str, Any],
    metrics: Sequence[str],
    progress: Callable[[int, int], None],
) -> Chosen:
    fields = best[metrics[0]]
    unit = Unit(setting=setting, refit=fields["refit"])
    trained = folder.find_result(unit)
    if trained is None:
        raise CheckpointError(
            f"{str(folder.unit(unit))!r} must hold a training that is done, as "
            f"{str(folder.result)!r} says, got none. The command that began the sweep goes on."
        )
    place = RunFolder(path=folder.unit(unit))
    model = load_model(folder.best(metrics[0]) / "model.npz")
    own = setting.make_job(job, str(place.path))
    run = RunReport(
        name=setting.describe(),
        path=str(place.path),
        job=own,
        result={
            **_describe_result(trained, setting, job.solver.tol, fields["evaluated"]),
            "n_features": model.n_features,
            "n_classes": model.n_classes,
        },
        epochs=read_epochs(place),
        environment=describe_environment(own, record) | {"trained on": ", ".join(trained.splits)},
        **evaluate_model(own, model, progress),
    )
    return Chosen(
        setting=setting,
        metrics=tuple(metrics),
        refit=unit.refit,
        evaluated=fields["evaluated"],
        run=run,
    )


def _describe_result(
    trained: UnitResult,
    setting: Setting,
    tol: float,
    evaluated: Mapping[str, Mapping[str, float]],
) -> dict[str, Any]:
    """Say of a training what the result of a run says."""
    parameters = setting.parameters
    return {
        "loss": setting.loss,
        "loss_parameters": {
            name: value for name, value in parameters.items() if name not in ("loss", "C")
        },
        "tol": tol,
        **{
            name: getattr(trained, name)
            for name in (
                "solver", "stop_reason", "epochs", "seconds", "primal", "dual", "duality_gap",
                "relative_gap", "certified",
            )
        },
        "top_k_accuracy": {
            split: {
                name.removeprefix("top_"): share
                for name, share in metrics.items()
                if name in TOPK_METRICS
            }
            for split, metrics in evaluated.items()
        },
        "label_metrics": {
            split: others
            for split, metrics in evaluated.items()
            if (others := {k: v for k, v in metrics.items() if k not in TOPK_METRICS})
        },
    }  # fmt: skip
