"""`dtopk status`: what has become of a submitted run or sweep."""

import dataclasses
import getpass
import shlex
from typing import Any

import click

from dtopk.cli.output import answer, answer_json, format_facts, json_option
from dtopk.cli.submission import (
    Failure,
    ask,
    dashboard_tunnel,
    describe_age,
    find_dashboard,
    find_failure,
    find_submission,
    list_logs,
)
from dtopk.cli.submitted_progress import Progress, SweepProgress, read_progress
from dtopk.launch.submit import JobState, SubmissionFolder, SubmissionRecord, make_back_end

_PHASES = {
    "waiting": "waits in the queue",
    "running": "runs",
    "ended": "has ended",
    "unknown": "not known",
}
_UNSEEN = "its folder cannot be read from here; see `dtopk logs`"


@click.command()
@click.argument("run", metavar="[RUN_DIR or JOB_ID]", default="")
@json_option
def status(run: str, as_json: bool) -> None:
    """Show how a submitted run or sweep goes, and where it failed why, and what to do.

    Without an argument it is the newest one in this folder, or in its folder 'runs'. A job id is
    looked for there too.
    """
    folder = find_submission(run)
    record = folder.read_record()
    # Before the files: a run that ends in between has then written all that it writes.
    state = ask(record)
    progress = read_progress(folder)
    failure = None
    if state.phase == "ended" and not progress.finished:
        make_back_end(record.back_end).fetch_logs(record, "run")
    if state.phase in ("ended", "unknown") and not progress.finished:
        failure = find_failure(folder, record, state)
    if as_json:
        answer_json(_collect(folder, record, state, progress, failure))
    else:
        answer(_format(folder, record, state, progress, failure))


def _collect(
    folder: SubmissionFolder, record: SubmissionRecord, state: JobState, progress: Progress,
    failure: Failure | None,
) -> dict[str, Any]:  # fmt: skip
    return {
        "command": record.command,
        "run_dir": record.run_dir,
        "to": record.back_end,
        "job": record.job_id,
        "phase": state.phase,
        "state": state.word,
        "reason": state.reason,
        "nodes": state.nodes,
        "restarts": _count_restarts(folder, state),
        **progress.to_dict(),
        "committed": progress.committed,
        "finished": progress.finished,
        "certified": progress.certified,
        "failure": None if failure is None else dataclasses.asdict(failure),
        "logs": list_logs(record),
    }


def _count_restarts(folder: SubmissionFolder, state: JobState) -> int:
    """Count how often the run was started again for one submission; both may have missed some."""
    submitted = folder.read_record().submitted
    starts = [each for each in folder.read_attempts() if each.began >= submitted - 60]
    return max(state.restarts, len(starts) - 1, 0)


def _format(
    folder: SubmissionFolder, record: SubmissionRecord, state: JobState, progress: Progress,
    failure: Failure | None,
) -> str:  # fmt: skip
    reason = f": {state.reason}" if state.reason else ""
    nodes = f" on {state.nodes}" if state.nodes else ""
    facts = {
        record.work: record.run_dir,
        "job": f"{record.job_id} ({record.back_end}), {_PHASES[state.phase]}{nodes} "
        f"({state.word}{reason})",
        "progress": progress.describe() if progress.is_known else _UNSEEN,
        "last commit": _describe_commit(progress, record.work),
        "started again": _describe_restarts(_count_restarts(folder, state)),
    }
    if state.phase == "running" and record.dashboard_port:
        node = state.driver_node or state.nodes
        tunnel = make_back_end(record.back_end).tunnel(record)
        node = "127.0.0.1" if record.back_end == "local" else node
        port = find_dashboard(folder, record)
        login = f"{getpass.getuser()}@{record.host}"
        facts["dashboard"] = tunnel or dashboard_tunnel(node, port, login)
    if progress.finished:
        certified = "certified" if progress.certified else "not certified"
        if isinstance(progress, SweepProgress):
            certified = f"{'' if progress.certified else 'not '}all models are certified"
        facts["result"] = f"{certified}: dtopk info {shlex.quote(record.run_dir)}"
    if failure is not None:
        facts["why it ended"] = failure.text
        facts["what to do"] = failure.advice
    elif state.phase == "ended" and not progress.is_known:
        facts["result"] = f"it ended well; its last lines: dtopk logs {shlex.quote(record.job_id)}"
    elif state.phase == "ended" and not progress.finished:
        facts["why it ended"] = "It stopped by a limit of its job, before the tolerance."
        facts["what to do"] = (
            "To go on, raise solver.max_epochs or solver.time_limit_s, and submit it again with "
            "the same --run-dir."
        )
    return format_facts(facts)


def _describe_commit(progress: Progress, work: str) -> str:
    if progress.finished:
        return f"none needed: the {work} is done"
    if not progress.is_known:
        return "not known"
    if progress.committed is None:
        return "none yet"
    return f"{describe_age(progress.committed)}, {progress.describe_commit()}"


def _describe_restarts(restarts: int) -> str:
    return "never" if not restarts else "once" if restarts == 1 else f"{restarts} times"
