"""Workers that are processes of this machine."""

import contextlib
import importlib.util
import logging
import multiprocessing
import os
import tempfile
from collections.abc import Iterator
from typing import Any

import dask
import psutil
from dask.system import CPU_COUNT
from distributed import Client, LocalCluster

from dtopk.launch.errors import ClusterError
from dtopk.launch.options import ClusterOptions
from dtopk.launch.security import make_security
from dtopk.launch.settings import DASK_SETTINGS, THREAD_VARIABLES
from dtopk.launch.workers import THREADS_RESOURCE, describe_error

logger = logging.getLogger(__name__)

_HOST = "127.0.0.1"
"""Whoever reaches a Dask scheduler or worker can run code as its owner: nobody on other machines
may."""
_GUARD = (
    "A script must open a local cluster under 'if __name__ == \"__main__\":', since every worker "
    "imports it."
)
_SHARE_OF_FREE = 0.9
"""Share of the free memory that the workers get together; the process that trains has the rest."""


@contextlib.contextmanager
def local_cluster(options: ClusterOptions) -> Iterator[Client]:
    """Start worker processes and a scheduler in this process, and end them.

    A worker runs one task at a time, whose matrix products take the threads that it owns. It ends
    with this process, also where that is killed.

    Parameters
    ----------
    options : ClusterOptions
        Of kind 'local'.

    Yields
    ------
    distributed.Client

    Raises
    ------
    ValueError
        If a TLS file is not what it must be, or the machine has not the memory asked for.
    ClusterError
        If the processes do not start.
    """
    _check_main_module()
    threads = options.threads_per_worker or max(1, CPU_COUNT // options.workers)
    security = make_security(options)
    memory_limit = _memory_limit(options)
    with contextlib.ExitStack() as stack:
        # A folder of their own: by default it would be in the working directory.
        scratch = stack.enter_context(tempfile.TemporaryDirectory(prefix="dtopk-workers-"))
        stack.enter_context(dask.config.set(_settings(threads, scratch)))
        # Dask sets what workers inherit in this process, and again when it replaces a worker.
        stack.enter_context(_restoring_environment())
        with _restoring_environment():
            os.environ.update(dict.fromkeys(THREAD_VARIABLES, str(threads)))
            try:
                cluster = LocalCluster(
                    n_workers=options.workers,
                    threads_per_worker=1,
                    resources={THREADS_RESOURCE: threads},
                    memory_limit=memory_limit,
                    processes=True,
                    host=_HOST,
                    dashboard_address=f"{_HOST}:0",
                    scheduler_kwargs={"dashboard": options.dashboard and _has_bokeh()},
                    security=security,
                    local_directory=scratch,
                )
            except (RuntimeError, OSError) as error:
                raise ClusterError(
                    f"workers = {options.workers} processes must start on this machine, but they "
                    f"do not: {describe_error(error)}. {_GUARD}"
                ) from error
        stack.enter_context(cluster)
        client = stack.enter_context(Client(cluster, set_as_default=False))
        if options.dashboard:
            _tell_dashboard(client)
        yield client


def _check_main_module() -> None:
    """Refuse to start workers from a worker that is importing the script which started it."""
    if getattr(multiprocessing.current_process(), "_inheriting", False):
        raise ClusterError(f"a worker must not start workers, but it does. {_GUARD}")


def _settings(threads: int, scratch: str) -> dict[str, Any]:
    return DASK_SETTINGS | {
        "temporary-directory": scratch,  # the scheduler's; by default one that stays
        "distributed.worker.preload": ["dtopk.launch.worker_start"],
        # In place of Dask's own variables: one thread for each library, and MALLOC_TRIM_THRESHOLD_,
        # which makes malloc give back every array that is freed: copying a chunk of 16 MB into a
        # new array then takes twice the time, one of 1 MB ten times.
        "distributed.nanny.pre-spawn-environ": dict.fromkeys(THREAD_VARIABLES, threads),
        # A worker that was killed is back after some seconds; one that takes longer than this is
        # given up for good.
        "distributed.deploy.lost-worker-timeout": "60s",
    }


def _memory_limit(options: ClusterOptions) -> int:
    """Return the bytes that each worker may take."""
    if not options.memory_per_worker_bytes:
        # Imported here: the engine brings the compiler of its kernels along.
        from dtopk.engine.memory import free_memory

        return int(free_memory() * _SHARE_OF_FREE) // options.workers
    total = psutil.virtual_memory().total
    if options.memory_per_worker_bytes * options.workers > total:
        raise ValueError(
            f"memory_per_worker must be at most {total // options.workers:,} bytes, the memory of "
            f"this machine over {options.workers} workers, got "
            f"{options.memory_per_worker_bytes:,}. Start fewer workers, or give each less."
        )
    return options.memory_per_worker_bytes


def _has_bokeh() -> bool:
    return importlib.util.find_spec("bokeh") is not None


def _tell_dashboard(client: Client) -> None:
    if _has_bokeh():
        logger.info("Dashboard of the workers: %s", client.dashboard_link)
    else:
        logger.info("The workers have no dashboard: it needs the package bokeh, 3.1 or newer.")


@contextlib.contextmanager
def _restoring_environment() -> Iterator[None]:
    """Put the variables that workers are started with back to what they were."""
    names = (*THREAD_VARIABLES, "PYTHONHASHSEED")
    before = {name: os.environ.get(name) for name in names}
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
