"""The folder of a run."""

import csv
import json
from pathlib import Path

import pytest

from dtopk.job.run_folder import RunFolder, name_run_folder


@pytest.fixture
def folder(tmp_path):
    return RunFolder(path=tmp_path / "runs" / "a")


def test_run_folder_name_has_the_time():
    path = name_run_folder("/runs/letter-{time}")
    assert path.parent == Path("/runs")
    assert len(path.name) == len("letter-20260131-235959")
    assert name_run_folder("/runs/letter") == Path("/runs/letter")


def test_claimed_folder_holds_the_job(folder):
    folder.claim("version = 1\n")
    assert folder.job.read_text() == "version = 1\n"


def test_empty_folder_can_be_claimed(folder):
    folder.path.mkdir(parents=True)
    folder.claim("")


def test_used_folder_is_refused(folder):
    folder.claim("")
    with pytest.raises(ValueError, match=r"run folder must be new or empty, got '.*a', which is"):
        folder.claim("")


def test_file_is_no_run_folder(folder):
    folder.path.parent.mkdir()
    folder.path.write_text("")
    with pytest.raises(ValueError, match="run folder must be new or empty"):
        folder.check_unused()


def test_released_folder_can_be_claimed_again(folder):
    folder.claim("")
    folder.release()
    folder.claim("")


def test_history_has_a_line_an_epoch(folder):
    folder.claim("")
    folder.write_history([{"epoch": 1, "gap": 0.5}, {"epoch": 2, "gap": 0.25}])
    with folder.history.open(newline="") as file:
        assert list(csv.DictReader(file)) == [
            {"epoch": "1", "gap": "0.5"},
            {"epoch": "2", "gap": "0.25"},
        ]


def test_result_is_json(folder):
    folder.claim("")
    folder.write_result({"epochs": 3})
    assert json.loads(folder.result.read_text()) == {"epochs": 3}


@pytest.mark.parametrize("name", ["runs/{tiem}", "runs/{}", "runs/{time}-{C}"])
def test_run_folder_refuses_other_placeholders(name):
    with pytest.raises(
        ValueError, match=r"output\.run_dir must have no placeholder but '\{time\}', got '\{"
    ):
        name_run_folder(name)
