"""`dtopk report`: one page about some runs, or about a sweep."""

from pathlib import Path

import click

from dtopk.atomic import write_text
from dtopk.cli.output import tell_written
from dtopk.cli.progress import RowProgress
from dtopk.job.report import collect_run
from dtopk.job.report_page import write_page
from dtopk.job.sweep_page import write_sweep_page
from dtopk.job.sweep_report import collect_sweep, is_sweep


@click.command()
@click.argument("paths", metavar="RUN...", nargs=-1, required=True)
@click.option(
    "--out", "out_path", required=True, type=click.Path(dir_okay=False, path_type=Path),
    help="HTML file to write.",
)  # fmt: skip
def report(paths: tuple[str, ...], out_path: Path) -> None:
    """Write one HTML page about some runs, or about a sweep, to be read without a network.

    It compares their certificates, times and accuracies, and shows the gap and the accuracy by
    epoch, top-k accuracy, accuracy by class and the most confused classes, for which each model is
    evaluated on a split that its job evaluates and it was not trained on. Of a calibrated model it
    shows how honest its probabilities and sets are there.

    Of a sweep it shows every setting, each metric against C, and the best ones as it shows runs.
    """
    sweeps = [path for path in paths if is_sweep(path)]
    if sweeps:
        if len(paths) > 1:
            raise ValueError(
                f"RUN must be one sweep, or any number of runs, got the sweep {sweeps[0]!r} among "
                f"{len(paths)}. Write a page of each."
            )
        with RowProgress(f"evaluating {paths[0]}") as progress:
            page = write_sweep_page(collect_sweep(paths[0], progress=progress))
        write_text(out_path, page)
        tell_written(out_path)
        return
    runs = []
    for path in paths:
        with RowProgress(f"evaluating {path}") as progress:
            runs.append(collect_run(path, progress=progress))
    write_text(out_path, write_page(runs))
    tell_written(out_path)
