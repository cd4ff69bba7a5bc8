"""Small runs on clusters, and the same in one process to compare them with."""

import contextlib
import importlib
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import dask
import numpy as np
from distributed import Client, Nanny, Scheduler, SpecCluster

from dtopk.engine import FitOptions, StoreRows, cluster_fit, fit, fit_on_cluster
from dtopk.engine.memory import MemoryPlan
from dtopk.launch.settings import DASK_SETTINGS
from dtopk.losses import make_loss
from dtopk.testing import make_features
from dtopk_storage import create_store, open_dual, open_store

N, D, M = 480, 10, 5
STREAMED = MemoryPlan(features_in_memory=False, duals_in_memory=False)
LOSSES = {
    "softmax": make_loss("softmax"),
    "smooth hinge": make_loss("topk_hinge_alpha", k=2, gamma=1.0),
}
OPTIONS = {
    "C": 3.0,
    "tol": 1e-9,
    "max_epochs": 3,
    "partitions": 4,
    "rounds_per_epoch": 2,
    "threads": 1,
    "checkpoint_s": 0.0,
}


def make_rows(path, *, n=N, d=D, m=M, chunk_rows=20):
    """Write a store of half-precision features; return its rows."""
    X, y = make_features(n, d, m, seed=3)
    names = [f"class {j}" for j in range(m)]
    with create_store(
        path, n_features=d, class_names=names, chunk_rows=chunk_rows, dtype="float16"
    ) as writer:
        writer.append(X.astype(np.float16), y, split="train")
    return StoreRows(open_store(path), "train")


def streaming(monkeypatch, plan=STREAMED):
    """Have rows and duals streamed, or rows alone, however much memory there is."""
    monkeypatch.setattr(cluster_fit, "_plan", lambda *arguments: plan)
    monkeypatch.setattr(cluster_fit, "_replan", lambda *arguments: plan)
    # The package has a function of the module's name.
    fit_module = importlib.import_module("dtopk.engine.fit")
    monkeypatch.setattr(fit_module, "plan_rows", lambda *arguments: plan)


def train_here(rows, loss, dual_path, **changes):
    """Train in this process."""
    known = {name: changes.pop(name) for name in ("start", "state") if name in changes}
    return fit(rows, loss, FitOptions(**{**OPTIONS, **changes}), dual_path=dual_path, **known)


def train_there(client, rows, loss, dual_path=None, *, options=(), **known):
    """Train on a cluster."""
    chosen = FitOptions(**{**OPTIONS, **dict(options)})
    return fit_on_cluster(client, rows, loss, chosen, dual_path=dual_path, **known)


def assert_same(here, here_duals, there, there_duals):
    """Weights, intercepts and duals are the same to the bit, and so are the figures."""
    assert there.duals_kept
    np.testing.assert_array_equal(there.W, here.W)
    np.testing.assert_array_equal(there.intercept, here.intercept)
    n = open_dual(here_duals).n_samples
    np.testing.assert_array_equal(
        open_dual(there_duals).read(0, n), open_dual(here_duals).read(0, n)
    )
    assert there.certificate == here.certificate
    assert [record.dual_value for record in there.history] == [
        record.dual_value for record in here.history
    ]


@contextlib.contextmanager
def cluster(*threads, **settings):
    """Give a client of one worker for each number of threads; killed ones are replaced."""
    worker = {"nthreads": 1, "memory_limit": 0, "death_timeout": 60, "host": "127.0.0.1"}
    workers = {
        index: {"cls": Nanny, "options": {**worker, "resources": {"threads": number}}}
        for index, number in enumerate(threads)
    }
    scheduler = {
        "cls": Scheduler,
        "options": {"host": "127.0.0.1", "dashboard_address": "127.0.0.1:0"},
    }
    wanted = {
        **DASK_SETTINGS,
        "distributed.worker.preload": ["dtopk.launch.worker_start"],
        "distributed.nanny.pre-spawn-environ": {
            "OPENBLAS_NUM_THREADS": 1, "OMP_NUM_THREADS": 1, "NUMBA_NUM_THREADS": 1,
        },
        **settings,
    }  # fmt: skip
    with (
        dask.config.set(wanted),
        SpecCluster(workers, scheduler, silence_logs="ERROR") as found,
        Client(found, set_as_default=False) as client,
    ):
        client.wait_for_workers(len(threads), timeout=60)
        yield client


@contextlib.contextmanager
def started_cluster(folder, n_workers):
    """Start a scheduler and workers as processes; give its address, and them, itself first."""
    file = folder / "scheduler.json"
    common = ["--no-dashboard", "--scheduler-file", str(file)]
    commands = [["scheduler", "--host", "127.0.0.1", "--port", "0", *common]]
    commands += [["worker", "--nthreads", "1", "--no-nanny", *common]] * n_workers
    root = Path(__file__).parents[1]
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join(map(str, (root, root / "storage"))),
        "DASK_CONFIG": str(root / "deploy" / "dask.yaml"),
        "OPENBLAS_NUM_THREADS": "1",
    }
    processes = [
        subprocess.Popen(
            [sys.executable, "-m", "distributed.cli.dask_" + command, *arguments],
            cwd=folder,
            env=environment,
            stderr=subprocess.DEVNULL,
        )
        for command, *arguments in commands
    ]
    try:
        wait_until(lambda: file.exists() and file.read_text().endswith("}"))
        yield json.loads(file.read_text())["address"], processes
    finally:
        for process in processes:
            process.kill()
            process.wait()


def wait_until(condition, seconds=30.0):
    """Wait for something to come about."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not come about in time"
        time.sleep(0.05)


def count_members(client):
    """Count the members that the workers have, those too that are on their way out."""

    def count(dask_worker):
        members = dask_worker.extensions.get("dtopk")
        return 0 if members is None else len(members.seats) + len(members.leaving)

    return sum(client.run(count).values())


def pids_of(client):
    """Return the workers' processes."""
    return sorted(client.run(os.getpid).values())
