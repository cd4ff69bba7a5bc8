"""`dtopk bench --suite`: dtopk beside what a user would take instead."""

from pathlib import Path
from typing import TYPE_CHECKING

import click
from click.core import ParameterSource

from dtopk.cli.output import answer, answer_json, format_table, showing_progress_of, tell_written

if TYPE_CHECKING:
    from dtopk.benchmarks.results import Results


def run_and_show(
    output: Path,
    *,
    shapes: str | None,
    peers: str | None,
    C: float,
    time_limit_s: float,
    threads: int,
    again: bool,
    as_json: bool,
) -> None:
    """Measure what the folder has not yet, write tables and figures, and show the tables.

    Parameters
    ----------
    output : Path
        Folder of the results.
    shapes, peers : str or None
        Names, separated by commas; None: all.
    C, time_limit_s : float
    threads : int
        0: all cores.
    again : bool
    as_json : bool
    """
    # Imported here, as it loads compiled code that `--help` does not need.
    from dtopk.benchmarks.peers import PEERS
    from dtopk.benchmarks.problems import default_shapes, parse_shape
    from dtopk.benchmarks.report import HEADER, explain, table_rows, write_report
    from dtopk.benchmarks.suite import SuiteOptions, run_suite

    options = SuiteOptions(
        shapes=tuple(parse_shape(text) for text in _split(shapes) or default_shapes()),
        peers=_split(peers) or tuple(PEERS),
        C=C,
        time_limit_s=time_limit_s,
        threads=threads,
        again=again,
    )
    with showing_progress_of("dtopk.benchmarks"):
        results = run_suite(options, output)
    for path in write_report(results, output):
        tell_written(path)
    if as_json:
        answer_json({"results": str(output / "results.json"), "tables": _tables(results)})
        return
    for shape, title in results.titles.items():
        answer(f"{title}\n\n{format_table(table_rows(results, shape), header=HEADER)}\n")
    answer("\n".join(explain(results)))


def check_options(context: click.Context) -> None:
    """Refuse options that do not go with `--suite`, or need it.

    Raises
    ------
    click.UsageError
    """
    suite = context.params["suite"]
    for parameter in context.command.params:
        name = parameter.name or ""
        source = context.get_parameter_source(name)
        if source is not ParameterSource.COMMANDLINE or name in _OF_BOTH:
            continue
        if suite and name not in _OF_SUITE:
            raise click.UsageError(
                f"{parameter.opts[0]} does not go with --suite, which measures --shapes.", context
            )
        if not suite and name in _OF_SUITE:
            raise click.UsageError(f"{parameter.opts[0]} needs --suite.", context)


_OF_SUITE = ("suite", "shapes", "peers", "time_limit_s", "output", "again")
_OF_BOTH = ("C", "threads", "as_json")


def _split(text: str | None) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(",") if part.strip()) if text else ()


def _tables(results: "Results") -> dict[str, list[dict[str, str]]]:
    from dtopk.benchmarks.report import HEADER, table_rows

    return {
        shape: [dict(zip(HEADER, row, strict=True)) for row in table_rows(results, shape)]
        for shape in results.titles
    }
