"""Arrays and JSON in zip files that dtopk has written, of which nothing is believed unchecked.

A header gets no memory before the bytes that it speaks of are seen to be there: members are stored,
as dtopk writes them, so that none is larger than its file.
"""

import json
import math
import struct
import tokenize
import zipfile
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

DAMAGE = (
    zipfile.BadZipFile, EOFError, OSError, LookupError, TypeError, ValueError, OverflowError,
    RuntimeError, struct.error, tokenize.TokenError,
)  # fmt: skip
"""What reading a damaged archive may raise: the standard library and numpy name no fewer."""


def read_header(archive: zipfile.ZipFile, name: str) -> dict[str, Any]:
    """Read a member that is one JSON object.

    Parameters
    ----------
    archive : ZipFile
    name : str

    Raises
    ------
    One of `DAMAGE`
    """
    fields = json.loads(read_member(archive, name))
    if not isinstance(fields, dict):
        raise ValueError(f"its {name} must be a JSON object, got a {type(fields).__name__}")
    return fields


def read_member(archive: zipfile.ZipFile, name: str) -> bytes:
    """Read a member.

    Parameters
    ----------
    archive : ZipFile
    name : str

    Raises
    ------
    One of `DAMAGE`
    """
    return archive.read(_find(archive, name))


def read_array(archive: zipfile.ZipFile, name: str) -> NDArray[Any]:
    """Read a member that is an array, in the format of .npy files.

    Parameters
    ----------
    archive : ZipFile
    name : str

    Returns
    -------
    ndarray of any shape and dtype, but of no objects

    Raises
    ------
    One of `DAMAGE`
    """
    info = _find(archive, name)
    with archive.open(info) as member:
        shape, dtype = _read_npy_header(member)
        size = info.file_size - member.tell()
    if dtype.hasobject:
        raise ValueError(f"its {name} must hold plain values, got pickled Python objects")
    if min(shape, default=0) < 0 or math.prod(shape) * dtype.itemsize != size:
        raise ValueError(
            f"its {name} must hold as many bytes as its header says, of {dtype} of shape {shape}, "
            f"got {size:,}"
        )
    # zipfile compares the member's checksum as its last byte is read.
    with archive.open(info) as member:
        return np.lib.format.read_array(member, allow_pickle=False)


def _find(archive: zipfile.ZipFile, name: str) -> zipfile.ZipInfo:
    """Look a member up, and refuse one that would unpack to more than the file."""
    info = archive.getinfo(name)
    if info.compress_type != zipfile.ZIP_STORED or info.file_size != info.compress_size:
        raise ValueError(f"its {name} must be stored, got a compressed one")
    return info


def _read_npy_header(member: IO[bytes]) -> tuple[tuple[int, ...], np.dtype[Any]]:
    version = np.lib.format.read_magic(member)
    if version == (1, 0):
        shape, _, dtype = np.lib.format.read_array_header_1_0(member)
    elif version == (2, 0):
        shape, _, dtype = np.lib.format.read_array_header_2_0(member)
    else:
        raise ValueError(f"npy format version {version}, where 1.0 and 2.0 are known")
    if any(type(each) is not int for each in shape):
        raise ValueError(f"shape {shape!s:.100}, where whole numbers must be")  # True is an int
    return shape, dtype
