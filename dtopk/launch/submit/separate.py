"""What batch systems share in which each group of workers is a job of its own."""

import abc
from typing import ClassVar

from dtopk.launch.submit.back_end import BackEnd, Submission
from dtopk.launch.submit.options import SubmitOptions
from dtopk.launch.submit.record import SubmissionRecord
from dtopk.launch.submit.script import make_directives, make_driver_script
from dtopk.launch.submit.worker_jobs import write_worker_options


class SeparateJobs(BackEnd):
    """A batch system that gets a job for the driver, and one for each group of workers."""

    prefix: ClassVar[str]
    """What a directive begins with."""
    job_id: ClassVar[str]
    """The shell variable in which a script finds the id of its job."""

    def check(self, options: SubmitOptions) -> None:
        """Refuse the form that only SLURM has.

        Raises
        ------
        ValueError
        """
        if options.form != "workers":
            raise ValueError(
                f"form must be 'workers' for {self.name!r}, got {options.form!r}: jobs of "
                "several nodes are made for SLURM alone."
            )
        super().check(options)

    def make_script(self, submission: Submission) -> str:
        """Write the script of the driver."""
        options = submission.options
        if options.driver == "here":
            return make_driver_script(submission, [], "$$")
        directives = make_directives(
            self.prefix, self.make_directives(submission), options.job_directives_skip,
            options.job_extra_directives,
        )  # fmt: skip
        return make_driver_script(submission, directives, f'"{self.job_id}"')

    def prepare(self, submission: Submission) -> None:
        """Write what jobs of workers ask for."""
        write_worker_options(self.name, submission)

    def cancel(self, record: SubmissionRecord, *, now: bool) -> None:
        """Have the script stop the run, or end the job; one that waits has nothing to save."""
        self.end(record.job_id, now=now or self.look(record).phase != "running")

    @abc.abstractmethod
    def make_directives(self, submission: Submission) -> list[str]:
        """Write what the driver's job asks for, each without the prefix."""

    @abc.abstractmethod
    def end(self, job_id: str, *, now: bool) -> None:
        """End a job, or have its run commit and stop."""
