"""`dtopk logs`: what the processes of a submitted run or sweep have said."""

import glob
import os
import time
from pathlib import Path

import click

from dtopk.cli.output import answer
from dtopk.cli.submission import ask, find_submission, list_logs
from dtopk.launch.submit import SubmissionRecord, make_back_end

_WHOSE = {"run": 0, "job": 1, "scheduler": 2, "workers": 3}
"""Places in the list of logs."""
_POLL_S = 0.5
_FAR_POLL_S = 3.0
"""Where logs come over a network."""


@click.command()
@click.argument("run", metavar="[RUN_DIR or JOB_ID]", default="")
@click.option(
    "--of", "whose", type=click.Choice([*_WHOSE, "all"]), default="run", show_default=True,
    help="Whose: of the training itself, the batch job, the scheduler, or the workers.",
)  # fmt: skip
@click.option(
    "-n", "--lines", type=click.IntRange(min=1), default=50, show_default=True,
    help="Show so many lines of each log, the last ones.",
)  # fmt: skip
@click.option("-f", "--follow", is_flag=True, help="Go on with what is added, until the job ends.")
def logs(run: str, whose: str, lines: int, follow: bool) -> None:
    """Show what a submitted run or sweep has said.

    Without an argument it is the newest one in this folder, or in its folder 'runs'.
    """
    record = find_submission(run).read_record()
    back_end = make_back_end(record.back_end)
    back_end.fetch_logs(record, whose)
    found = _find(record, whose)
    if not found and not follow:
        raise ValueError(
            f"the log must be there to be shown, got none yet of {whose!r} in {record.log_dir!r}. "
            "`dtopk status` says whether the job has begun."
        )
    told: dict[Path, tuple[int, int]] = {}
    for path in found:
        with path.open("rb") as file:
            text = file.read()
            told[path] = (os.fstat(file.fileno()).st_ino, len(text))
        if len(found) > 1:
            answer(f"==> {path} <==")
        shown = text.decode("utf-8", errors="replace").splitlines()[-lines:]
        if shown:
            answer("\n".join(shown))
    while follow:
        has_ended = ask(record).phase == "ended"
        back_end.fetch_logs(record, whose)
        for path in _find(record, whose):
            told[path] = _show_more(path, told.get(path, (0, 0)))
        if has_ended:
            return
        time.sleep(_FAR_POLL_S if back_end.is_elsewhere else _POLL_S)


def _find(record: SubmissionRecord, whose: str) -> list[Path]:
    patterns = list_logs(record)
    if whose != "all":
        patterns = patterns[_WHOSE[whose] : _WHOSE[whose] + 1]
    folder = glob.escape(record.log_dir)
    return [
        Path(path)
        for pattern in patterns
        for path in sorted(glob.glob(f"{folder}/{Path(pattern).name}"))
    ]


def _show_more(path: Path, told: tuple[int, int]) -> tuple[int, int]:
    """Show what has been added to a log since, or all of one that has taken its place.

    Parameters
    ----------
    path : Path
    told : (int, int)
        Number of the file that was shown, and the bytes of it that were.

    Returns
    -------
    (int, int)
        The same, now.
    """
    number, start = told
    with path.open("rb") as file:
        found = os.fstat(file.fileno())
        if found.st_ino != number or found.st_size < start:
            start = 0
        file.seek(start)
        text = file.read()
    # A line that is not whole is left for later.
    whole = text[: text.rfind(b"\n") + 1]
    if whole:
        answer(whole.decode("utf-8", errors="replace").rstrip("\n"))
    return found.st_ino, start + len(whole)
