"""Chunks of an object store, asked for before they are needed, several at a time."""

import collections
import os
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from numpy.typing import NDArray

Array = NDArray[Any]

# One request fetches some 50 to 100 MB/s from S3, whatever the network has.
MOST_REQUESTS = 8
_LEAST_REQUESTS = 3
AHEAD_BYTES = 32 << 20
"""Chunks of an array that are under way take about so much memory."""
_KEPT_CHUNK_BYTES = 1 << 20
_KEPT_BYTES = 16 << 20
"""Of an array with chunks of at most a MiB, such as labels, those read last are kept: the rows of
a chunk of features are a small part of one."""


def count_requests(chunk_bytes: int) -> int:
    """Choose how many chunks of an array are under way at a time.

    Parameters
    ----------
    chunk_bytes : int
        Uncompressed.

    Returns
    -------
    int
        At least 3.
    """
    return min(max(AHEAD_BYTES // max(chunk_bytes, 1), _LEAST_REQUESTS), MOST_REQUESTS)


class ReadAhead:
    """Fetches the chunks of one array, those that are expected before they are taken.

    It is safe from any thread.

    Parameters
    ----------
    fetch : callable
        Gives the values of a chunk, by its number; called from several threads.
    chunk_bytes : int
        Of a chunk, uncompressed.
    """

    def __init__(self, fetch: Callable[[int], Array], chunk_bytes: int) -> None:
        self._fetch = fetch
        self._most = count_requests(chunk_bytes)
        self._n_kept = _KEPT_BYTES // chunk_bytes if 0 < chunk_bytes <= _KEPT_CHUNK_BYTES else 0
        self._kept: collections.OrderedDict[int, Array] = collections.OrderedDict()
        self._waiting: collections.deque[int] = collections.deque()
        self._under_way: dict[int, Future[Array]] = {}
        self._lock = threading.Lock()

    @property
    def keeps_chunks(self) -> bool:
        """Whether chunks are kept for others that take them."""
        return self._n_kept > 0

    def expect(self, chunks: Iterable[int]) -> None:
        """Say which chunks will be taken next; it takes the place of what was said before.

        Parameters
        ----------
        chunks : iterable of int
            Numbers, in the order in which they will be taken.
        """
        order = list(dict.fromkeys(chunks))
        with self._lock:
            for chunk in self._under_way.keys() - set(order):
                self._under_way.pop(chunk).cancel()
            self._waiting = collections.deque(
                chunk for chunk in order if chunk not in self._under_way and chunk not in self._kept
            )
            self._ask()

    def take(self, chunk: int) -> Array:
        """Give a chunk, which may have come already.

        Parameters
        ----------
        chunk : int

        Returns
        -------
        ndarray
            The caller's own, unless the array `keeps_chunks`.
        """
        with self._lock:
            if chunk in self._kept:
                self._kept.move_to_end(chunk)
                return self._kept[chunk]
            coming = self._under_way.pop(chunk, None)
            if coming is None and chunk in self._waiting:
                self._waiting.remove(chunk)
            self._ask()
        values = self._fetch(chunk) if coming is None else coming.result()
        if self.keeps_chunks:
            self._keep(chunk, values)
        return values

    def _ask(self) -> None:
        while self._waiting and len(self._under_way) < self._most:
            chunk = self._waiting.popleft()
            self._under_way[chunk] = request_threads().submit(self._fetch, chunk)

    def _keep(self, chunk: int, values: Array) -> None:
        with self._lock:
            self._kept[chunk] = values
            while len(self._kept) > self._n_kept:
                self._kept.popitem(last=False)


_threads: ThreadPoolExecutor | None = None


def request_threads() -> ThreadPoolExecutor:
    """Give the threads that read from and write to object stores, of all arrays of this process."""
    global _threads
    if _threads is None:
        _threads = ThreadPoolExecutor(2 * MOST_REQUESTS, thread_name_prefix="dtopk-objects")
    return _threads


def _forget_threads() -> None:
    """Leave the threads to the process that has them: a fork has none of them."""
    global _threads
    _threads = None


os.register_at_fork(after_in_child=_forget_threads)
