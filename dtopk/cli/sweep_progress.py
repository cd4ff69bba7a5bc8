"""Progress of a sweep on standard error: a line a model in work on a terminal, else plain lines."""

import contextlib
import sys
import threading
import time
from collections.abc import Sequence

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn
from rich.table import Column

from dtopk.cli.output import tell, telling_above
from dtopk.engine import Callback, EpochRecord, FitInfo
from dtopk.job.sweep_units import Unit, UnitResult
from dtopk.job.sweeping import SweepWatcher

_LINE_INTERVAL_S = 5.0
"""Without a terminal, so many seconds pass between two lines on models that are in work."""
_COMPILE_NOTICE_S = 2.0
_COMPILING = "compiling for these losses, once on a machine: some 10-20 s each"
_BAR_CHARACTERS = 10
_LABEL_CHARACTERS = 44


def describe_done(unit: Unit, result: UnitResult, place: str) -> str:
    """Describe a training that is done on one line.

    Parameters
    ----------
    unit : Unit
    result : UnitResult
    place : str
        Such as '3 of 24'.
    """
    verdict = "certified" if result.certified else f"not certified ({result.stop_reason})"
    epochs = "epoch" if result.epochs == 1 else "epochs"
    return (
        f"{place}: {unit.describe()}: {verdict}, gap {result.relative_gap:.2e}, "
        f"{result.epochs} {epochs}, {result.seconds:.1f} s"
    )


def describe_start(units: Sequence[Unit], n_done: int) -> str:
    """Say how much there is to train.

    Parameters
    ----------
    units : sequence of Unit
    n_done : int
    """
    n_settings = len({unit.setting for unit in units})
    n_folds = max(unit.fold for unit in units)
    models = "1 model" if len(units) == 1 else f"{len(units):,} models"
    what = f"{models}: {n_settings:,} settings in {n_folds} folds" if n_folds else models
    return f"training {what}" + (f"; {n_done:,} done already" if n_done else "")


class SweepLines(SweepWatcher):
    """A line for each model that is done, and now and then one for those in work."""

    def __init__(self) -> None:
        self._n_done = self._n_units = 0
        self._next_line_s = time.monotonic() + _LINE_INTERVAL_S
        self._notice: threading.Timer | None = None

    def on_start(self, units: Sequence[Unit], n_done: int) -> None:
        """Say what is trained."""
        self._n_units, self._n_done = len(units), n_done
        tell(describe_start(units, n_done))

    def make_callbacks(self, unit: Unit) -> Sequence[Callback]:
        """Return what tells of one model."""
        return [_UnitLines(self, unit)]

    def on_done(self, unit: Unit, result: UnitResult) -> None:
        """Say what a model came to."""
        if unit.refit:
            tell(describe_done(unit, result, "best"))
            return
        self._n_done += 1
        tell(describe_done(unit, result, f"{self._n_done} of {self._n_units}"))
        self._next_line_s = time.monotonic() + _LINE_INTERVAL_S

    def on_rows(self, what: str, done: int, total: int) -> None:
        """Say how far scoring is."""
        if time.monotonic() >= self._next_line_s:
            tell(f"scoring {what}: {done:,} of {total:,} rows")
            self._next_line_s = time.monotonic() + _LINE_INTERVAL_S

    def on_epoch(self, unit: Unit, record: EpochRecord) -> None:
        """Say how far a model in work is, if nothing was said for some time."""
        if time.monotonic() >= self._next_line_s:
            tell(f"{unit.describe()}: epoch {record.epoch}, gap {record.relative_gap:.2e}")
            self._next_line_s = time.monotonic() + _LINE_INTERVAL_S

    def expect_compiling(self) -> None:
        """Say that kernels are compiled, if it takes long."""
        if self._notice is None:
            self._notice = threading.Timer(_COMPILE_NOTICE_S, lambda: tell(_COMPILING))
            self._notice.daemon = True
            self._notice.start()

    def compiled(self) -> None:
        """Take note that the kernels are there."""
        if self._notice is not None:
            self._notice.cancel()

    def stop(self) -> None:
        """Say nothing more."""
        self.compiled()


class _UnitLines(Callback):
    """Tells `SweepLines` of one model."""

    def __init__(self, lines: SweepLines, unit: Unit) -> None:
        self._lines = lines
        self._unit = unit

    def on_compile(self) -> None:
        self._lines.expect_compiling()

    def on_rows(self, rows: int) -> None:
        self._lines.compiled()

    def on_epoch(self, record: EpochRecord, W: object) -> None:
        self._lines.compiled()
        self._lines.on_epoch(self._unit, record)


class SweepBars(SweepWatcher):
    """A bar of the models that are done, and below it one for each that is in work."""

    def __init__(self) -> None:
        self._shown = contextlib.ExitStack()
        self._bars = Progress(
            TextColumn(
                "{task.description}",
                markup=False,
                table_column=Column(no_wrap=True, overflow="ellipsis", max_width=_LABEL_CHARACTERS),
            ),
            BarColumn(_BAR_CHARACTERS, table_column=Column(min_width=_BAR_CHARACTERS)),
            TextColumn(
                "{task.fields[state]}",
                markup=False,
                table_column=Column(no_wrap=True, overflow="ellipsis", ratio=1),
            ),
            console=Console(stderr=True),
            expand=True,
            transient=True,
        )
        self._all: TaskID | None = None
        self._rows: TaskID | None = None
        self._n_done = self._n_units = 0

    def on_start(self, units: Sequence[Unit], n_done: int) -> None:
        """Start the bars."""
        self._n_units, self._n_done = len(units), n_done
        tell(describe_start(units, n_done))
        self._all = self._bars.add_task(
            "all", total=len(units), completed=n_done, state=self._count()
        )
        self._bars.start()
        self._shown.enter_context(telling_above(self._bars))

    def _count(self) -> str:
        return f"{self._n_done} of {self._n_units} models"

    def make_callbacks(self, unit: Unit) -> Sequence[Callback]:
        """Return what moves the bar of one model."""
        return [_UnitBar(self._bars, unit)]

    def on_done(self, unit: Unit, result: UnitResult) -> None:
        """Move the bar of all, and say what a model came to if that is less than asked for."""
        if not unit.refit:
            self._n_done += 1
            assert self._all is not None
            self._bars.update(self._all, completed=self._n_done, state=self._count())
        if not result.certified:
            tell(describe_done(unit, result, "warning"))

    def on_rows(self, what: str, done: int, total: int) -> None:
        """Show how far scoring is."""
        if self._rows is None:
            self._rows = self._bars.add_task("", total=total, state="")
        state = f"{done:,} of {total:,} rows"
        self._bars.update(
            self._rows, description=f"scoring {what}", completed=done, total=total, state=state
        )
        if done >= total:
            self._bars.remove_task(self._rows)
            self._rows = None

    def stop(self) -> None:
        """Take the bars away, also after an error."""
        self._bars.stop()
        self._shown.close()


class _UnitBar(Callback):
    """A bar of the rows of a model's epoch, with its gap."""

    def __init__(self, bars: Progress, unit: Unit) -> None:
        self._bars = bars
        self._unit = unit
        self._task: TaskID | None = None
        self._is_compiling = False

    def on_start(self, info: FitInfo) -> None:
        self._task = self._bars.add_task(self._unit.name, total=info.n_samples, state="epoch 1")

    def on_compile(self) -> None:
        self._is_compiling = True
        self._show(state="compiling, or loading what is compiled")

    def on_rows(self, rows: int) -> None:
        if self._is_compiling:
            self._show(state="epoch 1")
            self._is_compiling = False
        if self._task is not None:
            self._bars.update(self._task, completed=rows)

    def on_epoch(self, record: EpochRecord, W: object) -> None:
        self._show(state=f"epoch {record.epoch + 1}, gap {record.relative_gap:.1e}", completed=0)

    def on_end(self, result: object) -> None:
        if self._task is not None:
            self._bars.remove_task(self._task)
            self._task = None

    def _show(self, *, state: str, completed: float | None = None) -> None:
        if self._task is not None:
            self._bars.update(self._task, state=state, completed=completed)


def make_sweep_progress() -> SweepLines | SweepBars:
    """Choose by whether standard error is a terminal."""
    return SweepBars() if sys.stderr.isatty() else SweepLines()
