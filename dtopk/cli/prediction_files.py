"""Files that predictions are written to: CSV, Parquet or zarr, by the file's extension."""

import contextlib
import csv
import errno
import io
import json
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dtopk.atomic import replace_when_complete, write_text
from dtopk.job.scoring import TopClasses
from dtopk.model import Model
from dtopk_storage.chunked import ChunkedArray
from dtopk_storage.objects import ObjectPath
from dtopk_storage.paths import AnyPath

WriteTop = Callable[[TopClasses], None]

_ZARR_CHUNK_ROWS = 65536
_ZARR_MARK = "dtopk_predictions"
"""Attribute of a group of predictions, whose value is the version of its layout."""
_ZARR_VERSION = 1


def check_target(path: AnyPath, source: AnyPath, *, overwrite: bool) -> None:
    """Refuse a path that predictions may not be written to.

    Parameters
    ----------
    path : Path or ObjectPath
        Where predictions are to go.
    source : Path or ObjectPath
        What is predicted; never to be overwritten.
    overwrite : bool
        Whether predictions that are there may be replaced.

    Raises
    ------
    ValueError
        If the extension is not known, or the path is taken by what may not be replaced.
    """
    suffix = path.suffix.lower()
    if suffix not in _OPENERS:
        raise ValueError(
            f"name of the output must end in {', '.join(map(repr, _OPENERS))}, got {str(path)!r}."
        )
    if suffix == ".parquet":
        _import_pyarrow()
    if path == source or (
        isinstance(path, Path) and isinstance(source, Path) and path.resolve() == source.resolve()
    ):
        raise ValueError(f"output must be another path than the input, got {str(path)!r}.")
    if isinstance(path, Path):
        folder = next(folder for folder in path.parents if folder.exists())
        if not folder.is_dir():
            raise ValueError(
                f"folder of the output must be a folder, got the file {str(folder)!r}."
            )
    if not path.exists() or (isinstance(path, ObjectPath) and not path.find() and path.is_dir()):
        return
    if not overwrite:
        raise ValueError(
            f"output must be a new path, got {str(path)!r}. Choose another one or use --overwrite."
        )
    if not (_is_predictions_group(path) if suffix == ".zarr" else path.is_file()):
        raise ValueError(
            f"output must be a new path or predictions of dtopk, got {str(path)!r}, which holds "
            "something else. Choose another one, or remove it yourself."
        )


@contextlib.contextmanager
def open_predictions(
    path: AnyPath, *, model: Model, n_rows: int, k: int, has_row_id: bool
) -> Iterator[WriteTop]:
    """Open a file that appears under its name once all rows are written.

    Parameters
    ----------
    path : Path or ObjectPath
        Ends in '.csv', '.parquet' or '.zarr'. What is there is replaced; its folder is made.
    model : Model
    n_rows : int
        Rows that will be written.
    k : int
        Classes of a row.
    has_row_id : bool
        Whether the rows come with their number in the source.

    Yields
    ------
    callable
        Takes a `TopClasses`, the next rows.
    """
    if isinstance(path, Path):
        path.parent.mkdir(parents=True, exist_ok=True)
    with _OPENERS[path.suffix.lower()](path, model, n_rows, k, has_row_id) as write:
        yield write


@contextlib.contextmanager
def _open_csv(
    path: AnyPath, model: Model, n_rows: int, k: int, has_row_id: bool
) -> Iterator[WriteTop]:
    with replace_when_complete(path) as file:
        text = io.TextIOWrapper(file, encoding="utf-8", newline="")
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(_column_names(k, has_row_id))

        def write(top: TopClasses) -> None:
            columns = [_as_cells(column) for column in _columns(top).values()]
            writer.writerows(zip(*columns, strict=True))

        yield write
        # The binary file below is closed, and renamed, by its owner.
        text.detach()


def _as_cells(column: NDArray[Any]) -> list[Any]:
    """Make the values of a CSV column; floats with the fewest digits that tell them apart."""
    if column.dtype.kind == "f":
        # As Python floats, float32 values would have 17 digits.
        return list(map(str, column))
    values: list[Any] = column.tolist()
    return values


@contextlib.contextmanager
def _open_parquet(
    path: AnyPath, model: Model, n_rows: int, k: int, has_row_id: bool
) -> Iterator[WriteTop]:
    pa, pq = _import_pyarrow()
    label_type = pa.int64() if model.classes.dtype.kind in "iu" else pa.string()
    score_type = pa.from_numpy_dtype(model.W.dtype)
    types = [*[pa.int64()] * (1 + has_row_id), *[label_type, score_type] * k]
    schema = pa.schema(list(zip(_column_names(k, has_row_id), types, strict=True)))
    with replace_when_complete(path) as file, pq.ParquetWriter(file, schema) as writer:

        def write(top: TopClasses) -> None:
            columns = [pa.array(column) for column in _columns(top).values()]
            writer.write_table(pa.table(columns, schema=schema))

        yield write


@contextlib.contextmanager
def _open_zarr(
    path: AnyPath, model: Model, n_rows: int, k: int, has_row_id: bool
) -> Iterator[WriteTop]:
    if isinstance(path, ObjectPath):
        # Nothing can be renamed: the group comes last, and makes predictions of what is there.
        (path / "zarr.json").unlink(missing_ok=True)
        path.delete_tree()
        try:
            with _writing_columns(path, model, n_rows, k, has_row_id) as write:
                yield write
            write_text(path / "zarr.json", _zarr_group(model))
        except BaseException:
            path.delete_tree()
            raise
        return
    partial = path.with_name(f".{path.name}.partial-{os.getpid()}")
    try:
        partial.mkdir()
        write_text(partial / "zarr.json", _zarr_group(model))
        with _writing_columns(partial, model, n_rows, k, has_row_id) as write:
            yield write
        _exchange(partial, path)
    except OSError as error:
        if error.errno == errno.ENOSPC:
            raise OSError(errno.ENOSPC, "The disk is full: cannot write", str(path)) from error
        if str(error.filename).startswith(str(partial)):
            raise OSError(error.errno, error.strerror, str(path)) from error
        raise
    finally:
        shutil.rmtree(partial, ignore_errors=True)


@contextlib.contextmanager
def _writing_columns(
    folder: AnyPath, model: Model, n_rows: int, k: int, has_row_id: bool
) -> Iterator[WriteTop]:
    rows = _ZarrColumn(folder / "row", (n_rows,), np.dtype(np.int64))
    row_ids = None
    if has_row_id:
        row_ids = _ZarrColumn(folder / "row_id", (n_rows,), np.dtype(np.int64))
    codes = _ZarrColumn(folder / "label_codes", (n_rows, k), np.dtype(np.int32))
    scores = _ZarrColumn(folder / "scores", (n_rows, k), model.W.dtype)

    def write(top: TopClasses) -> None:
        rows.append(np.arange(top.start, top.start + len(top.columns)))
        if row_ids is not None and top.row_id is not None:
            row_ids.append(top.row_id)
        codes.append(top.columns.astype(np.int32))
        scores.append(top.scores)

    yield write


def _exchange(new: Path, path: Path) -> None:
    """Give a folder its name; what had it before is put aside, and removed once that is done."""
    if not path.exists():
        new.rename(path)
        return
    old = path.with_name(f".{path.name}.old-{os.getpid()}")
    path.rename(old)
    try:
        new.rename(path)
    except OSError:
        old.rename(path)
        raise
    shutil.rmtree(old)


class _ZarrColumn:
    """An array that rows are appended to; a chunk is written when it is full."""

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
        self._waiting = np.concatenate([self._waiting, values])
        while self._n_chunks < self._array.n_chunks:
            start, stop = self._array.rows_of(self._n_chunks)
            if len(self._waiting) < stop - start:
                break
            self._array.write_chunk(self._n_chunks, self._waiting[: stop - start])
            self._waiting = self._waiting[stop - start :]
            self._n_chunks += 1


_OPENERS: dict[str, Callable[..., contextlib.AbstractContextManager[WriteTop]]] = {
    ".csv": _open_csv,
    ".parquet": _open_parquet,
    ".zarr": _open_zarr,
}


def _column_names(k: int, has_row_id: bool) -> list[str]:
    names = ["row", *["row_id"] * has_row_id]
    for place in range(1, k + 1):
        names += [f"label_{place}", f"score_{place}"]
    return names


def _columns(top: TopClasses) -> dict[str, NDArray[Any]]:
    arrays = [np.arange(top.start, top.start + len(top.columns))]
    if top.row_id is not None:
        arrays.append(top.row_id)
    for place in range(top.columns.shape[1]):
        arrays += [top.labels[:, place], top.scores[:, place]]
    return dict(
        zip(_column_names(top.columns.shape[1], top.row_id is not None), arrays, strict=True)
    )


def _zarr_group(model: Model) -> str:
    attributes = {_ZARR_MARK: _ZARR_VERSION, "class_names": model.classes.tolist()}
    group = {"zarr_format": 3, "node_type": "group", "attributes": attributes}
    return json.dumps(group, indent=2)


def _is_predictions_group(path: AnyPath) -> bool:
    """Look for the mark that `_zarr_group` leaves."""
    try:
        group = json.loads((path / "zarr.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return isinstance(group, dict) and _ZARR_MARK in group.get("attributes", {})


def _import_pyarrow() -> tuple[Any, Any]:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise ValueError(
            "output in Parquet must have pyarrow, which is not installed. "
            "Install dtopk[parquet], or write '.csv' or '.zarr'."
        ) from error
    return pyarrow, pyarrow.parquet
