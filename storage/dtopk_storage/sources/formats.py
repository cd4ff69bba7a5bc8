"""The format of a file, from its name."""

from collections.abc import Callable
from pathlib import Path

from dtopk_storage.errors import DatasetError
from dtopk_storage.objects import ObjectPath
from dtopk_storage.paths import AnyPath
from dtopk_storage.sources.base import Source, SourceOptions
from dtopk_storage.sources.csv_table import CsvSource
from dtopk_storage.sources.feature_store import StoreSource, open_zarr
from dtopk_storage.sources.hdf5 import Hdf5Source
from dtopk_storage.sources.keys import ROLE_NAMES, Role
from dtopk_storage.sources.npy import NpySource
from dtopk_storage.sources.npz import NpzSource
from dtopk_storage.sources.parquet import ParquetSource
from dtopk_storage.sources.svmlight import SvmlightSource
from dtopk_storage.sources.text import COMPRESSED, TextSource
from dtopk_storage.store_opening import is_store

FORMATS: dict[str, Callable[[Path, SourceOptions], Source]] = {
    "npy": NpySource,
    "npz": NpzSource,
    "svmlight": SvmlightSource,
    "hdf5": Hdf5Source,
    "parquet": ParquetSource,
    "csv": CsvSource,
    "zarr": open_zarr,
}
"""Formats that features may come in."""

# One value a line is a format for labels and weights alone.
_READERS = {**FORMATS, "text": TextSource}

_SUFFIXES = {
    ".npy": "npy",
    ".npz": "npz",
    ".svm": "svmlight",
    ".svmlight": "svmlight",
    ".libsvm": "svmlight",
    ".h5": "hdf5",
    ".hdf5": "hdf5",
    ".parquet": "parquet",
    ".pq": "parquet",
    ".csv": "csv",
    ".tsv": "csv",
    ".zarr": "zarr",
    ".txt": "text",
}


def open_source(
    path: AnyPath,
    options: SourceOptions,
    file_format: str | None = None,
    *,
    role: Role | None = None,
) -> Source:
    """Open a file as what its name or its content says it is.

    Parameters
    ----------
    path : Path or ObjectPath
        In an object store it must be a feature store.
    options : SourceOptions
    file_format : str or None
        One of FORMATS, where the name does not tell.
    role : {'labels', 'weights', 'split_names', 'class_names'} or None
        What a file with nothing but one value a row is for.

    Raises
    ------
    DatasetError
        It is not there, or of no known format.
    """
    if isinstance(path, ObjectPath):
        if is_store(path):
            return StoreSource(path, options)
        raise DatasetError(
            f"source in an object store must be a feature store, got {str(path)!r}. Copy other "
            "files to a disk first."
        )
    if not path.exists():
        what, advice = "source", ""
        if role is not None:
            what, advice = f"file of {ROLE_NAMES[role]}", f"Correct {{{role}}}."
        raise DatasetError(
            f"{what} must be an existing file or folder, got {str(path)!r}.", advice=advice
        )
    name = file_format or _guess(path)
    readers = FORMATS if file_format else _READERS
    if name not in readers:
        known = ", ".join(repr(name) for name in (FORMATS if role is None else _READERS))
        raise DatasetError(
            f"format of {str(path)!r} must be one of {known}, got {name or path.suffix!r}.",
            advice="Name it with {source_format}."
            if role is None
            else f"Give the file of {{{role}}} a name that tells, such as .npy or .txt at its end.",
        )
    return readers[name](path, options)


def _guess(path: Path) -> str:
    if path.is_dir() and any(
        (path / file).exists() for file in ("zarr.json", ".zarray", ".zgroup")
    ):
        return "zarr"
    if path.is_dir() and path.suffix not in _SUFFIXES and next(path.rglob("*.parquet"), None):
        return "parquet"
    suffixes = [suffix for suffix in path.suffixes if suffix not in COMPRESSED]
    return _SUFFIXES.get(suffixes[-1].lower() if suffixes else "", "")
