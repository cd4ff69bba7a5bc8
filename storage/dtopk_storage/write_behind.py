"""Objects that are written while their writer goes on, several at a time."""

import collections
from collections.abc import Callable
from concurrent.futures import Future, wait
from types import TracebackType
from typing import Self

from dtopk_storage.objects import ObjectPath
from dtopk_storage.paths import AnyPath
from dtopk_storage.read_ahead import count_requests, request_threads


class WriteBehind:
    """Makes writes one after the other on a disk, and several at a time in an object store.

    There each takes its time to be answered. As a context manager it waits for what is under way,
    also where the block fails or is interrupted: nothing is written after it.

    Parameters
    ----------
    place : Path or ObjectPath
        Where it is written to.
    write_bytes : int
        Of one write, which are in memory until it is done.
    """

    def __init__(self, place: AnyPath, write_bytes: int) -> None:
        self._most = count_requests(write_bytes) if isinstance(place, ObjectPath) else 0
        self._under_way: collections.deque[Future[None]] = collections.deque()
        self._failure: BaseException | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exception_type: type[BaseException] | None,
        exception: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if exception_type is None:
            self.wait()
        else:
            self.abandon()

    @property
    def is_behind(self) -> bool:
        """Whether what is to be written must stay as it is after `put`."""
        return self._most > 0

    def put(self, write: Callable[[], None]) -> None:
        """Make a write, or see that it is made.

        Parameters
        ----------
        write : callable
            Called once, from another thread in an object store.

        Raises
        ------
        OSError
            Of this write, or of an earlier one.
        """
        if not self._most:
            self._write_here(write)
            return
        while len(self._under_way) >= self._most:
            self._end_first()
        self._raise_failure()
        self._under_way.append(request_threads().submit(write))

    def wait(self) -> None:
        """Wait until all has been written.

        Raises
        ------
        OSError
            Of the first write that failed, whether or not it was raised before.
        """
        while self._under_way:
            self._end_first()
        self._raise_failure()

    def abandon(self) -> None:
        """Wait for what was put, however it ends; an interrupt is raised after that."""
        interrupt: KeyboardInterrupt | None = None
        while self._under_way:
            try:
                self._end_first()
            except KeyboardInterrupt as error:
                interrupt = error
        if interrupt is not None:
            raise interrupt

    def _write_here(self, write: Callable[[], None]) -> None:
        self._raise_failure()
        try:
            write()
        except BaseException as error:
            self._failure = error
            raise

    def _end_first(self) -> None:
        first = self._under_way[0]
        # An interrupt leaves it where it is, to be waited for again.
        wait([first])
        self._under_way.popleft()
        self._failure = self._failure or first.exception()

    def _raise_failure(self) -> None:
        if self._failure is not None:
            raise self._failure
