"""Which arrays of a file can be read as features, and how many of their rows at a time."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from dtopk_storage.errors import DatasetError
from dtopk_storage.manifest import MOST_FEATURES
from dtopk_storage.wording import format_bytes

_BLOCK_BYTES = 8 << 20
_FREE_BYTES = 64 << 20
_MOST_EXPANSION = 100_000
"""Zeros are compressed 1,032 times by deflate, 255 by blosc's own codec and 32,768 by zstd."""


def block_rows(n_features: int, itemsize: int) -> int:
    """Return how many rows to read at a time.

    Parameters
    ----------
    n_features, itemsize : int
        Values in a row, and bytes of one.
    """
    return max(1, _BLOCK_BYTES // max(1, n_features * itemsize))


def vector_rows(shape: Sequence[int], dtype: np.dtype[Any]) -> int:
    """Return how many rows to read at a time of what may be an indicator matrix.

    Parameters
    ----------
    shape : sequence of int
    dtype : dtype
        One value a row is taken to have 64 bytes or more, as strings of no fixed length may.
    """
    is_matrix = len(shape) > 1 and dtype.kind in "biuf"
    itemsize = dtype.itemsize if is_matrix else max(64, dtype.itemsize)
    return block_rows(math.prod(shape[1:]), itemsize)


def check_matrix(shape: Sequence[int], dtype: np.dtype[Any], place: str) -> None:
    """Refuse features that are not a two-dimensional array of real numbers.

    Parameters
    ----------
    shape : sequence of int
    dtype : dtype
    place : str
        For the message.
    """
    if len(shape) != 2 or 0 in shape:
        raise DatasetError(
            f"features must have shape (n_samples, n_features), none of them 0, "
            f"got {tuple(shape)} in {place}."
        )
    check_width(shape[1], place)
    check_real(dtype, place)


def check_width(n_features: int, place: str) -> None:
    """Refuse rows that no memory can be had for.

    Parameters
    ----------
    n_features : int
    place : str
        For the message.
    """
    if n_features > MOST_FEATURES:
        raise DatasetError(
            f"features must be at most {MOST_FEATURES:,} a row, got {n_features:,} in {place}."
        )


def least_stored(shape: Sequence[int], dtype: np.dtype[Any]) -> int:
    """Return the bytes that an array takes in its file at least, if its values were written.

    Parameters
    ----------
    shape : sequence of int
    dtype : dtype
    """
    size = math.prod(shape) * dtype.itemsize
    return max(-(-(size - _FREE_BYTES) // _MOST_EXPANSION), 0)


def check_stored(shape: Sequence[int], dtype: np.dtype[Any], stored: int, place: str) -> None:
    """Refuse an array that is next to nothing but the value of what was never written.

    A few bytes can claim any number of rows, all of which would be read.

    Parameters
    ----------
    shape : sequence of int
    dtype : dtype
    stored : int
        Bytes that it takes in its file.
    place : str
        For the message.
    """
    if stored < least_stored(shape, dtype):
        size = math.prod(shape) * dtype.itemsize
        raise DatasetError(
            f"{place} must hold its values, compressed {_MOST_EXPANSION:,} times at most, got "
            f"{format_bytes(stored)} for {format_bytes(size)} of shape {tuple(shape)}."
        )


def check_real(dtype: np.dtype[Any], place: str) -> None:
    """Refuse features of a dtype that a store cannot take.

    Parameters
    ----------
    dtype : dtype
    place : str
        For the message.
    """
    if dtype.kind not in "biuf" or dtype.itemsize > 8:
        # numpy saves the bfloat16 of other packages as two raw bytes.
        hint = " bfloat16 is not supported: convert to float32." if dtype.str[1:] == "V2" else ""
        raise DatasetError(
            f"features must be float16, float32, float64, integers or bool, "
            f"got {dtype.name!r} in {place}.{hint}"
        )
