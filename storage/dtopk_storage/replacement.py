"""The names beside a store while another takes its place, and its way back from there."""

import glob
from pathlib import Path

from dtopk_storage.files import sync_folder
from dtopk_storage.paths import AnyPath

WORK_SUFFIX = ".partial"
"""After the name of a store: the folder in which an ingest makes it."""
WRITING_SUFFIX = ".writing-"
"""After it: the folder in which another writer makes it; the process's number follows."""
REPLACED = "replaced"
"""Name in either of an earlier store, from when it makes room until the new one is in place."""


def find_replaced(path: AnyPath) -> list[Path]:
    """List earlier stores that were to be replaced by one that is not there.

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
    )


def restore_replaced(path: AnyPath) -> None:
    """Put a store back whose replacement was broken off between the two renames of `publish`.

    Parameters
    ----------
    path : Path or ObjectPath
        Where the store was; nothing is done where something stands.
    """
    for left in find_replaced(path)[:1]:
        left.rename(str(path))
        sync_folder(left.parent)
        sync_folder(left.parent.parent)
