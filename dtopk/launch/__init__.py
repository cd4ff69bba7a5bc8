"""Where workers come from: processes of this machine, or a Dask cluster that runs already.

`dtopk.launch.submit` has whole runs trained by a batch system.

Dask is imported when a cluster is opened and not before, since that takes most of a second.
"""

from typing import TYPE_CHECKING

from dtopk.launch.errors import ClusterError
from dtopk.launch.options import ClusterOptions
from dtopk.launch.workers import WorkerInfo, describe_workers, wait_for_workers

if TYPE_CHECKING:
    from distributed import Client as Client

    from dtopk.launch.cluster import open_cluster

__all__ = [
    "ClusterError",
    "ClusterOptions",
    "WorkerInfo",
    "describe_workers",
    "open_cluster",
    "wait_for_workers",
]


def __getattr__(name: str) -> object:
    """Import what needs Dask on first use (PEP 562)."""
    if name != "open_cluster":
        raise AttributeError(f"module 'dtopk.launch' has no attribute {name!r}.")
    from dtopk.launch.cluster import open_cluster

    return open_cluster
