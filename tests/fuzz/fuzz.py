"""Fuzz the readers: change valid files at random, and hold what the readers do of them to rules.

    python -m tests.fuzz.fuzz --seconds 60
    python -m tests.fuzz.fuzz --seconds 600 --reader npz --reader model --keep build/fuzz

A reader must read an input or refuse it by a ValueError or OSError that names the file: within 10
seconds and 3 GiB, with no warning, and without a write outside the folder, a process, a connection
or an unpickling. Inputs that reach lines of dtopk which none before has reached are changed
further. Each reader runs in a process of its own, so that one that kills it is a finding too. What
breaks a rule is kept under --keep, one folder an input. The exit status is 1 if anything does.
"""

import argparse
import json
import random
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tests.fuzz.reader import Files, Reader
    from tests.fuzz.sandbox import Sandbox

_MOST_KEPT = 20
"""Findings of one reader that are kept; most are the same one."""
_ROOTS = tuple(str(Path(__file__).parents[2] / name) for name in ("dtopk", "storage/dtopk_storage"))


class Coverage:
    """The lines of dtopk that have been run, and whether an input has added some."""

    def __init__(self) -> None:
        self.lines: set[tuple[str, int]] = set()
        self.grew = False

    def start(self) -> None:
        """Look from here on."""
        self.grew = False
        sys.settrace(self._enter)

    def stop(self) -> None:
        """Look no more."""
        sys.settrace(None)

    def _enter(self, frame: FrameType, event: str, argument: Any) -> Any:
        return self._look if frame.f_code.co_filename.startswith(_ROOTS) else None

    def _look(self, frame: FrameType, event: str, argument: Any) -> Any:
        line = frame.f_code.co_filename, frame.f_lineno
        if line not in self.lines:
            self.lines.add(line)
            self.grew = True
        return self._look


@dataclass(kw_only=True)
class Report:
    """What came of one reader."""

    reader: str
    """Name of the reader."""
    inputs: int = 0
    """Inputs read or refused."""
    corpus: int = 0
    """Inputs that have reached new lines, and the valid ones that were begun with."""
    lines: int = 0
    """Lines of dtopk that have been run."""
    findings: list[str] = field(default_factory=list)
    """What broke a rule, each kind once."""


def fuzz_reader(
    sandbox: "Sandbox", reader: "Reader", *, seed: int, seconds: float, inputs: int, keep: str
) -> Report:
    """Fuzz one reader in this process.

    Parameters
    ----------
    sandbox : Sandbox
    reader : Reader
    seed : int
    seconds : float
        When to stop.
    inputs : int
        After how many inputs to stop; 0: by time alone.
    keep : str
        Folder for inputs that break a rule; empty: none is kept.
    """
    from tests.fuzz.reader import draw

    rng, report = random.Random(seed), Report(reader=reader.name)
    coverage, corpus = Coverage(), reader.make_seeds()
    for files in corpus:
        fault = sandbox.judge(reader, files)
        assert fault is None, f"{reader.name}: a valid input {fault}"
    ends, seen = time.monotonic() + seconds, set()
    while time.monotonic() < ends and not 0 < inputs <= report.inputs:
        files = draw(reader, rng.choice(corpus), rng)
        coverage.start()
        fault = sandbox.judge(reader, files)
        coverage.stop()
        report.inputs += 1
        if fault is not None and _kind_of(fault) not in seen:
            seen.add(_kind_of(fault))
            report.findings.append(fault)
            if keep and len(seen) <= _MOST_KEPT:
                _keep(Path(keep) / reader.name / f"{len(seen):03d}", files, fault)
        elif coverage.grew and sum(map(len, files.values())) < 1 << 20:
            corpus.append(files)
    report.corpus, report.lines = len(corpus), len(coverage.lines)
    return report


def _kind_of(fault: str) -> str:
    """Tell one fault from another: by where it came up, whatever the values were."""
    frames = re.findall(r"File .*, line \d+", fault)
    return "\n".join([fault.partition("\n")[0][:80], *frames])


def _keep(place: Path, files: "Files", fault: str) -> None:
    for name, content in files.items():
        path = place / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    (place / "FAULT.txt").write_text(fault)


def fuzz_in_process(names: Sequence[str], options: argparse.Namespace) -> list[Report]:
    """Fuzz readers in one process of its own, and report its death as a finding.

    Parameters
    ----------
    names : sequence of str
    options : Namespace

    Returns
    -------
    list of Report
        One for each; those after a reader that ended the process are fuzzed in another.
    """
    reports: list[Report] = []
    while len(reports) < len(names):
        reports += _fuzz_child(names[len(reports) :], options)
    return reports


def _fuzz_child(names: Sequence[str], options: argparse.Namespace) -> list[Report]:
    """Fuzz readers in one process, as far as it comes."""
    from tests.fuzz.sandbox import find_input

    with tempfile.TemporaryDirectory(prefix="dtopk-fuzz-") as folder:
        command = [
            sys.executable, "-m", "tests.fuzz.fuzz", "--child", folder,
            *(f"--reader={name}" for name in names),
            "--seconds", str(options.seconds), "--inputs", str(options.inputs),
            "--seed", str(options.seed), "--keep", options.keep,
        ]  # fmt: skip
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        reports = [Report(**json.loads(line)) for line in done.stdout.splitlines()]
        if done.returncode != 0:
            report = Report(reader=names[len(reports)])
            report.findings.append(f"ends with status {done.returncode}:\n{done.stderr[-3000:]}")
            reports.append(report)
            inputs = find_input(Path(folder))
            if options.keep and inputs.is_dir():
                last = Path(options.keep) / report.reader / "last"
                shutil.copytree(inputs, last, dirs_exist_ok=True)
        return reports


def main(arguments: Sequence[str] | None = None) -> int:
    """Fuzz the readers that are named, or all; print inputs and findings of each."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--reader", action="append", help="name of a reader; default: all")
    parser.add_argument("--seconds", type=float, default=60.0, help="for each reader")
    parser.add_argument("--inputs", type=int, default=0, help="of each reader; 0: as time allows")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--keep", default="", help="folder for inputs that break a rule")
    parser.add_argument("--child", default="", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    from tests.fuzz.readers import list_readers

    names = options.reader or list(list_readers())
    if options.child:
        _fuzz_here(names, options)
        return 0
    found = 0
    for name in names:
        (report,) = fuzz_in_process([name], options)
        found += len(report.findings)
        _print_report(report)
    return int(found > 0)


def _fuzz_here(names: Sequence[str], options: argparse.Namespace) -> None:
    """Print a report of each reader, a line of JSON."""
    from tests.fuzz.readers import list_readers
    from tests.fuzz.sandbox import Sandbox

    sandbox, readers = Sandbox(Path(options.child)), list_readers()
    sandbox.limit_memory()
    for name in names:
        report = fuzz_reader(
            sandbox,
            readers[name],
            seed=options.seed,
            seconds=options.seconds,
            inputs=options.inputs,
            keep=options.keep,
        )
        print(json.dumps(asdict(report)), flush=True)


def _print_report(report: Report) -> None:
    print(
        f"{report.reader:12} {report.inputs:8,} inputs, {report.corpus:5,} in the corpus, "
        f"{report.lines:5,} lines, {len(report.findings)} findings",
        flush=True,
    )
    for finding in report.findings:
        print(f"  {finding}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
