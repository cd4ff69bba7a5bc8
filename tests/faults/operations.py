"""The commands that schedules disturb: what each needs, how it is called, and what it leaves."""

import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from dtopk_storage.objects import ObjectPath
from dtopk_storage.paths import AnyPath, delete_tree
from tests.faults.problem import (
    CHUNK_MIB,
    IN_S3,
    LBFGS,
    ON_CLUSTER,
    SMOOTH_HINGE,
    SOFTMAX,
    TEST_FRACTION,
    Training,
    format_job,
    format_sweep,
)

STORE, RUN = "store", "run"


@dataclass(frozen=True, kw_only=True)
class Place:
    """Where an operation works."""

    folder: Path
    """On this machine, with sources and job."""
    out: AnyPath
    """Where all that is harmed lies: store, run and predictions."""
    scheduler: str = ""
    """File of the scheduler."""

    @property
    def job(self) -> Path:
        """The job file."""
        return self.folder / "job.toml"

    def list_files(self) -> dict[str, AnyPath]:
        """List all files below `out`, by their names from there on."""
        if isinstance(self.out, ObjectPath):
            return {name: self.out.joinpath(*name.split("/")) for name in sorted(self.out.find())}
        # Unlike rglob it passes over folders that are deleted meanwhile.
        found = [Path(folder, name) for folder, _, names in os.walk(self.out) for name in names]
        return {str(path.relative_to(self.out)): path for path in sorted(found)}

    def read_all(self) -> dict[str, bytes]:
        """Read all files below `out`, by their names from there on."""
        return {name: path.read_bytes() for name, path in self.list_files().items()}

    def restore(self, files: dict[str, bytes]) -> None:
        """Have these files below `out`, and no others."""
        if isinstance(self.out, ObjectPath):
            delete_tree(self.out)
        else:
            for entry in self.out.iterdir():
                if entry.is_dir():
                    shutil.rmtree(entry)
                else:
                    entry.unlink()
        for name, body in files.items():
            path = self.out.joinpath(*name.split("/"))
            if isinstance(path, Path):
                path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(body)


@dataclass(frozen=True, kw_only=True)
class Operation:
    """A command of dtopk."""

    command: Callable[[Place], list[str]]
    """Its arguments."""
    leaves: str
    """'store', 'run', 'sweep' or 'predictions'."""
    target: str
    """Name below `Place.out` of what it leaves."""
    before: "tuple[Callable[[Place], list[str]], ...]" = ()
    """Commands that are run, unharmed, before it."""
    training: Training | None = None
    """What its job trains."""
    place: str = "disk"
    """'disk', 's3' or 'cluster'."""
    is_done: str
    """A pattern: what it says when it is called again and all is done; `_NEVER`: it begins anew."""

    def write_job(self, place: Place) -> None:
        """Write the job file, if it has one."""
        store = f"{place.out}/{STORE}"
        if self.training is not None:
            place.job.write_text(format_job(store, self.training, place.scheduler))
        elif self.leaves == "sweep":
            place.job.write_text(format_sweep(store))


def _ingest(source: str, *options: str) -> Callable[[Place], list[str]]:
    def command(place: Place) -> list[str]:
        return [
            "ingest", str(place.folder / source), f"{place.out}/{STORE}",
            "--split", f"test={TEST_FRACTION}", "--chunk-mib", str(CHUNK_MIB), *options,
        ]  # fmt: skip

    return command


def _train(place: Place) -> list[str]:
    return ["train", str(place.job), "--run-dir", f"{place.out}/{RUN}"]


def _train_shortly(place: Place) -> list[str]:
    return [*_train(place), "--set", "solver.max_epochs=4"]


def _resume(place: Place) -> list[str]:
    return ["train", "--resume", f"{place.out}/{RUN}", "--set", "solver.max_epochs=60"]


def _sweep(place: Place) -> list[str]:
    return ["sweep", str(place.job), "--run-dir", f"{place.out}/{RUN}"]


def _predict(target: str, *options: str) -> Callable[[Place], list[str]]:
    def command(place: Place) -> list[str]:
        return ["predict", *(f"{place.out}/{name}" for name in (RUN, STORE, target)), *options]

    return command


_FROM_NPZ = _ingest("rows.npz")
_ENDED = "holds a run that has ended|must be above the .* epochs|whose run has ended"
_EXISTS = "exists already"
_NEVER = r"(?!)"

OPERATIONS: dict[str, Operation] = {
    "ingest npz": Operation(command=_FROM_NPZ, leaves="store", target=STORE, is_done=_EXISTS),
    "ingest csv": Operation(
        command=_ingest("rows.csv", "--shuffle", "--compression", "zstd", "--overwrite"),
        leaves="store", target=STORE, before=(_FROM_NPZ,), is_done=_NEVER,
    ),
    "train": Operation(
        command=_train, leaves="run", target=RUN, before=(_FROM_NPZ,), training=SMOOTH_HINGE,
        is_done=_ENDED,
    ),
    "train lbfgs": Operation(
        command=_train, leaves="run", target=RUN, before=(_FROM_NPZ,), training=LBFGS,
        is_done=_ENDED,
    ),
    "resume": Operation(
        command=_resume, leaves="run", target=RUN, before=(_FROM_NPZ, _train_shortly),
        training=SOFTMAX, is_done=_ENDED,
    ),
    "sweep": Operation(
        command=_sweep, leaves="sweep", target=RUN, before=(_FROM_NPZ,), is_done=_NEVER
    ),
    "predict csv": Operation(
        command=_predict("top.csv"), leaves="predictions", target="top.csv",
        before=(_FROM_NPZ, _train), training=SMOOTH_HINGE, is_done="must be a new path",
    ),
    "predict zarr": Operation(
        command=_predict("top.zarr", "--overwrite"), leaves="predictions", target="top.zarr",
        before=(_FROM_NPZ, _train, _predict("top.zarr")), training=SMOOTH_HINGE, is_done=_NEVER,
    ),
    "train on cluster": Operation(
        command=_train, leaves="run", target=RUN, before=(_FROM_NPZ,), training=ON_CLUSTER,
        place="cluster", is_done=_ENDED,
    ),
    "ingest to s3": Operation(
        command=_FROM_NPZ, leaves="store", target=STORE, place="s3", is_done=_EXISTS
    ),
    "train in s3": Operation(
        command=_train, leaves="run", target=RUN, before=(_FROM_NPZ,), training=IN_S3,
        place="s3", is_done=_ENDED,
    ),
}  # fmt: skip
"""By the names of `tests.faults.schedule.FAULTS`."""
