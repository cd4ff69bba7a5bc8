"""The processes of a batch job beside the one that trains: a scheduler, and workers.

    python -m dtopk.launch.rank scheduler --scheduler-file FILE --interface ib0
    python -m dtopk.launch.rank worker --scheduler-file FILE --interface ib0 --nthreads 16

They have the settings that training wants, listen where they are told and on 127.0.0.1 otherwise,
and take no notice of the signals that a batch system sends to every process of a job before its
end: the run commits and stops first. The scheduler ends by SIGHUP, and workers end with it.
"""

import argparse
import asyncio
import contextlib
import json
import logging
import os
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from typing import Any

import dask
from distributed import Nanny, Scheduler, Security, Status

from dtopk.launch.errors import ClusterError
from dtopk.launch.options import ClusterOptions, is_address
from dtopk.launch.security import exchange_certificates, make_security
from dtopk.launch.settings import DASK_SETTINGS, THREAD_VARIABLES
from dtopk.launch.workers import THREADS_RESOURCE

logger = logging.getLogger(__name__)

_LEFT_TO_THE_RUN = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)
_POLL_S = 0.25
_ANSWER_S = 5.0
"""Seconds that a scheduler has to show its certificate, and to look at ours."""
_HOST = "127.0.0.1"


def listen_place(interface: str) -> dict[str, Any]:
    """Say where to listen: an interface, or this machine alone."""
    return {"interface": interface} if interface else {"host": _HOST}


async def run_scheduler(options: argparse.Namespace) -> None:
    """Run a scheduler until SIGHUP."""
    ended = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, ended.set)
    async with Scheduler(
        **listen_place(options.interface),
        port=0,
        protocol="tls" if options.tls_ca_file else "tcp",
        security=_make_security(options),
        dashboard=True,
        dashboard_address=f"{_HOST}:{options.dashboard_port}",
        scheduler_file=options.scheduler_file,
    ) as scheduler:
        logger.info("Scheduler at %s.", scheduler.address)
        await ended.wait()


async def run_workers(options: argparse.Namespace) -> None:
    """Run workers until their scheduler ends.

    Raises
    ------
    ClusterError
        If no scheduler is there in time, or one end does not take the other's certificate.
    """
    address = options.address or await _wait_for_address(options)
    security = _make_security(options, address)
    if security is not None:
        with contextlib.suppress(OSError):  # nobody is there: workers wait for the scheduler
            await asyncio.wait_for(exchange_certificates(address, security), _ANSWER_S)
    with tempfile.TemporaryDirectory(prefix="dtopk-worker-", dir=options.local_directory) as place:
        async with contextlib.AsyncExitStack() as stack:
            nannies = [
                await stack.enter_async_context(
                    Nanny(
                        address,
                        name=f"{options.name}/{number}" if options.nworkers > 1 else options.name,
                        nthreads=1,
                        resources={THREADS_RESOURCE: options.nthreads},
                        memory_limit=options.memory_limit,
                        local_directory=place,
                        death_timeout=options.death_timeout,
                        preload=["dtopk.launch.worker_start_in_batch"],
                        protocol="tls" if security else "tcp",
                        security=security,
                        dashboard_address=f"{_HOST}:0",
                        **listen_place(options.interface),
                    )
                )
                for number in range(options.nworkers)
            ]
            while not all(nanny.status in (Status.closed, Status.failed) for nanny in nannies):
                await asyncio.sleep(_POLL_S)


async def _wait_for_address(options: argparse.Namespace) -> str:
    """Read the scheduler's address as soon as it is written."""
    deadline = time.monotonic() + options.death_timeout
    while time.monotonic() < deadline:
        with contextlib.suppress(OSError, ValueError):  # not there yet, or not whole
            with open(options.scheduler_file, encoding="utf-8") as file:
                address = str(json.load(file)["address"])
            if is_address(address):
                return address
        await asyncio.sleep(_POLL_S)
    raise ClusterError(
        f"the scheduler must have written its address to {options.scheduler_file!r} within "
        f"{options.death_timeout:g} s, but it has not."
    )


def _make_security(options: argparse.Namespace, address: str = "") -> Security | None:
    """Read the TLS files; with the scheduler's address, see that it needs them, or does not."""
    cluster = ClusterOptions(
        tls_ca=options.tls_ca_file, tls_cert=options.tls_cert, tls_key=options.tls_key
    )
    if address:
        cluster.check_encryption(address)
    return make_security(cluster)


def _parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="dtopk.launch.rank")
    roles = parser.add_subparsers(dest="role", required=True)
    common = argparse.ArgumentParser(add_help=False)
    common.add_argument("--scheduler-file", default="")
    common.add_argument("--interface", default="")
    common.add_argument("--host", default=_HOST, choices=[_HOST])
    common.add_argument("--protocol", default="")  # dask-jobqueue's, which the TLS files say too
    for name in ("ca-file", "cert", "key"):
        common.add_argument(f"--tls-{name}", default="")
    scheduler = roles.add_parser("scheduler", parents=[common])
    scheduler.add_argument("--dashboard-port", type=int, default=0)
    # In the words of dask-jobqueue, which starts workers so.
    worker = roles.add_parser("worker", parents=[common])
    worker.add_argument("address", nargs="?", default="")
    worker.add_argument("--name", default="worker")
    worker.add_argument("--nworkers", type=int, default=1)
    worker.add_argument("--nthreads", type=int, default=1)
    worker.add_argument("--memory-limit", default="0")
    worker.add_argument("--local-directory", default=None)
    worker.add_argument("--death-timeout", type=float, default=60.0)
    return parser.parse_args(arguments)


def main(arguments: Sequence[str]) -> int:
    """Run as a program of a batch job's script."""
    options = _parse(arguments)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    for number in _LEFT_TO_THE_RUN:
        signal.signal(number, signal.SIG_IGN)
    settings = dict(DASK_SETTINGS)
    run = run_scheduler
    if options.role == "worker":
        run = run_workers
        # In place of Dask's own variables: see `local_cluster`.
        threads = dict.fromkeys(THREAD_VARIABLES, options.nthreads)
        settings["distributed.nanny.pre-spawn-environ"] = threads
        # What the environment says goes before what Dask is told.
        os.environ.update({name: str(number) for name, number in threads.items()})
    with dask.config.set(settings):
        try:
            asyncio.run(run(options))
        except (ClusterError, OSError, ValueError) as error:
            logger.error("%s", error)
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
