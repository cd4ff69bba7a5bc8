"""Objects that are written while their writer goes on, several at a time."""

import collections
import contextlib
from collections.abc import Callable
from concurrent.futures import Future
from types import TracebackType
from typing import Self

from dtopk_storage.objects import ObjectPath
from dtopk_storage.paths import AnyPath
from dtopk_storage.read_ahead import count_requests, request_threads


class WriteBehind:
    """Makes writes one after the other on a disk, and several at a time in an object store.

    There each takes its time to be answered. As a context manager it waits for what is under way,
    also where the block fails: nothing is written after it.

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
            write()
            return
        while len(self._under_way) >= self._most:
            self._under_way.popleft().result()
        self._under_way.append(request_threads().submit(write))

    def wait(self) -> None:
        """Wait until all has been written.

        Raises
        ------
        OSError
            Of the first write that failed; the others have ended too.
        """
        try:
            while self._under_way:
                self._under_way.popleft().result()
        finally:
            self.abandon()

    def abandon(self) -> None:
        """Wait for what was put, however it ends."""
        while self._under_way:
            with contextlib.suppress(BaseException):
                self._under_way.popleft().result()
