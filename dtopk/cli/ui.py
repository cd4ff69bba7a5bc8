"""`dtopk ui`: the recorded runs, in MLflow's web pages."""

import os
import socket
import sys
from pathlib import Path

import click

from dtopk.cli.output import answer, tell


@click.command()
@click.option(
    "--uri", default="",
    help="MLflow tracking URI.  [default: $MLFLOW_TRACKING_URI, or runs/mlflow.db]",
)  # fmt: skip
@click.option(
    "--experiment", default="", help="Experiment to link to.  [default: that of the newest run]"
)
@click.option(
    "--port", type=click.IntRange(1, 65535), default=5000, show_default=True,
    help="Port of this machine that the pages are served on.",
)  # fmt: skip
def ui(uri: str, experiment: str, port: int) -> None:
    """Serve the runs recorded with MLflow as web pages.

    Prints the address to open in a browser, and serves it on this machine alone until Ctrl-C. For
    a tracking server, whose pages are up already, it only prints the address.
    """
    from dtopk.tracking import default_tracking_uri

    uri = uri or default_tracking_uri("runs")
    _check_database(uri)
    experiment_id = _choose_experiment(uri, experiment)
    if uri.startswith(("http://", "https://")):
        answer(_page(uri.rstrip("/"), experiment_id))
        return
    _check_port(port)
    answer(_page(f"http://127.0.0.1:{port}", experiment_id))
    tell("Starting the server; it stops with Ctrl-C.")
    _serve(uri, port)


def _choose_experiment(uri: str, name: str) -> str:
    """Return the id of the experiment of that name, or of the one with the newest run."""
    from dtopk.tracking import list_experiments

    ids = list_experiments(uri)
    if not ids:
        raise ValueError(f"tracking store must have runs, got none at {uri!r}. Train first.")
    if not name:
        return next(iter(ids.values()))
    if name not in ids:
        listed = ", ".join(map(repr, ids))
        raise ValueError(f"experiment must be one of {listed} at {uri!r}, got {name!r}.")
    return ids[name]


def _page(address: str, experiment_id: str) -> str:
    # Without the workflow type MLflow opens its pages for language models, which are empty here.
    return (
        f"{address}/#/experiments/{experiment_id}/runs"
        "?compareRunsMode=CHART&workflowType=machine_learning"
    )


def _check_database(uri: str) -> None:
    """Refuse a database that is not there: MLflow would make an empty one."""
    if uri.startswith("sqlite:///") and not Path(uri.removeprefix("sqlite:///")).is_file():
        raise ValueError(
            f"tracking store {uri!r} does not exist. Name another one with --uri, "
            "or go to the folder that holds 'runs'."
        )


def _check_port(port: int) -> None:
    """Refuse a port that another program listens on, before an address is printed."""
    with socket.socket() as probe:
        # As the server does: connections that have just been closed do not count.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError as error:
            raise ValueError(
                f"--port must be one that is free, got {port}: {error.strerror}. Choose another."
            ) from None


def _serve(uri: str, port: int) -> None:
    """Become the server: Ctrl-C and other signals then reach it, and none is left behind."""
    command = [
        *(sys.executable, "-m", "mlflow", "server"),
        *("--backend-store-uri", uri),
        *("--registry-store-uri", uri),
        *("--host", "127.0.0.1", "--port", str(port), "--workers", "1"),
        *("--uvicorn-opts", "--log-level warning"),
        *("--allowed-hosts", f"127.0.0.1:{port},localhost:{port}"),
    ]
    # The job runner would start eight more processes, which serve features that are not used.
    environment = os.environ | {
        "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",
        "DO_NOT_TRACK": "true",
        # MLflow's libraries warn of one another.
        "PYTHONWARNINGS": "ignore",
    }
    sys.stdout.flush()
    os.execve(sys.executable, command, environment)
