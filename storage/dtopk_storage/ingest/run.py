"""The run of an ingest, from the source to the store in its place."""

import contextlib
from collections.abc import Iterator
from typing import Any

from dtopk_storage.errors import DatasetError
from dtopk_storage.files import is_disk_full
from dtopk_storage.ingest.inputs import open_inputs
from dtopk_storage.ingest.making import ProgressCallback, StoreMaking
from dtopk_storage.ingest.options import IngestOptions
from dtopk_storage.ingest.plan import check_unchanged, fingerprint, load_plan
from dtopk_storage.ingest.working_folder import PLAN, WorkingFolder, open_working_folder
from dtopk_storage.paths import AnyPath, PathLike
from dtopk_storage.publishing import check_target
from dtopk_storage.store import FeatureStore
from dtopk_storage.store_opening import is_store, open_store, store_path
from dtopk_storage.wording import format_count


def ingest(
    source: PathLike,
    path: PathLike,
    options: IngestOptions | None = None,
    progress: ProgressCallback | None = None,
) -> FeatureStore:
    """Make a store from a source.

    Two passes: one over the labels, which finds the classes, the splits and the order of the
    rows, and one over the features, which writes the chunks. The work is done in a folder
    beside the store, ``path`` with ``.partial`` after it. When it is broken off, the same
    command goes on after the last whole chunk, and the store is the same to the last byte. In an
    object store the chunks are written in their place, and the manifest last, which makes a store
    of them; the plan is at ``path`` with ``.partial`` after it.

    Memory holds 12 bytes a row, 20 when rows change places, 8 more with weights, a few chunks,
    and two buckets of 128 MiB when shuffling. Of a multilabel store it holds 24 bytes a row and 8
    a label, 40 and 20 when rows change places. Shuffling needs the size of the features on disk
    once more while it works.

    Parameters
    ----------
    source : str, path-like or ObjectPath
        A file or folder on a disk, or a store, which may be in an object store.
    path : str, path-like or ObjectPath
        Of the store to be, which may be in an object store.
    options : IngestOptions or None
    progress : callable or None
        Called with an `IngestProgress` as rows are done.

    Returns
    -------
    FeatureStore

    Raises
    ------
    DatasetError
        Of the source, or for want of room on the disk.
    """
    options = options or IngestOptions()
    origin, target = store_path(source), store_path(path)
    # Taken before anything is read, so that what changes from here on is noticed.
    command = fingerprint(origin, options)
    work = open_working_folder(target)
    work.recover()
    if _is_published(work, target, command):
        with work.hold():
            # If it is not any more, the one that was at work has removed the folder, and this one
            # has made it anew.
            if _is_published(work, target, command) or not work.has_features:
                work.remove()
        return open_store(target)
    check_target(target, overwrite=options.overwrite)
    opened = open_inputs(origin, options)
    with work.hold():
        # Another ingest may have put its store there while this one came to its turn.
        work.check_target(target, overwrite=options.overwrite)
        run = StoreMaking(opened, origin, target, work, options, progress or (lambda _: None))
        plan = load_plan(work.path, command)
        with _keeping_what_helps(work, run):
            run.write(plan or run.plan(command), lambda: check_unchanged(origin, options, command))
        if work.store != target:
            work.check_target(target, overwrite=options.overwrite)
        work.publish()
    return open_store(target)


def _is_published(work: WorkingFolder, target: AnyPath, command: dict[str, Any]) -> bool:
    """Tell whether the same command was killed between putting its store in place and its end."""
    if not ((work.path / PLAN).is_file() and is_store(target)):
        return False
    if work.store != target and work.store.exists():
        return False
    # What another command has begun, or what is no store of this version, is spoken of later.
    with contextlib.suppress(DatasetError):
        plan = load_plan(work.path, command)
        return plan is not None and open_store(target).manifest == plan.manifest
    return False


@contextlib.contextmanager
def _keeping_what_helps(work: WorkingFolder, run: "StoreMaking") -> Iterator[None]:
    """Keep features that are done when the disk failed; remove all when the source is wrong."""
    try:
        yield
    except DatasetError as error:
        # What is wrong in a source changes with it, and then nothing here is of use. What could
        # not be read may be readable again.
        if not (isinstance(error.__cause__, OSError) and run.has_begun):
            work.remove()
        raise
    except OSError as error:
        if not is_disk_full(error):
            raise
        raise DatasetError(
            f"no space is left for {str(work.path)!r}, after "
            f"{format_count(run.rows_done, 'row')} of features. Free some and run the same command "
            f"again: it goes on from there."
        ) from error
