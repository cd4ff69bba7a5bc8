"""The folder that an ingest works in: held by one, kept as long as it helps, and removed."""

import abc
import contextlib
import functools
import glob
import hashlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from dtopk_storage.errors import DatasetError
from dtopk_storage.files import exclusive_lock
from dtopk_storage.objects import ObjectPath
from dtopk_storage.paths import AnyPath
from dtopk_storage.publishing import check_target, delete_store, publish
from dtopk_storage.replacement import (
    LOCK,
    NEW,
    REPLACED,
    WORK_SUFFIX,
    delete_leftovers,
    find_replaced,
    restore_replaced,
)
from dtopk_storage.run_lock import InUseError, RunLock
from dtopk_storage.store_opening import is_store

PLAN = "plan.json"
"""What makes the work one that can be gone on with."""
_BUCKETS = "buckets"
_REMOVED = ".removed-"


class WorkingFolder(abc.ABC):
    """Where an ingest has its plan, and the store until it is whole; see `open_working_folder`.

    Parameters
    ----------
    target : Path or ObjectPath
        Of the store to be.
    """

    @property
    @abc.abstractmethod
    def path(self) -> AnyPath:
        """Where the plan is."""

    @property
    @abc.abstractmethod
    def store(self) -> AnyPath:
        """Where the store is written."""

    @property
    @abc.abstractmethod
    def buckets(self) -> Path:
        """Folder on a disk of this machine, for rows on their way."""

    @property
    @abc.abstractmethod
    def has_features(self) -> bool:
        """Whether features may have been written."""

    @abc.abstractmethod
    def hold(self) -> contextlib.AbstractContextManager[None]:
        """Hold the folder, so that no chunk has two writers.

        Raises
        ------
        DatasetError
            Another ingest holds it.
        """

    @abc.abstractmethod
    def check_held(self) -> None:
        """Refuse to go on if another ingest may have come to hold the folder.

        Raises
        ------
        DatasetError
        """

    @abc.abstractmethod
    def recover(self) -> None:
        """Make good what an ingest has left that was killed in its last steps.

        Raises
        ------
        DatasetError
            Another ingest is in them now.
        """

    @abc.abstractmethod
    def begin(self) -> None:
        """Remove what is in the way of a store that is begun anew."""

    @abc.abstractmethod
    def count_needed(self, features_bytes: int, shuffle: bool) -> int:
        """Return the bytes of a disk of this machine that are needed.

        Parameters
        ----------
        features_bytes : int
            Of all features, at rest.
        shuffle : bool
        """

    @abc.abstractmethod
    def count_free(self) -> int:
        """Return the bytes that are free where they are needed."""

    @abc.abstractmethod
    def publish(self) -> None:
        """Put the store in its place, and remove the folder."""

    @abc.abstractmethod
    def remove(self) -> None:
        """Remove the folder while it is held, and what it holds of the store."""

    def check_target(self, target: AnyPath, *, overwrite: bool) -> None:
        """Check the target while the folder is held, and keep what is done in it.

        Parameters
        ----------
        target : Path or ObjectPath
        overwrite : bool

        Raises
        ------
        DatasetError
            As `dtopk_storage.publishing.check_target` does.
        """
        try:
            check_target(target, overwrite=overwrite)
        except DatasetError as error:
            if not self.has_features:
                self.remove()
                raise
            raise DatasetError(
                f"{error.message} What is done is kept in {str(self.path)!r}: once nothing is in "
                f"its way, the same command goes on with it.",
                advice=error.advice,
            ) from error


def open_working_folder(target: AnyPath) -> WorkingFolder:
    """Return the working folder of a store to be; writes nothing.

    Parameters
    ----------
    target : Path or ObjectPath
    """
    if isinstance(target, ObjectPath):
        return _FolderInStore(target)
    return _FolderOnDisk(target)


def _held_by_another(path: AnyPath, advice: str = "") -> DatasetError:
    return DatasetError(
        f"{str(path)!r} must have one writer, but another ingest is at work in it. "
        f"Wait for its end, or choose another path.{advice}"
    )


class _FolderOnDisk(WorkingFolder):
    """A folder beside the store, which has all of it until it is renamed into its place."""

    def __init__(self, target: Path) -> None:
        self._target = target
        self._path = target.with_name(target.name + WORK_SUFFIX)

    @property
    def path(self) -> Path:
        return self._path

    @property
    def store(self) -> Path:
        return self._path / NEW

    @property
    def buckets(self) -> Path:
        return self._path / _BUCKETS

    @property
    def has_features(self) -> bool:
        return self.store.exists()

    @contextlib.contextmanager
    def hold(self) -> Iterator[None]:
        try:
            with exclusive_lock(self._path / LOCK):
                restore_replaced(self._target, held=self._path)
                yield
        except BlockingIOError as error:
            raise _held_by_another(self._path) from error

    def check_held(self) -> None:
        """Do nothing: the kernel sees to it."""

    def recover(self) -> None:
        for left in self._path.parent.glob(f"{glob.escape(self._path.name)}{_REMOVED}*"):
            shutil.rmtree(left, ignore_errors=True)
        delete_leftovers(self._target)
        restore_replaced(self._target)
        if self._path / REPLACED in find_replaced(self._target):
            with self.hold():
                pass  # another ingest is about to put its store there, or has just been killed

    def begin(self) -> None:
        """Do nothing: the target stays until the store is whole."""

    def count_needed(self, features_bytes: int, shuffle: bool) -> int:
        return features_bytes * (2 if shuffle else 1)

    def count_free(self) -> int:
        return shutil.disk_usage(self._path).free

    def publish(self) -> None:
        publish(self.store, self._target)
        self.remove()

    def remove(self) -> None:
        # Renamed first: an ingest that comes now makes a new folder, and never enters one that is
        # being removed.
        removed = self._path.with_name(f"{self._path.name}{_REMOVED}{os.getpid()}")
        self._path.rename(removed)
        # Another ingest may be deleting it too.
        shutil.rmtree(removed, ignore_errors=True)


class _FolderInStore(WorkingFolder):
    """A plan beside the store, in an object store, where the store is written in its place."""

    def __init__(self, target: ObjectPath) -> None:
        self._target = target
        self._path = target.with_name(target.name + WORK_SUFFIX)
        self._lock = RunLock(self._path.url)

    @property
    def path(self) -> ObjectPath:
        return self._path

    @property
    def store(self) -> ObjectPath:
        return self._target

    @functools.cached_property
    def buckets(self) -> Path:
        """A folder that the same user finds again on the same machine."""
        key = hashlib.sha256(f"{os.getuid()} {self._target.url}".encode()).hexdigest()[:16]
        folder = Path(tempfile.gettempdir(), f"dtopk-ingest-{key}")
        folder.mkdir(mode=0o700, exist_ok=True)
        if folder.stat().st_uid != os.getuid():
            raise DatasetError(f"{str(folder)!r} must be yours, but it is another user's.")
        return folder / _BUCKETS

    @property
    def has_features(self) -> bool:
        return (self._path / PLAN).is_file()

    @contextlib.contextmanager
    def hold(self) -> Iterator[None]:
        try:
            self._lock.__enter__()
        except InUseError as error:
            raise _held_by_another(self._path, error.advice) from error
        try:
            yield
        finally:
            self._lock.__exit__()

    def check_held(self) -> None:
        if self._lock.lost:
            raise _held_by_another(self._path)

    def recover(self) -> None:
        """Do nothing: objects are not renamed."""

    def begin(self) -> None:
        self._remove_buckets()
        delete_store(self._target)

    def count_needed(self, features_bytes: int, shuffle: bool) -> int:
        return features_bytes if shuffle else 0

    def count_free(self) -> int:
        return shutil.disk_usage(self.buckets.parent).free

    def publish(self) -> None:
        self._remove_plan()

    def remove(self) -> None:
        if self._lock.lost:
            # What is there is another ingest's.
            return
        if self.has_features and not is_store(self._target):
            delete_store(self._target)
        self._remove_plan()

    def _remove_plan(self) -> None:
        self._remove_buckets()
        # Nothing counts without the plan, and with it all that it names must be there.
        (self._path / PLAN).unlink(missing_ok=True)
        for entry in self._path.iterdir():
            if entry.name != LOCK:
                entry.unlink(missing_ok=True)

    def _remove_buckets(self) -> None:
        shutil.rmtree(self.buckets.parent, ignore_errors=True)
        del self.buckets
