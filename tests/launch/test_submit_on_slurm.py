"""Runs submitted to SLURM itself, on nodes that are daemons of this machine.

tests/slurm/cluster.sh installs, starts and stops it; what it needs is root, munge and SLURM.
"""

import importlib.util
import json
import os
import shutil
import socket
import subprocess
import tempfile
import time
from pathlib import Path

import numpy as np
import pytest

from dtopk.cli import dtopk
from dtopk.cli.output import run_and_report
from dtopk.launch.submit import SubmissionFolder
from dtopk.model import load_model
from dtopk.testing import make_features
from dtopk_storage import create_store, open_dual

CLUSTER = Path(__file__).parents[1] / "slurm" / "cluster.sh"
PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "srun", "scontrol", "squeue", "scancel")
N_NODES = 3
N_ROWS = 4000
EPOCHS = 16
ENDS_S = 240.0
"""Seconds in which a run of these must have ended, on a machine with other work."""

JOB = f"""
version = 1
[data]
store = "store.zarr"
evaluate = []
[model]
C = 10.0
[solver]
tol = 1e-15
dtype = "float64"
max_epochs = {EPOCHS}
[cluster]
checkpoint_s = 0
partitions = 4
threads_per_partition = 1
min_workers = 2
wait_s = 60
round_timeout_s = 10
[tracking]
mlflow = false
[submit]
nodes = 2
cores = 1
memory = "1500MB"
driver_memory = "500MB"
interface = "lo"
walltime = "00:10:00"
"""

pytestmark = pytest.mark.slow
needs_jobqueue = pytest.mark.skipif(
    importlib.util.find_spec("dask_jobqueue") is None, reason="dask-jobqueue is not installed"
)
"""Without loading it, which takes over Ctrl-C of the process."""


def missing():
    """Say what is missing for a SLURM of our own; '': nothing."""
    if os.geteuid() != 0:
        return "a SLURM of its own needs root"
    path = os.pathsep.join((os.environ["PATH"], "/usr/sbin", "/sbin"))
    absent = [name for name in PROGRAMS if shutil.which(name, path=path) is None]
    how = f"`{CLUSTER.relative_to(Path.cwd())} install` brings them" if absent else ""
    return f"SLURM is not installed, {', '.join(absent)} missing: {how}" if absent else ""


def free_ports():
    """Return the first of as many ports in a row as the daemons take, all of them free."""
    for base in range(18917, 20917, 10):
        try:
            for port in range(base, base + N_NODES + 1):
                with socket.socket() as probe:
                    probe.bind(("127.0.0.1", port))
        except OSError:
            continue
        return base
    raise AssertionError("no ports are free")


@pytest.fixture(scope="module", autouse=True)
def slurm():
    """Start a SLURM, and end it; its folder is short, since paths of sockets must be."""
    why = missing()
    if why:
        pytest.skip(why)
    folder = tempfile.mkdtemp(prefix="dtopk-slurm-")
    environment = {
        "PATH": os.environ["PATH"] + ":/usr/sbin:/sbin",
        "SLURM_TEST_PORT": str(free_ports()),
        "SLURM_CONF": f"{folder}/slurm.conf",
    }
    with pytest.MonkeyPatch.context() as patched:
        for name, value in environment.items():
            patched.setenv(name, value)
        try:
            done = subprocess.run(
                [CLUSTER, "start", folder, str(N_NODES)], capture_output=True, text=True
            )
            assert done.returncode == 0, done.stderr
            yield
        finally:
            subprocess.run([CLUSTER, "stop", folder], check=True, capture_output=True)
            shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="module")
def job_path(tmp_path_factory):
    folder = tmp_path_factory.mktemp("job")
    X, y = make_features(N_ROWS, 24, 8, seed=0)
    with create_store(
        folder / "store.zarr", n_features=24, class_names=list("abcdefgh"), chunk_rows=500
    ) as writer:
        writer.append(X.astype(np.float32), y, split="train")
    (folder / "job.toml").write_text(JOB.lstrip())
    return folder / "job.toml"


@pytest.fixture(scope="module")
def here(job_path):
    """Make the same run in this process."""
    run = job_path.parent / "here"
    assert run_and_report(dtopk, ["train", str(job_path), "--run-dir", str(run)]) == 0
    return run


class Run:
    """A run that was submitted."""

    def __init__(self, path, call):
        self.path = path
        self.call = call
        self.folder = SubmissionFolder(run=path)
        self.job_id = self.folder.read_record().job_id

    def status(self):
        return json.loads(self.call("status", self.path, "--json"))

    def wait(self, what, condition, seconds=ENDS_S):
        deadline = time.monotonic() + seconds
        while not condition():
            if time.monotonic() > deadline:
                logs = "\n".join(
                    f"{path}:\n{path.read_text()[-3000:]}"
                    for path in self.folder.path.glob("*.log")
                )
                pytest.fail(f"{what} did not come about: {self.status()}\n{logs}")
            time.sleep(0.3)

    def wait_for_commit(self, after=0):
        """Wait until the run has committed, and is at work."""

        def committed():
            state = self.path / "state" / "state.json"
            return (
                state.exists()
                and json.loads(state.read_text())["progress"]["epoch"] > after
                and squeue(self.job_id, "%T") == "RUNNING"
            )

        self.wait("a commit", committed)

    def wait_for_end(self):
        def ended():
            attempts = self.folder.read_attempts()
            return attempts[-1].status in (0, 1, 2) if attempts else False

        self.wait("the end", ended)
        self.wait("the end of the job", lambda: self.status()["phase"] == "ended", 60)

    def assert_same(self, here, epochs=EPOCHS):
        """Hold weights and duals to those of the run in this process, bit by bit."""
        models = [load_model(path) for path in (here, self.path)]
        np.testing.assert_array_equal(models[1].W, models[0].W)
        duals = [open_dual(path / "dual").read(0, N_ROWS) for path in (here, self.path)]
        np.testing.assert_array_equal(duals[1], duals[0])
        result = json.loads((self.path / "result.json").read_text())
        assert (result["epochs"], result["stop_reason"]) == (epochs, "max_epochs")

    @property
    def log(self):
        return (self.folder.path / "run.log").read_text()


def squeue(job_id, form):
    """Ask about a job, or with '' about all."""
    jobs = [f"--jobs={job_id}"] if job_id else []
    done = subprocess.run(
        ["squeue", "--noheader", *jobs, f"--format={form}"], capture_output=True, text=True
    )
    return done.stdout.strip()


def scontrol(*arguments):
    subprocess.run(["scontrol", *arguments], check=True, capture_output=True)


@pytest.fixture
def submit(job_path, tmp_path, capsys):
    """Submit the job; what is left of it is cancelled with the test."""
    submitted = []

    def call(*arguments):
        capsys.readouterr()
        status = run_and_report(dtopk, [str(argument) for argument in arguments])
        out, err = capsys.readouterr()
        assert status == 0, err
        return out

    def submit(*settings):
        path = tmp_path / "a run"
        words = [word for setting in settings for word in ("--set", setting)]
        call("submit", job_path, "--to", "slurm", "--run-dir", path, *words)
        submitted.append(Run(path, call))
        return submitted[-1]

    yield submit
    for run in submitted:
        subprocess.run(["scancel", run.job_id], capture_output=True)


def test_worker_step_that_is_killed_is_started_again(submit, here):
    run = submit()
    run.wait_for_commit()
    subprocess.run(["scancel", f"{run.job_id}.1"], check=True)
    run.wait_for_end()
    run.assert_same(here)
    assert "The run goes back to its last commit." in run.log
    assert run.status()["restarts"] == 0
    # Two workers had to be there again: min_workers = 2.
    assert len(list(run.folder.path.glob("worker-*.log"))) == 2


def test_run_goes_on_in_a_new_job_at_the_end_of_its_walltime(submit, job_path, tmp_path):
    # Epochs for some 40 s, and not converged after them, so that the warning comes in the middle.
    longer = (f"solver.max_epochs={8 * EPOCHS}", "model.C=1000")
    here = tmp_path / "here"
    settings = [word for setting in longer for word in ("--set", setting)]
    assert run_and_report(dtopk, ["train", str(job_path), "--run-dir", str(here), *settings]) == 0
    # SLURM counts in whole minutes, and warns at most so many seconds before: here in the first 12.
    run = submit(*longer, "submit.walltime=00:01:00", "submit.warn_s=48")
    run.wait("the warning", lambda: any(each.ended for each in run.folder.read_attempts()))
    run.wait("the queue", lambda: squeue(run.job_id, "%T") == "PENDING")
    scontrol("update", f"jobid={run.job_id}", "timelimit=00:10:00")
    run.wait_for_end()
    run.assert_same(here, 8 * EPOCHS)
    first, second = run.folder.read_attempts()
    assert (first.why, second.why, second.status) == ("asked", "", 0)
    assert run.status()["restarts"] == 1


def test_run_goes_on_after_a_requeue_and_the_loss_of_a_node(submit, here):
    run = submit()
    run.wait_for_commit()
    scontrol("requeue", run.job_id)
    run.wait("a second start", lambda: len(run.folder.read_attempts()) == 2)
    epoch = json.loads((run.path / "state" / "state.json").read_text())["progress"]["epoch"]
    run.wait_for_commit(after=epoch)
    head = squeue(run.job_id, "%B")
    node = next(name for name in ("n1", "n2", "n3")[::-1] if name != head and
                name in subprocess.run(["scontrol", "show", "hostnames", squeue(run.job_id, "%N")],
                                       capture_output=True, text=True).stdout)  # fmt: skip
    try:
        scontrol("update", f"nodename={node}", "state=drain", "reason=test")
        # A node that is drained finishes what it has; one that is down is lost.
        assert squeue(run.job_id, "%T") == "RUNNING"
        scontrol("update", f"nodename={node}", "state=down", "reason=test")
        run.wait("a third start", lambda: len(run.folder.read_attempts()) == 3)
        assert node not in squeue(run.job_id, "%N")
        run.wait_for_end()
    finally:
        subprocess.run(["scontrol", "update", f"nodename={node}", "state=resume"],
                       capture_output=True)  # fmt: skip
    run.assert_same(here)
    assert run.status()["restarts"] == 2


@needs_jobqueue
def test_job_of_a_worker_that_is_lost_is_replaced(submit, here):
    run = submit("submit.form=workers")
    run.wait_for_commit()
    workers = squeue("", "%i").split()
    lost = max(workers, key=int)
    assert len(workers) == 3
    subprocess.run(["scancel", "--signal=KILL", "--full", lost], check=True)
    run.wait_for_end()
    run.assert_same(here)
    assert f"The job {lost} of the worker" in (run.folder.path / "scheduler.log").read_text()
    run.wait("the end of the workers' jobs", lambda: squeue("", "%i") == "", 60)


def test_cancelled_run_commits_and_is_not_started_again(submit):
    run = submit("solver.max_epochs=1000")
    run.wait_for_commit()
    run.call("cancel", run.path)
    run.wait("the end", lambda: run.status()["phase"] == "ended", 60)
    found = run.status()
    assert (found["failure"]["cause"], found["restarts"]) == ("cancelled", 0)
    assert json.loads((run.path / "result.json").read_text())["resumable"]
