"""A recorded model in MLflow's registry, and what `mlflow models serve` makes of it."""

import json
import os
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path

import numpy as np
import pytest

from dtopk.job import SolverSection, TrackingSection, train
from dtopk.tracking import MlflowClient
from tests.mlflow_server import find_port, make_server_environment, wait_until_answers


@pytest.fixture
def make_registered(make_job, mlflow_server, no_figures):
    def make_registered(name, **sections):
        tracking = TrackingSection(
            uri=mlflow_server.uri, experiment="serving", register_as=name, alias="champion"
        )
        return make_job(f"{name}-{len(sections)}", tracking=tracking, **sections)

    return make_registered


@pytest.fixture
def serve(mlflow_server, tmp_path):
    """Serve a model of the registry, and give a function that asks for predictions."""
    processes = []

    def serve(model_uri):
        port = find_port()
        command = [
            *(sys.executable, "-m", "mlflow", "models", "serve", "--model-uri", model_uri),
            *("--env-manager", "local", "--host", "127.0.0.1", "--port", str(port)),
        ]
        # It starts a program that is beside Python.
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        environment = make_server_environment() | {
            "MLFLOW_TRACKING_URI": mlflow_server.uri,
            "PATH": path,
        }
        log = tmp_path / "serve.log"
        with log.open("wb") as file:
            process = subprocess.Popen(
                command, stdout=file, stderr=file, cwd=tmp_path, env=environment,
                start_new_session=True,
            )  # fmt: skip
        processes.append(process)
        wait_until_answers(f"http://127.0.0.1:{port}/ping", process, log)

        def ask(body):
            request = urllib.request.Request(
                f"http://127.0.0.1:{port}/invocations",
                json.dumps(body).encode(),
                {"Content-Type": "application/json"},
            )
            with urllib.request.urlopen(request, timeout=60) as answer:
                return json.load(answer)

        return ask

    yield serve
    for process in processes:
        if process.poll() is None:
            os.killpg(process.pid, 9)
        process.wait()


def test_champion_is_served_with_its_best_labels_and_scores(store, make_registered, serve):
    model = train(store, make_registered("served")).model
    ask = serve("models:/served@champion")
    X = np.random.default_rng(0).normal(size=(3, 6)).astype(np.float32)
    answer = ask({"inputs": X.tolist(), "params": {"k": 2}})
    labels, scores = model.predict_topk(X, 2)
    for row, prediction in enumerate(answer["predictions"]):
        assert list(prediction) == ["label_1", "score_1", "label_2", "score_2"]
        assert [prediction["label_1"], prediction["label_2"]] == labels[row].tolist()
        # JSON gives the shortest digits that a float32 is read back from.
        assert np.float32(prediction["score_1"]) == scores[row, 0]
    assert list(ask({"inputs": X.tolist()})["predictions"][0]) == ["label_1", "score_1"]
    with pytest.raises(urllib.error.HTTPError) as refused:
        ask({"inputs": X.tolist(), "params": {"k": 5}})
    with refused.value as response:
        assert response.code == 400
        assert "k must be between 1 and n_classes = 4, got 5." in json.load(response)["message"]


def test_certified_model_becomes_a_version_that_the_alias_points_to(
    store, make_registered, mlflow_server
):
    client = MlflowClient(tracking_uri=mlflow_server.uri)
    first = train(store, make_registered("letters"))
    assert client.get_model_version_by_alias("letters", "champion").version == "1"
    loose = SolverSection(tol=1e-2)
    second = train(store, make_registered("letters", solver=loose))
    champion = client.get_model_version_by_alias("letters", "champion")
    assert champion.version == "2"
    assert champion.run_id == second.mlflow["run_id"] != first.mlflow["run_id"]


def test_model_without_a_certificate_is_not_registered(store, make_registered, mlflow_server):
    result = train(store, make_registered("loose", solver=SolverSection(tol=1e-12, max_epochs=1)))
    assert not result.certificate.certified
    client = MlflowClient(tracking_uri=mlflow_server.uri)
    assert client.search_registered_models("name = 'loose'") == []
