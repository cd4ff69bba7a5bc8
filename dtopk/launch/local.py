"""Workers that are processes of this machine."""

import contextlib
import logging
import os
import tempfile
from collections.abc import Iterator
from typing import Any

import dask
from dask.system import CPU_COUNT
from distributed import Client, LocalCluster

from dtopk.launch.options import ClusterOptions
from dtopk.launch.workers import THREADS_RESOURCE

logger = logging.getLogger(__name__)

_HOST = "127.0.0.1"
"""Whoever reaches a Dask scheduler or worker can run code as its owner: nobody else's machine."""
_THREAD_VARIABLES = (
    "OPENBLAS_NUM_THREADS",
    "OMP_NUM_THREADS",
    "MKL_NUM_THREADS",
    "NUMBA_NUM_THREADS",
)


def owned_threads(options: ClusterOptions) -> int:
    """Return the processor threads that each worker of a local cluster owns."""
    return options.threads_per_worker or max(1, CPU_COUNT // options.workers)


@contextlib.contextmanager
def local_cluster(options: ClusterOptions) -> Iterator[Client]:
    """Start worker processes, and end them."""
    threads = owned_threads(options)
    with (
        tempfile.TemporaryDirectory(prefix="dtopk-workers-") as scratch,
        dask.config.set(_settings(threads)),
        _environment(threads),
        LocalCluster(
            n_workers=options.workers,
            threads_per_worker=1,
            processes=True,
            host=_HOST,
            dashboard_address=f"{_HOST}:0",
            scheduler_kwargs={"dashboard": False},
            memory_limit=options.memory_per_worker_bytes or "auto",
            resources={THREADS_RESOURCE: threads},
            local_directory=scratch,
        ) as cluster,
        Client(cluster, set_as_default=False) as client,
    ):
        yield client


def _settings(threads: int) -> dict[str, Any]:
    variables = dict.fromkeys(_THREAD_VARIABLES, threads)
    return {
        "distributed.comm.timeouts.tcp": "11s",
        "distributed.scheduler.worker-ttl": "15s",
        "distributed.worker.memory.target": False,
        "distributed.worker.memory.spill": False,
        "distributed.worker.memory.pause": False,
        "distributed.nanny.pre-spawn-environ": variables,
    }


@contextlib.contextmanager
def _environment(threads: int) -> Iterator[None]:
    """Set the variables that workers inherit; leave the process's own as they were."""
    before = {name: os.environ.get(name) for name in (*_THREAD_VARIABLES, "PYTHONHASHSEED")}
    os.environ.update(dict.fromkeys(_THREAD_VARIABLES, str(threads)))
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
