"""Strings of any length in HDF5 files, looked at before the HDF5 library reads them.

The library goes through the heap that they lie in object by object. It does so for ever where the
object that stands for what is free says that it has no bytes, and cannot be interrupted in that.
And it makes room for as many bytes as a string says that it has, before it looks whether they are
there.
"""

import math
import mmap
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from dtopk_storage.errors import DatasetError

_MARK = b"GCOL\x01"
"""Signature and version."""
_REFERENCE = np.dtype([("length", "<u4"), ("heap", "<u8"), ("number", "<u4")])
"""What a dataset holds in the place of a string: its length, and which object of which heap."""
_HEADER_BYTES = 16
"""Of a heap, and of an object in it, with sizes of 8 bytes, which all files have in practice."""


def check_strings(dataset: Any, path: Path) -> None:
    """Refuse strings that would not end, or take gigabytes.

    Lengths are looked at where they are stored as they are, or compressed with gzip alone.

    Parameters
    ----------
    dataset : h5py.Dataset
        Of strings of any length.
    path : Path
        The file that it is in.

    Raises
    ------
    DatasetError
    """
    most = path.stat().st_size
    if most == 0:
        return
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        if not _can_read_references(dataset):
            _check_all_heaps(content, repr(str(path)))
            return
        checked: set[int] = set()
        for raw in _read_references(dataset, path):
            found = np.frombuffer(
                raw[: len(raw) // _REFERENCE.itemsize * _REFERENCE.itemsize], _REFERENCE
            )
            longest = found["length"].max(initial=0)
            if longest > most:
                raise DatasetError(
                    f"strings of {dataset.name!r} of {str(path)!r} must be no longer than the "
                    f"file, got one of {longest:,} bytes. The file is damaged."
                )
            for heap in set(np.unique(found["heap"]).tolist()) - checked:
                checked.add(heap)
                start = heap + dataset.file.userblock_size
                if content[start : start + len(_MARK)] == _MARK:
                    _check_heap(content, start, repr(str(path)))


def _can_read_references(dataset: Any) -> bool:
    """Tell whether what stands in the place of strings is stored plain, or with gzip alone."""
    if dataset.chunks is None:
        return True
    is_filtered = dataset.shuffle or dataset.fletcher32 or dataset.scaleoffset is not None
    return not is_filtered and dataset.compression in (None, "gzip")


def _read_references(dataset: Any, path: Path) -> Iterator[bytes]:
    """Read what a dataset of strings holds in their place, chunk by chunk."""
    with path.open("rb") as file:
        if dataset.chunks is None:
            offset = dataset.id.get_offset()
            if offset is not None:
                file.seek(offset)
                yield file.read(dataset.id.get_storage_size())
            return
        for number in range(dataset.id.get_num_chunks()):
            chunk = dataset.id.get_chunk_info(number)
            file.seek(chunk.byte_offset)
            raw = file.read(chunk.size)
            size, packed = 16 * math.prod(dataset.chunks), dataset.compression is not None
            yield zlib.decompressobj().decompress(raw, size) if packed else raw


def _check_all_heaps(content: mmap.mmap, place: str) -> None:
    """Refuse a file that has a global heap which does not end; all of it is read.

    Parameters
    ----------
    content : mmap
        Of the file.
    place : str
        For the message.

    Raises
    ------
    DatasetError

    References
    ----------
    .. [1] HDF5 File Format Specification 3.0, III.E, "Global Heap".
    """
    start = content.find(_MARK)
    while start >= 0:
        _check_heap(content, start, place)
        start = content.find(_MARK, start + 1)


def _check_heap(content: mmap.mmap, start: int, place: str) -> None:
    """Go through the objects of a heap as the library does."""

    def read_size(at: int) -> int:
        return int.from_bytes(content[at : at + 8], "little")

    stop = min(start + read_size(start + 8), len(content))
    at = start + _HEADER_BYTES
    while at + _HEADER_BYTES <= stop:
        size = read_size(at + 8)
        if content[at : at + 2] != b"\x00\x00":
            at += _HEADER_BYTES + -(-size // 8) * 8
        elif size >= _HEADER_BYTES:
            at += size  # What is free counts its own header.
        else:
            raise DatasetError(
                f"{place} must have heaps of strings that end, got one at byte {start:,} whose "
                f"free space is {size} bytes. The file is damaged."
            )
