"""Files that are whole or absent: written beside their place, then renamed into it."""

import contextlib
import errno
import fcntl
import glob
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO, NoReturn, Protocol, cast


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
        A file that is there is kept until the new one is complete. What a process that was killed
        has left of it is deleted.

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
    try:
        with beside(path, Path.touch) as partial:
            with partial.open("wb") as file:
                yield file
                file.flush()
                os.fsync(file.fileno())
            partial.replace(path)
    except OSError as error:
        raise_naming(error, path)


@contextlib.contextmanager
def beside(path: Path, make: Callable[[Path], object]) -> Iterator[Path]:
    """Make what is written in the place of a file or folder, until it is renamed.

    It is locked as long as this process lives: what others have left of `path` that were killed is
    not, and is deleted.

    Parameters
    ----------
    path : Path
    make : callable
        Makes an empty file, or folder, under a name that is free.

    Yields
    ------
    Path
        In the same folder; what is there at the end is deleted.

    Raises
    ------
    OSError
        If it cannot be made.
    """
    for left in path.parent.glob(f".{glob.escape(path.name)}.partial-*"):
        _delete_if_abandoned(left)
    partial = path.with_name(f".{path.name}.partial-{os.getpid()}")
    descriptor = _open_locked(partial, make)
    try:
        yield partial
    finally:
        _delete(partial)
        os.close(descriptor)


def raise_naming(error: OSError, path: Path) -> NoReturn:
    """Raise what writing beside a file or folder has raised, as an error that names it.

    Parameters
    ----------
    error : OSError
    path : Path

    Raises
    ------
    OSError
        It says so if the disk is full.
    """
    if error.errno == errno.ENOSPC:
        raise OSError(errno.ENOSPC, "The disk is full: cannot write", str(path)) from error
    if f".{path.name}.partial-" in str(error.filename):
        raise OSError(error.errno, error.strerror, str(path)) from error
    raise error


def _delete_if_abandoned(left: Path) -> None:
    # Its lock is held, on whatever host, as long as its writer lives; where a file system has no
    # locks nothing tells, and it stays.
    with contextlib.suppress(OSError):
        descriptor = os.open(left, os.O_RDONLY)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            _delete(left)
        finally:
            os.close(descriptor)


def _open_locked(path: Path, make: Callable[[Path], object]) -> int:
    while True:
        make(path)
        # Before it is locked it may have been taken for abandoned.
        with contextlib.suppress(FileNotFoundError):
            descriptor = os.open(path, os.O_RDONLY)
            with contextlib.suppress(OSError):
                fcntl.flock(descriptor, fcntl.LOCK_EX)
            if _is_at(path, descriptor):
                return descriptor
            os.close(descriptor)


def _is_at(path: Path, descriptor: int) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except FileNotFoundError:
        return False


def _delete(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


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
