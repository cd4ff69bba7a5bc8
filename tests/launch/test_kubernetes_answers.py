"""What kubectl says of a DaskJob and its pods, and what `dtopk status` makes of it."""

import json
import os
import re
import socket
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import pytest

from dtopk.cli import dtopk
from dtopk.cli.output import run_and_report
from dtopk.launch import ClusterError
from dtopk.launch.submit import SubmissionFolder, SubmissionRecord, make_back_end
from dtopk.launch.submit.back_end import ProgramError
from dtopk.launch.submit.kubectl import Kubectl, NotThereError, explain
from dtopk.launch.submit.pod_logs import PodLogs, pick_new_lines
from dtopk.launch.submit.pod_states import describe_pods, read_state

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

    def say(found, pods=(), log="", first=""):
        """Give its answers, and what goes before them: cases of the shell."""
        answers = {"job": found, "pods": {"items": list(pods)}}
        for name, answer in answers.items():
            (programs / f"{name}.json").write_text(json.dumps(answer))
        (programs / "log").write_text(log)
        (programs / "kubectl").write_text(
            f'#!/bin/sh\necho "$@" >> {tmp_path}/calls\ncase "$*" in\n'
            f"{first}*'get daskjobs'*) cat {programs}/job.json;;\n"
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


ONE_POD = "*'get pod '*) echo '{\"spec\": {}}';;\n"


@pytest.mark.parametrize(
    ("word", "arguments", "told"),
    [("Running", (), True), ("Running", ("--now",), False), ("ClusterCreated", (), False)],
)
def test_driver_is_told_before_its_workers_end(submitted, call, word, arguments, told):
    phase = "Running" if word == "Running" else "Pending"
    submitted.say(job(word), [pod("job-runner", phase)], first=ONE_POD)
    call("cancel", "dtopk-first", *arguments)
    calls = submitted.calls.read_text().splitlines()
    verbs = [line for line in calls if " delete " in line]
    driver = ["delete pod dtopk-first-runner --wait=false"] if told else []
    job_itself = ["delete daskjobs.kubernetes.dask.org dtopk-first --ignore-not-found --wait=false"]
    assert [line[line.index("delete") :] for line in verbs] == driver + job_itself
    assert any("--follow" in line for line in calls) == told
    assert submitted.folder.cancelled.exists()


@pytest.mark.parametrize(
    ("case", "why"),
    [
        ("*' wait '*) echo 'error: timed out waiting for the condition' >&2; exit 1;;\n",
         "timed out waiting for the condition"),
        ("*'delete pod'*) echo 'error: a webhook does not answer' >&2; exit 1;;\n",
         "a webhook does not answer"),
    ],
)  # fmt: skip
def test_dask_job_is_deleted_though_its_driver_does_not_go(submitted, call, case, why):
    submitted.say(job("Running"), [pod("job-runner")], first=case + ONE_POD)
    said = call("cancel", "dtopk-first")
    assert "kubernetes job dtopk-first is cancelled" in said.out
    assert "The last commit of 'dtopk-first' was not seen to end: " in said.err
    assert f"{why}. The DaskJob is deleted all the same" in said.err
    last = submitted.calls.read_text().splitlines()[-1]
    assert "delete daskjobs.kubernetes.dask.org dtopk-first" in last


def test_log_with_bytes_of_another_encoding_keeps_nothing_from_being_deleted(submitted, call):
    submitted.say(job("Running"), [pod("job-runner")], first=ONE_POD)
    (submitted.calls.parent / "bin" / "log").write_bytes(b"caf\xe9\n")
    call("cancel", "dtopk-first")
    assert "delete daskjobs.kubernetes.dask.org dtopk-first" in submitted.calls.read_text()
    assert (submitted.folder.path / "run.log").read_text() == "caf\N{REPLACEMENT CHARACTER}\n"


def test_log_that_cannot_be_written_cuts_no_commit_short(submitted, call):
    submitted.say(job("Running"), [pod("job-runner")], "one\n", first=ONE_POD)
    (submitted.folder.path / "run.log").mkdir()
    said = call("cancel", "dtopk-first")
    assert "The log of the pod 'dtopk-first-runner' is not had: " in said.err
    *_, wait, delete = submitted.calls.read_text().splitlines()
    assert "wait --for=delete pod/dtopk-first-runner" in wait
    assert "delete daskjobs.kubernetes.dask.org dtopk-first" in delete


def stamped(*lines):
    """Write lines as `kubectl logs --timestamps` does, the n-th n seconds after ten."""
    return "".join(f"2026-12-01T10:00:{at:02d}.5Z {line}\n" for at, line in lines)


def test_log_that_the_node_has_rotated_is_added_to(submitted, call):
    running = [pod("job-runner")]
    submitted.say(job("Running"), running, stamped((1, "one"), (2, "two"), (3, "three")))
    call("logs", "dtopk-first")
    # Of what was there, the end is left.
    submitted.say(job("Running"), running, stamped((3, "three"), (4, "four")))
    assert call("logs", "dtopk-first").out == "one\ntwo\nthree\nfour\n"
    # All that was there is gone.
    submitted.say(job("Running"), running, stamped((9, "nine")))
    assert call("logs", "dtopk-first").out == "one\ntwo\nthree\nfour\nnine\n"
    submitted.say(job("Running"), running)
    assert call("logs", "dtopk-first").out == "one\ntwo\nthree\nfour\nnine\n"


def test_what_is_new_alone_is_asked_for(submitted, call):
    submitted.say(job("Running"), [pod("job-runner")], stamped((1, "one"), (5, "five")))
    call("logs", "dtopk-first")
    call("logs", "dtopk-first")
    first, second = [line for line in submitted.calls.read_text().splitlines() if " logs " in line]
    assert "--since-time" not in first
    # A second before the last line: those of two streams may lie out of their order.
    assert "--timestamps --since-time=2026-12-01T10:00:04Z" in second


def test_logs_of_two_pods_of_one_name_lie_one_behind_the_other(submitted, call):
    """A scheduler's pod that is killed has a successor."""
    for name, line in (("a", "first"), ("b", "second")):
        submitted.say(job("Running"), [pod("scheduler", name=f"dtopk-first-{name}")],
                      stamped((1, line)))  # fmt: skip
        said = call("logs", "dtopk-first", "--of", "scheduler").out
    assert said == "first\nsecond\n"


@pytest.mark.parametrize(
    ("texts", "lines"),
    [
        # The same word at the same moment, twice, and later a third time.
        ([stamped((1, "a"), (1, "a")), stamped((1, "a"), (1, "a"), (1, "a"))], "aaa"),
        # Of two streams, the later line came first.
        ([stamped((1, "a"), (3, "c")), stamped((1, "a"), (3, "c"), (2, "b"))], "acb"),
        # A line that has not come to its end is left for later.
        ([stamped((1, "a"), (2, "bc"))[:-2], stamped((1, "a"), (2, "bc"))], ["a", "bc"]),
        # An answer that took longer than a later one.
        ([stamped((1, "a"), (8, "b"), (9, "c")), stamped((1, "a"), (8, "b"))], "abc"),
        ([stamped((1, "a"), (2, "b")) + "c\n", stamped((2, "b")) + "c\nd\n"], "abcd"),
    ],
)
def test_each_line_of_a_log_is_taken_once(texts, lines):
    seen: dict[str, Any] = {}
    taken: list[str] = []
    for text in texts:
        new, seen = pick_new_lines(text, seen)
        taken += new
    assert taken == list(lines)


def test_processes_that_fetch_at_the_same_time_add_each_line_once(tmp_path):
    logs = PodLogs(folder=tmp_path)
    texts = [stamped(*((at, f"line {at}") for at in range(n))) for n in range(1, 30)]
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda text: logs.add("pod", "run.log", text), texts))
    assert (tmp_path / "run.log").read_text().splitlines() == [f"line {at}" for at in range(29)]


def test_last_line_without_an_end_is_taken_where_nothing_follows():
    text = stamped((1, "a"), (2, "b")).rstrip("\n")
    assert pick_new_lines(text, {}, is_over=True)[0] == ["a", "b"]


def test_logs_that_cannot_be_had_say_why_once(submitted, call, monkeypatch):
    submitted.say(job("Running"), [pod("job-runner")], stamped((1, "one")))
    call("logs", "dtopk-first")
    refusing = "*'get pods'*) echo 'error: (Unauthorized)' >&2; exit 1;;\n"
    submitted.say(job("Running"), first=refusing)
    said = call("logs", "dtopk-first")
    assert said.out == "one\n"
    assert said.err.count("the Kubernetes cluster must know you, but it does not") == 1


def test_error_that_is_told_is_told_once(submitted, caplog):
    refusing = "*logs*) echo 'error: the node does not answer' >&2; exit 1;;\n"
    submitted.say(job("Running"), [pod("job-runner"), pod("worker", "Pending")], first=refusing)
    back_end = make_back_end("kubernetes")
    for _ in range(3):
        back_end.fetch_logs(submitted.folder.read_record())
    # The worker's container has not begun, and has no log.
    (message,) = caplog.messages
    assert message.startswith("The log of the pod 'dtopk-first-job-runner' is not had: ")
    assert "the node does not answer" in message


def test_logs_of_a_cluster_are_not_asked_for_all_the_time(submitted, call, monkeypatch):
    submitted.say(job("Running"), [pod("job-runner")], stamped((1, "one")))
    pauses = []

    def end(seconds):
        pauses.append(seconds)
        ends = [pod("job-runner", "Succeeded", state=ended(0))]
        submitted.say(job("Successful"), ends, stamped((2, "two")))

    monkeypatch.setattr("dtopk.cli.logs.time", SimpleNamespace(sleep=end))
    assert call("logs", "dtopk-first", "--follow").out == "one\ntwo\n"
    assert pauses[0] >= 2.0


def test_how_the_pods_are_is_shown_anew_where_it_changes(submitted, call, monkeypatch):
    """What is said of them may be shorter than before."""
    submitted.say(job("Running"), [pod("job-runner"), pod("worker", "Pending", **UNPLACED)])

    def end(seconds):
        ends = [pod("job-runner", "Succeeded", state=ended(0))]
        submitted.say(job("Successful"), ends)

    monkeypatch.setattr("dtopk.cli.logs.time", SimpleNamespace(sleep=end))
    said = call("logs", "dtopk-first", "--of", "job", "--follow").out
    assert "dtopk-first-job-runner: Succeeded on n1" in said.splitlines()[-1]
    assert len(said.splitlines()) == 3
