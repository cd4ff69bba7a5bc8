"""The folder of a run: its files by name, and the rule that a folder serves one run."""

import contextlib
import csv
import dataclasses
import io
import json
import re
import shlex
import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

from dtopk.atomic import write_text
from dtopk.launch.submit import SUBMISSION
from dtopk_storage import CheckpointError, RunLock, RunState, open_run_state
from dtopk_storage.errors import describe_error
from dtopk_storage.json_files import parse_object, parse_record
from dtopk_storage.paths import AnyPath, as_path, delete_tree, put_tree

_PLACEHOLDER = re.compile(r"\{[^{}/]*\}")
_LOCK = "lock"
"""The file by which a run has the folder to itself; see `dtopk_storage.RunLock`."""
_NOT_THE_RUNS = frozenset({_LOCK, SUBMISSION})
"""What may be there before a run has begun, and stays when it has come to nothing."""
_BEGUN = (".run.json.partial-", ".sweep-run.json.partial-")
"""Beginnings of what a run, or a sweep, leaves that was killed while it wrote its first file."""


def read_object(path: AnyPath) -> dict[str, Any]:
    """Read a JSON object that a run or a sweep has left, whatever it says.

    Parameters
    ----------
    path : Path or ObjectPath

    Raises
    ------
    FileNotFoundError
        If there is none.
    CheckpointError
        If it is damaged.
    """
    try:
        return parse_object(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise CheckpointError(
            f"{str(path)!r} must be as dtopk wrote it, but it is not: {error}."
        ) from error


def name_run_folder(template: str) -> AnyPath:
    """Put the time of now in the place of '{time}'.

    Returns
    -------
    Path or ObjectPath

    Raises
    ------
    ValueError
        If there is another name in braces.
    """
    unknown = set(_PLACEHOLDER.findall(template)) - {"{time}"}
    if unknown:
        raise ValueError(
            f"output.run_dir must have no placeholder but '{{time}}', got {min(unknown)!r} in "
            f"{template!r}."
        )
    named = template.replace("{time}", time.strftime("%Y%m%d-%H%M%S"))
    return as_path(named, name="output.run_dir")


@dataclass(frozen=True, kw_only=True)
class RunRecord:
    """What a run that goes on must know of its beginning, beside the job."""

    id: str = field(default_factory=lambda: uuid.uuid4().hex)
    """Drawn at random."""
    version: str = field(default_factory=lambda: version("dtopk"))
    """Of dtopk."""
    started: float = field(default_factory=time.time)
    """When it began: seconds since 1970."""
    store_checksum: str = ""
    """Checksum of the store's manifest."""
    loss: dict[str, Any] = field(default_factory=dict)
    """Parameters of the loss, with what tells a matrix of label costs from another."""
    threads: int = 0
    """Threads of the matrix products, on which the result's last digits depend."""
    state: str = ""
    """Folder or address of the run's state."""
    mlflow: dict[str, str] = field(default_factory=dict)
    """Tracking URI, experiment id and run id; empty if the run is not recorded."""
    resumed_at: tuple[int, ...] = ()
    """The epochs after which it was taken up again."""


@dataclass(frozen=True, kw_only=True)
class Checkpoint:
    """The last commit of a run that has not reached its tolerance."""

    epochs: int
    """Epochs done."""
    saved: float
    """When it was committed: seconds since 1970."""


def read_checkpoint(state: RunState, path: AnyPath) -> Checkpoint | None:
    """Read how far a training is that has a state; None: there is no commit.

    Parameters
    ----------
    state : RunState
    path : Path or ObjectPath
        The folder that it is the state of.

    Raises
    ------
    CheckpointError
        If it does not say so.
    """
    manifest = state.load()
    if manifest is None:
        return None
    progress = manifest.get("progress")
    epochs = progress.get("epoch") if isinstance(progress, dict) else None
    saved = manifest.get("saved")
    if type(epochs) is not int or not isinstance(saved, int | float):
        raise CheckpointError(
            f"state of {str(path)!r} must say after which epoch it was saved, and when, got "
            f"{epochs!r} and {saved!r}."
        )
    return Checkpoint(epochs=epochs, saved=saved)


@dataclass(frozen=True, kw_only=True)
class RunFolder:
    """Where one run puts its files."""

    path: AnyPath
    """The folder, on a file system or in an object store."""

    @property
    def quoted(self) -> str:
        """The folder's path as a shell takes it, for commands in messages."""
        return shlex.quote(str(self.path))

    @property
    def record(self) -> AnyPath:
        """What is to be known of the beginning; it makes the folder that of a run."""
        return self.path / "run.json"

    @property
    def state(self) -> AnyPath:
        """The state of a run that is under way, a folder, unless the job puts it elsewhere."""
        return self.path / "state"

    @property
    def new_dual(self) -> AnyPath:
        """The dual variables until all of them are written, a folder."""
        return self.path / "dual.partial"

    @property
    def job(self) -> AnyPath:
        """The job as resolved, a job file."""
        return self.path / "job.toml"

    @property
    def model(self) -> AnyPath:
        """The model."""
        return self.path / "model.npz"

    @property
    def dual(self) -> AnyPath:
        """The dual variables, a folder."""
        return self.path / "dual"

    @property
    def has_dual(self) -> bool:
        """Whether dual variables are there, all of them."""
        # A store may show a folder for a while whose objects have been deleted.
        return (self.dual / "zarr.json").is_file()

    @property
    def history(self) -> AnyPath:
        """Objectives, gap and speed, a line an epoch."""
        return self.path / "history.csv"

    @property
    def result(self) -> AnyPath:
        """Certificate, accuracy, sizes and times."""
        return self.path / "result.json"

    @property
    def convergence(self) -> AnyPath:
        """Figure of the convergence."""
        return self.path / "convergence.png"

    @property
    def topk_accuracy(self) -> AnyPath:
        """Figure of the accuracy."""
        return self.path / "topk_accuracy.png"

    @property
    def reliability(self) -> AnyPath:
        """Figure of the probabilities, once the model has been calibrated."""
        return self.path / "reliability.png"

    @property
    def unsent(self) -> AnyPath:
        """What MLflow has not taken yet; there is none as long as it answers."""
        return self.path / "mlflow.jsonl"

    def check_usable(self) -> None:
        """Refuse a folder that has anything in it but a run that can be taken up again.

        Raises
        ------
        ValueError
            If the path is taken by a file, by a folder that is no run's, or by a run that has
            ended for good.
        """
        if self.is_empty():
            return
        if not self.record.is_file():
            raise self._in_use("is in use")
        if self.has_ended():
            self.delete_dead_lock()
            raise self._in_use("holds a run that has ended")

    def is_empty(self) -> bool:
        """Whether nothing is there, or an empty folder, or what `dtopk submit` has put there."""
        if not self.path.exists():
            return True
        return self.path.is_dir() and all(
            entry.name in _NOT_THE_RUNS or entry.name.startswith(_BEGUN)
            for entry in self.path.iterdir()
        )

    def _in_use(self, why: str) -> ValueError:
        return ValueError(
            f"run folder must be new or empty, got {str(self.path)!r}, which {why}. "
            "Choose another one with --run-dir, or output.run_dir of the job."
        )

    def read_record(self) -> RunRecord:
        """Read what is to be known of the run's beginning.

        Raises
        ------
        CheckpointError
            If it is not as it was written.
        """
        try:
            return parse_record(self.record.read_text(encoding="utf-8"), RunRecord)
        except ValueError as error:
            raise CheckpointError(
                f"{str(self.record)!r} must be as dtopk wrote it, but it is not: {error}."
            ) from error

    def write_record(self, record: RunRecord) -> None:
        """Write it, or write it anew."""
        write_text(self.record, json.dumps(dataclasses.asdict(record), indent=2) + "\n")

    def open_state(self) -> RunState:
        """Open the state of the run that is in the folder."""
        return open_run_state(self.read_record().state)

    def find_checkpoint(self) -> Checkpoint | None:
        """Read how far the run in the folder is that can be taken up again; None if it cannot."""
        if not self.record.is_file():
            return None
        return read_checkpoint(self.open_state(), self.path)

    def has_ended(self) -> bool:
        """Whether there is a result, and nothing that the same job would do in the folder."""
        return self.result.is_file() and self.find_checkpoint() is None and not self.starts_again()

    def delete_dead_lock(self) -> None:
        """Delete the lock of a process that was killed after the run's end; one held stays.

        In an object store all stay, where it takes 15 s to tell them apart: they grow old, and are
        then in nobody's way.
        """
        if isinstance(self.path, Path) and (self.path / _LOCK).is_file():
            # Whoever takes a lock deletes it at the end.
            with contextlib.suppress(OSError, ValueError), RunLock(str(self.path)):
                pass

    def starts_again(self) -> bool:
        """Whether the run was asked to stop before its first commit, and so left only a result."""
        if not self.result.is_file():
            return False
        result = self.read_result()
        # Not where a state has been, and was deleted: its run would be lost.
        never_committed = not result.get("committed", True)
        return bool(never_committed and result.get("resumable")) and self.find_checkpoint() is None

    def read_result(self) -> dict[str, Any]:
        """Read what came of the run, whatever it says.

        Raises
        ------
        FileNotFoundError
            If it has not come to its end.
        CheckpointError
            If it is damaged.
        """
        return read_object(self.result)

    def read_history(self) -> list[dict[str, str]]:
        """Read the lines of the history, which is none where there is no file.

        Raises
        ------
        CheckpointError
            If it is no table with the numbers of an epoch in each line.
        """
        if not self.history.is_file():
            return []
        try:
            text = self.history.read_text(encoding="utf-8")
            rows = list(csv.DictReader(io.StringIO(text, newline="")))
            for row in rows:
                if None in row or None in row.values():
                    raise ValueError("a line has more or fewer values than the first")
                int(row["epoch"])
                for name in ("seconds", "primal", "dual_value", "relative_gap"):
                    float(row[name])
            return rows
        except (ValueError, KeyError, csv.Error) as error:
            raise CheckpointError(
                f"{str(self.history)!r} must be as dtopk wrote it, but it is not: "
                f"{describe_error(error)}."
            ) from error

    def claim(self, record: RunRecord, job_toml: str) -> None:
        """Make the folder this run's; what a run has left that was killed early is overwritten.

        Parameters
        ----------
        record : RunRecord
        job_toml : str
            The job as resolved.
        """
        self.write_record(record)
        write_text(self.job, job_toml)

    def release(self) -> None:
        """Empty the folder of a run that came to nothing, so that it can be used again."""
        if not (self.path / SUBMISSION).is_dir():
            delete_tree(self.path)
            return
        # The record and logs of the submission say why it has come to nothing.
        for entry in self.path.iterdir():
            if entry.name == SUBMISSION:
                continue
            if entry.is_dir() and not (isinstance(entry, Path) and entry.is_symlink()):
                delete_tree(entry)
            else:
                entry.unlink(missing_ok=True)

    def delete_if_empty(self) -> None:
        """Delete the folder if a run has made it and left nothing in it."""
        if isinstance(self.path, Path) and self.path.is_dir() and not any(self.path.iterdir()):
            self.path.rmdir()

    def put_dual(self) -> None:
        """Put the dual variables, now that all are written, in the place of earlier ones."""
        # Without a result the run has not ended: killed between these lines it is taken up again.
        self.result.unlink(missing_ok=True)
        if self.new_dual.is_dir():
            put_tree(self.new_dual, self.dual, last="zarr.json")
        else:
            delete_tree(self.dual)

    def list_written(self) -> tuple[AnyPath, ...]:
        """List the files and folders that are there, in the order they are of use."""
        known = (
            self.model, self.dual, self.job, self.result, self.history,
            self.convergence, self.topk_accuracy, self.reliability, self.record, self.state,
        )  # fmt: skip
        there = {entry.name for entry in self.path.iterdir()} if self.path.is_dir() else set()
        return tuple(path for path in known if path.name in there)

    def write_history(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Write a line an epoch.

        Parameters
        ----------
        rows : sequence of mappings
            A key that not all of them have is empty in the lines of the others.
        """
        text = io.StringIO()
        columns = list(dict.fromkeys(key for row in rows for key in row))
        writer = csv.DictWriter(text, columns, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
        write_text(self.history, text.getvalue())

    def write_result(self, fields: Mapping[str, Any]) -> None:
        """Write the result, or write it anew."""
        write_text(self.result, json.dumps(fields, indent=2) + "\n")
