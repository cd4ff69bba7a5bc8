"""What becomes of a run, and of its records, while MLflow is slow, away or killed."""

import logging
import threading
import time
from pathlib import Path

import pytest

from dtopk.cli import dtopk
from dtopk.cli.output import run_and_report
from dtopk.engine import Callback
from dtopk.job import ClusterSection, SolverSection, TrackingSection, train
from dtopk.job.run_folder import RunFolder
from dtopk.tracking import MlflowClient, background
from dtopk.tracking.outbox import read_kept
from dtopk.tracking.requests import RunRequests
from tests.mlflow_server import find_port


@pytest.fixture(autouse=True)
def _short_pauses(monkeypatch):
    monkeypatch.setattr(background, "_SEND_INTERVAL_S", 0.1)
    monkeypatch.setattr(background, "_RETRY_INTERVAL_S", 0.3)
    monkeypatch.setattr(background, "_KEEP_AFTER_S", 0.3)
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")


@pytest.fixture
def uri(mlflow_server):
    return mlflow_server.uri


@pytest.fixture
def make_long(make_job, no_figures):
    """Make a job of more than ten epochs that commits after each of them."""

    def make_long(run_dir, uri, **tracking):
        return make_job(
            run_dir,
            solver=SolverSection(tol=1e-6, dtype="float64"),
            cluster=ClusterSection(checkpoint_s=0.0),
            tracking=TrackingSection(uri=uri, experiment="outages", **tracking),
        )

    return make_long


class At(Callback):
    """Do something after an epoch of a number."""

    def __init__(self, **deeds):
        self._deeds = {int(name.removeprefix("epoch_")): deed for name, deed in deeds.items()}

    def on_epoch(self, record, W):
        if record.epoch in self._deeds:
            self._deeds[record.epoch]()


def wait_for(condition):
    end = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end, "it never came"
        time.sleep(0.02)


def fail():
    raise ValueError("the callback broke")


def steps_of(client, run_id):
    return [metric.step for metric in client.get_metric_history(run_id, "objective/primal")]


def warnings_of(caplog):
    return [
        record.getMessage()
        for record in caplog.records
        if record.name.startswith("dtopk.tracking") and record.levelno >= logging.WARNING
    ]


def test_server_that_is_killed_for_a_while_loses_no_metric(store, make_long, mlflow_server, caplog):
    job = make_long("killed", mlflow_server.uri)
    unsent = RunFolder(path=Path(job.output.run_dir)).unsent
    client = MlflowClient(tracking_uri=mlflow_server.uri)

    def is_recorded():
        found = client.get_experiment_by_name("outages")
        runs = client.search_runs([found.experiment_id]) if found else []
        return any("objective/primal" in run.data.metrics for run in runs)

    def kill():
        wait_for(is_recorded)
        mlflow_server.kill()

    at = At(
        epoch_3=kill,
        epoch_6=lambda: wait_for(unsent.is_file),
        epoch_8=mlflow_server.start,
    )
    try:
        result = train(store, job, callbacks=[at])
    finally:
        mlflow_server.start()
    assert result.epochs > 8
    run = client.get_run(result.mlflow["run_id"])
    assert run.info.status == "FINISHED"
    assert steps_of(client, run.info.run_id) == list(range(1, result.epochs + 1))
    assert run.data.metrics["test/top_1_accuracy"] == result.topk_accuracy["test"][1]
    assert not unsent.exists()
    (warning,) = warnings_of(caplog)
    assert "Training goes on; what it has not taken is kept in the run folder" in warning


def test_server_that_never_answers_makes_no_epoch_wait(
    store, make_long, silent_server, monkeypatch
):
    """The first request still waits for its answer when training has done all of its epochs."""
    threads = []
    find = RunRequests.find

    def note_thread(*arguments):
        threads.append(threading.current_thread())
        return find(*arguments)

    class Look(Callback):
        is_waiting = False

        def on_epoch(self, record, W):
            assert silent_server.asked.wait(60)

        def on_end(self, result):
            self.is_waiting = len(threads) == 1 and threads[0].is_alive()

    monkeypatch.setattr(RunRequests, "find", note_thread)
    look = Look()
    result = train(store, make_long("silent", silent_server.uri, wait_s=0.5), callbacks=[look])
    assert result.certificate.certified
    assert look.is_waiting
    assert threads[0] is not threading.main_thread()
    assert result.mlflow == {}


def test_what_a_server_has_not_taken_is_kept_and_can_be_sent(
    store, make_long, silent_server, mlflow_server, caplog, capsys
):
    job = make_long("kept", silent_server.uri, wait_s=0.1)
    result = train(store, job)
    folder = RunFolder(path=result.run_dir)
    (warning,) = warnings_of(caplog)
    assert warning == (
        f"MLflow at {silent_server.uri!r} has not taken all of the run, for which its end "
        f"waits 0.1 s at most; the rest is kept in {str(folder.unsent)!r}. "
        f"To send it: dtopk track {result.run_dir}"
    )
    kept = read_kept(folder.unsent)[1]
    epochs = [entry["step"] for entry in kept if entry.get("by_epoch")]
    assert epochs == list(range(1, result.epochs + 1))

    arguments = ["track", str(result.run_dir), "--uri", mlflow_server.uri]
    assert run_and_report(dtopk, arguments) == 0
    said = capsys.readouterr().out
    assert not folder.unsent.exists()
    client = MlflowClient(tracking_uri=mlflow_server.uri)
    run_id = folder.read_record().mlflow["run_id"]
    assert said == (
        f"sent {len(kept)} things that were kept, as MLflow run {run_id} at {mlflow_server.uri}\n"
    )
    assert steps_of(client, run_id) == epochs
    run = client.get_run(run_id)
    assert run.info.status == "FINISHED"
    assert run.info.end_time == kept[-1]["time_ms"]
    assert run.data.params["model.C"] == "0.1"
    assert run.data.tags["dtopk.certified"] == "true"
    files = {item.path for item in client.list_artifacts(run_id)}
    assert files == {"history.csv", "job.toml", "result.json"}
    assert len(run.outputs.model_outputs) == 1

    assert run_and_report(dtopk, arguments) == 0
    assert capsys.readouterr().out == "nothing is kept for MLflow: it has all of the run.\n"


def test_sending_what_was_sent_already_changes_nothing(store, make_long, silent_server, uri):
    """A process may be killed after it has sent something and before it has noted that."""
    result = train(store, make_long("twice", silent_server.uri, wait_s=0.1, register_as="twice"))
    folder = RunFolder(path=result.run_dir)
    kept = folder.unsent.read_bytes()
    runs = []
    for _ in range(2):
        folder.unsent.write_bytes(kept)
        assert run_and_report(dtopk, ["track", str(result.run_dir), "--uri", uri]) == 0
        runs.append(folder.read_record().mlflow["run_id"])
    assert runs[0] == runs[1]
    client = MlflowClient(tracking_uri=uri)
    assert steps_of(client, runs[0]) == list(range(1, result.epochs + 1))
    assert len(client.get_metric_history(runs[0], "test/top_1_accuracy")) == 1
    assert len(client.get_run(runs[0]).outputs.model_outputs) == 1
    assert len(client.search_model_versions("name = 'twice'")) == 1


@pytest.mark.parametrize("status", [2, 1])
def test_what_cannot_be_sent_stays(store, make_long, silent_server, tmp_path, capsys, status):
    result = train(store, make_long("stays", silent_server.uri, wait_s=0.1))
    folder = RunFolder(path=result.run_dir)
    kept = read_kept(folder.unsent)
    if status == 2:
        folder.unsent.write_text("no JSON\n{}\n")
    uri = f"http://127.0.0.1:{find_port()}"
    assert run_and_report(dtopk, ["track", str(result.run_dir), "--uri", uri]) == status
    message = capsys.readouterr().err
    if status == 2:
        assert "must be as dtopk wrote it, but it is not: line 1" in message
    else:
        assert f"error: MLflow at {uri!r} could not start a run: Connection refused." in message
        assert read_kept(folder.unsent) == kept


def test_run_that_goes_on_sends_what_was_kept(store, make_long, uri, monkeypatch):
    """Also what nothing was kept of: a kill may come before the file is written."""

    def away(*arguments):
        raise ConnectionError("nobody there")

    job = make_long("resumed", uri)
    folder = RunFolder(path=Path(job.output.run_dir))
    with monkeypatch.context() as patched:
        patched.setattr(RunRequests, "go_on", away)
        patched.setattr(RunRequests, "find", away)
        for epoch in (4, 7):
            with pytest.raises(ValueError, match="the callback broke"):
                train(store, job, callbacks=[At(**{f"epoch_{epoch}": fail})])
            assert read_kept(folder.unsent) is not None
        lines = folder.unsent.read_text().splitlines(keepends=True)
        folder.unsent.write_text("".join(lines[:3]) + lines[3][:20])
    result = train(store, job)
    assert result.resumed_at == (3, 6)
    client = MlflowClient(tracking_uri=uri)
    run_id = result.mlflow["run_id"]
    assert steps_of(client, run_id) == list(range(1, result.epochs + 1))
    assert client.get_run(run_id).info.status == "FINISHED"
    assert client.get_run(run_id).data.params["model.C"] == "0.1"
    assert not folder.unsent.exists()


def test_run_that_came_to_nothing_keeps_nothing(store, make_job, silent_server, caplog):
    tracking = TrackingSection(uri=silent_server.uri, wait_s=0.1)
    job = make_job("nothing", tracking=tracking)
    with pytest.raises(ValueError, match="the callback broke"):
        train(store, job, callbacks=[At(epoch_1=fail)])
    assert not Path(job.output.run_dir).exists()
    assert warnings_of(caplog) == []
