"""Sparse rows in svmlight's text format (LIBSVM's), made dense block by block."""

import io
import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dtopk_storage.errors import DatasetError, describe_error
from dtopk_storage.sources.arrays import block_rows, check_width
from dtopk_storage.sources.base import ListBlock, Source, SourceFeatures, Vector
from dtopk_storage.sources.keys import Role, refuse_key
from dtopk_storage.sources.text import open_binary, read_line_blocks, read_lines
from dtopk_storage.wording import format_count

_SCAN_LINES = 4096


class SvmlightSource(Source):
    """A text file with a line ``label index:value ...`` for each row.

    A line may have several labels with commas between them, or none and begin with ``index:value``.
    A line of white space is no row. The file is read twice: once for the labels, the largest index
    and whether indices start at 0, and once for the features.
    """

    _first: int | None = None
    _last = -1
    _n_samples = 0

    def open_features(self) -> SourceFeatures:
        """Open the features; reads the file once, unless the labels were read already."""
        if self._first is None:
            for _ in self._scan():
                pass
        place = repr(str(self.path))
        base = self._base()
        n_features = self.options.n_features or self._last + 1 - base
        if self._last - base >= n_features:
            raise DatasetError(
                f"n_features of {place} must be at least {self._last + 1 - base}, the largest "
                f"index in it, got {n_features}."
            )
        if n_features < 1:
            rows = format_count(self._n_samples, "row")
            raise DatasetError(f"{place} must have features, got none in {rows}.")
        check_width(n_features, place)

        def blocks(start: int) -> Iterator[NDArray[Any]]:
            rows = min(_SCAN_LINES, block_rows(n_features, 8))
            for X, _ in self._parse(n_features + base, rows, start):
                yield X.toarray()[:, base:]

        return SourceFeatures(
            place=place,
            n_samples=self._n_samples,
            n_features=n_features,
            dtype=np.dtype(np.float32),
            blocks=blocks,
        )

    def open_vector(self, key: str | None, role: Role) -> Vector:
        """Open the labels, which start each line; there is no key."""
        place = repr(str(self.path))
        refuse_key(key, role, place)
        return Vector(place=place, blocks=self._scan)

    def _base(self) -> int:
        if self.options.index_base != "auto":
            return int(self.options.index_base)
        return 0 if self._first == 0 else 1

    def _scan(self) -> Iterator[ListBlock]:
        """Read the labels, and learn the range of the indices and the number of rows."""
        first, last, count = np.iinfo(np.int64).max, -1, 0
        for X, y in self._parse(None, _SCAN_LINES, 0):
            if X.nnz:
                first = min(first, int(X.indices.min()))
                last = max(last, int(X.indices.max()))
            count += len(y)
            counts = np.fromiter(map(len, y), np.int64, len(y))
            values = np.fromiter(itertools.chain.from_iterable(y), np.float64, counts.sum())
            yield ListBlock(counts=counts, values=values)
        self._first, self._last, self._n_samples = first, last, count
        if first == 0 and self.options.index_base == "1":
            raise DatasetError(f"indices of {str(self.path)!r} must start at 1, got 0.")

    def _parse(self, n_columns: int | None, rows: int, start: int) -> Iterator[tuple[Any, Any]]:
        """Parse blocks of lines, with the indices as they stand."""
        from sklearn.datasets import load_svmlight_file

        with open_binary(self.path) as file:
            lines = read_lines(file, repr(str(self.path)))
            full = (line for line in lines if line.split(b"#", 1)[0].strip())
            for block in read_line_blocks(itertools.islice(full, start, None), rows):
                place = f"rows {start}:{start + len(block)} of {str(self.path)!r}"
                try:
                    # Labels come as tuples, of one where a line has one.
                    X, y = load_svmlight_file(
                        io.BytesIO(b"".join(block)),
                        n_features=n_columns,
                        multilabel=True,
                        zero_based=True,
                    )
                except Exception as error:
                    raise DatasetError(
                        f"{place} must be lines of `label index:value ...`, with a comma and no "
                        f"space between labels, all of them numbers, got: {describe_error(error)}"
                    ) from error
                yield X, y
                start += len(block)
