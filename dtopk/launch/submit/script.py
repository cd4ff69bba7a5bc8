"""The parts that the scripts of all back ends are put together from."""

import re
import shlex
from collections.abc import Sequence
from pathlib import Path

from dtopk.launch.submit.back_end import Submission

_NOT_IN_DIRECTIVES = re.compile(r"[\"'\\%\n\r]")
_NEEDS_QUOTES = re.compile(r"[^\w@+=:,./-]")

_FUNCTIONS = r"""
# What happens to the run is noted here, for `dtopk status`.
note() { printf '%s\n' "$*" >> "$place/attempts.log"; }

driver=
status=0
why=
woken=0

# The run saves what it has reached, and ends.
ask_to_stop() {
    woken=1
    why=asked
    [ -z "$driver" ] || kill -TERM "$driver" 2> /dev/null
}
trap ask_to_stop USR1 TERM

wait_for_driver() {
    [ -z "$why" ] || kill -TERM "$driver" 2> /dev/null
    while :; do
        woken=0
        wait "$driver"
        status=$?
        # A signal ends the wait, and not the run.
        [ "$woken" -eq 1 ] || break
    done
}
""".strip()

_CHECK = r"""
[ -w "$place" ] || { echo "the folder is gone, or not to be written to: $place" >&2; exit 2; }
""".strip()

_GO_TO_FOLDERS = r"""
# There MLflow has its file, where the job names no server.
cd "$place/../.."
""".strip()

# A lock lasts 60 s from the last sign of life, by clocks that differ a little.
_LET_LOCK_GO_OUT = r"""
# A run that was killed with its processes has left its lock in the object store: it goes out.
tail -n 1 "$place/attempts.log" 2> /dev/null | {
    read -r word _ ended _
    [ "$word" = begin ] || { [ "${ended:-0}" -gt 128 ] && [ "$ended" -ne 130 ]; }
} && { sleep 75 & wait $!; }
""".strip()

_BEGIN = r"""
note begin "$(date +%s)" "$(hostname)"
touch "$place/started"
""".strip()

_END = r"""
driver=$!
wait_for_driver
[ ! -e "$place/cancelled" ] || why=cancelled
note end "$(date +%s)" "$status" $why
""".strip()


_KEEPER = r"""
# Scheduler, and a job for each group of workers; another one for each that is lost.
scheduler_file={scheduler_file}
rm -f "$scheduler_file"
"$python" -m dtopk.launch.submit.worker_jobs "$place/workers.json" \
    --scheduler-file "$scheduler_file" >> "$logs/scheduler.log" 2>&1 < /dev/null &
scheduler=$!
""".strip()

_LOOK_FOR_COMMITS = r"""
progress=0
[ -z "$(find "$commits" \( -name state.json -o -name result.json \) -newer "$place/started" \
    2> /dev/null)" ] || progress=1
""".strip()

_ASK_FOR_COMMITS = r"""
progress=0
! "$python" -m dtopk.cli.committed "$place" || progress=1
""".strip()

END_OF_WORKER_JOBS = r"""
# The jobs of the workers are cancelled.
kill -HUP "$scheduler" 2> /dev/null
wait "$scheduler"
""".strip()

ON_WORKERS = ("--set cluster.kind=scheduler", '--set cluster.scheduler="$scheduler_file"')
"""Options of the command, for workers of a scheduler that the script has started."""


def quote_directive(value: str, what: str) -> str:
    """Quote a value for a directive, which is no line of shell.

    Parameters
    ----------
    value : str
    what : str
        Its name, for the message.

    Raises
    ------
    ValueError
        If it has characters that batch systems read each in a way of its own.
    """
    if _NOT_IN_DIRECTIVES.search(value):
        raise ValueError(
            f"{what} must have no quotes, backslashes, percent signs or line ends for a batch "
            f"system to take it, got {value!r}."
        )
    return f'"{value}"' if _NEEDS_QUOTES.search(value) else value


def quote_log(folder: Path, name: str) -> str:
    """Quote the path of a log for a directive; its name may have a percent sign, the folder none.

    Parameters
    ----------
    folder : Path
    name : str
        As the batch system takes it, such as 'job-%j.log'.
    """
    quoted = quote_directive(str(folder), "the folder of the logs")
    return f'{quoted[:-1]}/{name}"' if quoted.endswith('"') else f"{quoted}/{name}"


def make_directives(
    prefix: str, directives: Sequence[str], skip: Sequence[str], extra: Sequence[str]
) -> list[str]:
    """Write directives, each a line, without those that are to be left out.

    Parameters
    ----------
    prefix : str
        Such as '#SBATCH'.
    directives : sequence of str
    skip : sequence of str
        Texts; a directive that has one of them in it is left out.
    extra : sequence of str
        Directives to add, whatever `skip` says.
    """
    kept = [line for line in directives if not any(text in line for text in skip)]
    return [f"{prefix} {line}" for line in (*kept, *extra)]


def make_head(submission: Submission, directives: Sequence[str]) -> list[str]:
    """Write what every script begins with: directives, variables, the job's own lines, functions.

    Parameters
    ----------
    submission : Submission
    directives : sequence of str
        Whole lines.

    Returns
    -------
    list of str
        Parts of the script, to be set apart by empty lines.
    """
    folder = submission.folder
    variables = {
        "run": submission.run_dir or folder.run,
        "place": folder.path,
        "logs": submission.log_dir,
        "python": submission.python,
        "commits": submission.commits,
    }
    lines = [f"{name}={shlex.quote(str(value))}" for name, value in variables.items()]
    settings = ["set -u", "# What the run writes is nobody else's to change.", "umask o-w"]
    parts = ["\n".join(["#!/usr/bin/env bash", *directives]), "\n".join(settings), "\n".join(lines)]
    if submission.options.job_script_prologue:
        parts.append("\n".join(submission.options.job_script_prologue))
    return [*parts, _FUNCTIONS]


def make_run(submission: Submission, *settings: str) -> list[str]:
    """Write how the run is started and waited for.

    Parameters
    ----------
    submission : Submission
    *settings : str
        Lines of shell, each an option of the command.
    """
    command = [
        f'"$python" -m dtopk.cli {submission.command} "$place/job.toml" --run-dir "$run"',
        *settings,
        '>> "$logs/run.log" 2>&1 < /dev/null &',
    ]
    return [" \\\n    ".join(command) + "\n" + _END]


def make_begin(submission: Submission, *, may_move: bool = True) -> str:
    """Write what is seen to before the start, and how it is noted.

    Parameters
    ----------
    submission : Submission
    may_move : bool
        Whether a later start may be on another machine, which does not see that a process is gone.
    """
    far = [_GO_TO_FOLDERS, *([_LET_LOCK_GO_OUT] if may_move else [])] if submission.run_dir else []
    return "\n".join([_CHECK, *far, _BEGIN])


def make_progress_check(submission: Submission) -> str:
    """Write how it is found out whether there was a commit since the start.

    Parameters
    ----------
    submission : Submission
    """
    return _LOOK_FOR_COMMITS if submission.commits else _ASK_FOR_COMMITS


def make_driver_script(submission: Submission, directives: Sequence[str], job_id: str) -> str:
    """Write the script of a driver whose workers are jobs of their own; it starts nothing again.

    Parameters
    ----------
    submission : Submission
    directives : sequence of str
        Whole lines.
    job_id : str
        The job's id, as a word of the shell.
    """
    return join_parts(
        [
            *make_head(submission, directives),
            make_begin(submission),
            make_keeper(f'"$place"/scheduler-{job_id}.json'),
            *make_run(submission, *ON_WORKERS),
            END_OF_WORKER_JOBS,
            'exit "$status"',
        ]
    )


def make_keeper(scheduler_file: str) -> str:
    """Write how scheduler and jobs of workers are started.

    Parameters
    ----------
    scheduler_file : str
        As a word of the shell.
    """
    return _KEEPER.format(scheduler_file=scheduler_file)


def join_parts(parts: Sequence[str]) -> str:
    """Put a script together."""
    return "\n\n".join(parts) + "\n"
