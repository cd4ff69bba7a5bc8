"""Where a run keeps its state: a folder on disk, or a prefix in an object store.

Both write a file whole or not at all, whoever else writes the same name, and hold nothing open:
they can be pickled and used from any process.
"""

import contextlib
import dataclasses
import errno
import os
import shutil
import uuid
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import fsspec  # type: ignore[import-untyped]
import numpy as np

from dtopk_storage.errors import CheckpointError
from dtopk_storage.files import Bytes, is_disk_full, sync_folder

# Stores in which an object that is written is seen whole or not at all. Over sftp, hdfs or the
# like a reader, or a kill, can meet half a file.
_OBJECT_STORES = frozenset(
    {"abfs", "abfss", "az", "gcs", "gs", "memory", "oci", "oss", "s3", "s3a"}
)


@dataclasses.dataclass(frozen=True)
class LocalFolder:
    """A folder on a disk, or on a file system that hosts share."""

    path: Path
    """The folder, absolute."""

    @property
    def url(self) -> str:
        """The folder's path."""
        return str(self.path)

    def locate(self, name: str) -> str:
        """Path of a file, for messages.

        Parameters
        ----------
        name : str
            Relative, with ``/``.
        """
        return str(self.path / name)

    def write(self, name: str, pieces: Sequence[Bytes | bytes], *, durable: bool) -> None:
        """Write a file whole, or leave what was there.

        Several processes may write the same name: each has a temporary file of its own, and the
        last one to finish stays. What a killed process leaves lies in the same folder, under a
        name that begins with a dot.

        Parameters
        ----------
        name : str
        pieces : sequence of bytes-like
        durable : bool
            Wait until the disk has the file and the folders down to it.

        Raises
        ------
        CheckpointError
            There is no room.
        """
        path = self.path / name
        with explain_full_disk(str(path)):
            path.parent.mkdir(parents=True, exist_ok=True)
            temporary = path.parent / f".{path.name}.{uuid.uuid4().hex}.tmp"
            try:
                with temporary.open("xb") as file:
                    for piece in pieces:
                        file.write(piece if isinstance(piece, bytes) else piece.data)
                    if durable:
                        file.flush()
                        os.fsync(file.fileno())
                os.replace(temporary, path)
            except BaseException:
                temporary.unlink(missing_ok=True)
                raise
            if durable:
                self._sync_down_to(path.parent)

    def _sync_down_to(self, folder: Path) -> None:
        # The place itself may be new, and is then an entry of its parent.
        while folder != self.path.parent:
            sync_folder(folder)
            folder = folder.parent
        sync_folder(folder)

    def read(self, name: str) -> Bytes:
        """Read a file.

        Parameters
        ----------
        name : str

        Returns
        -------
        ndarray of shape (bytes of the file,), uint8

        Raises
        ------
        FileNotFoundError
            It is not there.
        """
        # Opened once: between two looks at the path another file could take its place.
        return np.fromfile(self.path / name, np.uint8)

    def delete(self, name: str) -> None:
        """Delete a file, if it is there.

        Parameters
        ----------
        name : str
        """
        (self.path / name).unlink(missing_ok=True)

    def list_names(self, folder: str = "") -> list[str]:
        """List what a folder holds: nothing if it is not there.

        Parameters
        ----------
        folder : str
        """
        try:
            return sorted(os.listdir(self.path / folder))
        except FileNotFoundError:
            return []

    def delete_folder(self, folder: str) -> None:
        """Delete a folder and all in it, if it is there.

        Parameters
        ----------
        folder : str
        """
        with contextlib.suppress(FileNotFoundError):
            shutil.rmtree(self.path / folder)

    def delete_if_empty(self) -> None:
        """Delete the place itself, if nothing is in it."""
        if not self.list_names():
            with contextlib.suppress(FileNotFoundError):
                self.path.rmdir()


@dataclasses.dataclass(frozen=True)
class ObjectFolder:
    """A prefix in an object store that fsspec knows."""

    url: str
    """Such as ``s3://bucket/runs/7``, without a slash at its end."""

    def locate(self, name: str) -> str:
        """Address of an object, for messages.

        Parameters
        ----------
        name : str
            Relative, with ``/``.
        """
        return f"{self.url}/{name}"

    def write(self, name: str, pieces: Sequence[Bytes | bytes], *, durable: bool) -> None:
        """Write an object whole, or leave what was there.

        Parameters
        ----------
        name : str
        pieces : sequence of bytes-like
        durable : bool
            A store has an object for good when it has answered, so both are the same.

        Raises
        ------
        CheckpointError
            There is no room.
        """
        body = b"".join(piece if isinstance(piece, bytes) else piece.data for piece in pieces)
        with self._open(name, "written") as (fs, path), explain_full_disk(self.locate(name)):
            fs.pipe_file(path, body)

    def create(self, name: str, body: bytes) -> None:
        """Write an object that is not there yet, where the store can tell.

        Parameters
        ----------
        name : str
        body : bytes

        Raises
        ------
        FileExistsError
            It is there. A store that cannot tell overwrites it.
        """
        with self._open(name, "written") as (fs, path):
            try:
                fs.pipe_file(path, body, mode="create")
            except (NotImplementedError, TypeError):
                # How fsspec's file systems say that they have no exclusive creation.
                fs.pipe_file(path, body)

    def read(self, name: str) -> Bytes:
        """Read an object.

        Parameters
        ----------
        name : str

        Returns
        -------
        ndarray of shape (bytes of the object,), uint8, not writable

        Raises
        ------
        FileNotFoundError
            It is not there.
        """
        with self._open(name, "read") as (fs, path):
            return np.frombuffer(fs.cat_file(path), np.uint8)

    def delete(self, name: str) -> None:
        """Delete an object, if it is there.

        Parameters
        ----------
        name : str
        """
        with self._open(name, "deleted") as (fs, path), contextlib.suppress(FileNotFoundError):
            fs.rm_file(path)

    def list_names(self, folder: str = "") -> list[str]:
        """List what is directly below a prefix: nothing if there is none.

        Parameters
        ----------
        folder : str
        """
        with self._open(folder, "listed") as (fs, path):
            # Other processes write here: a listing kept from before is not what is there.
            fs.invalidate_cache()
            try:
                found = fs.ls(path, detail=False)
            except FileNotFoundError:
                return []
        return sorted(name.rstrip("/").rsplit("/", 1)[1] for name in found)

    def delete_folder(self, folder: str) -> None:
        """Delete all below a prefix.

        Parameters
        ----------
        folder : str
        """
        with self._open(folder, "deleted") as (fs, path), contextlib.suppress(FileNotFoundError):
            fs.invalidate_cache()
            fs.rm(path, recursive=True)

    def delete_if_empty(self) -> None:
        """Do nothing: a prefix below which there is nothing is not there."""

    @contextlib.contextmanager
    def _open(self, name: str, done: str) -> Iterator[tuple[Any, str]]:
        """Give the file system and the path in it; a failure is an OSError that names the file."""
        where = self.locate(name)
        fs, path = fsspec.core.url_to_fs(where)
        try:
            yield fs, path.rstrip("/")
        except ValueError:
            raise
        except Exception as error:
            number = getattr(error, "errno", None) or _errno_of(error)
            raise OSError(number, f"It could not be {done}: {error}", where) from error


def _errno_of(error: Exception) -> int:
    """Give the number that makes an OSError of the same kind: stores tend to leave it out."""
    kinds = {
        FileNotFoundError: errno.ENOENT,
        FileExistsError: errno.EEXIST,
        PermissionError: errno.EACCES,
        TimeoutError: errno.ETIMEDOUT,
    }
    return next((number for kind, number in kinds.items() if isinstance(error, kind)), errno.EIO)


Location = LocalFolder | ObjectFolder


def open_location(url: str | os.PathLike[str], *, name: str) -> Location:
    """Tell a path from an address, and check that the store is one for a run's state.

    Parameters
    ----------
    url : str or path-like
        A path, ``file://`` and a path, or the address of an object store that fsspec knows.
    name : str
        What it is the place of, for the message.

    Raises
    ------
    ValueError
        Its scheme is not known, or not one of an object store.
    """
    text = os.fspath(url)
    scheme, separator, rest = text.partition("://")
    if not separator:
        return LocalFolder(Path(os.path.abspath(text)))
    if scheme in ("file", "local"):
        return LocalFolder(Path(os.path.abspath(rest)))
    if scheme not in _OBJECT_STORES or not rest.strip("/"):
        raise ValueError(
            f"{name} must be a path or an address such as 's3://bucket/folder', in a store of "
            f"{', '.join(sorted(_OBJECT_STORES))}, got {text!r}."
        )
    try:
        fsspec.get_filesystem_class(scheme)
    except ImportError as error:
        raise ValueError(
            f"{name} must be in a store whose package is installed, got {text!r}: {error}"
        ) from error
    return ObjectFolder(text.rstrip("/"))


@contextlib.contextmanager
def explain_full_disk(where: str) -> Iterator[None]:
    """Turn the error of a write for which there is no room into one that says what to do.

    Parameters
    ----------
    where : str
        The file.

    Raises
    ------
    CheckpointError
        There is no room: its cause is the OSError.
    """
    try:
        yield
    except OSError as error:
        if not is_disk_full(error):
            raise
        raise CheckpointError(
            f"{where!r} could not be written: no space is left for it. The state committed "
            f"before it is whole. Free some space and start the run again."
        ) from error
