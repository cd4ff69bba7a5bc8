"""The manifest of a run on Kubernetes: a DaskJob, which the Dask operator makes pods of.

The operator starts a scheduler, workers, and a pod that runs `dtopk train` or `dtopk sweep`, and
ends the first two with it. The manifest is all that is sent: the job file goes with it as a
variable of the driver.
"""

import contextlib
import hashlib
import posixpath
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import yaml  # type: ignore[import-untyped]

from dtopk.launch.submit.options import SubmitOptions
from dtopk.launch.submit.record import Command, name_work
from dtopk.launch.workers import THREADS_RESOURCE

KIND = "DaskJob"
API_VERSION = "kubernetes.dask.org/v1"
NAME_CHARACTERS = 45
"""The operator takes 53 for a name, and makes longer ones of it."""
_HASH_CHARACTERS = 6
RUN_DIR_ANNOTATION = "dtopk/run-dir"
"""By which a DaskJob says what its run folder is."""
SCHEDULER_PORT = 8786
PAGES_PORT = 8787
CLUSTER_LABEL = "dask.org/cluster-name"
"""Label of all pods of a job, by the operator."""
COMPONENT_LABEL = "dask.org/component"
DRIVER, SCHEDULER, WORKER = "job-runner", "scheduler", "worker"
"""What the operator calls the components."""

_NAME = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
_SECRET_NAME = re.compile(r"[a-z0-9]([-.a-z0-9]{0,251}[a-z0-9])?")
_LABEL = re.compile(r"(?P<key>([\w.-]+/)?[\w.-]+)=(?P<value>[\w.-]*)")
_TOLERATION = re.compile(
    r"(?P<key>([\w.-]+/)?[\w.-]+)(=(?P<value>[\w.-]*))?(:(?P<effect>\w+))?", re.ASCII
)
_EFFECTS = ("NoSchedule", "PreferNoSchedule", "NoExecute")
_DEATH_TIMEOUT_S = 60
_OF_WORKERS = 9, 10
"""The part of a pod's memory that Dask may give to its workers, and ends one that takes more; what
is left is for the processes that look after them."""
_VOLUME = "data"
_DRIVER_CORES, _SCHEDULER_CORES = "1", "500m"
_USER = 1000
"""That of deploy/Dockerfile."""

# It is process 1 of its container, to which alone Kubernetes sends the signal of the end.
_DRIVER_SCRIPT = r"""
job=`mktemp -d`/job.toml
printf '%s' "$DTOPK_JOB" > "$job"
driver=
asked=
failures=0
# The run saves what it has reached, and ends.
trap 'asked=1; [ -z "$driver" ] || kill -TERM "$driver" 2> /dev/null' TERM INT
while :; do
    dtopk {command} "$job" --run-dir "$1" --set cluster.kind=scheduler \
        --set cluster.scheduler="$DASK_SCHEDULER_ADDRESS" < /dev/null &
    driver=$!
    [ -z "$asked" ] || kill -TERM "$driver" 2> /dev/null
    wait "$driver"
    status=$?
    # A signal ends the wait, and not the run.
    while kill -0 "$driver" 2> /dev/null; do
        wait "$driver"
        status=$?
    done
    driver=
    # It is done, was refused, or was asked to stop; what failed goes on from its last commit.
    [ "$status" -ne 0 ] && [ "$status" -ne 2 ] && [ -z "$asked" ] || exit "$status"
    failures=`expr $failures + 1`
    [ "$failures" -le "$2" ] || exit "$status"
    echo "The {work} ended with status $status and is started again, $failures of $2 times." >&2
    sleep 5 &
    wait
done
""".lstrip()


@dataclass(frozen=True, kw_only=True)
class RunInPods:
    """What the pods of a run are to do."""

    name: str
    """Of the DaskJob."""
    command: Command
    """Of the driver."""
    run_dir: str
    """The run folder as the pods see it."""
    job_toml: str
    """The text of the job file."""
    options: SubmitOptions
    """What is asked for."""


def make_dask_job(run: RunInPods) -> dict[str, Any]:
    """Write the manifest of a run.

    Parameters
    ----------
    run : RunInPods

    Returns
    -------
    dict
        As its JSON or YAML says.
    """
    namespace = {"namespace": run.options.namespace} if run.options.namespace else {}
    return {
        "apiVersion": API_VERSION,
        "kind": KIND,
        "metadata": {
            "name": run.name,
            **namespace,
            "labels": {"app.kubernetes.io/name": "dtopk"},
            "annotations": {RUN_DIR_ANNOTATION: run.run_dir},
        },
        "spec": {
            "job": {"spec": _make_driver(run)},
            "cluster": {
                "spec": {
                    "worker": {"replicas": run.options.nodes, "spec": _make_worker(run.options)},
                    "scheduler": {
                        "spec": _make_scheduler(run.options),
                        "service": _make_service(run.name),
                    },
                }
            },
        },
    }


def format_manifest(manifest: Mapping[str, Any]) -> str:
    """Write a manifest as YAML, texts of several lines as such."""
    text: str = yaml.dump(dict(manifest), Dumper=_Dumper, sort_keys=False, width=100)
    return text


class _Dumper(yaml.SafeDumper):  # type: ignore[misc]
    """Writes no anchors."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def _represent_text(dumper: Any, text: str) -> Any:
    style = "|" if "\n" in text else "'" if _may_be_no_text(text) else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


def _may_be_no_text(text: str) -> bool:
    """Say whether a reader of YAML, of whichever version, may take a text for something else.

    PyYAML quotes what YAML 1.1 takes for a number, and '1e3' is none there.
    """
    for read in (float, lambda word: int(word, 0)):
        with contextlib.suppress(ValueError):
            read(text)
            return True
    return text.lower() in ("y", "n")


_Dumper.add_representer(str, _represent_text)


def _make_driver(run: RunInPods) -> dict[str, Any]:
    options = run.options
    script = _DRIVER_SCRIPT.format(command=run.command, work=name_work(run.command))
    container = {
        "name": "job",
        "image": options.image,
        "command": ["sh", "-c", script, "dtopk", _escape(run.run_dir)],
        "args": [str(options.retries)],
        "env": [{"name": "DTOPK_JOB", "value": _escape(run.job_toml)}],
        **_make_sources(options),
        "resources": _make_resources(_DRIVER_CORES, options.driver_memory_bytes),
    }
    return _make_pod(
        options,
        container,
        {"restartPolicy": "Never", "terminationGracePeriodSeconds": options.warn_s},
    )


def _make_worker(options: SubmitOptions) -> dict[str, Any]:
    cores = str(options.cores)
    place = options.local_directory or "/tmp"
    command = [
        *("dask", "worker", "$(DASK_SCHEDULER_ADDRESS)"),
        "--name=$(DASK_WORKER_NAME)",
        "--dashboard-address=127.0.0.1:0",
        f"--nworkers={options.processes}",
        "--nthreads=1",
        f"--resources={THREADS_RESOURCE}={options.threads_per_worker}",
        f"--memory-limit={worker_memory(options)}",
        f"--local-directory={_escape(place)}",
        f"--death-timeout={_DEATH_TIMEOUT_S}",
    ]
    container = {
        "name": "worker",
        "image": options.image,
        "command": command,
        **_make_sources(options),
        "resources": _make_resources(cores, options.memory_bytes, limit_cores=True),
    }
    return _make_pod(options, container, {})


def worker_memory(options: SubmitOptions) -> int:
    """Return what a worker process may take, in bytes, before Dask ends it."""
    part, whole = _OF_WORKERS
    return options.memory_bytes * part // whole // options.processes


def _make_scheduler(options: SubmitOptions) -> dict[str, Any]:
    container = {
        "name": "scheduler",
        "image": options.image,
        "command": [
            *("dask", "scheduler", f"--port={SCHEDULER_PORT}"),
            # The operator asks there.
            f"--dashboard-address=0.0.0.0:{PAGES_PORT}",
        ],
        "ports": [
            {"name": "tcp-comm", "containerPort": SCHEDULER_PORT, "protocol": "TCP"},
            {"name": "http-dashboard", "containerPort": PAGES_PORT, "protocol": "TCP"},
        ],
        "readinessProbe": {"tcpSocket": {"port": "tcp-comm"}, "periodSeconds": 5},
        "resources": _make_resources(_SCHEDULER_CORES, options.driver_memory_bytes),
    }
    return _make_pod(options, container, {}, has_data=False)


def _make_service(name: str) -> dict[str, Any]:
    ports = (("tcp-comm", SCHEDULER_PORT), ("http-dashboard", PAGES_PORT))
    return {
        "type": "ClusterIP",
        "selector": {CLUSTER_LABEL: name, COMPONENT_LABEL: SCHEDULER},
        "ports": [
            {"name": port_name, "protocol": "TCP", "port": port, "targetPort": port_name}
            for port_name, port in ports
        ],
    }


def _make_sources(options: SubmitOptions) -> dict[str, Any]:
    """Have variables of Secrets, and the volume, where they are asked for."""
    sources: dict[str, Any] = {}
    if options.env_from:
        sources["envFrom"] = [{"secretRef": {"name": name}} for name in options.env_from]
    if options.claim:
        sources["volumeMounts"] = [{"name": _VOLUME, "mountPath": options.mount_path}]
    return sources


def _make_resources(cores: str, n_bytes: int, *, limit_cores: bool = False) -> dict[str, Any]:
    memory = _write_quantity(n_bytes)
    limits = {"cpu": cores, "memory": memory} if limit_cores else {"memory": memory}
    return {"requests": {"cpu": cores, "memory": memory}, "limits": limits}


def _write_quantity(n_bytes: int) -> str:
    for unit, size in (("Gi", 2**30), ("Mi", 2**20), ("G", 10**9), ("M", 10**6)):
        if n_bytes % size == 0:
            return f"{n_bytes // size}{unit}"
    return str(n_bytes)


def _make_pod(
    options: SubmitOptions,
    container: dict[str, Any],
    more: Mapping[str, Any],
    *,
    has_data: bool = True,
) -> dict[str, Any]:
    """Write the spec of a pod, with what all have in common."""
    user = {"runAsNonRoot": True, "runAsUser": _USER, "runAsGroup": _USER, "fsGroup": _USER}
    pod: dict[str, Any] = {
        **more,
        "securityContext": user | {"seccompProfile": {"type": "RuntimeDefault"}},
    }
    if options.node_selector:
        pod["nodeSelector"] = dict(parse_label(text) for text in options.node_selector)
    if options.tolerations:
        pod["tolerations"] = [parse_toleration(text) for text in options.tolerations]
    pod["containers"] = [
        container
        | {"securityContext": {"allowPrivilegeEscalation": False,
                               "capabilities": {"drop": ["ALL"]}}}
    ]  # fmt: skip
    if options.claim and has_data:
        claim = {"claimName": options.claim}
        pod["volumes"] = [{"name": _VOLUME, "persistentVolumeClaim": claim}]
    return _merge(pod, parse_pod_extra(options))


def _escape(text: str) -> str:
    """Have Kubernetes put no variable in a text, which it would for '$(NAME)'."""
    return text.replace("$", "$$")


def _merge(whole: dict[str, Any], more: Mapping[str, Any]) -> dict[str, Any]:
    """Put the values of a dict in another one, tables within tables; lists are added to."""
    merged = dict(whole)
    for key, value in more.items():
        before = merged.get(key)
        if isinstance(before, dict) and isinstance(value, dict):
            merged[key] = _merge(before, value)
        elif isinstance(before, list) and isinstance(value, list):
            merged[key] = [*before, *value]
        else:
            merged[key] = value
    return merged


def parse_label(text: str) -> tuple[str, str]:
    """Read a label, 'KEY=VALUE'.

    Raises
    ------
    ValueError
    """
    match = _LABEL.fullmatch(text)
    if match is None:
        raise ValueError(f"node_selector must be of labels 'KEY=VALUE', got {text!r}.")
    return match["key"], match["value"]


def parse_toleration(text: str) -> dict[str, str]:
    """Read a toleration, written as kubectl writes taints.

    Parameters
    ----------
    text : str
        'KEY', 'KEY:EFFECT', 'KEY=VALUE' or 'KEY=VALUE:EFFECT'; without an effect: each one.

    Raises
    ------
    ValueError
    """
    match = _TOLERATION.fullmatch(text)
    if match is None:
        raise ValueError(
            "tolerations must be of the form 'KEY', 'KEY:EFFECT' or 'KEY=VALUE:EFFECT', got "
            f"{text!r}."
        )
    key, value, effect = match["key"], match["value"], match["effect"]
    if effect and effect not in _EFFECTS:
        raise ValueError(
            f"tolerations must have an effect {', '.join(map(repr, _EFFECTS))}, or none, got "
            f"{text!r}."
        )
    found = {"key": key, "operator": "Exists" if value is None else "Equal"}
    if value is not None:
        found["value"] = value
    return found | ({"effect": effect} if effect else {})


def parse_pod_extra(options: SubmitOptions) -> dict[str, Any]:
    """Read what the spec of every pod is to have beside what dtopk writes.

    Raises
    ------
    ValueError
        If it is not TOML, or has containers, of which there is one in each pod.
    """
    try:
        extra = tomllib.loads("\n".join(options.pod_extra))
    except tomllib.TOMLDecodeError as error:
        raise ValueError(
            f"pod_extra must be lines of TOML, got {list(options.pod_extra)!r}: {error}."
        ) from error
    if "containers" in extra:
        raise ValueError(
            "pod_extra must have no 'containers', got some: it is for the spec of the pods. What "
            "the containers ask for is said by the other keys of [submit]."
        )
    return extra


def check_pods(options: SubmitOptions) -> None:
    """Refuse options that no manifest can be made of.

    Parameters
    ----------
    options : SubmitOptions

    Raises
    ------
    ValueError
    """
    if not options.image or re.search(r"\s", options.image):
        raise ValueError(
            "image must be the name of a container image, such as 'registry.example/dtopk:1', got "
            f"{options.image!r}. deploy/Dockerfile makes one."
        )
    options.check_size()
    for name in ("namespace", "claim"):
        _check_name(name, getattr(options, name), _NAME if name == "namespace" else _SECRET_NAME)
    for secret in options.env_from:
        if not secret:
            raise ValueError("env_from must be of names of Secrets, got ''.")
        _check_name("env_from", secret, _SECRET_NAME)
    path = options.mount_path
    if not posixpath.isabs(path) or posixpath.normpath(path) != path or path == "/" or ":" in path:
        raise ValueError(
            f"mount_path must be an absolute path, without '..', ':' and '/' at its end, and not "
            f"'/', got {path!r}."
        )
    for label in options.node_selector:
        parse_label(label)
    for toleration in options.tolerations:
        parse_toleration(toleration)
    parse_pod_extra(options)


def _check_name(what: str, name: str, rule: re.Pattern[str]) -> None:
    if name and rule.fullmatch(name) is None:
        raise ValueError(
            f"{what} must be a name of lower-case letters, digits and '-' as Kubernetes takes it, "
            f"got {name!r}."
        )


def name_dask_job(run_dir: str, number: int) -> str:
    """Make the name of a DaskJob: of the last part of its run folder, and a hash of all of it.

    The first says to a reader which run it is, the second tells runs of like names apart.

    Parameters
    ----------
    run_dir : str
        The run folder as the pods see it.
    number : int
        Of the submission of the run, from 1.
    """
    place = run_dir.rstrip("/") if "://" in run_dir else posixpath.normpath(run_dir)
    digest = hashlib.sha256(place.encode()).hexdigest()[:_HASH_CHARACTERS]
    ending = f"-{digest}-{number}" if number > 1 else f"-{digest}"
    plain = re.sub(r"[^a-z0-9]+", "-", f"dtopk-{posixpath.basename(place)}".lower())
    return plain[: NAME_CHARACTERS - len(ending)].strip("-") + ending
