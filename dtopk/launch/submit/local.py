"""Runs in the background of this machine, which go on when the terminal is closed."""

import contextlib
import signal
import socket
import subprocess
import time

import psutil

from dtopk.launch.errors import ClusterError
from dtopk.launch.submit.back_end import BackEnd, JobState, Submission
from dtopk.launch.submit.options import SubmitOptions
from dtopk.launch.submit.record import SubmissionRecord
from dtopk.launch.submit.script import join_parts, make_begin, make_head, make_run

_START = 'bash "$1" >> "$2" 2>&1 < /dev/null & echo $!'
"""Its parent ends at once, so that the script is nobody's child and stays when we end."""
_SAME_S = 0.05
"""Of two processes of one id the later one begins more than this after the other."""


class Local(BackEnd):
    """The machine that `dtopk submit` is called on."""

    name = "local"

    def check(self, options: SubmitOptions) -> None:
        """Take them all: the job's section [cluster] says where training runs."""

    def make_script(self, submission: Submission) -> str:
        """Write the script: the run, and what is noted of it."""
        begin = make_begin(submission, may_move=False)
        return join_parts(
            [*make_head(submission, []), begin, *make_run(submission), 'exit "$status"']
        )

    def send(self, submission: Submission) -> SubmissionRecord:
        """Start the script in a session of its own."""
        log = submission.log_dir / "job.log"
        done = subprocess.run(
            ["bash", "-c", _START, "dtopk", str(submission.folder.script), str(log)],
            start_new_session=True,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=True,
        )
        pid = int(done.stdout)
        began = 0.0
        with contextlib.suppress(psutil.NoSuchProcess):  # it has ended already
            began = psutil.Process(pid).create_time()
        return self.make_record(submission, str(pid), began or time.time())

    def look(self, record: SubmissionRecord) -> JobState:
        """Look for the process of the script."""
        _check_host(record)
        if _find_process(record) is not None:
            return JobState(phase="running", word="running", nodes=record.host)
        return JobState(phase="ended", word="ended", nodes=record.host)

    def cancel(self, record: SubmissionRecord, *, now: bool) -> None:
        """Have the run stop, or kill its processes."""
        _check_host(record)
        script = _find_process(record)
        if script is None:
            return
        with contextlib.suppress(psutil.NoSuchProcess):
            if not now:
                script.send_signal(signal.SIGTERM)
                return
            # The script first, which would otherwise go on after its child.
            for process in (script, *script.children(recursive=True)):
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.kill()


def _check_host(record: SubmissionRecord) -> None:
    here = socket.gethostname()
    if record.host != here:
        raise ClusterError(
            f"the run in {record.run_dir!r} runs on the host {record.host!r} in the background, "
            f"and this is {here!r}. Ask there."
        )


def _find_process(record: SubmissionRecord) -> psutil.Process | None:
    """Return the process of the script; None if it has ended."""
    try:
        process = psutil.Process(int(record.job_id))
        is_same = abs(process.create_time() - record.process_began) < _SAME_S
        if is_same and process.status() != psutil.STATUS_ZOMBIE:
            return process
    except psutil.NoSuchProcess:
        pass
    return None
