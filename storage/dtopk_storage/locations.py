"""Where a run keeps its state: a folder on disk, or a prefix in an object store.

Both write a file whole or not at all, whoever else writes the same name, and hold nothing open:
they can be pickled and used from any process.
"""

import contextlib
import dataclasses
import os
import shutil
import uuid
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from dtopk_storage.errors import CheckpointError
from dtopk_storage.files import Bytes, is_disk_full, sync_folder
from dtopk_storage.objects import ObjectPath
from dtopk_storage.paths import as_path, join_pieces


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
        with explain_full_disk(self.locate(name)):
            self._at(name).write_bytes(join_pieces(pieces))

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
        self._at(name).create(body)

    def replace(self, name: str, body: bytes, tag: str) -> None:
        """Write an object that is there as a tag tells, where the store can tell.

        Parameters
        ----------
        name : str
        body : bytes
        tag : str
            As `find_tag` gave it; empty: whatever is there.

        Raises
        ------
        FileExistsError
            Another version is there. A store that cannot tell overwrites it.
        """
        if tag:
            self._at(name).replace_bytes(body, tag)
        else:
            self.write(name, [body], durable=True)

    def find_tag(self, name: str) -> str:
        """Return what tells this version of an object from others; empty: the store has no such.

        Parameters
        ----------
        name : str

        Raises
        ------
        FileNotFoundError
            It is not there.
        """
        return self._at(name).tag()

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
        return np.frombuffer(self._at(name).read_bytes(), np.uint8)

    def delete(self, name: str) -> None:
        """Delete an object, if it is there.

        Parameters
        ----------
        name : str
        """
        self._at(name).unlink(missing_ok=True)

    def list_names(self, folder: str = "") -> list[str]:
        """List what is directly below a prefix: nothing if there is none.

        Parameters
        ----------
        folder : str
        """
        return [path.name for path in self._at(folder).iterdir()]

    def delete_folder(self, folder: str) -> None:
        """Delete all below a prefix.

        Parameters
        ----------
        folder : str
        """
        self._at(folder).delete_tree()

    def delete_if_empty(self) -> None:
        """Do nothing: a prefix below which there is nothing is not there."""

    def _at(self, name: str) -> ObjectPath:
        return ObjectPath(self.locate(name).rstrip("/"))


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
    path = as_path(url, name=name, whole_bucket=True)
    if isinstance(path, ObjectPath):
        return ObjectFolder(path.url)
    return LocalFolder(Path(os.path.abspath(path)))


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
