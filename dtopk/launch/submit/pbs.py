"""PBS (OpenPBS, PBS Professional): a job for the driver, and one for each group of workers."""

import re

from dtopk.launch.errors import ClusterError
from dtopk.launch.submit.back_end import JobState, Phase, Submission, run_program
from dtopk.launch.submit.record import SubmissionRecord
from dtopk.launch.submit.script import quote_directive, quote_log
from dtopk.launch.submit.separate import SeparateJobs

_PHASES: dict[str, Phase] = {
    "Q": "waiting", "H": "waiting", "W": "waiting", "T": "waiting", "M": "waiting",
    "R": "running", "B": "running", "E": "running", "S": "running", "U": "running",
    "F": "ended", "X": "ended", "C": "ended",
}  # fmt: skip
_FAILURES = {"-29": "walltime", "-27": "out_of_memory", "271": "cancelled", "137": "out_of_memory"}
"""By exit status: of a job over its walltime, one over its memory, one that was deleted."""
_MEBIBYTE = 2**20


class Pbs(SeparateJobs):
    """PBS."""

    name = "pbs"
    needs = ("qsub", "qstat", "qdel")
    prefix = "#PBS"
    job_id = "$PBS_JOBID"

    def make_directives(self, submission: Submission) -> list[str]:
        """Write what the driver's job asks for."""
        options = submission.options
        memory = -(-options.driver_memory_bytes // _MEBIBYTE)
        return [
            f"-N {quote_directive(submission.name, 'the name of the job')}",
            "-S /bin/bash",  # it takes the user's own shell otherwise, whatever the first line says
            *([f"-q {options.queue}"] if options.queue else []),
            *([f"-A {options.account}"] if options.account else []),
            f"-l select=1:ncpus=1:mem={memory}MB",
            *([f"-l walltime={options.walltime}"] if options.walltime else []),
            "-j oe",
            f"-o {quote_log(submission.log_dir, 'job.log')}",
            "-V",
            "-r y",
        ]

    def send(self, submission: Submission) -> SubmissionRecord:
        """Call qsub."""
        said = run_program(["qsub", str(submission.folder.script)])
        return self.make_record(submission, said.strip())

    def look(self, record: SubmissionRecord) -> JobState:
        """Ask qstat, also about jobs that have ended."""
        try:
            said = run_program(["qstat", "-x", "-f", record.job_id])
        except ClusterError as error:
            if "Unknown Job" not in str(error):
                raise
            return JobState(phase="unknown", word="unknown", reason="PBS has forgotten the job")
        # A value that is too long goes on in the next line, after a tab.
        fields = dict(re.findall(r"^\s*([\w.]+) = (.*)$", said.replace("\n\t", ""), re.MULTILINE))
        word = fields.get("job_state", "?")
        status = fields.get("Exit_status", "")
        node = re.split(r"[/+]", fields.get("exec_host", ""), maxsplit=1)[0]
        runs = fields.get("run_count", "1")
        return JobState(
            phase=_PHASES.get(word, "unknown"),
            word=word,
            reason=fields.get("comment", ""),
            nodes=node,
            driver_node=node,
            restarts=max(int(runs) - 1, 0) if runs.isdigit() else 0,
            failure=_FAILURES.get(status, ""),
        )

    def end(self, job_id: str, *, now: bool) -> None:
        """Call qdel, or qsig where the run is to commit."""
        run_program(["qdel", job_id] if now else ["qsig", "-s", "SIGTERM", job_id])
