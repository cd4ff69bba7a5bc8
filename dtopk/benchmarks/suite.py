"""Go through shapes, objectives and solvers, and keep what each of them reached."""

import logging
import os
import platform
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path

from dtopk.benchmarks.measure import Run, run_in_process
from dtopk.benchmarks.peers import PEERS, REFERENCE, Task, find_peer
from dtopk.benchmarks.problems import OBJECTIVES, ProblemData, Shape
from dtopk.benchmarks.results import Results, Row, Settings
from dtopk.engine.memory import free_memory

logger = logging.getLogger(__name__)

TOL = 1e-3
"""Relative primal suboptimality that solvers are brought to."""
_BOUND_SHARE = 0.1
"""Of the tolerance, that a lower bound may be from the optimum."""
_REFERENCE_LIMITS = 4
"""Limits of time that the certified optimum may take."""
_HOPELESS = 1.5
"""A run is not started if, in proportion to the one before, it would take so many limits."""
_CPU_INFO = Path("/proc/cpuinfo")


@dataclass(frozen=True, kw_only=True)
class SuiteOptions:
    """What is measured."""

    shapes: tuple[Shape, ...]
    """In this order."""
    peers: tuple[str, ...] = tuple(PEERS)
    """Names, as :func:`find_peer` takes them, in this order."""
    C: float = 1.0
    """Weight of the loss."""
    time_limit_s: float = 60.0
    """Seconds after which a run is ended."""
    threads: int = 0
    """That every solver may use; 0: all cores."""
    again: bool = False
    """Whether to measure anew what the folder has already, lower bounds too."""

    @property
    def settings(self) -> Settings:
        """What the results share."""
        return Settings(
            C=self.C,
            tol=TOL,
            time_limit_s=self.time_limit_s,
            threads=self.threads or os.cpu_count() or 1,
            machine=describe_machine(),
        )


def run_suite(options: SuiteOptions, folder: Path) -> Results:
    """Measure what the folder's results.json has not yet, and write it there row by row.

    Parameters
    ----------
    options : SuiteOptions
    folder : Path
        Made if it is not there. The rows of a shape lie in it while they are trained on.

    Returns
    -------
    Results

    Raises
    ------
    ValueError
        If a solver is unknown, or the folder has results of other settings.
    """
    for name in options.peers:
        find_peer(name)
    folder.mkdir(parents=True, exist_ok=True)
    results = Results.load(folder, options.settings)
    for shape in options.shapes:
        _measure_shape(shape, options, results, folder)
    return results


def describe_machine() -> str:
    """Name the processor and count the cores of this machine."""
    model = platform.machine()
    if _CPU_INFO.exists():
        lines = _CPU_INFO.read_text().splitlines()
        names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
        model = names[0] if names else model
    return f"{model}, {os.cpu_count()} cores"


def _measure_shape(shape: Shape, options: SuiteOptions, results: Results, folder: Path) -> None:
    wanted = [
        (objective, peer)
        for objective in OBJECTIVES
        for peer in options.peers
        if objective in find_peer(peer).objectives and _fits_classes(objective, shape)
    ]
    wanted = [
        (objective, peer)
        for objective, peer in wanted
        if options.again
        or not _is_measured(
            results.rows.get((shape.name, objective, peer)), find_peer(peer).installed_version()
        )
    ]
    if not wanted:
        return
    results.titles[shape.name] = shape.title
    with tempfile.TemporaryDirectory(prefix="rows-", dir=folder) as data:
        logger.info("%s", shape.title)
        ProblemData.write(shape, Path(data))
        measurement = _Measurement(shape, options, results, folder, Path(data))
        for objective, peer in wanted:
            measurement.measure(objective, peer)


def _is_measured(row: Row | None, installed: str) -> bool:
    """Tell whether a row has a result of the version that is installed.

    That a solver is not there, or has failed, is none. What was measured where it is installed
    stays, as here nothing can take its place.
    """
    if row is None or not row.version or installed not in ("", row.version):
        return False
    return not row.runs or row.runs[-1].status != "failed"


def _fits_classes(objective: str, shape: Shape) -> bool:
    return int(OBJECTIVES[objective].parameters.get("k", 1)) < shape.n_classes


class _Measurement:
    """The solvers of one shape, and where their results go."""

    def __init__(
        self, shape: Shape, options: SuiteOptions, results: Results, folder: Path, data: Path
    ) -> None:
        self._shape = shape
        self._settings = options.settings
        self._again = options.again
        self._references: dict[str, Run] = {}
        """By objective: those of this measurement, whether they gave a bound or not."""
        self._results = results
        self._folder = folder
        self._data = data
        self._memory = shape.memory_limit or free_memory()

    def measure(self, objective: str, peer: str) -> None:
        """Measure one row and keep it."""
        row = self._row(objective, peer)
        self._results.rows[row.key] = row
        self._results.save(self._folder)
        logger.info("%s", _describe(row, self._settings.tol))

    def _row(self, objective: str, name: str) -> Row:
        peer = find_peer(name)
        version = peer.installed_version()
        needed = peer().bytes_needed(self._shape)
        refused = needed if needed > self._memory else 0
        row = Row(
            shape=self._shape.name,
            objective=objective,
            peer=name,
            version=version,
            bytes_needed=refused,
        )
        if not version or refused:
            return row
        # A solver of one run proves by itself where it is.
        bound = None
        if peer.effort.runs > 1:
            reference = self._reference(objective)
            message = self._why_no_bound(reference)
            if message:
                return replace(row, runs=(Run(effort=None, status="failed", message=message),))
            bound = reference.facts["dual_value"]
        runs: list[Run] = []
        for effort in peer.effort.values():
            runs.append(self._run(name, objective, effort))
            row = replace(row, runs=tuple(runs), bound=bound)
            if runs[-1].status != "done" or row.reached(self._settings.tol) is not None:
                break
            if peer.effort.in_proportion and self._is_hopeless(runs[-1], peer.effort.factor):
                break
        return replace(row, default=self._default(name, objective, row))

    def _is_hopeless(self, last: Run, factor: float) -> bool:
        assert last.seconds is not None
        return last.seconds * factor > _HOPELESS * self._settings.time_limit_s

    def _default(self, name: str, objective: str, row: Row) -> Run:
        """Return the run by the solver's own rule, of those that there are if it is among them."""
        effort = find_peer(name).effort
        done = [run for run in row.runs if run.status == "done"]
        if not done:
            # What its own rule asks for is more than the least that was tried.
            return replace(row.runs[0], effort=None)
        if effort.default is not None:
            for run in done:
                if run.effort == effort.default:
                    return run
            assert done[-1].effort is not None
            if effort.in_proportion and self._is_hopeless(
                done[-1], effort.default / done[-1].effort
            ):
                return Run(effort=None, status="late")
        return self._run(name, objective, None)

    def _reference(self, objective: str) -> Run:
        """Return the run that is to give the lower bound of an objective; it is tried once."""
        if objective in self._references:
            return self._references[objective]
        key = (self._shape.name, objective)
        run = None if self._again else self._results.references.get(key)
        if run is None or self._why_no_bound(run):
            effort = find_peer(REFERENCE).effort.first
            run = self._run(REFERENCE, objective, effort, _REFERENCE_LIMITS)
            if not self._why_no_bound(run):
                self._results.references[key] = run
                self._results.save(self._folder)
        self._references[objective] = run
        return run

    def _why_no_bound(self, reference: Run) -> str:
        """Say why others cannot be measured against a reference; empty: they can."""
        if reference.status != "done":
            return f"no lower bound: {reference.message or 'not in time'}"
        gap = reference.facts["relative_gap"]
        # Of one stopped by time, others would seem farther from the optimum than they are.
        return f"no bound close enough (gap {gap:.0e})" if gap > self._most_gap else ""

    @property
    def _most_gap(self) -> float:
        return _BOUND_SHARE * self._settings.tol

    def _run(self, name: str, objective: str, effort: float | None, n_limits: float = 1.0) -> Run:
        task = Task(
            objective=objective,
            C=self._settings.C,
            shape=self._shape,
            threads=self._settings.threads,
            effort=effort,
            limit_s=n_limits * self._settings.time_limit_s,
        )
        return run_in_process(name, task, self._data)


def _describe(row: Row, tol: float) -> str:
    """Say in one line what came of a row."""
    reached = row.reached(tol)
    if not row.version:
        what = "is not installed"
    elif row.bytes_needed:
        what = f"needs {row.bytes_needed:,} bytes"
    elif reached is not None:
        what = f"{reached.seconds:.2f} s"
    else:
        last = row.runs[-1]
        what = f"failed: {last.message}" if last.status == "failed" else "not in time"
    return f"  {row.objective}, {row.peer}: {what}"
