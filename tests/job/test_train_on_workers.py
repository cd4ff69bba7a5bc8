"""A job on workers: the bits of one process, what is written of it, and what workers must see."""

import dataclasses
import shutil
from pathlib import Path

import numpy as np
import pytest

from dtopk.engine import Callback
from dtopk.job import (
    ClusterSection,
    DataSection,
    OutputSection,
    SolverSection,
    load_job,
    train,
    workers,
)
from dtopk.job.run_folder import RunFolder
from dtopk.launch import ClusterError
from dtopk_storage import open_dual
from tests.small_stores import make_store

pytestmark = pytest.mark.usefixtures("no_figures")

SOLVER = SolverSection(tol=1e-6, dtype="float64")
THREE = ClusterSection(partitions=3, threads_per_partition=1, checkpoint_s=0.0)


@pytest.fixture
def make_spread(make_job):
    """Make a job of three partitions."""

    def make_spread(run_dir, **sections):
        return make_job(run_dir, **({"solver": SOLVER, "cluster": THREE} | sections))

    return make_spread


def assert_same_run(one, other):
    np.testing.assert_array_equal(one.model.W, other.model.W)
    assert one.certificate == other.certificate
    n = open_dual(one.run_dir / "dual").n_samples
    duals = [open_dual(result.run_dir / "dual").read(0, n) for result in (one, other)]
    np.testing.assert_array_equal(*duals)


class FailAfter(Callback):
    def __init__(self, epoch):
        self._epoch = epoch

    def on_epoch(self, record, W):
        if record.epoch == self._epoch:
            raise RuntimeError("the callback broke")


class Watch(Callback):
    """Note whether weights come, as they do where another callback reads them."""

    def __init__(self):
        self.has_weights = []

    def on_epoch(self, record, W):
        self.has_weights.append(W is not None)


def test_job_on_workers_has_the_bits_of_one_process(store, make_spread, client):
    alone = train(store, make_spread("alone"))
    spread = train(store, make_spread("spread"), client=client)
    assert_same_run(alone, spread)
    assert spread.topk_accuracy == alone.topk_accuracy
    assert max(record.bytes_moved for record in spread.history) > 0
    assert not (spread.run_dir / "state").exists()
    assert [path.name for path in spread.run_dir.iterdir() if path.name.startswith(".")] == []


def test_job_names_the_scheduler_whose_workers_it_takes(store, make_spread, client, caplog):
    """They are there for others afterwards."""
    cluster = dataclasses.replace(THREE, kind="scheduler", scheduler=client.scheduler.address)
    with caplog.at_level("INFO", logger="dtopk.job"):
        spread = train(store, make_spread("spread", cluster=cluster))
    assert f"Training on 2 workers of the scheduler {client.scheduler.address}." in caplog.text
    assert_same_run(train(store, make_spread("alone")), spread)
    assert len(client.scheduler_info()["workers"]) == 2


@pytest.mark.parametrize("first", ["workers", "one process"])
def test_run_goes_on_with_workers_or_without(store, make_spread, client, first):
    undisturbed = train(store, make_spread("undisturbed"))
    clients = [client, None] if first == "workers" else [None, client]
    with pytest.raises(RuntimeError, match="the callback broke"):
        train(store, make_spread("broken"), client=clients[0], callbacks=[FailAfter(4)])
    resumed = train(store, make_spread("broken"), client=clients[1])
    assert resumed.resumed_at == (3,)
    assert_same_run(undisturbed, resumed)


def test_numbers_left_to_be_chosen_are_written_and_kept(store, make_spread, client):
    """Two workers of one thread: the run has two partitions, also where it goes on alone."""
    open_numbers = ClusterSection(checkpoint_s=0.0)
    with pytest.raises(RuntimeError, match="the callback broke"):
        train(
            store, make_spread("run", cluster=open_numbers), client=client,
            callbacks=[FailAfter(3)],
        )  # fmt: skip
    job = load_job(Path(make_spread("run").output.run_dir) / "job.toml")
    assert (job.cluster.partitions, job.cluster.threads_per_partition) == (2, 1)
    resumed = train(store, make_spread("run", cluster=open_numbers))
    assert resumed.resumed_at == (2,)
    two = dataclasses.replace(THREE, partitions=2)
    assert_same_run(train(store, make_spread("two", cluster=two)), resumed)


def test_run_that_began_alone_has_its_threads_on_workers(store, make_spread, client):
    alone = ClusterSection(checkpoint_s=0.0, partitions=2)
    with pytest.raises(RuntimeError, match="the callback broke"):
        train(store, make_spread("run", cluster=alone), callbacks=[FailAfter(3)])
    folder = RunFolder(path=Path(make_spread("run").output.run_dir))
    threads = folder.read_record().threads
    resumed = train(store, make_spread("run", cluster=alone), client=client)
    assert resumed.resumed_at == (2,)
    assert load_job(folder.job).cluster.threads_per_partition == threads


def test_weights_come_to_the_process_that_leads_where_they_are_read(store, make_spread, client):
    for data, expected in ((DataSection(), False), (DataSection(validation="test"), True)):
        watch = Watch()
        run = f"run-{expected}"
        result = train(store, make_spread(run, data=data), client=client, callbacks=[watch])
        assert set(watch.has_weights) == {expected}
    header, *_, last = (result.run_dir / "history.csv").read_text().splitlines()
    assert "test/top_1_accuracy" in header
    accuracy = dict(zip(header.split(","), last.split(","), strict=True))["test/top_1_accuracy"]
    assert float(accuracy) == result.topk_accuracy["test"][1]


def test_more_partitions_than_blocks_leave_no_run_folder(store, make_spread, client):
    job = make_spread("run", cluster=ClusterSection(partitions=1000))
    with pytest.raises(ValueError, match="partitions must be at most the"):
        train(store, job, client=client)
    with pytest.raises(ValueError, match=r"partitions must be .* Set by cluster\.partitions of"):
        train(store, job)
    assert not Path(job.output.run_dir).exists()


def test_store_that_workers_do_not_see_is_named_with_one_of_them(
    store, make_spread, client, monkeypatch
):
    """Workers find another store under the path than this process did."""
    moved = Path(shutil.move(store.path, f"{store.path}-first"))
    make_store(Path(store.path), n_train=130)
    shutil.move(store.path, f"{store.path}-second")
    shutil.move(moved, store.path)
    ask = workers.ask_workers

    def ask_elsewhere(client, function):
        shutil.move(store.path, moved)
        shutil.move(f"{store.path}-second", store.path)
        return ask(client, function)

    monkeypatch.setattr(workers, "ask_workers", ask_elsewhere)
    job = make_spread("run")
    with pytest.raises(
        ValueError,
        match=r"data\.store must be seen by every worker as it is here, got .* where the worker "
        r"tcp://127.* finds another thing: it is another store",
    ):
        train(store, job, client=client)
    assert not Path(job.output.run_dir).exists()


@pytest.fixture
def impatient(monkeypatch):
    monkeypatch.setattr(workers, "_SIGHT_S", 0.5)


@pytest.mark.usefixtures("impatient")
def test_state_that_workers_do_not_see_is_refused(store, make_spread, client, tmp_path):
    """An address in this process's memory."""
    output = OutputSection(run_dir=str(tmp_path / "run"), state_url="memory://states")
    with pytest.raises(
        ValueError, match=r"state of the run must be seen by every worker .* is missing"
    ):
        train(store, make_spread("run", output=output), client=client)
    assert not (tmp_path / "run").exists()


@pytest.mark.usefixtures("impatient")
def test_run_folder_that_workers_do_not_see_is_refused(
    store, make_spread, client, tmp_path, monkeypatch
):
    """The state is where they see it; what is written in the folder is gone when they look."""
    output = OutputSection(run_dir=str(tmp_path / "run"), state_url=str(tmp_path / "states"))
    ask = workers.ask_workers

    def ask_elsewhere(client, function):
        for probe in (tmp_path / "run").glob(".probe-*"):
            probe.unlink()
        return ask(client, function)

    monkeypatch.setattr(workers, "ask_workers", ask_elsewhere)
    with pytest.raises(ValueError, match=r"output\.run_dir must be seen by every worker as it is"):
        train(store, make_spread("run", output=output), client=client)
    assert not (tmp_path / "run").exists()


def test_workers_that_do_not_come_end_the_command_and_leave_no_folder(store, make_spread, client):
    job = make_spread("run", cluster=dataclasses.replace(THREE, min_workers=3, wait_s=0.5))
    with pytest.raises(ClusterError, match=r"min_workers = 3 workers must be there within 0\.5 s"):
        train(store, job, client=client)
    assert not Path(job.output.run_dir).exists()


def test_record_has_the_threads_of_a_partition(store, make_spread, client):
    result = train(store, make_spread("run"), client=client)
    assert RunFolder(path=result.run_dir).read_record().threads == 1
