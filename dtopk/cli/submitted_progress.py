"""How far a submitted run or sweep is, by what it has written."""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dtopk.job.files import load_any_job
from dtopk.job.names import list_settings
from dtopk.job.run_folder import RunFolder
from dtopk.job.sweep_config import SweepJob
from dtopk.job.sweep_folder import SweepFolder
from dtopk.job.sweep_units import Unit, list_units
from dtopk.job.verification import read_result
from dtopk.launch.submit import SubmissionFolder, SubmissionRecord, make_back_end
from dtopk_storage.paths import AnyPath, as_path


@dataclass(frozen=True, kw_only=True)
class RunProgress:
    """How far a run is, by what it has written."""

    epochs: int = 0
    """Epochs done."""
    relative_gap: float | None = None
    """After the last of them."""
    exact: bool = False
    """Whether that is the certified one, rather than an estimate."""
    tol: float = 0.0
    """What was asked for; 0: not known yet."""
    committed: float | None = None
    """When the state was saved last: seconds since 1970."""
    committed_epochs: int = 0
    """Epochs that it holds."""
    finished: bool = False
    """Whether there is a result, and nothing to go on with."""
    result: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    """The result, if there is one."""
    is_known: bool = True
    """Whether the run folder could be read from here."""

    @property
    def certified(self) -> bool:
        """Whether the result is one of a gap within the tolerance."""
        return bool(self.result.get("certified", False))

    def to_dict(self) -> dict[str, Any]:
        """Make a dict of plain values, for JSON."""
        return {
            "epochs": self.epochs if self.is_known else None,
            "relative_gap": self.relative_gap,
            "gap_is_exact": self.exact,
            "tol": self.tol,
        }

    def describe(self) -> str:
        """Say how far it is, for reading."""
        if not self.epochs:
            return "no epoch yet"
        epochs = f"{self.epochs:,} epoch" + "s" * (self.epochs != 1)
        if self.relative_gap is None:
            return epochs
        kind = "exact" if self.exact else "estimated"
        return f"{epochs}, gap {self.relative_gap:.2e} ({kind}; asked {self.tol:g})"

    def describe_commit(self) -> str:
        """Say what the last commit holds."""
        return f"after epoch {self.committed_epochs}"


@dataclass(frozen=True, kw_only=True)
class SweepProgress:
    """How far a sweep is, by what it has written."""

    n_models: int = 0
    """Models that are asked for: one for each setting, or for each setting and fold."""
    n_done: int = 0
    """Models that are trained, and kept."""
    epochs: int = 0
    """Epochs of the next model that are committed; 0: none, or models are trained together."""
    committed: float | None = None
    """When a model was kept last, or a state saved: seconds since 1970."""
    finished: bool = False
    """Whether all of them are done and the best are chosen."""
    certified: bool = False
    """Whether all that are done are within the tolerance."""
    is_known: bool = True
    """Whether the folder could be read from here."""

    def to_dict(self) -> dict[str, Any]:
        """Make a dict of plain values, for JSON."""
        known = self.is_known
        return {
            "models": self.n_models if known else None,
            "models_done": self.n_done if known else None,
            "epochs": self.epochs if known else None,
        }

    def describe(self) -> str:
        """Say how far it is, for reading."""
        done = f"{self.n_done:,} of {self.n_models:,} models"
        return f"{done}, and {self.epochs:,} epochs of the next one" if self.epochs else done

    def describe_commit(self) -> str:
        """Say what the last commit holds."""
        return f"after {self.describe()}"


Progress = RunProgress | SweepProgress
"""How far what was submitted is."""


def read_progress(folder: SubmissionFolder) -> Progress:
    """Read how far the run, or the sweep, of a submission is.

    Parameters
    ----------
    folder : SubmissionFolder
    """
    record = folder.read_record()
    place = _find_place(folder, record)
    job = load_any_job(folder.job) if folder.job.is_file() else None
    if record.command == "sweep":
        if place is None or not isinstance(job, SweepJob):
            return SweepProgress(is_known=False)
        return _read_sweep(SweepFolder(path=place), job)
    if place is None:
        return RunProgress(is_known=False)
    return _read_run(RunFolder(path=place), 0.0 if job is None else job.solver.tol)


def _find_place(folder: SubmissionFolder, record: SubmissionRecord) -> AnyPath | None:
    """Return the folder of the run; None: this machine does not see it."""
    is_elsewhere = make_back_end(record.back_end).is_elsewhere
    if not is_elsewhere and not record.is_far:
        return folder.run
    path = as_path(record.run_dir, name="run folder")
    try:
        # Where a store answers, there is nothing yet.
        return path if path.is_dir() or not isinstance(path, Path) else None
    except (ImportError, OSError, ValueError):  # no credentials for it, or no package
        return None


def _read_run(run: RunFolder, tol: float) -> RunProgress:
    done = run.find_checkpoint()
    result: dict[str, Any] = {}
    if run.result.is_file():
        result = read_result(run)
    history = run.read_history()
    last = history[-1] if history else {"epoch": "0", "relative_gap": "nan", "exact": "False"}
    epochs, gap, exact = int(last["epoch"]), float(last["relative_gap"]), last["exact"] == "True"
    # A run that goes on has the result of its part before.
    if result and result["epochs"] >= epochs:
        epochs, gap, exact = result["epochs"], result["relative_gap"], True
    return RunProgress(
        epochs=epochs,
        relative_gap=gap if epochs else None,
        exact=exact,
        tol=tol,
        committed=None if done is None else done.saved,
        committed_epochs=0 if done is None else done.epochs,
        finished=run.has_ended() and result.get("complete", True),
        result=result,
    )


def _read_sweep(sweep: SweepFolder, job: SweepJob) -> SweepProgress:
    settings, _ = list_settings(job)
    units = list_units(settings, job.sweep.folds)
    found = {unit: sweep.find_result(unit) for unit in units}
    done = [each for each in found.values() if each is not None]
    missing = [unit for unit, result in found.items() if result is None]
    # On workers one is trained after the other.
    next_one = sweep.find_checkpoint(missing[0], job.output.state_url) if missing else None
    anew = [Unit(setting=each, refit=True) for each in settings] if not missing else []
    results = (*done, *map(sweep.find_result, anew))
    # Earlier versions have not noted it.
    ended = [each.ended for each in results if each is not None and each.ended]
    if next_one is not None:
        ended.append(next_one.saved)
    result = sweep.read_result() if sweep.result.is_file() else {}
    return SweepProgress(
        n_models=len(units),
        n_done=len(done),
        epochs=0 if next_one is None else next_one.epochs,
        committed=max(ended, default=None),
        finished=result.get("complete") is True and not missing,
        certified=bool(done) and all(each.certified for each in done),
    )
