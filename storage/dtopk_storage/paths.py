"""Paths on a disk and in an object store, and what is done to both."""

import os
import shutil
from collections.abc import Sequence
from pathlib import Path

from dtopk_storage.addresses import check_address, redact
from dtopk_storage.files import Bytes, size_on_disk, write_atomic
from dtopk_storage.objects import OBJECT_STORES, ObjectPath

AnyPath = Path | ObjectPath
"""A path on a disk, or in an object store."""
PathLike = str | os.PathLike[str] | ObjectPath
"""What a user gives for one: in an object store the address as a string."""


def as_path(path: PathLike, *, name: str, whole_bucket: bool = False) -> AnyPath:
    """Tell a path from the address of an object store, and check the address.

    Parameters
    ----------
    path : str, path-like or ObjectPath
        A path, ``file://`` and a path, or such as ``s3://bucket/folder``.
    name : str
        What it is the path of, for the message.
    whole_bucket : bool
        Whether it may be a bucket, with no name in it.

    Raises
    ------
    ValueError
        It is an address of something else, without a name in its bucket, or with credentials.
    """
    if isinstance(path, ObjectPath):
        return path
    text = os.fspath(path)
    scheme, separator, rest = text.partition("://")
    if not separator:
        _check_is_no_address(text, name)
        return Path(text)
    if scheme in ("file", "local"):
        return Path(rest)
    is_bucket = "/" not in rest.strip("/") and scheme != "memory"
    if scheme not in OBJECT_STORES or not rest.strip("/") or (is_bucket and not whole_bucket):
        raise ValueError(
            f"{name} must be a path or an address such as 's3://bucket/folder', in a store of "
            f"{', '.join(sorted(OBJECT_STORES))}, got {redact(text)!r}."
        )
    check_address(text, name=name)
    return ObjectPath(text.rstrip("/"))


def _check_is_no_address(text: str, name: str) -> None:
    """Refuse what pathlib makes of an address, which is another path."""
    scheme, _, rest = text.partition(":/")
    if rest and scheme in OBJECT_STORES:
        raise ValueError(
            f"{name} must be a string where it is an address, got a path, {redact(text)!r}, that "
            "one slash of it is missing from."
        )


def write_whole(path: AnyPath, pieces: Sequence[Bytes | bytes], *, durable: bool) -> None:
    """Write a file so that it is whole or absent.

    Parameters
    ----------
    path : AnyPath
        It has one writer at a time.
    pieces : sequence of bytes-like
        Written one after the other.
    durable : bool
        Wait until the disk has it; a store has an object for good when it has answered.
    """
    if isinstance(path, ObjectPath):
        path.write_bytes(join_pieces(pieces))
    else:
        write_atomic(path, pieces, durable=durable)


def join_pieces(pieces: Sequence[Bytes | bytes]) -> bytes:
    """Make one object's bytes of several pieces.

    Parameters
    ----------
    pieces : sequence of bytes-like
    """
    return b"".join(piece if isinstance(piece, bytes) else piece.data for piece in pieces)


def delete_tree(path: AnyPath) -> None:
    """Delete a folder and all below it, if it is there.

    Parameters
    ----------
    path : AnyPath
    """
    if isinstance(path, ObjectPath):
        path.delete_tree()
    else:
        shutil.rmtree(path, ignore_errors=True)


def put_tree(source: AnyPath, target: AnyPath, *, last: str) -> None:
    """Put a folder in the place of another one; what was there is deleted before.

    On a disk it is renamed. In an object store it is copied, file by file: killed in that, a part
    of it is at the target, and all of it at the source.

    Parameters
    ----------
    source, target : AnyPath
        On the same file system, or in the same store.
    last : str
        Name of the file that is copied when all others are.
    """
    delete_tree(target)
    if isinstance(source, ObjectPath) and isinstance(target, ObjectPath):
        source.copy_tree(target, last)
        source.delete_tree()
    elif isinstance(source, Path) and isinstance(target, Path):
        source.rename(target)
    else:
        raise AssertionError(f"{source} and {target} are not in the same place")


def size_below(path: AnyPath) -> int:
    """Add up the bytes of the files below a folder.

    Parameters
    ----------
    path : AnyPath

    Returns
    -------
    int
        Bytes.
    """
    if isinstance(path, ObjectPath):
        return sum(int(info["size"]) for info in path.find().values())
    return size_on_disk(path)
