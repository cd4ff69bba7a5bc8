"""Reading a store of features and labels."""

import dataclasses
import difflib
import functools
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np
import zarr
import zarr.errors
from numpy.typing import NDArray

from dtopk_storage.checks import check_indptr
from dtopk_storage.chunked import (
    ChunkedArray,
    Compression,
    open_array,
    open_metadata,
    raise_if_unreachable,
)
from dtopk_storage.errors import DatasetError, describe_error
from dtopk_storage.label_rows import LabelRows, Labels
from dtopk_storage.manifest import (
    ATTRIBUTE,
    FEATURES,
    FORMAT,
    LABEL_INDICES,
    LABEL_INDPTR,
    LABELS,
    MEAN,
    ROW_ID,
    SAMPLE_WEIGHT,
    STD,
    ClassNameType,
    Kind,
    Manifest,
    Ranges,
    parse_manifest,
)
from dtopk_storage.objects import ObjectPath
from dtopk_storage.paths import AnyPath, PathLike, as_path
from dtopk_storage.replacement import WORK_SUFFIX, find_replaced
from dtopk_storage.verification import Verification

_LABEL_ARRAYS: dict[Kind, tuple[str, ...]] = {
    "multiclass": (LABELS,),
    "multilabel": (LABEL_INDPTR, LABEL_INDICES),
}


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


def open_store(path: PathLike) -> FeatureStore:
    """Open a store: read and check its metadata, and none of its rows.

    Of a multilabel store the last chunk of `label_indptr` is read, which has the number of labels.

    Parameters
    ----------
    path : str, path-like or ObjectPath
        Folder of the store, or its address in an object store, ``s3://bucket/store.zarr``.
        Credentials and endpoint are those of the environment.

    Raises
    ------
    DatasetError
        There is no store, or its metadata is not whole, not consistent, or of a newer format.
    OSError
        The object store cannot be reached, refuses access, or has no such bucket.
    """
    folder = store_path(path)
    manifest = parse_manifest(_read_attribute(folder), repr(str(path)))
    arrays = {name: open_array(folder / name) for name in (FEATURES, *_LABEL_ARRAYS[manifest.kind])}
    if manifest.has_sample_weight:
        arrays[SAMPLE_WEIGHT] = open_array(folder / SAMPLE_WEIGHT)
    if manifest.has_row_id:
        arrays[ROW_ID] = open_array(folder / ROW_ID)
    mean, std = open_array(folder / MEAN), open_array(folder / STD)
    n, d = manifest.n_samples, manifest.n_features
    _expect(arrays[FEATURES], (n, d), manifest.dtype)
    _expect(mean, (d,), "float64")
    _expect(std, (d,), "float64")
    for name, dtype in ((LABELS, "int32"), (SAMPLE_WEIGHT, "float64"), (ROW_ID, "int64")):
        if name in arrays:
            _expect(arrays[name], (n,), dtype)
    if manifest.kind == "multilabel":
        _expect(arrays[LABEL_INDPTR], (n + 1,), "int64")
        # The manifest does not say how many labels there are: the last row's end does.
        n_labels = int(arrays[LABEL_INDPTR].read(n, n + 1)[0])
        _expect(arrays[LABEL_INDICES], (n_labels,), "int32", "label_indptr says")
    return FeatureStore(
        path=str(path),
        manifest=manifest,
        mean=mean.read(0, d),
        std=std.read(0, d),
        arrays=arrays,
    )


def store_path(path: PathLike) -> AnyPath:
    """Return the path of a store, and refuse an address of what is no object store.

    Parameters
    ----------
    path : str, path-like or ObjectPath

    Raises
    ------
    DatasetError
    """
    try:
        return as_path(path, name="store")
    except ValueError as error:
        raise DatasetError(str(error)) from error


def is_store(folder: AnyPath) -> bool:
    """Tell whether a folder is a store, of whatever format version, whole or damaged.

    Parameters
    ----------
    folder : Path or ObjectPath
    """
    metadata = folder / "zarr.json"
    try:
        return FORMAT in metadata.read_text(errors="replace")
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
        return False


def _read_attribute(folder: AnyPath) -> dict[str, Any]:
    """Read the group's attribute that holds the manifest."""
    path = str(folder)
    _check_folder(folder)
    try:
        group = zarr.open_group(open_metadata(folder), mode="r", zarr_format=3)
        fields = group.attrs.asdict().get(ATTRIBUTE)
    except Exception as cause:  # zarr's own checks leave many kinds of nonsense to chance.
        raise_if_unreachable(folder, cause)
        raise DatasetError(
            f"store {path!r} must be a zarr v3 group, got: {describe_error(cause)} Ingest it again."
        ) from cause
    if not isinstance(fields, dict):
        raise DatasetError(
            f"store {path!r} must have a manifest in its attribute {ATTRIBUTE!r}, got none. "
            f"Make a store of it with `dtopk ingest`."
        )
    return fields


def _check_folder(folder: AnyPath) -> None:
    """Refuse what is not even a folder of zarr's, and say what is there instead."""
    path = str(folder)
    if isinstance(folder, ObjectPath) and (folder / "zarr.json").is_file():
        return
    if folder.is_file():
        raise DatasetError(
            f"store must be a folder, got {path!r}, a file. If it holds features, make a store of "
            f"it with `dtopk ingest`."
        )
    if (folder / "zarr.json").is_file():
        return
    work = folder if folder.suffix == WORK_SUFFIX else folder.with_name(folder.name + WORK_SUFFIX)
    for left in find_replaced(folder):
        raise DatasetError(
            f"store {path!r} must be there, but its replacement was broken off, and the earlier "
            f"store is in {str(left)!r}. Write the new one again, or rename this one to {path!r}."
        )
    if work.is_dir():
        raise DatasetError(
            f"store {path!r} must be whole, got an unfinished ingest in {str(work)!r}. Run the "
            f"same `dtopk ingest` again to go on with it."
        )
    if not folder.is_dir():
        raise DatasetError(f"store must be an existing folder, got {path!r}.")
    raise DatasetError(f"store {path!r} must have a zarr.json, got a folder without one.")


def _expect(
    array: ChunkedArray, shape: tuple[int, ...], dtype: str, why: str = "the manifest says"
) -> None:
    if array.shape != shape or array.dtype.name != dtype:
        raise DatasetError(
            f"{str(array.path)!r} must be {dtype} of shape {shape}, as {why}, "
            f"got {array.dtype.name} of shape {array.shape}. Ingest it again."
        )
