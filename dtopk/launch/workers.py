"""The workers of a cluster: which there are, and what each of them owns."""

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from distributed import Client

THREADS_RESOURCE = "threads"
"""Dask resource by which a worker says how many threads its matrix products may use, where that
is not the number of tasks that it runs at a time."""


@dataclass(frozen=True, kw_only=True)
class WorkerInfo:
    """One worker process."""

    address: str
    """Where the other workers reach it, such as tcp://10.0.0.2:41234."""
    name: str
    """What it is called in the scheduler's messages."""
    host: str
    """Address of its machine."""
    threads: int
    """Processor threads that it owns."""
    memory_limit: int | None
    """Bytes above which it is killed; None: no limit."""
    pid: int
    """Its process, on its machine."""


def describe_workers(client: "Client") -> list[WorkerInfo]:
    """List the workers of a cluster, sorted by address."""
    described = client.scheduler_info(n_workers=-1)["workers"]
    pids = client.run(os.getpid)
    return [
        WorkerInfo(
            address=address,
            name=str(fields["name"]),
            host=fields["host"],
            threads=int(fields["resources"].get(THREADS_RESOURCE, fields["nthreads"])),
            memory_limit=fields["memory_limit"] or None,
            pid=pids[address],
        )
        for address, fields in sorted(described.items())
    ]


def wait_for_workers(client: "Client", n: int, timeout_s: float) -> None:
    """Wait until there are so many workers."""
    client.wait_for_workers(n, timeout=timeout_s)
