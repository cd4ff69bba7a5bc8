"""An array of zarr, version 2 or 3, alone or in a group."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import zarr
from numpy.typing import NDArray

from dtopk_storage.errors import DatasetError
from dtopk_storage.sources.base import (
    FEATURE_KEYS,
    LABEL_KEYS,
    Source,
    SourceFeatures,
    Vector,
    block_rows,
    check_matrix,
    choose_key,
    reading,
)

_ERRORS = (OSError, ValueError, KeyError, TypeError)


class ZarrSource(Source):
    """A folder that holds a zarr array, or a group with features and labels as arrays."""

    def open_features(self) -> SourceFeatures:
        """Open the array with the features."""
        array, place = self._open(self.options.features_key, FEATURE_KEYS, "features")
        check_matrix(array.shape, array.dtype, place)
        rows = block_rows(array.shape[1], array.dtype.itemsize)
        # Whole chunks, so that each is read and unpacked once.
        rows = max(array.chunks[0], rows // array.chunks[0] * array.chunks[0])

        def blocks(start: int) -> Iterator[NDArray[Any]]:
            stop = start
            while stop < array.shape[0]:
                start, stop = stop, min((stop // rows + 1) * rows, array.shape[0])
                with reading(place, *_ERRORS):
                    block = np.asarray(array[start:stop])
                yield block

        return SourceFeatures(
            place=place,
            n_samples=array.shape[0],
            n_features=array.shape[1],
            dtype=array.dtype,
            blocks=blocks,
        )

    def open_vector(self, key: str | None) -> Vector:
        """Open an array with one value a row."""
        array, place = self._open(key, LABEL_KEYS, "labels")
        rows = max(array.chunks[0], block_rows(1, 64))

        def blocks() -> Iterator[NDArray[Any]]:
            for first in range(0, array.shape[0], rows):
                with reading(place, *_ERRORS):
                    block = np.asarray(array[first : first + rows])
                yield block

        return Vector(place=place, blocks=blocks)

    def _open(self, key: str | None, usual: tuple[str, ...], what: str) -> tuple[Any, str]:
        place = repr(str(self.path))
        with reading(place, *_ERRORS):
            node = zarr.open(self.path, mode="r")
        if isinstance(node, zarr.Group):
            names = [name for name, _ in node.arrays()]
            key = choose_key(key, names, usual, what=what, place=place)
            node, place = node[key], f"{key!r} of {place}"
        elif key is not None:
            raise DatasetError(f"key must be left out for {place}: it is one array, got {key!r}.")
        if not isinstance(node, zarr.Array) or node.ndim == 0:
            raise DatasetError(f"{place} must be an array with rows, got {node!r}.")
        return node, place
