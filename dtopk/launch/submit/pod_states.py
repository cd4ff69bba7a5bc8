"""What a DaskJob and its pods, as kubectl shows them, say of a run."""

import datetime
from collections.abc import Mapping, Sequence
from typing import Any

from dtopk.launch.submit.back_end import JobState
from dtopk.launch.submit.dask_job import COMPONENT_LABEL, DRIVER
from dtopk.launch.submit.record import Attempt

_JOB_ENDED = ("Successful", "Failed")
_NODE_REASONS = frozenset({"Evicted", "NodeLost", "NodeShutdown", "Shutdown", "Terminated",
                           "Preempting", "UnexpectedAdmissionError"})  # fmt: skip
_KILLED = 128 + 9


def find_component(pod: Mapping[str, Any]) -> str:
    """Say which component a pod is of: `DRIVER`, `SCHEDULER`, `WORKER`; '': none.

    Parameters
    ----------
    pod : mapping
        As JSON.
    """
    return str(pod["metadata"].get("labels", {}).get(COMPONENT_LABEL, ""))


def read_state(job: Mapping[str, Any], pods: Sequence[Mapping[str, Any]]) -> JobState:
    """Make out what a DaskJob and its pods say.

    Parameters
    ----------
    job : mapping
        The DaskJob, as JSON.
    pods : sequence of mapping
        Its pods.

    Returns
    -------
    JobState
    """
    word = str(job.get("status", {}).get("jobStatus", ""))
    drivers = [pod for pod in pods if find_component(pod) == DRIVER]
    nodes = sorted({pod["spec"].get("nodeName", "") for pod in pods} - {""})
    if not drivers:
        return _without_driver(word, pods)
    driver = drivers[0]
    phase = driver["status"].get("phase", "Pending")
    ended = _read_end(driver)
    if phase in ("Succeeded", "Failed") or word in _JOB_ENDED:
        why = str(driver["status"].get("reason", ""))
        out_of_memory = _terminated(driver).get("reason") == "OOMKilled"
        failure = "out_of_memory" if out_of_memory else "node" if why in _NODE_REASONS else ""
        return JobState(
            phase="ended",
            word=word if word in _JOB_ENDED else phase,
            reason=" ".join(f"{why}: {driver['status'].get('message', '')}".split()) if why else "",
            nodes=",".join(nodes),
            failure=failure,
            attempt=ended,
        )
    return JobState(
        phase="running" if phase == "Running" else "waiting",
        word=word or phase,
        reason="; ".join(_find_troubles(pods)),
        nodes=",".join(nodes),
        driver_node=driver["spec"].get("nodeName", ""),
    )


def _without_driver(word: str, pods: Sequence[Mapping[str, Any]]) -> JobState:
    """Tell a job that has not begun from one whose driver is gone."""
    if not word:
        return JobState(
            phase="waiting", word="created", reason="the Dask operator has not taken it up yet"
        )
    if word == "JobCreated":
        return JobState(phase="waiting", word=word, reason="; ".join(_find_troubles(pods)))
    if word in _JOB_ENDED:
        return JobState(phase="ended", word=word)
    return JobState(
        phase="ended", word=word, reason="the pod of its driver is gone", failure="node"
    )


def has_begun(pod: Mapping[str, Any]) -> bool:
    """Say whether a container of a pod has run, and so has a log.

    Parameters
    ----------
    pod : mapping
        As JSON.
    """
    return bool(pod["status"].get("phase", "Pending") != "Pending")


def _terminated(pod: Mapping[str, Any]) -> Mapping[str, Any]:
    (first, *_) = pod["status"].get("containerStatuses") or [{}]
    found: Mapping[str, Any] = first.get("state", {}).get("terminated") or {}
    return found


def _read_end(driver: Mapping[str, Any]) -> Attempt | None:
    """Return the start and end of the run that the driver's container tells; None: none yet."""
    found = _terminated(driver)
    if not found:
        return None
    host = driver["spec"].get("nodeName", "")
    code = int(found.get("exitCode", _KILLED))
    return Attempt(
        began=_read_time(found.get("startedAt")),
        ended=_read_time(found.get("finishedAt")),
        host=host,
        status=code,
    )


def _read_time(text: str | None) -> float:
    return datetime.datetime.fromisoformat(text).timestamp() if text else 0.0


def _find_troubles(pods: Sequence[Mapping[str, Any]]) -> list[str]:
    """Say of pods that do not run why, the same reason once."""
    troubles = []
    for pod in pods:
        why = _find_trouble(pod)
        if why:
            troubles.append(f"{find_component(pod)}: {why}")
    return list(dict.fromkeys(troubles))


def _find_trouble(pod: Mapping[str, Any]) -> str:
    status = pod["status"]
    for each in status.get("containerStatuses") or ():
        waits = each.get("state", {}).get("waiting") or {}
        if waits:
            return " ".join(f"{waits.get('reason', '')} {waits.get('message', '')}".split())
    if status.get("phase") != "Pending":
        return ""
    for condition in status.get("conditions") or ():
        if condition["type"] == "PodScheduled" and condition["status"] != "True":
            words = f"{condition.get('reason', '')} {condition.get('message', '')}"
            return " ".join(words.split())
    return "Pending"


def describe_pods(pods: Sequence[Mapping[str, Any]]) -> str:
    """Write a line a pod: its name, phase, node, restarts, and what is wrong with it.

    Parameters
    ----------
    pods : sequence of mapping
    """
    lines = []
    for pod in pods:
        restarts = sum(each.get("restartCount", 0)
                       for each in pod["status"].get("containerStatuses") or ())  # fmt: skip
        phase = pod["status"].get("phase", "Pending")
        node = pod["spec"].get("nodeName", "no node")
        trouble = _find_trouble(pod)
        words = f"{pod['metadata']['name']}: {phase} on {node}, started again {restarts} times"
        lines.append(f"{words}; {trouble}" if trouble else words)
    return "".join(f"{line}\n" for line in lines)
