"""What the results of a suite say: tables in Markdown, and a figure for each shape."""

from collections.abc import Callable, Sequence
from pathlib import Path

from dtopk.atomic import write_text
from dtopk.benchmarks.measure import Run
from dtopk.benchmarks.peers import PEERS, find_peer
from dtopk.benchmarks.problems import OBJECTIVES
from dtopk.benchmarks.results import Results, Row, Settings
from dtopk.plots import TimeBar, draw_times, save_png

HEADER = (
    "problem", "solver", "s", "by dtopk's", "with", "MB", "default: s", "default: distance",
    "top-1", "top-5",
)  # fmt: skip
TABLE_NAME = "table.md"
_OWN = "dtopk"


def table_rows(results: Results, shape: str) -> list[list[str]]:
    """Lay out the rows of a shape, by objective.

    Parameters
    ----------
    results : Results
    shape : str
        Name of the shape.

    Returns
    -------
    list of lists of str
        In the order of :data:`HEADER`.
    """
    return [_cells(row, results) for row in _rows_of(results, shape)]


def explain(results: Results) -> list[str]:
    """Return sentences on how the results came about, and what must be known to read them."""
    settings = results.settings
    lines = [
        f"{settings.machine}; threads: {settings.threads}; C = {settings.C:g}; no intercept. Every "
        "run in a process of its own; s: seconds of training alone, to a relative distance of "
        f"{settings.tol:g} from a certified lower bound of the optimum; rows are loaded, modules "
        "imported and kernels compiled before.",
        "dtopk stops there by itself, with its certificate. For the others it is the first run "
        "that gets there, their iterations doubled, or their tolerance quartered, from run to run, "
        "and the runs before are not counted: a user would not know when that is.",
        "default: seconds and distance by the solver's own rule for stopping. MB: peak memory less "
        "what was held before training (VmHWM, with the processes it started). top-1 and top-5: on "
        "rows held out, in percent, of the run counted, or else of the last one.",
    ]
    return [*lines, *_bounds(results), *_losses_alone(results), *_notes(results), *_faults(results)]


def write_report(results: Results, folder: Path) -> list[Path]:
    """Write the tables, and a figure of each shape that has times.

    Parameters
    ----------
    results : Results
    folder : Path

    Returns
    -------
    list of Path
        What was written.
    """
    sections = []
    paths = [folder / TABLE_NAME]
    for shape, title in results.titles.items():
        rows = table_rows(results, shape)
        sections += [f"## {title}", "", *_markdown(rows), ""]
        bars = _bars(results, shape)
        if bars:
            path = folder / f"{shape.replace('@', '-')}.png"
            settings = results.settings
            figure = draw_times(
                bars,
                limit_s=settings.time_limit_s,
                xlabel=f"seconds to {settings.tol:g} of the optimum",
                title=f"{title}, C = {settings.C:g}, threads: {settings.threads}",
            )
            save_png(figure, path)
            paths.append(path)
    text = "\n".join([*sections, *(f"{line}\n" for line in explain(results))])
    write_text(paths[0], text)
    return paths


def _rows_of(results: Results, shape: str) -> list[Row]:
    """List the rows of a shape by objective, dtopk's first in each."""
    order = list(OBJECTIVES)
    rows = [row for row in results.rows.values() if row.shape == shape]
    return sorted(rows, key=lambda row: (order.index(row.objective), row.peer != _OWN))


def _cells(row: Row, results: Results) -> list[str]:
    settings = results.settings
    reached = row.reached(settings.tol)
    shown = reached or _last_done(row)
    own = results.rows.get((row.shape, row.objective, _OWN))
    own_run = own.reached(settings.tol) if own else None
    return [
        row.objective,
        find_peer(row.peer).title,
        _time(row, settings),
        _number(reached, lambda run: _ratio(run, own_run) if own_run else ""),
        _number(shown, lambda run: _effort(row, run)),
        _number(shown, lambda run: f"{(run.peak_bytes or 0) / 1e6:.0f}"),
        _number(row.default, lambda run: _seconds(run, settings)),
        _number(row.default, lambda run: _distance(row, run)),
        _number(shown, lambda run: _percent(run, "top_1")),
        _number(shown, lambda run: _percent(run, "top_5")),
    ]


def _time(row: Row, settings: Settings) -> str:
    """Say when the tolerance was reached, or why not."""
    reached = row.reached(settings.tol)
    if not row.version:
        return "not installed"
    if row.bytes_needed:
        return f"needs {row.bytes_needed:,} bytes"
    if reached is None:
        return _why_not(row, settings)
    text = _seconds(reached, settings)
    single = reached.facts.get("single_seconds")
    return text if single is None else f"{text} ({single:.2f})"


def _why_not(row: Row, settings: Settings) -> str:
    last = row.runs[-1]
    if last.status == "failed":
        return "failed"
    done = _last_done(row)
    distance = row.suboptimality(done)
    nearest = "" if distance is None else f" ({distance:.0e} with {_effort(row, done)})"
    return (f"not in {settings.time_limit_s:g} s" if _is_late(row) else "not reached") + nearest


def _is_late(row: Row) -> bool:
    """Tell whether it was time that the runs lacked."""
    effort = find_peer(row.peer).effort
    if not row.runs or row.runs[-1].status == "failed":
        return False
    gave_up = effort.in_proportion and len(row.runs) < effort.runs
    return row.runs[-1].status == "late" or gave_up


def _last_done(row: Row) -> Run | None:
    """Return the run of the most effort, or else the one that stopped by its own rule."""
    runs = [row.default, *row.runs]
    return next((run for run in reversed(runs) if run and run.status == "done"), None)


def _number(run: Run | None, show: Callable[[Run], str]) -> str:
    return "" if run is None else show(run)


def _seconds(run: Run, settings: Settings) -> str:
    if run.seconds is not None:
        return f"{run.seconds:.2f}"
    return f"not in {settings.time_limit_s:g} s" if run.status == "late" else "failed"


def _ratio(run: Run, own: Run) -> str:
    """Say how many times dtopk's time a run took, of a grid of rates the best one alone too."""
    assert run.seconds is not None
    assert own.seconds is not None
    text = f"{run.seconds / own.seconds:.2g}"
    single = run.facts.get("single_seconds")
    return text if single is None else f"{text} ({single / own.seconds:.2g} for one rate)"


def _label(row: Row, reached: Run | None) -> str:
    title = find_peer(row.peer).title
    single = reached.facts.get("single_seconds") if reached else None
    return title if single is None else f"{title} ({single:.2g} s for one)"


def _effort(row: Row, run: Run | None) -> str:
    name = find_peer(row.peer).effort.name
    if run is None or run.effort is None:
        return "defaults"
    return f"{name} {run.effort:.2g}" if name == "tolerance" else f"{run.effort:g} {name}"


def _distance(row: Row, run: Run) -> str:
    distance = row.suboptimality(run)
    return "" if distance is None else f"{distance:.1e}"


def _percent(run: Run, name: str) -> str:
    return f"{100 * run.accuracy[name]:.2f}" if name in run.accuracy else ""


def _bounds(results: Results) -> list[str]:
    gaps = [run.facts["relative_gap"] for run in results.references.values() if run.facts]
    if not gaps:
        return []
    return [
        f"The lower bounds are certified dual values, within {max(gaps):.1e} of the optimum: a "
        "distance is overstated by so much at most."
    ]


def _losses_alone(results: Results) -> list[str]:
    """Name the objectives of the results that dtopk alone has."""
    others = {
        objective
        for name in {*PEERS, *(row.peer for row in results.rows.values())}
        if find_peer(name).distribution != PEERS[_OWN].distribution
        for objective in find_peer(name).objectives
    }
    seen = dict.fromkeys(row.objective for row in results.rows.values())
    alone = [OBJECTIVES[name].title for name in seen if name not in others]
    return [f"No other solver of the suite minimises: {', '.join(alone)}."] if alone else []


def _notes(results: Results) -> list[str]:
    """Say what must be known of each solver, with its version."""
    versions = {row.peer: row.version for row in results.rows.values() if row.version}
    lines = []
    for name, version in versions.items():
        peer = find_peer(name)
        note = f": {peer.note}" if peer.note else ""
        lines.append(f"{peer.title} ({peer.distribution} {version}){note}.")
    return lines


def _faults(results: Results) -> list[str]:
    """Say why runs failed."""
    return [
        f"{find_peer(row.peer).title}, {row.objective}, {row.shape}: {row.runs[-1].message}"
        for row in results.rows.values()
        if row.runs and row.runs[-1].status == "failed"
    ]


def _markdown(rows: Sequence[Sequence[str]]) -> list[str]:
    lines = ["| " + " | ".join(HEADER) + " |", "|" + "---|" * len(HEADER)]
    return lines + ["| " + " | ".join(cells).replace("\n", " ") + " |" for cells in rows]


def _bars(results: Results, shape: str) -> list[TimeBar]:
    bars = []
    for row in _rows_of(results, shape):
        reached = row.reached(results.settings.tol)
        if reached is not None or _is_late(row):
            bars.append(
                TimeBar(
                    group=OBJECTIVES[row.objective].title,
                    label=_label(row, reached),
                    seconds=None if reached is None else reached.seconds,
                )
            )
    return bars
