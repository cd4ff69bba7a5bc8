"""Runs submitted to SLURM itself, on nodes that are daemons of this machine.

tests/slurm/cluster.sh installs, starts and stops it; what it needs is root, munge and SLURM.
"""

import importlib.util
import json
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

import numpy as np
import psutil
import pytest

from dtopk.cli import dtopk
from dtopk.cli.output import run_and_report
from dtopk.model import load_model
from tests.submitted_runs import EPOCHS, JOB, SubmittedRun, free_ports, write_store

CLUSTER = Path(__file__).parents[1] / "slurm" / "cluster.sh"
PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "srun", "scontrol", "squeue", "scancel")
N_NODES = 3
SLURM_JOB = f"""{JOB}interface = "lo"
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


@pytest.fixture(scope="module", autouse=True)
def slurm():
    """Start a SLURM, and end it; its folder is short, since paths of sockets must be."""
    why = missing()
    if why:
        pytest.skip(why)
    folder = tempfile.mkdtemp(prefix="dtopk-slurm-")
    environment = {
        "PATH": os.environ["PATH"] + ":/usr/sbin:/sbin",
        "SLURM_TEST_PORT": str(free_ports(18917, N_NODES + 1)),
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
    write_store(folder / "store.zarr")
    (folder / "job.toml").write_text(SLURM_JOB)
    return folder / "job.toml"


@pytest.fixture(scope="module")
def here(job_path):
    """Make the same run in this process."""
    run = job_path.parent / "here"
    assert run_and_report(dtopk, ["train", str(job_path), "--run-dir", str(run)]) == 0
    return run


class Run(SubmittedRun):
    """A run that was submitted to SLURM."""

    def wait_for_commit(self, after=0):
        """Wait until the run has committed, and is at work."""

        self.wait("a commit", lambda: self.epoch > after and squeue(self.job, "%T") == "RUNNING")

    def wait_for_end(self):
        def ended():
            attempts = self.folder.read_attempts()
            return attempts[-1].status in (0, 1, 2) if attempts else False

        self.wait("the end", ended)
        self.wait("the end of the job", lambda: self.status()["phase"] == "ended", 60)


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

    def submit(*settings, path=tmp_path / "a run", here=None):
        words = [word for setting in settings for word in ("--set", setting)]
        call("submit", job_path, "--to", "slurm", "--run-dir", path, *words)
        submitted.append(Run(path, here or path, call))
        return submitted[-1]

    yield submit
    for run in submitted:
        subprocess.run(["scancel", run.job], capture_output=True)


def test_worker_step_that_is_killed_is_started_again(submit, here):
    run = submit()
    run.wait_for_commit()
    subprocess.run(["scancel", f"{run.job}.1"], check=True)
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
    run.wait("the queue", lambda: squeue(run.job, "%T") == "PENDING")
    scontrol("update", f"jobid={run.job}", "timelimit=00:10:00")
    run.wait_for_end()
    run.assert_same(here, 8 * EPOCHS)
    first, second = run.folder.read_attempts()
    assert (first.why, second.why, second.status) == ("asked", "", 0)
    assert run.status()["restarts"] == 1


def test_run_goes_on_after_a_requeue_and_the_loss_of_a_node(submit, here):
    run = submit()
    run.wait_for_commit()
    scontrol("requeue", run.job)
    run.wait("a second start", lambda: len(run.folder.read_attempts()) == 2)
    run.wait_for_commit(after=run.epoch)
    head = squeue(run.job, "%B")
    node = next(name for name in ("n1", "n2", "n3")[::-1] if name != head and
                name in subprocess.run(["scontrol", "show", "hostnames", squeue(run.job, "%N")],
                                       capture_output=True, text=True).stdout)  # fmt: skip
    try:
        scontrol("update", f"nodename={node}", "state=drain", "reason=test")
        # A node that is drained finishes what it has; one that is down is lost.
        assert squeue(run.job, "%T") == "RUNNING"
        scontrol("update", f"nodename={node}", "state=down", "reason=test")
        run.wait("a third start", lambda: len(run.folder.read_attempts()) == 3)
        assert node not in squeue(run.job, "%N")
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


def test_sweep_goes_on_after_a_requeue_to_the_same_bits(submit, job_path, tmp_path):
    settings = ("data.validation=val", "sweep.C=[1, 10, 100]")
    workers = ("cluster.kind=local", "cluster.workers=2", "cluster.threads_per_worker=1",
               "cluster.memory_per_worker=1GB", "cluster.dashboard=false")  # fmt: skip
    here = tmp_path / "here"
    words = [word for setting in (*settings, *workers) for word in ("--set", setting)]
    assert run_and_report(dtopk, ["sweep", str(job_path), "--run-dir", str(here), *words]) == 0
    run = submit(*settings)
    run.wait("a model", lambda: run.status()["models_done"] == 1)
    run.wait("a commit", lambda: run.status()["epochs"] > 0)
    scontrol("requeue", run.job)
    run.wait("a second start", lambda: len(run.folder.read_attempts()) == 2)
    run.wait_for_end()
    found = run.status()
    assert (found["command"], found["models_done"], found["finished"]) == ("sweep", 3, True)
    assert found["restarts"] == 1
    assert "training 3 models; 1 done already" in run.log
    for path in sorted(here.glob("settings/*/model.npz")):
        there = run.path / path.relative_to(here)
        np.testing.assert_array_equal(load_model(there).W, load_model(path).W)


def test_warned_sweep_goes_on_in_a_new_job_without_scores(submit):
    # No model comes to its end: C is large, and the tolerance out of reach.
    longer = ("data.validation=val", "sweep.C=[1e6, 2e6]", f"solver.max_epochs={1000 * EPOCHS}")
    run = submit(*longer, "submit.walltime=00:01:00", "submit.warn_s=48")
    run.wait("the warning", lambda: any(each.ended for each in run.folder.read_attempts()))
    run.wait("the queue", lambda: squeue(run.job, "%T") == "PENDING")
    scontrol("update", f"jobid={run.job}", "timelimit=00:10:00")
    run.wait("a second start", lambda: len(run.folder.read_attempts()) == 2)
    first, _ = run.folder.read_attempts()
    assert (first.status, first.why) == (130, "asked")
    assert not (run.path / "sweep.json").exists()
    epochs = run.status()["epochs"]
    assert epochs > 0
    run.wait("more epochs", lambda: run.status()["epochs"] > epochs)
    run.call("cancel", run.path)
    run.wait("the end", lambda: run.status()["phase"] == "ended", 60)
    assert run.status()["failure"]["cause"] == "cancelled"


def test_run_in_an_object_store_goes_on_after_its_driver_is_killed(
    submit, here, s3, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    path = f"{s3}/runs/far"
    run = submit(path=path, here=tmp_path / "runs" / "far")
    run.wait_for_commit()
    (driver,) = [process for process in psutil.process_iter(["cmdline"])
                 if {"dtopk.cli", path} <= set(process.info["cmdline"] or ())]  # fmt: skip
    driver.kill()
    run.wait("the note of the end", lambda: run.folder.read_attempts()[0].status == 137)
    run.wait_for_end()
    run.assert_same(here)
    assert run.status()["restarts"] == 1
    # The lock of the first was left to go out, and nothing of the submission is in the store.
    first, second = run.folder.read_attempts()
    assert second.began - first.ended >= 75
    assert (run.folder.path / "scheduler.log").is_file()
    assert not (run.path / "submission").is_dir()
