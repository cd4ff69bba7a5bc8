"""Reading a store of features and labels."""

import dataclasses
import difflib
import functools
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dtopk_storage.checks import check_indptr
from dtopk_storage.chunked import ChunkedArray
from dtopk_storage.compression import Compression
from dtopk_storage.errors import DatasetError
from dtopk_storage.label_rows import LabelRows, Labels
from dtopk_storage.manifest import (
    FEATURES,
    LABEL_INDICES,
    LABEL_INDPTR,
    LABELS,
    ROW_ID,
    SAMPLE_WEIGHT,
    ClassNameType,
    Kind,
    Manifest,
    Ranges,
)
from dtopk_storage.verification import Verification


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class Batch:
    """Consecutive rows of a store."""

    start: int
    """Row of the store that the batch starts with."""
    X: NDArray[Any]
    """Features of shape (rows, n_features), in the dtype at rest."""
    y: Labels
    """Label codes: of shape (rows,), or LabelRows where the store is multilabel."""
    weight: NDArray[np.float64]
    """Sample weights of shape (rows,); ones when the store has none."""


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class FeatureStore:
    """Features, labels and splits, on disk or in an object store; made by `open_store`.

    It holds the metadata and no open file, so it can be pickled, sent to another process that
    sees the same place, and read from several threads.
    """

    path: str
    """Folder of the store, or its address in an object store."""
    manifest: Manifest
    """What the arrays hold."""
    mean: NDArray[np.float64]
    """Mean of each feature over the training rows, of shape (n_features,)."""
    std: NDArray[np.float64]
    """Standard deviation of each feature over the training rows, of shape (n_features,)."""
    arrays: dict[str, ChunkedArray]
    """The arrays that hold the rows, by name."""

    @property
    def n_samples(self) -> int:
        """Number of rows."""
        return self.manifest.n_samples

    @property
    def n_features(self) -> int:
        """Number of features."""
        return self.manifest.n_features

    @property
    def n_classes(self) -> int:
        """Number of classes."""
        return len(self.manifest.class_names)

    @property
    def dtype(self) -> np.dtype[Any]:
        """Dtype of the features at rest: float16, float32 or float64."""
        return self.arrays[FEATURES].dtype

    @property
    def kind(self) -> Kind:
        """Whether a row has one label (multiclass) or a set of them (multilabel)."""
        return self.manifest.kind

    @property
    def class_names(self) -> tuple[str, ...]:
        """Name of each class, by code."""
        return self.manifest.class_names

    @property
    def class_name_type(self) -> ClassNameType:
        """What the class names were in the source."""
        return self.manifest.class_name_type

    @functools.cached_property
    def classes(self) -> NDArray[Any]:
        """Class names in their own type, by code, of shape (n_classes,), int64 or str."""
        dtype = np.int64 if self.class_name_type == "int" else np.str_
        return np.array(self.class_names).astype(dtype)

    @property
    def chunk_rows(self) -> int:
        """Rows in a chunk of features; the last chunk may have fewer."""
        return self.arrays[FEATURES].chunk_rows

    @property
    def compression(self) -> Compression:
        """How the chunks of features are compressed."""
        return self.arrays[FEATURES].compression

    @property
    def splits(self) -> dict[str, Ranges]:
        """Row ranges [start, stop) of each split; 'train' is always there."""
        return self.manifest.splits

    @property
    def provenance(self) -> dict[str, object]:
        """Where the rows are from and what was done to them."""
        return self.manifest.provenance

    @property
    def has_sample_weight(self) -> bool:
        """Whether the rows carry weights."""
        return self.manifest.has_sample_weight

    @property
    def has_row_id(self) -> bool:
        """Whether the rows stand in another order than in the source."""
        return self.manifest.has_row_id

    @property
    def ahead_bytes(self) -> int:
        """Bytes of features under way from an object store at most, beside those being read."""
        return self.arrays[FEATURES].ahead_bytes

    def expect(self, ranges: Iterable[tuple[int, int]]) -> None:
        """Say which rows of features will be read next.

        From an object store their chunks are requested ahead, several at a time; a store on disk
        does nothing, since the kernel reads ahead. To read rows that were not expected is right
        too, and slower.

        Parameters
        ----------
        ranges : iterable of (start, stop)
            In the order in which they will be read. They take the place of those said before.
        """
        self.arrays[FEATURES].expect(ranges)

    def read_features(self, start: int, stop: int) -> NDArray[Any]:
        """Read rows of features, checked against their checksum but not for NaN.

        Parameters
        ----------
        start, stop : int, 0 <= start <= stop <= n_samples
            A range inside one chunk costs one read of the chunk and no copy.

        Returns
        -------
        ndarray of shape (stop - start, n_features), dtype at rest, C-contiguous

        Raises
        ------
        DatasetError
            A chunk is missing, truncated or not as it was written.
        """
        return self.arrays[FEATURES].read(start, stop)

    def read_labels(self, start: int, stop: int) -> NDArray[np.int32]:
        """Read label codes, of a multiclass store.

        Parameters
        ----------
        start, stop : int, 0 <= start <= stop <= n_samples

        Returns
        -------
        ndarray of shape (stop - start,), int32

        Raises
        ------
        DatasetError
            The store is multilabel, or a chunk is not as it was written.
        """
        self._expect_kind("multiclass", "one label a row", "read_label_rows")
        return self.arrays[LABELS].read(start, stop)

    def read_label_rows(self, start: int, stop: int) -> LabelRows:
        """Read label codes, of a multilabel store.

        Parameters
        ----------
        start, stop : int, 0 <= start <= stop <= n_samples
            Only the chunks that hold labels of these rows are read.

        Returns
        -------
        LabelRows

        Raises
        ------
        DatasetError
            The store is multiclass, a chunk is not as it was written, or the starts of the rows
            cannot be. The codes are not checked.
        """
        self._expect_kind("multilabel", "any number of labels a row", "read_labels")
        if not 0 <= start <= stop <= self.n_samples:
            raise ValueError(
                f"rows must lie in 0:{self.n_samples}, got {start}:{stop} of the labels of "
                f"{self.path!r}."
            )
        indptr: NDArray[np.int64] = self.arrays[LABEL_INDPTR].read(start, stop + 1)
        check_indptr(indptr, start=start, store=self)
        first, last = indptr[[0, -1]].tolist()
        if first == last:
            return LabelRows(indptr - first, np.empty(0, np.int32))
        return LabelRows(indptr - first, self.arrays[LABEL_INDICES].read(first, last))

    def _read_labels_of_kind(self, start: int, stop: int) -> Labels:
        if self.kind == "multilabel":
            return self.read_label_rows(start, stop)
        return self.read_labels(start, stop)

    def _expect_kind(self, kind: Kind, content: str, other: str) -> None:
        if self.kind != kind:
            raise DatasetError(
                f"kind of {self.path!r} must be {kind!r} for {content}, got {self.kind!r}. Its "
                f"labels are read with {other}."
            )

    def read_sample_weight(self, start: int, stop: int) -> NDArray[np.float64]:
        """Read sample weights, ones when the store has none.

        Parameters
        ----------
        start, stop : int, 0 <= start <= stop <= n_samples

        Returns
        -------
        ndarray of shape (stop - start,), float64
        """
        if not self.has_sample_weight:
            return np.ones(stop - start)
        return self.arrays[SAMPLE_WEIGHT].read(start, stop)

    def read_row_id(self, start: int, stop: int) -> NDArray[np.int64]:
        """Read the row of the source that each row was.

        Parameters
        ----------
        start, stop : int, 0 <= start <= stop <= n_samples

        Returns
        -------
        ndarray of shape (stop - start,), int64
        """
        if not self.has_row_id:
            return np.arange(start, stop)
        return self.arrays[ROW_ID].read(start, stop)

    def split_ranges(self, split: str) -> Ranges:
        """Return the row ranges [start, stop) of a split.

        Parameters
        ----------
        split : str

        Raises
        ------
        DatasetError
            There is no such split; names those that there are, the nearest first.
        """
        if split in self.splits:
            return self.splits[split]
        near = difflib.get_close_matches(split, self.splits, n=len(self.splits), cutoff=0.0)
        known = ", ".join(repr(name) for name in near)
        raise DatasetError(f"split {split!r} is unknown in {self.path!r}. Available: {known}.")

    def split_size(self, split: str) -> int:
        """Return the number of rows of a split.

        Parameters
        ----------
        split : str
        """
        return sum(stop - start for start, stop in self.split_ranges(split))

    def iter_batches(
        self, split: str | None = None, batch_rows: int | None = None
    ) -> Iterator[Batch]:
        """Read the rows of a split, each chunk once.

        Parameters
        ----------
        split : str or None
            None reads every row of the store.
        batch_rows : int or None
            Most rows in a batch. None gives whole chunks, cut at the ends of the split.

        Yields
        ------
        Batch
            In the order of the rows, never across the end of a chunk.
        """
        ranges = ((0, self.n_samples),) if split is None else self.split_ranges(split)
        self.expect(ranges)
        for low, high in ranges:
            while low < high:
                stop = min(high, (low // self.chunk_rows + 1) * self.chunk_rows)
                yield from self._cut(low, stop, batch_rows or stop - low)
                low = stop

    def _cut(self, start: int, stop: int, rows: int) -> Iterator[Batch]:
        X = self.read_features(start, stop)
        y = self._read_labels_of_kind(start, stop)
        weight = self.read_sample_weight(start, stop)
        for first in range(0, stop - start, rows):
            part = slice(first, first + rows)
            yield Batch(start=start + first, X=X[part], y=y[part], weight=weight[part])

    def verify(self, progress: Callable[[int, int], None] | None = None) -> None:
        """Read everything and check it: checksums, finite features, labels, statistics.

        Parameters
        ----------
        progress : callable, optional
            Called with the rows done and all rows, after each chunk.

        Raises
        ------
        DatasetError
            Names the file, the chunk and the row of the first thing that is wrong.
        """
        verification = Verification(self, self.manifest)
        for batch in self.iter_batches():
            stop = batch.start + len(batch.X)
            verification.add(batch.X, batch.y, batch.weight, start=batch.start)
            if self.has_row_id:
                verification.add_row_id(self.read_row_id(batch.start, stop), start=batch.start)
            if progress is not None:
                progress(stop, self.n_samples)
        verification.finish(mean=self.mean, std=self.std)
