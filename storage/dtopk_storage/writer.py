"""Writing a store from rows that come one block after the other."""

import dataclasses
import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
import zarr
from numpy.typing import ArrayLike, NDArray

from dtopk_storage.chunked import COMPRESSIONS, ChunkedArray, Compression
from dtopk_storage.errors import DatasetError
from dtopk_storage.files import sync_folder
from dtopk_storage.manifest import (
    ATTRIBUTE,
    FORMAT,
    TRAIN,
    ClassNameType,
    Manifest,
    Ranges,
    check_class_names,
    check_splits,
)
from dtopk_storage.statistics import FeatureStatistics
from dtopk_storage.store import (
    FEATURES,
    LABELS,
    MEAN,
    ROW_ID,
    SAMPLE_WEIGHT,
    STD,
    FeatureStore,
    local_folder,
    open_store,
)
from dtopk_storage.values import as_feature_dtype, convert_features
from dtopk_storage.verification import check_weights

# Measured with float16 in the page cache, one thread, checksums included: 4 MiB chunks read at
# 12.8 GB/s, 8 at 10, 16 at 8.2 and 32 at 3 (their memory is new to the process every time).
# 16 keeps a data set of 100 GB in 6,000 files.
DEFAULT_CHUNK_BYTES = 16 << 20
_LABEL_ROWS = 1 << 16


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class Columns:
    """What a store has one value a row of, beside the features."""

    labels: NDArray[np.int32]
    """Codes, of shape (n_samples,)."""
    sample_weight: NDArray[np.float64] | None
    """Weights of shape (n_samples,), or None when there are none."""
    row_id: NDArray[np.int64] | None
    """Row of the source, of shape (n_samples,), or None when the order is the source's."""


def default_chunk_rows(n_features: int, dtype: np.dtype[Any], chunk_bytes: int) -> int:
    """Return how many rows make a chunk of at most `chunk_bytes`, and at least one.

    Parameters
    ----------
    n_features : int
    dtype : dtype
    chunk_bytes : int
        Uncompressed.
    """
    return max(1, chunk_bytes // (n_features * dtype.itemsize))


def check_compression(compression: str) -> Compression:
    """Return a compression by its name, or raise ValueError with the names.

    Parameters
    ----------
    compression : str
    """
    for known in COMPRESSIONS:
        if compression == known:
            return known
    raise ValueError(f"compression must be 'none', 'lz4' or 'zstd', got {compression!r}.")


def features_array(
    folder: Path,
    *,
    shape: tuple[int, int],
    dtype: np.dtype[Any],
    chunk_rows: int,
    compression: Compression,
) -> ChunkedArray:
    """Return the features of a store that is being written; writes nothing.

    Parameters
    ----------
    folder : Path
        Of the store.
    shape : tuple of (n_samples, n_features)
    dtype : dtype
    chunk_rows : int
        Lowered to n_samples, so that a small store is not padded to a full chunk.
    compression : str
    """
    return ChunkedArray(
        path=folder / FEATURES,
        shape=shape,
        chunk_rows=max(1, min(chunk_rows, shape[0])),
        dtype=dtype,
        compression=compression,
    )


def finish_store(
    folder: Path,
    *,
    features: ChunkedArray,
    columns: Columns,
    statistics: FeatureStatistics,
    manifest: Manifest,
) -> None:
    """Write everything but the chunks of features, the manifest last.

    Parameters
    ----------
    folder : Path
        Holds all chunks of features already.
    features : ChunkedArray
    columns : Columns
    statistics : FeatureStatistics
        Of the training rows.
    manifest : Manifest
    """
    for name in (LABELS, SAMPLE_WEIGHT, ROW_ID, MEAN, STD):
        shutil.rmtree(folder / name, ignore_errors=True)
    # zarr makes an array only where there is none, and its temporary files outlive a kill.
    for leftover in [*folder.glob("zarr.*"), *features.path.glob("zarr.*")]:
        leftover.unlink()
    features.write_metadata(("sample", "feature"))
    _write_vector(folder / LABELS, columns.labels, features.chunk_rows, "sample")
    if columns.sample_weight is not None:
        _write_vector(folder / SAMPLE_WEIGHT, columns.sample_weight, features.chunk_rows, "sample")
    if columns.row_id is not None:
        _write_vector(folder / ROW_ID, columns.row_id, features.chunk_rows, "sample")
    _write_vector(folder / MEAN, statistics.mean, len(statistics.mean), "feature")
    _write_vector(folder / STD, statistics.std, len(statistics.mean), "feature")
    zarr.create_group(folder, zarr_format=3, attributes={ATTRIBUTE: manifest.to_attributes()})
    sync_folder(folder)


def _write_vector(path: Path, values: NDArray[Any], chunk_rows: int, dimension: str) -> None:
    """Write a one-dimensional array, in chunks that are a whole number of feature chunks."""
    array = ChunkedArray(
        path=path,
        shape=values.shape,
        chunk_rows=min(len(values), chunk_rows * max(1, _LABEL_ROWS // chunk_rows)),
        dtype=values.dtype.newbyteorder("<"),
        compression="none",
    )
    for chunk in range(array.n_chunks):
        start, stop = array.rows_of(chunk)
        array.write_chunk(chunk, values[start:stop], durable=True)
    array.write_metadata((dimension,))


def check_target(path: Path, *, overwrite: bool) -> None:
    """Refuse to write a store where something stands.

    Parameters
    ----------
    path : Path
    overwrite : bool
        Allow it, when what stands there is a store, of whatever format version.

    Raises
    ------
    DatasetError
    """
    if not path.exists():
        return
    if not overwrite:
        raise DatasetError(
            f"{str(path)!r} exists already. Choose another path, or overwrite it on purpose."
        )
    metadata = path / "zarr.json"
    is_store = metadata.is_file() and FORMAT in metadata.read_text(errors="replace")
    if not is_store and not (path.is_dir() and not any(path.iterdir())):
        raise DatasetError(f"{str(path)!r} must be a store to be overwritten, got something else.")


def publish(folder: Path, path: Path) -> None:
    """Rename a whole store into its place; what stood there goes once it is in it.

    Parameters
    ----------
    folder : Path
        The store, on the same file system.
    path : Path
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    replaced = path.with_name(f"{path.name}.replaced")
    if path.exists():
        shutil.rmtree(replaced, ignore_errors=True)
        path.rename(replaced)
    folder.rename(path)
    sync_folder(path.parent)
    shutil.rmtree(replaced, ignore_errors=True)


class StoreWriter:
    """A store being written; made by `create_store`.

    Rows are appended in order and the store appears at `finish`, whole. As a context manager
    it finishes at the end of the block, and leaves nothing behind when the block fails.
    """

    def __init__(
        self,
        path: Path,
        *,
        features: ChunkedArray,
        class_names: tuple[str, ...],
        class_name_type: ClassNameType,
        has_sample_weight: bool,
        provenance: Mapping[str, object],
        overwrite: bool,
    ) -> None:
        self._path = path
        self._place = repr(str(path))
        self._folder = features.path.parent
        self._features = features
        self._class_names = class_names
        self._class_name_type = class_name_type
        self._has_sample_weight = has_sample_weight
        self._provenance = dict(provenance)
        self._overwrite = overwrite
        self._statistics = FeatureStatistics(features.shape[1])
        self._splits: dict[str, list[tuple[int, int]]] = {}
        self._labels: list[NDArray[np.int32]] = []
        self._weights: list[NDArray[np.float64]] = []
        self._buffer = np.empty((features.chunk_rows, features.shape[1]), features.dtype)
        self._n_rows = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exception_type: type[BaseException] | None,
        exception: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if exception_type is None:
            self.finish()
        else:
            self.abort()

    def append(
        self,
        X: NDArray[Any],
        y: ArrayLike,
        *,
        split: str = TRAIN,
        sample_weight: ArrayLike | None = None,
    ) -> None:
        """Append rows.

        Parameters
        ----------
        X : ndarray of shape (rows, n_features), any real dtype
            Converted to the dtype of the store.
        y : array-like of shape (rows,), int
            Label codes in 0:n_classes.
        split : str
            The split that the rows belong to.
        sample_weight : array-like of shape (rows,), float, or None
            Given exactly when the store was created with them.

        Raises
        ------
        DatasetError
            Nothing of these rows is written then.
        """
        place = f"rows {self._n_rows}:{self._n_rows + len(X)} for {self._place}"
        labels, weights = self._check_columns(X, y, sample_weight, place)
        converted = convert_features(
            X, self._features.dtype, divide_by=1, place=self._place, start=self._n_rows
        )
        if split == TRAIN and len(X):
            self._statistics.add(converted)
        self._labels.append(labels)
        self._weights.append(weights)
        self._write(converted)
        self._extend_split(split, len(X))

    def finish(self) -> FeatureStore:
        """Write the rest and put the store in its place.

        Returns
        -------
        FeatureStore
        """
        try:
            self._finish()
            check_target(self._path, overwrite=self._overwrite)
            publish(self._folder, self._path)
        except BaseException:
            self.abort()
            raise
        return open_store(self._path)

    def abort(self) -> None:
        """Remove what was written."""
        shutil.rmtree(self._folder, ignore_errors=True)

    def _finish(self) -> None:
        """Write all that is not on the disk yet."""
        splits: dict[str, Ranges] = {name: tuple(rows) for name, rows in self._splits.items()}
        check_splits(splits, self._n_rows, self._place)
        features = self._flush()
        columns = Columns(
            labels=np.concatenate(self._labels),
            sample_weight=np.concatenate(self._weights) if self._has_sample_weight else None,
            row_id=None,
        )
        manifest = Manifest(
            n_samples=self._n_rows,
            n_features=features.shape[1],
            dtype=features.dtype.name,
            kind="multiclass",
            class_names=self._class_names,
            class_name_type=self._class_name_type,
            splits=splits,
            has_sample_weight=self._has_sample_weight,
            has_row_id=False,
            provenance=self._provenance,
        )
        finish_store(
            self._folder,
            features=features,
            columns=columns,
            statistics=self._statistics,
            manifest=manifest,
        )

    def _check_columns(
        self, X: NDArray[Any], y: ArrayLike, sample_weight: ArrayLike | None, place: str
    ) -> tuple[NDArray[np.int32], NDArray[np.float64]]:
        if X.ndim != 2 or X.shape[1] != self._features.shape[1]:
            raise DatasetError(
                f"X must have shape (rows, {self._features.shape[1]}), got {X.shape} in {place}."
            )
        codes = np.asarray(y)
        if codes.shape != (len(X),):
            raise DatasetError(
                f"y must have as many rows as X, "
                f"got {len(X)} in X and {codes.size} in y in {place}."
            )
        if len(codes) and not 0 <= codes.min() <= codes.max() < len(self._class_names):
            raise DatasetError(
                f"y must lie in 0:{len(self._class_names)}, "
                f"got {codes.min()} to {codes.max()} in {place}."
            )
        if (sample_weight is not None) != self._has_sample_weight:
            wanted = "given" if self._has_sample_weight else "left out"
            raise DatasetError(f"sample_weight must be {wanted}, as at the start, in {place}.")
        weight = np.ones(len(X)) if sample_weight is None else np.asarray(sample_weight, np.float64)
        if weight.shape != (len(X),):
            raise DatasetError(
                f"sample_weight must have as many rows as X, "
                f"got {len(X)} in X and {weight.size} in sample_weight in {place}."
            )
        check_weights(weight, self._n_rows, self._place)
        return codes.astype(np.int32), weight

    def _write(self, X: NDArray[Any]) -> None:
        """Copy rows into the open chunk, and write each chunk that they fill."""
        done = 0
        while done < len(X):
            filled = self._n_rows % len(self._buffer)
            rows = min(len(X) - done, len(self._buffer) - filled)
            self._buffer[filled : filled + rows] = X[done : done + rows]
            done += rows
            self._n_rows += rows
            if filled + rows == len(self._buffer):
                self._grown().write_chunk(self._n_rows // len(self._buffer) - 1, self._buffer)

    def _extend_split(self, split: str, rows: int) -> None:
        ranges = self._splits.setdefault(split, [])
        start = self._n_rows - rows
        if ranges and ranges[-1][1] == start:
            start = ranges.pop()[0]
        if rows:
            ranges.append((start, self._n_rows))

    def _grown(self) -> ChunkedArray:
        """Return the features with the rows that came so far."""
        return dataclasses.replace(self._features, shape=(self._n_rows, self._features.shape[1]))

    def _flush(self) -> ChunkedArray:
        """Write the last chunk; a single one is made no larger than its rows."""
        features = self._grown()
        rest = self._n_rows % len(self._buffer)
        if self._n_rows < len(self._buffer):
            features = dataclasses.replace(features, chunk_rows=self._n_rows)
        if rest:
            features.write_chunk(features.n_chunks - 1, self._buffer[:rest])
        return features


def create_store(
    path: str | os.PathLike[str],
    *,
    n_features: int,
    class_names: Sequence[str] | Sequence[int],
    dtype: object = "float32",
    chunk_rows: int | None = None,
    compression: str = "none",
    sample_weight: bool = False,
    provenance: Mapping[str, object] | None = None,
    overwrite: bool = False,
) -> StoreWriter:
    """Begin a store to which rows are appended in order.

    The rows need not be in memory together, nor counted before. They are written to a folder
    beside `path`, which takes its place when the store is finished.

    Parameters
    ----------
    path : str or path-like
        Folder of the store to be.
    n_features : int
    class_names : sequence of str or of int
        Name of each class, by code.
    dtype : str or dtype
        Of the features at rest: float16, float32 or float64.
    chunk_rows : int or None
        Rows in a chunk of features. None gives chunks of 16 MiB.
    compression : str
        Of the features: none, lz4 or zstd.
    sample_weight : bool
        Whether every row comes with a weight.
    provenance : mapping or None
        JSON values that say where the rows are from.
    overwrite : bool
        Replace a store that is at `path`, once the new one is whole.

    Returns
    -------
    StoreWriter
    """
    target = local_folder(path)
    check_target(target, overwrite=overwrite)
    stored = as_feature_dtype(dtype)
    if n_features < 1:
        raise ValueError(f"n_features must be at least 1, got {n_features}.")
    if chunk_rows is not None and chunk_rows < 1:
        raise ValueError(f"chunk_rows must be at least 1, got {chunk_rows}.")
    names = tuple(str(name) for name in class_names)
    check_class_names(names, repr(str(path)))
    codec = check_compression(compression)
    folder = target.with_name(f"{target.name}.writing-{os.getpid()}")
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    return StoreWriter(
        target,
        features=ChunkedArray(
            path=folder / FEATURES,
            shape=(0, n_features),
            chunk_rows=chunk_rows or default_chunk_rows(n_features, stored, DEFAULT_CHUNK_BYTES),
            dtype=stored,
            compression=codec,
        ),
        class_names=names,
        class_name_type="str" if isinstance(class_names[0], str) else "int",
        has_sample_weight=sample_weight,
        provenance=provenance or {},
        overwrite=overwrite,
    )
