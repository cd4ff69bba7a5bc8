"""What a submission leaves in its run folder, by which it is found again."""

import contextlib
import dataclasses
import json
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Literal, get_args

from dtopk.atomic import write_text
from dtopk_storage.json_files import parse_record

SUBMISSION = "submission"
"""Name of the submission's folder in that of the run."""

Command = Literal["train", "sweep"]
"""The command that is submitted."""


def name_work(command: str) -> str:
    """Name what a command does, for messages: a run, or a sweep.

    Parameters
    ----------
    command : str
        'train' or 'sweep'.
    """
    return "sweep" if command == "sweep" else "run"


@dataclass(frozen=True, kw_only=True)
class Attempt:
    """One start of the run by the batch job."""

    began: float
    """Seconds since 1970."""
    host: str
    """Where the driver ran."""
    ended: float | None = None
    """Seconds since 1970; None: it has not, or was killed with its script."""
    status: int | None = None
    """Exit status of the command; above 128: the signal that ended it, added to 128."""
    why: str = ""
    """Why the run was asked to stop, 'asked' or 'cancelled'; empty: it was not."""


@dataclass(frozen=True, kw_only=True)
class SubmissionRecord:
    """What was submitted and where; it holds no secrets."""

    back_end: str
    """Name of the back end."""
    job_id: str
    """What the batch system calls the job; of a local one the process id of its script."""
    host: str
    """Where it was submitted."""
    process_began: float = 0.0
    """When the process of a local one began, which tells it from later ones of the same id."""
    run_dir: str
    """The run folder, or that of the sweep, as the run sees it: a path or an address."""
    log_dir: str
    """Folder of the logs."""
    form: str = ""
    """'nodes' or 'workers'; empty for a local one."""
    dashboard_port: int = 0
    """Port of Dask's pages that was asked for; 0: none."""
    submitted: float = field(default_factory=time.time)
    """Seconds since 1970."""
    version: str = field(default_factory=lambda: version("dtopk"))
    """Of dtopk."""
    earlier: tuple[str, ...] = ()
    """Job ids of earlier submissions of the same run."""
    context: str = ""
    """Context of the kubeconfig, of a run on Kubernetes."""
    namespace: str = ""
    """Namespace of a run on Kubernetes."""
    command: str = "train"
    """What was submitted: 'train' or 'sweep'."""

    def __post_init__(self) -> None:
        if self.command not in get_args(Command):
            raise ValueError(
                f"'command' must be one of {list(get_args(Command))}, got {self.command!r}"
            )

    @property
    def work(self) -> str:
        """What was submitted, in a word for messages."""
        return name_work(self.command)

    @property
    def is_far(self) -> bool:
        """Whether the run folder is in an object store."""
        return "://" in self.run_dir


@dataclass(frozen=True, kw_only=True)
class SubmissionFolder:
    """The folder of a submission, within that of its run."""

    run: Path
    """The run folder, or a folder of its name for one that is in an object store, or that this
    machine does not see."""

    @property
    def path(self) -> Path:
        """The folder itself."""
        return self.run / SUBMISSION

    @property
    def record(self) -> Path:
        """The record; it makes the folder that of a submission."""
        return self.path / "submission.json"

    @property
    def job(self) -> Path:
        """The job as submitted, a job file."""
        return self.path / "job.toml"

    @property
    def script(self) -> Path:
        """The script that was sent."""
        return self.path / "script.sh"

    @property
    def manifest(self) -> Path:
        """The manifest that was sent, of a run on Kubernetes."""
        return self.path / "dask-job.yaml"

    @property
    def workers(self) -> Path:
        """What jobs of workers ask for, with form 'workers'."""
        return self.path / "workers.json"

    @property
    def attempts(self) -> Path:
        """A line for each start and end of the run."""
        return self.path / "attempts.log"

    @property
    def cancelled(self) -> Path:
        """A mark: the job is not to be started again."""
        return self.path / "cancelled"

    def create(self) -> None:
        """Make the folder, which is the user's alone: its files can start programs as that user."""
        self.run.mkdir(parents=True, exist_ok=True)
        self.path.mkdir(mode=0o700, exist_ok=True)
        self.path.chmod(0o700)

    def write_record(self, record: SubmissionRecord) -> None:
        """Write it, or write it anew."""
        write_text(self.record, json.dumps(dataclasses.asdict(record), indent=2) + "\n")

    def read_record(self) -> SubmissionRecord:
        """Read what was submitted.

        Raises
        ------
        ValueError
            If nothing was, or the record is not as it was written.
        """
        try:
            return parse_record(self.record.read_text(encoding="utf-8"), SubmissionRecord)
        except FileNotFoundError as error:
            raise ValueError(
                f"run folder must be that of a submitted run, got {str(self.run)!r}, which has no "
                f"{SUBMISSION}/{self.record.name}. `dtopk submit` makes one."
            ) from error
        except ValueError as error:
            raise ValueError(
                f"{str(self.record)!r} must be as dtopk wrote it, but it is not: {error}."
            ) from error

    def note_attempt(self, attempt: Attempt) -> None:
        """Add a start of the run and its end, as a script does."""
        with self.attempts.open("a", encoding="utf-8") as file:
            file.write(f"begin {attempt.began:.0f} {attempt.host}\n")
            if attempt.ended is not None:
                file.write(
                    f"end {attempt.ended:.0f} {attempt.status} {attempt.why}".rstrip() + "\n"
                )

    def read_attempts(self) -> tuple[Attempt, ...]:
        """Read when the run was started and how it ended, in that order; torn lines are left out.

        A line is 'begin SECONDS HOST' or 'end SECONDS STATUS WHY'.
        """
        try:
            lines = self.attempts.read_text(encoding="utf-8").splitlines()
        except FileNotFoundError:
            return ()
        attempts: list[Attempt] = []
        for line in lines:
            match line.split():
                case ["begin", seconds, host]:
                    attempts.append(Attempt(began=float(seconds), host=host))
                case ["end", seconds, status, *why] if attempts:
                    attempts[-1] = dataclasses.replace(
                        attempts[-1],
                        ended=float(seconds),
                        status=int(status),
                        why=" ".join(why),
                    )
                case _:
                    pass
        return tuple(attempts)


@contextlib.contextmanager
def writing_for_no_others() -> Iterator[None]:
    """Have what is made meanwhile writable to the user, and to the group if that is usual here."""
    before = os.umask(0)
    os.umask(before | 0o002)
    try:
        yield
    finally:
        os.umask(before)


def find_submissions(folder: Path) -> list[SubmissionFolder]:
    """Find the submitted runs right below a folder, or below its folder 'runs', the newest last.

    Parameters
    ----------
    folder : Path

    Returns
    -------
    list of SubmissionFolder
    """
    found = {path.parents[1] for pattern in ("*", "runs/*")
             for path in folder.glob(f"{pattern}/{SUBMISSION}/submission.json")}  # fmt: skip
    folders = [SubmissionFolder(run=run) for run in found]
    return sorted(folders, key=lambda each: (each.record.stat().st_mtime, str(each.run)))
