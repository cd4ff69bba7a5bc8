"""Text files: one value a line, and what compressed ones need."""

import bz2
import contextlib
import gzip
import itertools
import lzma
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any, cast

import numpy as np
from numpy.typing import NDArray

from dtopk_storage.errors import DatasetError
from dtopk_storage.sources.base import Role, Source, SourceFeatures, Vector, reading, refuse_key

COMPRESSED = (".bz2", ".gz", ".xz")
_LINES = 1 << 16


@contextlib.contextmanager
def open_binary(path: Path) -> Iterator[IO[bytes]]:
    """Open a file, unpacking .bz2, .gz and .xz as it is read.

    Parameters
    ----------
    path : Path

    Raises
    ------
    DatasetError
        It cannot be read, or unpacked, or is no text where text is wanted.
    """
    openers: dict[str, Any] = {".bz2": bz2.open, ".gz": gzip.open, ".xz": lzma.open}
    errors = (OSError, EOFError, UnicodeDecodeError, lzma.LZMAError, zlib.error)
    with reading(repr(str(path)), *errors), openers.get(path.suffix, open)(path, "rb") as file:
        yield cast(IO[bytes], file)


class TextSource(Source):
    """A text file with one value a line."""

    def open_features(self) -> SourceFeatures:
        """Refuse: lines of single values are no features."""
        raise DatasetError(
            f"features must be in a file of another format, got {str(self.path)!r}, which is "
            f"read as one value a line.",
            advice="Name the format with {source_format} if it is another.",
        )

    def open_vector(self, key: str | None, role: Role) -> Vector:
        """Open the values; there is no key."""
        place = repr(str(self.path))
        refuse_key(key, role, place)

        def blocks() -> Iterator[NDArray[Any]]:
            with open_binary(self.path) as file:
                while lines := list(itertools.islice(file, _LINES)):
                    yield np.array([line.decode().strip() for line in lines])

        return Vector(place=place, blocks=blocks, is_text=True)
