"""Open a feature store, and say what is wrong where there is none."""

from typing import Any

import zarr

from dtopk_storage.array_opening import open_array, open_metadata, raise_if_unreachable
from dtopk_storage.chunked import ChunkedArray
from dtopk_storage.errors import DatasetError, describe_error
from dtopk_storage.manifest import (
    ATTRIBUTE,
    FEATURES,
    FORMAT,
    LABEL_INDICES,
    LABEL_INDPTR,
    LABELS,
    MEAN,
    ROW_ID,
    SAMPLE_WEIGHT,
    STD,
    Kind,
    parse_manifest,
)
from dtopk_storage.objects import ObjectPath
from dtopk_storage.paths import AnyPath, PathLike, as_path
from dtopk_storage.replacement import WORK_SUFFIX, find_replaced
from dtopk_storage.store import FeatureStore

_LABEL_ARRAYS: dict[Kind, tuple[str, ...]] = {
    "multiclass": (LABELS,),
    "multilabel": (LABEL_INDPTR, LABEL_INDICES),
}


def open_store(path: PathLike) -> FeatureStore:
    """Open a store: read and check its metadata, and none of its rows.

    Of a multilabel store the last chunk of `label_indptr` is read, which has the number of labels.

    Parameters
    ----------
    path : str, path-like or ObjectPath
        Folder of the store, or its address in an object store, ``s3://bucket/store.zarr``.
        Credentials and endpoint are those of the environment.

    Raises
    ------
    DatasetError
        There is no store, or its metadata is not whole, not consistent, or of a newer format.
    OSError
        The object store cannot be reached, refuses access, or has no such bucket.
    """
    folder = store_path(path)
    manifest = parse_manifest(_read_attribute(folder), repr(str(path)))
    arrays = {name: open_array(folder / name) for name in (FEATURES, *_LABEL_ARRAYS[manifest.kind])}
    if manifest.has_sample_weight:
        arrays[SAMPLE_WEIGHT] = open_array(folder / SAMPLE_WEIGHT)
    if manifest.has_row_id:
        arrays[ROW_ID] = open_array(folder / ROW_ID)
    mean, std = open_array(folder / MEAN), open_array(folder / STD)
    n, d = manifest.n_samples, manifest.n_features
    _expect(arrays[FEATURES], (n, d), manifest.dtype)
    _expect(mean, (d,), "float64")
    _expect(std, (d,), "float64")
    for name, dtype in ((LABELS, "int32"), (SAMPLE_WEIGHT, "float64"), (ROW_ID, "int64")):
        if name in arrays:
            _expect(arrays[name], (n,), dtype)
    if manifest.kind == "multilabel":
        _expect(arrays[LABEL_INDPTR], (n + 1,), "int64")
        # The manifest does not say how many labels there are: the last row's end does.
        n_labels = int(arrays[LABEL_INDPTR].read(n, n + 1)[0])
        _expect(arrays[LABEL_INDICES], (n_labels,), "int32", "label_indptr says")
    return FeatureStore(
        path=str(path),
        manifest=manifest,
        mean=mean.read(0, d),
        std=std.read(0, d),
        arrays=arrays,
    )


def store_path(path: PathLike) -> AnyPath:
    """Return the path of a store, and refuse an address of what is no object store.

    Parameters
    ----------
    path : str, path-like or ObjectPath

    Raises
    ------
    DatasetError
    """
    try:
        return as_path(path, name="store")
    except ValueError as error:
        raise DatasetError(str(error)) from error


def is_store(folder: AnyPath) -> bool:
    """Tell whether a folder is a store, of whatever format version, whole or damaged.

    Parameters
    ----------
    folder : Path or ObjectPath
    """
    metadata = folder / "zarr.json"
    try:
        return FORMAT in metadata.read_text(errors="replace")
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
        return False


def _read_attribute(folder: AnyPath) -> dict[str, Any]:
    """Read the group's attribute that holds the manifest."""
    path = str(folder)
    _check_folder(folder)
    try:
        group = zarr.open_group(open_metadata(folder), mode="r", zarr_format=3)
        fields = group.attrs.asdict().get(ATTRIBUTE)
    except Exception as cause:  # zarr's own checks leave many kinds of nonsense to chance.
        raise_if_unreachable(folder, cause)
        raise DatasetError(
            f"store {path!r} must be a zarr v3 group, got: {describe_error(cause)} Ingest it again."
        ) from cause
    if not isinstance(fields, dict):
        raise DatasetError(
            f"store {path!r} must have a manifest in its attribute {ATTRIBUTE!r}, got none. "
            f"Make a store of it with `dtopk ingest`."
        )
    return fields


def _check_folder(folder: AnyPath) -> None:
    """Refuse what is not even a folder of zarr's, and say what is there instead."""
    path = str(folder)
    if isinstance(folder, ObjectPath) and (folder / "zarr.json").is_file():
        return
    if folder.is_file():
        raise DatasetError(
            f"store must be a folder, got {path!r}, a file. If it holds features, make a store of "
            f"it with `dtopk ingest`."
        )
    if (folder / "zarr.json").is_file():
        return
    work = folder if folder.suffix == WORK_SUFFIX else folder.with_name(folder.name + WORK_SUFFIX)
    for left in find_replaced(folder):
        raise DatasetError(
            f"store {path!r} must be there, but its replacement was broken off or is under way: "
            f"the earlier store is in {str(left)!r}. Write the new one again; only where no writer "
            f"is at work may this one be renamed to {path!r}."
        )
    if work.is_dir():
        raise DatasetError(
            f"store {path!r} must be whole, got an unfinished ingest in {str(work)!r}. Run the "
            f"same `dtopk ingest` again to go on with it."
        )
    if not folder.is_dir():
        raise DatasetError(f"store must be an existing folder, got {path!r}.")
    raise DatasetError(f"store {path!r} must have a zarr.json, got a folder without one.")


def _expect(
    array: ChunkedArray, shape: tuple[int, ...], dtype: str, why: str = "the manifest says"
) -> None:
    if array.shape != shape or array.dtype.name != dtype:
        raise DatasetError(
            f"{str(array.path)!r} must be {dtype} of shape {shape}, as {why}, "
            f"got {array.dtype.name} of shape {array.shape}. Ingest it again."
        )
