"""What a file of predictions holds of each row."""

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from dtopk.cli.prediction_arrays import ArrayColumn, GrowingColumn
from dtopk.job.scoring import SetClasses, TopClasses
from dtopk.model import Model
from dtopk_storage.paths import AnyPath

Rows = TypeVar("Rows", contravariant=True)

_VALUES = {"score": "scores", "probability": "probabilities"}
"""What may be said of a class, and of many."""


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
        codes = ArrayColumn(folder / "label_codes", shape, np.dtype(np.int32))
        scores = ArrayColumn(folder / _VALUES[self.value], shape, self.model.W.dtype)

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
        starts = ArrayColumn(folder / "label_indptr", (self.n_rows + 1,), np.dtype(np.int64))
        codes = GrowingColumn(folder / "label_codes", np.dtype(np.int32))
        scores = GrowingColumn(folder / _VALUES[self.value], self.model.W.dtype)
        starts.append(np.zeros(1, np.int64))

        def write(rows: SetClasses) -> None:
            write_numbers(rows)
            starts.append(codes.n_values + np.cumsum(rows.sizes))
            codes.append(rows.columns.astype(np.int32))
            scores.append(rows.scores)

        yield write
        codes.close()
        scores.close()


def _row_numbers(rows: TopClasses | SetClasses) -> list[Column]:
    numbers: list[Column] = [np.arange(rows.start, rows.start + rows.n_rows)]
    return numbers if rows.row_id is None else [*numbers, rows.row_id]


def _write_row_numbers(
    folder: AnyPath, n_rows: int, has_row_id: bool
) -> Callable[[TopClasses | SetClasses], None]:
    names = ["row", *["row_id"] * has_row_id]
    arrays = [ArrayColumn(folder / name, (n_rows,), np.dtype(np.int64)) for name in names]

    def write(rows: TopClasses | SetClasses) -> None:
        for array, numbers in zip(arrays, _row_numbers(rows), strict=True):
            assert not isinstance(numbers, Ragged)
            array.append(numbers)

    return write


def _parquet_types(model: Model, pa: Any) -> tuple[Any, Any]:
    """Return the types of labels and of scores."""
    label = pa.int64() if model.classes.dtype.kind in "iu" else pa.string()
    return label, pa.from_numpy_dtype(model.W.dtype)
