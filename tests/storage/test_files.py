"""Files that are whole or absent, and locks that are held by one."""

import errno
import fcntl
import shutil

import pytest

from dtopk_storage.files import exclusive_lock
from dtopk_storage.replacement import delete_leftovers, hold_writers_folder, restore_replaced


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


def test_a_lock_may_be_asked_for_only_where_its_folder_is(tmp_path):
    path = tmp_path / "work" / "lock"
    with pytest.raises(FileNotFoundError, match="work/lock"):
        with exclusive_lock(path, makes_folder=False):
            pass
    assert not path.parent.exists()
    path.parent.mkdir()
    with exclusive_lock(path, makes_folder=False):
        assert path.is_file()


def test_a_writer_on_a_file_system_without_locks_leaves_all_others_alone(tmp_path, monkeypatch):
    def refuse(file, operation):
        raise OSError(errno.ENOLCK, "no locks")

    left = tmp_path / "s.writing-1" / "store"
    left.mkdir(parents=True)
    monkeypatch.setattr(fcntl, "flock", refuse)
    delete_leftovers(tmp_path / "s")
    (left.parent / "replaced").mkdir()
    restore_replaced(tmp_path / "s")
    assert left.is_dir()
    assert (left.parent / "replaced").is_dir()
    with hold_writers_folder(tmp_path / "s") as first:
        (first / "store").mkdir()
        with hold_writers_folder(tmp_path / "s") as second:
            assert first != second
