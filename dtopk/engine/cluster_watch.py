"""What is known of a cluster while a run is on it, without ever waiting for it without end."""

import asyncio
import concurrent.futures
import contextlib
import time
from collections.abc import Callable, Coroutine
from typing import Any

from distributed import Client

from dtopk.launch import ClusterError, WorkerInfo
from dtopk.launch.workers import THREADS_RESOURCE

_WATCH_S = 0.5
"""Seconds between two questions to the scheduler."""
_PAUSE_S = 3.0
"""A process that did nothing for so long was stopped, and could hear nobody."""
_ASK_S = 10.0
"""Seconds in which the scheduler must answer, or is asked again."""
_SCHEDULER_S = 30.0
"""Seconds after which a scheduler that does not answer is given up."""
_LOOK_S = 0.25
"""Seconds between two looks for workers."""
_TELL_S = 5.0
"""Seconds in which a worker must answer, or is left out."""


def list_workers(client: Client, n: int, timeout_s: float) -> list[WorkerInfo]:
    """List the workers that take tasks and answer, once there are so many.

    Parameters
    ----------
    client : distributed.Client
    n : int
    timeout_s : float
        Seconds to wait for them, at most; then fewer will do.

    Raises
    ------
    ClusterError
        If there is none by then, or no scheduler.
    """

    def ask() -> int:
        import os

        return os.getpid()

    watch = ClusterWatch(client, lambda: None)
    began = time.monotonic()
    try:
        while True:
            watch.check_scheduler()
            found = watch.find_workers(ask)
            late = time.monotonic() - began > timeout_s
            if len(found) >= n or (late and found):
                return found
            if late:
                raise ClusterError(
                    f"a worker must answer within {timeout_s:g} s, but none does. Start workers."
                )
            time.sleep(_LOOK_S)
    finally:
        watch.close()


class ClusterWatch:
    """Asks the scheduler, time and again, which workers it has.

    It does so in the client's event loop; its methods are for other threads.

    Parameters
    ----------
    client : distributed.Client
    changed : callable
        Called when there are others, in the event loop.
    """

    def __init__(self, client: Client, changed: Callable[[], None]) -> None:
        self.workers: frozenset[str] = frozenset()
        """Addresses of the workers that there were at `asked`."""
        self._client = client
        self._changed = changed
        self._paused = 0.0
        self._ticked = time.monotonic()
        self.asked = self._answered = self.now()
        self._loops = [self.start(self._tick()), self.start(self._poll())]

    def close(self) -> None:
        """End it."""
        for loop in self._loops:
            loop.cancel()

    def now(self) -> float:
        """Return a time in seconds that stands still while this process is stopped."""
        return time.monotonic() - self._paused

    @property
    def is_awake(self) -> bool:
        """Whether this process has not just been stopped."""
        return time.monotonic() - self._ticked < _PAUSE_S

    @property
    def hears(self) -> bool:
        """Whether silence is that of workers: this process is awake, and the scheduler answers."""
        return self.is_awake and self.now() - self._answered < _PAUSE_S

    def start(self, coroutine: Coroutine[Any, Any, Any]) -> "concurrent.futures.Future[Any]":
        """Run something in the client's event loop.

        Parameters
        ----------
        coroutine : coroutine
        """
        loop: asyncio.AbstractEventLoop = self._client.loop.asyncio_loop  # type: ignore[union-attr]
        return asyncio.run_coroutine_threadsafe(coroutine, loop)

    def check_scheduler(self) -> None:
        """Raise if there is no scheduler any more.

        Raises
        ------
        ClusterError
        """
        silent = self.now() - self._answered
        if self._client.status in ("closing", "closed"):
            raise ClusterError("The connection to the scheduler of the workers was lost.")
        if self.is_awake and silent > _SCHEDULER_S:
            raise ClusterError(f"The scheduler of the workers has not answered for {silent:.0f} s.")

    def is_gone(self, address: str, since: float) -> bool:
        """Tell whether a worker that was there at a time is there no more.

        Parameters
        ----------
        address : str
        since : float
            As of `now`.
        """
        return self.asked > since and address not in self.workers

    def tell(
        self, address: str, function: Callable[..., int], *arguments: Any
    ) -> "concurrent.futures.Future[int | None]":
        """Have a worker call a function between its tasks.

        Parameters
        ----------
        address : str
        function : callable
            Returns a number.
        *arguments : object

        Returns
        -------
        concurrent.futures.Future
            Of what it returned, or None if the worker did not answer in time.
        """
        return self.start(self._tell(address, function, *arguments))

    def find_workers(self, function: Callable[..., int], *arguments: Any) -> list[WorkerInfo]:
        """List the workers that take tasks and answer.

        Parameters
        ----------
        function : callable
            What they are asked; returns the number of the worker's process.
        *arguments : object
        """
        found = self.start(self._find(function, *arguments))
        workers: list[WorkerInfo] = found.result(_ASK_S + 2 * _TELL_S)
        return workers

    async def _find(self, function: Callable[..., int], *arguments: Any) -> list[WorkerInfo]:
        try:
            identity = await asyncio.wait_for(self._identity(), _ASK_S)
        except OSError:
            return []
        running = {
            address: fields
            for address, fields in sorted(identity["workers"].items())
            if str(fields["status"]) == "running"
        }
        pids = await asyncio.gather(
            *(self._tell(address, function, *arguments) for address in running)
        )
        return [
            WorkerInfo(
                address=address,
                name=str(fields["name"]),
                host=fields["host"],
                threads=int(fields["resources"].get(THREADS_RESOURCE, fields["nthreads"])),
                memory_limit=fields["memory_limit"] or None,
                pid=pid,
            )
            for (address, fields), pid in zip(running.items(), pids, strict=True)
            if pid is not None
        ]

    async def _identity(self) -> dict[str, Any]:
        identity: dict[str, Any] = await self._scheduler().identity(n_workers=-1)
        return identity

    async def _tell(
        self, address: str, function: Callable[..., int], *arguments: Any
    ) -> int | None:
        try:
            self._scheduler()
            answers = await asyncio.wait_for(
                self._client.run(function, *arguments, workers=[address], on_error="return"),
                _TELL_S,
            )
        except OSError:
            return None
        answer = answers.get(address)
        return answer if isinstance(answer, int) else None

    def _scheduler(self) -> Any:
        if self._client.scheduler is None:
            raise OSError("the connection was closed")
        return self._client.scheduler

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(_WATCH_S)
            now = time.monotonic()
            if now - self._ticked > _PAUSE_S:
                self._paused += now - self._ticked - _WATCH_S
            self._ticked = now

    async def _poll(self) -> None:
        while True:
            asked = self.now()
            with contextlib.suppress(OSError):
                found = frozenset(await asyncio.wait_for(self._scheduler().ncores(), _ASK_S))
                self.asked, self._answered = asked, self.now()
                if found != self.workers:
                    self.workers = found
                    self._changed()
            await asyncio.sleep(_WATCH_S)
