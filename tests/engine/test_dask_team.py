"""Training on a cluster: the same bits as in one process, whoever does the work."""

import gc
import os
import pickle
import signal
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import psutil
import pytest
from distributed import Client
from distributed.comm.core import CommClosedError

from dtopk.engine import Callback, StartPoint
from dtopk.engine.dask_team import DaskTeam, _share_out
from dtopk.engine.remote_calls import Call, RemoteCalls, read_reply
from dtopk.launch import ClusterOptions, open_cluster
from dtopk_storage import DatasetError, open_dual, open_run_state
from tests.cluster_runs import (
    LOSSES,
    M,
    N,
    assert_same,
    cluster,
    count_members,
    make_rows,
    streaming,
    train_here,
    train_there,
    wait_until,
)
from tests.launch.conftest import certificates

__all__ = ["certificates"]  # a fixture

MESSAGE_BYTES = 1_000_000
"""Most bytes of a message by way of the scheduler."""


@pytest.fixture(scope="module")
def rows(tmp_path_factory):
    return make_rows(tmp_path_factory.mktemp("store") / "features")


@pytest.fixture(scope="module", params=[1, 4])
def other_client(request):
    with cluster(*[1] * request.param) as client:
        yield client


def compare(client, rows, folder, loss, monkeypatch, *, streamed=False, **options):
    states = {}
    if streamed:
        streaming(monkeypatch)
        states = {name: open_run_state(folder / name / "state") for name in ("here", "there")}
    here = train_here(rows, LOSSES[loss], folder / "d", state=states.get("here"), **options)
    there = train_there(
        client, rows, LOSSES[loss], folder / "e", options=options, state=states.get("there")
    )
    assert_same(here, folder / "d", there, folder / "e")
    return there


@pytest.mark.parametrize("streamed", [False, True], ids=["in memory", "streamed"])
@pytest.mark.parametrize("loss", LOSSES)
def test_two_workers_give_the_bits_of_one_process(
    client, rows, tmp_path, monkeypatch, loss, streamed
):
    compare(client, rows, tmp_path, loss, monkeypatch, streamed=streamed)
    wait_until(lambda: count_members(client) == 0)


@pytest.mark.parametrize(
    ("solver", "loss"),
    [
        ("frank_wolfe", "smooth hinge"),
        ("lbfgs", "softmax"),
        ("gradient_descent", "softmax"),
        ("block_frank_wolfe", "smooth hinge"),
    ],
)
def test_every_solver_gives_the_bits_of_one_process(
    client, rows, tmp_path, monkeypatch, solver, loss
):
    there = compare(client, rows, tmp_path, loss, monkeypatch, solver=solver, C=0.1)
    assert there.solver == solver


def test_one_and_four_workers_give_the_bits_of_one_process(
    other_client, rows, tmp_path, monkeypatch
):
    result = compare(other_client, rows, tmp_path / "a", "softmax", monkeypatch)
    assert (result.history[-1].bytes_moved > 0) == (len(other_client.nthreads()) > 1)
    compare(other_client, rows, tmp_path / "b", "smooth hinge", monkeypatch, streamed=True)


def test_one_partition_goes_to_one_worker(client, rows, tmp_path, monkeypatch):
    options = {"partitions": 1, "rounds_per_epoch": 0, "constant": 1.0, "dtype": "float64"}
    result = compare(client, rows, tmp_path, "softmax", monkeypatch, **options)
    assert {record.bytes_moved for record in result.history} == {0}


def test_acceleration_and_a_run_to_its_tolerance_give_the_bits_of_one_process(
    client, rows, tmp_path, monkeypatch
):
    options = {"C": 30.0, "tol": 1e-2, "max_epochs": 60, "constant": 1.0}
    result = compare(client, rows, tmp_path, "smooth hinge", monkeypatch, **options)
    assert result.certificate.certified
    assert max(record.acceleration for record in result.history) > 1


@pytest.mark.parametrize("kind", ["weights", "duals"])
@pytest.mark.parametrize("direct", [True, False], ids=["direct", "by way of the scheduler"])
def test_start_gives_the_bits_of_one_process(client, rows, tmp_path, monkeypatch, kind, direct):
    if not direct:
        monkeypatch.setattr(client, "rpc", Unreachable())
    before = train_here(rows, LOSSES["softmax"], tmp_path / "before", max_epochs=2)
    start = StartPoint(W=before.W)
    if kind == "duals":
        start = StartPoint(dual=open_dual(tmp_path / "before"), dual_factor=0.5)
    here = train_here(rows, LOSSES["softmax"], tmp_path / "d", start=start, C=1.5)
    there = train_there(
        client, rows, LOSSES["softmax"], tmp_path / "e", options={"C": 1.5}, start=start
    )
    assert_same(here, tmp_path / "d", there, tmp_path / "e")


class Unreachable:
    """Connections that do not come about."""

    def __call__(self, address):
        return self

    def __getattr__(self, name):
        raise OSError(f"no route for {name}")


def test_workers_that_own_more_threads_have_more_partitions():
    assert _share_out(4, [1, 1]) == (0, 0, 1, 1)
    assert _share_out(8, [1, 3]) == (0, 0, 1, 1, 1, 1, 1, 1)
    assert _share_out(3, [1, 1, 100]) == (0, 1, 2)
    assert _share_out(5, [100, 1, 1]) == (0, 0, 0, 1, 2)
    assert _share_out(1, [4]) == (0,)


def test_reply_that_a_lost_scheduler_keeps_is_no_error_of_the_worker():
    """What has become of the scheduler is found out, and said, by the watch."""
    reply: Future = Future()
    reply.set_exception(CommClosedError("Stream is closed."))
    found = read_reply(Call(member=None, task=None, reply=reply))
    assert found.trouble.kind == "gone"
    assert "connection to the scheduler was lost" in found.trouble.detail


def test_unequal_workers_give_the_bits_of_one_process(rows, tmp_path, monkeypatch):
    with cluster(1, 3) as client:
        compare(client, rows, tmp_path, "softmax", monkeypatch)
        free = train_there(
            client, rows, LOSSES["softmax"], options={"threads": 0, "tol": 1e-2, "max_epochs": 60}
        )
        assert free.certificate.certified


class Recorder(Callback):
    """Writes down all calls."""

    def __init__(self, reads_weights=False):
        self.reads_weights = reads_weights
        self.calls = []

    def on_start(self, info):
        self.calls.append("start")

    def on_rows(self, rows):
        self.calls.append(rows)

    def on_epoch(self, record, W):
        self.calls.append(("epoch", None if W is None else W.copy()))

    def on_end(self, result):
        self.calls.append("end")


def test_callbacks_hear_of_every_epoch_and_of_all_rows(client, rows):
    reader, other = Recorder(reads_weights=True), Recorder()
    result = train_there(client, rows, LOSSES["softmax"], callbacks=[reader, other])
    kinds = [call[0] if isinstance(call, tuple) else call for call in other.calls]
    assert kinds == ["start", *[N, "epoch"] * 3, "end"]
    weights = [call[1] for call in reader.calls if isinstance(call, tuple)]
    np.testing.assert_array_equal(weights[-1], result.W)
    assert not np.array_equal(weights[0], weights[-1])
    alone = Recorder()
    train_there(client, rows, LOSSES["softmax"], callbacks=[alone])
    assert [call[1] for call in alone.calls if isinstance(call, tuple)] == [None] * 3


class Interrupter(Callback):
    """Sends Ctrl-C, once or twice, when an epoch has ended."""

    def __init__(self, epoch, times=1):
        self.epoch, self.times = epoch, times

    def on_epoch(self, record, W):
        if record.epoch == self.epoch:
            for _ in range(self.times):
                os.kill(os.getpid(), signal.SIGINT)


def test_interrupt_ends_with_a_certificate(client, rows, tmp_path):
    result = train_there(
        client, rows, LOSSES["softmax"], tmp_path / "d", callbacks=[Interrupter(2)]
    )
    assert result.stop_reason == "interrupted"
    assert result.epochs == 3
    assert result.duals_kept
    assert result.history[-1].exact
    assert 0 < result.certificate.relative_gap < 0.5


def test_interrupt_reaches_members_that_are_at_work(client, tmp_path):
    rows = make_rows(tmp_path / "big", n=60_000, d=200, m=60, chunk_rows=1000)
    interrupter = AmidRows()
    changes = {"rounds_per_epoch": 1, "max_epochs": 2000}
    result = train_there(client, rows, LOSSES["softmax"], callbacks=[interrupter], options=changes)
    assert result.stop_reason == "interrupted"
    assert result.epochs < 200
    assert interrupter.last > 0


class AmidRows(Callback):
    """Sends Ctrl-C when the first rows are done."""

    def __init__(self):
        self.last = 0

    def on_rows(self, rows):
        if self.last == 0:
            os.kill(os.getpid(), signal.SIGINT)
        self.last = rows


def test_second_interrupt_leaves_at_once_and_frees_the_members(client, rows):
    with pytest.raises(KeyboardInterrupt):
        train_there(client, rows, LOSSES["softmax"], callbacks=[Interrupter(2, times=2)])
    wait_until(lambda: count_members(client) == 0)


def test_corrupt_chunk_is_named_and_so_is_the_worker(client, tmp_path):
    rows = make_rows(tmp_path / "features")
    chunk = tmp_path / "features" / "features" / "c" / "7" / "0"
    raw = bytearray(chunk.read_bytes())
    raw[10] ^= 1
    chunk.write_bytes(raw)
    with pytest.raises(DatasetError, match="chunk 7") as caught:
        train_there(client, rows, LOSSES["softmax"])
    assert any("worker" in note and "tcp://" in note for note in caught.value.__notes__)
    wait_until(lambda: count_members(client) == 0)


def test_store_that_workers_see_otherwise_is_refused(client, rows, tmp_path):
    other = make_rows(tmp_path / "other", n=N + 20)
    other.store = replace(other.store, path=rows.store.path)
    with pytest.raises(DatasetError, match="must be the same for the worker"):
        train_there(client, other, LOSSES["softmax"])


def test_streamed_duals_need_a_state(client, rows, monkeypatch):
    streaming(monkeypatch)
    with pytest.raises(ValueError, match=r"^state must be given, .* got None\."):
        train_there(client, rows, LOSSES["softmax"])


def test_members_reach_each_other_by_tls(certificates, rows, tmp_path, monkeypatch):
    options = ClusterOptions(
        kind="local", workers=2, threads_per_worker=1, dashboard=False, **certificates.options
    )
    with open_cluster(options) as client:
        assert all(address.startswith("tls://") for address in client.nthreads())
        compare(client, rows, tmp_path, "softmax", monkeypatch)


def test_scheduler_keeps_one_group_of_tasks_of_a_run(client, rows):
    """With one for each call, a scheduler that serves many runs would grow with every epoch."""

    def count(dask_scheduler):
        spans = dask_scheduler.extensions["spans"].spans.values()
        return len(spans), sum(len(span.groups) for span in spans)

    n_spans, n_groups = client.run_on_scheduler(count)
    train_there(client, rows, LOSSES["softmax"])
    assert client.run_on_scheduler(count) == (n_spans + 1, n_groups + 1)


def test_nothing_large_goes_by_way_of_the_scheduler(client, tmp_path, monkeypatch):
    d, m = 3000, 100
    rows = make_rows(tmp_path / "wide", d=d, m=m)
    sizes = []
    submit, gather, run = Client.submit, Client._gather, Client._run

    def submitting(self, function, *arguments, **known):
        sizes.append(len(pickle.dumps((arguments, known["key"]))))
        return submit(self, function, *arguments, **known)

    async def gathering(self, *arguments, **known):
        came = await gather(self, *arguments, **known)
        sizes.append(len(pickle.dumps(came)))
        return came

    async def running(self, *arguments, **known):
        came = await run(self, *arguments, **known)
        sizes.append(len(pickle.dumps(came)) + len(pickle.dumps(arguments[1:])))
        return came

    monkeypatch.setattr(Client, "submit", submitting)
    monkeypatch.setattr(Client, "_gather", gathering)
    monkeypatch.setattr(Client, "_run", running)
    W = np.zeros((d, m), np.float32)
    assert W.nbytes > MESSAGE_BYTES
    result = train_there(client, rows, LOSSES["softmax"], start=StartPoint(W=W))
    assert result.W.nbytes > MESSAGE_BYTES
    assert len(sizes) > 40
    assert max(sizes) < MESSAGE_BYTES / 4
    # Where the workers cannot be reached from here, weights go that way, in pieces.
    sizes.clear()
    monkeypatch.setattr(client, "rpc", Unreachable())
    other = train_there(client, rows, LOSSES["softmax"], start=StartPoint(W=W))
    np.testing.assert_array_equal(other.W, result.W)
    assert MESSAGE_BYTES / 4 < max(sizes) < MESSAGE_BYTES


def test_memory_is_given_back(client, tmp_path):
    # large beside the few MB by which the allocator's share and Dask's logs move from run to run
    rows = make_rows(tmp_path / "big", n=20_000, d=32, m=1200, chunk_rows=1000)

    def memory():
        return sum(psutil.Process(pid).memory_info().rss for pid in client.run(os.getpid).values())

    peak = 0

    class Memory(Callback):
        def on_epoch(self, record, W):
            nonlocal peak
            peak = max(peak, memory())

    train_there(client, rows, LOSSES["softmax"], options={"max_epochs": 1})
    wait_until(lambda: count_members(client) == 0)
    before = memory()
    train_there(client, rows, LOSSES["softmax"], options={"max_epochs": 2}, callbacks=[Memory()])
    wait_until(lambda: count_members(client) == 0)
    duals = 20_000 * 1200 * 4
    assert peak > before + duals
    wait_until(lambda: memory() < before + duals / 4)


def test_client_and_scheduler_keep_next_to_nothing_of_a_run(client, rows):
    def look(dask_scheduler):
        spans = dask_scheduler.extensions["spans"].spans
        return len(spans), set(dask_scheduler.task_groups), set(dask_scheduler.get_events())

    def train(n_times):
        for _ in range(n_times):
            train_there(client, rows, LOSSES["softmax"], options={"max_epochs": 4})
            wait_until(lambda: count_members(client) == 0)
            gc.collect()

    def counts():
        return tuple(
            sum(isinstance(each, kind) for each in gc.get_objects())
            for kind in (DaskTeam, RemoteCalls)
        )

    train(1)
    n_spans, groups, topics = client.run_on_scheduler(look)
    kept = counts()
    train(2)
    more_spans, more_groups, more_topics = client.run_on_scheduler(look)
    assert more_spans <= n_spans + 2
    assert more_groups <= groups
    assert {topic for topic in more_topics - topics if topic.startswith("dtopk")} == set()
    assert counts() <= kept


def test_two_runs_at_a_time_do_not_meet(client, rows, tmp_path):
    here = [train_here(rows, loss, tmp_path / f"d{i}") for i, loss in enumerate(LOSSES.values())]
    with ThreadPoolExecutor(2) as pool:
        there = list(
            pool.map(
                lambda i: train_there(client, rows, [*LOSSES.values()][i], tmp_path / f"e{i}"),
                range(2),
            )
        )
    for i in range(2):
        assert_same(here[i], tmp_path / f"d{i}", there[i], tmp_path / f"e{i}")
        assert there[i].W.shape[1] == M
