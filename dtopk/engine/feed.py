"""Hand pieces of rows with their duals to the solver, and take the duals back.

One background thread reads the next piece while the present one is worked on, and writes the
duals of the one before. It does one thing after the other, in the order asked for. Within a pass
every row is read once and written once, and a pass ends when its last write has, so that duals are
never read before they are written.
"""

import time
from collections.abc import Generator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Protocol, Self

import numpy as np
from numpy.typing import DTypeLike, NDArray

from dtopk.engine.rows import Piece, PieceRange, Rows
from dtopk_storage import DualFile

Array = NDArray[Any]


class Duals(Protocol):
    """Where the dual variables are between the visits of their rows."""

    def load(self, piece: PieceRange) -> Array:
        """Return the duals of a piece, of shape (n_rows, n_classes), to be changed in place."""

    def keep(self, piece: PieceRange, dual: Array) -> None:
        """Take back the duals of a piece."""


class MemoryDuals:
    """Duals in memory, zero at the start.

    Parameters
    ----------
    n_stored, n_classes : int
    dtype : dtype
    """

    def __init__(self, n_stored: int, n_classes: int, dtype: DTypeLike) -> None:
        self._values: Array = np.zeros((n_stored, n_classes), dtype)

    def load(self, piece: PieceRange) -> Array:
        """Return a view."""
        view: Array = self._values[piece.start : piece.stop]
        return view

    def keep(self, piece: PieceRange, dual: Array) -> None:
        """Do nothing: the view was changed in place."""

    def write_to(self, file: DualFile, pieces: Sequence[PieceRange]) -> None:
        """Write the chunks that the pieces are in to a file."""
        for start, stop in sorted({(piece.chunk_start, piece.chunk_stop) for piece in pieces}):
            file.write(start, self._values[start:stop])


class FileDuals:
    """Duals in a file, read and written chunk by chunk.

    Parameters
    ----------
    file : DualFile
        Its chunks are those of the features.
    """

    def __init__(self, file: DualFile) -> None:
        self._file = file

    def load(self, piece: PieceRange) -> Array:
        """Read the duals of a piece."""
        dual = self._file.read(piece.start, piece.stop)
        return dual if dual.flags.writeable else dual.copy()

    def keep(self, piece: PieceRange, dual: Array) -> None:
        """Write the chunk that a piece is in, with the rows outside the piece as they were."""
        if (piece.start, piece.stop) == (piece.chunk_start, piece.chunk_stop):
            self._file.write(piece.start, dual)
            return
        whole = self._file.read(piece.chunk_start, piece.chunk_stop).copy()
        whole[piece.start - piece.chunk_start : piece.stop - piece.chunk_start] = dual
        self._file.write(piece.chunk_start, whole)


@dataclass(frozen=True, kw_only=True)
class Visit:
    """A piece in work."""

    range: PieceRange
    """Which rows."""
    piece: Piece
    """The rows."""
    dual: Array
    """Their duals, of shape (n_rows, n_classes), to be changed in place."""


class Feed:
    """Reads pieces ahead and keeps those that fit into memory.

    Parameters
    ----------
    rows : Rows
    duals : Duals
    keep_features : bool
        Whether pieces stay in memory once they have been read.
    """

    def __init__(self, rows: Rows, duals: Duals, *, keep_features: bool) -> None:
        self.rows = rows
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
        self._thread.shutdown(wait=True, cancel_futures=True)

    def visit(self, order: Sequence[int], *, update: bool) -> Generator[Visit, None, None]:
        """Yield the pieces in an order, their duals to be kept if they are updated.

        Parameters
        ----------
        order : sequence of int
            Indices into ``rows.pieces``.
        update : bool
            Whether the duals are kept once the caller asks for the next piece, or closes the
            iterator.

        Yields
        ------
        Visit
        """
        pieces = [self.rows.pieces[index] for index in order]
        upcoming = self._thread.submit(self._load, pieces[0]) if pieces else None
        kept: Future[None] | None = None
        try:
            for following, piece in zip([*pieces[1:], None], pieces, strict=True):
                assert upcoming is not None
                start = time.perf_counter()
                visit = upcoming.result()
                if kept is not None:
                    kept.result()
                self.read_seconds += time.perf_counter() - start
                if following is not None:
                    upcoming = self._thread.submit(self._load, following)
                try:
                    yield visit
                finally:
                    if update:
                        kept = self._thread.submit(self.duals.keep, piece, visit.dual)
        finally:
            if kept is not None:
                kept.result()

    def _load(self, piece: PieceRange) -> Visit:
        rows = self._kept.get(piece.start)
        if rows is None:
            rows = self.rows.read(piece)
            if self._keep_features:
                self._kept[piece.start] = rows
        return Visit(range=piece, piece=rows, dual=self.duals.load(piece))
