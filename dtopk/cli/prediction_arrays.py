"""zarr arrays that predictions are appended to."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from dtopk_storage.chunked import ChunkedArray
from dtopk_storage.paths import AnyPath

_ZARR_CHUNK_ROWS = 65536


class ArrayColumn:
    """An array that rows are appended to; a chunk is written when it is full.

    Parameters
    ----------
    path : Path or ObjectPath
    shape : tuple of int
        Of the array at its end.
    dtype : numpy.dtype
    """

    def __init__(self, path: AnyPath, shape: tuple[int, ...], dtype: np.dtype[Any]):
        self._array = ChunkedArray(
            path=path,
            shape=shape,
            chunk_rows=min(_ZARR_CHUNK_ROWS, shape[0]),
            dtype=dtype,
            compression="zstd",
        )
        self._array.write_metadata(("row", "place")[: len(shape)])
        self._waiting = np.empty((0, *shape[1:]), dtype)
        self._n_chunks = 0

    def append(self, values: NDArray[Any]) -> None:
        """Append values of the next rows."""
        self._waiting = np.concatenate([self._waiting, values])
        while self._n_chunks < self._array.n_chunks:
            start, stop = self._array.rows_of(self._n_chunks)
            if len(self._waiting) < stop - start:
                break
            self._array.write_chunk(self._n_chunks, self._waiting[: stop - start])
            self._waiting = self._waiting[stop - start :]
            self._n_chunks += 1


class GrowingColumn:
    """An array of one dimension whose length is known at its end; a chunk is written when full.

    Parameters
    ----------
    path : Path or ObjectPath
    dtype : numpy.dtype
    """

    def __init__(self, path: AnyPath, dtype: np.dtype[Any]):
        self._path = path
        self._waiting = np.empty(0, dtype)
        self._n_chunks = 0

    @property
    def n_values(self) -> int:
        """Values appended until now."""
        return self._n_chunks * _ZARR_CHUNK_ROWS + len(self._waiting)

    def append(self, values: NDArray[Any]) -> None:
        """Append values of the next rows."""
        self._waiting = np.concatenate([self._waiting, values])
        while len(self._waiting) >= _ZARR_CHUNK_ROWS:
            # An array that ends with this chunk: where it will end is not known yet.
            array = self._describe((self._n_chunks + 1) * _ZARR_CHUNK_ROWS)
            array.write_chunk(self._n_chunks, self._waiting[:_ZARR_CHUNK_ROWS])
            self._waiting = self._waiting[_ZARR_CHUNK_ROWS:]
            self._n_chunks += 1

    def close(self) -> None:
        """Write what is left, and what makes an array of the chunks."""
        array = self._describe(self.n_values)
        if len(self._waiting):
            array.write_chunk(self._n_chunks, self._waiting)
        array.write_metadata(("label",))

    def _describe(self, n_values: int) -> ChunkedArray:
        return ChunkedArray(
            path=self._path,
            shape=(n_values,),
            chunk_rows=_ZARR_CHUNK_ROWS,
            dtype=self._waiting.dtype,
            compression="zstd",
        )
