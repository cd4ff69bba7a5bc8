"""SGE (Son of Grid Engine, Univa): a job for the driver, and one for each group of workers."""

import re

from dtopk.launch.errors import ClusterError
from dtopk.launch.submit.back_end import JobState, Submission, run_program
from dtopk.launch.submit.record import SubmissionRecord
from dtopk.launch.submit.script import quote_directive, quote_log
from dtopk.launch.submit.separate import SeparateJobs

_MEBIBYTE = 2**20
_STATE_COLUMN = 4
_QUEUE_COLUMN = 7


class Sge(SeparateJobs):
    """SGE."""

    name = "sge"
    needs = ("qsub", "qstat", "qdel")
    prefix = "#$"
    job_id = "$JOB_ID"

    def make_directives(self, submission: Submission) -> list[str]:
        """Write what the driver's job asks for."""
        options = submission.options
        memory = -(-options.driver_memory_bytes // _MEBIBYTE)
        return [
            f"-N {quote_directive(submission.name, 'the name of the job')}",
            "-S /bin/bash",
            *([f"-q {options.queue}"] if options.queue else []),
            *([f"-P {options.account}"] if options.account else []),
            f"-l h_vmem={memory}M",
            *([f"-l h_rt={options.walltime}"] if options.walltime else []),
            "-j y",
            f"-o {quote_log(submission.log_dir, 'job.log')}",
            "-V",
            "-r y",
        ]

    def send(self, submission: Submission) -> SubmissionRecord:
        """Call qsub."""
        said = run_program(["qsub", "-terse", str(submission.folder.script)])
        found = re.search(r"\d+", said)
        if found is None:
            raise ClusterError(f"qsub must say the id of the job, but it says {said!r}.")
        return self.make_record(submission, found[0])

    def look(self, record: SubmissionRecord) -> JobState:
        """Ask qstat, and qacct about a job that is in no queue."""
        for line in run_program(["qstat"], may_fail=True).splitlines():
            words = line.split()
            if len(words) > _QUEUE_COLUMN and words[0] == record.job_id:
                return _read_state(words)
        said = run_program(["qacct", "-j", record.job_id], may_fail=True)
        fields = dict(re.findall(r"^(\w+)\s+(.*?)\s*$", said, re.MULTILINE))
        if not fields:
            return JobState(phase="unknown", word="unknown", reason="SGE has forgotten the job")
        # 37: 'qmaster enforced h_rt, h_cpu, or h_vmem limit'.
        failure = "walltime" if fields.get("failed", "").startswith("37") else ""
        failed = fields.get("failed", "0")
        return JobState(
            phase="ended", word="ended", reason="" if failed == "0" else failed,
            nodes=fields.get("hostname", ""), driver_node=fields.get("hostname", ""),
            failure=failure,
        )  # fmt: skip

    def end(self, job_id: str, *, now: bool) -> None:
        """Call qdel; with `-notify` SGE sends SIGUSR2 before, which not all sites give time for."""
        run_program(["qdel", job_id])


def _read_state(words: list[str]) -> JobState:
    word = words[_STATE_COLUMN]
    is_running = "q" not in word and bool(re.search(r"[rtRd]", word))
    node = words[_QUEUE_COLUMN].rpartition("@")[2] if is_running else ""
    return JobState(
        phase="running" if is_running else "waiting", word=word, nodes=node, driver_node=node
    )
