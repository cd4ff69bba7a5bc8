"""Writes behind their writer: several at a time, none lost, none after the end."""

import contextlib
import os
import subprocess
import sys
import threading
import time

import pytest

from dtopk_storage.objects import ObjectPath
from dtopk_storage.read_ahead import AHEAD_BYTES, MOST_REQUESTS, count_requests
from dtopk_storage.write_behind import WriteBehind

FAR = ObjectPath("memory://behind")


class Writes:
    """Writes that end when they are told to, and what has become of them."""

    def __init__(self):
        self.may_end = threading.Event()
        self.lock = threading.Lock()
        self.under_way = self.most_under_way = 0
        self.done = []

    def make(self, number, error=None):
        def write():
            with self.lock:
                self.under_way += 1
                self.most_under_way = max(self.most_under_way, self.under_way)
            assert self.may_end.wait(20)
            with self.lock:
                self.under_way -= 1
            if error is not None:
                raise error
            self.done.append(number)

        return write


@pytest.fixture
def writes():
    return Writes()


def test_on_a_disk_a_write_is_made_at_once_in_the_same_thread(tmp_path):
    threads = []
    with WriteBehind(tmp_path, 100) as behind:
        assert not behind.is_behind
        behind.put(lambda: threads.append(threading.current_thread()))
        assert threads == [threading.current_thread()]


def test_in_an_object_store_as_many_are_under_way_as_their_size_allows(writes):
    large = AHEAD_BYTES // 4
    assert count_requests(large) == 4 < MOST_REQUESTS
    with WriteBehind(FAR, large) as behind:
        assert behind.is_behind
        threading.Timer(0.2, writes.may_end.set).start()
        for number in range(12):
            behind.put(writes.make(number))
        assert 1 < writes.most_under_way <= 4
    assert sorted(writes.done) == list(range(12))
    assert writes.most_under_way <= 4


def test_what_failed_is_raised_by_a_later_put_or_the_end_of_the_block(writes):
    def put(n_more):
        with WriteBehind(FAR, 1) as behind:
            behind.put(writes.make(0, OSError("no room")))
            for number in range(1, n_more):
                behind.put(writes.make(number))

    writes.may_end.set()
    for n_more in (2 * MOST_REQUESTS, 0):
        with pytest.raises(OSError, match="no room"):
            put(n_more)


def test_nothing_is_written_after_a_block_that_failed(writes):
    def fail():
        with WriteBehind(FAR, 1) as behind:
            for number in range(MOST_REQUESTS):
                behind.put(writes.make(number))
            raise KeyError("source")

    threading.Timer(0.2, writes.may_end.set).start()
    with pytest.raises(KeyError):
        fail()
    done = len(writes.done)
    assert writes.under_way == 0
    time.sleep(0.1)
    assert len(writes.done) == done


@pytest.mark.parametrize("is_far", [True, False])
def test_a_failure_is_raised_by_all_that_comes_after(writes, tmp_path, is_far):
    """Who has caught it once cannot go on to a store that lacks a chunk."""
    writes.may_end.set()
    behind = WriteBehind(FAR if is_far else tmp_path, 1)
    with contextlib.suppress(OSError):
        behind.put(writes.make(0, OSError("no room")))
    for _ in range(2):
        with pytest.raises(OSError, match="no room"):
            behind.wait()
        with pytest.raises(OSError, match="no room"):
            behind.put(writes.make(1))
    behind.abandon()
    assert writes.done == []


INTERRUPTED = """
import os, signal, threading, time
from dtopk_storage.objects import ObjectPath
from dtopk_storage.write_behind import WriteBehind

done = []

def write(number):
    time.sleep(1.5)
    done.append(number)

threading.Timer(0.5, os.kill, [os.getpid(), signal.SIGINT]).start()
threading.Timer(1.0, os.kill, [os.getpid(), signal.SIGINT]).start()
try:
    with WriteBehind(ObjectPath("memory://x"), 64 << 20) as behind:
        for number in range(9):
            behind.put(lambda number=number: write(number))
except KeyboardInterrupt:
    at_the_end = list(done)
    time.sleep(2)
    print(at_the_end == done, len(done))
"""


def test_an_interrupt_waits_for_what_is_under_way_and_is_raised():
    run = subprocess.run(
        [sys.executable, "-c", INTERRUPTED],
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert run.stdout.split() == ["True", "3"], run.stderr
