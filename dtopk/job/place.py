"""Where a job works: the store it is given, and the folder that is its own while it works."""

import contextlib
import dataclasses
from collections.abc import Iterator
from typing import TypeVar

from dtopk.job.config import TrainJob
from dtopk.job.run_folder import RunFolder, name_run_folder
from dtopk_storage import FeatureStore, RunLock, open_store
from dtopk_storage.paths import AnyPath, PathLike, as_path

Job = TypeVar("Job", bound=TrainJob)


def open_given(store: FeatureStore | PathLike) -> FeatureStore:
    """Open a store by its absolute path, by which others that do the work see it too.

    Parameters
    ----------
    store : FeatureStore, or the path of one, or its address in an object store
    """
    given = store.path if isinstance(store, FeatureStore) else store
    return open_store(as_path(given, name="data.store").absolute())


def resolve_paths(job: Job, store: FeatureStore) -> tuple[Job, AnyPath]:
    """Put the paths in use into a job: those of the store and of the folder.

    Parameters
    ----------
    job : TrainJob or SweepJob
    store : FeatureStore

    Returns
    -------
    job : TrainJob or SweepJob
    run_dir : Path or ObjectPath
        The folder.
    """
    run_dir = name_run_folder(job.output.run_dir).absolute()
    resolved = dataclasses.replace(
        job,
        data=dataclasses.replace(job.data, store=store.path),
        output=dataclasses.replace(job.output, run_dir=str(run_dir)),
    )
    return resolved, run_dir


@contextlib.contextmanager
def lock_folder(folder: RunFolder) -> Iterator[RunLock]:
    """Have a folder to this process, and leave none where nothing has come into it.

    Parameters
    ----------
    folder : RunFolder

    Yields
    ------
    RunLock
    """
    try:
        with RunLock(str(folder.path)) as lock:
            yield lock
    finally:
        folder.delete_if_empty()
