"""SLURM: one job of several nodes, or a job for the driver and one for each worker."""

import contextlib
import re
import shlex

from dtopk.launch.errors import ClusterError
from dtopk.launch.submit.back_end import BackEnd, JobState, Phase, Submission, run_program
from dtopk.launch.submit.record import SubmissionRecord
from dtopk.launch.submit.script import (
    END_OF_WORKER_JOBS,
    ON_WORKERS,
    join_parts,
    make_begin,
    make_directives,
    make_driver_script,
    make_head,
    make_keeper,
    make_progress_check,
    make_run,
    quote_directive,
    quote_log,
)
from dtopk.launch.submit.worker_jobs import write_worker_options

_WAITING = frozenset({"PENDING", "CONFIGURING", "REQUEUED", "REQUEUE_HOLD", "REQUEUE_FED",
                      "SPECIAL_EXIT", "RESV_DEL_HOLD"})  # fmt: skip
_RUNNING = frozenset({"RUNNING", "COMPLETING", "STAGE_OUT", "SIGNALING", "SUSPENDED", "STOPPED",
                      "RESIZING"})  # fmt: skip
_FAILURES = {
    "OUT_OF_MEMORY": "out_of_memory",
    "TIMEOUT": "walltime",
    "DEADLINE": "walltime",
    "NODE_FAIL": "node",
    "BOOT_FAIL": "node",
    "CANCELLED": "cancelled",
    "PREEMPTED": "node",
}
_MEBIBYTE = 2**20
_NO_REASON = frozenset({"", "None", "(null)"})
_UNKNOWN_JOB = "Invalid job id"

# The scheduler and the driver run beside the workers of the first node; there the script can
# pass signals on, and note how the run has ended.
_SCHEDULER = r"""
scheduler_file=$place/scheduler-$SLURM_JOB_ID.json
rm -f "$scheduler_file"
"$python" -m dtopk.launch.rank scheduler --scheduler-file "$scheduler_file" {options} \
    >> "$logs/scheduler.log" 2>&1 < /dev/null &
scheduler=$!
""".strip()

_WORKERS = r"""
# Each worker is a step of its own. One that ends, or whose step is killed, is started again for as
# long as the job lasts. When a node is lost, SLURM puts the whole job back into the queue.
alive=$place/alive-$SLURM_JOB_ID
touch "$alive"
keep_worker() {{
    trap - USR1 TERM
    local pause=2 began
    while [ -e "$alive" ]; do
        began=$SECONDS
        srun --nodes=1 --ntasks=1 --nodelist="$1" --cpus-per-task={cpus} --mem=0 --overlap \
            --kill-on-bad-exit=0 --no-kill --export=ALL \
            "$python" -m dtopk.launch.rank worker --scheduler-file "$scheduler_file" \
            --name "$1-$2-${{SLURM_RESTART_COUNT:-0}}" {options} \
            >> "$logs/worker-$1-$2.log" 2>&1 < /dev/null
        # The longer, the more often it does not even start.
        [ $((SECONDS - began)) -lt 30 ] || pause=2
        sleep "$pause"
        [ "$pause" -ge 60 ] || pause=$((2 * pause))
    done
}}
for node in $(scontrol show hostnames "$SLURM_JOB_NODELIST"); do
    for number in $(seq {processes}); do
        keep_worker "$node" "$number" &
    done
done
""".strip()

_END_NODES = r"""
# Workers end when their scheduler does.
rm -f "$alive"
kill -HUP "$scheduler" 2> /dev/null
""".strip()

_REQUEUE = r"""
# A run that was asked to stop by the batch system goes on later, and so does one that failed,
# {retries} times in a row at most. One that was refused (status 2) would be refused again.
if [ "$status" -eq 0 ] || [ "$status" -eq 2 ] || [ "$why" = cancelled ]; then
    exit "$status"
fi
failures=$(cat "$place/failures" 2> /dev/null || echo 0)
{progress_check}
[ "$progress" -eq 0 ] || failures=0
[ "$why$progress" = asked1 ] || failures=$((failures + 1))
echo "$failures" > "$place/failures"
if [ "$failures" -gt {retries} ]; then
    echo "the {work} has failed $failures times in a row without a commit: it is not started again."
    exit "$status"
fi
# A job that SLURM has cancelled, or put back itself, is not ours to start again.
if [ "$(squeue --noheader --jobs="$SLURM_JOB_ID" --format=%T)" = RUNNING ]; then
    scontrol requeue "$SLURM_JOB_ID" && sleep 60
fi
exit "$status"
""".strip()


class Slurm(BackEnd):
    """SLURM."""

    name = "slurm"
    needs = ("sbatch", "scontrol", "squeue", "scancel")

    def make_script(self, submission: Submission) -> str:
        """Write a script that looks after the run until it is done, and puts it in the queue again.

        Parameters
        ----------
        submission : Submission

        Returns
        -------
        str
        """
        if submission.options.driver == "here":
            return make_driver_script(submission, [], "$$")
        is_one_job = submission.options.form == "nodes"
        directives = _make_directives(submission)
        keeper = make_keeper('"$place/scheduler-$SLURM_JOB_ID.json"')
        begin = [make_begin(submission), *(_start_nodes(submission) if is_one_job else [keeper])]
        run = make_run(submission, *ON_WORKERS)
        end = _END_NODES if is_one_job else END_OF_WORKER_JOBS
        requeue = _REQUEUE.format(
            progress_check=make_progress_check(submission),
            retries=submission.options.retries,
            work=submission.work,
        )
        return join_parts([*make_head(submission, directives), *begin, *run, end, requeue])

    def prepare(self, submission: Submission) -> None:
        """Write what jobs of workers ask for."""
        if submission.options.form == "workers":
            write_worker_options(self.name, submission)

    def send(self, submission: Submission) -> SubmissionRecord:
        """Call sbatch."""
        said = run_program(["sbatch", "--parsable", str(submission.folder.script)])
        job_id = said.strip().splitlines()[-1].partition(";")[0] if said.strip() else ""
        if not job_id.isdigit():
            raise ClusterError(f"sbatch must say the id of the job, but it says {said!r}.")
        return self.make_record(submission, job_id)

    def look(self, record: SubmissionRecord) -> JobState:
        """Ask scontrol, and sacct for what has ended a while ago."""
        try:
            shown = run_program(["scontrol", "--oneliner", "show", "job", record.job_id])
        except ClusterError as error:
            if _UNKNOWN_JOB not in str(error):
                raise
            return _ask_accounts(record.job_id)
        return parse_scontrol(shown)

    def cancel(self, record: SubmissionRecord, *, now: bool) -> None:
        """Have the script stop the run, or end the job; one that waits has nothing to save."""
        job_id = record.job_id
        if not now and self.look(record).phase == "running":
            run_program(["scancel", "--batch", "--signal=TERM", job_id])
        else:
            run_program(["scancel", job_id])


def _make_directives(submission: Submission) -> list[str]:
    options = submission.options
    is_one_job = options.form == "nodes"
    memory = options.memory_bytes if is_one_job else options.driver_memory_bytes
    directives = [
        f"--job-name={quote_directive(submission.name, 'the name of the job')}",
        f"--nodes={options.nodes if is_one_job else 1}",
        f"--ntasks-per-node={options.processes if is_one_job else 1}",
        f"--cpus-per-task={options.threads_per_worker if is_one_job else 1}",
        f"--mem={-(-memory // _MEBIBYTE)}M",
        *([f"--time={options.walltime}"] if options.walltime else []),
        *([f"--partition={options.queue}"] if options.queue else []),
        *([f"--account={options.account}"] if options.account else []),
        f"--output={quote_log(submission.log_dir, 'job-%j.log')}",
        "--open-mode=append",
        "--export=ALL",
        "--requeue",
        f"--signal=B:USR1@{options.warn_s}",
    ]
    return make_directives(
        "#SBATCH", directives, options.job_directives_skip, options.job_extra_directives
    )


def _start_nodes(submission: Submission) -> list[str]:
    """Write how scheduler and workers of one job are started."""
    options = submission.options
    place = ["--interface", options.interface] if options.interface else ["--host", "127.0.0.1"]
    common = [*place]
    for name, path in zip(("ca-file", "cert", "key"), submission.tls, strict=False):
        common += [f"--tls-{name}", path]
    worker = [
        *("--nthreads", str(options.threads_per_worker)),
        *("--memory-limit", str(options.worker_memory_bytes)),
        *common,
        *(["--local-directory", options.local_directory] if options.local_directory else []),
    ]
    scheduler = ["--dashboard-port", str(options.dashboard_port), *common]
    return [
        _SCHEDULER.format(options=shlex.join(scheduler)),
        _WORKERS.format(
            cpus=options.threads_per_worker,
            processes=options.processes,
            options=shlex.join(worker),
        ),
    ]


def parse_scontrol(shown: str) -> JobState:
    """Read what `scontrol --oneliner show job` says.

    Parameters
    ----------
    shown : str

    Returns
    -------
    JobState
    """
    fields = dict(re.findall(r"(?:^|\s)(\w[\w/:]*)=(\S*)", shown))
    node = fields.get("BatchHost", "")
    restarts = fields.get("Restarts", "0")
    return _make_state(
        fields.get("JobState", "UNKNOWN"),
        reason=fields.get("Reason", ""),
        nodes=fields.get("NodeList", ""),
        driver_node=node,
        restarts=int(restarts) if restarts.isdigit() else 0,
    )


def _ask_accounts(job_id: str) -> JobState:
    """Ask the accounts about a job that SLURM itself has forgotten."""
    names = "State,Reason,NodeList,Restarts"
    said = ""
    for listed in (names, names.rpartition(",")[0]):  # older ones count no restarts
        with contextlib.suppress(ClusterError):
            said = run_program(["sacct", "-j", job_id, "-X", "-n", "-P", "-o", listed])
            break
    lines = said.strip().splitlines()
    if not lines:
        return JobState(
            phase="unknown", word="unknown",
            reason="SLURM has forgotten the job, and keeps no accounts of it",
        )  # fmt: skip
    state, reason, nodes, *more = lines[-1].split("|")
    restarts = int(more[0]) if more and more[0].isdigit() else 0
    return _make_state(state, reason=reason, nodes=nodes, driver_node="", restarts=restarts)


def _make_state(word: str, *, reason: str, nodes: str, driver_node: str, restarts: int) -> JobState:
    # Such as 'CANCELLED by 1000' and 'CANCELLED+'.
    name = re.split(r"[ +]", word, maxsplit=1)[0]
    phase: Phase = "ended"
    if name in _WAITING:
        phase = "waiting"
    elif name in _RUNNING:
        phase = "running"
    return JobState(
        phase=phase,
        word=word,
        reason="" if reason in _NO_REASON else reason,
        nodes="" if nodes in _NO_REASON else nodes,
        driver_node="" if driver_node in _NO_REASON else driver_node,
        restarts=restarts,
        failure=_FAILURES.get(name, ""),
    )
