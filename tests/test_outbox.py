"""What a run in the background keeps, sends and leaves out."""

import json
import logging
import threading
import uuid

import pytest

from dtopk.tracking import BackgroundRun, MlflowClient, background, outbox
from dtopk.tracking.outbox import Outbox, read_kept
from dtopk_storage.paths import as_path
from tests.mlflow_server import find_port

START = {"uri": "http://nowhere", "run_id": "", "key": "a"}


@pytest.fixture(params=["disk", "memory://outbox"])
def path(request, tmp_path):
    """Give a place for the file, on a disk and in an object store."""
    place = str(tmp_path) if request.param == "disk" else f"{request.param}/{uuid.uuid4().hex}"
    return as_path(place, name="path") / "mlflow.jsonl"


def make_entries(*steps):
    return [{"kind": "metrics", "step": step} for step in steps]


def test_file_has_what_waits_in_order(path):
    box = Outbox(path, START)
    for entry in make_entries(1, 2, 3):
        box.put(entry)
    box.keep()
    box.put(*make_entries(4))
    box.keep()
    box.keep()
    kept = read_kept(path)
    assert kept is not None
    start, entries = kept
    assert start["key"] == "a"
    assert entries == make_entries(1, 2, 3, 4)


def test_file_goes_when_all_is_sent(path):
    box = Outbox(path, START)
    box.put(*make_entries(1))
    box.keep()
    box.note_opened("0123")
    box.delete_file()
    assert read_kept(path) is not None
    box.drop(1)
    box.delete_file()
    assert read_kept(path) is None


def test_file_names_the_run_once_it_is_started(path):
    box = Outbox(path, START)
    box.put(*make_entries(1))
    box.keep()
    box.note_opened("0123")
    box.drop(1)
    box.put(*make_entries(2))
    box.keep()
    kept = read_kept(path)
    assert kept is not None
    start, entries = kept
    assert start["run_id"] == "0123"
    assert entries == make_entries(2)


def test_last_line_of_a_process_that_was_killed_may_be_cut(tmp_path):
    path = tmp_path / "mlflow.jsonl"
    box = Outbox(path, START, make_entries(1, 2))
    box.keep()
    path.write_text(path.read_text()[:-5])
    assert read_kept(path)[1] == make_entries(1)
    box = Outbox(path, START, read_kept(path)[1])
    box.put(*make_entries(3))
    box.keep()
    assert read_kept(path)[1] == make_entries(1, 3)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "it does not begin with the start of a run"),
        ('{"kind": "tags"}\n', "it does not begin with the start of a run"),
        ("7\n{}\n", "line 1"),
        ('{"kind": "start", "version": 2}\n', "version of .* must be 1, got 2"),
    ],
)
def test_another_file_is_refused(tmp_path, text, message):
    (tmp_path / "mlflow.jsonl").write_text(text)
    with pytest.raises(ValueError, match=message):
        read_kept(tmp_path / "mlflow.jsonl")


def test_who_puts_does_not_wait_for_the_file(tmp_path, monkeypatch):
    writing, written = threading.Event(), threading.Event()

    def write_slowly(*arguments, **options):
        writing.set()
        assert written.wait(60)

    monkeypatch.setattr(outbox, "write_whole", write_slowly)
    box = Outbox(tmp_path / "mlflow.jsonl", START)
    keeper = threading.Thread(target=box.keep)
    keeper.start()
    assert writing.wait(60)
    box.put(*make_entries(1))
    assert box.peek(9) == make_entries(1)
    written.set()
    keeper.join()


@pytest.fixture
def open_run(tmp_path, monkeypatch):
    monkeypatch.setattr(background, "_SEND_INTERVAL_S", 0.1)
    monkeypatch.setattr(background, "_KEEP_AFTER_S", 0.1)

    def open_run(uri, folder=tmp_path, **options):
        return BackgroundRun(
            uri=uri,
            folder=folder,
            kept=folder / "mlflow.jsonl",
            key=uuid.uuid4().hex,
            experiment="dtopk",
            run_name="a",
            tags={},
            params={"C": 1},
            dataset={"name": "x", "path": "/x", "profile": {}},
            **options,
        )

    return open_run


def test_what_mlflow_refuses_is_left_out_and_told_once(open_run, tmp_path, caplog):
    uri = f"sqlite:///{tmp_path / 'mlflow.db'}"
    run = open_run(uri)
    for step in (1, 2):
        run.log_metrics({"good": 0.5}, step=step)
        run.log_metrics({"bad?": 0.5}, step=step)
    run.log_files(["nowhere.png"])
    run.end(status="FINISHED", tags={"color": "red"})
    recorded = MlflowClient(tracking_uri=uri).get_run(run.describe()["run_id"])
    assert recorded.data.metrics == {"good": 0.5}
    assert recorded.data.tags["color"] == "red"
    assert recorded.info.status == "FINISHED"
    told = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert [" could not log metrics: " in each for each in told] == [True, False]
    assert "could not log nowhere.png: " in told[1]
    assert all(each.endswith("That is left out.") for each in told)
    assert not (tmp_path / "mlflow.jsonl").exists()


def test_run_in_an_object_store_keeps_there(open_run, monkeypatch, path):
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    run = open_run(f"http://127.0.0.1:{find_port()}", path.parent)
    run.log_epoch({"primal": 0.5}, step=1)
    run.end(status="FINISHED", tags={})
    kept = read_kept(path)
    assert kept is not None
    start, entries = kept
    assert json.loads(start["dataset"]["profile"]) == {}
    assert [entry["kind"] for entry in entries] == ["metrics", "tags", "end"]
