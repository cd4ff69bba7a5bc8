"""A job of the batch system for each worker, by dask-jobqueue, and another one for each lost.

The script of the driver runs this module beside the driver:

    python -m dtopk.launch.submit.worker_jobs workers.json --scheduler-file scheduler.json
"""

import argparse
import dataclasses
import importlib
import json
import logging
import os
import shlex
import signal
import sys
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dtopk.atomic import write_text
from dtopk.launch.errors import ClusterError
from dtopk.launch.options import ClusterOptions
from dtopk.launch.submit.back_end import BackEnd, Submission
from dtopk.launch.submit.options import SubmitOptions
from dtopk.launch.submit.record import SubmissionRecord
from dtopk.launch.submit.script import quote_log
from dtopk_storage.errors import describe_error
from dtopk_storage.json_files import parse_record

logger = logging.getLogger(__name__)

_LOOK_S = 5.0
"""Seconds between looks at the jobs of workers that are not there."""
_LOOKS = 20
"""Jobs that are asked for at a look, at most: the batch system serves others too."""
_FRUITLESS = 3
"""Jobs for each worker that may end, one after the other, before they reach the scheduler."""
_DEATH_TIMEOUT_S = 60
_NAMES = {"slurm": "SLURM", "pbs": "PBS", "lsf": "LSF", "sge": "SGE"}
_PAYERS = {"slurm": "account", "pbs": "account", "lsf": "project", "sge": "project"}
"""What dask-jobqueue calls the account, which is the batch system's own word."""


@dataclass(frozen=True, kw_only=True)
class WorkerJobs:
    """What the jobs of workers ask for; written to a file for the script of the driver."""

    back_end: str
    """Name of the batch system."""
    options: SubmitOptions
    """What each job asks for."""
    name: str
    """What the jobs are called in the queue."""
    log_dir: str
    """Folder of their logs."""
    python: str
    """The interpreter."""
    tls: tuple[str, ...] = ()
    """Paths of the authority's certificate, the certificate and its key; empty: no TLS."""
    directives: tuple[str, ...] = field(default=())
    """The batch system's own directives, beside those of dask-jobqueue."""


def describe_worker_jobs(back_end: str, submission: Submission) -> WorkerJobs:
    """Say what the jobs of workers of a submission ask for.

    Raises
    ------
    ValueError
        If a path of a certificate has characters that dask-jobqueue's script would not keep.
    """
    for path in submission.tls:
        if shlex.quote(path) != path:
            raise ValueError(
                "tls_ca, tls_cert and tls_key of [cluster] must be paths of plain characters for "
                f"jobs of workers, got {path!r}."
            )
    return WorkerJobs(
        back_end=back_end,
        options=submission.options,
        name=submission.name,
        log_dir=str(submission.log_dir),
        python=submission.python,
        tls=submission.tls,
        directives=_own_directives(back_end, str(submission.log_dir)),
    )


def write_worker_options(back_end: str, submission: Submission) -> None:
    """Write what the jobs of workers ask for, for the script of the driver."""
    jobs = describe_worker_jobs(back_end, submission)
    write_text(submission.folder.workers, json.dumps(dataclasses.asdict(jobs), indent=2) + "\n")


def read_worker_options(path: Path) -> WorkerJobs:
    """Read what `write_worker_options` wrote.

    Raises
    ------
    ClusterError
        If it is not as it was written.
    """
    try:
        jobs = parse_record(path.read_bytes(), WorkerJobs)
        if jobs.back_end not in _NAMES:
            raise ValueError(f"'back_end' must be one of {list(_NAMES)}, got {jobs.back_end!r}")
        if len(jobs.tls) not in (0, 3):
            raise ValueError(f"'tls' must be three paths or none, got {len(jobs.tls)}")
        return jobs
    except ValueError as error:
        raise ClusterError(
            f"{str(path)!r} must be as dtopk wrote it, but it is not: {describe_error(error)}."
        ) from error


def _own_directives(back_end: str, log_dir: str) -> tuple[str, ...]:
    """Have logs where the others are, and the environment passed on."""
    named = {"slurm": "worker-job-%j.log", "lsf": "worker-job-%J.log"}.get(back_end, "")
    path = quote_log(Path(log_dir), named)
    return {
        "slurm": (f"--output={path}", "--open-mode=append", "--export=ALL", "--no-requeue"),
        "pbs": (f"-o {path}", "-j oe", "-V", "-r n"),
        "lsf": (f"-o {path}",),
        "sge": (f"-o {path}", "-j y", "-V", "-r n"),
    }[back_end]


def make_worker_script(jobs: WorkerJobs) -> str:
    """Write the script of a worker's job as dask-jobqueue will, but for address and name.

    Raises
    ------
    ClusterError
        If dask-jobqueue is not installed.
    """
    job_class: Any = _find_cluster_class(jobs.back_end).job_cls
    security = _make_security(jobs)
    secure = {"security": security, "protocol": "tls://"} if security else {}
    job = job_class("SCHEDULER", name="NAME", **secure, **_job_arguments(jobs))
    script: str = job.job_script()
    return script


def _find_cluster_class(back_end: str) -> Any:
    handler = signal.getsignal(signal.SIGINT)
    try:
        module = importlib.import_module("dask_jobqueue")
    except ImportError as error:
        raise ClusterError(
            "the package dask-jobqueue must be installed to submit a job for each worker, but it "
            "is not. `pip install 'dtopk[slurm]'` does it; submit.form = 'nodes' needs none."
        ) from error
    finally:
        # The module takes over Ctrl-C of the program that loads it.
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGINT, handler)
    return getattr(module, f"{_NAMES[back_end]}Cluster")


def _job_arguments(jobs: WorkerJobs) -> dict[str, Any]:
    """Give what dask-jobqueue takes; None stands for what its own configuration says."""
    options = jobs.options
    extra = [
        *("--nworkers", str(options.processes)),
        # Once more: dask-jobqueue rounds it.
        *("--memory-limit", str(options.worker_memory_bytes)),
    ]
    return {
        "cores": options.cores,
        "memory": options.memory_bytes,
        "processes": options.processes,
        "queue": options.queue or None,
        _PAYERS[jobs.back_end]: options.account or None,
        "walltime": options.walltime or None,
        "interface": options.interface or None,
        "local_directory": shlex.quote(options.local_directory)
        if options.local_directory
        else None,
        "job_name": jobs.name,
        # In the place of the shell, which a signal would end and leave the worker behind.
        "python": f"exec {shlex.quote(jobs.python)}",
        "death_timeout": _DEATH_TIMEOUT_S,
        "worker_command": "dtopk.launch.rank worker",
        "worker_extra_args": extra,
        "job_extra_directives": [*jobs.directives, *options.job_extra_directives],
        "job_directives_skip": list(options.job_directives_skip),
        "job_script_prologue": ["umask o-w", *options.job_script_prologue],
    }


def _make_security(jobs: WorkerJobs) -> Any:
    if not jobs.tls:
        return None
    # Imported here: Dask takes most of a second.
    from dtopk.launch.security import make_security

    ca, cert, key = jobs.tls
    return make_security(ClusterOptions(tls_ca=ca, tls_cert=cert, tls_key=key))


class _Keeper:
    """Has as many jobs of workers in the queue as are wanted.

    Parameters
    ----------
    cluster : JobQueueCluster
    back_end : BackEnd
    jobs : WorkerJobs
    """

    def __init__(self, cluster: Any, back_end: BackEnd, jobs: WorkerJobs) -> None:
        self._cluster = cluster
        self._back_end = back_end
        self._n_jobs = jobs.options.nodes
        self._n_made = 0
        self._n_fruitless = 0
        self._seen: set[str] = set()
        self._first = 0
        self._template = SubmissionRecord(
            back_end=jobs.back_end, job_id="", host="", run_dir="", log_dir=""
        )

    def mend(self) -> None:
        """Submit jobs in the place of those that have ended.

        Raises
        ------
        ClusterError
            If job after job ends before its worker has come.
        """
        here = {str(worker["name"]) for worker in self._cluster.scheduler_info["workers"].values()}
        jobs = dict(self._cluster.workers)
        present = {name for name in jobs if any(_is_of(worker, name) for worker in here)}
        self._seen |= present
        if present:
            self._n_fruitless = 0
        gone = self._find_gone({name: jobs[name] for name in jobs if name not in present})
        for name in gone:
            logger.warning("The job %s of the worker %s has ended.", jobs[name].job_id, name)
        self._n_fruitless += len(set(gone) - self._seen)
        if self._n_fruitless > _FRUITLESS * self._n_jobs:
            raise ClusterError(
                f"{self._n_fruitless} jobs of workers have ended, one after the other, before "
                "they reached the scheduler. Look at their logs, worker-job-*.log."
            )
        if gone or len(self._cluster.worker_spec) < self._n_jobs:
            self._replace(gone)

    def _find_gone(self, absent: Mapping[str, Any]) -> list[str]:
        """Return the names of jobs, of workers that are not there, that are in no queue."""
        names = sorted(absent)
        start = self._first % len(names) if names else 0
        asked = (names[start:] + names[:start])[:_LOOKS]
        self._first = start + len(asked)
        return [name for name in asked if self._has_ended(absent[name])]

    def _has_ended(self, job: Any) -> bool:
        if not job.job_id:
            return True  # it was not taken
        record = dataclasses.replace(self._template, job_id=job.job_id)
        try:
            return self._back_end.look(record).phase in ("ended", "unknown")
        except ClusterError as error:
            logger.warning("%s", error)
            return False

    def _replace(self, gone: Sequence[str]) -> None:
        """Have new jobs, of new names: the scheduler may still know the old ones."""
        spec = self._cluster.worker_spec

        async def replace() -> None:
            for name in gone:
                spec.pop(name, None)
            while len(spec) < self._n_jobs:
                spec[f"worker-{self._n_made}"] = self._cluster.new_spec
                self._n_made += 1
            self._cluster.scale(self._n_jobs)

        self._cluster.sync(replace)


def _is_of(worker: str, job: str) -> bool:
    """Tell whether a worker is one of a job's, of which it has the name and perhaps a number."""
    return worker == job or worker.rpartition("/")[0] == job


def keep_worker_jobs(jobs: WorkerJobs, back_end: BackEnd, scheduler_file: str) -> None:
    """Run a scheduler, and keep as many jobs of workers as are wanted, until SIGHUP.

    Parameters
    ----------
    jobs : WorkerJobs
    back_end : BackEnd
        Tells what has become of a job.
    scheduler_file : str
        Path of the file that the address is written to.

    Raises
    ------
    ClusterError
        If jobs cannot be submitted, or end again and again before their workers have come.
    """
    import dask

    from dtopk.launch.rank import listen_place
    from dtopk.launch.settings import DASK_SETTINGS

    ended = threading.Event()
    signal.signal(signal.SIGHUP, lambda number, frame: ended.set())
    # They are for the run, which commits and then has this ended.
    for number in (signal.SIGTERM, signal.SIGUSR1, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)
    cluster_class = _find_cluster_class(jobs.back_end)
    options = jobs.options
    with (
        # A job is given up when it has ended, and not before.
        dask.config.set(DASK_SETTINGS | {"distributed.deploy.lost-worker-timeout": "1000 days"}),
        cluster_class(
            **_job_arguments(jobs),
            security=_make_security(jobs),
            scheduler_options={
                **listen_place(options.interface),
                "dashboard_address": f"127.0.0.1:{options.dashboard_port}",
                "scheduler_file": scheduler_file,
            },
        ) as cluster,
    ):
        keeper = _Keeper(cluster, back_end, jobs)
        parent = os.getppid()
        while not ended.is_set() and os.getppid() == parent:
            keeper.mend()
            ended.wait(_LOOK_S)


def main(arguments: Sequence[str]) -> int:
    """Run as a program of the driver's script."""
    from dtopk.launch.submit import make_back_end

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("workers", type=Path)
    parser.add_argument("--scheduler-file", required=True)
    options = parser.parse_args(arguments)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    try:
        jobs = read_worker_options(options.workers)
        keep_worker_jobs(jobs, make_back_end(jobs.back_end), options.scheduler_file)
    except ClusterError as error:
        logger.error("%s", error)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
