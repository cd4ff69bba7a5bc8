"""Open what zarr has written, and refuse arrays that are not laid out as ours."""

from typing import Any, cast

import numpy as np
import zarr
import zarr.storage
from numpy.typing import DTypeLike
from zarr.core.buffer import default_buffer_prototype

from dtopk_storage.chunked import METADATA, ChunkedArray
from dtopk_storage.compression import MOST_CHUNK_BYTES, find_compression
from dtopk_storage.errors import DatasetError, describe_error
from dtopk_storage.objects import ObjectPath
from dtopk_storage.paths import AnyPath


def open_array(
    path: AnyPath,
    *,
    sparse: bool = False,
    error: type[ValueError] = DatasetError,
    remedy: str = "Ingest it again.",
) -> ChunkedArray:
    """Open an array and check that it is laid out as `ChunkedArray` has it.

    Parameters
    ----------
    path : Path or ObjectPath
    sparse : bool
        Whether a chunk that is not there stands for zeros.
    error : type
        Raised for what is wrong on disk.
    remedy : str
        Last sentence of those messages.
    """
    try:
        array = zarr.open_array(open_metadata(path), mode="r", zarr_format=3)
        metadata = cast(dict[str, Any], array.metadata.to_dict())
        compression = find_compression(metadata["codecs"])
        grid = metadata["chunk_grid"]
        key_encoding = metadata["chunk_key_encoding"]
        whole_rows = (
            grid["name"] == "regular"
            and tuple(grid["configuration"]["chunk_shape"][1:]) == (array.shape[1:])
        )
        plain_keys = key_encoding["name"] == "default" and (
            key_encoding.get("configuration", {}).get("separator", "/") == "/"
        )
    except Exception as cause:  # zarr's own checks leave many kinds of nonsense to chance.
        raise_if_unreachable(path, cause)
        raise error(
            f"{str(path)!r} must be a zarr v3 array, got: {describe_error(cause)} {remedy}"
        ) from cause
    if compression is None or not whole_rows or not plain_keys or array.ndim not in (1, 2):
        raise error(
            f"{str(path)!r} must have one or two dimensions, regular chunks of whole rows, "
            f"default chunk keys and the codecs bytes (little), then blosc, zstd or none, then "
            f"crc32c; got shape {array.shape}, chunks {grid['configuration']} and codecs "
            f"{[codec['name'] for codec in metadata['codecs']]}."
        )
    opened = ChunkedArray(
        path=path,
        shape=array.shape,
        chunk_rows=array.chunks[0],
        dtype=np.dtype(cast(DTypeLike, array.dtype)),
        compression=compression,
        sparse=sparse,
        error=error,
        remedy=remedy,
    )
    _check_sizes(opened)
    return opened


def _check_sizes(array: ChunkedArray) -> None:
    """Refuse sizes that no array of ours has, before they are given memory."""
    if array.dtype.kind not in "fi" or min(array.shape, default=0) < 0 or array.chunk_rows < 1:
        raise array.error(
            f"{str(array.path)!r} must be an array of numbers, got {array.dtype} of shape "
            f"{array.shape} in chunks of {array.chunk_rows} rows. {array.remedy}"
        )
    # An uncompressed chunk is as large as its file, which on a disk is looked at before.
    is_plain_file = array.compression == "none" and not isinstance(array.path, ObjectPath)
    if array.chunk_bytes > MOST_CHUNK_BYTES and not is_plain_file:
        raise array.error(
            f"chunks of {str(array.path)!r} must be at most {MOST_CHUNK_BYTES:,} bytes, unpacked, "
            f"got {array.chunk_bytes:,}. {array.remedy}"
        )


def open_metadata(path: AnyPath) -> Any:
    """Give what zarr opens a group or an array from, to read what it says of itself.

    Parameters
    ----------
    path : Path or ObjectPath

    Returns
    -------
    Path, or a store of zarr with that file alone

    Raises
    ------
    OSError
        It cannot be read from its object store.
    """
    if not isinstance(path, ObjectPath):
        return path
    body = (path / METADATA).read_bytes()
    return zarr.storage.MemoryStore({METADATA: default_buffer_prototype().buffer.from_bytes(body)})


def raise_if_unreachable(path: AnyPath, error: Exception) -> None:
    """Raise an object store's own error again, unless it says that there is no such object.

    Parameters
    ----------
    path : Path or ObjectPath
    error : Exception
    """
    is_stores_own = isinstance(path, ObjectPath) and isinstance(error, OSError)
    if is_stores_own and not isinstance(error, FileNotFoundError):
        raise error
