"""`dtopk ui`."""

import os
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
def served(monkeypatch):
    """Keep what would be started, and do not start it."""
    started = []

    def become(path, command, environment):
        started.append(SimpleNamespace(command=command, env=environment))

    monkeypatch.setattr(os, "execve", become)
    return started


@pytest.mark.parametrize(("options", "number"), [([], 2), (["--experiment", "first"], 1)])
def test_ui_prints_the_page_of_the_experiments_runs(call, served, uri, options, number):
    result = call("ui", "--uri", uri, "--port", 5432, *options)
    assert result.status == 0
    assert result.out == (
        f"http://127.0.0.1:5432/#/experiments/{number}/runs"
        "?compareRunsMode=CHART&workflowType=machine_learning\n"
    )


def test_ui_serves_on_this_machine_alone(call, served, uri):
    call("ui", "--uri", uri, "--port", 5432)
    (server,) = served
    options = dict(zip(server.command[4::2], server.command[5::2], strict=True))
    assert options["--backend-store-uri"] == uri
    assert options["--host"] == "127.0.0.1"
    assert options["--port"] == "5432"
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
