"""A Parquet file, or a folder of them, one row group at a time."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dtopk_storage.errors import DatasetError
from dtopk_storage.sources.arrays import block_rows, check_real
from dtopk_storage.sources.base import (
    Block,
    ListBlock,
    Source,
    SourceFeatures,
    Vector,
    reading,
    require,
)
from dtopk_storage.sources.keys import (
    FEATURE_KEYS,
    FEATURES_ADVICE,
    Role,
    choose_key,
    choose_vector_key,
)
from dtopk_storage.wording import format_count


class ParquetSource(Source):
    """Columns of numbers, or one column of lists, and a column of labels, or of lists of them."""

    def open_features(self) -> SourceFeatures:
        """Open the features: a list column, or all columns that are not set aside."""
        import pyarrow as pa

        place = repr(str(self.path))
        schema = self._files()[0].schema_arrow
        lists = [
            name
            for name in schema.names
            if _is_list(schema.field(name).type) and name not in self.options.skip_columns
        ]
        is_list = self.options.features_key is not None or bool(lists)
        if is_list:
            usual = (*FEATURE_KEYS, *lists)
            names = [
                choose_key(
                    self.options.features_key,
                    lists,
                    usual,
                    what="list column",
                    place=place,
                    advice=FEATURES_ADVICE,
                )
            ]
            width = self._list_width(names[0])
            dtype = schema.field(names[0]).type.value_type.to_pandas_dtype()
        else:
            names = [name for name in schema.names if name not in self.options.skip_columns]
            width = len(names)
            for name in names:
                if not (pa.types.is_primitive(schema.field(name).type)):
                    raise DatasetError(
                        f"column {name!r} of {place} must hold numbers to be a feature, got "
                        f"{schema.field(name).type}.",
                        advice="Leave it out with {skip_columns} if it is none.",
                    )
            dtype = np.result_type(*[schema.field(name).type.to_pandas_dtype() for name in names])
        check_real(np.dtype(dtype), place)

        def blocks(start: int) -> Iterator[NDArray[Any]]:
            for first, batch in self._batches(names, start, block_rows(width, 8)):
                yield _to_matrix(batch, width, np.dtype(dtype), place, first)

        return SourceFeatures(
            place=place,
            n_samples=sum(file.metadata.num_rows for file in self._files()),
            n_features=width,
            dtype=np.dtype(dtype),
            blocks=blocks,
            columns=() if is_list else tuple(names),
        )

    def open_vector(self, key: str | None, role: Role) -> Vector:
        """Open a column of values or of lists."""
        place = repr(str(self.path))
        schema = self._files()[0].schema_arrow
        key = choose_vector_key(key, schema.names, role, place)
        place = f"column {key!r} of {place}"
        is_list = _is_list(schema.field(key).type)

        def blocks() -> Iterator[Block]:
            for first, batch in self._batches([key], 0, block_rows(1, 64)):
                column = batch.column(0)
                _refuse_nulls(column, first, place)
                if is_list:
                    yield _to_lists(column, first, place)
                else:
                    yield column.to_numpy(zero_copy_only=False)

        return Vector(
            place=place, blocks=blocks, column=key, kind="multilabel" if is_list else None
        )

    def _files(self) -> list[Any]:
        require("pyarrow", "parquet")
        import pyarrow.parquet as pq

        paths: list[Path] = [self.path]
        if self.path.is_dir():
            paths = sorted(self.path.rglob("*.parquet"))
            if not paths:
                raise DatasetError(f"{str(self.path)!r} must hold .parquet files, got none.")
        files = []
        for path in paths:
            with reading(repr(str(path))):
                files.append(pq.ParquetFile(path))
        return files

    def _batches(self, names: list[str], start: int, rows: int) -> Iterator[tuple[int, Any]]:
        """Read batches of columns from a row on; row groups before it are not read."""
        row = 0
        for file in self._files():
            for group in range(file.metadata.num_row_groups):
                count = file.metadata.row_group(group).num_rows
                if row + count <= start:
                    row += count
                    continue
                with reading(repr(str(self.path))):
                    batches = file.iter_batches(rows, row_groups=[group], columns=names)
                    for batch in batches:
                        skipped = min(max(0, start - row), batch.num_rows)
                        if skipped < batch.num_rows:
                            yield row + skipped, batch.slice(skipped)
                        row += batch.num_rows

    def _list_width(self, name: str) -> int:
        """Return the length of the lists, from the type or the first row."""
        import pyarrow as pa

        kind = self._files()[0].schema_arrow.field(name).type
        if pa.types.is_fixed_size_list(kind):
            return int(kind.list_size)
        for _, batch in self._batches([name], 0, 1):
            return len(batch.column(0)[0])
        raise DatasetError(f"{str(self.path)!r} must have rows, got none.")


def _is_list(kind: Any) -> bool:
    import pyarrow as pa

    return bool(
        pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind)
    )


def _refuse_nulls(column: Any, start: int, place: str) -> None:
    if column.null_count:
        row = start + int(np.argmax(column.is_null().to_numpy(zero_copy_only=False)))
        raise DatasetError(f"{place} must have a value in every row, got none in row {row}.")


def _to_lists(column: Any, start: int, place: str) -> ListBlock:
    counts = np.asarray(column.value_lengths(), np.int64)
    flat = column.flatten()
    if flat.null_count:
        missing = int(np.argmax(flat.is_null().to_numpy(zero_copy_only=False)))
        row = start + int(np.searchsorted(np.cumsum(counts), missing, side="right"))
        raise DatasetError(f"lists of {place} must not hold null, got one in row {row}.")
    return ListBlock(counts=counts, values=flat.to_numpy(zero_copy_only=False))


def _to_matrix(
    batch: Any, width: int, dtype: np.dtype[Any], place: str, start: int
) -> NDArray[Any]:
    """Make a dense block of a batch of columns."""
    for name, column in zip(batch.schema.names, batch.columns, strict=True):
        _refuse_nulls(column, start, f"column {name!r} of {place}")
    if not _is_list(batch.schema.field(0).type):
        X = np.empty((batch.num_rows, width), dtype)
        for index, column in enumerate(batch.columns):
            X[:, index] = column.to_numpy(zero_copy_only=False)
        return X
    lengths = np.asarray(batch.column(0).value_lengths())
    if (lengths != width).any():
        row = int(np.argmax(lengths != width))
        raise DatasetError(
            f"lists of {place} must all have {format_count(width, 'value')}, as the first has, "
            f"got {lengths[row]} in row {start + row}."
        )
    flat = batch.column(0).flatten()
    if flat.null_count:
        row = int(np.argmax(flat.is_null().to_numpy(zero_copy_only=False))) // width
        raise DatasetError(f"lists of {place} must hold numbers, got null in row {start + row}.")
    values: NDArray[Any] = flat.to_numpy(zero_copy_only=False)
    return values.reshape(-1, width)
