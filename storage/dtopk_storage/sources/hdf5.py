"""Datasets of an HDF5 file."""

import contextlib
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dtopk_storage.errors import DatasetError
from dtopk_storage.sources.arrays import block_rows, check_matrix, check_stored, vector_rows
from dtopk_storage.sources.base import Source, SourceFeatures, Vector, reading, require
from dtopk_storage.sources.hdf5_heaps import check_strings
from dtopk_storage.sources.keys import (
    FEATURE_KEYS,
    FEATURES_ADVICE,
    Role,
    choose_key,
    choose_vector_key,
)


class Hdf5Source(Source):
    """A .h5 file, with features and labels as datasets."""

    def open_features(self) -> SourceFeatures:
        """Open the dataset with the features."""
        key = choose_key(
            _strip(self.options.features_key),
            self._names(),
            FEATURE_KEYS,
            what="features",
            place=repr(str(self.path)),
            advice=FEATURES_ADVICE,
        )
        place = self._place(key)
        with self._open(key) as dataset:
            shape, dtype = dataset.shape, dataset.dtype
        check_matrix(shape, dtype, place)

        def blocks(start: int) -> Iterator[NDArray[Any]]:
            yield from self._stream(key, start, block_rows(shape[1], dtype.itemsize))

        return SourceFeatures(
            place=place, n_samples=shape[0], n_features=shape[1], dtype=dtype, blocks=blocks
        )

    def open_vector(self, key: str | None, role: Role) -> Vector:
        """Open a dataset with one value a row, or an indicator matrix."""
        key = choose_vector_key(_strip(key), self._names(), role, repr(str(self.path)))
        with self._open(key) as dataset:
            rows = vector_rows(dataset.shape, dataset.dtype)
        return Vector(place=self._place(key), blocks=lambda: self._stream(key, 0, rows))

    def _place(self, key: str) -> str:
        return f"{key!r} of {str(self.path)!r}"

    def _names(self) -> list[str]:
        require("h5py", "hdf5")
        import h5py

        names: list[str] = []

        def collect(name: str, node: object) -> None:
            if isinstance(node, h5py.Dataset):
                names.append(name)

        place = repr(str(self.path))
        with reading(place), h5py.File(self.path) as file:
            file.visititems(collect)
        return names

    @contextlib.contextmanager
    def _open(self, key: str) -> Iterator[Any]:
        import h5py

        with reading(self._place(key)), h5py.File(self.path) as file:
            dataset = file[key]
            if not dataset.shape:
                raise DatasetError(f"{self._place(key)} must hold an array, got a single value.")
            if not dataset.is_virtual:  # The values of a virtual one are in other datasets.
                stored = dataset.id.get_storage_size()
                check_stored(dataset.shape, dataset.dtype, stored, self._place(key))
            yield dataset

    def _stream(self, key: str, start: int, rows: int) -> Iterator[NDArray[Any]]:
        import h5py

        with self._open(key) as dataset:
            if dataset.dtype.hasobject:
                check_strings(dataset, self.path)
            view = dataset.asstr() if h5py.check_string_dtype(dataset.dtype) else dataset
            for first in range(start, dataset.shape[0], rows):
                yield np.asarray(view[first : first + rows])


def _strip(key: str | None) -> str | None:
    """Take the slashes off that HDF5 allows around a path."""
    return None if key is None else key.strip("/")
