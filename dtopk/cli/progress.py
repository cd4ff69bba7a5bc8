"""Progress of long work on standard error: a bar on a terminal, plain lines otherwise."""

import sys
import time
from types import TracebackType

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskProgressColumn,
    TextColumn,
    TimeRemainingColumn,
)

from dtopk.cli.output import tell

_LINE_INTERVAL_S = 10.0
"""Without a terminal, so many seconds pass between two lines."""


class RowProgress:
    """Rows done of the rows to do; a context manager that is called with both numbers.

    Parameters
    ----------
    label : str
        What is being done, such as 'evaluating test'.
    """

    def __init__(self, label: str):
        self._label = label
        self._bar: Progress | None = None
        if sys.stderr.isatty():
            self._bar = Progress(
                TextColumn("{task.description}"),
                BarColumn(),
                TaskProgressColumn(),
                MofNCompleteColumn(),
                TimeRemainingColumn(),
                console=Console(stderr=True),
                transient=True,
            )
            self._task = self._bar.add_task(label, total=None)
        self._next_line_s = time.monotonic() + _LINE_INTERVAL_S

    def __enter__(self) -> "RowProgress":
        if self._bar is not None:
            self._bar.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._bar is not None:
            self._bar.stop()

    def __call__(self, done: int, total: int) -> None:
        """Show that `done` of `total` rows are done."""
        if self._bar is not None:
            self._bar.update(self._task, completed=done, total=total)
        elif time.monotonic() >= self._next_line_s:
            tell(f"{self._label}: {done:,} of {total:,} rows")
            self._next_line_s = time.monotonic() + _LINE_INTERVAL_S
