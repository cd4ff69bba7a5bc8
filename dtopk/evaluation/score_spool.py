"""Scores and labels of all rows, kept for what cannot be counted batch by batch."""

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from dtopk.evaluation.temporary_arrays import TemporaryArrays

_CHUNK_BYTES = 8 << 20
"""Rows are kept, and come back, in pieces of so many bytes. Work on one takes ten times that."""


class ScoreSpool:
    """The scores and labels of the rows seen so far, in memory and then in a temporary file.

    They are cut into chunks of one size, whatever the batches were. A chunk is a matrix by class,
    so that the scores of one class are read in long runs.

    Parameters
    ----------
    n_classes : int
    dtype : dtype
        Type that scores are kept in, float32 or float64. A label takes one byte more.
    memory_bytes : int
        Bytes of scores and labels that are held in memory at most; what comes later goes to an
        unlinked file in TMPDIR.
    """

    def __init__(self, *, n_classes: int, dtype: DTypeLike, memory_bytes: int) -> None:
        self.n_classes = n_classes
        self.dtype: np.dtype[Any] = np.dtype(dtype)
        self.memory_bytes = memory_bytes
        self.n_rows = 0
        row_bytes = n_classes * (self.dtype.itemsize + 1)
        # At least two chunks fit, of which one is being filled.
        self._chunk_rows = max(1, min(_CHUNK_BYTES, memory_bytes // 2) // row_bytes)
        self._chunk_bytes = self._chunk_rows * row_bytes
        self._held: list[tuple[NDArray[np.bool_], NDArray[Any]]] = []
        self._filed: list[tuple[int, int]] = []
        self._files: TemporaryArrays | None = None
        self._filling = self._new_chunk()

    @property
    def n_scores(self) -> int:
        """Number of scores kept."""
        return self.n_rows * self.n_classes

    @property
    def held_bytes(self) -> int:
        """Bytes of the scores and labels that are in memory, room for the next ones included."""
        return (len(self._held) + 1) * self._chunk_bytes

    def append(self, relevant: NDArray[np.bool_], scores: NDArray[Any]) -> None:
        """Keep the rows of a batch.

        Parameters
        ----------
        relevant : ndarray of shape (n_rows, n_classes), bool
            True labels.
        scores : ndarray of shape (n_rows, n_classes)
            Finite.

        Raises
        ------
        OSError
            If there is no room for them in TMPDIR.
        """
        done = 0
        while done < len(scores):
            start = self.n_rows % self._chunk_rows
            stop = min(self._chunk_rows, start + len(scores) - done)
            rows = slice(done, done + stop - start)
            self._filling[0][:, start:stop] = relevant[rows].T
            self._filling[1][:, start:stop] = scores[rows].T
            done = rows.stop
            self.n_rows += stop - start
            if stop == self._chunk_rows:
                self._put_away()

    def iter_chunks(self) -> Iterator[tuple[NDArray[np.bool_], NDArray[Any]]]:
        """Go through all rows in order.

        Yields
        ------
        relevant : ndarray of shape (n_rows, n_classes), bool
            True labels of consecutive rows.
        scores : ndarray of shape (n_rows, n_classes), dtype
            Not to be written to, nor the labels.
        """
        for relevant, scores in self._iter_by_class():
            yield relevant.T, scores.T

    def iter_classes(self) -> Iterator[tuple[NDArray[np.bool_], NDArray[Any]]]:
        """Go through all classes in order; holds one class of all rows at least.

        Yields
        ------
        relevant : ndarray of shape (n_some_classes, n_rows), bool
            True labels, a row for each of some consecutive classes.
        scores : ndarray of shape (n_some_classes, n_rows), dtype
        """
        class_bytes = max(1, self.n_rows * (self.dtype.itemsize + 1))
        width = max(1, _CHUNK_BYTES // class_bytes)
        for first in range(0, self.n_classes, width):
            yield self._read_classes(slice(first, min(first + width, self.n_classes)))

    def _read_classes(self, classes: slice) -> tuple[NDArray[np.bool_], NDArray[Any]]:
        shape = (classes.stop - classes.start, self.n_rows)
        relevant, scores = np.empty(shape, dtype=np.bool_), np.empty(shape, dtype=self.dtype)
        start = 0
        for chunk_relevant, chunk_scores in self._iter_by_class():
            rows = slice(start, start + chunk_scores.shape[1])
            relevant[:, rows] = chunk_relevant[classes]
            scores[:, rows] = chunk_scores[classes]
            start = rows.stop
        return relevant, scores

    def _iter_by_class(self) -> Iterator[tuple[NDArray[np.bool_], NDArray[Any]]]:
        yield from self._held
        for relevant, scores in self._filed:
            assert self._files is not None
            # Mapped anew each time, so that no more than a chunk of the file is mapped at once.
            yield self._files.get(relevant), self._files.get(scores)
        n_filling = self.n_rows % self._chunk_rows
        if n_filling:
            relevant_so_far, scores_so_far = self._filling
            yield relevant_so_far[:, :n_filling], scores_so_far[:, :n_filling]

    def _put_away(self) -> None:
        if self.held_bytes + self._chunk_bytes <= self.memory_bytes:
            self._held.append(self._filling)
            self._filling = self._new_chunk()
            return
        if self._files is None:
            self._files = TemporaryArrays()
        relevant, scores = self._filling
        self._filed.append((self._files.put(relevant), self._files.put(scores)))

    def _new_chunk(self) -> tuple[NDArray[np.bool_], NDArray[Any]]:
        shape = (self.n_classes, self._chunk_rows)
        return np.empty(shape, dtype=np.bool_), np.empty(shape, dtype=self.dtype)
