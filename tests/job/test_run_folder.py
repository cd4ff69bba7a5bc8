"""The folder of a run."""

import csv
import json
from pathlib import Path

import pytest

from dtopk.job.resumption import check_resumable
from dtopk.job.run_folder import Checkpoint, RunFolder, RunRecord, name_run_folder
from dtopk_storage import CheckpointError, RunLock, open_run_state
from dtopk_storage.paths import as_path
from dtopk_storage.run_lock import LockHolder


@pytest.fixture
def folder(tmp_path):
    return RunFolder(path=tmp_path / "runs" / "a")


def test_run_folder_name_has_the_time():
    path = name_run_folder("/runs/letter-{time}")
    assert path.parent == Path("/runs")
    assert len(path.name) == len("letter-20260131-235959")
    assert name_run_folder("/runs/letter") == Path("/runs/letter")


@pytest.fixture
def record(folder):
    return RunRecord(store_checksum="sha256:0", threads=2, state=str(folder.state))


@pytest.fixture
def claimed(folder, record):
    folder.path.mkdir(parents=True)
    folder.claim(record, "version = 1\n")
    return folder


def commit(folder, epochs):
    manifest = {"progress": {"epoch": epochs}, "saved": 1.5}
    open_run_state(folder.state).commit("a", manifest)


def test_claimed_folder_holds_the_job_and_the_record(claimed, record):
    assert claimed.job.read_text() == "version = 1\n"
    assert claimed.read_record() == record


def test_folder_that_is_new_empty_or_just_locked_can_be_used(folder):
    folder.check_usable()
    with RunLock(folder.path):
        assert folder.is_empty()
        folder.check_usable()
    assert list(folder.path.iterdir()) == []
    folder.check_usable()


def test_run_that_was_killed_can_be_taken_up_again(claimed):
    claimed.check_usable()
    assert claimed.find_checkpoint() is None
    commit(claimed, 3)
    claimed.check_usable()
    assert claimed.find_checkpoint() == Checkpoint(epochs=3, saved=1.5)


def test_run_that_stopped_can_be_taken_up_again(claimed):
    commit(claimed, 3)
    claimed.write_result({})
    claimed.check_usable()


def test_run_that_has_ended_is_refused(claimed):
    claimed.write_result({})
    with pytest.raises(
        ValueError, match=r"run folder must be new or empty, got '.*a', which holds a run that has"
    ):
        claimed.check_usable()


@pytest.mark.parametrize("look", [RunFolder.check_usable, lambda run: check_resumable(run.path)])
def test_lock_of_a_process_killed_after_the_end_goes_and_one_that_is_held_stays(claimed, look):
    claimed.write_result({})
    lock = claimed.path / "lock"
    with RunLock(claimed.path):
        with pytest.raises(ValueError, match="has ended"):
            look(claimed)
        assert lock.is_file()
    lock.write_text("{}")
    with pytest.raises(ValueError, match="has ended"):
        look(claimed)
    assert not lock.exists()


def test_lock_in_an_object_store_is_only_looked_at(record):
    folder = RunFolder(path=as_path("memory://locks/run", name="run folder"))
    folder.claim(record, "version = 1\n")
    folder.write_result({})
    old = LockHolder(host="elsewhere", pid=1, id="a", started=0.0, refreshed=0.0).to_json()
    (folder.path / "lock").write_bytes(old)
    with pytest.raises(ValueError, match="has ended"):
        folder.check_usable()
    assert (folder.path / "lock").read_text().encode() == old


def test_run_that_stopped_before_its_first_commit_can_be_started_again(claimed):
    claimed.write_result({"resumable": True, "committed": False})
    claimed.check_usable()
    assert claimed.starts_again()
    commit(claimed, 3)
    assert not claimed.starts_again()


@pytest.mark.parametrize("name", ["job.toml", "notes.txt", "state"])
def test_folder_that_is_no_runs_is_refused(folder, name):
    """Also one in which somebody keeps a job file."""
    folder.path.mkdir(parents=True)
    (folder.path / name).touch()
    with pytest.raises(ValueError, match=r"run folder must be new or empty, got '.*a', which is"):
        folder.check_usable()


def test_file_is_no_run_folder(folder):
    folder.path.parent.mkdir()
    folder.path.write_text("")
    with pytest.raises(ValueError, match="run folder must be new or empty"):
        folder.check_usable()


def test_released_folder_can_be_used_again(claimed):
    claimed.release()
    assert claimed.is_empty()


@pytest.mark.parametrize("text", ["", "[]", '{"started": 1, "mood": "good"}'])
def test_damaged_record_is_named(claimed, text):
    claimed.record.write_text(text)
    with pytest.raises(CheckpointError, match=r"run\.json' must be as dtopk wrote it"):
        claimed.read_record()


def test_new_duals_take_the_place_of_earlier_ones(claimed):
    """Until the run has a result again, it has not ended."""
    for path, name in ((claimed.dual, "old"), (claimed.new_dual, "new")):
        path.mkdir()
        (path / name).touch()
    claimed.write_result({})
    claimed.put_dual()
    assert [path.name for path in claimed.dual.iterdir()] == ["new"]
    assert not claimed.new_dual.exists()
    assert not claimed.result.exists()


def test_duals_of_other_weights_do_not_stay(claimed):
    claimed.dual.mkdir()
    claimed.put_dual()
    assert not claimed.dual.exists()


def test_history_has_a_line_an_epoch(claimed):
    folder = claimed
    folder.write_history([{"epoch": 1, "gap": 0.5}, {"epoch": 2, "gap": 0.25}])
    with folder.history.open(newline="") as file:
        assert list(csv.DictReader(file)) == [
            {"epoch": "1", "gap": "0.5"},
            {"epoch": "2", "gap": "0.25"},
        ]


def test_history_leaves_empty_what_an_epoch_has_not(claimed):
    claimed.write_history([{"epoch": 1}, {"epoch": 2, "val/top_1_accuracy": 0.5}])
    assert claimed.history.read_text() == "epoch,val/top_1_accuracy\n1,\n2,0.5\n"


def test_result_is_json(claimed):
    claimed.write_result({"epochs": 3})
    assert json.loads(claimed.result.read_text()) == {"epochs": 3}


@pytest.mark.parametrize("name", ["runs/{tiem}", "runs/{}", "runs/{time}-{C}"])
def test_run_folder_refuses_other_placeholders(name):
    with pytest.raises(
        ValueError, match=r"output\.run_dir must have no placeholder but '\{time\}', got '\{"
    ):
        name_run_folder(name)


def test_folder_with_nothing_but_a_submission_is_usable_and_keeps_it(folder, record):
    log = folder.path / "submission" / "run.log"
    log.parent.mkdir(parents=True)
    log.write_text("training\n")
    folder.check_usable()
    folder.claim(record, "version = 1\n")
    folder.state.mkdir()
    assert not folder.is_empty()
    folder.release()
    assert [path.name for path in folder.path.iterdir()] == ["submission"]
    assert log.read_text() == "training\n"
    folder.check_usable()


@pytest.mark.parametrize("name", ["run.json", "sweep-run.json"])
def test_folder_of_a_run_killed_in_its_first_file_can_be_used(tmp_path, name):
    (tmp_path / f".{name}.partial-1").touch()
    folder = RunFolder(path=tmp_path)
    folder.check_usable()
    folder.claim(RunRecord(), "")
    left = [path.name for path in tmp_path.iterdir() if ".partial-" in path.name]
    assert left == ([] if name == "run.json" else [f".{name}.partial-1"])
