"""The last steps of making a store, shared by all that make one."""

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import zarr
import zarr.storage
from numpy.typing import NDArray

from dtopk_storage.chunked import ChunkedArray
from dtopk_storage.compression import COMPRESSIONS, Compression
from dtopk_storage.errors import DatasetError
from dtopk_storage.files import sync_folder
from dtopk_storage.label_rows import LabelRows, Labels
from dtopk_storage.manifest import (
    ATTRIBUTE,
    FEATURES,
    LABEL_INDICES,
    LABEL_INDPTR,
    LABELS,
    MEAN,
    ROW_ID,
    SAMPLE_WEIGHT,
    STD,
    Manifest,
)
from dtopk_storage.objects import ObjectPath
from dtopk_storage.paths import AnyPath, delete_tree, write_whole
from dtopk_storage.replacement import REPLACED, put_back
from dtopk_storage.statistics import FeatureStatistics
from dtopk_storage.store_opening import is_store

# Measured with float16 in the page cache, one thread, checksums included: 4 MiB chunks read at
# 12.8 GB/s, 8 at 10, 16 at 8.2 and 32 at 3 (their memory is new to the process every time).
# 16 keeps a data set of 100 GB in 6,000 files.
DEFAULT_CHUNK_BYTES = 16 << 20
# Several are under way at a time, so that they need not be large, and a slice takes less.
OBJECT_CHUNK_BYTES = 4 << 20
_LABEL_ROWS = 1 << 16
_ARRAYS = (FEATURES, LABELS, LABEL_INDPTR, LABEL_INDICES, SAMPLE_WEIGHT, ROW_ID, MEAN, STD)


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class Columns:
    """What a store has of each row, beside the features."""

    labels: Labels
    """Codes of n_samples rows."""
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


def default_chunk_bytes(path: AnyPath) -> int:
    """Return the most bytes in a chunk of features of a store, where nobody says.

    Parameters
    ----------
    path : Path or ObjectPath
        Of the store.
    """
    return OBJECT_CHUNK_BYTES if isinstance(path, ObjectPath) else DEFAULT_CHUNK_BYTES


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
    folder: AnyPath,
    *,
    shape: tuple[int, int],
    dtype: np.dtype[Any],
    chunk_rows: int,
    compression: Compression,
) -> ChunkedArray:
    """Return the features of a store that is being written; writes nothing.

    Parameters
    ----------
    folder : Path or ObjectPath
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
    folder: AnyPath,
    *,
    features: ChunkedArray,
    columns: Columns,
    statistics: FeatureStatistics,
    manifest: Manifest,
) -> None:
    """Write everything but the chunks of features, the manifest last.

    Parameters
    ----------
    folder : Path or ObjectPath
        Holds all chunks of features already.
    features : ChunkedArray
    columns : Columns
    statistics : FeatureStatistics
        Of the training rows.
    manifest : Manifest
    """
    for name in _ARRAYS:
        if name != FEATURES:
            delete_tree(folder / name)
    for place in (folder, features.path):
        # zarr makes an array only where there is none, and its temporary files outlive a kill.
        for leftover in place.glob("zarr.*") if isinstance(place, Path) else ():
            leftover.unlink()
    features.write_metadata(("sample", "feature"))
    write_labels(folder, columns.labels, features.chunk_rows)
    if columns.sample_weight is not None:
        _write_vector(folder / SAMPLE_WEIGHT, columns.sample_weight, features.chunk_rows, "sample")
    if columns.row_id is not None:
        _write_vector(folder / ROW_ID, columns.row_id, features.chunk_rows, "sample")
    _write_vector(folder / MEAN, statistics.mean, len(statistics.mean), "feature")
    _write_vector(folder / STD, statistics.std, len(statistics.mean), "feature")
    write_manifest(folder, manifest)


def write_manifest(folder: AnyPath, manifest: Manifest) -> None:
    """Make a group of a folder, which makes a store of the arrays in it.

    Parameters
    ----------
    folder : Path or ObjectPath
    manifest : Manifest
    """
    attributes = {ATTRIBUTE: manifest.to_attributes()}
    if isinstance(folder, ObjectPath):
        made: dict[str, Any] = {}
        zarr.create_group(zarr.storage.MemoryStore(made), zarr_format=3, attributes=attributes)
        write_whole(folder / "zarr.json", [made["zarr.json"].to_bytes()], durable=True)
    else:
        zarr.create_group(folder, zarr_format=3, attributes=attributes)
        sync_folder(folder)


def write_labels(folder: AnyPath, labels: Labels, chunk_rows: int) -> None:
    """Write the one array, or the two, with the labels.

    Parameters
    ----------
    folder : Path or ObjectPath
        Of the store.
    labels : ndarray of shape (n_samples,), int32, or LabelRows
    chunk_rows : int
        Rows in a chunk of features.
    """
    if isinstance(labels, LabelRows):
        _write_vector(folder / LABEL_INDPTR, labels.indptr, chunk_rows, "bound")
        # Rows have any number of labels, so chunks of whole rows would have no one size.
        _write_vector(folder / LABEL_INDICES, labels.indices, 1, "label")
    else:
        _write_vector(folder / LABELS, labels, chunk_rows, "sample")


def _write_vector(path: AnyPath, values: NDArray[Any], chunk_rows: int, dimension: str) -> None:
    """Write a one-dimensional array, in chunks that are a whole number of feature chunks."""
    array = ChunkedArray(
        path=path,
        shape=values.shape,
        chunk_rows=max(1, min(len(values), chunk_rows * max(1, _LABEL_ROWS // chunk_rows))),
        dtype=values.dtype.newbyteorder("<"),
        compression="none",
    )
    for chunk in range(array.n_chunks):
        start, stop = array.rows_of(chunk)
        array.write_chunk(chunk, values[start:stop], durable=True)
    array.write_metadata((dimension,))


def check_target(path: AnyPath, *, overwrite: bool) -> None:
    """Refuse to write a store where something stands.

    Parameters
    ----------
    path : Path or ObjectPath
        In an object store, chunks that an unfinished ingest has left there are no store yet, and
        in nobody's way.
    overwrite : bool
        Allow it, when what stands there is a store, of whatever format version.

    Raises
    ------
    DatasetError
    """
    if not path.exists():
        return
    if isinstance(path, ObjectPath) and not is_store(path):
        if all(each.name in _ARRAYS for each in path.iterdir()) and not path.is_file():
            return
    if not overwrite:
        raise DatasetError(
            f"{str(path)!r} exists already.",
            advice="Choose another path, or replace it on purpose with {overwrite}.",
        )
    if not is_store(path) and not (path.is_dir() and not any(path.iterdir())):
        raise DatasetError(f"{str(path)!r} must be a store to be overwritten, got something else.")


def delete_store(path: AnyPath) -> None:
    """Delete a store, or what there is of one; killed in that it is a store no more.

    Parameters
    ----------
    path : Path or ObjectPath
        Checked by `check_target`.
    """
    if isinstance(path, ObjectPath):
        (path / "zarr.json").unlink(missing_ok=True)
    delete_tree(path)


def publish(folder: AnyPath, path: AnyPath) -> None:
    """Rename a whole store into its place, and what stood there to `REPLACED` beside it.

    Interrupted between the two, the earlier store is put back; killed, nothing is at `path`, and
    `restore_replaced` puts it back. Nothing can be renamed in an object store: a store is
    written where it is to be.

    Parameters
    ----------
    folder : Path or ObjectPath
        The store, in a folder of its writer's, on the same file system.
    path : Path or ObjectPath
    """
    if not (isinstance(path, Path) and isinstance(folder, Path)):
        assert folder == path
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    replaced = folder.with_name(REPLACED)
    if path.exists():
        delete_tree(replaced)
    try:
        if path.exists():
            path.rename(replaced)
            sync_folder(folder.parent)
        folder.rename(path)
    except BaseException:
        put_back(replaced, path)
        raise
    sync_folder(path.parent)
