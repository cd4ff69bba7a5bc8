"""`dtopk report`: one page about some runs."""

from pathlib import Path

import click

from dtopk.atomic import write_text
from dtopk.cli.output import tell_written
from dtopk.cli.progress import RowProgress
from dtopk.job.report import collect_run
from dtopk.job.report_page import write_page


@click.command()
@click.argument("paths", metavar="RUN...", nargs=-1, required=True)
@click.option(
    "--out", "out_path", required=True, type=click.Path(dir_okay=False, path_type=Path),
    help="HTML file to write.",
)  # fmt: skip
def report(paths: tuple[str, ...], out_path: Path) -> None:
    """Write one HTML page about some runs, to be read without a network.

    It compares their certificates, times and accuracies, and shows the gap and the accuracy by
    epoch, top-k accuracy, accuracy by class and the most confused classes, for which each model is
    evaluated on a split that its job evaluates and it was not trained on. Of a calibrated model it
    shows how honest its probabilities and sets are there.
    """
    runs = []
    for path in paths:
        with RowProgress(f"evaluating {path}") as progress:
            runs.append(collect_run(path, progress=progress))
    write_text(out_path, write_page(runs))
    tell_written(out_path)
