"""The names beside a store while another takes its place, and its way back from there."""

import contextlib
import glob
import itertools
import os
import re
from collections.abc import Iterator
from pathlib import Path

from dtopk_storage.files import NO_FILE_LOCKS, exclusive_lock, sync_folder
from dtopk_storage.paths import AnyPath, delete_tree

WORK_SUFFIX = ".partial"
"""After the name of a store: the folder in which an ingest makes it."""
WRITING_SUFFIX = ".writing-"
"""After it: the folder in which another writer makes it; the process's number follows."""
NEW = "store"
"""Name in either of the new store, until it is renamed into its place."""
REPLACED = "replaced"
"""Name in either of an earlier store, from when it makes room until the new one is in place."""
LOCK = "lock"
"""Name in either of a file that the writer holds locked as long as it is at work."""


def find_replaced(path: AnyPath) -> list[Path]:
    """List earlier stores that were to be replaced by one that is not there.

    The new store lies beside such a one still: without it, it has been in its place.

    Parameters
    ----------
    path : Path or ObjectPath
        Of the store; where something stands no replacement was broken off.
    """
    if not isinstance(path, Path) or path.exists():
        return []
    name = glob.escape(path.name)
    return sorted(
        left
        for pattern in (f"{name}{WORK_SUFFIX}/{REPLACED}", f"{name}{WRITING_SUFFIX}*/{REPLACED}")
        for left in path.parent.glob(pattern)
        if left.with_name(NEW).exists()
    )


def put_back(replaced: Path, path: Path) -> None:
    """Put an earlier store back into its place, if it is not there and nothing else is.

    Parameters
    ----------
    replaced : Path
        Where it is, in a folder that the caller holds.
    path : Path
        Where it was.
    """
    if replaced.exists() and not path.exists():
        replaced.rename(path)
        sync_folder(replaced.parent)
        sync_folder(path.parent)


def restore_replaced(path: AnyPath, *, held: Path | None = None) -> None:
    """Put a store back whose replacement was broken off between the two renames of `publish`.

    A writer that lives is about to do the second of them, and is left alone.

    Parameters
    ----------
    path : Path or ObjectPath
        Where the store was; nothing is done where something stands.
    held : Path or None
        A writer's folder that the caller holds.
    """
    for left in find_replaced(path):
        with contextlib.ExitStack() as stack:
            if left.parent != held and not _take_over(left.parent, stack):
                continue
            put_back(left, Path(str(path)))


def _take_over(folder: Path, stack: contextlib.ExitStack) -> bool:
    """Hold a writer's folder until the stack is closed, if the writer is known to be gone."""
    try:
        stack.enter_context(exclusive_lock(folder / LOCK, makes_folder=False))
    except (BlockingIOError, FileNotFoundError, PermissionError):
        return False
    except OSError as error:
        if error.errno not in NO_FILE_LOCKS:
            raise
        return False
    return True


def delete_leftovers(path: Path) -> None:
    """Delete folders of writers that were killed, but for a store that was not put back.

    Parameters
    ----------
    path : Path
        Of the store that they wrote.
    """
    of_writer = re.compile(re.escape(path.name + WRITING_SUFFIX) + r"\d+(-\d+)?")
    for folder in path.parent.glob(f"{glob.escape(path.name)}{WRITING_SUFFIX}*"):
        if of_writer.fullmatch(folder.name) and _has_only_writers_files(folder):
            with contextlib.ExitStack() as stack:
                if _take_over(folder, stack) and folder / REPLACED not in find_replaced(path):
                    delete_tree(folder)


def _has_only_writers_files(folder: Path) -> bool:
    try:
        return {each.name for each in folder.iterdir()} <= {NEW, REPLACED, LOCK}
    except OSError:  # a file, or gone by now
        return False


@contextlib.contextmanager
def hold_writers_folder(path: Path) -> Iterator[Path]:
    """Make and hold a folder of a writer's own, with nothing in it but its lock.

    Parameters
    ----------
    path : Path
        Of the store to be.

    Yields
    ------
    Path
    """
    name = f"{path.name}{WRITING_SUFFIX}{os.getpid()}"
    for number in itertools.count(1):
        folder = path.with_name(name if number == 1 else f"{name}-{number}")
        with contextlib.ExitStack() as stack:
            try:
                stack.enter_context(exclusive_lock(folder / LOCK))
            except OSError as error:
                # Another writer of this process has it, or one of this number on another machine.
                if isinstance(error, BlockingIOError):
                    continue
                if error.errno not in NO_FILE_LOCKS:
                    raise
            if not (folder / NEW).exists() and not (folder / REPLACED).exists():
                yield folder
                return
