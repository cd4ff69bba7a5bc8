"""A table as text, with a column for each feature."""

import contextlib
import csv
import importlib.util
import io
import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dtopk_storage.errors import DatasetError, describe_error
from dtopk_storage.sources.base import Source, SourceFeatures, Vector
from dtopk_storage.sources.keys import Role, choose_key, choose_vector_key
from dtopk_storage.sources.text import open_binary, read_lines
from dtopk_storage.wording import format_count

_LINES = 1 << 13
_ARROW_BLOCK_BYTES = 16 << 20


class CsvSource(Source):
    """A .csv or .tsv file; columns go by the header's names, or by their index from 0.

    Read with pyarrow where it is installed, many times faster, and with the csv module otherwise.
    """

    def open_features(self) -> SourceFeatures:
        """Open the features: all columns that are not set aside."""
        names = self._names()
        skipped = {self._skipped_index(names, key) for key in self.options.skip_columns}
        columns = [index for index in range(len(names)) if index not in skipped]
        place = repr(str(self.path))
        if not columns:
            raise DatasetError(f"{place} must have columns left for the features, got none.")

        def blocks(start: int) -> Iterator[NDArray[Any]]:
            row = 0
            for block in self._numbers(names, columns):
                if row + len(block) > start:
                    yield block[max(0, start - row) :]
                row += len(block)

        return SourceFeatures(
            place=place,
            n_samples=None,
            n_features=len(columns),
            dtype=np.dtype(np.float32),
            blocks=blocks,
            columns=tuple(names[index] for index in columns),
        )

    def open_vector(self, key: str | None, role: Role) -> Vector:
        """Open a column, by its name or its index (-1 is the last)."""
        names = self._names()
        place = repr(str(self.path))
        index = _parse_index(names, key)
        if index is None:
            index = names.index(choose_vector_key(key, names, role, place))
        key = names[index] if key is None else key

        def blocks() -> Iterator[NDArray[Any]]:
            if importlib.util.find_spec("pyarrow") is None:
                for table in self._tables(len(names)):
                    yield np.array([row[index] for row in table], dtype=np.str_)
            else:
                for batch in self._arrow_batches(len(names), [index], "string"):
                    yield np.array(batch.column(0).to_pylist(), dtype=np.str_)

        return Vector(place=f"column {key!r} of {place}", blocks=blocks, column=key, is_text=True)

    def _delimiter(self) -> str:
        if self.options.delimiter is not None:
            return self.options.delimiter
        return "\t" if ".tsv" in self.path.suffixes else ","

    def _names(self) -> list[str]:
        first = next(self._lines(), None)
        if first is None:
            raise DatasetError(f"{str(self.path)!r} must have rows, got none.")
        return first if self.options.header else [str(index) for index in range(len(first))]

    def _skipped_index(self, names: list[str], key: str) -> int:
        index = _parse_index(names, key)
        if index is not None:
            return index
        place = repr(str(self.path))
        advice = "Name a column of these with {skip_columns}."
        return names.index(
            choose_key(key, names, (), what="column to skip", place=place, advice=advice)
        )

    def _numbers(self, names: Sequence[str], columns: list[int]) -> Iterator[NDArray[Any]]:
        """Read columns as float64, of shape (rows, columns)."""
        if importlib.util.find_spec("pyarrow") is None:
            start = 0
            for table in self._tables(len(names)):
                yield self._to_numbers(table, columns, names, start)
                start += len(table)
        else:
            for batch in self._arrow_batches(len(names), columns, "float64"):
                yield np.column_stack([column.to_numpy() for column in batch.columns])

    def _to_numbers(
        self, table: list[list[str]], columns: list[int], names: Sequence[str], start: int
    ) -> NDArray[np.float64]:
        try:
            return np.array([[row[index] for index in columns] for row in table], np.float64)
        except ValueError:
            for offset, row in enumerate(table):
                for index in columns:
                    self._to_number(row[index], names[index], start + offset)
            raise

    def _to_number(self, text: str, name: str, row: int) -> None:
        try:
            float(text)
        except ValueError as error:
            raise DatasetError(
                f"column {name!r} of {str(self.path)!r} must hold numbers to be a feature, "
                f"got {text!r} in row {row}.",
                advice="Leave the column out with {skip_columns} if it is none.",
            ) from error

    def _lines(self) -> Iterator[list[str]]:
        """Read lines that are not empty, the header among them."""
        with (
            open_binary(self.path) as file,
            io.TextIOWrapper(file, encoding="utf-8-sig", newline="") as text,
        ):
            lines = read_lines(text, repr(str(self.path)))
            yield from filter(None, csv.reader(lines, delimiter=self._delimiter()))

    def _tables(self, n_columns: int) -> Iterator[list[list[str]]]:
        """Read blocks of rows with the csv module, and refuse those of another length."""
        rows = itertools.islice(self._lines(), int(self.options.header), None)
        start = 0
        while table := list(itertools.islice(rows, _LINES)):
            for offset, row in enumerate(table):
                if len(row) != n_columns:
                    wanted = format_count(n_columns, "column")
                    raise DatasetError(
                        f"rows of {str(self.path)!r} must have {wanted}, "
                        f"got {len(row)} in row {start + offset}."
                    )
            yield table
            start += len(table)

    def _arrow_batches(self, n_columns: int, columns: list[int], kind: str) -> Iterator[Any]:
        """Read batches of columns with pyarrow."""
        import pyarrow as pa
        import pyarrow.csv as pa_csv

        names = [str(index) for index in range(n_columns)]
        chosen = [names[index] for index in columns]
        with open_binary(self.path) as file:
            try:
                reader = pa_csv.open_csv(
                    file,
                    pa_csv.ReadOptions(
                        block_size=_ARROW_BLOCK_BYTES,
                        column_names=names,
                        skip_rows=int(self.options.header),
                    ),
                    pa_csv.ParseOptions(delimiter=self._delimiter()),
                    pa_csv.ConvertOptions(
                        include_columns=chosen,
                        column_types={name: pa.type_for_alias(kind) for name in chosen},
                        null_values=[""],
                    ),
                )
                for batch in reader:
                    if any(column.null_count for column in batch.columns):
                        raise pa.ArrowInvalid("empty cell")
                    yield batch
            except pa.ArrowException as error:
                self._locate(n_columns, columns if kind == "float64" else [])
                raise DatasetError(
                    f"{str(self.path)!r} must be a table, got: {describe_error(error)}"
                ) from error

    def _locate(self, n_columns: int, columns: list[int]) -> None:
        """Read with the csv module what pyarrow refused, for an error with row and column."""
        names = self._names()
        start = 0
        for table in self._tables(n_columns):
            self._to_numbers(table, columns, names, start)
            start += len(table)


def _parse_index(names: Sequence[str], key: str | None) -> int | None:
    """Return the index that a key is, counted from the end when negative; a name goes first."""
    if key is None or key in names:
        return None
    with contextlib.suppress(ValueError):
        if -len(names) <= int(key) < len(names):
            return int(key) % len(names)
    return None
