"""Files that are whole or absent, and locks that are held by one."""

import fcntl
import shutil

import pytest

from dtopk_storage.files import exclusive_lock


def test_a_lock_is_held_by_one(tmp_path):
    with (
        exclusive_lock(tmp_path / "work" / "lock"),
        pytest.raises(BlockingIOError),
        exclusive_lock(tmp_path / "work" / "lock"),
    ):
        pass


def test_a_lock_whose_file_was_removed_before_it_was_taken_is_taken_anew(tmp_path, monkeypatch):
    """The holder removes the folder after the next process has opened the file."""
    flock = fcntl.flock
    calls: list[int] = []

    def remove_first(file, operation):
        if not calls:
            shutil.rmtree(tmp_path / "work")
        calls.append(operation)
        flock(file, operation)

    monkeypatch.setattr(fcntl, "flock", remove_first)
    with exclusive_lock(tmp_path / "work" / "lock"):
        assert len(calls) == 2
        with pytest.raises(BlockingIOError), exclusive_lock(tmp_path / "work" / "lock"):
            pass
