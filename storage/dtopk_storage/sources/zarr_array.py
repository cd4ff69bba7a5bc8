"""An array of zarr, version 2 or 3, alone or in a group."""

import math
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import zarr
from numpy.typing import NDArray

from dtopk_storage.compression import MOST_CHUNK_BYTES
from dtopk_storage.errors import DatasetError
from dtopk_storage.sources.arrays import (
    block_rows,
    check_matrix,
    check_stored,
    least_stored,
    vector_rows,
)
from dtopk_storage.sources.base import Source, SourceFeatures, Vector, reading
from dtopk_storage.sources.keys import (
    FEATURE_KEYS,
    FEATURES_ADVICE,
    Role,
    choose_key,
    choose_vector_key,
    refuse_key,
)
from dtopk_storage.wording import format_bytes


class ZarrSource(Source):
    """A folder that holds a zarr array, or a group with features and labels as arrays."""

    def open_features(self) -> SourceFeatures:
        """Open the array with the features."""
        node, place = self._node(), repr(str(self.path))
        if isinstance(node, zarr.Group):
            key = choose_key(
                self.options.features_key,
                self._names(node),
                FEATURE_KEYS,
                what="features",
                place=place,
                advice=FEATURES_ADVICE,
            )
            node, place = self._member(node, key), f"{key!r} of {place}"
        elif self.options.features_key is not None:
            raise DatasetError(
                f"features of {place} must be taken without a key, since it is one array, got "
                f"{self.options.features_key!r}.",
                advice="Leave {features_key} out.",
            )
        array = _as_array(self.path, node, place)
        check_matrix(array.shape, array.dtype, place)
        rows = _whole_chunks(array, block_rows(array.shape[1], array.dtype.itemsize))

        def blocks(start: int) -> Iterator[NDArray[Any]]:
            stop = start
            while stop < array.shape[0]:
                start, stop = stop, min((stop // rows + 1) * rows, array.shape[0])
                with reading(place):
                    block = np.asarray(array[start:stop])
                yield block

        return SourceFeatures(
            place=place,
            n_samples=array.shape[0],
            n_features=array.shape[1],
            dtype=array.dtype,
            blocks=blocks,
        )

    def open_vector(self, key: str | None, role: Role) -> Vector:
        """Open an array with one value a row, or an indicator matrix."""
        node, place = self._node(), repr(str(self.path))
        if isinstance(node, zarr.Group):
            key = choose_vector_key(key, self._names(node), role, place)
            node, place = self._member(node, key), f"{key!r} of {place}"
        else:
            refuse_key(key, role, place)
        array = _as_array(self.path, node, place)
        rows = _whole_chunks(array, vector_rows(array.shape, array.dtype))

        def blocks() -> Iterator[NDArray[Any]]:
            for first in range(0, array.shape[0], rows):
                with reading(place):
                    block = np.asarray(array[first : first + rows])
                yield block

        return Vector(place=place, blocks=blocks)

    @property
    def has_one_array(self) -> bool:
        """Whether it is an array and no group."""
        return isinstance(self._node(), zarr.Array)

    def _names(self, group: zarr.Group) -> list[str]:
        with reading(repr(str(self.path))):
            return [name for name, _ in group.arrays()]

    def _member(self, group: zarr.Group, key: str) -> Any:
        with reading(f"{key!r} of {str(self.path)!r}"):
            return group[key]

    def _node(self) -> Any:
        with reading(repr(str(self.path))):
            return zarr.open(self.path, mode="r")


def _whole_chunks(array: Any, rows: int) -> int:
    """Round to whole chunks, so that each is read and unpacked once."""
    chunk_rows = int(array.chunks[0])
    return max(chunk_rows, rows // chunk_rows * chunk_rows)


def _as_array(path: Path, node: Any, place: str) -> Any:
    if not isinstance(node, zarr.Array) or node.ndim == 0:
        raise DatasetError(f"{place} must be an array with rows, got {node!r}.")
    with reading(place):
        dtype = np.dtype(node.dtype)
        chunk_bytes = math.prod(node.chunks) * dtype.itemsize
        stored = _count_stored(path, node, least_stored(node.shape, dtype))
    check_stored(node.shape, dtype, stored, place)
    if min(node.chunks) < 1:
        raise DatasetError(f"chunks of {place} must have rows, got shape {node.chunks}.")
    if chunk_bytes > MOST_CHUNK_BYTES:
        raise DatasetError(
            f"chunks of {place} must be at most {format_bytes(MOST_CHUNK_BYTES)}, got "
            f"{format_bytes(chunk_bytes)}. Write it with smaller ones."
        )
    return node


def _count_stored(path: Path, node: Any, enough: int) -> int:
    """Count the bytes that an array takes in its folder, until they are enough."""
    if not path.is_dir():
        return int(node.nbytes_stored())
    stored = 0
    for folder, _, names in os.walk(path / node.path):
        for name in names:
            if stored >= enough:
                return stored
            stored += os.stat(os.path.join(folder, name)).st_size
    return stored
