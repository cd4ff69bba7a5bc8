"""The DaskJob of `dtopk submit --to kubernetes`: what it asks for, and what is refused."""

import importlib.util
import json
import os
import re
import shutil
import signal
import subprocess
import time
import tomllib
from pathlib import Path

import pytest
import yaml  # type: ignore[import-untyped]

from dtopk.cli import dtopk
from dtopk.cli.output import run_and_report
from dtopk.launch import ClusterError
from dtopk.launch.submit import SubmitOptions, dask_job_schema, make_back_end
from dtopk.launch.submit.dask_job import (
    NAME_CHARACTERS,
    RunInPods,
    format_manifest,
    make_dask_job,
    name_dask_job,
    parse_toleration,
    worker_memory,
)
from dtopk.launch.submit.dask_job_schema import check_dask_job, close_schema

needs_definition = pytest.mark.skipif(
    any(importlib.util.find_spec(name) is None for name in ("dask_kubernetes", "jsonschema")),
    reason="the extra 'kubernetes' is not installed",
)
ROOT = Path(__file__).parents[2]


def options(**changes):
    return SubmitOptions(
        **{"image": "registry/dtopk:1", "nodes": 3, "cores": 8, "memory_bytes": 16 * 2**30,
           "driver_memory_bytes": 2 * 10**9, "claim": "dtopk-data"}
        | changes
    )  # fmt: skip


def run(*, command="train", run_dir="/data/runs/first", job_toml="version = 1\n", **changes):
    return RunInPods(
        name="dtopk-first", command=command, run_dir=run_dir, job_toml=job_toml,
        options=options(**changes),
    )  # fmt: skip


def pods_of(manifest):
    cluster = manifest["spec"]["cluster"]["spec"]
    return {
        "job": manifest["spec"]["job"]["spec"],
        "worker": cluster["worker"]["spec"],
        "scheduler": cluster["scheduler"]["spec"],
    }


def pods(**changes):
    return pods_of(make_dask_job(run(**changes)))


def container(pod):
    (only,) = pod["containers"]
    return only


def test_manifest_comes_back_from_its_text():
    manifest = make_dask_job(run(tolerations=("a", "b=c:NoExecute"), node_selector=("d=e",)))
    text = format_manifest(manifest)
    assert yaml.safe_load(text) == manifest
    assert "&id" not in text


@needs_definition
def test_manifest_is_as_the_operator_defines_it():
    check_dask_job(
        make_dask_job(
            run(
                namespace="lab", env_from=("keys",), node_selector=("pool=gpu",),
                tolerations=("a:NoSchedule",), local_directory="/scratch",
                pod_extra=("serviceAccountName = 'dtopk'", "imagePullSecrets = [{name = 'x'}]"),
            )
        )
    )  # fmt: skip


@needs_definition
@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("servceAccountName = 'x'", r"'servceAccountName' was unexpected"),
        (
            "priority = 'high'",
            r"at 'spec\.cluster\.spec\.scheduler\.spec\.priority' is not: 'high'",
        ),
        ("imagePullSecrets = ['x']", r"imagePullSecrets\[0\]' is not: 'x' is not of type 'object'"),
        ("tolerations = [{key = 1}]", r"tolerations\[0\]\.key' is not: 1 is not of type 'string'"),
    ],
)
def test_manifest_that_the_operator_would_not_know_is_refused(line, message):
    with pytest.raises(ValueError, match=rf"^the DaskJob must be as the Dask operator.*{message}"):
        check_dask_job(make_dask_job(run(pod_extra=(line,))))


def test_schema_of_the_operator_becomes_one_that_is_closed():
    schema = {
        "type": "object",
        "properties": {
            "port": {"x-kubernetes-int-or-string": True},
            "labels": {"type": "object", "additionalProperties": {"type": "string"}},
            "free": {"type": "object", "properties": {"a": {"type": "string"}},
                     "x-kubernetes-preserve-unknown-fields": True},
            "list": {"type": "array", "nullable": True,
                     "items": {"type": "object", "properties": {"n": {"type": "integer",
                                                                       "format": "int32"}}}},
        },
        "required": ["port"],
    }  # fmt: skip
    assert close_schema(schema) == {
        "type": "object",
        "additionalProperties": False,
        "properties": {
            "port": {"type": ["integer", "string"]},
            "labels": {"type": "object", "additionalProperties": {"type": "string"}},
            "free": {"type": "object", "properties": {"a": {"type": "string"}}},
            "list": {
                "type": ["array", "null"],
                "items": {"type": "object", "additionalProperties": False,
                          "properties": {"n": {"type": "integer"}}},
            },
        },
        "required": ["port"],
    }  # fmt: skip


@pytest.mark.parametrize(("name", "package"), [("jsonschema", "jsonschema"),
                                               ("dask_kubernetes", "dask-kubernetes")])  # fmt: skip
def test_extra_that_is_not_installed_is_named(monkeypatch, name, package):
    dask_job_schema._load_validator.cache_clear()
    if name == "jsonschema":
        monkeypatch.setitem(__import__("sys").modules, name, None)
    else:
        pytest.importorskip("jsonschema")
        monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ClusterError, match=rf"^the package {package} must be installed to submit"):
        check_dask_job(make_dask_job(run()))


def test_workers_ask_for_what_the_job_says():
    manifest = make_dask_job(run(processes=2, local_directory="/scratch"))
    worker = container(pods_of(manifest)["worker"])
    assert manifest["spec"]["cluster"]["spec"]["worker"]["replicas"] == 3
    assert worker["image"] == "registry/dtopk:1"
    assert worker["resources"]["requests"] == {"cpu": "8", "memory": "16Gi"}
    assert worker["resources"]["limits"] == {"cpu": "8", "memory": "16Gi"}
    assert {"--nworkers=2", "--nthreads=1", "--resources=threads=4",
            "--local-directory=/scratch"} <= set(worker["command"])  # fmt: skip
    assert f"--memory-limit={worker_memory(options(processes=2))}" in worker["command"]
    # Nine tenths of 16 GiB, for two processes.
    assert worker_memory(options(processes=2)) == 7730941132


def test_driver_and_scheduler_ask_for_the_drivers_memory():
    found = pods(warn_s=77)
    for name in ("job", "scheduler"):
        assert container(found[name])["resources"]["limits"] == {"memory": "2G"}
    assert found["job"]["restartPolicy"] == "Never"
    assert found["job"]["terminationGracePeriodSeconds"] == 77


def test_volume_is_mounted_where_the_job_says_by_those_who_read_it():
    found = pods(mount_path="/shared/data")
    for name in ("job", "worker"):
        assert found[name]["volumes"] == [
            {"name": "data", "persistentVolumeClaim": {"claimName": "dtopk-data"}}
        ]
        mount = {"name": "data", "mountPath": "/shared/data"}
        assert container(found[name])["volumeMounts"] == [mount]
    assert "volumes" not in found["scheduler"]
    assert all("volumes" not in pod for pod in pods(claim="").values())


def test_secrets_are_named_and_not_read():
    found = pods(env_from=("keys", "mlflow"))
    for name in ("job", "worker"):
        assert container(found[name])["envFrom"] == [
            {"secretRef": {"name": "keys"}}, {"secretRef": {"name": "mlflow"}}
        ]  # fmt: skip
    assert "envFrom" not in container(found["scheduler"])


def test_all_pods_go_to_the_nodes_that_the_job_says():
    found = pods(
        node_selector=("pool=training", "kubernetes.io/arch=amd64"),
        tolerations=("dedicated=training:NoSchedule",),
    )
    for pod in found.values():
        assert pod["nodeSelector"] == {"pool": "training", "kubernetes.io/arch": "amd64"}
        assert pod["tolerations"] == [
            {"key": "dedicated", "operator": "Equal", "value": "training", "effect": "NoSchedule"}
        ]


@pytest.mark.parametrize(
    ("text", "toleration"),
    [
        ("gpu", {"key": "gpu", "operator": "Exists"}),
        ("nvidia.com/gpu:NoExecute",
         {"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoExecute"}),
        ("a=", {"key": "a", "operator": "Equal", "value": ""}),
        ("a=b:PreferNoSchedule",
         {"key": "a", "operator": "Equal", "value": "b", "effect": "PreferNoSchedule"}),
    ],
)  # fmt: skip
def test_tolerations_are_read_as_kubectl_writes_taints(text, toleration):
    assert parse_toleration(text) == toleration


def test_what_the_job_adds_is_merged_into_every_pod():
    found = pods(
        tolerations=("a",),
        pod_extra=("priorityClassName = 'low'", "securityContext.runAsUser = 5",
                   "tolerations = [{key = 'b'}]"),
    )  # fmt: skip
    for pod in found.values():
        assert pod["priorityClassName"] == "low"
        assert pod["securityContext"]["runAsUser"] == 5
        assert pod["securityContext"]["runAsNonRoot"]
        assert [each["key"] for each in pod["tolerations"]] == ["a", "b"]


def test_no_pod_may_gain_rights():
    for pod in pods().values():
        assert pod["securityContext"]["runAsNonRoot"]
        assert container(pod)["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
        }


def test_texts_are_not_taken_for_variables():
    job = container(
        pods_of(make_dask_job(run(run_dir="/data/$(HOME)", job_toml="a = '$(b)'")))["job"]
    )
    assert job["command"][-1] == "/data/$$(HOME)"
    assert job["env"] == [{"name": "DTOPK_JOB", "value": "a = '$$(b)'"}]
    # Kubernetes would make one of two.
    assert "$$" not in job["command"][2]


@pytest.mark.parametrize(
    ("run_dir", "number", "pattern"),
    [
        ("/data/runs/first", 1, r"dtopk-first-[0-9a-f]{6}"),
        ("s3://bucket/runs/first/", 3, r"dtopk-first-[0-9a-f]{6}-3"),
        ("/data/My run_2026.12", 1, r"dtopk-my-run-2026-12-[0-9a-f]{6}"),
        ("/data/é", 1, r"dtopk-[0-9a-f]{6}"),
        # 45 characters, six of the start, seven of the hash and three of the number.
        ("/data/" + "x" * 60, 12, r"dtopk-x{29}-[0-9a-f]{6}-12"),
    ],
)
def test_names_are_those_that_the_operator_takes(run_dir, number, pattern):
    name = name_dask_job(run_dir, number)
    assert re.fullmatch(pattern, name)
    assert len(name) <= NAME_CHARACTERS


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (f"/data/{'x' * 50}-seed1", f"/data/{'x' * 50}-seed2"),
        ("/data/a.b", "/data/a_b"),
        ("s3://x/first/run", "s3://x/second/run"),
    ],
)
def test_runs_of_like_names_have_each_its_own_name(one, other):
    assert name_dask_job(one, 1) != name_dask_job(other, 1)


def test_run_has_the_same_name_however_its_folder_is_written():
    assert name_dask_job("/data/runs/first/", 2) == name_dask_job("/data/a/../runs/first", 2)
    assert name_dask_job("s3://b/runs/first/", 2) == name_dask_job("s3://b/runs/first", 2)


@pytest.mark.parametrize(
    "text", ["1e3", "0o17", "0x1f", "nan", "Infinity", "1_000", "12", "-1E-3", "y", "true", ""]
)
def test_texts_that_a_reader_may_take_for_something_else_are_quoted(text):
    written = format_manifest({"labels": {"seed": text}})
    assert written == f"labels:\n  seed: '{text}'\n"
    assert "'" not in format_manifest({"labels": {"seed": "e3"}})


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"image": ""}, r"^image must be the name of a container image"),
        ({"image": "a b"}, r"^image must be the name of a container image.*'a b'"),
        ({"cores": 0}, r"^cores must be the processor cores of a node, got 0"),
        ({"memory_bytes": 0}, r"^memory must be that of a node"),
        ({"namespace": "My_Lab"}, r"^namespace must be a name of lower-case letters.*'My_Lab'"),
        ({"claim": "A"}, r"^claim must be a name of lower-case"),
        ({"env_from": ("keys", "")}, r"^env_from must be of names of Secrets, got ''"),
        ({"env_from": ("a b",)}, r"^env_from must be a name of lower-case.*'a b'"),
        ({"mount_path": "data"}, r"^mount_path must be an absolute path.*'data'"),
        ({"mount_path": "/"}, r"^mount_path must be an absolute path.*'/'"),
        ({"mount_path": "/a/../b"}, r"^mount_path must be an absolute path"),
        ({"node_selector": ("pool",)}, r"^node_selector must be of labels 'KEY=VALUE', got 'pool'"),
        ({"tolerations": ("a=b=c",)}, r"^tolerations must be of the form 'KEY'"),
        ({"tolerations": ("a:Never",)}, r"^tolerations must have an effect 'NoSchedule'"),
        ({"pod_extra": ("a b",)}, r"^pod_extra must be lines of TOML"),
        ({"pod_extra": ("containers = []",)}, r"^pod_extra must have no 'containers'"),
        ({"queue": "long"}, r"^queue must be left out for 'kubernetes', whose pods have nothing"),
        ({"walltime": "1:00"}, r"^walltime must be left out"),
        ({"interface": "ib0"}, r"^interface must be left out"),
        ({"form": "workers"}, r"^form must be left out"),
        ({"job_script_prologue": ("module load x",)}, r"^job_script_prologue must be left out"),
    ],
)  # fmt: skip
def test_options_that_no_pods_can_be_made_of_are_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        make_back_end("kubernetes").check(options(**changes))


@pytest.mark.parametrize("back_end", ["slurm", "pbs"])
def test_batch_systems_refuse_the_options_of_kubernetes(back_end):
    batch = SubmitOptions(form="nodes" if back_end == "slurm" else "workers", cores=1,
                          memory_bytes=10**10, interface="ib0", image="x")  # fmt: skip
    with pytest.raises(ValueError, match=r"^image must be left out for a batch system"):
        make_back_end(back_end).check(batch)


@pytest.mark.parametrize(
    ("places", "claim", "message"),
    [
        ({"data.store": "/home/x.zarr"}, "c", r"^data\.store must be an address.*'/data/', got"),
        ({"output.run_dir": "/data"}, "c", r"^output\.run_dir must be an address"),
        (
            {"output.run_dir": "/data/x"},
            "",
            r"^output\.run_dir must be an address.*names no volume",
        ),
        ({"cluster.tls_ca": "/data/ca"}, "c", r"^cluster\.tls_ca must be left out"),
        ({"output.run_dir": "/data/../tmp/x"}, "c", r"^output\.run_dir must.*'/data/\.\./tmp/x'"),
        ({"output.run_dir": "/data/x/.."}, "c", r"^output\.run_dir must be an address"),
        ({"output.run_dir": "file:///data/r"}, "c", r"^output\.run_dir must.*'file:///data/r'"),
        ({"output.run_dir": "file:///tmp/r"}, "", r"^output\.run_dir must be an address"),
        ({"data.store": "memory://b/x"}, "c", r"^data\.store must be an address"),
        ({"data.store": "http://host/x"}, "c", r"^data\.store must be an address"),
    ],
)
def test_paths_that_pods_would_not_see_are_refused(places, claim, message):
    with pytest.raises(ValueError, match=message):
        make_back_end("kubernetes").check_places(options(claim=claim), places)


def test_paths_on_the_volume_and_addresses_are_taken():
    places = {"data.store": "/data/a/../x.zarr", "output.run_dir": "s3://b/x",
              "output.state_url": "gs://b/state", "model.label_cost": ""}  # fmt: skip
    make_back_end("kubernetes").check_places(options(), places)


JOB = """
version = 1
[data]
store = "/data/letter.zarr"
[submit]
image = "registry/dtopk:1"
nodes = 2
cores = 4
memory = "8GiB"
claim = "dtopk-data"
"""


@pytest.fixture
def dry_run(tmp_path, capsys, monkeypatch):
    """Call `dtopk submit --dry-run` where there is neither kubectl nor a store."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", "")
    (tmp_path / "job.toml").write_text(JOB.lstrip())

    def dry_run(*arguments, job="job.toml"):
        words = ["submit", str(job), "--to", "kubernetes", "--dry-run", *arguments]
        status = run_and_report(dtopk, words)
        return status, *capsys.readouterr()

    return dry_run


@needs_definition
def test_dry_run_prints_the_manifest_and_does_nothing(dry_run, tmp_path):
    status, out, err = dry_run("--run-dir", "/data/runs/first", "--set", "model.C=3.0")
    assert (status, err) == (0, "")
    manifest = yaml.safe_load(out)
    job = container(pods_of(manifest)["job"])
    assert manifest["metadata"]["name"] == name_dask_job("/data/runs/first", 1)
    assert manifest["metadata"]["annotations"] == {"dtopk/run-dir": "/data/runs/first"}
    sent = tomllib.loads(job["env"][0]["value"])
    assert sent["model"]["C"] == 3.0
    assert (sent["cluster"]["partitions"], sent["cluster"]["threads_per_partition"]) == (2, 4)
    assert os.listdir(tmp_path) == ["job.toml"]


@needs_definition
def test_example_of_the_documentation_is_the_manifest_of_the_job_to_start_from(dry_run):
    status, out, _ = dry_run(
        "--run-dir", "/data/runs/letter", job=ROOT / "jobs" / "kubernetes.toml"
    )
    assert status == 0
    assert out == (ROOT / "deploy" / "kubernetes" / "example.yaml").read_text()


@needs_definition
def test_dry_run_takes_run_folders_in_an_object_store(dry_run):
    status, out, _ = dry_run("--run-dir", "s3://bucket/runs/first")
    assert status == 0
    assert container(pods_of(yaml.safe_load(out))["job"])["command"][-1] == "s3://bucket/runs/first"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--run-dir", "runs/first"), "error: output.run_dir must be an address in an object"),
        (("--run-dir", "/data/a", "--set", "submit.taints=1"),
         "error: key in [submit] 'taints' is unknown"),
        (("--run-dir", "/data/a", "--set", "submit.queue=x"),
         "error: submit.queue must be left out for 'kubernetes'"),
        (("--run-dir", "/data/a", "--set", "cluster.min_workers=9"),
         "error: cluster.min_workers must be at most the 2 workers that are asked for"),
    ],
)  # fmt: skip
def test_what_cannot_be_submitted_is_one_line(dry_run, arguments, message):
    status, out, err = dry_run(*arguments)
    assert (status, out) == (2, "")
    assert err.startswith(message)
    assert len(err.splitlines()) == 1


@needs_definition
def test_machine_without_kubectl_is_refused(dry_run, tmp_path, capsys):
    words = ["submit", "job.toml", "--to", "kubernetes", "--run-dir", "/data/a"]
    assert run_and_report(dtopk, words) == 1
    error = capsys.readouterr().err
    assert error.startswith("error: the program 'kubectl' must be on the PATH to submit to")
    assert not (tmp_path / "runs").exists()


TAKES_NONE = """#!/bin/sh
case "$*" in
*create*) echo 'Error from server (AlreadyExists): daskjobs.kubernetes.dask.org "x"' >&2; exit 1;;
*'get daskjobs'*) cat {found};;
esac
"""


@needs_definition
@pytest.mark.parametrize(
    ("annotations", "whose"),
    [
        ({"dtopk/run-dir": "/data/else/first"}, "that of run folder '/data/else/first'"),
        ({}, "one that dtopk did not make"),
    ],
)
def test_name_that_is_taken_says_by_which_run_folder(
    dry_run, tmp_path, monkeypatch, capsys, annotations, whose
):
    found = tmp_path / "found.json"
    found.write_text(json.dumps({"metadata": {"annotations": annotations}}))
    (tmp_path / "kubectl").write_text(TAKES_NONE.format(found=found))
    (tmp_path / "kubectl").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    words = ["submit", "job.toml", "--to", "kubernetes", "--run-dir", "/data/a"]
    assert run_and_report(dtopk, words) == 1
    assert capsys.readouterr().err.startswith(
        "error: the name of the run's DaskJob must be free, got "
        f"{name_dask_job('/data/a', 1)!r}, which is taken by {whose}. Look whether it still runs"
    )
    assert not (tmp_path / "runs" / "a").exists()


@pytest.fixture
def run_driver(tmp_path):
    """Run the script of the driver's container with a `dtopk` that does as it is told."""
    programs = tmp_path / "bin"
    programs.mkdir()
    sleep = shutil.which("sleep")
    (programs / "sleep").write_text(f'#!/bin/sh\n[ "$1" = 5 ] || exec {sleep} "$@"\n')
    log = tmp_path / "log"

    def run_driver(body, *, retries=2, asking=False, command="train"):
        (programs / "dtopk").write_text(f'#!/bin/sh\necho "$@" >> {log}\n{body}\n')
        for program in programs.iterdir():
            program.chmod(0o755)
        manifest = make_dask_job(run(command=command, job_toml="x = 1\n", retries=retries))
        job = container(pods_of(manifest)["job"])
        environment = {
            "PATH": f"{programs}:/usr/bin:/bin", "TMPDIR": str(tmp_path), "DTOPK_JOB": "x = 1\n",
            "DASK_SCHEDULER_ADDRESS": "tcp://first-scheduler:8786", "LOG": str(log),
        }  # fmt: skip
        process = subprocess.Popen([*job["command"], *job["args"]], env=environment)
        if asking:
            deadline = time.monotonic() + 10
            while "ready" not in (log.read_text() if log.exists() else ""):
                assert time.monotonic() < deadline
                time.sleep(0.02)
            process.send_signal(signal.SIGTERM)
        status = process.wait(timeout=30)
        return status, [line for line in log.read_text().splitlines() if line.startswith(command)]

    return run_driver


def test_driver_trains_on_the_scheduler_of_the_operator(run_driver, tmp_path):
    status, (call,) = run_driver(f'cp "$2" {tmp_path}/sent.toml')
    assert status == 0
    assert call.endswith("--run-dir /data/runs/first --set cluster.kind=scheduler "
                         "--set cluster.scheduler=tcp://first-scheduler:8786")  # fmt: skip
    assert (tmp_path / "sent.toml").read_text() == "x = 1\n"


def test_driver_of_a_sweep_sweeps_and_goes_on(run_driver, capfd):
    status, calls = run_driver("exit 1", command="sweep")
    assert (status, len(calls)) == (1, 3)
    assert all(call.split()[0] == "sweep" for call in calls)
    assert (
        "The sweep ended with status 1 and is started again, 1 of 2 times."
        in capfd.readouterr().err
    )


def test_driver_that_fails_is_started_again_so_many_times(run_driver):
    status, calls = run_driver("exit 1")
    assert (status, len(calls)) == (1, 3)


def test_driver_that_was_refused_is_not_started_again(run_driver):
    status, calls = run_driver("exit 2")
    assert (status, len(calls)) == (2, 1)


def test_driver_that_is_asked_to_stop_is_waited_for(run_driver, tmp_path):
    """It takes a while, and ends with a status of its own."""
    body = "trap 'sleep 0.5; echo committed >> $LOG; exit 130' TERM\necho ready >> $LOG\n" + (
        "sleep 20 &\nwait\n"
    )
    status, calls = run_driver(body, asking=True)
    assert (status, len(calls)) == (130, 1)
    assert "committed" in Path(tmp_path / "log").read_text()
