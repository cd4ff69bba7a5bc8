"""`dtopk track`: send MLflow what a run has kept for it."""

import click

from dtopk.cli.output import EXIT_FAILED, answer, report_error
from dtopk.job.recording import send_unsent
from dtopk.job.run_folder import RunFolder
from dtopk_storage.paths import as_path


@click.command()
@click.argument("run_dir", metavar="RUN_DIR")
@click.option(
    "--uri", default="", help="MLflow tracking URI.  [default: that which the run was recorded at]"
)
def track(run_dir: str, uri: str) -> int:
    """Send MLflow what a run has kept because MLflow was away.

    A run that goes on sends it by itself. What has been sent is not sent again.
    """
    from dtopk.tracking import SendError

    folder = RunFolder(path=as_path(run_dir, name="RUN_DIR"))
    try:
        described, n_entries = send_unsent(folder, uri)
    except SendError as error:
        report_error(f"{error}.")
        return EXIT_FAILED
    if described:
        answer(
            f"sent {n_entries} things that were kept, as MLflow run {described['run_id']} at "
            f"{described['uri']}"
        )
    else:
        answer("nothing is kept for MLflow: it has all of the run.")
    return 0
