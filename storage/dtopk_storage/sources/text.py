"""Text files: one value a line, and what compressed ones need."""

import bz2
import contextlib
import gzip
import lzma
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import IO, Any, AnyStr, cast

import numpy as np
from numpy.typing import NDArray

from dtopk_storage.errors import DatasetError
from dtopk_storage.sources.base import Source, SourceFeatures, Vector, reading
from dtopk_storage.sources.keys import Role, refuse_key

COMPRESSED = (".bz2", ".gz", ".xz")
MOST_LINE_CHARACTERS = 1 << 28
_LINES = 1 << 16
_BLOCK_BYTES = 8 << 20


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
    with reading(repr(str(path))), openers.get(path.suffix, open)(path, "rb") as file:
        yield cast(IO[bytes], file)


def read_lines(file: IO[AnyStr], place: str) -> Iterator[AnyStr]:
    """Read a text line by line, and refuse a line that is no line of numbers and names any more.

    Parameters
    ----------
    file : file of text or bytes
    place : str
        For the message.

    Raises
    ------
    DatasetError
        A line has more than `MOST_LINE_CHARACTERS`, as some kilobytes of a compressed file can.
    """
    while line := file.readline(MOST_LINE_CHARACTERS + 1):
        if len(line) > MOST_LINE_CHARACTERS:
            raise DatasetError(
                f"lines of {place} must have at most {MOST_LINE_CHARACTERS:,} characters, got more."
            )
        yield line


def read_line_blocks(
    lines: Iterable[bytes], most_lines: int, most_bytes: int = _BLOCK_BYTES
) -> Iterator[list[bytes]]:
    """Cut lines into blocks.

    Parameters
    ----------
    lines : iterable of bytes
    most_lines : int
        In a block.
    most_bytes : int
        After which a block ends.
    """
    block: list[bytes] = []
    size = 0
    for line in lines:
        block.append(line)
        size += len(line)
        if len(block) >= most_lines or size >= most_bytes:
            yield block
            block, size = [], 0
    if block:
        yield block


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
                for lines in read_line_blocks(read_lines(file, place), _LINES):
                    yield np.array([line.decode().strip() for line in lines])

        return Vector(place=place, blocks=blocks, is_text=True)
