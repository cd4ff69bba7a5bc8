"""Putting rows into chunks, and chunks onto the disk."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from dtopk_storage.chunked import ChunkedArray
from dtopk_storage.manifest import Ranges
from dtopk_storage.statistics import FeatureStatistics
from dtopk_storage.write_behind import WriteBehind


class ChunkAssembly:
    """Chunks of features that fill up as rows come, in whatever order.

    A chunk is written once all of its rows are there, so the file of a chunk is a record that
    it is done. Memory holds the chunks begun: one when the rows keep the source's order, two
    for each split when every split takes its rows in order.

    Parameters
    ----------
    features : ChunkedArray
    train : tuple of (start, stop)
        Row ranges that the statistics are of.
    behind : WriteBehind
        Makes the writes. In an object store a chunk counts as done once it is on its way.
    """

    def __init__(self, features: ChunkedArray, train: Ranges, behind: WriteBehind) -> None:
        self._features = features
        self._train = train
        self._behind = behind
        self._open: dict[int, tuple[NDArray[Any], int]] = {}
        self._done = features.find_written()
        self._n_counted = 0
        self.statistics = FeatureStatistics(features.shape[1])
        self._count_done()

    @property
    def rows_done(self) -> int:
        """Rows in chunks that are written, or on their way to an object store."""
        lengths = np.full(len(self._done), self._features.chunk_rows)
        lengths[-1] = self._features.shape[0] - self._features.rows_of(len(self._done) - 1)[0]
        return int(lengths[self._done].sum())

    @property
    def is_done(self) -> bool:
        """Whether all chunks are written, or on their way."""
        return bool(self._done.all())

    def is_chunk_done(self, start: int, stop: int) -> bool:
        """Tell whether the chunks of a range of rows are all written, or on their way.

        Parameters
        ----------
        start, stop : int
        """
        rows = self._features.chunk_rows
        return bool(self._done[start // rows : -(-stop // rows)].all())

    def missing_rows(self) -> NDArray[np.bool_]:
        """Tell for each row whether its chunk is still to be written.

        Returns
        -------
        ndarray of shape (n_samples,), bool
        """
        return ~np.repeat(self._done, self._features.chunk_rows)[: self._features.shape[0]]

    def add(self, X: NDArray[Any], places: NDArray[np.int64]) -> None:
        """Take in rows, and write the chunks that they complete.

        Parameters
        ----------
        X : ndarray of shape (rows, n_features), dtype at rest
        places : ndarray of shape (rows,), int64
            Row of the store of each.
        """
        chunks = places // self._features.chunk_rows
        for chunk in np.unique(chunks).tolist():
            if not self._done[chunk]:
                chosen = chunks == chunk
                self._add_to_chunk(chunk, X[chosen], places[chosen])

    def _add_to_chunk(self, chunk: int, X: NDArray[Any], places: NDArray[np.int64]) -> None:
        start, stop = self._features.rows_of(chunk)
        if chunk not in self._open:
            shape = (stop - start, self._features.shape[1])
            self._open[chunk] = np.empty(shape, self._features.dtype), 0
        values, count = self._open[chunk]
        values[places - start] = X
        self._open[chunk] = values, count + len(X)
        if count + len(X) == stop - start:
            self._features.write_chunk(chunk, values, durable=True, behind=self._behind)
            self._done[chunk] = True
            del self._open[chunk]
            if chunk == self._n_counted:
                self._count(chunk, values)
                self._count_done()

    def _count_done(self) -> None:
        """Take chunks that are done into the statistics, in the order of the store.

        That order is what makes the statistics of a resumed ingest equal to the last bit. A
        chunk written before its turn, or before a break, is read back.
        """
        if self._n_counted == len(self._done) or not self._done[self._n_counted]:
            return
        self._behind.wait()
        while self._n_counted < len(self._done) and self._done[self._n_counted]:
            start, stop = self._features.rows_of(self._n_counted)
            if any(low < stop and high > start for low, high in self._train):
                self._count(self._n_counted, self._features.read_chunk(self._n_counted))
            else:
                self._n_counted += 1

    def _count(self, chunk: int, values: NDArray[Any]) -> None:
        start = self._features.rows_of(chunk)[0]
        for low, high in self._train:
            part = values[max(0, low - start) : max(0, high - start)]
            if len(part):
                self.statistics.add(part)
        self._n_counted += 1
