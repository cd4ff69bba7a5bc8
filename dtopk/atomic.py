"""Files that are whole or absent: written beside their place, then renamed into it."""

import contextlib
import errno
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, Protocol, cast


class Uploads(Protocol):
    """What takes a file whole, as an object of a store does."""

    def upload(self, file: BinaryIO) -> None:
        """Take what is in a file from its place to its end."""


FilePath = str | os.PathLike[str] | Uploads
"""Where a file is written: a path, or what takes it whole."""


@contextlib.contextmanager
def replace_when_complete(path: FilePath) -> Iterator[BinaryIO]:
    """Open a new file that takes the name `path` at the end, or vanishes on an error.

    Parameters
    ----------
    path : path of the file
        A file that is there is kept until the new one is complete.

    Yields
    ------
    binary file, open for writing

    Raises
    ------
    OSError
        If it cannot be written; it names `path`, and a full disk.
    """
    if not isinstance(path, str | os.PathLike):
        with _upload_when_complete(path) as file:
            yield file
        return
    path = Path(path)
    partial = path.with_name(f".{path.name}.partial-{os.getpid()}")
    try:
        with partial.open("wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
    except OSError as error:
        if error.errno == errno.ENOSPC:
            raise OSError(errno.ENOSPC, "The disk is full: cannot write", str(path)) from error
        if error.filename == str(partial):
            raise OSError(error.errno, error.strerror, str(path)) from error
        raise
    finally:
        partial.unlink(missing_ok=True)


@contextlib.contextmanager
def _upload_when_complete(target: Uploads) -> Iterator[BinaryIO]:
    with tempfile.TemporaryFile() as temporary:
        file = cast(BinaryIO, temporary)
        yield file
        file.seek(0)
        target.upload(file)


def write_text(path: FilePath, text: str) -> None:
    """Write a UTF-8 text file, whole or not at all."""
    with replace_when_complete(path) as file:
        file.write(text.encode("utf-8"))
