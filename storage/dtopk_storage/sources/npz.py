"""Several arrays in a zip file, each streamed without unpacking it."""

import contextlib
import shutil
import tempfile
import zipfile
from collections.abc import Iterator
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from dtopk_storage.npy_files import NpyHeader, read_header
from dtopk_storage.sources.arrays import block_rows, check_matrix
from dtopk_storage.sources.base import Source, SourceFeatures, Vector, reading
from dtopk_storage.sources.keys import (
    FEATURE_KEYS,
    FEATURES_ADVICE,
    Role,
    choose_key,
    choose_vector_key,
)
from dtopk_storage.wording import format_count

_SKIP_BYTES = 8 << 20


class NpzSource(Source):
    """A .npz file, with features and labels as members."""

    def open_features(self) -> SourceFeatures:
        """Open the member with the features."""
        key = choose_key(
            self.options.features_key,
            self._names(),
            FEATURE_KEYS,
            what="features",
            place=repr(str(self.path)),
            advice=FEATURES_ADVICE,
        )
        place = self._place(key)
        with self._open(key) as (_, header):
            check_matrix(header.shape, header.dtype, place)

        def blocks(start: int) -> Iterator[NDArray[Any]]:
            yield from self._stream(key, start)

        return SourceFeatures(
            place=place,
            n_samples=header.shape[0],
            n_features=header.shape[1],
            dtype=header.dtype,
            blocks=blocks,
        )

    def open_vector(self, key: str | None, role: Role) -> Vector:
        """Open a member with one value a row, or an indicator matrix."""
        key = choose_vector_key(key, self._names(), role, repr(str(self.path)))
        return Vector(place=self._place(key), blocks=lambda: self._stream(key, 0))

    def _place(self, key: str) -> str:
        return f"{key!r} of {str(self.path)!r}"

    def _names(self) -> list[str]:
        place = repr(str(self.path))
        with reading(place), zipfile.ZipFile(self.path) as archive:
            return [name.removesuffix(".npy") for name in archive.namelist()]

    @contextlib.contextmanager
    def _open(self, key: str) -> Iterator[tuple[IO[bytes], NpyHeader]]:
        """Open a member and read its header."""
        place = self._place(key)
        with (
            reading(place),
            zipfile.ZipFile(self.path) as archive,
            archive.open(f"{key}.npy") as member,
        ):
            size = archive.getinfo(f"{key}.npy").file_size
            header = read_header(member, size, place)
            yield member, header

    def _stream(self, key: str, start: int) -> Iterator[NDArray[Any]]:
        with self._open(key) as (member, header):
            n_rows, row_bytes = header.shape[0], header.row_bytes
            rows = block_rows(1, row_bytes)
            if header.is_column_major:
                with _unpack(member, header) as array:
                    for first in range(start, n_rows, rows):
                        yield array[first : first + rows]
                return
            _skip(member, start * row_bytes)
            for first in range(start, n_rows, rows):
                count = min(rows, n_rows - first)
                data = _read_exactly(member, count * row_bytes)
                yield np.frombuffer(data, header.dtype).reshape(count, *header.shape[1:])


@contextlib.contextmanager
def _unpack(member: IO[bytes], header: NpyHeader) -> Iterator[NDArray[Any]]:
    """Map a column-major array from a temporary file: its rows do not come one by one."""
    with tempfile.TemporaryFile() as file:
        shutil.copyfileobj(member, file, _SKIP_BYTES)
        file.flush()
        if file.tell() != header.shape[0] * header.row_bytes:
            raise EOFError("it ended early.")
        yield np.memmap(file, header.dtype, "r", shape=header.shape, order="F")


def _skip(member: IO[bytes], size: int) -> None:
    """Read past bytes; a compressed member cannot be entered in the middle."""
    while size > 0:
        size -= len(_read_exactly(member, min(size, _SKIP_BYTES)))


def _read_exactly(member: IO[bytes], size: int) -> bytes:
    data = member.read(size)
    if len(data) != size:
        raise EOFError(f"it ended {format_count(size - len(data), 'byte')} early.")
    return data
