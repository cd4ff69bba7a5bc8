"""What kubectl says of a DaskJob and its pods, and what `dtopk status` makes of it."""

import json
import os
import re
import socket
from types import SimpleNamespace

import pytest

from dtopk.cli import dtopk
from dtopk.cli.output import run_and_report
from dtopk.launch import ClusterError
from dtopk.launch.submit import SubmissionFolder, SubmissionRecord
from dtopk.launch.submit.back_end import ProgramError
from dtopk.launch.submit.kubectl import Kubectl, NotThereError, explain
from dtopk.launch.submit.kubernetes import describe_pods, read_state

ENDED = {"startedAt": "2026-12-01T10:00:00Z", "finishedAt": "2026-12-01T10:01:00Z"}


def job(word):
    return {"status": {"jobStatus": word} if word else {}}


def pod(component, phase="Running", *, node="n1", state=None, name="", **status):
    statuses = [{"restartCount": 0, "state": state}] if state else []
    return {
        "metadata": {
            "name": name or f"dtopk-first-{component}",
            "labels": {"dask.org/component": component},
        },
        "spec": {"nodeName": node} if node else {},
        "status": {"phase": phase, "containerStatuses": statuses, **status},
    }


def ended(code, reason="Error"):
    return {"terminated": {"exitCode": code, "reason": reason, **ENDED}}


UNPLACED = {
    "conditions": [
        {"type": "PodScheduled", "status": "False", "reason": "Unschedulable",
         "message": "0/3 nodes are available: 3 Insufficient cpu."}
    ]
}  # fmt: skip
NO_IMAGE = {"waiting": {"reason": "ImagePullBackOff", "message": 'Back-off pulling "x"'}}


@pytest.mark.parametrize(
    ("word", "pods", "phase", "failure"),
    [
        ("", [], "waiting", ""),
        ("JobCreated", [], "waiting", ""),
        ("ClusterCreated", [pod("job-runner", "Pending", node="")], "waiting", ""),
        ("Running", [pod("job-runner")], "running", ""),
        ("Running", [pod("worker")], "ended", "node"),
        ("Successful", [pod("job-runner", "Succeeded", state=ended(0))], "ended", ""),
        ("Running", [pod("job-runner", "Failed", state=ended(1))], "ended", ""),
        ("Failed", [pod("job-runner", "Failed", state=ended(1))], "ended", ""),
        ("Failed", [], "ended", ""),
        ("Failed", [pod("job-runner", "Failed", state=ended(137, "OOMKilled"))], "ended",
         "out_of_memory"),
        ("Failed", [pod("job-runner", "Failed", reason="Evicted")], "ended", "node"),
    ],
)  # fmt: skip
def test_states_of_kubernetes_are_told_apart(word, pods, phase, failure):
    found = read_state(job(word), pods)
    assert (found.phase, found.failure) == (phase, failure)


def test_end_of_the_run_is_that_of_its_container():
    found = read_state(job("Failed"), [pod("job-runner", "Failed", state=ended(2), node="n3")])
    assert (found.attempt.status, found.attempt.host) == (2, "n3")
    # Between 10:00 and 10:01 of the container.
    assert (found.attempt.ended or 0.0) - found.attempt.began == 60.0


def test_pods_that_do_not_run_say_why_once():
    workers = [pod("worker", "Pending", node="", **UNPLACED) for _ in range(2)]
    driver = pod("job-runner", "Pending", state=NO_IMAGE)
    found = read_state(job("ClusterCreated"), [driver, *workers])
    assert found.reason == (
        'job-runner: ImagePullBackOff Back-off pulling "x"; '
        "worker: Unschedulable 0/3 nodes are available: 3 Insufficient cpu."
    )
    assert found.nodes == "n1"


def test_operator_that_does_not_run_is_what_a_job_waits_for():
    assert read_state(job(""), []).reason == "the Dask operator has not taken it up yet"


def test_log_of_the_job_has_a_line_a_pod():
    said = describe_pods([pod("job-runner"), pod("worker", "Pending", node="", **UNPLACED)])
    first, second = said.splitlines()
    assert first == "dtopk-first-job-runner: Running on n1, started again 0 times"
    assert second.startswith("dtopk-first-worker: Pending on no node, started again 0 times; Unsch")


@pytest.mark.parametrize(
    ("said", "told"),
    [
        ("The connection to the server localhost:8080 was refused - did you specify the right host",
         "a Kubernetes cluster must be reached"),
        ("Unable to connect to the server: dial tcp 10.0.0.1:6443: i/o timeout",
         "a Kubernetes cluster must be reached"),
        ('error: context "x" does not exist', "submit.context must be one of the kubeconfig"),
        ("error: You must be logged in to the server (Unauthorized)",
         "the Kubernetes cluster must know you"),
        ('Error from server (Forbidden): pods is forbidden: User "x" cannot list resource "pods"',
         "your account of the Kubernetes cluster must be allowed"),
        ('Error from server (Forbidden): error when creating "x": daskjobs "y" is forbidden: '
         "exceeded quota: lab, requested: count/daskjobs=1, used: count/daskjobs=3",
         "the quota of the namespace must have room"),
        ('Error from server (Forbidden): pods "y" is forbidden: violates PodSecurity '
         '"restricted:latest": runAsNonRoot != true',
         "the rules of the Kubernetes cluster must admit what dtopk asks for"),
        ('Error from server: admission webhook "image" denied the request: "x" already exists',
         "the rules of the Kubernetes cluster must admit what dtopk asks for"),
        ('Error from server (InternalError): failed calling webhook "image": connection refused',
         "the rules of the Kubernetes cluster must admit what dtopk asks for"),
        ("Error from server (Forbidden): it is forbidden: " + "no, " * 200 + "not this image",
         "the rules of the Kubernetes cluster must admit what dtopk asks for"),
        ('error: the server doesn\'t have a resource type "daskjobs"',
         "the Dask operator must be installed"),
        ('no matches for kind "DaskJob" in version "kubernetes.dask.org/v1"',
         "the Dask operator must be installed"),
        ('Error from server (NotFound): error when creating "x": namespaces "x" not found',
         "submit.namespace must be a namespace"),
        ('Error from server (AlreadyExists): daskjobs.kubernetes.dask.org "x" already exists',
         "the name of the run's DaskJob must be free"),
        ('The DaskJob "x" is invalid: spec.job.spec.priority: Invalid value: "string"',
         "the DaskJob must be one that the cluster takes"),
    ],
)  # fmt: skip
def test_errors_of_kubectl_say_what_must_be(said, told):
    error = explain(ProgramError("`kubectl` failed.", said))
    assert str(error).startswith(told)
    assert str(error).endswith(f"It says: {said}.")


def test_log_of_the_client_is_left_out_of_errors():
    noise = 'E1201 05:00:00.000000 1 memcache.go:265] "Unhandled Error" err="connection refused"\n'
    error = explain(ProgramError("`kubectl` failed.", noise * 5 + "connection refused"))
    assert str(error).endswith("It says: connection refused.")


def test_object_that_is_not_there_is_told_from_other_errors():
    said = 'Error from server (NotFound): daskjobs.kubernetes.dask.org "x" not found'
    assert isinstance(explain(ProgramError("It failed.", said)), NotThereError)
    other = explain(ProgramError("It failed: full.", "the disk is full"))
    assert type(other) is ClusterError
    assert str(other) == "It failed: full."


def test_context_and_namespace_are_those_of_the_job():
    kubectl = Kubectl(context="lab", namespace="ours")
    assert kubectl.words == ("kubectl", "--context=lab", "--namespace=ours")
    assert Kubectl().words == ("kubectl",)


@pytest.fixture
def submitted(tmp_path, monkeypatch):
    """Give a run on Kubernetes, and a kubectl that answers as it is told."""
    monkeypatch.chdir(tmp_path)
    programs = tmp_path / "bin"
    programs.mkdir()
    monkeypatch.setenv("PATH", f"{programs}{os.pathsep}/usr/bin{os.pathsep}/bin")
    folder = SubmissionFolder(run=tmp_path / "runs" / "first")
    folder.create()
    folder.write_record(
        SubmissionRecord(
            back_end="kubernetes", job_id="dtopk-first", host=socket.gethostname(), form="nodes",
            run_dir="/nowhere/runs/first", log_dir=str(folder.path), dashboard_port=9000,
            context="lab", namespace="ours", submitted=0.0,
        )
    )  # fmt: skip

    def say(found, pods=(), log=""):
        answers = {"job": found, "pods": {"items": list(pods)}}
        for name, answer in answers.items():
            (programs / f"{name}.json").write_text(json.dumps(answer))
        (programs / "log").write_text(log)
        (programs / "kubectl").write_text(
            f'#!/bin/sh\necho "$@" >> {tmp_path}/calls\ncase "$*" in\n'
            f"*'get daskjobs'*) cat {programs}/job.json;;\n"
            f"*'get pods'*) cat {programs}/pods.json;;\n"
            f"*logs*) cat {programs}/log;;\nesac\n"
        )
        (programs / "kubectl").chmod(0o755)

    return SimpleNamespace(folder=folder, say=say, calls=tmp_path / "calls")


@pytest.fixture
def call(capsys):
    def call(*arguments, status=0):
        assert run_and_report(dtopk, list(arguments)) == status
        return capsys.readouterr()

    return call


@pytest.mark.parametrize("name", ["runs/first", "dtopk-first", "/nowhere/runs/first", ""])
def test_run_is_found_by_folder_job_and_run_folder(submitted, call, name):
    submitted.say(job("Running"), [pod("job-runner"), pod("worker", node="n2")])
    said = call("status", *([name] if name else [])).out
    assert "job            dtopk-first (kubernetes), runs on n1,n2 (Running)" in said
    assert "its folder cannot be read from here" in said
    assert re.search(r"kubectl --context=lab --namespace=ours port-forward "
                     r"service/dtopk-first-scheduler 9000:8787", said)  # fmt: skip


def test_run_that_was_refused_says_why_by_its_log(submitted, call):
    log = "training softmax\nerror: k must be below 3, got 7.\n"
    submitted.say(job("Failed"), [pod("job-runner", "Failed", state=ended(2))], log)
    found = json.loads(call("status", "dtopk-first", "--json").out)
    assert found["failure"]["cause"] == "refused"
    assert found["failure"]["text"] == "The run was refused: k must be below 3, got 7."
    assert found["epochs"] is None


def test_run_that_ended_well_is_not_asked_for_more(submitted, call):
    submitted.say(job("Successful"), [pod("job-runner", "Succeeded", state=ended(0))])
    assert "it ended well; its last lines: dtopk logs dtopk-first" in call("status").out


def test_logs_are_those_of_the_pods(submitted, call):
    submitted.say(job("Running"), [pod("job-runner"), pod("scheduler"),
                                   pod("worker", name="dtopk-first-default-worker-a1-x")],
                  "one\ntwo\n")  # fmt: skip
    assert call("logs", "dtopk-first", "-n", "1").out == "two\n"
    assert not (submitted.folder.path / "scheduler.log").exists()
    said = call("logs", "dtopk-first", "--of", "all").out
    for name in ("run.log", "job.log", "scheduler.log", "worker-a1-x.log"):
        assert f"{submitted.folder.path}/{name} <==" in said
    assert "dtopk-first-job-runner: Running on n1" in said


def test_end_of_a_run_is_known_when_its_job_is_deleted(submitted, call, tmp_path):
    log = "error: k must be below 3, got 7.\n"
    submitted.say(job("Failed"), [pod("job-runner", "Failed", state=ended(2))], log)
    call("cancel", "dtopk-first")
    call("cancel", "dtopk-first")
    (attempt,) = submitted.folder.read_attempts()
    assert (attempt.host, attempt.status) == ("n1", 2)
    (tmp_path / "bin" / "kubectl").write_text("#!/bin/sh\necho '(NotFound)' >&2\nexit 1\n")
    found = json.loads(call("status", "dtopk-first", "--json").out)
    assert (found["state"], found["failure"]["cause"]) == ("deleted", "refused")
    submitted.folder.attempts.unlink()
    found = json.loads(call("status", "dtopk-first", "--json").out)
    assert (found["state"], found["failure"]["cause"]) == ("deleted", "cancelled")


def test_what_a_lost_driver_has_left_is_deleted_by_cancel(submitted, call):
    submitted.say(job("Running"), [pod("worker"), pod("scheduler")])
    assert "has ended already (Running)" in call("cancel", "dtopk-first").out
    assert "delete daskjobs.kubernetes.dask.org dtopk-first" in submitted.calls.read_text()
    assert not submitted.folder.cancelled.exists()


@pytest.mark.parametrize(
    ("word", "arguments", "told"),
    [("Running", (), True), ("Running", ("--now",), False), ("ClusterCreated", (), False)],
)
def test_driver_is_told_before_its_workers_end(submitted, call, word, arguments, told):
    phase = "Running" if word == "Running" else "Pending"
    submitted.say(job(word), [pod("job-runner", phase)])
    # The answer to `get pod NAME`, which begins as that to `get pods` does not.
    (submitted.calls.parent / "bin" / "kubectl").write_text(
        (submitted.calls.parent / "bin" / "kubectl").read_text().replace(
            "case \"$*\" in\n", "case \"$*\" in\n*'get pod '*) echo '{\"spec\": {}}';;\n"
        )
    )  # fmt: skip
    call("cancel", "dtopk-first", *arguments)
    calls = submitted.calls.read_text().splitlines()
    verbs = [line for line in calls if " delete " in line]
    driver = ["delete pod dtopk-first-runner --wait=false"] if told else []
    job_itself = ["delete daskjobs.kubernetes.dask.org dtopk-first --ignore-not-found --wait=false"]
    assert [line[line.index("delete") :] for line in verbs] == driver + job_itself
    assert any("--follow" in line for line in calls) == told
    assert submitted.folder.cancelled.exists()
