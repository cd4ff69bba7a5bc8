"""Runs submitted to a Kubernetes of this machine, with the Dask operator.

tests/kubernetes/cluster.sh starts and stops it: API server, controllers, scheduler and operator are
the real ones, and tests/kubernetes/kubelet.py runs pods as processes.
"""

import importlib.util
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil
import pytest

from dtopk.cli import dtopk
from dtopk.cli.output import run_and_report
from dtopk.launch.submit.dask_job import name_dask_job
from dtopk_storage.paths import as_path
from tests.submitted_runs import EPOCHS, JOB, SubmittedRun, free_ports, write_store

REPOSITORY = Path(__file__).parents[2]
CLUSTER = REPOSITORY / "tests" / "kubernetes" / "cluster.sh"
FOLDER = "DTOPK_TEST_KUBERNETES"
PROGRAMS = ("kube-apiserver", "kube-controller-manager", "kube-scheduler")
KUBERNETES_JOB = f"""{JOB}image = "tests/dtopk:1"
claim = "dtopk-data"
warn_s = 60
"""

pytestmark = pytest.mark.slow


def missing():
    """Say what is missing for a Kubernetes of our own; '': nothing."""
    if not os.environ.get(FOLDER):
        return f"{FOLDER} names no folder with {', '.join(PROGRAMS)}"
    absent = [name for name in PROGRAMS if not (Path(os.environ[FOLDER]) / name).is_file()]
    absent += [name for name in ("etcd", "kubectl", "openssl") if shutil.which(name) is None]
    absent += [name for name in ("dask_kubernetes", "jsonschema", "kopf", "kubernetes")
               if importlib.util.find_spec(name) is None]  # fmt: skip
    return f"for a Kubernetes of its own, {', '.join(absent)} missing" if absent else ""


def cluster(verb, folder):
    done = subprocess.run([CLUSTER, verb, folder], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def kubectl(*arguments, stdin=None):
    done = subprocess.run(
        ["kubectl", *arguments], input=stdin, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def bare_cluster():
    """Start a Kubernetes without the operator, and end it."""
    why = missing()
    if why:
        pytest.skip(why)
    folder = tempfile.mkdtemp(prefix="dtopk-kubernetes-")
    environment = {
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "PYTHON": sys.executable,
        "PYTHONPATH": f"{REPOSITORY}{os.pathsep}{REPOSITORY / 'storage'}",
        "KUBERNETES_TEST_PORT": str(free_ports(26443, 8)),
        "KUBECONFIG": f"{folder}/kubeconfig",
    }
    with pytest.MonkeyPatch.context() as patched:
        for name, value in environment.items():
            patched.setenv(name, value)
        try:
            cluster("start", folder)
            yield folder
        finally:
            subprocess.run([CLUSTER, "stop", folder], check=True, capture_output=True)
            shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="module")
def operator(bare_cluster):
    cluster("operator", bare_cluster)


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """Make the folder that stands for the volume, with the store and the job."""
    folder = tmp_path_factory.mktemp("volume")
    write_store(folder / "store.zarr")
    (folder / "job.toml").write_text(KUBERNETES_JOB + f'mount_path = "{folder}"\n')
    return folder


@pytest.fixture(scope="module")
def volume(operator, data):
    """Make a volume of the folder, and the claim to it."""
    size = {"storage": "1Gi"}
    common = {"accessModes": ["ReadWriteMany"], "storageClassName": ""}
    volume = common | {"capacity": size, "hostPath": {"path": str(data)}}
    claim = common | {"resources": {"requests": size}, "volumeName": "tests"}
    for kind, name, spec in (("PersistentVolume", "tests", volume),
                             ("PersistentVolumeClaim", "dtopk-data", claim)):  # fmt: skip
        manifest = {"apiVersion": "v1", "kind": kind, "metadata": {"name": name}, "spec": spec}
        kubectl("create", "-f", "-", stdin=json.dumps(manifest))


@pytest.fixture(scope="module")
def here(data):
    """Make the same run in this process."""
    run = data / "here"
    assert run_and_report(dtopk, ["train", str(data / "job.toml"), "--run-dir", str(run)]) == 0
    return run


def processes_of_pods(folder):
    """List the processes of all pods, and theirs."""
    kubelet = psutil.Process(int((Path(folder) / "kubelet.pid").read_text()))
    return kubelet.children(recursive=True)


def status_of(name):
    found = kubectl("get", "daskjobs", name, "-o", "jsonpath={.status.jobStatus}")
    return found.strip()


class Run(SubmittedRun):
    """A run that was submitted to Kubernetes."""

    ends_s = 180.0
    poll_s = 0.2

    @property
    def name(self):
        return self.job

    def fetch_logs(self):
        self.call("logs", self.job, "--of", "all")

    def wait_for_commit(self, after=0):
        self.wait("a commit", lambda: self.epoch > after and status_of(self.job) == "Running")

    def pods(self, component):
        selector = f"dask.org/cluster-name={self.job},dask.org/component={component}"
        return json.loads(kubectl("get", "pods", "-l", selector, "-o", "json"))["items"]


@pytest.fixture
def tell(tmp_path, capsys, monkeypatch):
    """Call a command, from an empty folder; return its status, answer and messages."""
    monkeypatch.chdir(tmp_path)

    def tell(*arguments):
        capsys.readouterr()
        status = run_and_report(dtopk, [str(argument) for argument in arguments])
        return status, *capsys.readouterr()

    return tell


@pytest.fixture
def submit(volume, data, tmp_path, tell):
    """Submit the job; what is left of it ends with the test."""
    submitted = []

    def call(*arguments):
        status, out, err = tell(*arguments)
        assert status == 0, err
        return out

    def submit(*settings, path=None):
        path = path or data / f"run of {tmp_path.name}"
        words = [word for setting in settings for word in ("--set", setting)]
        said = call("submit", data / "job.toml", "--to", "kubernetes", "--run-dir", path, *words)
        name = as_path(path, name="run folder").name
        submitted.append(Run(path, tmp_path / "runs" / name, call))
        submitted[-1].said = said
        return submitted[-1]

    yield submit
    for run in submitted:
        kubectl("delete", "daskjobs", run.job, "--ignore-not-found", "--wait")
    # There is one set of ports.
    deadline = time.monotonic() + 60
    while kubectl("get", "pods", "-o", "name").strip() and time.monotonic() < deadline:
        time.sleep(0.2)


def refused(tell, data, *arguments):
    """Submit what is refused; return the error, after which nothing is in the cluster or here."""
    status, _, err = tell("submit", data / "job.toml", "--to", "kubernetes", *arguments)
    assert status != 0
    assert not list(Path("runs").glob("*/submission"))
    (line,) = err.splitlines()
    return line


def test_cluster_without_the_operator_says_so(bare_cluster, data, tell):
    error = refused(tell, data, "--run-dir", data / "run")
    assert error.startswith("error: the Dask operator must be installed in the Kubernetes cluster")


def test_run_that_cannot_be_sent_says_why_and_leaves_nothing(volume, data, tell, monkeypatch):
    run = ("--run-dir", data / "run")
    error = refused(tell, data, *run, "--set", "submit.context=stranger")
    assert error.startswith("error: your account of the Kubernetes cluster must be allowed")
    assert 'User "stranger" cannot create resource "daskjobs"' in error
    error = refused(tell, data, *run, "--set", "submit.context=nobody")
    assert error.startswith("error: submit.context must be one of the kubeconfig, but")
    error = refused(tell, data, *run, "--set", "submit.namespace=nowhere")
    assert error.startswith("error: submit.namespace must be a namespace of the cluster, but")
    bad = 'submit.pod_extra=["tolerations = [{key = 1}]", "servceAccountName = \'x\'"]'
    error = refused(tell, data, *run, "--set", bad)
    assert error.startswith("error: the DaskJob must be as the Dask operator defines it, but at '")
    assert kubectl("get", "daskjobs", "-o", "name") == ""
    monkeypatch.setenv("KUBECONFIG", "/nowhere")
    error = refused(tell, data, *run)
    assert error.startswith("error: a Kubernetes cluster must be reached by kubectl, but none is")


def test_manifest_that_the_server_alone_finds_wrong_is_not_sent(volume, data, tell, monkeypatch):
    """The server's own trial is what is left where the package has another definition."""
    monkeypatch.setattr("dtopk.launch.submit.kubernetes.check_dask_job", lambda manifest: None)
    bad = "submit.pod_extra=[\"priority = 'high'\"]"
    error = refused(tell, data, "--run-dir", data / "run", "--set", bad)
    assert error.startswith("error: the DaskJob must be one that the cluster takes, but it is not")
    assert kubectl("get", "daskjobs", "-o", "name") == ""


def test_run_ends_well_with_the_bits_of_one_process(submit, here, tell, bare_cluster):
    kubectl("create", "secret", "generic", "kept", "--from-literal=DTOPK_TEST_WORD=from-a-secret")
    run = submit(
        'submit.node_selector=["pool=training"]',
        'submit.tolerations=["dedicated=training:NoSchedule"]',
        'submit.env_from=["kept"]',
        'submit.pod_extra=["priority = 0", "hostname = \'dtopk\'"]',
        "submit.dashboard_port=9797",
    )
    assert f"job         {run.job}\n" in run.said
    assert f"run folder  {run.path}\n" in run.said
    tunnel = (
        f"kubectl --context=tests --namespace=default port-forward "
        f"service/{run.job}-scheduler 9797:8787"
    )
    assert tunnel in run.said
    run.wait_for_commit()
    found = run.status()
    assert (found["phase"], found["state"], found["nodes"]) == ("running", "Running", "n2")
    words = {process.environ().get("DTOPK_TEST_WORD") for process in processes_of_pods(bare_cluster)
             if process.cmdline()[2:3] in (["train"], ["worker"])}  # fmt: skip
    assert words == {"from-a-secret"}
    assert tunnel in run.call("status", run.job)
    for component, count in (("job-runner", 1), ("scheduler", 1), ("worker", 2)):
        pods = run.pods(component)
        assert [pod["spec"]["hostname"] for pod in pods] == ["dtopk"] * count
    status, _, err = tell("submit", run.folder.job, "--to", "kubernetes", "--run-dir", run.path)
    assert (status, "must have no job under way" in err) == (2, True)
    followed = run.call("logs", run.job, "--follow")
    assert "epoch" in followed
    run.wait("the end", lambda: status_of(run.job) == "Successful")
    run.assert_same(here)
    found = run.status()
    assert (found["phase"], found["state"], found["failure"]) == ("ended", "Successful", None)
    run.wait("the end of the workers", lambda: not run.pods("worker"), 60)
    assert "has ended already (Successful)" in run.call("cancel", run.job)
    run.wait("the end of the driver's pod", lambda: not run.pods("job-runner"), 60)


def test_worker_pod_that_is_killed_changes_no_bit(submit, here):
    run = submit()
    run.wait_for_commit()
    first = {pod["metadata"]["name"] for pod in run.pods("worker")}
    lost = min(first)
    kubectl("delete", "pod", lost, "--force", "--grace-period=0")
    run.wait("the end", lambda: status_of(run.job) == "Successful")
    run.assert_same(here)
    assert "The run goes back to its last commit." in run.log


def test_driver_that_is_killed_is_started_again_in_its_pod(submit, here, bare_cluster):
    run = submit("submit.retries=1")
    run.wait_for_commit()
    (driver,) = [process for process in processes_of_pods(bare_cluster)
                 if process.cmdline()[2:3] == ["train"]]  # fmt: skip
    driver.kill()
    run.wait("the end", lambda: status_of(run.job) == "Successful")
    run.assert_same(here)
    assert "The run ended with status 137 and is started again, 1 of 1 times." in run.log


def test_scheduler_pod_that_is_killed_is_replaced(submit, here):
    run = submit()
    run.wait_for_commit()
    (pod,) = run.pods("scheduler")
    kubectl("delete", "pod", pod["metadata"]["name"], "--force", "--grace-period=0")
    run.wait("the end", lambda: status_of(run.job) == "Successful")
    run.assert_same(here)
    assert "The run goes back to its last commit." in run.log


def test_store_and_run_folder_may_be_in_an_object_store(submit, here, s3):
    """The driver and the workers know it by a Secret, and no volume is mounted."""
    write_store(f"{s3}/store.zarr")
    known = [f"--from-literal={name}={value}" for name, value in os.environ.items()
             if name.startswith("AWS_")]  # fmt: skip
    kubectl("create", "secret", "generic", "s3", *known)
    run = submit(
        f"data.store={s3}/store.zarr", "submit.claim=", 'submit.env_from=["s3"]',
        path=f"{s3}/runs/first",
    )  # fmt: skip
    for component in ("job-runner", "worker"):
        run.wait("its pods", lambda component=component: run.pods(component))
        assert not any(pod["spec"].get("volumes") for pod in run.pods(component))
    run.wait("the end", lambda: status_of(run.job) == "Successful")
    run.assert_same(here)
    found = run.status()
    assert (found["epochs"], found["phase"]) == (EPOCHS, "ended")


def test_run_that_is_refused_is_not_started_again(submit, data):
    run = submit(f"data.store={data}/none.zarr")
    run.wait("the end", lambda: status_of(run.job) == "Failed")
    found = run.status()
    assert (found["phase"], found["failure"]["cause"]) == ("ended", "refused")
    assert "none.zarr" in found["failure"]["text"]


@pytest.fixture
def submitter(operator):
    """Give the user of a context the rights that deploy/README.md lists for this, and no more."""
    rules = [
        (["kubernetes.dask.org"], ["daskjobs"], ["create", "get", "delete"]),
        ([""], ["pods"], ["get", "list", "watch", "delete"]),
        ([""], ["pods/log"], ["get"]),
    ]
    role = {
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role",
        "metadata": {"name": "submitter"},
        "rules": [{"apiGroups": groups, "resources": resources, "verbs": verbs}
                  for groups, resources, verbs in rules],
    }  # fmt: skip
    kubectl("create", "-f", "-", stdin=json.dumps(role))
    kubectl("create", "rolebinding", "submitter", "--role=submitter", "--user=submitter")
    return "submit.context=submitter"


def test_cancelled_run_commits_and_goes_on_in_another_job(submit, submitter, data, tmp_path):
    longer = f"solver.max_epochs={2 * EPOCHS}"
    here = tmp_path / "here"
    train = ["train", str(data / "job.toml"), "--run-dir", str(here), "--set", longer]
    assert run_and_report(dtopk, train) == 0
    first = submit(longer, submitter)
    first.wait_for_commit()
    assert f"kubernetes job {first.job} is cancelled." in first.call("cancel", first.job)
    found = first.status()
    assert (found["phase"], found["state"], found["failure"]["cause"]) == (
        "ended", "deleted", "cancelled"
    )  # fmt: skip
    # An epoch that was cut short is done again.
    committed = first.epoch
    assert 0 < committed <= found["epochs"] < 2 * EPOCHS
    assert json.loads((first.path / "result.json").read_text())["resumable"]
    first.wait("the end of the pods", lambda: not first.pods("worker"), 60)
    second = submit(longer, submitter)
    assert second.job == name_dask_job(str(first.path), 2)
    second.wait("the end", lambda: status_of(second.job) == "Successful")
    second.assert_same(here, 2 * EPOCHS)
    result = json.loads((first.path / "result.json").read_text())
    assert result["resumed_at"] == [committed]
    assert (second.folder.path / f"run-{first.job}.log").is_file()


def test_run_that_is_cancelled_at_once_leaves_no_pods(submit):
    run = submit("solver.max_epochs=1000")
    run.wait_for_commit()
    run.call("cancel", run.job, "--now")
    run.wait("the end of the pods", lambda: kubectl("get", "pods", "-o", "name") == "", 60)
    assert run.status()["state"] == "deleted"
