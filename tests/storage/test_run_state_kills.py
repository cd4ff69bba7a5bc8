"""A run killed at any instant goes on from its last commit, whole."""

import errno
import multiprocessing
import os
import random
import signal
import sys
import uuid
from pathlib import Path

import fsspec  # type: ignore[import-untyped]
import numpy as np
import pytest

from dtopk_storage import open_run_state

SLICES = 2
BLOCKS = 3


def compute_slice(number, index):
    return np.random.default_rng([number, index]).standard_normal((50, 20)).astype(np.float32)


def compute_block(number, index):
    return np.where(compute_slice(number, 100 + index) > 1.5, number, 0).astype(np.float32)


def commit_number(state, number, version):
    """Commit a state that tells by its number alone what must be in it."""
    for index in range(SLICES):
        state.write_array(version, f"W/{index}", compute_slice(number, index))
    for index in range(BLOCKS):
        state.write_array(version, f"dual/{index:06d}", compute_block(number, index))
    state.commit(version, {"number": number})


def check_whole(state):
    """Check every array of the state, and return its number: 0 if nothing is committed."""
    loaded = state.load()
    if loaded is None:
        return 0
    number, version = loaded["number"], loaded["version"]
    for index in range(SLICES):
        read = state.read_array(version, f"W/{index}")
        np.testing.assert_array_equal(read, compute_slice(number, index))
    for index in range(BLOCKS):
        read = state.read_array(version, f"dual/{index:06d}")
        np.testing.assert_array_equal(read, compute_block(number, index))
    return number


def list_files(state):
    fs, root = fsspec.core.url_to_fs(state.url)
    return [path.removeprefix(f"{root}/") for path in fs.find(root)]


def run_on(url, committed):
    """Go on from the state and commit without end, as a run does that is started again."""
    state = open_run_state(url)
    number = check_whole(state)
    state.delete_leftovers()
    while True:
        number += 1
        commit_number(state, number, f"{number:06d}-{os.getpid()}")
        committed.set()


def commit_and_die(url, number, step):
    """Commit, but be killed at the step-th call that touches the file system."""
    steps = 0
    calls = {"os.listdir", "os.mkdir", "os.remove", "os.rename", "os.rmdir", "os.scandir"}

    def count(event, arguments):
        nonlocal steps
        if event in calls or (event == "open" and url in str(arguments[0])):
            steps += 1
            if steps == step:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(count)
    commit_number(open_run_state(url), number, f"{number:06d}")


@pytest.fixture(scope="module")
def processes():
    """Processes that start fast: made from one that has the imports behind it."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["pytest", "dtopk_storage.run_state"])
    return context


@pytest.mark.slow
def test_a_run_killed_at_any_step_of_a_commit_is_whole(tmp_path, processes):
    """The state is the old one up to some step, and the new one from there on."""
    state = open_run_state(tmp_path / "state")
    commit_number(state, 1, "000001")
    found: list[int] = []
    exitcode: int | None = None
    while exitcode != 0:
        process = processes.Process(target=commit_and_die, args=(state.url, 2, len(found) + 1))
        process.start()
        process.join(30)
        exitcode = process.exitcode
        assert exitcode in (0, -signal.SIGKILL)
        found.append(check_whole(state))
        state.delete_leftovers()
        assert len(list_files(state)) == 1 + SLICES + BLOCKS
        if found[-1] == 2:
            commit_number(state, 1, "000001")
    assert found == sorted(found)
    # At least: five arrays and the state file are opened and renamed; then five arrays, the two
    # folders they were in and their version's are removed.
    assert found.count(1) >= 2 * (SLICES + BLOCKS + 1)
    assert found.count(2) >= SLICES + BLOCKS + 3


@pytest.mark.slow
def test_a_run_killed_at_random_goes_on_from_a_whole_state(tmp_path, processes):
    state = open_run_state(tmp_path / "state")
    draw = random.Random(4)
    numbers = [0]
    for _ in range(20):
        committed = processes.Event()
        process = processes.Process(target=run_on, args=(state.url, committed))
        process.start()
        assert committed.wait(30)
        process.join(draw.uniform(0, 0.1))
        process.kill()
        process.join()
        assert process.exitcode == -signal.SIGKILL
        numbers.append(check_whole(state))
    assert numbers == sorted(set(numbers))
    state.delete_leftovers()
    files = list_files(state)
    assert len(files) == 1 + SLICES + BLOCKS
    assert not [name for name in files if name.endswith(".tmp")]


class _KilledError(BaseException):
    """Stands for a kill: nothing catches it."""


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
def test_a_run_killed_at_any_request_to_a_store_is_whole(monkeypatch, after):
    """Each write and each deletion is a step; it is done when the kill comes, or it is not."""
    store = type(fsspec.filesystem("memory"))
    state = open_run_state(f"memory://{uuid.uuid4().hex}")
    left = 0

    def count(method):
        def request(*args, **kwargs):
            nonlocal left
            left -= 1
            if left == 0 and not after:
                raise _KilledError
            result = method(*args, **kwargs)
            if left == 0:
                raise _KilledError
            return result

        return request

    commit_number(state, 1, "000001")
    for method in ("pipe_file", "rm_file"):
        monkeypatch.setattr(store, method, count(getattr(store, method)))
    found = []
    for step in range(1, 100):
        left = step
        try:
            commit_number(state, 2, "000002")
            break
        except _KilledError:
            found.append(check_whole(state))
        left = 0
        if found[-1] == 2:
            commit_number(state, 1, "000001")
    left = 0
    # Five arrays and the state file are written, then the five of the old version deleted.
    assert found == [1] * (6 - after) + [2] * (5 + after)
    assert len(list_files(state)) == 1 + SLICES + BLOCKS


@pytest.mark.parametrize("failing", ["open", "fsync", "replace"])
def test_a_run_whose_disk_fails_at_any_call_is_whole(tmp_path, monkeypatch, failing):
    """Calls fail one after the other; what failed is tried again by the run that goes on."""
    state = open_run_state(tmp_path / "state")
    commit_number(state, 1, "000001")
    owner = Path if failing == "open" else os
    left = 0
    call = getattr(owner, failing)

    def fail_at_last(*args, **kwargs):
        nonlocal left
        left -= 1
        if left == 0:
            raise OSError(errno.EIO, "broken")
        return call(*args, **kwargs)

    monkeypatch.setattr(owner, failing, fail_at_last)
    failures = 0
    for step in range(1, 100):
        left = step
        try:
            commit_number(state, 2, "000002")
            break
        except OSError:
            failures += 1
        left = 0
        number = check_whole(state)
        assert not [name for name in list_files(state) if name.endswith(".tmp")]
        if number == 2:
            commit_number(state, 1, "000001")
    left = 0
    assert failures == {"open": 6, "fsync": 3, "replace": 6}[failing]
    assert check_whole(state) == 2
