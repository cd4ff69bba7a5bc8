"""Runs whose store, folder, state and model are in an object store."""

import csv
import dataclasses
import io
import json
import logging
import os
import signal
import subprocess
import sys
import uuid

import numpy as np
import pytest

import dtopk
from dtopk.engine import Callback, FitOptions, StoreRows
from dtopk.engine.plan import choose_process_plan
from dtopk.engine.sizes import Sizes
from dtopk.job import SolverSection, TrackingSection, load_job, train
from dtopk.job.files import job_to_toml
from dtopk.job.resumption import check_resumable
from dtopk.job.run_folder import RunFolder
from dtopk.job.verification import verify_run
from dtopk.losses import make_loss
from dtopk.model import load_model
from dtopk_storage import DatasetError, RunLock, open_dual, open_store
from dtopk_storage.objects import ObjectPath
from tests.s3_server import FailingProxy, forget_clients, make_environment, use_server
from tests.small_stores import make_store

pytestmark = pytest.mark.usefixtures("no_figures")


@pytest.fixture(params=["memory", "s3"])
def far(request, monkeypatch):
    """Give an address in an object store where nothing is."""
    monkeypatch.setattr("dtopk_storage.run_lock._SETTLE_S", 0)
    if request.param == "s3":
        return request.getfixturevalue("s3")
    return f"memory://{uuid.uuid4().hex}"


@pytest.fixture
def make_far_job(make_job):
    """Make a job whose run folder is at an address, and which commits after every epoch."""

    def make_far_job(url, **sections):
        job = make_job(**sections)
        cluster = dataclasses.replace(job.cluster, checkpoint_s=0.0)
        output = dataclasses.replace(job.output, run_dir=url)
        return dataclasses.replace(job, cluster=cluster, output=output)

    return make_far_job


def assert_same_end(one, two):
    """Compare the weights and duals that two runs have left, bit by bit."""
    models = [load_model(ObjectPath(r) if isinstance(r, str) else r) for r in (one, two)]
    assert models[0].W.tobytes() == models[1].W.tobytes()
    duals = [open_dual((ObjectPath(r) if isinstance(r, str) else r) / "dual") for r in (one, two)]
    assert duals[0].read(0, 170).tobytes() == duals[1].read(0, 170).tobytes()


def test_a_run_in_an_object_store_leaves_what_one_on_disk_does(far, store, make_job, make_far_job):
    near = train(store, make_job())
    make_store(f"{far}/small.zarr")
    result = train(f"{far}/small.zarr", make_far_job(f"{far}/runs/one"))
    run = result.run_dir
    assert str(run) == f"{far}/runs/one"
    assert [path.name for path in result.written] == [path.name for path in near.written]
    assert result.certificate.certified
    assert_same_end(run, near.run_dir)
    assert json.loads((run / "result.json").read_text())["model"] == f"{far}/runs/one/model.npz"
    history = list(csv.DictReader(io.StringIO((run / "history.csv").read_text())))
    assert len(history) == result.epochs
    # Neither the state, nor the lock, nor duals on their way.
    assert not [name for name in run.find() if name.startswith(("state", "lock", "dual.partial"))]
    assert load_job(run / "job.toml").output.run_dir == str(run)
    assert verify_run(str(run)).certified
    with pytest.raises(ValueError, match=r"must be new or empty, got '.*runs/one', which holds a"):
        train(f"{far}/small.zarr", make_far_job(f"{far}/runs/one"))


def test_the_time_has_its_place_in_an_address(store, make_far_job):
    url = f"memory://{uuid.uuid4().hex}/runs/{{time}}"
    result = train(store, make_far_job(url))
    assert result.run_dir.name.startswith("20")


class Break(Callback):
    """End the run by an error after some epochs."""

    def __init__(self, epoch):
        self._epoch = epoch

    def on_epoch(self, record, W):
        if record.epoch == self._epoch:
            raise RuntimeError("broken")


def test_a_broken_run_goes_on_to_the_same_bits(far, store, make_job, make_far_job):
    solver = SolverSection(tol=1e-9, max_epochs=9, dtype="float64")
    near = train(store, make_job(solver=solver))
    job = make_far_job(f"{far}/run", solver=solver)
    with pytest.raises(RuntimeError, match="broken") as caught:
        train(store, job, callbacks=[Break(3)])
    assert f"dtopk train --resume {far}/run" in caught.value.__notes__[0]
    assert check_resumable(f"{far}/run").epochs == 2
    result = train(store, job)
    assert result.resumed_at == (2,)
    assert_same_end(result.run_dir, near.run_dir)
    # It has not reached its tolerance, and goes on once more, with other duals at the end.
    longer = dataclasses.replace(job, solver=dataclasses.replace(solver, max_epochs=12))
    again = train(store, longer)
    assert again.epochs == 12
    assert verify_run(str(again.run_dir)).relative_gap == again.certificate.relative_gap


def test_a_run_that_comes_to_nothing_leaves_nothing(far, store, make_far_job):
    with pytest.raises(RuntimeError, match="broken"):
        train(store, make_far_job(f"{far}/run"), callbacks=[Break(1)])
    assert not ObjectPath(f"{far}/run").find()


def test_two_runs_do_not_share_a_folder(far, store, make_far_job):
    with (
        RunLock(f"{far}/run"),
        pytest.raises(ValueError, match=r"one run at a time, got '.*/run', which is in use by pro"),
    ):
        train(store, make_far_job(f"{far}/run"))
    assert train(store, make_far_job(f"{far}/run")).certificate.certified


def test_a_foreign_folder_is_refused(far, store, make_far_job):
    ObjectPath(f"{far}/run/notes.txt").write_bytes(b"x")
    with pytest.raises(ValueError, match=r"must be new or empty, got '.*/run', which is in use"):
        train(store, make_far_job(f"{far}/run"))
    assert list(ObjectPath(f"{far}/run").find()) == ["notes.txt"]


def test_a_run_starts_from_the_duals_of_another(far, store, make_far_job):
    first = train(store, make_far_job(f"{far}/one"))
    for start in (f"{far}/one", f"{far}/one/model.npz"):
        solver = SolverSection(tol=1e-3, warm_start=start)
        second = train(store, make_far_job(f"{far}/{uuid.uuid4().hex}", solver=solver))
        assert second.epochs <= first.epochs


def test_models_are_read_from_an_object_store(far, store, make_far_job):
    result = train(store, make_far_job(f"{far}/run"))
    for path in (f"{far}/run", f"{far}/run/model.npz", result.run_dir):
        np.testing.assert_array_equal(dtopk.load_model(path).W, result.model.W)
    result.model.save(ObjectPath(f"{far}/other.npz"))
    assert load_model(f"{far}/other.npz").certificate == result.model.certificate
    with pytest.raises(ValueError, match=r"model '.*/none/model\.npz' does not exist"):
        load_model(f"{far}/none")
    ObjectPath(f"{far}/bad.npz").write_bytes(b"bad")
    with pytest.raises(ValueError, match=r"'.*/bad\.npz' must be a dtopk model"):
        load_model(f"{far}/bad.npz")


def test_estimators_take_a_store_of_an_object_store(far, store):
    make_store(f"{far}/small.zarr")
    near = dtopk.TopKClassifier("softmax", C=0.1, random_state=0).fit(store)
    far_store = open_store(f"{far}/small.zarr")
    classifier = dtopk.TopKClassifier("softmax", C=0.1, random_state=0).fit(far_store)
    np.testing.assert_array_equal(classifier.coef_, near.coef_)
    assert len(classifier.predict(far_store)) == 170


def test_mlflow_gets_copies_of_what_is_far(tmp_path, monkeypatch, store, make_far_job):
    """Without a tracking URI the records go to the working directory."""
    from mlflow.tracking import MlflowClient

    monkeypatch.chdir(tmp_path)
    url = f"memory://{uuid.uuid4().hex}/run"
    result = train(store, make_far_job(url, tracking=TrackingSection(mlflow=True)))
    assert result.mlflow["uri"] == f"sqlite:///{tmp_path}/mlflow.db"
    client = MlflowClient(tracking_uri=result.mlflow["uri"])
    names = {each.path for each in client.list_artifacts(result.mlflow["run_id"])}
    assert {"job.toml", "result.json", "history.csv"} <= names
    run = client.get_run(result.mlflow["run_id"])
    assert run.data.tags["dtopk.run_dir"] == url
    assert run.info.run_name == "run"


def test_workers_read_and_write_in_an_object_store(client, s3, store, make_job, make_far_job):
    """Each worker reads rows and state, and writes its duals, by itself."""
    make_store(f"{s3}/small.zarr")
    near = train(store, make_job(), client=client)
    # The workers have been started with another environment.
    variables = make_environment(os.environ["AWS_ENDPOINT_URL"])
    client.run(lambda: __import__("os").environ.update(variables))
    result = train(f"{s3}/small.zarr", make_far_job(f"{s3}/run"), client=client)
    assert_same_end(result.run_dir, near.run_dir)
    assert verify_run(str(result.run_dir)).certified


def test_chunks_under_way_are_planned_for(store):
    far = make_store(f"memory://{uuid.uuid4().hex}/s")
    chunk_bytes = far.arrays["features"].chunk_bytes
    options = FitOptions(C=1.0)
    loss = make_loss("softmax")
    plans = [
        choose_process_plan(
            Sizes.of_rows(StoreRows(each, "train"), options, loss), limit_bytes=10**8
        )
        for each in (store, far)
    ]
    # Six chunks are fewer than the eight that may be under way.
    assert far.ahead_bytes == 6 * chunk_bytes
    assert plans[1].round_bytes - plans[0].round_bytes == far.ahead_bytes


# Jobs and credentials.


JOB = "version = 1\n[data]\nstore = '{store}'\n[output]\nrun_dir = '{run}'\n"


def test_jobs_name_addresses(tmp_path):
    path = tmp_path / "job.toml"
    path.write_text(JOB.format(store="s3://bucket/x.zarr", run="s3://bucket/runs/{time}"))
    job = load_job(path)
    assert job.data.store == "s3://bucket/x.zarr"
    assert job.output.run_dir == "s3://bucket/runs/{time}"
    job = load_job(path, ["data.store=memory://y"], run_dir="memory://z")
    assert (job.data.store, job.output.run_dir) == ("memory://y", "memory://z")


def test_jobs_may_be_in_an_object_store_themselves():
    base = f"memory://{uuid.uuid4().hex}/jobs"
    ObjectPath(f"{base}/a.toml").write_bytes(JOB.format(store="../x.zarr", run="/runs/a").encode())
    job = load_job(f"{base}/a.toml")
    assert job.data.store == base.replace("/jobs", "/x.zarr")
    assert job.output.run_dir == "/runs/a"
    with pytest.raises(ValueError, match=r"job file '.*/b\.toml' does not exist"):
        load_job(f"{base}/b.toml")


SECRET = "topsecret/99"
WITH_SECRET = f"s3://AKIAKEY:{SECRET}@bucket/x"


@pytest.mark.parametrize(
    ("overrides", "run_dir"),
    [
        ([f"data.store={WITH_SECRET}"], ""),
        ([f"output.run_dir={WITH_SECRET}"], ""),
        ([f"output.state_url={WITH_SECRET}"], ""),
        ([f"solver.warm_start={WITH_SECRET}"], ""),
        ([f"tracking.uri=postgresql://AKIAKEY:{SECRET}@host/db"], ""),
        ([f"data.aws_secret_access_key={SECRET}"], ""),
        ([f"output.token={SECRET}"], ""),
        ([f"data.storeé{WITH_SECRET}"], ""),
        ([], WITH_SECRET),
    ],
)
def test_credentials_in_a_job_are_refused_and_not_repeated(tmp_path, overrides, run_dir):
    (tmp_path / "job.toml").write_text(JOB.format(store="x.zarr", run="runs"))
    with pytest.raises(ValueError, match=r"credentials|section\.key=value") as caught:
        load_job(tmp_path / "job.toml", overrides, run_dir=run_dir)
    told = " ".join(str(error) for error in (caught.value, caught.value.__cause__))
    assert "secret/" not in told
    assert "AKIAKEY" not in told


def test_credentials_in_a_job_file_are_refused_and_not_repeated(tmp_path):
    (tmp_path / "job.toml").write_text(JOB.format(store=WITH_SECRET, run="runs"))
    with pytest.raises(ValueError, match=r"data\.store must be an address without cred") as caught:
        load_job(tmp_path / "job.toml")
    assert "secret" not in str(caught.value)


def test_credentials_of_the_environment_are_written_nowhere(
    s3, s3_server, tmp_path, monkeypatch, caplog, make_far_job
):
    monkeypatch.chdir(tmp_path)
    make_store(f"{s3}/small.zarr")
    with caplog.at_level(logging.DEBUG, "dtopk"), caplog.at_level(logging.DEBUG, "dtopk_storage"):
        job = make_far_job(f"{s3}/run", tracking=TrackingSection(mlflow=True))
        result = train(f"{s3}/small.zarr", job)
    secret = make_environment(s3_server)["AWS_SECRET_ACCESS_KEY"]
    for name in result.run_dir.find():
        assert secret.encode() not in (result.run_dir / name).read_bytes()
    for path in (path for path in tmp_path.rglob("*") if path.is_file()):
        assert secret.encode() not in path.read_bytes()
    assert secret not in caplog.text


# Faults.


TRAIN = """
import os, signal, sys
import dtopk.job.training as training
from dtopk.engine import Callback
from dtopk.job import load_job, train

class Die(Callback):
    def on_epoch(self, record, W):
        if record.epoch == int(sys.argv[2]):
            os.kill(os.getpid(), signal.SIGKILL)

training.save_png = lambda figure, path: None
job = load_job(sys.argv[1])
train(job.data.store, job, callbacks=[Die()])
"""


@pytest.mark.slow
def test_a_killed_run_goes_on_at_once_to_the_same_bits(
    s3, s3_server, store, tmp_path, make_job, make_far_job
):
    solver = SolverSection(tol=1e-9, max_epochs=8, dtype="float64")
    near = train(store, make_job(solver=solver))
    make_store(f"{s3}/small.zarr")
    job = make_far_job(f"{s3}/run", solver=solver)
    job = dataclasses.replace(job, data=dataclasses.replace(job.data, store=f"{s3}/small.zarr"))
    (tmp_path / "job.toml").write_text(job_to_toml(job))
    for epoch in (1, 4, 6):
        killed = subprocess.run(
            [sys.executable, "-c", TRAIN, str(tmp_path / "job.toml"), str(epoch)],
            env={
                **os.environ, **make_environment(s3_server),
                "PYTHONPATH": os.pathsep.join([os.getcwd(), *sys.path]),
            },
            timeout=300,
        )  # fmt: skip
        assert killed.returncode == -signal.SIGKILL
    assert RunFolder(path=ObjectPath(f"{s3}/run")).find_checkpoint().epochs == 5
    result = train(f"{s3}/small.zarr", job)
    assert_same_end(result.run_dir, near.run_dir)
    assert result.resumed_at == (3, 5)


@pytest.mark.slow
def test_a_run_with_faults_ends_with_the_same_bits(
    s3, s3_server, store, monkeypatch, make_job, make_far_job
):
    """A twentieth of the requests of a streamed run fail: 503, 500, or a connection that breaks."""
    solver = SolverSection(tol=1e-9, max_epochs=8, dtype="float64")
    near = train(store, make_job(solver=solver))
    make_store(f"{s3}/small.zarr")
    with FailingProxy(s3_server, share=0.05, seed=5) as proxy:
        use_server(monkeypatch, proxy.endpoint)
        result = train(f"{s3}/small.zarr", make_far_job(f"{s3}/run", solver=solver))
        forget_clients()
    use_server(monkeypatch, s3_server)
    assert_same_end(result.run_dir, near.run_dir)
    assert proxy.n_failed > 10


def test_a_damaged_chunk_ends_a_run(s3, make_far_job):
    store = make_store(f"{s3}/small.zarr")
    store.arrays["features"].chunk_path(1).write_bytes(b"short")
    with pytest.raises(DatasetError, match=r"chunk 1 .* of 's3://.*/features' must be"):
        train(store, make_far_job(f"{s3}/run"))


def test_artifacts_of_mlflow_go_to_s3_by_its_own_support(
    s3, s3_server, store, tmp_path, monkeypatch, make_far_job
):
    pytest.importorskip("boto3", reason="boto3 is not installed: pip install 'dtopk[mlflow-s3]'")
    from mlflow.tracking import MlflowClient

    monkeypatch.setenv("MLFLOW_S3_ENDPOINT_URL", s3_server)
    uri = f"sqlite:///{tmp_path}/mlflow.db"
    MlflowClient(tracking_uri=uri).create_experiment("far", artifact_location=f"{s3}/artifacts")
    tracking = TrackingSection(mlflow=True, uri=uri, experiment="far")
    result = train(store, make_far_job(f"{s3}/run", tracking=tracking))
    names = ObjectPath(f"{s3}/artifacts").find()
    assert f"{result.mlflow['run_id']}/artifacts/result.json" in names
    assert [name for name in names if name.endswith("model.npz")]


def test_a_password_of_the_tracking_store_is_written_nowhere(store, monkeypatch, make_far_job):
    url = f"memory://{uuid.uuid4().hex}/run"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"http://AKIAKEY:{SECRET}@127.0.0.1:9")
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    train(store, make_far_job(url, tracking=TrackingSection(mlflow=True)))
    for name in ObjectPath(url).find():
        assert b"secret/99" not in (ObjectPath(url) / name).read_bytes()
