"""`dtopk cancel`: end a submitted run or sweep."""

import shlex

import click

from dtopk.cli.output import answer, tell
from dtopk.cli.submission import find_submission, look_at
from dtopk.launch.submit import make_back_end


@click.command()
@click.argument("run", metavar="RUN_DIR or JOB_ID")
@click.option("--now", is_flag=True, help="Kill it, without a last commit.")
def cancel(run: str, now: bool) -> None:
    """End a submitted run or sweep, or take it out of the queue.

    A run that has begun commits its state, works out its certificate and stops, which may take as
    long as a pass over the rows. A sweep does the same with the model that is under way, and keeps
    those that are done. Both can be submitted again later, and go on.
    """
    folder = find_submission(run)
    record = folder.read_record()
    state = look_at(record)
    what = f"{record.back_end} job {record.job_id}"
    back_end = make_back_end(record.back_end)
    if state.phase == "ended":
        back_end.clear(record)
        answer(f"{what} has ended already ({state.word}).")
        return
    folder.cancelled.touch()
    if back_end.is_elsewhere and not now and state.phase == "running":
        tell(f"{what} commits and stops, which is waited for.")
    back_end.cancel(record, now=now)
    shown = shlex.quote(record.run_dir)
    if now or state.phase == "waiting" or back_end.is_elsewhere:
        answer(f"{what} is cancelled.")
    else:
        answer(f"{what} commits and stops; `dtopk status {shown}` says when it has ended.")
