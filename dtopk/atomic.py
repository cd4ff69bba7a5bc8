"""Files that are whole or absent: written beside their place, then renamed into it."""

import contextlib
import errno
import os
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO


@contextlib.contextmanager
def replace_when_complete(path: str | os.PathLike[str]) -> Iterator[BinaryIO]:
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


def write_text(path: str | os.PathLike[str], text: str) -> None:
    """Write a UTF-8 text file, whole or not at all."""
    with replace_when_complete(path) as file:
        file.write(text.encode("utf-8"))
