"""Text files: one value a line, and what compressed ones need."""

import bz2
import gzip
import itertools
import lzma
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any, cast

import numpy as np
from numpy.typing import NDArray

from dtopk_storage.errors import DatasetError
from dtopk_storage.sources.base import Rows, Source, Vector, reading

COMPRESSED = (".bz2", ".gz", ".xz")
_LINES = 1 << 16


def open_binary(path: Path) -> IO[bytes]:
    """Open a file, unpacking .bz2, .gz and .xz as it is read.

    Parameters
    ----------
    path : Path
    """
    openers: dict[str, Any] = {".bz2": bz2.open, ".gz": gzip.open, ".xz": lzma.open}
    return cast(IO[bytes], openers.get(path.suffix, open)(path, "rb"))


class TextSource(Source):
    """A text file with one value a line."""

    def open_rows(self) -> Rows:
        """Refuse: lines of single values are no features."""
        raise DatasetError(
            f"features must be in a file of another format, got {str(self.path)!r}, which is "
            f"read as one value a line. Name the format if it is another."
        )

    def open_vector(self, key: str | None) -> Vector:
        """Open the values; there is no key."""
        place = repr(str(self.path))
        if key is not None:
            raise DatasetError(f"key must be left out for {place}, one value a line, got {key!r}.")

        def blocks() -> Iterator[NDArray[Any]]:
            with reading(place, OSError, EOFError, UnicodeDecodeError), open_binary(self.path) as f:
                while lines := list(itertools.islice(f, _LINES)):
                    yield np.array([line.decode().strip() for line in lines])

        return Vector(place=place, blocks=blocks, is_text=True)
