"""The results of a suite, and their file, results.json."""

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from dtopk.atomic import write_text
from dtopk.benchmarks.measure import Run

FILE_NAME = "results.json"
VERSION = 1


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What all results of a folder share."""

    C: float
    """Weight of the loss."""
    tol: float
    """Relative primal suboptimality that is to be reached."""
    time_limit_s: float
    """Seconds after which a run is ended."""
    threads: int
    """That every solver may use."""
    machine: str
    """Processor and cores."""


@dataclass(frozen=True, kw_only=True)
class Row:
    """What came of one solver on one problem."""

    shape: str
    """Name of the shape."""
    objective: str
    """Name of the objective."""
    peer: str
    """Name of the solver."""
    version: str
    """Of its package; empty: it is not installed."""
    bytes_needed: int = 0
    """If above 0, the run was refused: training takes more than the memory that there is."""
    runs: tuple[Run, ...] = ()
    """In the order of their effort, until one reached the tolerance or the limit of time."""
    default: Run | None = None
    """The run that stops by the solver's own rule, dtopk's by its certificate; None: there is none,
    as the solver is not installed or was refused."""
    bound: float | None = None
    """Lower bound of the objective that the row is measured against; None for dtopk, which proves
    its own."""

    @property
    def key(self) -> tuple[str, str, str]:
        """What tells rows apart."""
        return self.shape, self.objective, self.peer

    def suboptimality(self, run: Run | None) -> float | None:
        """Return how far a run's objective is above the bound, relative to it.

        ``(P(W) - D) / D`` is at least the relative primal suboptimality, as D is at most the
        optimum. A run that has a certificate of its own is taken by its relative gap.
        """
        if run is None or run.primal is None:
            return None
        if self.bound is None:
            return run.facts.get("relative_gap")
        return run.primal / self.bound - 1

    def reached(self, tol: float) -> Run | None:
        """Return the first run whose suboptimality is at most `tol`, or None."""
        for run in self.runs:
            distance = self.suboptimality(run)
            if distance is not None and distance <= tol:
                return run
        return None


@dataclass
class Results:
    """All rows of a folder, by shape, objective and solver, and the references."""

    settings: Settings
    """What they share."""
    titles: dict[str, str] = field(default_factory=dict)
    """Shapes in words, by name."""
    references: dict[tuple[str, str], Run] = field(default_factory=dict)
    """The runs that gave the lower bounds, by names of shape and objective."""
    rows: dict[tuple[str, str, str], Row] = field(default_factory=dict)
    """By their keys."""

    def save(self, folder: Path) -> None:
        """Write results.json, whole or not at all."""
        content = {
            "version": VERSION,
            "settings": asdict(self.settings),
            "titles": self.titles,
            "references": [
                {"shape": shape, "objective": objective, "run": asdict(run)}
                for (shape, objective), run in self.references.items()
            ],
            "rows": [asdict(row) for row in self.rows.values()],
        }
        write_text(folder / FILE_NAME, json.dumps(content, indent=1) + "\n")

    @classmethod
    def load(cls, folder: Path, settings: Settings) -> "Results":
        """Read what a folder has, or begin with nothing.

        Parameters
        ----------
        folder : Path
        settings : Settings
            Of what is to be added.

        Returns
        -------
        Results

        Raises
        ------
        ValueError
            If the file is not one of this version, or its results have other settings.
        """
        path = folder / FILE_NAME
        if not path.exists():
            return cls(settings)
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
            found = _read(content)
        except (KeyError, TypeError, json.JSONDecodeError) as error:
            raise ValueError(
                f"{str(path)!r} must hold the results of a suite, version {VERSION}, but does not: "
                f"{error!r}. Choose another folder."
            ) from error
        for name, value in asdict(settings).items():
            before = getattr(found.settings, name)
            if before != value:
                raise ValueError(
                    f"{name} must be {before!r}, as of the results in {str(path)!r}, got "
                    f"{value!r}. Choose another folder."
                )
        return found


def _read(content: Any) -> Results:
    if content["version"] != VERSION:
        raise KeyError(f"version {content['version']!r}")
    results = Results(Settings(**content["settings"]), titles=content["titles"])
    for entry in content["references"]:
        results.references[entry["shape"], entry["objective"]] = Run(**entry["run"])
    for entry in content["rows"]:
        runs = tuple(Run(**run) for run in entry.pop("runs"))
        default = entry.pop("default")
        row = Row(**entry, runs=runs, default=Run(**default) if default else None)
        results.rows[row.key] = row
    return results
