"""`dtopk submit`: train or sweep in a batch system, on Kubernetes, or in the background here."""

import contextlib
import dataclasses
import getpass
import re
import shlex
import shutil
import socket
from pathlib import Path
from typing import Any

import click

from dtopk.cli.output import (
    answer,
    answer_json,
    format_facts,
    json_option,
    tell,
    tell_written,
)
from dtopk.cli.submission import (
    dashboard_tunnel,
    far_tracking_place,
    list_logs,
    list_places,
    look_at,
    tracking_place,
)
from dtopk.job import SweepJob, TrainJob, job_to_toml
from dtopk.job.files import load_any_job
from dtopk.job.resumption import keep_cluster, keep_resolved
from dtopk.job.run_folder import RunFolder, name_run_folder
from dtopk.job.sweep_folder import SweepFolder
from dtopk.launch import ClusterError
from dtopk.launch.submit import (
    BACK_ENDS,
    BackEnd,
    Command,
    Submission,
    SubmissionFolder,
    SubmissionRecord,
    SubmitOptions,
    make_back_end,
    writing_for_no_others,
)
from dtopk_storage import open_store
from dtopk_storage.paths import as_path

_NAME_CHARACTERS = 40


@click.command()
@click.argument("job_path", metavar="JOB.toml")
@click.option(
    "--to", "target", required=True, type=click.Choice(list(BACK_ENDS)),
    help="The batch system, or 'kubernetes'; 'local': this machine, in the background.",
)  # fmt: skip
@click.option(
    "--set", "overrides", multiple=True, metavar="SECTION.KEY=VALUE",
    help="Replace a value of the job; may be given more than once.",
)  # fmt: skip
@click.option("--run-dir", default="", help="Folder of the run or sweep, instead of the job's.")
@click.option("--dry-run", is_flag=True, help="Print what would be sent, and do nothing.")
@json_option
def submit(
    job_path: str, target: str, overrides: tuple[str, ...], run_dir: str, dry_run: bool,
    as_json: bool,
) -> None:  # fmt: skip
    """Train as a job file says, in a batch system, on Kubernetes, or in this machine's background.

    A job with a section [sweep] is a sweep: its models are trained there, one after the other on
    the workers of the batch job, and the best are chosen.

    The section [submit] of the job says what is asked for; deploy/README.md describes it. The same
    command again, after a run or sweep has stopped or failed, goes on with it where its folder is
    named. What is set in this shell's environment, the job gets, but not on Kubernetes. For a run
    folder in an object store, script and logs are in a folder of its name in 'runs', or in
    submit.log_directory, which the nodes must see.

    \b
    Examples:
      dtopk submit job.toml --to local --run-dir runs/first
      dtopk submit job.toml --to slurm --set submit.nodes=4 --dry-run
      dtopk submit sweep.toml --to slurm --run-dir runs/sweep
      dtopk status runs/first
    """  # noqa: D301 (click wants the character itself)
    back_end = make_back_end(target)
    job = load_any_job(job_path, overrides, run_dir=run_dir)
    job = (_prepare_far_job if back_end.is_elsewhere else _prepare_job)(job, back_end)
    submission = _make_submission(job, back_end)
    sender = _choose_sender(back_end, submission)
    script = back_end.make_script(submission)
    if dry_run:
        answer(_describe_scripts(back_end, submission, script))
        return
    sender.check_programs()
    _check_free(submission.folder)
    with writing_for_no_others():
        record = _send(back_end, sender, submission, job, script)
    tell_written(submission.folder.path)
    facts = _describe(record, job, submission.folder.run.parent)
    if as_json:
        answer_json(facts)
    else:
        answer(format_facts(facts))
        run = shlex.quote(str(submission.folder.run))
        tell(f"How it goes: dtopk status {run}; dtopk logs {run}. To end it: dtopk cancel {run}")


def _prepare_job(job: TrainJob, back_end: BackEnd) -> TrainJob:
    """Put in the place of the run, and the numbers on which its bits depend."""
    place = name_run_folder(job.output.run_dir).absolute()
    if str(place).startswith("memory://"):
        raise ValueError(
            "output.run_dir must be a folder, or an address in an object store that the job "
            f"reaches, got {str(place)!r}, which is this process's own."
        )
    folder = SweepFolder(path=place) if isinstance(job, SweepJob) else RunFolder(path=place)
    folder.check_usable()
    open_store(job.data.store)
    options = _check_options(job, back_end)
    job = dataclasses.replace(job, output=dataclasses.replace(job.output, run_dir=str(place)))
    if not isinstance(place, Path):
        _check_same_folder(_place_here(job), str(place))
    in_workers = back_end.needs or job.cluster.kind != "none"
    if isinstance(folder, RunFolder) and folder.find_checkpoint() is not None:
        job = keep_resolved(job, folder)
    elif isinstance(folder, SweepFolder) and folder.read_record() is not None and in_workers:
        job = keep_cluster(job, folder.load_job())
    return _fix_partitions(job, options) if back_end.needs else job


def _prepare_far_job(job: TrainJob, back_end: BackEnd) -> TrainJob:
    """Do the same for a run that sees paths of its own, which are not looked at here."""
    options = _check_options(job, back_end)
    run_dir = str(name_run_folder(job.output.run_dir))
    job = dataclasses.replace(job, output=dataclasses.replace(job.output, run_dir=run_dir))
    back_end.check_places(options, list_places(job))
    folder = _place_here(job)
    _check_same_folder(folder, run_dir)
    if folder.record.is_file():
        # The job that was sent, which its run goes on with.
        job = keep_cluster(job, load_any_job(folder.job))
    return _fix_partitions(job, options)


def _place_here(job: TrainJob) -> SubmissionFolder:
    """Say where the files of a submission are whose run folder is no folder of this machine."""
    name = as_path(job.output.run_dir, name="output.run_dir").name
    return SubmissionFolder(run=Path(job.submit.log_directory or "runs").absolute() / name)


def _check_same_folder(folder: SubmissionFolder, run_dir: str) -> None:
    """Refuse a folder of a submission that is another run's, or another's submission."""
    advice = "Name another folder for such by submit.log_directory."
    if folder.record.is_file():
        before = folder.read_record().run_dir
        if before != run_dir:
            raise ValueError(
                f"folder of a submission must be that of one run folder, got {str(folder.run)!r} "
                f"for {run_dir!r}, which is that of {before!r}. {advice}"
            )
    elif not RunFolder(path=folder.run).is_empty():
        raise ValueError(
            f"folder of a submission must be new or empty, got {str(folder.run)!r} for "
            f"{run_dir!r}, which is in use: script and logs would lie with what is another's. "
            f"{advice}"
        )


def _check_options(job: TrainJob, back_end: BackEnd) -> SubmitOptions:
    options = job.submit.make_options()
    try:
        back_end.check(options)
    except ValueError as error:
        raise job.submit.blame(error) from error
    return options


def _fix_partitions(job: TrainJob, options: SubmitOptions) -> TrainJob:
    """Put in the numbers on which the bits of a run depend, so that they stay."""
    cluster = dataclasses.replace(
        job.cluster,
        partitions=job.cluster.partitions or options.n_workers,
        threads_per_partition=job.cluster.threads_per_partition or options.threads_per_worker,
    )
    if cluster.min_workers > options.n_workers:
        raise ValueError(
            f"cluster.min_workers must be at most the {options.n_workers} workers that are asked "
            f"for, submit.nodes times submit.processes, got {cluster.min_workers}."
        )
    return dataclasses.replace(job, cluster=cluster)


def _make_submission(job: TrainJob, back_end: BackEnd) -> Submission:
    options = job.submit.make_options()
    if back_end.is_elsewhere:
        return _make_elsewhere(job, options)
    place, cluster = options.log_directory, job.cluster
    run_dir = as_path(job.output.run_dir, name="output.run_dir")
    is_far = not isinstance(run_dir, Path)
    folder = _place_here(job) if is_far else SubmissionFolder(run=Path(job.output.run_dir))
    name = re.sub(r"[^\w.-]+", "-", folder.run.name)[:_NAME_CHARACTERS]
    is_apart = place and not is_far
    return Submission(
        folder=folder,
        options=options,
        log_dir=Path(place).absolute() / folder.run.name if is_apart else folder.path,
        name=f"dtopk-{name}",
        command=_name_command(job),
        commits="" if is_far or job.output.state_url else _name_commits(job, folder),
        tls=(cluster.tls_ca, cluster.tls_cert, cluster.tls_key) if cluster.tls_ca else (),
        run_dir=job.output.run_dir if is_far else "",
    )


def _name_command(job: TrainJob) -> Command:
    return "sweep" if isinstance(job, SweepJob) else "train"


def _name_commits(job: TrainJob, folder: SubmissionFolder) -> str:
    """Name the folder on disk in which commits are seen."""
    if isinstance(job, SweepJob):
        return str(SweepFolder(path=folder.run).settings)
    return str(RunFolder(path=folder.run).state)


def _make_elsewhere(job: TrainJob, options: SubmitOptions) -> Submission:
    folder = _place_here(job)
    number = len(folder.read_record().earlier) + 2 if folder.record.is_file() else 1
    return Submission(
        folder=folder,
        options=options,
        log_dir=folder.path,
        name=folder.run.name,
        command=_name_command(job),
        run_dir=job.output.run_dir,
        job_toml=job_to_toml(job),
        number=number,
    )


def _choose_sender(back_end: BackEnd, submission: Submission) -> BackEnd:
    """Choose what starts the script: the batch system, or this machine."""
    is_here = back_end.needs and submission.options.driver == "here"
    return make_back_end("local") if is_here else back_end


def _describe_scripts(back_end: BackEnd, submission: Submission, script: str) -> str:
    if not (back_end.needs and submission.options.form == "workers"):
        return script.rstrip("\n")
    # Imported here, as dask-jobqueue is, which form 'nodes' does not need.
    from dtopk.launch.submit.worker_jobs import describe_worker_jobs, make_worker_script

    worker = make_worker_script(describe_worker_jobs(back_end.name, submission))
    return (
        f"{script}\n# The script of each worker's job, which the one above submits "
        f"{submission.options.nodes} times; SCHEDULER and NAME are put in then:\n\n{worker}"
    ).rstrip("\n")


def _check_free(folder: SubmissionFolder) -> None:
    """Refuse a run whose job is in the queue, or runs."""
    if not folder.record.is_file():
        return
    record = folder.read_record()
    if look_at(record).phase in ("waiting", "running"):
        raise ValueError(
            f"{record.work} folder must have no job under way, got {record.run_dir!r}, whose "
            f"{record.back_end} job {record.job_id} is. `dtopk status` shows it, `dtopk cancel` "
            "ends it."
        )


def _send(
    back_end: BackEnd, sender: BackEnd, submission: Submission, job: TrainJob, script: str
) -> SubmissionRecord:
    """Write the files of a submission, and send it; what is not taken or noted leaves nothing."""
    folder = submission.folder
    is_new = not folder.record.is_file()
    earlier: tuple[str, ...] = ()
    if not is_new:
        before = folder.read_record()
        earlier = (*before.earlier, before.job_id)
    record = None
    try:
        folder.create()
        submission.log_dir.mkdir(parents=True, exist_ok=True)
        for name in ("cancelled", "failures"):
            (folder.path / name).unlink(missing_ok=True)
        folder.job.write_text(job_to_toml(job), encoding="utf-8")
        back_end.script_path(folder).write_text(script, encoding="utf-8")
        back_end.prepare(submission)
        record = sender.send(submission)
        record = dataclasses.replace(
            record,
            earlier=earlier,
            form=submission.options.form if back_end.needs else "",
            dashboard_port=submission.options.dashboard_port if back_end.needs else 0,
        )
        folder.write_record(record)
    except BaseException:
        if record is not None:
            # Nobody would find it again.
            with contextlib.suppress(ClusterError, OSError):
                sender.cancel(record, now=True)
        if is_new:
            shutil.rmtree(folder.path, ignore_errors=True)
            for each in (submission.log_dir, folder.run):
                with contextlib.suppress(OSError):
                    each.rmdir()
        raise
    return record


def _describe(record: SubmissionRecord, job: TrainJob, runs: Path) -> dict[str, Any]:
    """Collect what there is to know where the job has not begun yet."""
    back_end = make_back_end(record.back_end)
    name = socket.getfqdn()
    login = f"{getpass.getuser()}@{record.host if name.startswith('localhost') else name}"
    facts: dict[str, Any] = {
        "job": record.job_id,
        "to": record.back_end,
        "run_folder": record.run_dir,
        "logs": ", ".join(list_logs(record)),
        **(far_tracking_place(job) if back_end.is_elsewhere else tracking_place(job, runs, login)),
    }
    if record.namespace:
        facts["namespace"] = record.namespace
    if back_end.tunnel(record):
        facts["dashboard"] = back_end.tunnel(record)
    elif record.dashboard_port:
        node = "127.0.0.1" if record.back_end == "local" else "NODE"
        facts["dashboard"] = dashboard_tunnel(node, record.dashboard_port, login)
    return facts
