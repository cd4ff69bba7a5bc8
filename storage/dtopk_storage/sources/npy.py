"""One array in numpy's own format, mapped into memory."""

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dtopk_storage.npy_files import map_array
from dtopk_storage.sources.arrays import block_rows, check_matrix, vector_rows
from dtopk_storage.sources.base import Source, SourceFeatures, Vector, reading
from dtopk_storage.sources.keys import Role, refuse_key


class NpySource(Source):
    """A .npy file: features, one value a row, or an indicator matrix."""

    def open_features(self) -> SourceFeatures:
        """Open the features."""
        array = self._map()
        place = repr(str(self.path))
        check_matrix(array.shape, array.dtype, place)
        n_samples, n_features = array.shape
        rows = block_rows(n_features, array.dtype.itemsize)

        def blocks(start: int) -> Iterator[NDArray[Any]]:
            for first in range(start, n_samples, rows):
                yield self._read(array, first, min(rows, n_samples - first))

        return SourceFeatures(
            place=place,
            n_samples=n_samples,
            n_features=n_features,
            dtype=array.dtype,
            blocks=blocks,
        )

    def open_vector(self, key: str | None, role: Role) -> Vector:
        """Open what the rows have; a key is refused, since the file holds one array."""
        place = repr(str(self.path))
        refuse_key(key, role, place)
        array = self._map()

        def blocks() -> Iterator[NDArray[Any]]:
            rows = vector_rows(array.shape, array.dtype)
            for first in range(0, len(array), rows):
                if array.ndim == 2:
                    yield self._read(array, first, min(rows, len(array) - first))
                else:
                    yield np.asarray(array[first : first + rows])

        return Vector(place=place, blocks=blocks)

    @property
    def has_one_array(self) -> bool:
        """True: features and labels are in files of their own."""
        return True

    def _map(self) -> np.memmap[Any, Any]:
        return map_array(self.path)

    def _read(self, array: np.memmap[Any, Any], first: int, count: int) -> NDArray[Any]:
        """Read rows from the file; through the map they would stay in the process's memory."""
        if not array.flags.c_contiguous:
            return array[first : first + count]
        row_bytes = array.shape[1] * array.dtype.itemsize
        with reading(repr(str(self.path))):
            flat = np.fromfile(
                self.path,
                array.dtype,
                count * array.shape[1],
                offset=array.offset + first * row_bytes,
            )
        return flat.reshape(count, array.shape[1])
