"""What every back end does: write a script, send it, and tell what has become of its job."""

import abc
import shlex
import shutil
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar, Literal

from dtopk.launch.errors import ClusterError
from dtopk.launch.submit.options import SubmitOptions
from dtopk.launch.submit.record import (
    Attempt,
    Command,
    SubmissionFolder,
    SubmissionRecord,
    name_work,
)

Phase = Literal["waiting", "running", "ended", "unknown"]
_COMMAND_S = 60.0
"""Seconds in which a command of the batch system must answer."""


@dataclass(frozen=True, kw_only=True)
class Submission:
    """What is to be submitted."""

    folder: SubmissionFolder
    """Where its files go; it need not be there yet."""
    options: SubmitOptions
    """What the batch job asks for."""
    log_dir: Path
    """Folder of the logs."""
    name: str
    """What the job is called in the queue."""
    command: Command = "train"
    """What is submitted."""
    commits: str = ""
    """Folder in which each commit makes a state.json or result.json, or makes it anew; empty: it is
    not on a file system."""
    tls: tuple[str, ...] = ()
    """Paths of the authority's certificate, the certificate and its key; empty: no TLS."""
    python: str = field(default_factory=lambda: sys.executable)
    """The interpreter, which must be there on the nodes."""
    run_dir: str = ""
    """The run folder as the run itself sees it, where that is not in `folder`."""
    job_toml: str = ""
    """The text of the job file, where the run does not see `folder`."""
    number: int = 1
    """Of the submission, among those of its run."""

    @property
    def work(self) -> str:
        """What is submitted, in a word for messages."""
        return name_work(self.command)


@dataclass(frozen=True, kw_only=True)
class JobState:
    """What the batch system says of a job."""

    phase: Phase
    """Whether it waits, runs, or has ended."""
    word: str
    """The state in the batch system's own word."""
    reason: str = ""
    """Why, as the batch system says it; empty: it does not."""
    nodes: str = ""
    """Nodes that it has, or had."""
    driver_node: str = ""
    """The node of the script."""
    restarts: int = 0
    """Times that the batch system started it again."""
    failure: str = ""
    """'out_of_memory', 'walltime', 'node' or 'cancelled', where that is known."""
    attempt: Attempt | None = None
    """The last start and end of the run, where the back end knows them rather than a file."""


class BackEnd(abc.ABC):
    """A batch system, or what stands for one."""

    name: ClassVar[str]
    """By which the command line and the record know it."""
    needs: ClassVar[tuple[str, ...]] = ()
    """The programs that must be there to submit."""
    where: ClassVar[str] = "Submit from a login node of the cluster."
    """What to do where they are not."""
    is_elsewhere: ClassVar[bool] = False
    """Whether the run sees paths of its own, so that this machine keeps a folder about it."""

    def check(self, options: SubmitOptions) -> None:
        """Refuse options that this back end cannot serve.

        Raises
        ------
        ValueError
        """
        options.check_batch()

    def check_places(  # noqa: B027 - most run where all paths are the same
        self, options: SubmitOptions, places: Mapping[str, str]
    ) -> None:
        """Refuse paths that the run would not see.

        Parameters
        ----------
        options : SubmitOptions
        places : mapping
            The job's paths and addresses by 'section.key'.

        Raises
        ------
        ValueError
        """

    def script_path(self, folder: SubmissionFolder) -> Path:
        """Say where the script is kept."""
        return folder.script

    @abc.abstractmethod
    def make_script(self, submission: Submission) -> str:
        """Write the script, which is all that is sent."""

    def prepare(self, submission: Submission) -> None:  # noqa: B027 - most have nothing to do
        """Write what the script reads beside the job."""

    @abc.abstractmethod
    def send(self, submission: Submission) -> SubmissionRecord:
        """Submit the script, which is in its folder.

        Raises
        ------
        ClusterError
            If the batch system does not take it.
        """

    @abc.abstractmethod
    def look(self, record: SubmissionRecord) -> JobState:
        """Ask what has become of a job.

        Raises
        ------
        ClusterError
            If the batch system does not answer.
        """

    @abc.abstractmethod
    def cancel(self, record: SubmissionRecord, *, now: bool) -> None:
        """End a job: with a last commit, or at once.

        Raises
        ------
        ClusterError
            If the batch system does not do it.
        """

    def clear(  # noqa: B027 - most leave nothing
        self, record: SubmissionRecord
    ) -> None:
        """End what a job that has ended has left running.

        Raises
        ------
        ClusterError
            If the batch system does not do it.
        """

    def fetch_logs(  # noqa: B027 - most write them where this machine sees them
        self, record: SubmissionRecord, whose: str = "all"
    ) -> None:
        """Bring the logs to the folder of the logs, as far as they can be had.

        Parameters
        ----------
        record : SubmissionRecord
        whose : str
            'run', 'job', 'scheduler', 'workers' or 'all'.
        """

    def tunnel(self, record: SubmissionRecord) -> str:
        """Write the command by which Dask's pages are seen here; '': by ssh, as elsewhere."""
        return ""

    def make_record(
        self, submission: Submission, job_id: str, process_began: float = 0.0
    ) -> SubmissionRecord:
        """Make the record of a job that was sent."""
        options = submission.options
        return SubmissionRecord(
            back_end=self.name,
            job_id=job_id,
            host=socket.gethostname(),
            process_began=process_began,
            run_dir=submission.run_dir or str(submission.folder.run),
            command=submission.command,
            log_dir=str(submission.log_dir),
            form=options.form if self.needs else "",
            dashboard_port=options.dashboard_port if self.needs else 0,
        )

    def check_programs(self) -> None:
        """Refuse a machine that lacks the batch system's programs.

        Raises
        ------
        ClusterError
        """
        for program in self.needs:
            if shutil.which(program) is None:
                raise ClusterError(
                    f"the program {program!r} must be on the PATH to submit to {self.name!r}, but "
                    f"it is not. {self.where}"
                )


class ProgramError(ClusterError):
    """A program of the batch system has failed.

    Parameters
    ----------
    message : str
        A sentence.
    said : str
        What the program said.
    """

    def __init__(self, message: str, said: str) -> None:
        super().__init__(message)
        self.said = said


def run_program(
    arguments: Sequence[str],
    *,
    stdin: str | None = None,
    may_fail: bool = False,
    timeout_s: float = 0.0,
) -> str:
    """Run a program of the batch system and return what it says.

    Parameters
    ----------
    arguments : sequence of str
    stdin : str, optional
        What it reads.
    may_fail : bool
        Return '' where it fails.
    timeout_s : float
        Seconds in which it must answer; 0: those that a batch system takes at most.

    Raises
    ------
    ClusterError
        If it is not there, fails, or does not answer in time.
    """
    try:
        done = subprocess.run(
            list(arguments),
            input=stdin,
            stdin=subprocess.DEVNULL if stdin is None else None,
            capture_output=True,
            text=True,
            # A log may have bytes that are none of the locale's.
            errors="replace",
            timeout=timeout_s or _COMMAND_S,
        )
    except FileNotFoundError as error:
        raise ClusterError(
            f"the program {arguments[0]!r} must be on the PATH, but it is not. Go to a login node "
            "of the cluster."
        ) from error
    except subprocess.TimeoutExpired as error:
        raise ClusterError(
            f"`{shlex.join(arguments)}` must answer within {timeout_s or _COMMAND_S:g} s, but it "
            "does not."
        ) from error
    if done.returncode == 0:
        return done.stdout
    if may_fail:
        return ""
    said = done.stderr or done.stdout
    words = " ".join(said.split()).rstrip(".")
    raise ProgramError(
        f"`{shlex.join(arguments)}` failed with status {done.returncode}: {words}.", said
    )
