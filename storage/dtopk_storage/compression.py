"""How chunks are compressed, and what zarr calls that."""

from typing import Any, Literal

import numcodecs
import numcodecs.blosc
import numpy as np
import zarr.codecs
from numpy.typing import NDArray

from dtopk_storage.files import Bytes, as_bytes

Compression = Literal["none", "lz4", "lz4_sparse", "zstd"]
COMPRESSIONS: tuple[Compression, ...] = ("none", "lz4", "zstd")

MOST_CHUNK_BYTES = numcodecs.blosc.MAX_BUFFERSIZE
"""Most bytes of a chunk that is compressed, unpacked, or in an object store: those of a blosc
buffer."""


_LITTLE_ENDIAN = {"name": "bytes", "configuration": {"endian": "little"}}


def find_compression(codecs: list[dict[str, Any]]) -> Compression | None:
    """Tell how the chunks of an array are compressed; None: as none of ours.

    Parameters
    ----------
    codecs : list of dict
        Of the array's metadata.
    """
    names = [codec["name"] for codec in codecs]
    if codecs[0] != _LITTLE_ENDIAN or names[-1] != "crc32c" or len(names) > 3:
        return None
    if len(names) == 2:
        return "none"
    if names[1] == "blosc":
        plain = codecs[1]["configuration"]["shuffle"] == "noshuffle"
        return "lz4_sparse" if plain else "lz4"
    return "zstd" if names[1] == "zstd" else None


def make_codecs(compression: Compression) -> tuple[Any, ...]:
    """Make the codecs by which zarr compresses so.

    Parameters
    ----------
    compression : {'none', 'lz4', 'lz4_sparse', 'zstd'}
    """
    if compression == "zstd":
        return (zarr.codecs.ZstdCodec(level=1),)
    if compression == "lz4":
        return (zarr.codecs.BloscCodec(cname="lz4", clevel=5, shuffle="bitshuffle"),)
    if compression == "lz4_sparse":
        return (zarr.codecs.BloscCodec(cname="lz4", clevel=5, shuffle="noshuffle"),)
    return ()


def compress(compression: Compression, values: NDArray[Any]) -> Bytes:
    """Compress a chunk, the same values always to the same bytes.

    Parameters
    ----------
    compression : {'none', 'lz4', 'lz4_sparse', 'zstd'}
    values : ndarray, C-contiguous

    Returns
    -------
    ndarray of uint8
        Not a copy where nothing is compressed.
    """
    if compression == "none":
        return as_bytes(values)
    if compression == "zstd":
        return np.frombuffer(numcodecs.Zstd(level=1).encode(values), np.uint8)
    shuffle = numcodecs.Blosc.BITSHUFFLE if compression == "lz4" else numcodecs.Blosc.NOSHUFFLE
    codec = numcodecs.Blosc(cname="lz4", clevel=5, shuffle=shuffle)
    # Blosc's threads append their blocks in the order in which they finish: the same values
    # would not always give the same file.
    threads, numcodecs.blosc.use_threads = numcodecs.blosc.use_threads, False
    try:
        return np.frombuffer(codec.encode(values), np.uint8)
    finally:
        numcodecs.blosc.use_threads = threads


def decompress(compression: Compression, body: Bytes, target: Bytes) -> None:
    """Unpack a chunk.

    Parameters
    ----------
    compression : {'lz4', 'lz4_sparse', 'zstd'}
    body : ndarray of uint8
    target : ndarray of uint8
        Filled in.

    Raises
    ------
    RuntimeError, ValueError
        If the bytes are none that were compressed so, or unpack to another size.
    """
    codec = numcodecs.Zstd() if compression == "zstd" else numcodecs.Blosc()
    codec.decode(body, out=target)
