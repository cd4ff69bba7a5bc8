"""Whole files, or none: atomic writes, and reads into memory that is already there."""

import contextlib
import errno
import fcntl
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO

import numpy as np
from numpy.typing import NDArray

Bytes = np.ndarray[tuple[int], np.dtype[np.uint8]]

# EFBIG is what a process under a file size limit gets where a full disk gives ENOSPC.
_FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
NO_FILE_LOCKS = frozenset({errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP})
"""Numbers of the errors by which a file system says that it has no locks."""


def is_disk_full(error: OSError) -> bool:
    """Tell whether a write failed for want of room.

    Parameters
    ----------
    error : OSError
    """
    return error.errno in _FULL


def as_bytes(values: NDArray[np.generic]) -> Bytes:
    """View a C-contiguous array as its bytes, without a copy.

    Parameters
    ----------
    values : ndarray of any shape, C-contiguous

    Returns
    -------
    ndarray of shape (values.nbytes,), uint8
    """
    return values.reshape(-1).view(np.uint8)


def write_atomic(path: Path, pieces: Sequence[Bytes | bytes], *, durable: bool) -> None:
    """Write a file under another name and rename it, so that it is whole or absent.

    zarr's LocalStore does the same, but leaves its temporary file behind when the write is
    interrupted, and copies the chunk once to append the checksum. The other name is always the
    same one, so that what a killed process left is overwritten when its work is done again.

    Parameters
    ----------
    path : Path
        Its folder is made if need be. It has one writer at a time.
    pieces : sequence of bytes-like
        Written one after the other.
    durable : bool
        Wait until the disk has the bytes. The rename then never outlives them in a power cut.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.parent / f".{path.name}.tmp"
    try:
        with temporary.open("wb") as file:
            for piece in pieces:
                file.write(piece if isinstance(piece, bytes) else piece.data)
            if durable:
                file.flush()
                os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def read_pieces(path: Path, pieces: Sequence[Bytes]) -> None:
    """Fill arrays with a file's bytes, one after the other.

    Parameters
    ----------
    path : Path
        A file of exactly as many bytes as the pieces hold together.
    pieces : sequence of ndarray, uint8
        Overwritten.

    Raises
    ------
    EOFError
        The file ended early.
    """
    with path.open("rb", buffering=0) as file:
        for piece in pieces:
            view = piece.data
            while view.nbytes:
                got = file.readinto(view)
                if not got:
                    raise EOFError(f"{str(path)!r} ended {view.nbytes} bytes early.")
                view = view[got:]


def sync_folder(path: Path) -> None:
    """Wait until the disk has a folder's entries, so that a rename in it lasts.

    Parameters
    ----------
    path : Path
    """
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def drop_page_cache(path: str | os.PathLike[str]) -> int:
    """Ask the kernel to forget the cached pages of a store, so that the next read is cold.

    Pages not yet on the disk are written first, since the kernel keeps those.

    Parameters
    ----------
    path : str or path-like
        A file, or a folder with all that is below it.

    Returns
    -------
    int
        Bytes of the files asked for.
    """
    total = 0
    for file in walk_files(Path(path)):
        descriptor = os.open(file, os.O_RDONLY)
        try:
            os.fsync(descriptor)
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            total += os.fstat(descriptor).st_size
        finally:
            os.close(descriptor)
    return total


def size_on_disk(path: Path) -> int:
    """Add up the bytes of the files below a folder.

    Parameters
    ----------
    path : Path

    Returns
    -------
    int
        Bytes.
    """
    return sum(file.stat().st_size for file in walk_files(path))


def walk_files(path: Path) -> Iterator[Path]:
    """List a file, or all files below a folder, in the order of their names.

    Parameters
    ----------
    path : Path

    Yields
    ------
    Path
    """
    if path.is_file():
        yield path
    else:
        yield from sorted(file for file in path.rglob("*") if file.is_file())


@contextlib.contextmanager
def exclusive_lock(path: Path, *, makes_folder: bool = True) -> Iterator[None]:
    """Hold a lock file, which the kernel releases however the process ends.

    The holder may remove the file, by renaming its folder first: whoever had opened it before
    finds it gone and begins again.

    Parameters
    ----------
    path : Path
        Made if it is not there, and left there.
    makes_folder : bool
        Whether its folder is made if it is not there.

    Raises
    ------
    BlockingIOError
        Another process holds it.
    FileNotFoundError
        There is no folder, and none is to be made.
    """
    with _open_locked(path, makes_folder):
        yield


def _open_locked(path: Path, makes_folder: bool) -> IO[str]:
    while makes_folder or path.parent.is_dir():
        if makes_folder:
            path.parent.mkdir(parents=True, exist_ok=True)
        with contextlib.ExitStack() as stack, contextlib.suppress(FileNotFoundError):
            file = stack.enter_context(path.open("w"))
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.path.samestat(os.fstat(file.fileno()), path.stat()):
                stack.pop_all()
                return file
    raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))
