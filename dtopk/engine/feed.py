"""Hand blocks of rows with their duals to the solver, and take the duals back.

One background thread reads the next block while the present one is worked on, and writes the
duals of the one before. It does one thing after the other, in the order asked for. Within a visit
of several blocks every row is read once and written once, and the visit ends when its last write
has, so that duals are never read before they are written.
"""

import time
from collections import deque
from collections.abc import Generator, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from itertools import pairwise
from types import TracebackType
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from dtopk.engine.duals import Duals
from dtopk.engine.rows import Piece, PieceRange, Rows

Array = NDArray[Any]


@dataclass(frozen=True, kw_only=True)
class Visit:
    """A block in work."""

    block: int
    """Its number."""
    piece: Piece
    """The rows."""
    dual: Array
    """Their duals, of shape (n_rows, n_classes); to be changed in place if they are updated."""


class Feed:
    """Reads blocks ahead and keeps the rows that fit into memory.

    Parameters
    ----------
    rows : Rows
    blocks : sequence of PieceRange
        All blocks of the run.
    duals : Duals
    keep_features : bool
        Whether rows stay in memory once they have been read.
    """

    def __init__(
        self, rows: Rows, blocks: Sequence[PieceRange], duals: Duals, *, keep_features: bool
    ) -> None:
        self.rows = rows
        self.blocks = blocks
        self.duals = duals
        self.read_seconds = 0.0
        self._keep_features = keep_features
        self._kept: dict[int, Piece] = {}
        self._elsewhere: frozenset[int] = frozenset()
        self._stretches = _find_stretches(blocks)
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="dtopk-read")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """End the background thread."""
        self._thread.shutdown(wait=True, cancel_futures=True)

    def drop(self, blocks: Iterable[int]) -> None:
        """Forget the rows of all blocks that another process has now.

        Parameters
        ----------
        blocks : iterable of int
        """
        self._elsewhere = frozenset(blocks)
        for block in self._elsewhere:
            self._kept.pop(block, None)

    def look(
        self, order: Sequence[int], rows: Sequence[NDArray[np.int64]]
    ) -> Generator[Visit, None, None]:
        """Yield some rows of each block, not to be updated.

        Parameters
        ----------
        order : sequence of int
            Numbers of blocks.
        rows : sequence of ndarray of int64
            The rows of each, counted in the block.

        Yields
        ------
        Visit
        """
        self._announce(order)
        upcoming = self._thread.submit(self._load_rows, order[0], rows[0]) if order else None
        for place in range(len(order)):
            assert upcoming is not None
            visit = upcoming.result()
            if place + 1 < len(order):
                upcoming = self._thread.submit(self._load_rows, order[place + 1], rows[place + 1])
            yield visit

    def visit(
        self, order: Sequence[int], *, update: bool, n_held: int = 1
    ) -> Generator[Visit, None, None]:
        """Yield blocks in an order, their duals to be kept if they are updated.

        Parameters
        ----------
        order : sequence of int
            Numbers of blocks.
        update : bool
            Whether the duals are kept, as candidates, once the caller asks for a further block
            than he may hold, or closes the iterator.
        n_held : int, at least 1
            The latest blocks, whose duals may still change.

        Yields
        ------
        Visit
        """
        self._announce(order)
        upcoming = self._thread.submit(self._load, order[0], update) if order else None
        held: deque[Visit] = deque()
        kept: Future[None] | None = None
        try:
            for following in [*order[1:], None][: len(order)]:
                assert upcoming is not None
                start = time.perf_counter()
                visit = upcoming.result()
                if kept is not None:
                    kept.result()
                self.read_seconds += time.perf_counter() - start
                if following is not None:
                    upcoming = self._thread.submit(self._load, following, update)
                held.append(visit)
                yield visit
                if len(held) == n_held:
                    kept = self._keep(held.popleft(), update)
        finally:
            for visit in held:
                if kept is not None:
                    kept.result()
                kept = self._keep(visit, update)
            if kept is not None:
                kept.result()

    def _keep(self, visit: Visit, update: bool) -> Future[None] | None:
        return self._thread.submit(self.duals.keep, visit.block, visit.dual) if update else None

    def read(self, block: int) -> Piece:
        """Return the rows of a block, read now or before."""
        if self._keep_features and not self.rows.resident:
            if block not in self._kept:
                self._read_stretch(block)
            return self._kept[block]
        return self.rows.read(self.blocks[block])

    def _announce(self, order: Sequence[int]) -> None:
        """Say which rows will be read, to the end of a visit."""
        if not self.rows.resident:
            self.rows.expect([self.blocks[block] for block in order if block not in self._kept])

    def _read_stretch(self, block: int) -> None:
        """Read a chunk for all of its blocks that are visited here, and keep no more than those."""
        wanted = set(self._stretches[block]) - self._kept.keys() - self._elsewhere | {block}
        first = min(self.blocks[b].start for b in wanted)
        last = max(self.blocks[b].stop for b in wanted)
        read = self.rows.read(replace(self.blocks[block], start=first, stop=last))
        for b in wanted:
            part = slice(self.blocks[b].start - first, self.blocks[b].stop - first)
            X = read.X[part]
            # A view would keep the whole chunk in memory.
            X = X if len(X) == self.rows.chunk_rows else X.copy()
            self._kept[b] = Piece(X=X, labels=read.labels[part], weight=read.weight[part])

    def _load(self, block: int, update: bool) -> Visit:
        dual = self.duals.load(block) if update else self.duals.read(block)
        return Visit(block=block, piece=self.read(block), dual=dual)

    def _load_rows(self, block: int, rows: NDArray[np.int64]) -> Visit:
        whole = self.read(block)
        piece = Piece(X=whole.X[rows], labels=whole.labels[rows], weight=whole.weight[rows])
        return Visit(block=block, piece=piece, dual=self.duals.read(block, rows))


def _find_stretches(blocks: Sequence[PieceRange]) -> list[range]:
    """For each block, find the blocks of its chunk that no rows of another split divide from it."""
    firsts = [0]
    for number, (before, block) in enumerate(pairwise(blocks), start=1):
        if before.stop != block.start or before.chunk_start != block.chunk_start:
            firsts.append(number)
    bounds = pairwise([*firsts, len(blocks)])
    return [range(first, last) for first, last in bounds for _ in range(first, last)]
