"""`dtopk logs`: what the processes of a submitted run have said."""

import glob
import time
from pathlib import Path

import click

from dtopk.cli.output import answer
from dtopk.cli.submission import ask, find_submission, list_logs
from dtopk.launch.submit import SubmissionRecord, make_back_end

_WHOSE = {"run": 0, "job": 1, "scheduler": 2, "workers": 3}
"""Places in the list of logs."""
_POLL_S = 0.5


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
    """Show what a submitted run has said.

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
    told = {}
    for path in found:
        text = path.read_bytes()
        told[path] = len(text)
        if len(found) > 1:
            answer(f"==> {path} <==")
        shown = text.decode("utf-8", errors="replace").splitlines()[-lines:]
        if shown:
            answer("\n".join(shown))
    while follow:
        has_ended = ask(record).phase == "ended"
        back_end.fetch_logs(record, whose)
        for path in _find(record, whose):
            told[path] = _show_more(path, told.get(path, 0))
        if has_ended:
            return
        time.sleep(_POLL_S)


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


def _show_more(path: Path, start: int) -> int:
    """Show what has been added to a log since; return its length."""
    with path.open("rb") as file:
        file.seek(start)
        text = file.read()
    # A line that is not whole is left for later.
    whole = text[: text.rfind(b"\n") + 1]
    if whole:
        answer(whole.decode("utf-8", errors="replace").rstrip("\n"))
    return start + len(whole)
