"""Local clusters: worker processes of this machine."""

import json
import logging
import os
import signal
import sys
import tempfile
import time

import dask
import psutil
import pytest
from distributed import default_client

from dtopk.launch import ClusterOptions, describe_workers, open_cluster
from dtopk.launch import local as local_module
from dtopk.launch.settings import DASK_SETTINGS

GONE_S = 10.0
"""Seconds in which processes that must end have ended, on a machine with other work."""


def local(**options):
    return ClusterOptions(**({"kind": "local", "workers": 1, "dashboard": False} | options))


def wait_until(condition, seconds=GONE_S):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not come about in time"
        time.sleep(0.05)


def test_local_workers_own_the_threads_they_were_given(client):
    workers = describe_workers(client)
    assert [worker.threads for worker in workers] == [1, 1]
    for name in ("OPENBLAS_NUM_THREADS", "NUMBA_NUM_THREADS"):
        assert set(client.run(os.getenv, name).values()) == {"1"}


def test_local_workers_run_one_task_at_a_time(client):
    assert client.nthreads() == dict.fromkeys(client.nthreads(), 1)


def test_local_workers_import_no_tracking_and_no_figures():
    def loaded():
        return {name.partition(".")[0] for name in sys.modules}

    # Workers that have done nothing yet.
    with open_cluster(local()) as client:
        [modules] = client.run(loaded).values()
    assert not modules & {"mlflow", "matplotlib", "pandas", "sklearn", "scipy", "numba"}


def test_local_workers_are_described_as_they_are(client):
    workers = describe_workers(client)
    assert [worker.address for worker in workers] == sorted(client.run(os.getpid))
    assert {worker.pid for worker in workers} == set(client.run(os.getpid).values())
    assert {worker.host for worker in workers} == {"127.0.0.1"}
    assert {worker.name for worker in workers} == {"0", "1"}
    children = {process.pid for process in psutil.Process().children(recursive=True)}
    assert {worker.pid for worker in workers} <= children


def test_local_cluster_listens_to_this_machine_alone(client):
    processes = [psutil.Process(worker.pid) for worker in describe_workers(client)]
    listening = [
        connection.laddr.ip
        for process in [psutil.Process(), *processes]
        for connection in process.net_connections("inet")
        if connection.status == psutil.CONN_LISTEN
    ]
    # Scheduler, two nannies, two workers and their health pages.
    assert len(listening) >= 8
    assert set(listening) == {"127.0.0.1"}


def test_local_cluster_has_the_settings_that_training_wants(client):
    def settings(names):
        return {name: dask.config.get(name) for name in names}

    for found in (settings(DASK_SETTINGS), *client.run(settings, list(DASK_SETTINGS)).values()):
        assert found == DASK_SETTINGS


def test_local_cluster_is_not_the_default_one(client):
    with pytest.raises(ValueError, match="No clients found"):
        default_client()


@pytest.mark.slow
def test_local_cluster_leaves_the_process_and_the_disk_as_they_were(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    (tmp_path / "temporary").mkdir()
    monkeypatch.setenv("OPENBLAS_NUM_THREADS", "7")
    environment, settings = dict(os.environ), dask.config.get("distributed.worker")
    with open_cluster(local(threads_per_worker=3, memory_per_worker_bytes=10**9)) as client:
        assert dict(os.environ) == environment
        assert set(client.run(os.getenv, "OPENBLAS_NUM_THREADS").values()) == {"3"}
        assert set(client.run(os.getenv, "MALLOC_TRIM_THRESHOLD_").values()) == {None}
        [worker] = describe_workers(client)
        assert (worker.threads, worker.memory_limit) == (3, 10**9)
        assert os.listdir(tmp_path) == ["temporary"]
        assert os.listdir(tmp_path / "temporary") != []
    assert dict(os.environ) == environment
    assert dask.config.get("distributed.worker") == settings
    assert os.listdir(tmp_path / "temporary") == []
    assert not psutil.pid_exists(worker.pid)


@pytest.mark.slow
def test_interrupts_are_left_to_the_process_that_trains_and_killed_workers_replaced():
    with open_cluster(local(threads_per_worker=3)) as client:
        [worker] = describe_workers(client)
        os.kill(worker.pid, signal.SIGINT)
        assert client.submit(os.getpid).result() == worker.pid
        os.kill(worker.pid, signal.SIGKILL)
        wait_until(
            lambda: [found.pid for found in describe_workers(client)] not in ([worker.pid], [])
        )
        [other] = describe_workers(client)
        assert (other.name, other.threads) == (worker.name, 3)
        assert client.run(os.getenv, "OPENBLAS_NUM_THREADS") == {other.address: "3"}
        os.kill(other.pid, signal.SIGINT)
        assert client.submit(os.getpid, pure=False).result() == other.pid


@pytest.mark.slow
def test_local_cluster_ends_while_its_workers_are_busy():
    with open_cluster(local()) as client:
        busy = client.submit(time.sleep, 600)
        wait_until(lambda: client.processing() != {} and any(client.processing().values()))
        [worker] = describe_workers(client)
        start = time.monotonic()
        del busy
    assert time.monotonic() - start < GONE_S
    assert not psutil.pid_exists(worker.pid)


@pytest.mark.slow
def test_workers_end_with_the_process_that_started_them(start):
    script = """
import os, time
from dtopk.launch import *
if __name__ == "__main__":
    options = ClusterOptions(kind="local", workers=2, threads_per_worker=1, dashboard=False)
    with open_cluster(options) as client:
        client.submit(time.sleep, 600, pure=False)
        print([worker.pid for worker in describe_workers(client)], flush=True)
        time.sleep(600)
"""
    driver = start("-c", script)
    pids = json.loads(driver.stdout.readline())
    assert len(pids) == 2
    assert all(psutil.pid_exists(pid) for pid in pids)
    driver.kill()
    wait_until(lambda: not any(psutil.pid_exists(pid) for pid in pids))


@pytest.mark.slow
def test_script_without_a_guard_is_told_of_it(start, tmp_path):
    (tmp_path / "script.py").write_text(
        "from dtopk.launch import ClusterOptions, open_cluster\n"
        "with open_cluster(ClusterOptions(kind='local', workers=1, dashboard=False)):\n"
        "    print('opened')\n"
    )
    script = start("script.py")
    out, err = script.communicate(timeout=60)
    assert (script.returncode, out) == (1, "")
    last = err.splitlines()[-1]
    assert last.startswith("dtopk.launch.errors.ClusterError: workers = 1 processes must start")
    assert """must open a local cluster under 'if __name__ == "__main__":'""" in last
    assert "a worker must not start workers" in err


def test_memory_that_the_machine_has_not_is_refused():
    options = local(workers=2, memory_per_worker_bytes=10**15)
    with (
        pytest.raises(
            ValueError, match=r"^memory_per_worker must be at most [\d,]+ bytes, .* over 2 workers"
        ),
        open_cluster(options),
    ):
        pass


def test_memory_is_shared_out_below_what_is_free(client):
    limits = [worker.memory_limit or 0 for worker in describe_workers(client)]
    assert limits[0] == limits[1] > 0
    assert sum(limits) < psutil.virtual_memory().total


@pytest.mark.slow
def test_dashboard_without_bokeh_is_left_out(monkeypatch, caplog):
    monkeypatch.setattr(local_module, "_has_bokeh", lambda: False)
    with (
        caplog.at_level(logging.INFO, logger="dtopk"),
        open_cluster(local(dashboard=True)) as client,
    ):
        assert client.submit(abs, -1).result() == 1
    assert (
        caplog.messages.count(
            "The workers have no dashboard: it needs the package bokeh, 3.1 or newer."
        )
        == 1
    )


def test_kind_without_workers_opens_nothing():
    with (
        pytest.raises(ValueError, match=r"^kind must be 'local' or 'scheduler' for workers to be"),
        open_cluster(ClusterOptions(kind="none")),
    ):
        pass
