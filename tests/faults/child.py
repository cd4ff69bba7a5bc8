"""Commands of dtopk in processes that start fast, and the faults that a process has in itself.

They are forked off a process that has the imports and the compiled kernels behind it, and are
processes like any other: they can be killed, stopped, and run out of room.
"""

import errno
import faulthandler
import multiprocessing
import os
import resource
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from tests.drill.hosts import make_environment

_CALLS = frozenset(
    {"open", "os.listdir", "os.mkdir", "os.remove", "os.rename", "os.rmdir", "os.scandir"}
)
"""Audit events of the calls that make a step on the disk."""
STEPS = ".steps"
"""Suffix of the file that says how many steps a command has taken."""


@dataclass(frozen=True, kw_only=True)
class Inside:
    """What a process does to itself."""

    root: str = ""
    """Steps are calls that touch files below this folder."""
    kill_step: int = 0
    """It is killed at this step, from 1; 0: at none."""
    error_step: int = 0
    """This step fails; 0: none."""
    error: int = errno.EIO
    """Number of that error."""
    slow_s: float = 0.0
    """Seconds that each step takes longer."""
    file_limit: int = 0
    """Most bytes of a file; 0: as many as there is room for."""
    clock_after_s: float = 0.0
    """Seconds after which the clock jumps."""
    clock_jump_s: float = 0.0
    """By how much it jumps."""

    def install(self, count_to: str = "") -> None:
        """Have it come about in this process.

        Parameters
        ----------
        count_to : str
            File that the number of steps is written to at each; empty: none.
        """
        if self.file_limit:
            _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
            resource.setrlimit(resource.RLIMIT_FSIZE, (self.file_limit, hard))
        if self.clock_jump_s:
            self._make_clock_jump()
        if self.kill_step or self.error_step or self.slow_s or count_to:
            sys.addaudithook(_Steps(self, count_to))

    def _make_clock_jump(self) -> None:
        true_time, jumps_at = time.time, time.monotonic() + self.clock_after_s

        def jumping_time() -> float:
            return true_time() + self.clock_jump_s * (time.monotonic() >= jumps_at)

        # Modules have it by names of their own.
        for module in list(sys.modules.values()):
            for name, value in list(getattr(module, "__dict__", {}).items()):
                if value is true_time:
                    setattr(module, name, jumping_time)


class _Steps:
    """Counts the steps on the disk, and does harm at some of them."""

    def __init__(self, inside: Inside, count_to: str) -> None:
        self._inside = inside
        self._count_to = count_to
        self._n = 0
        self._lock = threading.Lock()

    def __call__(self, event: str, arguments: tuple[Any, ...]) -> None:
        if event not in _CALLS or not str(arguments[0]).startswith(self._inside.root):
            return
        with self._lock:
            self._n += 1
            n = self._n
        if self._count_to:
            # Opened by its number: that is no step of its own.
            Path(self._count_to).write_text(str(n))
        if n == self._inside.kill_step:
            os.kill(os.getpid(), signal.SIGKILL)
        if n == self._inside.error_step:
            number = self._inside.error
            raise OSError(number, os.strerror(number), str(arguments[0]))
        time.sleep(self._inside.slow_s)


def run_command(
    arguments: Sequence[str], log: str, environment: Mapping[str, str], inside: Inside,
    counts: bool,
) -> None:  # fmt: skip
    """Run a command of dtopk in this process, which is its own, and end it.

    Parameters
    ----------
    arguments : sequence of str
    log : str
        File that its outputs are added to.
    environment : mapping of str to str
        Variables that it has beside those that there are.
    inside : Inside
    counts : bool
        Whether to count its steps.
    """
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    for output in (1, 2):
        os.dup2(descriptor, output)
    os.environ.update(environment)
    tempfile.tempdir = None
    # The tests may be run where interrupts are ignored, or end with a traceback.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    # Aborted, because it hangs, it says where.
    faulthandler.enable()
    inside.install(log + STEPS if counts else "")
    from dtopk.cli import main

    main(arguments)


class Launcher:
    """Starts commands from a process that is warm; it ends with this one."""

    def __init__(self) -> None:
        # What it imports, it finds by these.
        os.environ.update(make_environment())
        self._started: list[BaseProcess] = []
        self._context = multiprocessing.get_context("forkserver")
        self._context.set_forkserver_preload(["tests.faults.preload", "tests.faults.runner"])

    def start(
        self, arguments: Sequence[str], log: Path, *, environment: Mapping[str, str],
        inside: Inside, counts: bool = False,
    ) -> BaseProcess:  # fmt: skip
        """Start a command.

        Parameters
        ----------
        arguments : sequence of str
        log : Path
        environment : mapping of str to str
        inside : Inside
        counts : bool
        """
        known = (tuple(arguments), str(log), dict(environment), inside, counts)
        process = self._context.Process(target=run_command, args=known)
        process.start()
        self._started = [each for each in self._started if each.is_alive()] + [process]
        return process

    def end(self) -> None:
        """End what is still running, which would be waited for."""
        for process in self._started:
            process.kill()
            process.join()
