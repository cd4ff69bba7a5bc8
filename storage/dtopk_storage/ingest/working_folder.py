"""The folder that an ingest works in: held by one, kept as long as it helps, and removed."""

import contextlib
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from dtopk_storage.errors import DatasetError
from dtopk_storage.files import exclusive_lock
from dtopk_storage.publishing import check_target

STORE = "store"
"""Folder of the store to be, inside the working folder."""


@contextlib.contextmanager
def hold_folder(work: Path) -> Iterator[None]:
    """Hold the working folder, so that no chunk has two writers.

    Parameters
    ----------
    work : Path
        Made if it is not there.

    Raises
    ------
    DatasetError
        Another ingest holds it.
    """
    try:
        with exclusive_lock(work / "lock"):
            yield
    except BlockingIOError as error:
        raise DatasetError(
            f"{str(work)!r} must have one writer, but another ingest is at work in it. "
            f"Wait for its end, or choose another path."
        ) from error


def check_target_again(work: Path, target: Path, *, overwrite: bool) -> None:
    """Check the target while the working folder is held, and keep what is done in it.

    Parameters
    ----------
    work, target : Path
    overwrite : bool

    Raises
    ------
    DatasetError
        As `check_target` does.
    """
    try:
        check_target(target, overwrite=overwrite)
    except DatasetError as error:
        if not (work / STORE).exists():
            remove_folder(work)
            raise
        raise DatasetError(
            f"{error.message} What is done is kept in {str(work)!r}: once nothing is in its way, "
            f"the same command goes on with it.",
            advice=error.advice,
        ) from error


def remove_folder(work: Path) -> None:
    """Remove the working folder while it is held.

    Renamed first: an ingest that comes now makes a new folder, and never enters one that is
    being removed.

    Parameters
    ----------
    work : Path
    """
    removed = work.with_name(f"{work.name}.removed-{os.getpid()}")
    work.rename(removed)
    shutil.rmtree(removed)
