"""Files that predictions are written to: CSV, Parquet or zarr, by the file's extension."""

import contextlib
import csv
import io
import json
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from dtopk.atomic import beside, raise_naming, replace_when_complete, write_text
from dtopk.job.scoring import SetClasses, TopClasses
from dtopk.model import Model
from dtopk_storage.chunked import ChunkedArray
from dtopk_storage.objects import ObjectPath
from dtopk_storage.paths import AnyPath

Rows = TypeVar("Rows", contravariant=True)

_ZARR_CHUNK_ROWS = 65536
_ZARR_MARK = "dtopk_predictions"
"""Attribute of a group of predictions, whose value is the version of its layout."""
_ZARR_VERSION = 1
_VALUES = {"score": "scores", "probability": "probabilities"}
"""What may be said of a class, and of many."""


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


class Layout(Protocol[Rows]):
    """What a file holds of each row."""

    @property
    def model(self) -> Model:
        """Whose classes are named."""

    def columns(self, rows: Rows) -> "dict[str, Column]":
        """Return what a table holds of some rows, by the names of `names`, in their order."""

    def names(self) -> list[str]:
        """Return the names of the columns."""

    def parquet_types(self, pa: Any) -> list[Any]:
        """Return pyarrow's types of the columns."""

    def attributes(self) -> dict[str, Any]:
        """Return what a zarr group says of its arrays."""

    def writing_arrays(
        self, folder: AnyPath
    ) -> contextlib.AbstractContextManager[Callable[[Rows], None]]:
        """Write zarr arrays below a folder, which are whole at the end."""


@dataclass(frozen=True)
class Ragged:
    """A column of lists."""

    values: NDArray[Any]
    """Those of all rows, one row after the other, shape (n_values,)."""
    sizes: NDArray[np.int64]
    """How many each row has, shape (n_rows,)."""


Column = NDArray[Any] | Ragged


@dataclass(frozen=True, kw_only=True)
class TopLayout:
    """The k best classes of every row."""

    model: Model
    n_rows: int
    """Rows that will be written."""
    k: int
    """Classes of a row."""
    value: str
    """What is said of a class: 'score' or 'probability'."""
    has_row_id: bool
    """Whether the rows come with their number in the source."""

    def names(self) -> list[str]:
        """See :class:`Layout`, as of all that follow."""
        names = ["row", *["row_id"] * self.has_row_id]
        for place in range(1, self.k + 1):
            names += [f"label_{place}", f"{self.value}_{place}"]
        return names

    def columns(self, rows: TopClasses) -> dict[str, Column]:
        """Return two columns for each place."""
        arrays = _row_numbers(rows)
        for place in range(self.k):
            arrays += [rows.labels[:, place], rows.scores[:, place]]
        return dict(zip(self.names(), arrays, strict=True))

    def parquet_types(self, pa: Any) -> list[Any]:
        """Return the types, of which labels have that of the classes."""
        label, score = _parquet_types(self.model, pa)
        return [*[pa.int64()] * (1 + self.has_row_id), *[label, score] * self.k]

    def attributes(self) -> dict[str, Any]:
        """Return nothing."""
        return {}

    @contextlib.contextmanager
    def writing_arrays(self, folder: AnyPath) -> Iterator[Callable[[TopClasses], None]]:
        """Write codes and scores of shape (n_rows, k)."""
        shape = (self.n_rows, self.k)
        write_numbers = _write_row_numbers(folder, self.n_rows, self.has_row_id)
        codes = _ZarrColumn(folder / "label_codes", shape, np.dtype(np.int32))
        scores = _ZarrColumn(folder / _VALUES[self.value], shape, self.model.W.dtype)

        def write(rows: TopClasses) -> None:
            write_numbers(rows)
            codes.append(rows.columns.astype(np.int32))
            scores.append(rows.scores)

        yield write


@dataclass(frozen=True, kw_only=True)
class SetLayout:
    """The labels of every row's conformal set, best first."""

    model: Model
    n_rows: int
    """Rows that will be written."""
    coverage: float
    """Probability that the label of a row is in its set."""
    value: str
    """What is said of a label: 'score' or 'probability'."""
    has_row_id: bool
    """Whether the rows come with their number in the source."""

    def names(self) -> list[str]:
        """See :class:`Layout`, as of all that follow."""
        return ["row", *["row_id"] * self.has_row_id, "set_size", "labels", _VALUES[self.value]]

    def columns(self, rows: SetClasses) -> dict[str, Column]:
        """Return the size of the set, and two columns of lists."""
        labels, scores = Ragged(rows.labels, rows.sizes), Ragged(rows.scores, rows.sizes)
        arrays = [*_row_numbers(rows), rows.sizes, labels, scores]
        return dict(zip(self.names(), arrays, strict=True))

    def parquet_types(self, pa: Any) -> list[Any]:
        """Return the types; labels and scores are lists."""
        label, score = _parquet_types(self.model, pa)
        return [*[pa.int64()] * (2 + self.has_row_id), pa.list_(label), pa.list_(score)]

    def attributes(self) -> dict[str, Any]:
        """Return the coverage."""
        return {"coverage": self.coverage}

    @contextlib.contextmanager
    def writing_arrays(self, folder: AnyPath) -> Iterator[Callable[[SetClasses], None]]:
        """Write codes and scores one row after the other, and where each row begins."""
        write_numbers = _write_row_numbers(folder, self.n_rows, self.has_row_id)
        starts = _ZarrColumn(folder / "label_indptr", (self.n_rows + 1,), np.dtype(np.int64))
        codes = _GrowingColumn(folder / "label_codes", np.dtype(np.int32))
        scores = _GrowingColumn(folder / _VALUES[self.value], self.model.W.dtype)
        starts.append(np.zeros(1, np.int64))

        def write(rows: SetClasses) -> None:
            write_numbers(rows)
            starts.append(codes.n_values + np.cumsum(rows.sizes))
            codes.append(rows.columns.astype(np.int32))
            scores.append(rows.scores)

        yield write
        codes.close()
        scores.close()


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


class _GrowingColumn:
    """An array of one dimension whose length is known at its end; a chunk is written when full."""

    def __init__(self, path: AnyPath, dtype: np.dtype[Any]):
        self._path = path
        self._waiting = np.empty(0, dtype)
        self._n_chunks = 0

    @property
    def n_values(self) -> int:
        """Values appended until now."""
        return self._n_chunks * _ZARR_CHUNK_ROWS + len(self._waiting)

    def append(self, values: NDArray[Any]) -> None:
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


_OPENERS: dict[str, Callable[..., contextlib.AbstractContextManager[Any]]] = {
    ".csv": _open_csv,
    ".parquet": _open_parquet,
    ".zarr": _open_zarr,
}


def _row_numbers(rows: TopClasses | SetClasses) -> list[Column]:
    numbers: list[Column] = [np.arange(rows.start, rows.start + rows.n_rows)]
    return numbers if rows.row_id is None else [*numbers, rows.row_id]


def _write_row_numbers(
    folder: AnyPath, n_rows: int, has_row_id: bool
) -> Callable[[TopClasses | SetClasses], None]:
    names = ["row", *["row_id"] * has_row_id]
    arrays = [_ZarrColumn(folder / name, (n_rows,), np.dtype(np.int64)) for name in names]

    def write(rows: TopClasses | SetClasses) -> None:
        for array, numbers in zip(arrays, _row_numbers(rows), strict=True):
            assert not isinstance(numbers, Ragged)
            array.append(numbers)

    return write


def _parquet_types(model: Model, pa: Any) -> tuple[Any, Any]:
    """Return the types of labels and of scores."""
    label = pa.int64() if model.classes.dtype.kind in "iu" else pa.string()
    return label, pa.from_numpy_dtype(model.W.dtype)


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
