"""Scheduler and workers of a batch job, as its script starts them."""

import os
import re
import signal
import time

import dask
import psutil
import pytest

from dtopk.launch import ClusterOptions, describe_workers, open_cluster
from dtopk.launch.rank import main
from dtopk.launch.settings import DASK_SETTINGS, THREAD_VARIABLES

ENDS_S = 60.0
"""Seconds in which processes that must end have ended, on a machine with other work."""


@pytest.fixture
def start_ranks(start, tmp_path):
    def start_ranks(*options):
        file = ("--scheduler-file", "scheduler.json")
        scheduler = start("-m", "dtopk.launch.rank", "scheduler", *file, *options)
        worker = start(
            "-m", "dtopk.launch.rank", "worker", *file, "--nthreads", "3", "--nworkers", "2",
            "--memory-limit", "1000000000", "--name", "n1", "--local-directory", str(tmp_path),
            *options,
        )  # fmt: skip
        return scheduler, worker

    return start_ranks


@pytest.mark.slow
def test_ranks_serve_a_run_with_tls_and_end_with_the_scheduler(start_ranks, certificates, tmp_path):
    files = {"ca-file": certificates.ca, "cert": certificates.cert, "key": certificates.key}
    tls = [word for name, path in files.items() for word in (f"--tls-{name}", path)]
    scheduler, worker = start_ranks(*tls)
    options = ClusterOptions(
        kind="scheduler", scheduler=str(tmp_path / "scheduler.json"), min_workers=2, wait_s=ENDS_S,
        **certificates.options,
    )  # fmt: skip
    with open_cluster(options) as client:
        assert client.scheduler.address.startswith("tls://127.0.0.1:")
        workers = describe_workers(client)
        assert {each.name for each in workers} == {"n1/0", "n1/1"}
        assert {(each.threads, each.memory_limit) for each in workers} == {(3, 10**9)}
        assert set(client.run(os.getenv, "OPENBLAS_NUM_THREADS").values()) == {"3"}

        def settings(names):
            return {name: dask.config.get(name) for name in names}

        assert list(client.run(settings, list(DASK_SETTINGS)).values()) == [DASK_SETTINGS] * 2
        processes = [psutil.Process(pid) for pid in (scheduler.pid, worker.pid)]
        processes += [psutil.Process(each.pid) for each in workers]
        listening = {
            connection.laddr.ip
            for process in processes
            for connection in process.net_connections("inet")
            if connection.status == psutil.CONN_LISTEN
        }
        assert listening == {"127.0.0.1"}
        # What a batch system sends before the end is left to the run.
        for process in processes:
            for number in (signal.SIGTERM, signal.SIGUSR1):
                process.send_signal(number)
        time.sleep(0.5)
        assert set(client.run(os.getpid).values()) == {each.pid for each in workers}
    os.kill(scheduler.pid, signal.SIGHUP)
    assert scheduler.wait(ENDS_S) == 0
    assert worker.wait(ENDS_S) == 0
    assert not any(psutil.pid_exists(each.pid) for each in workers)
    assert not list(tmp_path.glob("dtopk-worker-*"))


def test_worker_without_a_scheduler_gives_up(tmp_path, caplog, monkeypatch):
    for name in THREAD_VARIABLES:
        monkeypatch.setenv(name, "1")
    file = tmp_path / "scheduler.json"
    file.write_text('{"address": ')
    handlers = {number: signal.getsignal(number) for number in
                (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)}  # fmt: skip
    try:
        assert main(["worker", "--scheduler-file", str(file), "--death-timeout", "0.6"]) == 1
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
    assert re.search(
        r"^the scheduler must have written its address to '.*scheduler\.json' within 0\.6 s, but",
        caplog.messages[-1],
    )
