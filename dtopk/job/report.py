"""Collect what a page about some runs shows, from their folders and their stores."""

import datetime
import logging
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from dtopk.evaluation import AccuracyCounts, CalibrationCounts
from dtopk.job.calibration import count_trained
from dtopk.job.config import TrainJob
from dtopk.job.files import load_job
from dtopk.job.run_folder import RunFolder, RunRecord
from dtopk.job.scoring import evaluate_split
from dtopk.job.verification import read_result
from dtopk.model import Model, load_model
from dtopk_storage import open_store
from dtopk_storage.paths import PathLike, as_path

logger = logging.getLogger(__name__)

_PAIRS_SHOWN = 15
_SEEN = "Accuracy by class is that of split {!r}, which has rows that the model was trained on."


@dataclass(frozen=True, kw_only=True)
class Epoch:
    """One line of a run's history."""

    epoch: int
    """Passes until then."""
    seconds: float
    """Since the start."""
    gap: float
    """Relative duality gap."""
    exact: bool
    """Whether it was computed over all rows."""
    accuracy: dict[str, float]
    """Top-k accuracy of the validation split, by name."""


@dataclass(frozen=True, kw_only=True)
class ClassAccuracy:
    """How accurate a model is on the rows of one class."""

    name: str
    """Name of the class."""
    n_rows: int
    """Rows of the class."""
    accuracy: float
    """Share of them that are right, 0 to 1."""


@dataclass(frozen=True, kw_only=True)
class RunReport:
    """What there is to show of one run."""

    name: str
    """Name of its folder."""
    path: str
    """The folder."""
    job: TrainJob
    """The job as resolved."""
    result: dict[str, Any]
    """What result.json says."""
    epochs: tuple[Epoch, ...]
    """The history."""
    environment: dict[str, str]
    """What the run was made with."""
    split: str = ""
    """Split that the next three are of; empty: there are none."""
    classes: tuple[ClassAccuracy, ...] = ()
    """The classes that have rows, from the least to the most accurate."""
    confused: tuple[tuple[str, str, int], ...] = ()
    """The commonest mistakes: true class, predicted class, rows."""
    calibration: CalibrationCounts | None = None
    """Of the probabilities and sets of a calibrated model."""
    notes: tuple[str, ...] = field(default=())
    """What could not be shown, and why."""

    @property
    def anchor(self) -> str:
        """What its section can be linked to by."""
        return "run-" + re.sub(r"[^A-Za-z0-9.-]+", "-", self.name)


def collect_run(
    path: PathLike, *, progress: Callable[[int, int], None] = lambda done, total: None
) -> RunReport:
    """Collect what there is to show of one run; its model is evaluated by class.

    Parameters
    ----------
    path : path of a run folder, or its address in an object store
    progress : callable, optional
        Called with the rows done and the rows to do.

    Returns
    -------
    RunReport

    Raises
    ------
    ValueError
        If there is no run that has come to its end.
    """
    folder = RunFolder(path=as_path(path, name="RUN"))
    if not folder.job.is_file():
        raise ValueError(
            f"RUN must be a run folder, which holds 'job.toml', got {str(folder.path)!r}."
        )
    job = load_job(folder.job)
    result = read_result(folder)
    record = folder.read_record()
    return RunReport(
        name=folder.path.name,
        path=str(folder.path),
        job=job,
        result=result,
        epochs=read_epochs(folder),
        environment=describe_environment(job, record),
        **evaluate_model(job, load_model(folder.model), progress),
    )


def describe_environment(job: TrainJob, record: RunRecord) -> dict[str, str]:
    """Say what a run, or those of a sweep, were made with.

    Parameters
    ----------
    job : TrainJob
    record : RunRecord
    """
    started = datetime.datetime.fromtimestamp(record.started).astimezone()
    return {
        "dtopk": record.version,
        "started": started.isoformat(sep=" ", timespec="seconds"),
        "workers": "none, one process" if job.cluster.kind == "none" else job.cluster.kind,
        "partitions": str(max(job.cluster.partitions, 1)),
        # A sweep does not note how many there were where the job leaves them open.
        "threads": str(record.threads or job.resources.threads or "all of the BLAS library"),
        "dtype": job.solver.dtype,
        "store": job.data.store,
    }


def read_epochs(folder: RunFolder) -> tuple[Epoch, ...]:
    """Read the history of a run.

    Parameters
    ----------
    folder : RunFolder
    """
    return tuple(
        Epoch(
            epoch=int(row["epoch"]),
            seconds=float(row["seconds"]),
            gap=float(row["relative_gap"]),
            exact=row["exact"] == "True",
            accuracy={
                name: float(value) for name, value in row.items() if "/top_" in name and value
            },
        )
        for row in folder.read_history()
    )


def evaluate_model(
    job: TrainJob, model: Model, progress: Callable[[int, int], None]
) -> dict[str, Any]:
    """Measure a model by class, on the first split evaluated that it was not trained on.

    Parameters
    ----------
    job : TrainJob
    model : Model
    progress : callable
        Called with the rows done and the rows to do.

    Returns
    -------
    dict
        The fields of :class:`RunReport` from `split` on.
    """
    if model.target != "multiclass" or not job.data.evaluate:
        return {}
    held = None
    if model.calibration is not None:
        held = CalibrationCounts(calibration=model.calibration)
    also = None if held is None else held.update
    try:
        store = open_store(job.data.store)
        unseen = [each for each in job.data.evaluate if not count_trained(model, store, each)]
        split = (unseen or job.data.evaluate)[0]
        counts = evaluate_split(model, store, split, progress=progress, also=also)
    except (ValueError, OSError) as error:
        # The page is of use without it; a store may have been moved since.
        logger.warning("Accuracy by class is left out. %s", error)
        return {"notes": (f"Accuracy by class is left out: {error}",)}
    return {
        "split": split,
        "classes": _list_classes(model, counts),
        "confused": _list_confused(model, counts),
        "calibration": held,
        "notes": () if unseen else (_SEEN.format(split),),
    }


def _list_classes(model: Model, counts: AccuracyCounts) -> tuple[ClassAccuracy, ...]:
    accuracies = counts.accuracy_by_class()
    found = [
        ClassAccuracy(name=str(name), n_rows=int(n_rows), accuracy=float(accuracy))
        for name, n_rows, accuracy in zip(
            model.classes.tolist(), counts.rows_by_class, accuracies, strict=True
        )
        if n_rows
    ]
    return tuple(sorted(found, key=lambda each: each.accuracy))


def _list_confused(model: Model, counts: AccuracyCounts) -> tuple[tuple[str, str, int], ...]:
    names = model.classes.tolist()
    return tuple(
        (str(names[true]), str(names[predicted]), n_rows)
        for true, predicted, n_rows in counts.most_confused(_PAIRS_SHOWN)
    )
