"""LSF: a job for the driver, and one for each group of workers."""

import re

from dtopk.launch.errors import ClusterError
from dtopk.launch.submit.back_end import JobState, Phase, Submission, run_program
from dtopk.launch.submit.record import SubmissionRecord
from dtopk.launch.submit.script import quote_directive, quote_log
from dtopk.launch.submit.separate import SeparateJobs

_PHASES: dict[str, Phase] = {
    "PEND": "waiting", "PSUSP": "waiting", "WAIT": "waiting", "PROV": "waiting",
    "RUN": "running", "USUSP": "running", "SSUSP": "running",
    "DONE": "ended", "EXIT": "ended", "ZOMBI": "ended",
}  # fmt: skip
_FAILURES = {
    "TERM_MEMLIMIT": "out_of_memory",
    "TERM_RUNLIMIT": "walltime",
    "TERM_OWNER": "cancelled",
    "TERM_ADMIN": "cancelled",
    "TERM_PREEMPT": "node",
}
_MEGABYTE = 10**6


class Lsf(SeparateJobs):
    """LSF."""

    name = "lsf"
    needs = ("bsub", "bjobs", "bkill")
    prefix = "#BSUB"
    job_id = "$LSB_JOBID"

    def make_directives(self, submission: Submission) -> list[str]:
        """Write what the driver's job asks for; memory in MB, which the site may read otherwise."""
        options = submission.options
        return [
            f"-J {quote_directive(submission.name, 'the name of the job')}",
            *([f"-q {options.queue}"] if options.queue else []),
            *([f"-P {options.account}"] if options.account else []),
            "-n 1",
            f"-M {-(-options.driver_memory_bytes // _MEGABYTE)}MB",
            *([f"-W {options.walltime}"] if options.walltime else []),
            f"-o {quote_log(submission.log_dir, 'job.log')}",
            "-r",
        ]

    def send(self, submission: Submission) -> SubmissionRecord:
        """Call bsub, which reads directives from its standard input alone."""
        said = run_program(["bsub"], stdin=submission.folder.script.read_text(encoding="utf-8"))
        found = re.search(r"<(\d+)>", said)
        if found is None:
            raise ClusterError(f"bsub must say the id of the job, but it says {said!r}.")
        return self.make_record(submission, found[1])

    def look(self, record: SubmissionRecord) -> JobState:
        """Ask bjobs, which remembers jobs for an hour or so after their end."""
        said = run_program(
            ["bjobs", "-noheader", "-o", "stat exec_host exit_reason delimiter='|'", record.job_id],
            may_fail=True,
        )
        fields = [field.strip() for field in said.strip().splitlines()[-1:] for field in
                  field.split("|")]  # fmt: skip
        if len(fields) < 3:  # it is not known
            return JobState(phase="unknown", word="unknown", reason="LSF has forgotten the job")
        word, hosts, why = fields[:3]
        node = re.sub(r"^\d+\*", "", hosts.split(":")[0]) if hosts != "-" else ""
        failure = next((kind for name, kind in _FAILURES.items() if name in why), "")
        return JobState(
            phase=_PHASES.get(word, "unknown"), word=word, reason=why if why != "-" else "",
            nodes=node, driver_node=node, failure=failure,
        )  # fmt: skip

    def end(self, job_id: str, *, now: bool) -> None:
        """Call bkill, with the signal by which the run commits unless it is to end at once."""
        run_program(["bkill", job_id] if now else ["bkill", "-s", "TERM", job_id])
