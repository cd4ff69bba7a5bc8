"""Hand blocks of rows with their duals to the solver, and take the duals back.

One background thread reads the next block while the present one is worked on, and writes the
duals of the one before. It does one thing after the other, in the order asked for. Within a visit
of several blocks every row is read once and written once, and the visit ends when its last write
has, so that duals are never read before they are written.
"""

import time
from collections.abc import Generator, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

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
        """Forget rows that another process has now."""
        for block in blocks:
            self._kept.pop(block, None)

    def visit(self, order: Sequence[int], *, update: bool) -> Generator[Visit, None, None]:
        """Yield blocks in an order, their duals to be kept if they are updated.

        Parameters
        ----------
        order : sequence of int
            Numbers of blocks.
        update : bool
            Whether the duals are kept, as candidates, once the caller asks for the next block, or
            closes the iterator.

        Yields
        ------
        Visit
        """
        upcoming = self._thread.submit(self._load, order[0], update) if order else None
        kept: Future[None] | None = None
        try:
            for following, block in zip([*order[1:], None], order, strict=True):
                assert upcoming is not None
                start = time.perf_counter()
                visit = upcoming.result()
                if kept is not None:
                    kept.result()
                self.read_seconds += time.perf_counter() - start
                if following is not None:
                    upcoming = self._thread.submit(self._load, following, update)
                try:
                    yield visit
                finally:
                    if update:
                        kept = self._thread.submit(self.duals.keep, block, visit.dual)
        finally:
            if kept is not None:
                kept.result()

    def read(self, block: int) -> Piece:
        """Return the rows of a block, read now or before."""
        piece = self._kept.get(block)
        if piece is None:
            piece = self.rows.read(self.blocks[block])
            if self._keep_features:
                self._kept[block] = piece
        return piece

    def _load(self, block: int, update: bool) -> Visit:
        dual = self.duals.load(block) if update else self.duals.read(block)
        return Visit(block=block, piece=self.read(block), dual=dual)
