"""Progress of training on standard error: a bar on a terminal, a line an epoch otherwise."""

import math
import sys
import time
from collections.abc import Sequence
from typing import Protocol

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn

from dtopk.cli.output import tell
from dtopk.engine import Callback, EpochRecord, FitInfo, FitResult

_LINE_INTERVAL_S = 2.0
"""Without a terminal, so many seconds pass between two lines, but for epochs of an exact gap."""


class _GapAtTime(Protocol):
    @property
    def seconds(self) -> float: ...

    @property
    def relative_gap(self) -> float: ...


def estimate_seconds_left(records: Sequence[_GapAtTime], tol: float) -> float:
    """Estimate when the gap will be under the tolerance, from how it fell in the last epochs.

    Parameters
    ----------
    records : sequence of epochs
    tol : float

    Returns
    -------
    float
        Seconds from the last record on; NaN when it cannot be told.
    """
    if len(records) < 2:
        return math.nan
    before, last = records[max(0, len(records) - 4)], records[-1]
    if not 0 < last.relative_gap < before.relative_gap:
        return math.nan
    fall = math.log(before.relative_gap / last.relative_gap) / (last.seconds - before.seconds)
    return max(0.0, math.log(last.relative_gap / tol) / fall)


def describe_epoch(record: EpochRecord, seconds_left: float) -> str:
    """Describe an epoch on one line."""
    kind = "exact" if record.exact else "estimated"
    parts = [
        f"epoch {record.epoch}",
        f"gap {record.relative_gap:.2e} ({kind})",
        f"{record.rows_per_second:,.0f} rows/s",
        f"{record.seconds:.1f} s",
    ]
    if math.isfinite(seconds_left) and seconds_left > 0:
        parts.append(f"about {_format_seconds(seconds_left)} left")
    return ", ".join(parts)


class LineProgress(Callback):
    """A line an epoch, or less often where epochs are short."""

    def __init__(self) -> None:
        self._records: list[EpochRecord] = []
        self._next_line_s = -math.inf

    def on_start(self, info: FitInfo) -> None:
        """Say what is trained."""
        self._info = info
        tell(_describe_start(info))

    def on_epoch(self, record: EpochRecord, W: object) -> None:
        """Say how far the epoch came."""
        self._records.append(record)
        if time.monotonic() >= self._next_line_s or record.exact:
            tell(describe_epoch(record, estimate_seconds_left(self._records, self._info.tol)))
            self._next_line_s = time.monotonic() + _LINE_INTERVAL_S


class BarProgress(Callback):
    """A bar of the rows of the epoch, with the gap and the speed of the last one."""

    def __init__(self) -> None:
        self._records: list[EpochRecord] = []
        self._bar = Progress(
            TextColumn("epoch {task.fields[epoch]}"),
            BarColumn(),
            TextColumn("{task.fields[state]}"),
            console=Console(stderr=True),
            transient=True,
        )

    def on_start(self, info: FitInfo) -> None:
        """Start the bar."""
        self._info = info
        tell(_describe_start(info))
        self._task = self._bar.add_task("", total=info.n_samples, epoch=1, state="")
        self._bar.start()

    def on_rows(self, rows_done_in_epoch: int) -> None:
        """Move the bar."""
        self._bar.update(self._task, completed=rows_done_in_epoch)

    def on_epoch(self, record: EpochRecord, W: object) -> None:
        """Show the epoch's gap and speed, and start the bar anew."""
        self._records.append(record)
        left = estimate_seconds_left(self._records, self._info.tol)
        state = describe_epoch(record, left).partition(", ")[2]
        self._bar.update(self._task, completed=0, epoch=record.epoch + 1, state=state)

    def on_end(self, result: FitResult) -> None:
        """Take the bar away."""
        self.stop()

    def stop(self) -> None:
        """Take the bar away, also after an error."""
        self._bar.stop()


def make_progress() -> LineProgress | BarProgress:
    """Choose by whether standard error is a terminal."""
    return BarProgress() if sys.stderr.isatty() else LineProgress()


def _describe_start(info: FitInfo) -> str:
    return (
        f"training {info.loss_name} with {info.solver} on {info.n_samples:,} rows, "
        f"{info.n_features:,} features, {info.n_classes:,} classes, to a gap of {info.tol:g}"
    )


def _format_seconds(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    if seconds < 5400:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h"
