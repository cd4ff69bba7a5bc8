"""The workers of a Dask scheduler that runs already."""

import asyncio
import contextlib
import json
import logging
import time
import warnings
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import dask
from distributed import Client, Security, rpc
from distributed.versions import VersionMismatchWarning

from dtopk.launch.errors import ClusterError
from dtopk.launch.options import ClusterOptions, is_address
from dtopk.launch.security import exchange_certificates, make_security
from dtopk.launch.settings import DASK_SETTINGS
from dtopk.launch.workers import describe_error

logger = logging.getLogger(__name__)

_ATTEMPT_S = 5.0
"""Seconds that a try to reach the scheduler takes, at most."""
_LEAST_ATTEMPT_S = 1.0
"""Seconds that the last try is given, however few are left."""
_POLL_S = 0.25
_SILENT_S = 5.0
"""Seconds after which it is said what is waited for."""


@contextlib.contextmanager
def scheduler_client(options: ClusterOptions) -> Iterator[Client]:
    """Connect to a scheduler, which and whose workers run on afterwards.

    Parameters
    ----------
    options : ClusterOptions
        Of kind 'scheduler'.

    Yields
    ------
    distributed.Client

    Raises
    ------
    ValueError
        If the scheduler file or a TLS file is not what it must be.
    ClusterError
        If no scheduler answers within `wait_s` seconds.
    """
    security = make_security(options)
    with dask.config.set(DASK_SETTINGS):
        address = _wait_for_scheduler(options, security)
        with _ignoring_versions():
            client = Client(address, security=security, set_as_default=False)
        with _ignoring_given_up_connections(), client:
            yield client


@contextlib.contextmanager
def _ignoring_versions() -> Iterator[None]:
    """Leave out Dask's table of versions; workers that come later would not be in it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", VersionMismatchWarning)
        yield


@contextlib.contextmanager
def _ignoring_given_up_connections() -> Iterator[None]:
    """Leave out the traceback with which Dask says that a client was closed amid a connection."""

    def is_told(record: logging.LogRecord) -> bool:
        return not (record.exc_info and isinstance(record.exc_info[1], asyncio.CancelledError))

    log = logging.getLogger("distributed.client")
    log.addFilter(is_told)
    try:
        yield
    finally:
        log.removeFilter(is_told)


@dataclass(frozen=True, kw_only=True)
class _NotYet(Exception):
    """The scheduler cannot be reached, as yet."""

    reason: str


def _wait_for_scheduler(options: ClusterOptions, security: Security | None) -> str:
    """Return the address at which a scheduler has answered."""
    _check_folder(options.scheduler)
    start, told, waited = time.monotonic(), False, 0.0
    while True:
        attempt_s = max(min(_ATTEMPT_S, options.wait_s - waited), _LEAST_ATTEMPT_S)
        try:
            address = _read_address(options)
            _probe(address, security, attempt_s)
            return address
        except _NotYet as error:
            reason, cause = error.reason, error.__cause__
        waited = time.monotonic() - start
        if waited >= options.wait_s:
            raise ClusterError(
                f"scheduler must be that of a running cluster, but none answered at "
                f"{options.scheduler!r} within wait_s = {options.wait_s:g} s: {reason}."
            ) from cause
        if waited >= _SILENT_S and not told:
            logger.warning(
                "No scheduler at %r yet: %s. Waiting, %.0f s more.",
                options.scheduler,
                reason,
                options.wait_s - waited,
            )
            told = True
        time.sleep(min(_POLL_S, options.wait_s))


def _check_folder(scheduler: str) -> None:
    """Refuse a scheduler file that no waiting will bring."""
    if is_address(scheduler):
        return
    folder = Path(scheduler).absolute().parent
    if not folder.is_dir():
        raise ValueError(
            f"scheduler must be the path of a scheduler file, got {scheduler!r}, but there is no "
            f"folder {str(folder)!r}."
        )


def _read_address(options: ClusterOptions) -> str:
    """Return the address given, or the one in the scheduler file."""
    if is_address(options.scheduler):
        return options.scheduler
    path = Path(options.scheduler)
    try:
        text = path.read_bytes()
        written_s = time.time() - path.stat().st_mtime
    except FileNotFoundError as error:
        raise _NotYet(reason="there is no such file") from error
    except OSError as error:
        raise ValueError(
            f"scheduler must be a file that can be read, got {options.scheduler!r}: "
            f"{error.strerror}."
        ) from error
    try:
        return _parse_address(text, options)
    except ValueError as error:
        if written_s < _ATTEMPT_S:
            # The scheduler may be writing it.
            raise _NotYet(reason=describe_error(error)) from error
        raise


def _parse_address(text: bytes, options: ClusterOptions) -> str:
    try:
        fields = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(
            f"scheduler must be a file that 'dask scheduler --scheduler-file' wrote, got "
            f"{options.scheduler!r}, which is not JSON: {error}."
        ) from error
    address = fields.get("address") if isinstance(fields, dict) else None
    if not (isinstance(address, str) and is_address(address)):
        raise ValueError(
            f"scheduler must be a file that 'dask scheduler --scheduler-file' wrote, got "
            f"{options.scheduler!r}, which has no address of a scheduler: {address!r}."
        )
    options.check_encryption(address)
    return address


def _probe(address: str, security: Security | None, timeout_s: float) -> None:
    """Ask the scheduler what it is; a `Client` would wait for ever for one that does not say.

    Raises
    ------
    _NotYet
        If nothing answers, which may change.
    ClusterError
        If something else answers.
    """
    arguments = (security or Security()).get_connection_args("client")

    async def ask() -> dict[str, Any]:
        if security is not None:
            await exchange_certificates(address, security)
        async with rpc(address, connection_args=arguments, timeout=timeout_s) as scheduler:
            identity: dict[str, Any] = await scheduler.identity()
        return identity

    async def ask_in_time() -> dict[str, Any]:
        return await asyncio.wait_for(ask(), timeout_s)

    try:
        # In a thread, since the caller's may have an event loop that runs.
        with ThreadPoolExecutor(1) as executor:
            identity = executor.submit(asyncio.run, ask_in_time()).result()
    except OSError as error:
        reason = f"{address} does not answer ({describe_error(error)})"
        raise _NotYet(reason=reason) from error
    if identity.get("type") != "Scheduler":
        raise ClusterError(
            f"scheduler must be the address of a scheduler, got {address!r}, where a "
            f"{str(identity.get('type')).lower()} answers."
        )
