"""One array in one file: a header, the values, a checksum; storage/README.md has the format."""

import dataclasses
import json
import math
from collections.abc import Sequence
from typing import Any, cast

import google_crc32c
import numcodecs
import numcodecs.blosc
import numpy as np
from numpy.typing import NDArray

from dtopk_storage.errors import CheckpointError
from dtopk_storage.files import Bytes, as_bytes
from dtopk_storage.json_files import parse_record

REMEDY = "The run cannot go on from this state: delete it and start the run anew."
"""What to do about a state that is damaged, as the last sentence of a message."""

_MAGIC = b"DTOPKARR"
_FORMAT = 1
_ALIGNMENT = 64
_PREFIX_BYTES = len(_MAGIC) + 4
_CHECKSUM_BYTES = 4
_DTYPES = ("float32", "float64", "int64")
# What saves less than a sixteenth is kept as it is: it is then read without a copy.
_WORTH_COMPRESSING = 15 / 16
_BLOSC_HEADER_BYTES = 16
"""Of a blosc buffer; from byte 4 on the sizes unpacked, of a block, and packed, 4 bytes each."""


@dataclasses.dataclass(frozen=True)
class _Header:
    format: int
    dtype: str
    shape: tuple[int, ...]
    codec: str
    payload_bytes: int


def encode_array(values: NDArray[Any]) -> list[Bytes | bytes]:
    """Give the bytes of an array's file.

    Values are compressed by blosc's lz4 without shuffling where that saves a sixteenth or more;
    `DualFile` has what it saves and costs.

    Parameters
    ----------
    values : ndarray of any shape, float32, float64 or int64

    Returns
    -------
    list of bytes-like
        To be written one after the other.
    """
    if values.dtype.name not in _DTYPES:
        raise TypeError(f"values must be {', '.join(_DTYPES)}, got {values.dtype.name}.")
    plain = np.asarray(values, dtype=values.dtype.newbyteorder("<"), order="C")
    codec, body = _compress(as_bytes(plain))
    head = _encode_header(plain, codec, len(body))
    return [head, body, _checksum([head, body]).to_bytes(_CHECKSUM_BYTES, "little")]


def decode_array(raw: Bytes, where: str) -> NDArray[Any]:
    """Check an array's file and give the array.

    Parameters
    ----------
    raw : ndarray of shape (bytes of the file,), uint8
        The array may be a view of it.
    where : str
        The file, for messages.

    Returns
    -------
    ndarray of the shape and dtype that were written, C-contiguous, writable

    Raises
    ------
    CheckpointError
        It is not as it was written.
    """
    try:
        header, start = _decode_header(raw)
        expected = start + header.payload_bytes + _CHECKSUM_BYTES
    except ValueError as error:
        raise CheckpointError(
            f"{where!r} must begin as an array of a run's state does, got something else. {REMEDY}"
        ) from error
    if len(raw) != expected:
        raise CheckpointError(f"{where!r} must be {expected} bytes, got {len(raw)}. {REMEDY}")
    _check(raw, where)
    if header.format != _FORMAT:
        raise CheckpointError(
            f"{where!r} must be of format {_FORMAT}, got {header.format!r}. "
            f"A newer version of dtopk wrote it: go on with that one."
        )
    body = raw[start:-_CHECKSUM_BYTES]
    if not _holds(header, body):
        raise CheckpointError(
            f"{where!r} must hold as many values as its header says, {header.dtype[:20]!r} of "
            f"shape {header.shape[:8]}, got others. {REMEDY}"
        )
    try:
        return _decompress(header, body)
    except (RuntimeError, ValueError) as error:
        raise CheckpointError(
            f"{where!r} must hold values compressed with blosc, got something else. {REMEDY}"
        ) from error


def _encode_header(values: NDArray[Any], codec: str, payload_bytes: int) -> bytes:
    text = json.dumps(
        {
            "format": _FORMAT,
            "dtype": values.dtype.name,
            "shape": values.shape,
            "codec": codec,
            "payload_bytes": payload_bytes,
        }
    ).encode("ascii")
    # Padded, so that uncompressed values can be used where they lie in the file's bytes.
    text += b" " * (-(_PREFIX_BYTES + len(text)) % _ALIGNMENT)
    return _MAGIC + len(text).to_bytes(4, "little") + text


def _decode_header(raw: Bytes) -> tuple[_Header, int]:
    prefix = raw[:_PREFIX_BYTES].tobytes()
    if len(prefix) < _PREFIX_BYTES or not prefix.startswith(_MAGIC):
        raise ValueError(f"magic {prefix!r}")
    start = _PREFIX_BYTES + int.from_bytes(prefix[len(_MAGIC) :], "little")
    return parse_record(raw[_PREFIX_BYTES:start].tobytes(), _Header, more=True), start


def _holds(header: _Header, body: Bytes) -> bool:
    """Tell whether the values in a file are as many as its header says, before they get memory."""
    if header.dtype not in _DTYPES or min(header.shape, default=0) < 0:
        return False
    size = math.prod(header.shape) * np.dtype(header.dtype).itemsize
    if header.codec == "none":
        return len(body) == size
    if header.codec != "blosc" or len(body) < _BLOSC_HEADER_BYTES:
        return False
    unpacked, _, packed = np.frombuffer(body[4:_BLOSC_HEADER_BYTES].tobytes(), "<u4").tolist()
    return bool((unpacked, packed) == (size, len(body)))


def _checksum(pieces: Sequence[Bytes | bytes]) -> int:
    checksum = 0
    for piece in pieces:
        checksum = google_crc32c.extend(checksum, cast(bytes, piece))
    return checksum


def _check(raw: Bytes, where: str) -> None:
    stored = int.from_bytes(raw[-_CHECKSUM_BYTES:].tobytes(), "little")
    computed = _checksum([raw[:-_CHECKSUM_BYTES]])
    if stored != computed:
        raise CheckpointError(
            f"crc32c of {where!r} must be {stored:#010x} as stored with it, "
            f"got {computed:#010x}: its bytes have changed. {REMEDY}"
        )


def _compress(plain: Bytes) -> tuple[str, Bytes | bytes]:
    if not 0 < plain.nbytes <= numcodecs.blosc.MAX_BUFFERSIZE:
        return "none", plain
    codec = numcodecs.Blosc(cname="lz4", clevel=5, shuffle=numcodecs.Blosc.NOSHUFFLE)
    # Blosc's own threads wait for each other, and beside busy BLAS threads for long.
    threads, numcodecs.blosc.use_threads = numcodecs.blosc.use_threads, False
    try:
        body: bytes = codec.encode(plain)
    finally:
        numcodecs.blosc.use_threads = threads
    if len(body) > plain.nbytes * _WORTH_COMPRESSING:
        return "none", plain
    return "blosc", body


def _decompress(header: _Header, body: Bytes) -> NDArray[Any]:
    dtype = np.dtype(header.dtype).newbyteorder("<")
    if header.codec == "none":
        plain: NDArray[Any] = body.view(dtype).reshape(header.shape)
        return plain if plain.flags.writeable else plain.copy()
    values: NDArray[Any] = np.empty(header.shape, dtype)
    numcodecs.Blosc().decode(body, out=as_bytes(values))
    return values
