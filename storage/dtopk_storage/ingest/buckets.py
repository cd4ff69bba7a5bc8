"""Shuffling on disk: rows are dealt to files, each small enough to be put in order in memory."""

import dataclasses
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dtopk_storage.errors import DatasetError, describe_error
from dtopk_storage.files import write_atomic
from dtopk_storage.json_files import parse_record

# A bucket is held twice in memory while its rows are put in order.
BUCKET_BYTES = 128 << 20
_SYNC_BYTES = 1 << 30


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Progress:
    """How far dealing has come."""

    n_dealt: int
    """Rows dealt whose files are on the disk."""


class Buckets:
    """Rows on their way from the order of the source to that of the store.

    A bucket is a range of rows of the store. The rows come in the order of the source and are
    appended to their bucket's file; `read` puts one bucket into the order of the store. So each
    row is written and read once more, in long runs, and memory holds one bucket. Permuted reads
    from the source would spare the disk space, but only a source that can be read at random
    allows them, and they fetch a row at a time.

    The length of each file follows from the order and the number of rows dealt, so that number
    is all that must be kept to go on after a break: files are cut back to where they were.

    Parameters
    ----------
    folder : Path
        For the files.
    order : ndarray of shape (n_samples,), int64
        Row of the source of each row of the store.
    n_features : int
    dtype : dtype
        Of the features at rest.
    chunk_rows : int
        A bucket is a whole number of chunks.
    """

    def __init__(
        self,
        folder: Path,
        order: NDArray[np.int64],
        *,
        n_features: int,
        dtype: np.dtype[Any],
        chunk_rows: int,
    ) -> None:
        self._folder = folder
        self._order = order
        self._n_features = n_features
        self._dtype = dtype
        self._row_bytes = n_features * dtype.itemsize
        chunks = max(1, BUCKET_BYTES // (self._row_bytes * chunk_rows))
        self._rows = chunks * chunk_rows
        self._bucket_of = np.empty(len(order), np.int32)
        self._bucket_of[order] = np.arange(len(order)) // self._rows
        self._unsynced = 0
        self.n_dealt = self._restore()

    @property
    def n_buckets(self) -> int:
        """Number of buckets."""
        return -(-len(self._order) // self._rows)

    def rows_of(self, bucket: int) -> tuple[int, int]:
        """First row of the store in a bucket, and the row after its last.

        Parameters
        ----------
        bucket : int
        """
        return bucket * self._rows, min((bucket + 1) * self._rows, len(self._order))

    def deal(self, X: NDArray[Any]) -> None:
        """Append the next rows of the source to their buckets.

        Parameters
        ----------
        X : ndarray of shape (rows, n_features), dtype at rest
        """
        member = self._bucket_of[self.n_dealt : self.n_dealt + len(X)]
        by_bucket = np.argsort(member, kind="stable")
        buckets, starts = np.unique(member[by_bucket], return_index=True)
        for bucket, rows in zip(buckets, np.split(by_bucket, starts[1:]), strict=True):
            with self._path(bucket).open("ab") as file:
                file.write(np.ascontiguousarray(X[rows]).data)
        self.n_dealt += len(X)
        self._unsynced += X.nbytes
        if self._unsynced >= _SYNC_BYTES or self.n_dealt == len(self._order):
            self._save()

    def read(self, bucket: int) -> NDArray[Any]:
        """Read a bucket in the order of the store.

        Parameters
        ----------
        bucket : int

        Returns
        -------
        ndarray of shape (rows of the bucket, n_features), dtype at rest
        """
        start, stop = self.rows_of(bucket)
        rows = np.fromfile(self._path(bucket), self._dtype).reshape(-1, self._n_features)
        if len(rows) != stop - start:
            raise DatasetError(
                f"{str(self._path(bucket))!r} must have {stop - start} rows, got {len(rows)}. "
                f"Delete {str(self._folder.parent)!r} and ingest again."
            )
        arranged = np.empty_like(rows)
        # The file has the rows by their place in the source.
        arranged[np.argsort(self._order[start:stop])] = rows
        return arranged

    def discard(self, bucket: int) -> None:
        """Remove a bucket's file.

        Parameters
        ----------
        bucket : int
        """
        self._path(bucket).unlink(missing_ok=True)

    def _path(self, bucket: int) -> Path:
        return self._folder / str(bucket)

    def _save(self) -> None:
        """Record the number of rows dealt, once the disk has them."""
        for path in self._files():
            descriptor = os.open(path, os.O_RDONLY)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
        text = json.dumps(dataclasses.asdict(_Progress(n_dealt=self.n_dealt)))
        write_atomic(self._folder / "progress.json", [text.encode()], durable=True)
        self._unsynced = 0

    def _files(self) -> Iterator[Path]:
        for bucket in range(self.n_buckets):
            if self._path(bucket).exists():
                yield self._path(bucket)

    def _restore(self) -> int:
        """Cut the files back to what was recorded, and return the number of rows dealt."""
        self._folder.mkdir(exist_ok=True)
        path = self._folder / "progress.json"
        n_dealt = self._read_progress(path) if path.exists() else 0
        if n_dealt == len(self._order):
            return n_dealt
        dealt = np.bincount(self._bucket_of[:n_dealt], minlength=self.n_buckets)
        for file in self._files():
            os.truncate(file, int(dealt[int(file.name)]) * self._row_bytes)
        return n_dealt

    def _read_progress(self, path: Path) -> int:
        try:
            n_dealt = parse_record(path.read_bytes(), _Progress).n_dealt
            if not 0 <= n_dealt <= len(self._order):
                raise ValueError(f"'n_dealt' must be at most {len(self._order)}, got {n_dealt}")
            return n_dealt
        except ValueError as error:
            raise DatasetError(
                f"{str(path)!r} must be as dtopk wrote it, but it is not: "
                f"{describe_error(error)}. Delete {str(self._folder.parent)!r} and ingest again."
            ) from error
