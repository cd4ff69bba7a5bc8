"""Headers of numpy's own format, checked before anything is made of what they say."""

import dataclasses
import math
import os
from pathlib import Path
from typing import IO, Any, Literal

import numpy as np

from dtopk_storage.errors import DatasetError, describe_error


@dataclasses.dataclass(frozen=True, kw_only=True)
class NpyHeader:
    """What an array in numpy's format says of itself."""

    shape: tuple[int, ...]
    """One dimension or more."""
    is_column_major: bool
    """Whether its first index changes fastest, of two dimensions or more."""
    dtype: np.dtype[Any]
    """Of plain values."""

    @property
    def row_bytes(self) -> int:
        """Bytes of a row."""
        return self.dtype.itemsize * math.prod(self.shape[1:])


def read_header(file: IO[bytes], size: int, place: str, *, may_go_on: bool = False) -> NpyHeader:
    """Read the header of an array, and leave the file at its first value.

    Parameters
    ----------
    file : file of bytes
    size : int
        Bytes of the whole array, the header among them.
    place : str
        What to call it in messages.
    may_go_on : bool
        Whether something else may follow the array.

    Raises
    ------
    DatasetError
        It is none, it holds pickled objects, or as many bytes as it says are not there.
    """
    try:
        header = _parse_header(file)
    except Exception as error:  # numpy does not say what it raises for which nonsense.
        raise DatasetError(f"{place} must be readable, got: {describe_error(error)}") from error
    if header.dtype.hasobject:
        raise DatasetError(f"{place} must hold plain values, got pickled Python objects.")
    if not header.shape:
        raise DatasetError(f"{place} must hold an array, got a single value.")
    left = size - file.tell()
    # numpy divides by the size of a value, which ends the process where that is 0.
    is_odd = min(header.shape) < 0 or header.dtype.itemsize == 0
    if is_odd:
        claimed = -1
    else:
        claimed = header.shape[0] * header.row_bytes
    if not (0 <= claimed <= left if may_go_on else claimed == left):
        raise DatasetError(
            f"{place} must hold as many bytes as its header says, of {str(header.dtype)[:50]} of "
            f"shape {str(header.shape)[:100]}, got {left:,}."
        )
    return header


def map_array(path: Path) -> np.memmap[Any, Any]:
    """Map a .npy file into memory.

    Parameters
    ----------
    path : Path

    Returns
    -------
    memmap of one dimension or more

    Raises
    ------
    DatasetError
        As `read_header`, or there is no such file.
    """
    place = repr(str(path))
    try:
        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            header = read_header(file, size, place, may_go_on=True)
            offset = file.tell()
            order: Literal["C", "F"] = "F" if header.is_column_major else "C"
            if 0 in header.shape:
                raise DatasetError(f"{place} must hold values, got shape {header.shape}.")
            array: np.memmap[Any, Any] = np.memmap(
                path, header.dtype, "r", offset, header.shape, order
            )
            return array
    except OSError as error:
        raise DatasetError(f"{place} must be readable, got: {error}") from error


def _parse_header(file: IO[bytes]) -> NpyHeader:
    version = np.lib.format.read_magic(file)
    if version == (1, 0):
        shape, is_column_major, dtype = np.lib.format.read_array_header_1_0(file)
    elif version == (2, 0):
        shape, is_column_major, dtype = np.lib.format.read_array_header_2_0(file)
    else:
        raise ValueError(f"npy format version {version}, where 1.0 and 2.0 are known.")
    if any(type(each) is not int for each in shape):
        raise ValueError(f"shape {shape!s:.100}, where whole numbers must be.")  # True is an int
    return NpyHeader(shape=shape, is_column_major=is_column_major and len(shape) > 1, dtype=dtype)
