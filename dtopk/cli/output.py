"""What the commands share: their answer, their messages, and the exit status of an error."""

import contextlib
import errno
import json
import logging
import math
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click

from dtopk.launch import ClusterError

if TYPE_CHECKING:
    from rich.progress import Progress

    from dtopk_storage.paths import PathLike

EXIT_FAILED = 1
EXIT_REFUSED = 2
EXIT_INTERRUPTED = 130

json_option = click.option(
    "--json", "as_json", is_flag=True, help="Print one JSON object on standard output."
)


_writers: list[Callable[[str], None]] = []
"""What messages go through while bars are shown, the innermost last."""


def run_and_report(command: click.Command, arguments: Sequence[str] | None) -> int:
    """Run a command and turn its errors into one line each and an exit status.

    Parameters
    ----------
    command : click.Command
    arguments : sequence of str, or None for those of the process

    Returns
    -------
    int
        The exit status.
    """
    try:
        with _showing_warnings():
            status = command.main(
                args=None if arguments is None else list(arguments),
                prog_name="dtopk",
                standalone_mode=False,
            )
    except click.exceptions.Exit as error:
        return error.exit_code
    except (KeyboardInterrupt, click.Abort) as error:
        # Click raises an error of its own for an interrupt, which has none of its notes.
        report_error(_with_notes("interrupted.", error.__cause__ or error))
        return EXIT_INTERRUPTED
    except click.exceptions.NoArgsIsHelpError as error:
        click.echo(error.format_message(), err=True)
        return EXIT_REFUSED
    except click.ClickException as error:
        report_error(error.format_message())
        return EXIT_REFUSED
    except BrokenPipeError:
        # The reader of our output has gone. What is left of it must not be written at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_FAILED
    except ClusterError as error:
        report_error(_with_notes(str(error), error))
        return EXIT_FAILED
    except ValueError as error:
        report_error(_with_notes(str(error), error))
        return EXIT_FAILED if _is_fault_of_the_machine(error.__cause__) else EXIT_REFUSED
    except OSError as error:
        report_error(_with_notes(_describe_os_error(error), error))
        return EXIT_FAILED if _is_fault_of_the_machine(error) else EXIT_REFUSED
    return status if isinstance(status, int) else 0


_FAULTS_OF_THE_MACHINE = (errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.ENOMEM, errno.EROFS)


def _is_fault_of_the_machine(error: BaseException | None) -> bool:
    return isinstance(error, OSError) and error.errno in _FAULTS_OF_THE_MACHINE


def _with_notes(message: str, error: BaseException) -> str:
    return " ".join([message, *getattr(error, "__notes__", ())])


def report_error(message: str) -> None:
    """Say what is wrong, on one line of standard error."""
    click.echo(f"error: {' '.join(message.split())}", err=True)


def tell(message: str) -> None:
    """Write a message to standard error, where it does not mix with the answer."""
    if _writers:
        _writers[-1](message)
    else:
        click.echo(message, err=True)


@contextlib.contextmanager
def telling_above(bar: "Progress") -> Iterator[None]:
    """Write messages above a bar that is shown, which they would break otherwise."""
    _writers.append(
        lambda message: bar.console.print(message, markup=False, highlight=False, soft_wrap=True)
    )
    try:
        yield
    finally:
        _writers.pop()


def tell_written(path: "PathLike") -> None:
    """Say which file or folder was written."""
    # Imported here: zarr takes a while, which --help need not spend.
    from dtopk_storage.paths import as_path

    tell(f"wrote {as_path(path, name='path')}")


def answer(text: str) -> None:
    """Write the command's answer to standard output."""
    click.echo(text)


def answer_json(fields: Mapping[str, Any]) -> None:
    """Write the command's answer as one JSON object; numbers that JSON lacks become null."""
    click.echo(json.dumps(_without_nan(fields), allow_nan=False, default=str))


def format_table(rows: Sequence[Sequence[str]], *, header: Sequence[str]) -> str:
    """Lay out rows in columns as wide as their longest cell.

    Parameters
    ----------
    rows : sequence of rows, each a sequence of str
    header : sequence of str

    Returns
    -------
    str
        Lines; a cell that is a number stands at the right of its column.
    """
    widths = [max(map(len, column)) for column in zip(header, *rows, strict=True)]
    lines = []
    for row in (header, *rows):
        cells = (
            cell.rjust(width) if _is_number(cell) else cell.ljust(width)
            for cell, width in zip(row, widths, strict=True)
        )
        lines.append("  ".join(cells).rstrip())
    return "\n".join(lines)


def format_facts(facts: Mapping[str, Any]) -> str:
    """Lay out names and values in two columns, a line each."""
    width = max(map(len, facts)) + 2
    return "\n".join(
        f"{name.replace('_', ' ').ljust(width)}{value}" for name, value in facts.items()
    )


def _is_number(cell: str) -> bool:
    return cell.rstrip("%").replace(".", "", 1).replace(",", "").isdigit()


def _without_nan(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _without_nan(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_without_nan(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def _describe_os_error(error: OSError) -> str:
    if error.filename is None or error.strerror is None:
        return f"{error}."
    return f"{error.strerror}: {str(error.filename)!r}."


class _ToStandardError(logging.Handler):
    """Write warnings of the log beside the commands' own messages."""

    def emit(self, record: logging.LogRecord) -> None:
        tell(f"{record.levelname.lower()}: {record.getMessage()}")


class _MessagesAlone(logging.Handler):
    """Write what the log says of how things go, without its level."""

    def emit(self, record: logging.LogRecord) -> None:
        if record.levelno == logging.INFO:
            tell(record.getMessage())


@contextlib.contextmanager
def showing_progress_of(*names: str) -> Iterator[None]:
    """Show what packages log at level INFO.

    Parameters
    ----------
    *names : str
        Of their loggers.
    """
    handler = _MessagesAlone()
    logs = [logging.getLogger(name) for name in names]
    before = [log.level for log in logs]
    for log in logs:
        log.addHandler(handler)
        log.setLevel(logging.INFO)
    try:
        yield
    finally:
        for log, level in zip(logs, before, strict=True):
            log.removeHandler(handler)
            log.setLevel(level)


@contextlib.contextmanager
def _showing_warnings() -> Iterator[None]:
    handler = _ToStandardError(logging.WARNING)
    logs = [logging.getLogger(name) for name in ("dtopk", "dtopk_storage")]
    for log in logs:
        log.addHandler(handler)
    try:
        yield
    finally:
        for log in logs:
            log.removeHandler(handler)
