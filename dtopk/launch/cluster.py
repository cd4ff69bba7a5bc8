"""Open the workers that a run asks for."""

import contextlib
import time
from collections.abc import Iterator

from distributed import Client

from dtopk.launch.connection import scheduler_client
from dtopk.launch.inspection import check_processes
from dtopk.launch.local import local_cluster
from dtopk.launch.options import ClusterOptions
from dtopk.launch.workers import wait_for_workers

_OPENERS = {"local": local_cluster, "scheduler": scheduler_client}


@contextlib.contextmanager
def open_cluster(options: ClusterOptions) -> Iterator[Client]:
    """Give a client of the workers that a run asks for, and end what was started for it.

    The client is not made Dask's default one. While it is open, `DASK_SETTINGS` hold in this
    process.

    Parameters
    ----------
    options : ClusterOptions
        Of kind 'local' or 'scheduler'.

    Yields
    ------
    distributed.Client
        With `min_workers` workers or more.

    Raises
    ------
    ValueError
        If the options ask for no workers, or name a file that is not what it must be.
    ClusterError
        If the workers do not start or come in time, or dtopk is not installed where they run.
    """
    if options.kind not in _OPENERS:
        known = " or ".join(map(repr, _OPENERS))
        raise ValueError(f"kind must be {known} for workers to be there, got {options.kind!r}.")
    deadline = time.monotonic() + options.wait_s
    with _OPENERS[options.kind](options) as client:
        wait_for_workers(client, options.min_workers, max(deadline - time.monotonic(), 0.0))
        if options.kind == "scheduler":
            check_processes(client)
        yield client
