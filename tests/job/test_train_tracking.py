"""What a job records with MLflow."""

import dataclasses
import logging
import shutil
import signal
import socket
from pathlib import Path

import numpy as np
import pytest

from dtopk.engine import Callback
from dtopk.job import (
    ClusterSection,
    DataSection,
    EarlyStoppingSection,
    ModelSection,
    ResourcesSection,
    SolverSection,
    TrackingSection,
    train,
)
from dtopk.job.run_folder import RunFolder
from dtopk.tracking import MlflowClient, MlflowRun, list_experiments, mlflow
from dtopk.tracking.requests import RunRequests


@pytest.fixture(scope="session")
def uri(tmp_path_factory):
    """Keep one store for the session: its schema takes seconds to create."""
    uri = f"sqlite:///{tmp_path_factory.mktemp('tracking') / 'mlflow.db'}"
    MlflowRun(uri=uri, experiment="jobs", run_name="first", tags={}).end(status="FINISHED", tags={})
    return uri


@pytest.fixture
def client(uri):
    return MlflowClient(tracking_uri=uri)


@pytest.fixture
def make_tracked(make_job, uri):
    def make_tracked(run_dir="run", **sections):
        tracking = TrackingSection(uri=uri, experiment="jobs")
        return make_job(run_dir, tracking=tracking, **sections)

    return make_tracked


@pytest.fixture
def find_run(client, uri):
    """Find the newest run of the experiment."""

    def find_run():
        return client.search_runs([list_experiments(uri)["jobs"]], max_results=1)[0]

    return find_run


def test_run_has_parameters_metrics_tags_and_files(store, make_tracked, client):
    result = train(store, make_tracked("named", data=DataSection(validation="test")))
    run = client.get_run(result.mlflow["run_id"])
    assert run.info.run_name == "named"
    assert run.info.status == "FINISHED"
    assert run.data.params["model.C"] == "0.1"
    assert run.data.params["data.evaluate"] == '["test"]'
    assert run.data.metrics["gap/relative_gap"] == result.certificate.relative_gap
    assert run.data.metrics["test/top_1_accuracy"] == result.topk_accuracy["test"][1]
    assert run.data.tags["dtopk.certified"] == "true"
    assert "certified" in run.data.tags["mlflow.note.content"]
    files = [item.path for item in client.list_artifacts(run.info.run_id)]
    assert files == [
        "convergence.png", "history.csv", "job.toml", "result.json", "topk_accuracy.png",
    ]  # fmt: skip


def test_early_stop_is_recorded(store, make_tracked, client):
    result = train(
        store,
        make_tracked(
            data=DataSection(validation="test"),
            solver=SolverSection(tol=1e-12),
            early_stopping=EarlyStoppingSection(metric="top_1_accuracy", patience=2),
        ),
    )
    run = client.get_run(result.mlflow["run_id"])
    assert run.data.tags["dtopk.stop_reason"] == "early_stopping"
    assert run.data.params["early_stopping.metric"] == "top_1_accuracy"
    assert run.data.metrics["early_stopping/best_epoch"] == result.epochs - 2
    assert run.data.metrics["early_stopping/best_value"] == result.early_stopping["best_value"]


def test_run_has_a_step_an_epoch(store, make_tracked, client):
    result = train(store, make_tracked())
    history = client.get_metric_history(result.mlflow["run_id"], "objective/dual_value")
    assert [metric.step for metric in history] == list(range(1, result.epochs + 1))
    assert [metric.value for metric in history] == [row.dual_value for row in result.history]


def test_recorded_model_predicts_as_the_saved_one(store, make_tracked, client):
    result = train(store, make_tracked())
    (output,) = client.get_run(result.mlflow["run_id"]).outputs.model_outputs
    loaded = mlflow.pyfunc.load_model(client.get_logged_model(output.model_id).artifact_location)
    X = np.random.default_rng(0).normal(size=(20, 6)).astype(np.float32)
    assert list(loaded.predict(X)["label_1"]) == result.model.predict(X).tolist()


def test_untracked_job_records_nothing(store, make_job, tmp_path):
    assert train(store, make_job()).mlflow == {}
    assert not (tmp_path / "runs" / "mlflow.db").exists()


def test_interrupted_run_is_marked(store, make_tracked, find_run):
    class Interrupt(Callback):
        def on_epoch(self, record, W):
            if record.epoch == 1:
                signal.raise_signal(signal.SIGINT)

    train(store, make_tracked(solver=SolverSection(tol=1e-12)), callbacks=[Interrupt()])
    assert find_run().info.status == "KILLED"
    assert find_run().data.tags["dtopk.stop_reason"] == "interrupted"


def test_memory_that_does_not_suffice_records_no_run(store, make_tracked, client, uri):
    def count():
        return len(client.search_runs([list_experiments(uri)["jobs"]]))

    before = count()
    with pytest.raises(ValueError, match="memory_limit must be at least"):
        train(store, make_tracked(resources=ResourcesSection(memory_limit="1KB")))
    assert count() == before


def test_failed_run_is_marked(store, make_tracked, find_run):
    class Fail(Callback):
        def on_epoch(self, record, W):
            raise ValueError("the callback broke")

    with pytest.raises(ValueError, match="the callback broke"):
        train(store, make_tracked(), callbacks=[Fail()])
    assert find_run().info.status == "FAILED"
    assert find_run().data.tags["dtopk.error"] == "the callback broke"


class FailAfter(Callback):
    def __init__(self, epoch):
        self._epoch = epoch

    def on_epoch(self, record, W):
        if record.epoch == self._epoch:
            raise ValueError("the callback broke")


@pytest.fixture
def make_long(make_tracked):
    """Make a job of more than ten epochs that commits after each of them."""

    def make_long(run_dir, **sections):
        defaults = {
            "solver": SolverSection(tol=1e-6, dtype="float64"),
            "cluster": ClusterSection(checkpoint_s=0.0),
        }
        return make_tracked(run_dir, **(defaults | sections))

    return make_long


def test_resumed_run_goes_on_in_the_tracker(store, make_long, client, find_run):
    """Epochs that are done once more have one value each."""
    job = make_long("resumed")
    with pytest.raises(ValueError, match="the callback broke"):
        train(store, job, callbacks=[FailAfter(4)])
    folder = RunFolder(path=Path(job.output.run_dir))
    run_id = folder.read_record().mlflow["run_id"]
    assert find_run().info.run_id == run_id
    result = train(store, job)
    assert result.mlflow["run_id"] == run_id
    run = client.get_run(run_id)
    assert run.info.status == "FINISHED"
    assert run.data.tags["dtopk.resumed_at"] == "3"
    history = client.get_metric_history(run_id, "objective/primal")
    assert [metric.step for metric in history] == list(range(1, result.epochs + 1))


def test_run_that_is_gone_from_the_tracker_is_started_anew(store, make_long, client, caplog):
    job = make_long("gone")
    with pytest.raises(ValueError, match="the callback broke"):
        train(store, job, callbacks=[FailAfter(4)])
    folder = RunFolder(path=Path(job.output.run_dir))
    record = folder.read_record()
    folder.write_record(
        dataclasses.replace(record, mlflow=record.mlflow | {"run_id": "0123456789abcdef" * 2})
    )
    result = train(store, job)
    assert "could not go on with run 0123456789abcdef" in caplog.text
    assert client.get_run(result.mlflow["run_id"]).data.params["model.C"] == "0.1"
    assert folder.read_record().mlflow["run_id"] == result.mlflow["run_id"]


def test_run_goes_on_in_the_tracker_after_a_part_for_which_it_was_away(
    store, make_long, monkeypatch
):
    def fail(*arguments):
        raise ConnectionError("nobody there")

    job = make_long("away")
    with pytest.raises(ValueError, match="the callback broke"):
        train(store, job, callbacks=[FailAfter(3)])
    folder = RunFolder(path=Path(job.output.run_dir))
    run_id = folder.read_record().mlflow["run_id"]
    with monkeypatch.context() as away:
        away.setattr(RunRequests, "go_on", fail)
        away.setattr(RunRequests, "find", fail)
        with pytest.raises(ValueError, match="the callback broke"):
            train(store, job, callbacks=[FailAfter(6)])
    assert train(store, job).mlflow["run_id"] == run_id


def test_run_that_began_without_the_tracker_is_recorded_where_it_goes_on(store, make_long):
    job = make_long("untracked")
    untracked = dataclasses.replace(job, tracking=TrackingSection(mlflow=False))
    with pytest.raises(ValueError, match="the callback broke"):
        train(store, untracked, callbacks=[FailAfter(3)])
    result = train(store, job)
    assert result.mlflow["uri"] == job.tracking.uri
    assert result.resumed_at == (2,)


def test_run_in_partitions_records_how_they_went_together(store, make_long, client):
    cluster = ClusterSection(partitions=2)
    result = train(store, make_long("parts", cluster=cluster))
    metrics = client.get_run(result.mlflow["run_id"]).data.metrics
    last = result.history[-1]
    assert {name: value for name, value in metrics.items() if name.startswith("cluster/")} == {
        "cluster/theta": last.theta,
        "cluster/sigma": last.sigma,
        "cluster/correlation": last.correlation,
        "cluster/bytes_moved": last.bytes_moved,
        "cluster/slowest_seconds": last.slowest_seconds,
        "cluster/median_seconds": last.median_seconds,
    }


def test_run_in_one_part_records_no_partitions(store, make_tracked, client):
    result = train(store, make_tracked("whole"))
    metrics = client.get_run(result.mlflow["run_id"]).data.metrics
    assert not [name for name in metrics if name.startswith("cluster/")]


def test_unreachable_server_costs_no_run(store, make_job, monkeypatch, caplog):
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        uri = f"http://127.0.0.1:{unused.getsockname()[1]}"
        with caplog.at_level(logging.WARNING, logger="dtopk.tracking"):
            result = train(store, make_job(tracking=TrackingSection(uri=uri)))
    assert result.certificate.certified
    assert result.mlflow == {}
    assert (result.run_dir / "result.json").exists()
    assert "could not start a run" in caplog.text


def test_database_in_a_folder_that_is_not_there_is_refused(store, make_job, tmp_path):
    uri = f"sqlite:///{tmp_path / 'nope' / 'x.db'}"
    job = make_job(tracking=TrackingSection(uri=uri))
    with pytest.raises(ValueError, match=r"in a folder that exists, .* Set by tracking\.uri of"):
        train(store, job)
    assert not (tmp_path / "nope").exists()
    assert not (tmp_path / "runs").exists()


def test_another_job_in_the_folder_of_one_killed_early_has_a_run_of_its_own(
    store, make_job, uri, client
):
    """A run without a commit leaves its record where it is killed, and its folder is used again."""
    first = make_job("early", tracking=TrackingSection(uri=uri, experiment="jobs"))

    class LeaveRecord(Callback):
        def on_epoch(self, record, W):
            shutil.copytree(first.output.run_dir, f"{first.output.run_dir}.copy")
            raise ValueError("the callback broke")

    with pytest.raises(ValueError, match="the callback broke"):
        train(store, first, callbacks=[LeaveRecord()])
    Path(f"{first.output.run_dir}.copy").rename(first.output.run_dir)
    (Path(first.output.run_dir) / "lock").unlink(missing_ok=True)
    before = RunFolder(path=Path(first.output.run_dir)).read_record()
    second = dataclasses.replace(first, model=ModelSection(loss="softmax", C=0.2))
    result = train(store, second)
    assert RunFolder(path=result.run_dir).read_record().id == before.id
    assert client.get_run(result.mlflow["run_id"]).data.params["model.C"] == "0.2"
