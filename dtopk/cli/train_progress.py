"""Progress of training on standard error: a bar on a terminal, a line an epoch otherwise."""

import contextlib
import math
import sys
import threading
import time
from collections.abc import Callable, Sequence

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn
from rich.table import Column

from dtopk.cli.output import tell, telling_above
from dtopk.cli.time_left import estimate_seconds_left
from dtopk.engine import Callback, EpochRecord, FitInfo, FitResult
from dtopk_storage.wording import format_bytes

_LINE_INTERVAL_S = 2.0
"""Without a terminal, so many seconds pass between two lines, but for epochs of an exact gap."""
_LEAST_TOLD_S = 0.5
"""Shorter times left would be told as 0 s."""
_COMPILE_NOTICE_S = 2.0
"""Kernels that are compiled already are loaded in less."""
_COMPILING = "compiling for this loss and dtype, once on a machine: some 10-20 s"
_COMPILING_BRIEFLY = "compiling once for loss and dtype: 10-20 s"
_BAR_CHARACTERS = 10
_ECHO_CHARACTERS = 3
"""Columns left free, so that the terminal's '^C' does not break the bar's line."""


def describe_epoch(record: EpochRecord, info: FitInfo, seconds_left: float) -> str:
    """Describe an epoch on one line.

    Parameters
    ----------
    record : EpochRecord
    info : FitInfo
    seconds_left : float
        Until the gap is small enough; NaN where that cannot be told.
    """
    kind = "exact" if record.exact else "estimated"
    parts = [
        f"epoch {record.epoch} of {info.max_epochs}",
        f"gap {record.relative_gap:.2e} ({kind}; asked {info.tol:g})",
        f"{record.rows_per_second:,.0f} rows/s",
        f"{record.seconds:.1f} s",
        *_describe_left(seconds_left),
        *(_describe_parts(record) if info.n_partitions > 1 else []),
    ]
    return ", ".join(parts)


def _describe_parts(record: EpochRecord) -> list[str]:
    """Describe how partitions went together, and what their processes sent each other."""
    seconds = f"{record.slowest_seconds:.2g} s, others {record.median_seconds:.2g}"
    late = f"late: worker {record.late} ({seconds})"
    return [
        f"theta {record.theta:.2f}",
        f"sigma' {record.sigma:.1f}",
        f"r {record.correlation:.2f}",
        *([f"{format_bytes(record.bytes_moved)} moved"] if record.bytes_moved else []),
        *([late] if record.late else []),
    ]


def format_time(seconds: float) -> str:
    """Write a time as its hour, and its date where that is not today's.

    Parameters
    ----------
    seconds : float
        Since 1970.
    """
    then = time.localtime(seconds)
    today = then[:3] == time.localtime()[:3]
    return time.strftime("%H:%M:%S" if today else "%Y-%m-%d %H:%M:%S", then)


def _describe_resumption(history: Sequence[EpochRecord], saved: float) -> str:
    epoch = _next_epoch(history)
    return f"Resuming at epoch {epoch} from the state of {format_time(saved)}"


def _next_epoch(history: Sequence[EpochRecord]) -> int:
    return history[-1].epoch + 1 if history else 1


def _describe_state(
    record: EpochRecord, info: FitInfo, seconds_left: float, n_characters: int
) -> str:
    """Describe an epoch beside the bar, without what finds no room: the last matters least."""
    parts = [
        f"gap {record.relative_gap:.1e} (asked {info.tol:g})",
        f"{record.seconds:.0f} s",
        *_describe_left(seconds_left),
        f"{record.rows_per_second:,.0f} rows/s",
        *(_describe_parts(record) if info.n_partitions > 1 else []),
    ]
    while len(parts) > 1 and len(", ".join(parts)) > n_characters:
        parts.pop()
    return ", ".join(parts)


def _describe_left(seconds_left: float) -> list[str]:
    if math.isfinite(seconds_left) and seconds_left >= _LEAST_TOLD_S:
        return [f"~{_format_seconds(seconds_left)} left"]
    return []


class _CompileNotice:
    """Calls a function once loading the kernels has taken so long that they are being compiled."""

    def __init__(self, show: Callable[[], None]):
        self._timer = threading.Timer(_COMPILE_NOTICE_S, show)
        self._timer.daemon = True

    def start(self) -> None:
        self._timer.start()

    def cancel(self) -> None:
        self._timer.cancel()


class LineProgress(Callback):
    """A line an epoch, or less often where epochs are short."""

    def __init__(self) -> None:
        self._records: list[EpochRecord] = []
        self._next_line_s = -math.inf
        self._notice = _CompileNotice(lambda: tell(_COMPILING))

    def on_start(self, info: FitInfo) -> None:
        """Say what is trained."""
        self._info = info
        tell(_describe_start(info))

    def on_resume(self, history: Sequence[EpochRecord], saved: float) -> None:
        """Say where the run goes on."""
        self._records = list(history)
        tell(_describe_resumption(history, saved))

    def on_compile(self) -> None:
        """Say that kernels are compiled, if it takes long."""
        self._notice.start()

    def on_rows(self, rows: int) -> None:
        """Take note that the kernels are there."""
        self._notice.cancel()

    def on_epoch(self, record: EpochRecord, W: object) -> None:
        """Say how far the epoch came."""
        self._records.append(record)
        if time.monotonic() >= self._next_line_s or record.exact:
            left = estimate_seconds_left(self._records, self._info.tol)
            tell(describe_epoch(record, self._info, left))
            self._next_line_s = time.monotonic() + _LINE_INTERVAL_S

    def stop(self) -> None:
        """Say nothing more, also after an error."""
        self._notice.cancel()


class BarProgress(Callback):
    """A bar of the rows of the epoch, with the gap and the speed of the last one."""

    def __init__(self) -> None:
        self._records: list[EpochRecord] = []
        self._shown = contextlib.ExitStack()
        console = Console(stderr=True)
        console.width -= _ECHO_CHARACTERS
        self._bar = Progress(
            TextColumn("{task.fields[epoch]}", table_column=Column(no_wrap=True)),
            BarColumn(_BAR_CHARACTERS, table_column=Column(min_width=_BAR_CHARACTERS)),
            TextColumn(
                "{task.fields[state]}",
                table_column=Column(no_wrap=True, overflow="ellipsis", ratio=1),
                markup=False,
            ),
            console=console,
            expand=True,
            transient=True,
        )
        self._notice = _CompileNotice(lambda: self._show(state=_COMPILING_BRIEFLY))

    def on_start(self, info: FitInfo) -> None:
        """Start the bar."""
        self._info = info
        tell(_describe_start(info))
        self._task = self._bar.add_task(
            "", total=info.n_samples, epoch=self._name_epoch(1), state=""
        )
        self._bar.start()
        self._shown.enter_context(telling_above(self._bar))

    def on_resume(self, history: Sequence[EpochRecord], saved: float) -> None:
        """Say where the run goes on, and show it."""
        self._records = list(history)
        tell(_describe_resumption(history, saved))
        self._bar.update(self._task, epoch=self._name_epoch(_next_epoch(history)), state="")

    def on_compile(self) -> None:
        """Say that kernels are compiled, if it takes long."""
        self._notice.start()

    def on_rows(self, rows: int) -> None:
        """Move the bar."""
        self._notice.cancel()
        if self._records:
            self._bar.update(self._task, completed=rows)
        else:
            self._bar.update(self._task, completed=rows, state="")

    def on_epoch(self, record: EpochRecord, W: object) -> None:
        """Show the epoch's gap and speed, and start the bar anew."""
        self._records.append(record)
        left = estimate_seconds_left(self._records, self._info.tol)
        epoch = self._name_epoch(min(record.epoch + 1, self._info.max_epochs))
        self._bar.update(self._task, completed=0, epoch=epoch)
        room = self._bar.console.width - len(epoch) - _BAR_CHARACTERS - 2
        self._show(state=_describe_state(record, self._info, left, room))

    def on_end(self, result: FitResult) -> None:
        """Take the bar away."""
        self.stop()

    def stop(self) -> None:
        """Take the bar away, also after an error."""
        self._notice.cancel()
        self._bar.stop()
        self._shown.close()

    def _show(self, *, state: str) -> None:
        self._bar.update(self._task, state=state)

    def _name_epoch(self, epoch: int) -> str:
        """Name an epoch in as many characters as the last one takes, so that the bar stays."""
        last = str(self._info.max_epochs)
        return f"epoch {epoch:>{len(last)}}/{last}"


def make_progress() -> LineProgress | BarProgress:
    """Choose by whether standard error is a terminal."""
    return BarProgress() if sys.stderr.isatty() else LineProgress()


def _describe_start(info: FitInfo) -> str:
    line = (
        f"training {info.loss_name} with {info.solver} on {info.n_samples:,} rows, "
        f"{info.n_features:,} features, {info.n_classes:,} classes, to a gap of {info.tol:g}"
    )
    return f"{line} ({info.solver} since {info.solver_reason})" if info.solver_reason else line


def _format_seconds(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    if seconds < 5400:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h"
