"""The workers that a job is spread over: open them, cut the work for them, see what they see."""

import asyncio
import contextlib
import dataclasses
import logging
import os
import uuid
from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from dtopk.job.cluster_config import ClusterSection
from dtopk.job.problem import Problem
from dtopk.job.resumption import store_checksum
from dtopk.job.run_folder import RunFolder
from dtopk.launch import ClusterError, describe_workers, wait_for_workers
from dtopk.launch.workers import ask_workers, read_identity
from dtopk_storage import RunState, open_store
from dtopk_storage.paths import AnyPath

if TYPE_CHECKING:
    from dtopk.launch import Client

logger = logging.getLogger(__name__)

_PROBE = "probe"
_SIGHT_S = 10.0
"""What another host has just written may take some seconds to be seen."""
_LOOK_S = 0.25


@contextlib.contextmanager
def open_workers(section: ClusterSection, client: "Client | None") -> "Iterator[Client | None]":
    """Give a client of the workers that a job asks for, or the caller's own; None: no workers.

    Parameters
    ----------
    section : ClusterSection
    client : distributed.Client or None
        Left open.

    Raises
    ------
    ValueError, ClusterError
        As `dtopk.launch.open_cluster`.
    """
    if client is not None:
        wait_for_workers(client, section.min_workers, section.wait_s)
        yield client
    elif section.kind == "none":
        yield None
    else:
        # Imported here: Dask takes most of a second.
        from dtopk.launch import open_cluster

        with open_cluster(section.make_options()) as opened:
            yield opened


def spread_problem(problem: Problem, client: "Client | None", threads_before: int) -> Problem:
    """Decide how the work is cut and how many threads a part has, where the job leaves it open.

    Parameters
    ----------
    problem : Problem
    client : distributed.Client or None
    threads_before : int
        Threads where the run began; 0: it begins now.

    Returns
    -------
    Problem
        Its job has the numbers by which workers get the same bits again.
    """
    cluster = problem.job.cluster
    if client is None:
        threads = problem.options.threads or _take_threads(threads_before)
        cluster = dataclasses.replace(cluster, partitions=cluster.partitions or 1)
        return problem.spread(cluster, threads)
    workers = describe_workers(client)
    if not workers:
        raise ClusterError("workers must answer, but there is none that does.")
    least = min(worker.threads for worker in workers)
    cluster = dataclasses.replace(
        cluster,
        partitions=cluster.partitions or len(workers),
        threads_per_partition=cluster.threads_per_partition or threads_before or least,
    )
    scheduler = getattr(client.scheduler, "address", "unknown")
    logger.info("Training on %d workers of the scheduler %s.", len(workers), scheduler)
    if cluster.kind == "scheduler" and "dashboard" in read_identity(client)["services"]:
        logger.info("Dashboard of the workers: %s", client.dashboard_link)
    return problem.spread(cluster, cluster.threads_per_partition)


def _take_threads(before: int) -> int:
    """Take as many threads as the run began with, if the machine has them; else all there are."""
    cores = len(os.sched_getaffinity(0))
    if before > cores:
        logger.warning(
            "The run began with %d threads, and this machine has %d: the last digits of its "
            "result may differ from those of a run that was never stopped.",
            before,
            cores,
        )
    return before if 0 < before <= cores else 0


def check_sight(client: "Client", problem: Problem, folder: RunFolder, state: RunState) -> None:
    """Refuse workers that do not see the rows, or what the run writes for them to read.

    Parameters
    ----------
    client : distributed.Client
    problem : Problem
    folder : RunFolder
    state : RunState

    Raises
    ------
    ValueError
        With the worker and the path.
    """
    path, checksum = problem.store.path, store_checksum(problem.store)
    _check(client, partial(_look_at_store, path, checksum), "data.store", path)
    token = uuid.uuid4().int >> 66
    state.write_array(_PROBE, _PROBE, np.array([token]))
    try:
        look: Callable[[], Any] = partial(_look_at_state, state, token, _SIGHT_S)
        _check(client, look, "state of the run", state.url)
    finally:
        state.delete_leftovers()
    if problem.job.output.save_dual:
        probe = folder.path / f".{_PROBE}-{token}"
        probe.write_bytes(b"")
        try:
            look = partial(_look_at_file, probe, _SIGHT_S)
            _check(client, look, "output.run_dir", str(folder.path))
        finally:
            probe.unlink(missing_ok=True)


def _check(client: "Client", look: Callable[[], Any], what: str, where: str) -> None:
    """Have every worker look at something, and refuse it if one of them finds fault with it."""
    for worker, fault in ask_workers(client, partial(_name_fault, look)).items():
        # A worker that does not answer has gone since, and is waited for by the run itself.
        if fault and not isinstance(fault, OSError):
            raise ValueError(
                f"{what} must be seen by every worker as it is here, got {where!r}, where the "
                f"worker {worker} finds another thing: {str(fault).rstrip('.')}. Put it where all "
                "hosts see it under this name."
            )


async def _name_fault(look: Callable[[], Any]) -> str:
    """Look at something in a worker; say what is wrong with it, empty: nothing."""
    try:
        await look()
    except (OSError, ValueError) as error:
        return str(error) or type(error).__name__
    return ""


async def _look_at_store(path: str, checksum: str) -> None:
    if store_checksum(open_store(path)) != checksum:
        raise ValueError("it is another store, whose manifest has another checksum")


async def _look_at_state(state: RunState, token: int, seconds: float) -> None:
    read = await _wait_for(lambda: state.read_array(_PROBE, _PROBE), seconds)
    if read.tolist() != [token]:
        raise ValueError("it holds something else")
    state.write_array(_PROBE, uuid.uuid4().hex, read)


async def _look_at_file(path: AnyPath, seconds: float) -> None:
    await _wait_for(path.read_bytes, seconds)


async def _wait_for(look: Callable[[], Any], seconds: float) -> Any:
    """Look until there is something to be seen, for so long."""
    for _ in range(round(seconds / _LOOK_S)):
        with contextlib.suppress(OSError, ValueError):
            return look()
        await asyncio.sleep(_LOOK_S)
    return look()
