"""Files that predictions are written to: CSV, Parquet or zarr, by the file's extension."""

import contextlib
import csv
import io
import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from dtopk.atomic import beside, raise_naming, replace_when_complete, write_text
from dtopk.cli.prediction_layouts import Column, Layout, Ragged, Rows
from dtopk_storage.objects import ObjectPath
from dtopk_storage.paths import AnyPath

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
def open_predictions(path: AnyPath, layout: Layout[Rows]) -> Iterator[Callable[[Rows], None]]:
    """Open a file that appears under its name once all rows are written.

    Parameters
    ----------
    path : Path or ObjectPath
        Ends in '.csv', '.parquet' or '.zarr'. What is there is replaced; its folder is made.
    layout : TopLayout or SetLayout

    Yields
    ------
    callable
        Takes a `TopClasses` or a `SetClasses`, the next rows.
    """
    if isinstance(path, Path):
        path.parent.mkdir(parents=True, exist_ok=True)
    with _OPENERS[path.suffix.lower()](path, layout) as write:
        yield write


@contextlib.contextmanager
def _open_csv(path: AnyPath, layout: Layout[Rows]) -> Iterator[Callable[[Rows], None]]:
    with replace_when_complete(path) as file:
        text = io.TextIOWrapper(file, encoding="utf-8", newline="")
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(layout.names())

        def write(rows: Rows) -> None:
            columns = [_as_cells(column) for column in layout.columns(rows).values()]
            writer.writerows(zip(*columns, strict=True))

        yield write
        # The binary file below is closed, and renamed, by its owner.
        text.detach()


def _as_cells(column: Column) -> list[Any]:
    """Make the values of a CSV column; floats with the fewest digits that tell them apart."""
    if isinstance(column, Ragged):
        # As JSON writes a list: whatever the names of the labels hold, it can be read.
        cells = _as_cells(column.values)
        if column.values.dtype.kind not in "fiu":
            cells = [json.dumps(cell, ensure_ascii=False) for cell in cells]
        ends = np.cumsum(column.sizes).tolist()
        return [
            f"[{', '.join(map(str, cells[start:stop]))}]"
            for start, stop in zip([0, *ends], ends, strict=False)
        ]
    if column.dtype.kind == "f":
        # As Python floats, float32 values would have 17 digits.
        return list(map(str, column))
    values: list[Any] = column.tolist()
    return values


@contextlib.contextmanager
def _open_parquet(path: AnyPath, layout: Layout[Rows]) -> Iterator[Callable[[Rows], None]]:
    pa, pq = _import_pyarrow()
    types = dict(zip(layout.names(), layout.parquet_types(pa), strict=True))
    schema = pa.schema(list(types.items()))
    with replace_when_complete(path) as file, pq.ParquetWriter(file, schema) as writer:

        def write(rows: Rows) -> None:
            columns = layout.columns(rows)
            arrays = [_as_arrow(column, types[name], pa) for name, column in columns.items()]
            writer.write_table(pa.table(arrays, schema=schema))

        yield write


def _as_arrow(column: Column, arrow_type: Any, pa: Any) -> Any:
    if isinstance(column, Ragged):
        starts = np.concatenate([[0], np.cumsum(column.sizes)]).astype(np.int32)
        values = pa.array(column.values, arrow_type.value_type)
        return pa.ListArray.from_arrays(pa.array(starts), values)
    return pa.array(column)


@contextlib.contextmanager
def _open_zarr(path: AnyPath, layout: Layout[Rows]) -> Iterator[Callable[[Rows], None]]:
    if isinstance(path, ObjectPath):
        # Nothing can be renamed: the group comes last, and makes predictions of what is there.
        (path / "zarr.json").unlink(missing_ok=True)
        path.delete_tree()
        try:
            with layout.writing_arrays(path) as write:
                yield write
            write_text(path / "zarr.json", _zarr_group(layout))
        except BaseException:
            path.delete_tree()
            raise
        return
    try:
        with beside(path, Path.mkdir) as partial:
            write_text(partial / "zarr.json", _zarr_group(layout))
            with layout.writing_arrays(partial) as write:
                yield write
            _exchange(partial, path)
    except OSError as error:
        raise_naming(error, path)


def _exchange(new: Path, path: Path) -> None:
    """Give a folder its name; what had it before is put aside, and removed once that is done."""
    if not path.exists():
        new.rename(path)
        return
    # By such a name it is deleted by the next one, if this process is killed before.
    old = new.with_name(f"{new.name}-old")
    path.rename(old)
    try:
        new.rename(path)
    except OSError:
        old.rename(path)
        raise
    shutil.rmtree(old, ignore_errors=True)


_OPENERS: dict[str, Callable[..., contextlib.AbstractContextManager[Any]]] = {
    ".csv": _open_csv,
    ".parquet": _open_parquet,
    ".zarr": _open_zarr,
}


def _zarr_group(layout: Layout[Any]) -> str:
    attributes = {
        _ZARR_MARK: _ZARR_VERSION,
        "class_names": layout.model.classes.tolist(),
        **layout.attributes(),
    }
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
