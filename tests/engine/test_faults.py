"""Workers, schedulers and leads that are lost: no hang, and the bits of a run without faults."""

import os
import signal
import subprocess
import sys
import threading
import time

import pytest
from distributed import Client

from dtopk.engine import Callback, remote_calls
from dtopk.engine.memory import MemoryPlan
from dtopk.launch import ClusterError
from dtopk_storage import CheckpointError, RunState, open_run_state
from tests.cluster_runs import (
    LOSSES,
    assert_same,
    cluster,
    count_members,
    make_rows,
    pids_of,
    started_cluster,
    streaming,
    train_here,
    train_there,
    wait_until,
)

SOFTMAX = LOSSES["softmax"]
TIMEOUT_S = 5.0
"""Silence after which a worker is given up, on a machine with other work."""


@pytest.fixture(scope="module")
def rows(tmp_path_factory):
    return make_rows(tmp_path_factory.mktemp("store") / "features")


class Fault(Callback):
    """Does something amid an epoch, once."""

    def __init__(self, do, epoch=2):
        self.do, self.epoch = do, epoch
        self.done = 0

    def on_epoch(self, record, W):
        self.done = record.epoch

    def on_rows(self, rows):
        if self.done == self.epoch and self.do is not None:
            do, self.do = self.do, None
            do()


class StopAmidFault(Callback):
    """Has something done when it is asked about an epoch, and asks to stop."""

    def __init__(self, do, epoch):
        self.do, self.epoch, self.asked = do, epoch, []

    def should_stop(self, record, W):
        self.asked.append(record.epoch)
        if record.epoch == self.epoch:
            self.do()
        return record.epoch == self.epoch


def send(number, *pids):
    def do():
        for pid in pids:
            os.kill(pid, number)

    return do


@pytest.fixture
def undisturbed(rows, tmp_path):
    return train_here(rows, SOFTMAX, tmp_path / "here")


@pytest.fixture
def resumed(tmp_path):
    return open_run_state(tmp_path / "state")


@pytest.mark.parametrize("keeps_state", [True, False], ids=["from a commit", "from the start"])
def test_killed_worker_is_replaced(rows, tmp_path, undisturbed, resumed, caplog, keeps_state):
    with cluster(1, 1) as client:
        pids = pids_of(client)
        there = train_there(
            client, rows, SOFTMAX, tmp_path / "there",
            callbacks=[Fault(send(signal.SIGKILL, pids[0]))],
            state=resumed if keeps_state else None,
        )  # fmt: skip
        assert_same(undisturbed, tmp_path / "here", there, tmp_path / "there")
        assert f"process {pids[0]}" in caplog.text
        assert len(pids_of(client)) == 2


def test_stop_is_kept_to_when_a_worker_is_killed_before_the_certificate(rows, tmp_path, resumed):
    """The callback is not asked again about the epochs that are done again."""
    here = train_here(rows, SOFTMAX, tmp_path / "here", max_epochs=2)
    with cluster(1, 1) as client:
        stopper = StopAmidFault(send(signal.SIGKILL, pids_of(client)[0]), epoch=2)
        there = train_there(
            client, rows, SOFTMAX, tmp_path / "there", callbacks=[stopper], state=resumed
        )
    assert (there.stop_reason, there.epochs, stopper.asked) == ("callback", 2, [1, 2])
    assert_same(here, tmp_path / "here", there, tmp_path / "there")


def test_killed_worker_of_a_streamed_run_is_replaced(rows, tmp_path, resumed, monkeypatch):
    streaming(monkeypatch)
    here = train_here(rows, SOFTMAX, tmp_path / "here", state=open_run_state(tmp_path / "other"))
    with cluster(1, 1) as client:
        there = train_there(
            client, rows, SOFTMAX, tmp_path / "there", state=resumed,
            callbacks=[Fault(send(signal.SIGKILL, *pids_of(client)))],
        )  # fmt: skip
    assert_same(here, tmp_path / "here", there, tmp_path / "there")


def test_stopped_worker_is_left_out_and_does_no_harm_when_it_comes_back(
    rows, tmp_path, undisturbed, resumed, caplog
):
    with cluster(1, 1, **{"distributed.scheduler.worker-ttl": "10 minutes"}) as client:
        pid = pids_of(client)[0]
        wake = threading.Timer(4 * TIMEOUT_S, send(signal.SIGCONT, pid))
        try:
            there = train_there(
                client, rows, SOFTMAX, tmp_path / "there", state=resumed,
                callbacks=[Fault(send(signal.SIGSTOP, pid)), Fault(wake.start, epoch=3)],
                round_timeout_s=TIMEOUT_S,
            )  # fmt: skip
        finally:
            wake.cancel()
            os.kill(pid, signal.SIGCONT)
        assert_same(undisturbed, tmp_path / "here", there, tmp_path / "there")
        assert "Not heard of in" in caplog.text
        assert f"process {pid}" in caplog.text
        # It frees its member, now that nobody holds it.
        wait_until(lambda: len(pids_of(client)) == 2)
        wait_until(lambda: count_members(client) == 0, 60)


def test_member_that_is_held_stays_and_one_that_is_not_goes(rows, tmp_path):
    def hurry(dask_worker):
        import dtopk.engine.seat

        dtopk.engine.seat._UNCLAIMED_S = 0.5

    def sessions(client):
        def look(dask_worker):
            return list(dask_worker.extensions["dtopk"].seats)

        return client.run(look)

    seen = []

    class Pause(Callback):
        def on_epoch(self, record, W):
            seen.append(sessions(client))
            time.sleep(4 if record.epoch == 1 else 0)

    with cluster(1, 1) as client:
        client.run(hurry)
        train_there(client, rows, SOFTMAX, tmp_path / "there", callbacks=[Pause()])
        wait_until(lambda: count_members(client) == 0)
    assert len(seen) > 2
    assert all(each == seen[0] for each in seen)


def test_worker_whose_work_does_not_go_on_is_left_out(rows, tmp_path, resumed, caplog, monkeypatch):
    def hang(dask_worker):
        # A read that does not come back, while the worker itself answers as ever.
        [seat] = dask_worker.extensions["dtopk"].seats.values()
        seat.member.rows.read = lambda piece: time.sleep(30)

    streaming(monkeypatch, MemoryPlan(features_in_memory=False, duals_in_memory=True))
    here = train_here(rows, SOFTMAX, tmp_path / "here")
    with cluster(1, 1) as client:
        stuck = sorted(client.nthreads())[0]
        there = train_there(
            client, rows, SOFTMAX, tmp_path / "there", state=resumed,
            callbacks=[Fault(lambda: client.run(hang, workers=[stuck]), epoch=1)],
            round_timeout_s=TIMEOUT_S,
        )  # fmt: skip
    assert_same(here, tmp_path / "here", there, tmp_path / "there")
    [message] = [text for text in caplog.messages if "No progress in" in text]
    assert stuck in message


def test_peer_that_cannot_be_reached_is_named_with_who_missed_it(
    rows, tmp_path, undisturbed, resumed, caplog
):
    def cut(dask_worker):
        connect = dask_worker.rpc.connect

        async def connecting(address, *arguments, **known):
            if address != dask_worker.scheduler.address:
                raise OSError("no route to host")
            return await connect(address, *arguments, **known)

        dask_worker.rpc.connect = connecting

    with cluster(1, 1) as client:
        there = train_there(
            client, rows, SOFTMAX, tmp_path / "there", state=resumed,
            callbacks=[Fault(lambda: client.run(cut, workers=[sorted(client.nthreads())[0]]))],
        )  # fmt: skip
        assert_same(undisturbed, tmp_path / "here", there, tmp_path / "there")
        [message] = [text for text in caplog.messages if "cannot reach" in text]
        assert message.lower().count("worker '") == 2
        assert "no route to host" in message


def test_too_few_workers_end_the_run_which_can_go_on(rows, tmp_path, undisturbed, resumed):
    with cluster(1, 1) as client:

        def lose():
            client.retire_workers([sorted(client.nthreads())[0]], close_workers=True)

        with pytest.raises(ClusterError, match=r"min_workers = 2 .* got 1.* goes on from its"):
            train_there(
                client, rows, SOFTMAX, state=resumed, callbacks=[Fault(lose)],
                min_workers=2, wait_s=1.0,
            )  # fmt: skip
        assert resumed.load()["progress"]["epoch"] >= 2
        wait_until(lambda: count_members(client) == 0)
        there = train_there(client, rows, SOFTMAX, tmp_path / "there", state=resumed)
    assert_same(undisturbed, tmp_path / "here", there, tmp_path / "there")


def test_losses_without_end_end_the_run(client, rows, resumed, monkeypatch):
    monkeypatch.setattr(remote_calls, "_SETTLE_S", 0.1)

    def fall(dask_worker):
        seats = dask_worker.extensions["dtopk"].seats
        for seat in list(seats.values()):
            seat.end()

    class Losses(Callback):
        def on_rows(self, rows):
            client.run(fall)

    with pytest.raises(ClusterError, match=r"lost workers 5 times in a row and got no further"):
        train_there(client, rows, SOFTMAX, state=resumed, callbacks=[Losses()])


def test_error_of_a_member_is_raised_as_it_is(rows, resumed, client, monkeypatch):
    def fill(dask_worker):
        import errno

        def write(*arguments, **known):
            raise CheckpointError("no room") from OSError(errno.ENOSPC, "no space left")

        [seat] = dask_worker.extensions["dtopk"].seats.values()
        # A dataclass that cannot be changed.
        object.__setattr__(seat.member.state, "write_array", write)

    with pytest.raises(CheckpointError, match="no room") as caught:
        train_there(
            client, rows, SOFTMAX, state=resumed,
            callbacks=[Fault(lambda: client.run(fill, workers=[sorted(client.nthreads())[1]]))],
        )  # fmt: skip
    assert isinstance(caught.value.__cause__, OSError)
    assert any("worker" in note for note in caught.value.__notes__)
    wait_until(lambda: count_members(client) == 0)


LEAD = """
import sys, time, os, signal
from distributed import Client
from dtopk.engine import Callback, StoreRows
from dtopk_storage import open_run_state, open_store
from tests.cluster_runs import LOSSES, train_there

class Slow(Callback):
    def on_epoch(self, record, W):
        print(record.epoch, flush=True)
        if record.epoch == 2:
            time.sleep(600)

address, store, state = sys.argv[1:]
rows = StoreRows(open_store(store), "train")
with Client(address, set_as_default=False) as client:
    train_there(client, rows, LOSSES["softmax"], state=open_run_state(state), callbacks=[Slow()])
"""


def start_lead(*arguments):
    return subprocess.Popen(
        [sys.executable, "-c", LEAD, *map(str, arguments)],
        stdout=subprocess.PIPE,
        text=True,
        cwd=os.getcwd(),
        env=os.environ | {"PYTHONPATH": os.pathsep.join([os.getcwd(), os.getcwd() + "/storage"])},
    )


def test_killed_lead_frees_its_members_and_its_run_goes_on(
    client, rows, tmp_path, undisturbed, resumed
):
    lead = start_lead(client.scheduler.address, rows.store.path, resumed.url)
    try:
        assert [int(lead.stdout.readline()) for _ in range(2)] == [1, 2]
        assert count_members(client) == 2
    finally:
        lead.kill()
        lead.communicate()
    wait_until(lambda: count_members(client) == 0, 60)
    there = train_there(client, rows, SOFTMAX, tmp_path / "there", state=resumed)
    assert_same(undisturbed, tmp_path / "here", there, tmp_path / "there")


def test_killed_scheduler_ends_the_run_in_time(rows, tmp_path, resumed):
    with started_cluster(tmp_path, 2) as (address, processes):
        # A client gives up after this time; by default it is 30 s.
        with Client(address, set_as_default=False, timeout=5) as client:
            client.wait_for_workers(2, timeout=60)
            killed = 0.0

            def kill():
                nonlocal killed
                killed = time.monotonic()
                processes[0].kill()

            with pytest.raises(ClusterError, match=r"scheduler .* goes on from its last commit"):
                train_there(client, rows, SOFTMAX, state=resumed, callbacks=[Fault(kill)])
            assert time.monotonic() - killed < 45
    assert resumed.load()["progress"]["epoch"] >= 1


def test_state_that_workers_do_not_see_is_refused(client, rows, resumed, monkeypatch):
    # What is written here does not get there.
    monkeypatch.setattr(RunState, "write_array", lambda self, *arguments, **known: 0)
    with pytest.raises(CheckpointError, match="must be in a folder that all workers see"):
        train_there(client, rows, SOFTMAX, state=resumed)
