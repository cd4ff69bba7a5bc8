"""What the commands about submitted runs share: find one, ask about it, say why it failed."""

import os
import shlex
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from dtopk.launch import ClusterError
from dtopk.launch.submit import (
    Attempt,
    JobState,
    SubmissionFolder,
    SubmissionRecord,
    find_submissions,
    make_back_end,
)
from dtopk_storage.addresses import check_address, has_credentials, redact
from dtopk_storage.json_files import parse_object

if TYPE_CHECKING:
    from dtopk.job import TrainJob

_MEMORY_WORDS = ("exceeded memory limit", "oom-kill", "oom_kill", "Out Of Memory", "MemoryError")
_KILLED = 128 + 9
_TAIL_BYTES = 64 * 1024
_UI_PORT = 5000


def find_submission(run: str) -> SubmissionFolder:
    """Find a submitted run by its folder or job id; '': the newest one around here.

    Parameters
    ----------
    run : str

    Raises
    ------
    ValueError
        If there is none, or an address carries credentials.
    """
    if has_credentials(run):
        check_address(run, name="run folder")
    folder = SubmissionFolder(run=Path(run).absolute())
    if run and folder.record.is_file():
        return folder
    found = find_submissions(Path.cwd())
    if run:
        named = [each for each in found if run in _names(each.read_record())]
        is_folder = Path(run).is_dir() or not (run[0].isdigit() or "://" in run)
        if not named and is_folder:
            folder.read_record()  # it says what is missing
        found = named
    if not found:
        what = f"job or address {run!r}" if run else "submitted run"
        raise ValueError(
            f"{what} must be that of a run folder in {str(Path.cwd())!r} or its folder 'runs', "
            "but none is. Give the path of the run folder, or of the folder that `dtopk submit` "
            "has made for it."
        )
    return found[-1]


def _names(record: SubmissionRecord) -> tuple[str, ...]:
    """Give the words by which a submission is found beside its folder."""
    is_elsewhere = record.is_far or make_back_end(record.back_end).is_elsewhere
    return (record.job_id, record.run_dir) if is_elsewhere else (record.job_id,)


def look_at(record: SubmissionRecord) -> JobState:
    """Ask the batch system of a submission what has become of its job.

    Raises
    ------
    ClusterError
        If it does not answer.
    """
    return make_back_end(record.back_end).look(record)


def list_logs(record: SubmissionRecord) -> list[str]:
    """Name the logs that a submission leaves."""
    names = ["run.log"]
    job = {"slurm": f"job-{record.job_id}.log", "local": "job.log"}.get(record.back_end, "job.log*")
    names.append(job)
    if record.form:
        names += ["scheduler.log", "worker-*.log"]
    return [os.path.join(record.log_dir, name) for name in names]


def list_places(job: "TrainJob") -> dict[str, str]:
    """Name the paths and addresses of a job that its run reads or writes, by 'section.key'."""
    cluster = job.cluster
    return {
        "data.store": job.data.store,
        "model.label_cost": job.model.label_cost,
        "solver.warm_start": job.solver.warm_start,
        "cluster.tls_ca": cluster.tls_ca,
        "output.run_dir": job.output.run_dir,
        "output.state_url": job.output.state_url,
    }


def far_tracking_place(job: "TrainJob") -> dict[str, str]:
    """Say where MLflow records a run that has another environment than this process."""
    if not job.tracking.mlflow:
        return {"mlflow": "not recorded (tracking.mlflow = false)"}
    uri = (
        redact(job.tracking.uri)
        or "what MLFLOW_TRACKING_URI says there, or else mlflow.db beside the run folder"
    )
    return {"mlflow": uri, "experiment": job.tracking.experiment}


def tracking_place(job: "TrainJob", runs: Path, login: str) -> dict[str, str]:
    """Say where MLflow records a run, and how its pages are seen from elsewhere.

    Parameters
    ----------
    job : TrainJob
    runs : Path
        Folder of the run folders, as this machine sees it.
    login : str
        'user@host' to tunnel to.
    """
    if not job.tracking.mlflow:
        return {"mlflow": "not recorded (tracking.mlflow = false)"}
    # Not `default_tracking_uri`, which takes the seconds that MLflow takes to load.
    uri = job.tracking.uri or os.environ.get("MLFLOW_TRACKING_URI", "")
    uri = uri or f"sqlite:///{runs / 'mlflow.db'}"
    facts = {"mlflow": redact(uri), "experiment": job.tracking.experiment}
    if uri.startswith("sqlite:"):
        facts["mlflow_pages"] = (
            f"dtopk ui --uri {shlex.quote(uri)}; from elsewhere: "
            f"ssh -N -L {_UI_PORT}:127.0.0.1:{_UI_PORT} {login}"
        )
    return facts


def dashboard_tunnel(node: str, port: int, login: str) -> str:
    """Write the command by which Dask's pages are seen at http://127.0.0.1:PORT elsewhere.

    Parameters
    ----------
    node : str
        Of the scheduler; '127.0.0.1': the machine that is logged in to.
    port : int
    login : str
        'user@host' of the machine that can be logged in to.
    """
    if node == "127.0.0.1":
        return f"ssh -N -L {port}:127.0.0.1:{port} {login}"
    return f"ssh -N -L {port}:127.0.0.1:{port} -J {login} {node}"


@dataclass(frozen=True, kw_only=True)
class Failure:
    """Why a run has ended before it was done, and what to do."""

    cause: str
    """'out_of_memory', 'walltime', 'scheduler_lost', 'workers_missing', 'refused', 'cancelled',
    'node', 'killed', 'interrupted' or 'failed'."""
    text: str
    """What happened, a sentence."""
    advice: str
    """What to do, a sentence."""


def find_failure(
    folder: SubmissionFolder, record: SubmissionRecord, state: JobState
) -> Failure | None:
    """Find out why a job that has ended did not finish its run; None if it did.

    Parameters
    ----------
    folder : SubmissionFolder
    record : SubmissionRecord
    state : JobState
    """
    attempts = folder.read_attempts()
    last = state.attempt or (attempts[-1] if attempts else None)
    error = _find_error(Path(record.log_dir) / "run.log")
    again = "Then submit it again, by the same command with the same --run-dir: it goes on."
    if folder.cancelled.exists() or (state.failure == "cancelled" and not _has_failed(last)):
        return Failure(
            cause="cancelled", text="It was cancelled.",
            advice="To go on, submit it again, by the same command with the same --run-dir.",
        )  # fmt: skip
    if _is_out_of_memory(record, state, last):
        return Failure(
            cause="out_of_memory", text="It took more memory than it had.",
            advice="Ask for more (submit.memory, submit.driver_memory) or for more nodes; "
            f"`dtopk plan` says what a worker needs. {again}",
        )  # fmt: skip
    if state.failure == "walltime":
        return Failure(
            cause="walltime",
            text=f"The walltime was over before the {record.work} could commit and stop.",
            advice=f"Ask for a longer submit.walltime, or for a longer submit.warn_s. {again}",
        )  # fmt: skip
    if last is not None and last.status == 0:
        return None
    if state.failure == "node":
        return Failure(
            cause="node", text=f"A node was lost ({state.word}: {state.reason or state.nodes}).",
            advice="Submit it again, by the same command with the same --run-dir: it goes on.",
        )  # fmt: skip
    return _explain_exit(record, last, error, again)


def _explain_exit(
    record: SubmissionRecord, last: Attempt | None, error: str, again: str
) -> Failure:
    if last is None:
        return Failure(
            cause="failed", text=f"The {record.work} did not begin.",
            advice=f"Look at the job's own log: dtopk logs {record.run_dir} --of job.",
        )  # fmt: skip
    if last.status is None or last.status == _KILLED:
        return Failure(
            cause="killed", text="Its processes were killed.",
            advice="Submit it again, by the same command with the same --run-dir: it goes on.",
        )  # fmt: skip
    if last.status == 2:
        return Failure(
            cause="refused", text=f"The {record.work} was refused: {error or 'see run.log'}",
            advice=f"Put that right. {again}",
        )  # fmt: skip
    if last.status >= 128:
        return Failure(
            cause="interrupted", text="It was interrupted.",
            advice="To go on, submit it again, by the same command with the same --run-dir.",
        )  # fmt: skip
    if "min_workers" in error:
        return Failure(
            cause="workers_missing", text=f"Too few workers came, or were left: {error}",
            advice=f"Look at their logs: dtopk logs {record.run_dir} --of workers. {again}",
        )  # fmt: skip
    if "scheduler" in error:
        return Failure(
            cause="scheduler_lost", text=f"The scheduler of the workers was lost: {error}",
            advice=f"Look at its log: dtopk logs {record.run_dir} --of scheduler. {again}",
        )  # fmt: skip
    return Failure(
        cause="failed", text=f"The {record.work} failed: {error or f'exit status {last.status}'}",
        advice=f"Put that right. {again}",
    )  # fmt: skip


def _has_failed(last: Attempt | None) -> bool:
    return last is not None and last.status not in (None, 0) and last.why != "asked"


def _is_out_of_memory(record: SubmissionRecord, state: JobState, last: Attempt | None) -> bool:
    if state.failure == "out_of_memory":
        return True
    if state.failure or (last is not None and last.status == 0):
        return False
    logs = [Path(path) for path in list_logs(record)[:2]]
    return any(word in read_tail(log) for log in logs for word in _MEMORY_WORDS)


def _find_error(log: Path) -> str:
    """Return the last error that the run has told, without the word 'error'."""
    lines = [line for line in read_tail(log).splitlines() if line.startswith("error: ")]
    return lines[-1].removeprefix("error: ") if lines else ""


def read_tail(path: Path) -> str:
    """Read the end of a log; '' where there is none."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - _TAIL_BYTES))
            return file.read().decode("utf-8", errors="replace")
    except OSError:
        return ""


def find_dashboard(folder: SubmissionFolder, record: SubmissionRecord) -> int:
    """Return the port of Dask's pages as the scheduler has written it; else that asked for."""
    files = sorted(folder.path.glob("scheduler-*.json"), key=lambda path: path.stat().st_mtime)
    for path in reversed(files):
        try:
            services = parse_object(path.read_bytes()).get("services")
        except (OSError, ValueError):
            continue
        port = services.get("dashboard") if isinstance(services, dict) else None
        return port if type(port) is int else record.dashboard_port
    return record.dashboard_port


def ask(record: SubmissionRecord) -> JobState:
    """Look at a job; where nobody answers, say so in its state."""
    try:
        return look_at(record)
    except ClusterError as error:
        return JobState(phase="unknown", word="unknown", reason=str(error))


def describe_age(seconds: float) -> str:
    """Say how long ago something was, for reading."""
    ago = max(0.0, time.time() - seconds)
    if ago < 90:
        return f"{ago:.0f} s ago"
    return f"{ago / 60:.0f} min ago" if ago < 5400 else f"{ago / 3600:.1f} h ago"
