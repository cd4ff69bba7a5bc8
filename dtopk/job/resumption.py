"""Take up a run again that has not reached its tolerance: what must be as it was."""

import dataclasses
import json
from importlib.metadata import version
from typing import Any, TypeVar

from dtopk.job.config import TrainJob
from dtopk.job.files import flatten_job, load_job
from dtopk.job.run_folder import Checkpoint, RunFolder, RunRecord
from dtopk.job.verification import read_result
from dtopk.losses import Loss
from dtopk_storage import FeatureStore
from dtopk_storage.paths import PathLike, as_path

Job = TypeVar("Job", bound=TrainJob)

_FREE_KEYS = frozenset(
    {
        "data.store",  # known again by its checksum
        "data.validation", "data.threshold_metric", "data.evaluate",
        "solver.tol", "solver.max_epochs", "solver.time_limit_s",
        "output.run_dir", "output.save_dual",
    }
)  # fmt: skip
_FREE_SECTIONS = frozenset({"early_stopping", "resources", "cluster", "submit", "tracking"})


def store_checksum(store: FeatureStore) -> str:
    """Return the checksum of a store's manifest, by which its rows are known again."""
    return str(store.manifest.to_attributes()["checksum"])


def check_resumable(path: PathLike) -> Checkpoint | None:
    """Refuse a folder in which there is no run to go on with.

    Parameters
    ----------
    path : path of a run folder, or its address in an object store

    Returns
    -------
    Checkpoint or None
        How far the run is; None if it was asked to stop before its first commit, and starts again.

    Raises
    ------
    ValueError
    """
    folder = RunFolder(path=as_path(path, name="folder to go on in"))
    if not folder.record.is_file():
        found = "where there is none"
    else:
        checkpoint = folder.find_checkpoint()
        if checkpoint is not None or folder.starts_again():
            return checkpoint
        if folder.result.is_file():
            folder.delete_dead_lock()
        found = (
            "whose run has ended. To train on from its duals, take another folder and "
            f"--set solver.warm_start={folder.quoted}"
            if folder.result.is_file()
            else "whose run was killed before its first commit. Start it again with its job file"
        )
    raise ValueError(
        f"folder to go on in must hold a run with a state, got {str(folder.path)!r}, {found}."
    )


def keep_resolved(job: TrainJob, folder: RunFolder) -> TrainJob:
    """Take the numbers that the run began with, where the job leaves them to be chosen.

    Parameters
    ----------
    job : TrainJob
    folder : RunFolder
        Holds a run with a state.
    """
    return keep_cluster(job, load_job(folder.job))


def keep_cluster(job: Job, before: TrainJob) -> Job:
    """Take the numbers that a run or a sweep began with, where the job leaves them open.

    Parameters
    ----------
    job : TrainJob
    before : TrainJob
        As it was resolved.
    """
    cluster = dataclasses.replace(
        job.cluster,
        partitions=job.cluster.partitions or before.cluster.partitions,
        threads_per_partition=(
            job.cluster.threads_per_partition or before.cluster.threads_per_partition
        ),
    )
    return dataclasses.replace(job, cluster=cluster)


def check_same_run(
    job: TrainJob, store: FeatureStore, folder: RunFolder, record: RunRecord, done: Checkpoint
) -> None:
    """Refuse a job that would not go on with the run in the folder, but begin another one.

    Parameters
    ----------
    job : TrainJob
        As resolved, `keep_resolved` done, whatever the workers that are there now.
    store : FeatureStore
    folder : RunFolder
    record : RunRecord
    done : Checkpoint

    Raises
    ------
    ValueError
        With the values that differ.
    """
    if record.version != version("dtopk"):
        raise ValueError(
            f"dtopk must be {record.version} to go on with the run in {str(folder.path)!r}, which "
            f"that version began, got {version('dtopk')}. Install it, or train in another folder "
            "with --run-dir."
        )
    advice = "Take the job as it was, or another folder with --run-dir."
    before, now = flatten_job(load_job(folder.job)), flatten_job(job)
    differing = [
        f"{key} = {now[key]!r} (was {before[key]!r})"
        for key in now
        if now[key] != before[key] and _must_stay(key)
    ]
    threads = job.cluster.threads_per_partition
    if threads not in (0, record.threads):
        differing.append(f"cluster.threads_per_partition = {threads} (was {record.threads})")
    if differing:
        raise ValueError(
            f"job must be that of the run in {str(folder.path)!r}, which is taken up again, but "
            f"for what may differ, got {', '.join(differing)}. What may differ: when to stop, "
            f"what to evaluate, [output], [tracking], [resources], [submit], and [cluster] but "
            f"partitions and threads_per_partition. {advice}"
        )
    if store_checksum(store) != record.store_checksum:
        raise ValueError(
            f"data.store must be the store that the run in {str(folder.path)!r} began with, got "
            f"another one in {store.path!r}: the checksums of their manifests differ. {advice}"
        )
    has_stopped = _is_complete(folder) and now["solver.tol"] <= before["solver.tol"]
    if job.solver.max_epochs < done.epochs + has_stopped:
        raise ValueError(
            f"solver.max_epochs must be above the {done.epochs} epochs that the run in "
            f"{str(folder.path)!r} has done for it to go on, got {job.solver.max_epochs}."
        )


def plain_parameters(loss: Loss) -> dict[str, Any]:
    """Return a loss's parameters as JSON gives them back."""
    parameters: dict[str, Any] = json.loads(json.dumps(loss.describe()))
    return parameters


def check_same_loss(loss: Loss, folder: RunFolder, record: RunRecord) -> None:
    """Refuse to go on with label costs that are others, in the file of the same name.

    Parameters
    ----------
    loss : Loss
    folder : RunFolder
    record : RunRecord

    Raises
    ------
    ValueError
    """
    before, now = record.loss.get("label_cost"), plain_parameters(loss).get("label_cost")
    if before != now:
        raise ValueError(
            f"model.label_cost must hold the costs that the run in {str(folder.path)!r} began "
            f"with, {before}, got {now}. Take them, or another folder with --run-dir."
        )


def _is_complete(folder: RunFolder) -> bool:
    """Tell whether the run has stopped with all that it leaves, rather than been killed in that."""
    return folder.result.is_file() and read_result(folder).get("complete", True)


def _must_stay(key: str) -> bool:
    if key == "cluster.partitions":
        return True
    return key not in _FREE_KEYS and key.partition(".")[0] not in _FREE_SECTIONS
