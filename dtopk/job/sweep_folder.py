"""The folder of a sweep: its files by name, and what of it is done already."""

import csv
import dataclasses
import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from dtopk.atomic import write_text
from dtopk.engine import EpochRecord, FitResult
from dtopk.job.files import flatten_job, load_sweep
from dtopk.job.names import list_settings
from dtopk.job.run_folder import Checkpoint, RunFolder, RunRecord, read_checkpoint, read_object
from dtopk.job.sweep_config import SweepJob, values_key
from dtopk.job.sweep_units import Unit, UnitResult
from dtopk.model import Model, load_model
from dtopk_storage import CheckpointError, RunState, open_run_state
from dtopk_storage.json_files import parse_object, parse_record
from dtopk_storage.paths import AnyPath, delete_tree

_FREE_KEYS = frozenset(
    {
        "data.store",  # known again by its checksum
        "data.validation", "data.evaluate", "data.threshold_metric",
        "model.loss", "model.k", "model.gamma", "model.smoothing", "model.C",  # in the settings
        "sweep.loss", "sweep.k", "sweep.gamma", "sweep.smoothing", "sweep.C",
        "sweep.metric", "sweep.refit", "sweep.by_loss", "sweep.width",
        "output.run_dir", "output.save_dual", "output.state_url",
    }
)  # fmt: skip
_FREE_SECTIONS = frozenset({"resources", "cluster", "submit", "tracking"})


@dataclass(frozen=True, kw_only=True)
class SweepFolder:
    """Where a sweep puts its files."""

    path: AnyPath
    """The folder, on a file system or in an object store."""

    @property
    def run(self) -> RunFolder:
        """The folder with what it has in common with that of a run."""
        return RunFolder(path=self.path)

    @property
    def quoted(self) -> str:
        """The folder's path as a shell takes it."""
        return self.run.quoted

    @property
    def record(self) -> AnyPath:
        """What is to be known of the beginning; it makes the folder that of a sweep."""
        return self.path / "sweep-run.json"

    @property
    def job(self) -> AnyPath:
        """The job as resolved, a job file."""
        return self.path / "job.toml"

    @property
    def table(self) -> AnyPath:
        """A line for each setting."""
        return self.path / "sweep.csv"

    @property
    def losses(self) -> AnyPath:
        """A line for each loss and metric, where losses are compared."""
        return self.path / "losses.csv"

    @property
    def result(self) -> AnyPath:
        """Settings, metrics and the best."""
        return self.path / "sweep.json"

    @property
    def figure(self) -> AnyPath:
        """Metrics against C."""
        return self.path / "sweep.png"

    @property
    def settings(self) -> AnyPath:
        """A folder for each setting."""
        return self.path / "settings"

    def unit(self, unit: Unit) -> AnyPath:
        """Return the folder of one training."""
        path = self.settings
        for name in unit.name.split("/"):
            path = path / name
        return path

    def best(self, metric: str) -> AnyPath:
        """Return the folder of the model that is best by a metric."""
        return self.path / "best" / metric

    def check_usable(self) -> None:
        """Refuse a folder that has anything in it but a sweep.

        Raises
        ------
        ValueError
        """
        if not self.run.is_empty() and not self.record.is_file():
            raise ValueError(
                f"folder of the sweep must be new or empty, or hold a sweep to go on with, got "
                f"{str(self.path)!r}, which is in use. Choose another one with --run-dir, or "
                "output.run_dir of the job."
            )

    def read_record(self) -> RunRecord | None:
        """Read what is to be known of the sweep's beginning; None: there is none.

        Raises
        ------
        CheckpointError
            If it is not as it was written.
        """
        if not (self.record.is_file() and self.job.is_file()):
            return None
        try:
            return parse_record(self.record.read_text(encoding="utf-8"), RunRecord)
        except ValueError as error:
            raise CheckpointError(
                f"{str(self.record)!r} must be as dtopk wrote it, but it is not: {error}."
            ) from error

    def read_result(self) -> dict[str, Any]:
        """Read what came of the sweep, whatever it says.

        Raises
        ------
        CheckpointError
            If it is no JSON object.
        """
        return read_object(self.result)

    def write_record(self, record: RunRecord) -> None:
        """Write it, or write it anew."""
        write_text(self.record, json.dumps(dataclasses.asdict(record), indent=2) + "\n")

    def load_job(self) -> SweepJob:
        """Read the job that is in the folder."""
        return load_sweep(self.job)

    def find_result(self, unit: Unit) -> UnitResult | None:
        """Read what a training came to; None: it is not done.

        Raises
        ------
        CheckpointError
            If the file is damaged, or the model is gone.
        """
        folder = self.unit(unit)
        path = folder / "result.json"
        if not path.is_file():
            return None
        try:
            result = parse_record(path.read_text(encoding="utf-8"), UnitResult, more=True)
            if not (folder / "model.npz").is_file():
                raise ValueError("its model is gone")
            return result
        except ValueError as error:
            raise CheckpointError(
                f"{str(path)!r} must be as dtopk wrote it, but it is not: {error}. Delete "
                f"{str(folder)!r} to train the setting anew."
            ) from error

    def save_unit(self, unit: Unit, model: Model, result: UnitResult, fitted: FitResult) -> None:
        """Keep a training that is done. Its result comes last: with it, it counts as done.

        Parameters
        ----------
        unit : Unit
        model : Model
        result : UnitResult
        fitted : FitResult
            Its history is kept.
        """
        folder = self.unit(unit)
        make_folder(folder)
        model.save(folder / "model.npz")
        write_text(folder / "history.csv", _format_history(fitted.history))
        fields = {
            "name": unit.name,
            **unit.setting.parameters,
            **dataclasses.asdict(result),
            "tol": fitted.certificate.tol,
            "n_features": model.n_features,
            "n_classes": model.n_classes,
        }
        write_text(folder / "result.json", json.dumps(fields, indent=2) + "\n")

    def open_state(self, unit: Unit, record: RunRecord, state_url: str) -> RunState:
        """Open the state of a training that is under way on workers.

        Parameters
        ----------
        unit : Unit
        record : RunRecord
            That of the sweep.
        state_url : str
            `output.state_url` of its job.
        """
        own = f"{state_url.rstrip('/')}/{self.path.name}-{record.id[:8]}/{unit.name}"
        return open_run_state(own if state_url else str(self.unit(unit) / "state"))

    def find_checkpoint(self, unit: Unit, state_url: str) -> Checkpoint | None:
        """Read how far a training on workers is that is under way; None: it has no commit.

        Parameters
        ----------
        unit : Unit
        state_url : str
            `output.state_url` of the sweep's job.
        """
        record = self.read_record()
        if record is None:
            return None
        return read_checkpoint(self.open_state(unit, record, state_url), self.unit(unit))

    def load_model(self, unit: Unit) -> Model:
        """Read the model of a training that is done."""
        return load_model(self.unit(unit) / "model.npz")

    def read_mlflow(self, unit: Unit) -> dict[str, str]:
        """Read where a training is recorded; empty: nowhere."""
        path = self.unit(unit) / "mlflow.json"
        try:
            fields = parse_object(path.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return {}
        return {name: str(value) for name, value in fields.items()}

    def write_mlflow(self, unit: Unit, fields: Mapping[str, str]) -> None:
        """Write where a training is recorded."""
        write_text(self.unit(unit) / "mlflow.json", json.dumps(dict(fields), indent=2) + "\n")

    def delete_duals(self, unit: Unit) -> None:
        """Delete the duals that a training has left for the next one."""
        delete_tree(self.unit(unit) / "dual")

    def list_written(self) -> tuple[AnyPath, ...]:
        """List the files and folders that are there, in the order they are of use."""
        known = (
            self.path / "best", self.table, self.losses, self.result, self.figure, self.settings,
            self.job, self.record,
        )  # fmt: skip
        there = {entry.name for entry in self.path.iterdir()} if self.path.is_dir() else set()
        return tuple(path for path in known if path.name in there)


def make_folder(path: AnyPath) -> None:
    """Make a folder on a disk; an object store needs none."""
    if isinstance(path, Path):
        path.mkdir(parents=True, exist_ok=True)


def _format_history(history: Sequence[EpochRecord]) -> str:
    text = io.StringIO()
    columns = [field.name for field in dataclasses.fields(EpochRecord)]
    writer = csv.DictWriter(text, columns, lineterminator="\n")
    writer.writeheader()
    writer.writerows(dataclasses.asdict(record) for record in history)
    return text.getvalue()


def check_same_sweep(
    job: SweepJob, store_checksum: str, folder: SweepFolder, record: RunRecord
) -> None:
    """Refuse a job that would not go on with the sweep in the folder, but begin another one.

    Values may be added to the lists of [sweep], and none taken away.

    Parameters
    ----------
    job : SweepJob
        As resolved.
    store_checksum : str
        Of the store's manifest.
    folder : SweepFolder
    record : RunRecord

    Raises
    ------
    ValueError
        With the values that differ.
    """
    advice = "Take the job as it was, or another folder with --run-dir."
    if record.version != version("dtopk"):
        raise ValueError(
            f"dtopk must be {record.version} to go on with the sweep in {str(folder.path)!r}, "
            f"which that version began, got {version('dtopk')}. Install it, or sweep in another "
            "folder with --run-dir."
        )
    before = folder.load_job()
    differing = [*_list_changes(before, job), *_list_missing(before, job)]
    if differing:
        raise ValueError(
            f"job must be that of the sweep in {str(folder.path)!r}, which is gone on with, but "
            f"for what may differ, got {', '.join(differing)}. What may differ: more values in "
            "[sweep], its metric, refit, by_loss and width, what to evaluate, [output], "
            f"[tracking], [resources], [submit], and [cluster] but partitions. {advice}"
        )
    if store_checksum != record.store_checksum:
        raise ValueError(
            f"data.store must be the store that the sweep in {str(folder.path)!r} began with, got "
            f"another one in {job.data.store!r}: the checksums of their manifests differ. {advice}"
        )


def _list_changes(before: SweepJob, now: SweepJob) -> list[str]:
    old, new = flatten_job(before), flatten_job(now)
    changed = [key for key in new if new[key] != old[key] and _must_stay(key)]
    partitions = before.cluster.partitions
    if partitions and now.cluster.partitions and now.cluster.partitions != partitions:
        changed.append("cluster.partitions")
    return [f"{key} = {new[key]!r} (was {old[key]!r})" for key in changed]


def _must_stay(key: str) -> bool:
    return key not in _FREE_KEYS and key.partition(".")[0] not in _FREE_SECTIONS


def _list_missing(before: SweepJob, now: SweepJob) -> list[str]:
    """Name the values of settings that are no longer asked for."""
    old, new = list_settings(before)[0], set(list_settings(now)[0])
    if set(old) <= new:
        return []
    missing = []
    for key in ("loss", "k", "gamma", "smoothing", "C"):
        kept = {getattr(setting, key) for setting in new}
        lost = dict.fromkeys(
            getattr(setting, key) for setting in old if getattr(setting, key) not in kept
        )
        missing += [f"{values_key(now, key)} without {value!r}" for value in lost]
    return missing or [f"[sweep] without {next(each for each in old if each not in new).name!r}"]
