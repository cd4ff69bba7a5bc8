"""The workers of a cluster: which there are, and what each of them owns."""

import logging
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dtopk.launch.errors import ClusterError

if TYPE_CHECKING:
    from distributed import Client

logger = logging.getLogger(__name__)

THREADS_RESOURCE = "threads"
"""Dask resource by which a worker says how many threads its matrix products may use, where that
is not the number of tasks that it runs at a time."""
ANSWER_S = 30.0
"""Seconds in which a process must answer."""
_POLL_S = 0.25
_SILENT_S = 10.0
"""Seconds after which it is said what is waited for."""


@dataclass(frozen=True, kw_only=True)
class WorkerInfo:
    """One worker process."""

    address: str
    """Where the others reach it, such as tcp://10.0.0.2:41234."""
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
    """List the workers that are there and answer.

    A worker owns as many threads as it has of the Dask resource 'threads', as those of a local
    cluster have; where it has none, as many as tasks that it runs at a time (--nthreads).

    Parameters
    ----------
    client : distributed.Client

    Returns
    -------
    list of WorkerInfo
        Sorted by address.

    Raises
    ------
    ClusterError
        If the scheduler or a worker does not answer.
    """
    described = read_identity(client)["workers"]
    pids = ask_workers(client, os.getpid)
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
        if isinstance(pids.get(address), int)
    ]


def wait_for_workers(client: "Client", n: int, timeout_s: float) -> None:
    """Wait until there are so many workers that take tasks.

    Parameters
    ----------
    client : distributed.Client
    n : int
    timeout_s : float
        Seconds to wait, at most.

    Raises
    ------
    ClusterError
        If fewer have come by then, or the scheduler does not answer.
    """
    start = time.monotonic()
    told = False
    while True:
        states = {
            address: str(fields["status"])
            for address, fields in read_identity(client)["workers"].items()
        }
        n_running = list(states.values()).count("running")
        waited = time.monotonic() - start
        if n_running >= n:
            return
        if waited >= timeout_s:
            raise ClusterError(_describe_missing(client, n, timeout_s, states))
        if waited >= _SILENT_S and not told:
            left = timeout_s - waited
            logger.warning("%s of %s workers are there; waiting, %.0f s more.", n_running, n, left)
            told = True
        time.sleep(min(_POLL_S, timeout_s))


def _describe_missing(client: "Client", n: int, timeout_s: float, states: dict[str, str]) -> str:
    running = sorted(address for address, state in states.items() if state == "running")
    others = sorted(
        f"{address} is {state}" for address, state in states.items() if address not in running
    )
    came = f"{len(running)} ({', '.join(running)})" if running else "none"
    besides = f", and {', '.join(others)}" if others else ""
    scheduler = scheduler_address(client)
    return (
        f"min_workers = {n} workers must be there within {timeout_s:g} s, got {came}{besides}. "
        f"At the scheduler {scheduler!r}. Look at the workers' logs, start more of them with "
        f"'dask worker {scheduler}', or set a lower min_workers or a higher wait_s."
    )


def scheduler_address(client: "Client") -> str:
    """Return the address of a client's scheduler, as far as it is known."""
    return str(getattr(client.scheduler, "address", "unknown"))


def read_identity(client: "Client") -> dict[str, Any]:
    """Ask the scheduler what it knows; `Client.scheduler_info` keeps what it knew when it is gone.

    Raises
    ------
    ClusterError
        If it does not answer.
    """
    address = scheduler_address(client)

    async def ask() -> Any:
        # Where the connection is lost, Dask would try for 30 s more; but with it went all that
        # the scheduler knew of this client.
        if client.status != "running" or client.scheduler is None:
            raise OSError("the connection is lost")
        return await client.scheduler.identity(n_workers=-1)

    try:
        identity: dict[str, Any] = client.sync(ask, callback_timeout=ANSWER_S)
        return identity
    except OSError as error:
        raise _describe_no_answer(address, error) from error


def _describe_no_answer(address: str, error: OSError) -> ClusterError:
    return ClusterError(
        f"the scheduler at {address!r} must answer within {ANSWER_S:g} s, but it does not: "
        f"{describe_error(error)}."
    )


def ask_workers(client: "Client", function: Callable[[], Any]) -> dict[str, Any]:
    """Call a function in every worker, between its tasks and not as one.

    Parameters
    ----------
    client : distributed.Client
    function : callable without arguments

    Returns
    -------
    dict of str to object
        By address, what it returned, or the exception that it, or the way to the worker, ended
        with.

    Raises
    ------
    ClusterError
        If a worker does not answer in time, or the scheduler is gone.
    """

    async def ask() -> Any:
        return await client.run(function, on_error="return")

    try:
        answers: dict[str, Any] = client.sync(ask, callback_timeout=ANSWER_S)
        return answers
    except TimeoutError as error:
        raise ClusterError(
            f"workers must answer within {ANSWER_S:g} s, but at least one does not. "
            f"{_describe_silence(client)}"
        ) from error
    except OSError as error:
        raise _describe_no_answer(scheduler_address(client), error) from error


def _describe_silence(client: "Client") -> str:
    now = time.time()
    last_seen = {
        address: now - fields["last_seen"]
        for address, fields in read_identity(client)["workers"].items()
    }
    if not last_seen:
        return "It has gone since."
    address, seconds = max(last_seen.items(), key=lambda item: item[1])
    return f"Silent for longest: {address!r}, {seconds:.0f} s."


def describe_error(error: BaseException) -> str:
    """Return what an error says, or its kind where it says nothing."""
    return str(error).rstrip(".") or type(error).__name__
