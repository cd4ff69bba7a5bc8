"""What is recorded with MLflow, and what happens when MLflow fails."""

import json
import logging
import socket

import numpy as np
import pytest

from dtopk.model import Model
from dtopk.tracking import (
    MlflowClient,
    MlflowRun,
    default_tracking_uri,
    list_experiments,
    mlflow,
    save_pyfunc,
)


@pytest.fixture(scope="session")
def uri(tmp_path_factory):
    """Keep one store for the session: its schema takes seconds to create."""
    uri = f"sqlite:///{tmp_path_factory.mktemp('tracking') / 'mlflow.db'}"
    MlflowRun(uri=uri, experiment="dtopk", run_name="0", tags={}).end(status="FINISHED", tags={})
    return uri


@pytest.fixture
def client(uri):
    return MlflowClient(tracking_uri=uri)


@pytest.fixture
def run(uri):
    return MlflowRun(uri=uri, experiment="dtopk", run_name="a", tags={"color": "red"})


@pytest.fixture
def model_path(tmp_path):
    model = Model(
        W=np.eye(3, dtype=np.float32),
        intercept=np.zeros(3, dtype=np.float32),
        classes=np.array(["ant", "bee", "cat"]),
        loss="softmax",
        loss_parameters={"k": 1},
    )
    model.save(tmp_path / "model.npz")
    return tmp_path / "model.npz"


def test_run_ends_with_its_name_status_and_tags(run, client):
    run.end(status="KILLED", tags={"stop_reason": "interrupted"})
    recorded = client.get_run(run.run_id)
    assert recorded.info.run_name == "a"
    assert recorded.info.status == "KILLED"
    assert recorded.data.tags["color"] == "red"
    assert recorded.data.tags["stop_reason"] == "interrupted"


def test_metrics_are_recorded_by_step(run, client):
    for epoch in range(600):
        run.log_metrics({"gap": 1 / (epoch + 1), "primal": epoch}, step=epoch)
    run.end(status="FINISHED", tags={})
    history = client.get_metric_history(run.run_id, "gap")
    assert sorted(metric.step for metric in history) == list(range(600))
    assert client.get_run(run.run_id).data.metrics["primal"] == 599


def test_long_parameters_are_cut_and_kept_whole(run, client, tmp_path):
    run.log_params({"model.C": 0.5, "data.evaluate": "x" * 7000})
    recorded = client.get_run(run.run_id).data.params
    assert recorded["model.C"] == "0.5"
    assert recorded["data.evaluate"] == "x" * 497 + "..."
    path = client.download_artifacts(run.run_id, "params.json", str(tmp_path))
    with open(path) as file:
        assert json.load(file)["data.evaluate"] == "x" * 7000


def test_files_lie_beside_the_database(run, client, uri, tmp_path):
    (tmp_path / "note.txt").write_text("x")
    run.log_files([tmp_path / "note.txt"])
    assert [item.path for item in client.list_artifacts(run.run_id)] == ["note.txt"]
    folder = uri.removeprefix("sqlite:///").removesuffix("mlflow.db")
    assert client.get_run(run.run_id).info.artifact_uri.startswith(f"file://{folder}mlartifacts/")


def test_data_set_is_recorded(run, client):
    run.log_dataset(name="letter.zarr", path="/data/letter.zarr", profile={"n_samples": 3})
    dataset = client.get_run(run.run_id).inputs.dataset_inputs[0].dataset
    assert dataset.name == "letter.zarr"
    assert json.loads(dataset.profile) == {"n_samples": 3}


def test_model_is_recorded_as_an_output_of_the_run(run, client, model_path):
    run.log_model(model_path)
    (output,) = client.get_run(run.run_id).outputs.model_outputs
    logged = client.get_logged_model(output.model_id)
    assert (logged.name, str(logged.status)) == ("model", "READY")
    assert logged.source_run_id == run.run_id
    loaded = mlflow.pyfunc.load_model(logged.artifact_location)
    frame = loaded.predict(np.array([[0, 2, 1]], dtype=np.float32), params={"k": 2})
    assert frame.to_dict("list") == {
        "label_1": ["bee"], "score_1": [2.0], "label_2": ["cat"], "score_2": [1.0],
    }  # fmt: skip


def test_model_is_registered_in_the_store_of_its_run(run, client, model_path):
    """Also where the program has another one by default."""
    run.log_model(model_path, register_as="insects", alias="champion")
    version = client.get_model_version_by_alias("insects", "champion")
    assert version.run_id == run.run_id
    (output,) = client.get_run(run.run_id).outputs.model_outputs
    assert version.source == client.get_logged_model(output.model_id).artifact_location


def test_pyfunc_names_one_class_by_default(tmp_path, model_path):
    save_pyfunc(model_path, tmp_path / "pyfunc")
    frame = mlflow.pyfunc.load_model(str(tmp_path / "pyfunc")).predict(np.eye(3, dtype=np.float32))
    assert list(frame.columns) == ["label_1", "score_1"]
    assert list(frame["label_1"]) == ["ant", "bee", "cat"]


def test_pyfunc_asks_no_index_for_dtopk(tmp_path, model_path):
    """Whatever has the name there would be installed by who loads the model."""
    save_pyfunc(model_path, tmp_path / "pyfunc")
    for path in (tmp_path / "pyfunc").glob("*.*"):
        if path.suffix in (".txt", ".yaml"):
            assert "dtopk==" not in path.read_text()
    assert "numpy==" in (tmp_path / "pyfunc" / "requirements.txt").read_text()


def test_pyfunc_says_how_it_is_asked(tmp_path, model_path):
    save_pyfunc(model_path, tmp_path / "pyfunc")
    model = mlflow.pyfunc.load_model(str(tmp_path / "pyfunc"))
    assert "'k': long (default: 1)" in str(model.metadata.signature)
    example = json.loads((tmp_path / "pyfunc" / "serving_input_example.json").read_text())
    assert example == {"inputs": [[0.0, 0.0, 0.0]], "params": {"k": 1}}
    with pytest.raises(mlflow.exceptions.MlflowException, match="k must be between 1 and n_cla"):
        model.predict(np.eye(3, dtype=np.float32), params={"k": 4})


def test_pyfunc_refuses_another_number_of_features(tmp_path, model_path):
    save_pyfunc(model_path, tmp_path / "pyfunc")
    model = mlflow.pyfunc.load_model(str(tmp_path / "pyfunc"))
    with pytest.raises(mlflow.exceptions.MlflowException, match="Shape of input"):
        model.predict(np.ones((2, 4), dtype=np.float32))


def test_global_tracking_uri_stays(run):
    before = mlflow.get_tracking_uri()
    run.log_metrics({"gap": 1.0}, step=0)
    run.end(status="FINISHED", tags={})
    assert mlflow.get_tracking_uri() == before
    assert mlflow.active_run() is None


def test_unreachable_server_is_a_warning(monkeypatch, caplog, model_path):
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        uri = f"http://127.0.0.1:{unused.getsockname()[1]}"
        with caplog.at_level(logging.WARNING, logger="dtopk.tracking"):
            run = MlflowRun(uri=uri, experiment="dtopk", run_name="a", tags={})
            run.log_params({"C": 1})
            run.log_metrics({"gap": 1.0}, step=0)
            run.log_model(model_path)
            run.end(status="FINISHED", tags={})
    assert not run.is_recording
    (record,) = caplog.records
    assert record.getMessage() == (
        f"MLflow at {uri!r} could not start a run: Connection refused. "
        "The run folder gets everything all the same."
    )


def test_metrics_wait_until_they_can_be_sent(run, client, monkeypatch, caplog):
    with monkeypatch.context() as broken:

        def fail(*args, **kwargs):
            raise OSError("the server is gone")

        broken.setattr(run._client, "log_batch", fail)
        broken.setattr(run, "_next_flush_s", 0.0)
        run.log_metrics({"gap": 0.5}, step=3)
    assert "could not log metrics: the server is gone" in caplog.text
    run.end(status="FINISHED", tags={})
    assert client.get_run(run.run_id).data.metrics == {"gap": 0.5}


def test_experiments_with_runs_are_listed_the_newest_first(run, uri, client):
    """One without runs, as MLflow's own 'Default', is left out."""
    other = MlflowRun(uri=uri, experiment="other", run_name="b", tags={})
    assert list(list_experiments(uri).items()) == [
        ("other", other.experiment_id), ("dtopk", run.experiment_id),
    ]  # fmt: skip
    client.delete_run(other.run_id)
    assert list(list_experiments(uri)) == ["dtopk"]


def test_experiments_of_no_store_are_refused(tmp_path):
    (tmp_path / "mlflow.db").write_text("no database")
    with pytest.raises(ValueError, match="tracking store must be one that MLflow can read, got"):
        list_experiments(f"sqlite:///{tmp_path / 'mlflow.db'}")


def test_default_uri_is_sqlite_beside_the_runs(tmp_path, monkeypatch):
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    assert default_tracking_uri(tmp_path) == f"sqlite:///{tmp_path}/mlflow.db"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://mlflow:5000")
    assert default_tracking_uri(tmp_path) == "http://mlflow:5000"
