"""Kubernetes: a DaskJob of the Dask operator, sent and asked about by kubectl."""

import contextlib
import dataclasses
import json
import logging
import posixpath
import shlex
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from dtopk.atomic import write_text
from dtopk.launch.errors import ClusterError
from dtopk.launch.submit.back_end import BackEnd, JobState, Submission
from dtopk.launch.submit.dask_job import (
    CLUSTER_LABEL,
    DRIVER,
    PAGES_PORT,
    RUN_DIR_ANNOTATION,
    SCHEDULER,
    WORKER,
    RunInPods,
    check_pods,
    format_manifest,
    make_dask_job,
    name_dask_job,
)
from dtopk.launch.submit.dask_job_schema import check_dask_job
from dtopk.launch.submit.kubectl import Kubectl, NameTakenError, NotThereError
from dtopk.launch.submit.options import OF_BATCH_JOBS, SubmitOptions
from dtopk.launch.submit.pod_logs import PodLogs
from dtopk.launch.submit.pod_states import describe_pods, find_component, has_begun, read_state
from dtopk.launch.submit.record import SubmissionFolder, SubmissionRecord
from dtopk_storage.objects import OBJECT_STORES

logger = logging.getLogger(__name__)

_RESOURCE = "daskjobs.kubernetes.dask.org"
_STORES = OBJECT_STORES - {"memory"}
"""Those that a pod shares with others."""
_SKEW_S = 60.0
"""Seconds by which the clocks of this machine and of a node may differ."""
_END_S = 60.0
"""Seconds that the end of a pod may take beyond those that it has."""
_LOGS = {DRIVER: ("run", ""), SCHEDULER: ("scheduler", ""), WORKER: ("workers", "worker-")}
"""Of each component whose log it is, and what the names of the logs begin with."""


class Kubernetes(BackEnd):
    """Kubernetes with the Dask operator."""

    name = "kubernetes"
    needs = ("kubectl",)
    where = "Install it, and have it reach the cluster: `kubectl cluster-info`."
    is_elsewhere = True

    def __init__(self) -> None:
        self._told: set[str] = set()
        """Warnings that were given."""

    def check(self, options: SubmitOptions) -> None:
        """Refuse options that no pods can be made of, or that would be of no effect.

        Raises
        ------
        ValueError
        """
        options.check_unset(OF_BATCH_JOBS, f"{self.name!r}, whose pods have nothing like it")
        check_pods(options)

    def check_places(self, options: SubmitOptions, places: Mapping[str, str]) -> None:
        """Refuse paths that the pods would not see, and certificates.

        Raises
        ------
        ValueError
        """
        root = options.mount_path
        for key, place in places.items():
            if not place:
                continue
            if key.startswith("cluster.tls_"):
                raise ValueError(
                    f"{key} must be left out for {self.name!r}, got {place!r}: the operator speaks "
                    "no TLS with the scheduler. Have a NetworkPolicy, or the network, see to it."
                )
            scheme, separator, _ = place.partition("://")
            if separator and scheme in _STORES:
                continue
            if not options.claim:
                raise ValueError(
                    f"{key} must be an address in an object store, such as 's3://bucket/name', "
                    f"since submit.claim names no volume, got {place!r}."
                )
            if not posixpath.normpath(place).startswith(f"{root}/"):
                raise ValueError(
                    f"{key} must be an address in an object store, or a path on the volume of the "
                    f"pods, which begins with submit.mount_path = {root + '/'!r}, got {place!r}."
                )

    def make_script(self, submission: Submission) -> str:
        """Write the manifest, as YAML; it is held to the operator's definition.

        Raises
        ------
        ValueError
            If the manifest is not as the operator defines it.
        ClusterError
            If the definition is not there.
        """
        manifest = make_dask_job(
            RunInPods(
                name=_name(submission),
                command=submission.command,
                run_dir=submission.run_dir,
                job_toml=submission.job_toml,
                options=submission.options,
            )
        )
        check_dask_job(manifest)
        return format_manifest(manifest)

    def script_path(self, folder: SubmissionFolder) -> Path:
        """Say where the manifest is kept."""
        return folder.manifest

    def send(self, submission: Submission) -> SubmissionRecord:
        """Have the server try the manifest, and then take it; what is left of the job before ends.

        Raises
        ------
        ClusterError
            If the cluster does not take it.
        """
        options = submission.options
        kubectl = Kubectl(context=options.context, namespace=options.namespace)
        path = str(submission.folder.manifest)
        with _saying_whose_name_it_is(kubectl, _name(submission)):
            kubectl.call("create", f"--filename={path}", "--dry-run=server", "--output=name")
            if submission.folder.record.is_file():
                self._put_aside(submission.folder.read_record())
            made = json.loads(kubectl.call("create", f"--filename={path}", "--output=json"))
        record = self.make_record(submission, made["metadata"]["name"])
        return dataclasses.replace(
            record,
            context=options.context or _find_context(kubectl),
            namespace=made["metadata"]["namespace"],
        )

    def clear(self, record: SubmissionRecord) -> None:
        """Delete the DaskJob: its driver's pod stays otherwise, and all pods where that is lost."""
        self.fetch_logs(record)
        attempt = self.look(record).attempt
        folder = _folder_of(record)
        if attempt is not None and attempt not in folder.read_attempts():
            folder.note_attempt(attempt)
        _delete(record)

    def _put_aside(self, record: SubmissionRecord) -> None:
        """Keep the log of a job before, which has ended, and delete what is left of that."""
        if record.back_end != self.name:
            return
        self.clear(record)
        log = Path(record.log_dir) / "run.log"
        if log.is_file():
            log.rename(log.with_name(f"run-{record.job_id}.log"))

    def look(self, record: SubmissionRecord) -> JobState:
        """Ask for the DaskJob and its pods."""
        kubectl = _of(record)
        try:
            job = kubectl.get(_RESOURCE, record.job_id)
        except NotThereError:
            return _deleted(record)
        return read_state(job, _list_pods(kubectl, record.job_id))

    def cancel(self, record: SubmissionRecord, *, now: bool) -> None:
        """Have the driver commit, while it has its workers, then delete the DaskJob with all pods.

        The driver's pod is the one that is told, since a DaskJob that is deleted takes its workers
        with it. Where it does not go, the DaskJob is deleted all the same.
        """
        try:
            if not now and self.look(record).phase == "running":
                self._stop_driver(record)
        except ClusterError as error:
            logger.warning(
                "The last commit of %r was not seen to end: %s The DaskJob is deleted all the "
                "same; submitted again, the run goes on from the last commit that it has made.",
                record.job_id,
                error,
            )
        except KeyboardInterrupt as error:
            error.add_note("The DaskJob is still there; `dtopk cancel --now` deletes it.")
            raise
        _delete(record)

    def _stop_driver(self, record: SubmissionRecord) -> None:
        """Have the driver commit, and wait until its pod is gone.

        Raises
        ------
        ClusterError
            If it is not gone in its time.
        """
        kubectl, driver = _of(record), f"{record.job_id}-runner"
        with contextlib.suppress(NotThereError):
            pod = kubectl.get("pod", driver)
            grace_s = float(pod["spec"].get("terminationGracePeriodSeconds", 30)) + _END_S
            deadline = time.monotonic() + grace_s
            kubectl.call("delete", "pod", driver, "--wait=false")
            # The log ends with the pod, and is gone with it.
            self._keep_log(record, driver, "run.log", until_end_s=grace_s)
            left_s = max(1.0, deadline - time.monotonic())
            try:
                kubectl.call("wait", "--for=delete", f"pod/{driver}", f"--timeout={left_s:.0f}s",
                             timeout_s=left_s + _END_S, lasts=True)  # fmt: skip
            except ClusterError:
                self._keep_log(record, driver, "run.log")
                raise

    def fetch_logs(self, record: SubmissionRecord, whose: str = "all") -> None:
        """Add what is new in the logs of the pods to those in the folder of the logs."""
        try:
            pods = _list_pods(_of(record), record.job_id)
            if whose in ("job", "all"):
                _keep_description(Path(record.log_dir) / "job.log", pods)
        except (ClusterError, OSError) as error:
            self._tell_once(f"The logs are those that were fetched before: {error}")
            return
        for pod in pods:
            name, component = pod["metadata"]["name"], find_component(pod)
            owner, start = _LOGS.get(component, ("", ""))
            if whose not in (owner, "all") or not owner or not has_begun(pod):
                continue
            short = name.removeprefix(f"{record.job_id}-").removeprefix("default-worker-")
            self._keep_log(
                record,
                name,
                f"{start}{short}.log" if start else f"{owner}.log",
                is_over=pod["status"].get("phase") in ("Succeeded", "Failed"),
            )

    def _keep_log(
        self,
        record: SubmissionRecord,
        pod: str,
        name: str,
        *,
        is_over: bool = False,
        until_end_s: float = 0.0,
    ) -> None:
        """Add what is new in the log of a pod to a file; where that fails, say so and no more."""
        kept = PodLogs(folder=Path(record.log_dir))
        follow = ("--follow",) if until_end_s else ()
        try:
            text = _of(record).call(
                *("logs", pod, *follow, *kept.since(pod)),
                timeout_s=until_end_s,
                lasts=bool(until_end_s),
            )
            kept.add(pod, name, text, is_over=is_over or bool(until_end_s))
        except NotThereError:
            pass  # It went meanwhile.
        except (ClusterError, OSError) as error:
            self._tell_once(f"The log of the pod {pod!r} is not had: {error}")

    def _tell_once(self, warning: str) -> None:
        if warning not in self._told:
            self._told.add(warning)
            logger.warning("%s", warning)

    def tunnel(self, record: SubmissionRecord) -> str:
        """Write the command by which Dask's pages are seen at http://127.0.0.1:PORT."""
        ports = f"{record.dashboard_port}:{PAGES_PORT}"
        return shlex.join(
            [*_of(record).words, "port-forward", f"service/{record.job_id}-scheduler", ports]
        )


def _name(submission: Submission) -> str:
    return name_dask_job(submission.run_dir, submission.number)


@contextlib.contextmanager
def _saying_whose_name_it_is(kubectl: Kubectl, name: str) -> Iterator[None]:
    """Have the error about a name that is taken say which run folder has it."""
    try:
        yield
    except NameTakenError as error:
        try:
            found = kubectl.get(_RESOURCE, name)["metadata"].get("annotations", {})
        except ClusterError:
            raise error from None
        run_dir = found.get(RUN_DIR_ANNOTATION)
        whose = f"that of run folder {run_dir!r}" if run_dir else "one that dtopk did not make"
        raise ClusterError(
            f"the name of the run's DaskJob must be free, got {name!r}, which is taken by {whose}. "
            "Look whether it still runs, and delete it with kubectl if it does not."
        ) from error


def _keep_description(path: Path, pods: Sequence[Mapping[str, Any]]) -> None:
    """Write how the pods are, where that has changed; pods that are gone do not change it."""
    text = describe_pods(pods)
    with contextlib.suppress(FileNotFoundError):
        text = "" if path.read_text(encoding="utf-8") == text else text
    if text:
        write_text(path, text)


def _of(record: SubmissionRecord) -> Kubectl:
    return Kubectl(context=record.context, namespace=record.namespace)


def _folder_of(record: SubmissionRecord) -> SubmissionFolder:
    """Return the folder of a submission, in which its logs are."""
    return SubmissionFolder(run=Path(record.log_dir).parent)


def _deleted(record: SubmissionRecord) -> JobState:
    """Tell what is known of a job that the cluster does not have any more."""
    known = [attempt for attempt in _folder_of(record).read_attempts()
             if attempt.began >= record.submitted - _SKEW_S]  # fmt: skip
    return JobState(
        phase="ended",
        word="deleted",
        failure="" if known else "cancelled",
        attempt=known[-1] if known else None,
    )


def _find_context(kubectl: Kubectl) -> str:
    """Return the current context; '' within a pod, which needs none."""
    try:
        return kubectl.call("config", "current-context").strip()
    except ClusterError:
        return ""


def _delete(record: SubmissionRecord) -> None:
    _of(record).call("delete", _RESOURCE, record.job_id, "--ignore-not-found", "--wait=false")


def _list_pods(kubectl: Kubectl, name: str) -> list[dict[str, Any]]:
    pods: list[dict[str, Any]] = kubectl.get("pods", f"--selector={CLUSTER_LABEL}={name}")["items"]
    return sorted(pods, key=lambda pod: str(pod["metadata"]["name"]))
