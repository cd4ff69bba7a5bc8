"""What the process imports that commands are forked off, and the kernels that it has compiled.

Importing it runs commands, so nobody does but that process.
"""

import contextlib
import importlib
import importlib.util
import os
import tempfile
from pathlib import Path
from typing import BinaryIO

from matplotlib.figure import Figure

from dtopk.cli import dtopk
from dtopk.cli.output import run_and_report
from tests.faults.operations import OPERATIONS, Place
from tests.faults.problem import write_sources

_MODULES = ("aiobotocore.session", "distributed", "s3fs")
"""What some commands import, where it is installed, and takes a while."""


def draw_nothing() -> None:
    """Write figures without drawing them, which would take most of the time."""

    def savefig(figure: Figure, file: BinaryIO, **options: object) -> None:
        file.write(b"a figure")

    Figure.savefig = savefig  # type: ignore[assignment, method-assign]


def warm_up() -> None:
    """Run the commands once, so that what they import and compile is there."""
    for name in _MODULES:
        if importlib.util.find_spec(name.partition(".")[0]) is not None:
            importlib.import_module(name)
    with open(os.devnull, "w") as nowhere, contextlib.ExitStack() as stack:
        stack.enter_context(contextlib.redirect_stdout(nowhere))
        stack.enter_context(contextlib.redirect_stderr(nowhere))
        for operation in OPERATIONS.values():
            if operation.place == "disk":
                folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
                write_sources(folder)
                place = Place(folder=folder, out=folder / "out")
                operation.write_job(place)
                for command in (*operation.before, operation.command):
                    run_and_report(dtopk, command(place))


draw_nothing()
warm_up()
