"""`dtopk ui`."""

import os
import socket
from types import SimpleNamespace

import pytest

from dtopk.tracking import MlflowRun


@pytest.fixture(scope="module")
def uri(tmp_path_factory):
    """Make a store with the experiments 'first' and 'second', each with a run."""
    uri = f"sqlite:///{tmp_path_factory.mktemp('tracking') / 'mlflow.db'}"
    for name in ("first", "second"):
        MlflowRun(uri=uri, experiment=name, run_name="a", tags={}).end(status="FINISHED", tags={})
    return uri


@pytest.fixture
def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@pytest.fixture
def served(monkeypatch):
    """Keep what would be started, and do not start it."""
    started = []

    def become(path, command, environment):
        started.append(SimpleNamespace(command=command, env=environment))

    monkeypatch.setattr(os, "execve", become)
    return started


@pytest.mark.parametrize(("options", "number"), [([], 2), (["--experiment", "first"], 1)])
def test_ui_prints_the_page_of_the_experiments_runs(call, served, uri, free_port, options, number):
    result = call("ui", "--uri", uri, "--port", free_port, *options)
    assert result.status == 0
    assert result.out == (
        f"http://127.0.0.1:{free_port}/#/experiments/{number}/runs"
        "?compareRunsMode=CHART&workflowType=machine_learning\n"
    )


def test_ui_serves_on_this_machine_alone(call, served, uri, free_port):
    call("ui", "--uri", uri, "--port", free_port)
    (server,) = served
    options = dict(zip(server.command[4::2], server.command[5::2], strict=True))
    assert options["--backend-store-uri"] == uri
    assert options["--host"] == "127.0.0.1"
    assert options["--port"] == str(free_port)
    assert server.env["MLFLOW_SERVER_ENABLE_JOB_EXECUTION"] == "false"


def test_ui_names_an_unknown_experiment(call, served, uri):
    result = call("ui", "--uri", uri, "--experiment", "other")
    assert result.status == 2
    assert "experiment must be one of 'second', 'first' at" in result.err
    assert not served


def test_ui_makes_no_empty_database(call, served, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = call("ui")
    assert result.status == 2
    assert "does not exist. Name another one with --uri" in result.err
    assert list(tmp_path.iterdir()) == []


def test_ui_refuses_a_port_in_use_before_it_prints_an_address(call, served, uri):
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        result = call("ui", "--uri", uri, "--port", port)
    assert (result.status, result.out) == (2, "")
    assert result.err == (
        f"error: --port must be one that is free, got {port}: Address already in use. "
        "Choose another.\n"
    )
    assert not served


def test_ui_names_a_server_that_is_away_on_one_line(call, served, free_port, monkeypatch):
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    result = call("ui", "--uri", f"http://127.0.0.1:{free_port}")
    assert result.status == 2
    assert result.err == (
        "error: tracking store must be one that MLflow can read, got "
        f"'http://127.0.0.1:{free_port}': Connection refused.\n"
    )
