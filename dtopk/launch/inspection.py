"""What the processes of a cluster run with, held against what training wants."""

import logging
import platform
from collections.abc import Iterator, Mapping
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any, TypedDict

from dtopk.launch.errors import ClusterError
from dtopk.launch.workers import ANSWER_S, ask_workers, describe_error, scheduler_address

if TYPE_CHECKING:
    from distributed import Client

logger = logging.getLogger(__name__)

_PACKAGES = ("dtopk", "dask", "distributed", "numpy", "scipy", "numba", "zarr")
_PAUSE = "distributed.worker.memory.pause"
_TTL = "distributed.scheduler.worker-ttl"
_LONG_TTL_S = 120.0
_ADVICE = "deploy/README.md says how to start a cluster with the settings that training wants."


class ProcessFacts(TypedDict):
    """What a process of a cluster runs with; plain values, since another version may make them."""

    versions: dict[str, str]
    """Of Python and of packages, by name; 'none' where one is not installed."""
    settings: dict[str, Any]
    """Dask's settings that can stop a run, by name; times in seconds."""


def describe_process() -> ProcessFacts:
    """Say what this process runs with; it is called in the scheduler and the workers."""
    import dask.config
    from dask.utils import parse_timedelta

    python = ".".join(platform.python_version_tuple()[:2])
    return ProcessFacts(
        versions={"python": python, **{name: _version(name) for name in _PACKAGES}},
        settings={
            _PAUSE: dask.config.get(_PAUSE),
            _TTL: parse_timedelta(dask.config.get(_TTL)),
        },
    )


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "none"


def check_processes(client: "Client") -> None:
    """Refuse a cluster that dtopk is not installed on, and warn of what may go wrong on others.

    Parameters
    ----------
    client : distributed.Client

    Raises
    ------
    ClusterError
        If the scheduler or a worker cannot import dtopk, or does not answer.
    """
    address = scheduler_address(client)
    scheduler = _ask_scheduler(client)
    workers = {
        worker: _facts_or_error(answer, worker)
        for worker, answer in ask_workers(client, describe_process).items()
        if not isinstance(answer, OSError)  # it has gone since
    }
    everywhere = {f"the scheduler {address}": scheduler, **workers}
    for message in (*_other_versions(everywhere), *_risky_settings(scheduler, workers)):
        logger.warning("%s", message)


def _ask_scheduler(client: "Client") -> ProcessFacts:
    async def ask() -> Any:
        return await client.run_on_scheduler(describe_process)

    address = scheduler_address(client)
    answer: Any
    try:
        answer = client.sync(ask, callback_timeout=ANSWER_S)
    except OSError as error:
        raise ClusterError(
            f"the scheduler at {address!r} must answer within {ANSWER_S:g} s, but it does not: "
            f"{describe_error(error)}."
        ) from error
    except Exception as error:
        answer = error
    return _facts_or_error(answer, f"the scheduler {address}")


def _facts_or_error(answer: Any, place: str) -> ProcessFacts:
    if isinstance(answer, Exception):
        raise ClusterError(
            f"dtopk {_version('dtopk')} must be installed where the scheduler and the workers run, "
            f"but {place} cannot load it: {describe_error(answer)}."
        ) from answer
    facts: ProcessFacts = answer
    return facts


def _other_versions(everywhere: Mapping[str, ProcessFacts]) -> Iterator[str]:
    here = describe_process()["versions"]
    for name, own in here.items():
        others = {
            place: facts["versions"].get(name, "none")
            for place, facts in everywhere.items()
            if facts["versions"].get(name, "none") != own
        }
        if others:
            place, other = next(iter(others.items()))
            more = f" and {len(others) - 1} more" if len(others) > 1 else ""
            yield (
                f"{name} must be the same everywhere for the same results, got {own} here and "
                f"{other} on {place}{more}."
            )


def _risky_settings(scheduler: ProcessFacts, workers: Mapping[str, ProcessFacts]) -> Iterator[str]:
    ttl = scheduler["settings"][_TTL]
    if ttl is None or ttl > _LONG_TTL_S:
        found = "for ever" if ttl is None else f"for {ttl:g} s"
        yield (
            f"{_TTL} should be at most {_LONG_TTL_S:g} s: this scheduler takes a worker that "
            f"hangs for alive {found}. {_ADVICE}"
        )
    pausing = [place for place, facts in workers.items() if facts["settings"][_PAUSE]]
    if pausing:
        yield (
            f"{_PAUSE} should be false: {len(pausing)} of {len(workers)} workers stop taking "
            f"work, for good, when they hold more than that share of their memory limit. {_ADVICE}"
        )
