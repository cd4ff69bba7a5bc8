"""deploy/kubernetes/letter.yaml: that its parts fit together, and what its pods may do."""

import pytest
import yaml  # type: ignore[import-untyped]

from dtopk.job import load_job
from tests.deploy.run_dockerfile import REPOSITORY

MANIFEST = REPOSITORY / "deploy" / "kubernetes" / "letter.yaml"


@pytest.fixture(scope="module")
def manifests():
    return {each["kind"]: each for each in yaml.safe_load_all(MANIFEST.read_text())}


@pytest.fixture(scope="module")
def dask_job(manifests):
    return manifests["DaskJob"]


@pytest.fixture(scope="module")
def pods(dask_job):
    cluster = dask_job["spec"]["cluster"]["spec"]
    return {
        "job": dask_job["spec"]["job"]["spec"],
        "worker": cluster["worker"]["spec"],
        "scheduler": cluster["scheduler"]["spec"],
    }


def test_job_is_one_that_finds_the_scheduler_and_its_workers(manifests, dask_job, tmp_path):
    path = tmp_path / "job.toml"
    path.write_text(manifests["ConfigMap"]["data"]["job.toml"])
    job = load_job(path)
    service = dask_job["spec"]["cluster"]["spec"]["scheduler"]["service"]
    name = dask_job["metadata"]["name"]
    assert service["selector"]["dask.org/cluster-name"] == name
    assert job.cluster.scheduler == f"tcp://{name}-scheduler:{service['ports'][0]['port']}"
    assert job.cluster.min_workers == dask_job["spec"]["cluster"]["spec"]["worker"]["replicas"]


def test_store_and_run_folder_are_on_the_volume_of_job_and_workers(manifests, pods, tmp_path):
    path = tmp_path / "job.toml"
    path.write_text(manifests["ConfigMap"]["data"]["job.toml"])
    job = load_job(path)
    claim = manifests["PersistentVolumeClaim"]["metadata"]["name"]
    for name in ("job", "worker"):
        (container,) = pods[name]["containers"]
        (mount,) = [each for each in container["volumeMounts"] if each["name"] == "data"]
        assert {"name": "data", "persistentVolumeClaim": {"claimName": claim}} in pods[name][
            "volumes"
        ]
        for place in (job.data.store, job.output.run_dir):
            assert place.startswith(f"{mount['mountPath']}/")


def test_every_mount_has_its_volume(pods):
    for pod in pods.values():
        volumes = {each["name"] for each in pod.get("volumes", ())}
        (container,) = pod["containers"]
        assert {each["name"] for each in container.get("volumeMounts", ())} == volumes


def test_a_worker_takes_the_threads_that_it_asks_for(pods):
    (container,) = pods["worker"]["containers"]
    cpu = container["resources"]["requests"]["cpu"]
    assert f"--resources=threads={cpu}" in container["command"]


def test_secrets_are_named_and_not_written_down(manifests, pods):
    assert "Secret" not in manifests
    for pod in pods.values():
        (container,) = pod["containers"]
        assert "env" not in container
        for source in container.get("envFrom", ()):
            assert set(source) == {"secretRef"}


def test_no_pod_runs_as_root(pods):
    for pod in pods.values():
        assert pod["securityContext"]["runAsNonRoot"]
        assert pod["securityContext"]["runAsUser"] == 1000
        (container,) = pod["containers"]
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
        }
        assert set(container["resources"]) == {"requests", "limits"}
