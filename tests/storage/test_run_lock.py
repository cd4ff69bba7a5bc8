"""One run at a time: on disk by the kernel, in an object store by a time that is kept fresh."""

import errno
import fcntl
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import uuid
from pathlib import Path

import fsspec  # type: ignore[import-untyped]
import pytest

from dtopk_storage import CheckpointError, RunLock
from dtopk_storage.locations import ObjectFolder
from dtopk_storage.run_lock import FileLock, ObjectLock


class Clock:
    """A clock that goes on only when somebody sleeps by it."""

    def __init__(self, now=1_800_000_000.0):
        self.now = now
        self.during_sleep = []

    def time(self):
        return self.now

    def sleep(self, seconds):
        self.now += seconds
        if self.during_sleep:
            self.during_sleep.pop(0)()


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def folder():
    return ObjectFolder(f"memory://{uuid.uuid4().hex}/run")


@pytest.fixture
def make_lock(folder, clock):
    """Return a function that makes locks on one folder, whose threads never come to a turn."""
    made = []

    def make(clock=clock):
        made.append(ObjectLock(folder, clock=clock.time, sleep=clock.sleep, refresh_s=1e6))
        return made[-1]

    yield make
    for lock in made:
        lock.release()


def read_lock(folder):
    return json.loads(folder.read("lock").tobytes())


def test_a_folder_on_disk_has_one_run_at_a_time(tmp_path):
    with RunLock(tmp_path / "run") as lock:
        assert not lock.lost
        message = (
            rf"^run folder must have one run at a time, got '{tmp_path}/run', which is in use by "
            rf"process {os.getpid()} on host .+ since 20\d\d-\d\d-\d\d \d\d:\d\d:\d\d.*\. "
            r"Wait for its end, or choose another folder\.$"
        )
        # Twice: who is refused leaves the holder's name there.
        for _ in range(2):
            with pytest.raises(ValueError, match=message):
                RunLock(tmp_path / "run").__enter__()
    assert os.listdir(tmp_path / "run") == []
    with RunLock(tmp_path / "run"):
        pass


def test_a_lock_on_disk_ends_with_its_process(tmp_path):
    """Killed, it leaves the file, but the kernel has released it."""
    code = (
        "import sys, time; from dtopk_storage import RunLock; lock = RunLock(sys.argv[1]);"
        "lock.__enter__(); print('held', flush=True); time.sleep(60)"
    )
    holder = subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path)],
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    with holder:
        assert holder.stdout.readline() == b"held\n"
        with pytest.raises(ValueError, match=f"in use by process {holder.pid} on host"):
            RunLock(tmp_path).__enter__()
        holder.send_signal(signal.SIGKILL)
        holder.wait()
    assert (tmp_path / "lock").exists()
    with RunLock(tmp_path):
        assert json.loads((tmp_path / "lock").read_text())["pid"] == os.getpid()


def test_a_holder_that_has_not_named_itself_yet_is_another_process(tmp_path):
    with (tmp_path / "lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        with pytest.raises(ValueError, match="which is in use by another process"):
            RunLock(tmp_path).__enter__()


def test_a_lock_on_disk_whose_file_was_removed_is_lost(tmp_path):
    with RunLock(tmp_path) as lock:
        (tmp_path / "lock").unlink()
        assert lock.lost
        with RunLock(tmp_path) as second:
            assert lock.lost
            assert not second.lost
    assert os.listdir(tmp_path) == []


def test_a_lost_lock_on_disk_does_not_remove_the_next_one(tmp_path):
    first, second = FileLock(tmp_path / "lock"), FileLock(tmp_path / "lock")
    first.acquire()
    (tmp_path / "lock").unlink()
    second.acquire()
    first.release()
    assert not second.lost
    assert (tmp_path / "lock").exists()
    second.release()


def test_a_lock_file_removed_before_it_was_taken_is_taken_anew(tmp_path, monkeypatch):
    """The holder before removes its file after the next process has opened it."""
    flock = fcntl.flock
    calls: list[int] = []

    def remove_first(file, operation):
        if not calls:
            shutil.rmtree(tmp_path / "run")
            (tmp_path / "run").mkdir()
        calls.append(operation)
        flock(file, operation)

    monkeypatch.setattr(fcntl, "flock", remove_first)
    with RunLock(tmp_path / "run") as lock:
        assert len(calls) == 2
        assert not lock.lost
        with pytest.raises(ValueError, match="one run at a time"):
            RunLock(tmp_path / "run").__enter__()


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP])
def test_a_file_system_without_locks_is_refused(tmp_path, monkeypatch, number):
    def fail(descriptor, operation):
        raise OSError(number, "no locks available")

    monkeypatch.setattr(fcntl, "flock", fail)
    with pytest.raises(ValueError, match=r"must be on a file system with file locks.*no locks"):
        RunLock(tmp_path).__enter__()


def test_a_lock_file_without_room_is_a_checkpoint_error(tmp_path, monkeypatch):
    def full(descriptor, text, offset):
        raise OSError(errno.ENOSPC, "No space left on device")

    lock = RunLock(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", full)
        with pytest.raises(CheckpointError, match="lock' could not be written: no space is left"):
            lock.__enter__()
    with lock:
        assert Path(tmp_path, "lock").stat().st_size > 0


def test_an_object_store_has_one_run_at_a_time(folder, monkeypatch):
    monkeypatch.setattr("dtopk_storage.run_lock._SETTLE_S", 0)
    with RunLock(folder.url) as lock:
        assert not lock.lost
        assert read_lock(folder)["pid"] == os.getpid()
        with pytest.raises(ValueError, match=f"got '{folder.url}', which is in use by process"):
            RunLock(folder.url).__enter__()
    assert folder.list_names() == []
    with lock:
        assert folder.list_names() == ["lock"]
    assert folder.list_names() == []


def test_a_fresh_lock_in_a_store_is_refused_with_the_time_to_wait(make_lock, clock):
    make_lock().acquire()
    clock.now += 23
    message = r"last gave a sign of life 23 s ago; if it is dead, start again in 37 s\."
    with pytest.raises(ValueError, match=message):
        make_lock().acquire()


def test_a_lock_in_a_store_that_is_refreshed_stays(make_lock, clock, folder):
    lock = make_lock()
    lock.acquire()
    for _ in range(20):
        clock.now += 10
        lock.refresh()
        assert not lock.lost
        with pytest.raises(ValueError, match="sign of life 0 s ago"):
            make_lock().acquire()
    assert read_lock(folder)["refreshed"] == clock.now
    assert read_lock(folder)["started"] < clock.now - 190


def test_a_dead_lock_in_a_store_is_taken_over(make_lock, clock, folder):
    first, second = make_lock(), make_lock()
    first.acquire()
    clock.now += 60.5
    assert first.lost
    second.acquire()
    assert not second.lost
    first.refresh()
    assert first.lost
    # The loser leaves what is not its own.
    first.release()
    second.refresh()
    assert not second.lost
    assert folder.list_names() == ["lock"]


def test_a_lock_in_a_store_is_not_old_at_60_seconds(make_lock, clock):
    first = make_lock()
    first.acquire()
    clock.now += 60
    assert not first.lost
    with pytest.raises(ValueError, match="one run at a time"):
        make_lock().acquire()


def test_a_lock_that_only_looks_old_is_not_taken_over(make_lock, clock):
    """The next host's clock is five minutes ahead; the holder shows that it is alive."""
    first = make_lock()
    first.acquire()
    ahead = Clock(clock.now + 300)
    ahead.during_sleep.append(first.refresh)
    clock.now += 10
    with pytest.raises(ValueError, match="one run at a time"):
        make_lock(ahead).acquire()
    first.refresh()
    assert not first.lost


def test_an_old_lock_released_while_it_is_watched_is_taken(make_lock, clock):
    first, second = make_lock(), make_lock()
    first.acquire()
    clock.now += 100
    clock.during_sleep.append(first.release)
    second.acquire()
    assert not second.lost


def test_a_run_that_stood_still_knows_and_goes_on_if_nobody_came(make_lock, clock):
    lock = make_lock()
    lock.acquire()
    clock.now += 600
    assert lock.lost
    lock.refresh()
    assert not lock.lost


def test_a_lock_object_that_was_deleted_is_lost(make_lock, folder):
    lock = make_lock()
    lock.acquire()
    folder.delete("lock")
    lock.refresh()
    assert lock.lost
    assert folder.list_names() == []


def test_of_two_runs_that_take_over_together_one_stays(make_lock, clock, folder):
    """Both find the dead lock, both write; the first one sees the other's when it looks again."""
    dead, first, second = make_lock(), make_lock(), make_lock()
    dead.acquire()
    clock.now += 100
    other = {"host": "b", "pid": 7, "id": "x", "started": clock.now, "refreshed": clock.now}
    body = json.dumps(other).encode()
    # The first one sleeps to watch, then after it has written.
    clock.during_sleep = [lambda: None, lambda: folder.write("lock", [body], durable=True)]
    with pytest.raises(ValueError, match="in use by process 7 on host b"):
        first.acquire()
    assert read_lock(folder)["id"] == "x"
    assert not first.lost
    with pytest.raises(ValueError, match="in use by process 7 on host b"):
        second.acquire()


def test_of_two_runs_that_begin_together_one_stays(make_lock, folder, monkeypatch):
    """The other's object is there between the look and the write."""
    first, second = make_lock(), make_lock()
    create = ObjectFolder.create

    def other_first(self, name, body):
        monkeypatch.setattr(ObjectFolder, "create", create)
        first.acquire()
        create(self, name, body)

    monkeypatch.setattr(ObjectFolder, "create", other_first)
    with pytest.raises(ValueError, match="one run at a time"):
        second.acquire()
    first.refresh()
    assert not first.lost


def test_a_store_that_cannot_create_only_has_one_run_at_a_time(make_lock, clock, monkeypatch):
    """Both write: who wrote first finds the other's object after a moment."""
    store = type(fsspec.filesystem("memory"))
    pipe_file = store.pipe_file

    def pipe_always(self, path, value, mode="overwrite"):
        if mode == "create":
            raise NotImplementedError
        pipe_file(self, path, value)

    monkeypatch.setattr(store, "pipe_file", pipe_always)
    first, second = make_lock(), make_lock()
    clock.during_sleep.append(second.acquire)
    look = second._read
    looks = [None]
    monkeypatch.setattr(second, "_read", lambda: looks.pop() if looks else look())
    with pytest.raises(ValueError, match="one run at a time"):
        first.acquire()
    assert not second.lost


def test_a_thread_keeps_the_lock_fresh_through_failures(folder, clock, monkeypatch, caplog):
    lock = ObjectLock(folder, clock=clock.time, sleep=clock.sleep, refresh_s=1e-3)
    write = ObjectFolder.write
    turns = []
    enough = threading.Event()

    def fail_twice(self, name, pieces, *, durable):
        turns.append(threading.current_thread().name)
        if len(turns) in (3, 4):
            raise OSError(errno.EIO, "away")
        write(self, name, pieces, durable=durable)
        if len(turns) == 6:
            enough.set()

    monkeypatch.setattr(ObjectFolder, "write", fail_twice)
    lock.acquire()
    assert enough.wait(20)
    assert not lock.lost
    lock.release()
    assert turns[1:6] == ["run-lock"] * 5
    assert caplog.text.count("lock' could not be renewed: ") == 2
    assert not lock._thread
    assert folder.list_names() == []


def test_the_thread_ends_when_the_lock_is_lost(folder, clock):
    lock = ObjectLock(folder, clock=clock.time, sleep=clock.sleep, refresh_s=1e-3)
    lock.acquire()
    folder.delete("lock")
    lock._thread.join(20)
    assert not lock._thread.is_alive()
    assert lock.lost
    lock.release()


def test_a_run_interrupted_while_it_takes_the_lock_leaves_none(make_lock, clock, folder):
    def interrupt():
        raise KeyboardInterrupt

    clock.during_sleep.append(interrupt)
    with pytest.raises(KeyboardInterrupt):
        make_lock().acquire()
    assert folder.list_names() == []


def test_a_lock_that_cannot_be_deleted_costs_a_warning(make_lock, monkeypatch, caplog):
    def fail(self, name):
        raise OSError(errno.EIO, "away")

    lock = make_lock()
    lock.acquire()
    monkeypatch.setattr(ObjectFolder, "delete", fail)
    lock.release()
    assert "lock' could not be deleted: " in caplog.text


@pytest.mark.parametrize("text", [b"", b"x", b"[]", b'{"pid": 1}'])
def test_an_object_that_is_no_lock_is_named(make_lock, folder, text):
    folder.create("lock", text)
    with pytest.raises(CheckpointError, match=r"run/lock' must be the lock of a run, got .*Delete"):
        make_lock().acquire()
    assert folder.read("lock").tobytes() == text


def test_other_schemes_are_refused():
    with pytest.raises(ValueError, match="run folder must be a path or an address such as"):
        RunLock("sftp://host/run")
