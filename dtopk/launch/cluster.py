"""Open the workers that a run asks for."""

from collections.abc import Iterator
from contextlib import contextmanager

from distributed import Client

from dtopk.launch.local import local_cluster
from dtopk.launch.options import ClusterOptions
from dtopk.launch.workers import wait_for_workers


@contextmanager
def open_cluster(options: ClusterOptions) -> Iterator[Client]:
    """Give a client of the workers that a run asks for, and close what was started for it.

    Parameters
    ----------
    options : ClusterOptions
        Of kind 'local'.

    Yields
    ------
    distributed.Client
    """
    if options.kind != "local":
        raise ValueError(f"kind must be 'local' for workers to be opened, got {options.kind!r}.")
    with local_cluster(options) as client:
        wait_for_workers(client, options.min_workers, options.wait_s)
        yield client
