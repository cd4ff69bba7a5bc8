"""The command line. Every command lies in a module of its own, imported when it is called."""

import difflib
import importlib
import os
import sys
from collections.abc import Sequence
from functools import partial

import click

from dtopk.cli.output import run_and_report

_COMMANDS = {
    "ingest": "Make a feature store from arrays on disk.",
    "features": "Make a store of lifted features, for an RBF kernel.",
    "info": "Show what a feature store, a run or a model holds.",
    "plan": "Show what a run will need of memory, network and time.",
    "train": "Train a model as a job file says.",
    "sweep": "Train a model of each setting of a job file, and choose the best.",
    "submit": "Train or sweep in a batch system, or in the background.",
    "status": "Show how a submitted run or sweep goes.",
    "logs": "Show what a submitted run or sweep has said.",
    "cancel": "End a submitted run or sweep.",
    "evaluate": "Show how accurate a model is on a store.",
    "calibrate": "Fit probabilities and sets of labels on a split not trained on.",
    "predict": "Write the best classes of every row, or sets of them, to a file.",
    "report": "Write one HTML page about some runs.",
    "losses": "List the losses and what they take.",
    "track": "Send MLflow what a run has kept while MLflow was away.",
    "ui": "Serve the runs recorded with MLflow as web pages.",
    "bench": "Measure the speed of training on this machine.",
}


class _LazyGroup(click.Group):
    """A group that imports a command's module only when the command is called."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _COMMANDS:
            return None
        command = getattr(importlib.import_module(f"dtopk.cli.{cmd_name}"), cmd_name)
        assert isinstance(command, click.Command)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args[0] not in _COMMANDS and not args[0].startswith("-"):
            nearest = max(_COMMANDS, key=partial(_likeness, args[0]))
            raise click.UsageError(
                f"command {args[0]!r} is unknown. Did you mean {nearest!r}? "
                f"Available: {', '.join(_COMMANDS)}.",
                ctx,
            )
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(_COMMANDS.items()))


def _likeness(name: str, command: str) -> float:
    return difflib.SequenceMatcher(None, name, command).ratio()


@click.command(cls=_LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="dtopk", message="%(prog)s %(version)s")
def dtopk() -> None:
    """Train linear classifiers with top-k losses, certified optimal, on features of any size.

    \b
    A run from start to end:
      dtopk ingest features.npz features.zarr
      dtopk train job.toml
      dtopk evaluate RUN features.zarr

    Results go to standard output, progress and messages to standard error.
    """  # noqa: D301 (click wants the character itself)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line and exit.

    The exit status is 0, or 2 for what was given, 1 for what failed, 130 for an interrupt
    (SIGINT; in training and in a sweep also SIGTERM and SIGUSR1).
    """
    # The process is ours: no reports to MLflow's makers.
    os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
    sys.exit(run_and_report(dtopk, arguments))
