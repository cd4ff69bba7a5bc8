"""`dtopk submit`, `status`, `logs` and `cancel`, with runs in the background of this machine."""

import json
import os
import signal
import socket
import stat
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from dtopk.cli.submit import _prepare_job
from dtopk.job import load_job
from dtopk.launch.submit import SubmissionFolder, SubmissionRecord, make_back_end
from dtopk.launch.submit.local import Local
from dtopk.model import load_model
from dtopk_storage import open_dual
from tests.small_stores import make_store
from tests.submitted_runs import ENDS_S, driver_of, has_ended, wait_until

ROOT = Path(__file__).parents[2]
SECRETS = {"MLFLOW_TRACKING_PASSWORD": "hunter2", "AWS_SECRET_ACCESS_KEY": "wJalrXUt"}


@pytest.fixture
def job_path(store, tmp_path):
    path = tmp_path / "job.toml"
    path.write_text(
        "version = 1\n[data]\nstore = 'small.zarr'\n[model]\nC = 0.1\n"
        "[solver]\ntol = 1e-6\ndtype = 'float64'\n[tracking]\nmlflow = false\n"
        "[cluster]\ncheckpoint_s = 0\n"
    )
    return path


@pytest.fixture
def long(tmp_path):
    """Give settings of a run that goes on until it is stopped."""
    make_store(tmp_path / "larger.zarr", n_train=20_000, chunk_rows=2000)
    settings = (f"data.store={tmp_path / 'larger.zarr'}", "solver.tol=1e-15", "model.C=1e6",
                "solver.max_epochs=100000", "data.evaluate=[]")  # fmt: skip
    return [word for setting in settings for word in ("--set", setting)]


@pytest.fixture
def open_mask():
    """Have files writable to everybody, as far as the user's habits go."""
    before = os.umask(0)
    yield
    os.umask(before)


def test_submitted_run_is_the_run_of_train_with_no_secrets_in_its_files(
    call, call_json, job_path, run_dir, tmp_path, monkeypatch, open_mask
):
    for name, value in SECRETS.items():
        monkeypatch.setenv(name, value)
    here = call_json("train", job_path, "--run-dir", tmp_path / "here")
    answer = call_json("submit", job_path, "--to", "local", "--run-dir", run_dir)
    assert answer["to"] == "local"
    assert answer["run_folder"] == str(run_dir)
    wait_until(has_ended(call_json, run_dir))
    for path in (run_dir, *run_dir.rglob("*")):
        assert not path.stat().st_mode & stat.S_IWOTH, path
        content = path.read_bytes() if path.is_file() else b""
        assert not any(value.encode() in content for value in SECRETS.values()), path
    assert stat.S_IMODE((run_dir / "submission").stat().st_mode) == 0o700
    found = call_json("status", run_dir)
    assert (found["finished"], found["certified"], found["failure"]) == (True, True, None)
    assert (found["epochs"], found["relative_gap"]) == (here["epochs"], here["relative_gap"])
    assert (found["gap_is_exact"], found["tol"], found["restarts"]) == (True, 1e-6, 0)
    models = [load_model(path) for path in (tmp_path / "here", run_dir)]
    np.testing.assert_array_equal(models[0].W, models[1].W)
    duals = [open_dual(Path(path) / "dual").read(0, 120) for path in (tmp_path / "here", run_dir)]
    np.testing.assert_array_equal(*duals)
    out = call("status", run_dir).out
    assert "has ended" in out
    assert "epochs, gap " in out
    log = call("logs", run_dir).out
    assert "training softmax with sdca on 120 rows" in log
    assert "certified: relative gap" in log
    assert len(call("logs", run_dir, "-n", "2").out.splitlines()) == 2
    assert log in call("logs", run_dir, "--of", "all", "--follow").out
    result = call("submit", job_path, "--to", "local", "--run-dir", run_dir)
    assert result.status == 2
    assert "which holds a run that has ended." in result.err


@pytest.mark.slow
def test_cancelled_run_commits_and_goes_on_when_submitted_again(
    call, call_json, job_path, run_dir, long
):
    submit = ("submit", job_path, "--to", "local", "--run-dir", run_dir, *long)
    call_json(*submit)
    result = call(*submit)
    assert result.status == 2
    assert "error: run folder must have no job under way, got" in result.err
    driver_of(run_dir)
    wait_until(lambda: call_json("status", run_dir)["epochs"] > 0)
    found = call_json("status", run_dir)
    assert (found["phase"], found["finished"], found["failure"]) == ("running", False, None)
    assert "commits and stops" in call("cancel", run_dir).out
    wait_until(has_ended(call_json, run_dir))
    found = call_json("status", run_dir)
    assert found["failure"]["cause"] == "cancelled"
    assert time.time() - found["committed"] < ENDS_S
    stopped = json.loads((run_dir / "result.json").read_text())
    assert (stopped["stop_reason"], stopped["resumable"]) == ("interrupted", True)
    assert "has ended already" in call("cancel", run_dir).out
    call_json(*submit)
    wait_until(lambda: call_json("status", run_dir)["epochs"] > stopped["epochs"])
    assert call("cancel", run_dir, "--now").status == 0
    wait_until(has_ended(call_json, run_dir))
    [epoch] = json.loads((run_dir / "run.json").read_text())["resumed_at"]
    # An epoch that was cut short is done again.
    assert epoch in (stopped["epochs"] - 1, stopped["epochs"])
    assert len(SubmissionFolder(run=run_dir).read_record().earlier) == 1


@pytest.mark.slow
def test_killed_run_says_so_and_goes_on_to_the_same_bits(
    call, call_json, job_path, run_dir, tmp_path
):
    make_store(tmp_path / "larger.zarr", n_train=6000, chunk_rows=500)
    settings = ("--set", f"data.store={tmp_path / 'larger.zarr'}", "--set", "solver.tol=1e-9")
    here = call_json("train", job_path, *settings, "--run-dir", tmp_path / "here")
    submit = ("submit", job_path, "--to", "local", "--run-dir", run_dir, *settings)
    call_json(*submit)
    driver = driver_of(run_dir)
    wait_until((run_dir / "state" / "state.json").exists)
    driver.kill()
    wait_until(has_ended(call_json, run_dir))
    found = call_json("status", run_dir)
    assert found["failure"]["cause"] == "killed"
    assert "Submit it again" in call("status", run_dir).out
    call_json(*submit)
    wait_until(has_ended(call_json, run_dir))
    assert call_json("status", run_dir)["certified"]
    there = json.loads((run_dir / "result.json").read_text())
    assert len(there["resumed_at"]) == 1
    assert (there["primal"], there["dual"]) == (here["primal"], here["dual"])
    models = [load_model(path) for path in (tmp_path / "here", run_dir)]
    np.testing.assert_array_equal(models[0].W, models[1].W)


def test_refused_run_keeps_its_log_and_says_why(call, call_json, job_path, run_dir):
    call_json("submit", job_path, "--to", "local", "--run-dir", run_dir,
              "--set", "data.evaluate=['night']")  # fmt: skip
    wait_until(has_ended(call_json, run_dir))
    found = call_json("status", run_dir)
    assert found["failure"]["cause"] == "refused"
    assert "night" in found["failure"]["text"]
    assert "error: " in call("logs", run_dir).out
    # What it was refused for is put right, and the folder is as good as new.
    call_json("submit", job_path, "--to", "local", "--run-dir", run_dir)
    wait_until((run_dir / "run.json").is_file)


def test_submitted_run_gets_the_environment(call_json, job_path, run_dir, monkeypatch, long):
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wJalrXUt")
    call_json("submit", job_path, "--to", "local", "--run-dir", run_dir, *long)
    assert driver_of(run_dir).environ()["AWS_SECRET_ACCESS_KEY"] == "wJalrXUt"


def test_submitted_run_outlives_the_shell_of_its_submission(call_json, job_path, run_dir, long):
    program = "from dtopk.cli import main; main()"
    arguments = ["submit", str(job_path), "--to", "local", "--run-dir", str(run_dir), *long]
    shell = subprocess.Popen(
        [sys.executable, "-c", program, *arguments],
        start_new_session=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    assert shell.wait() == 0
    record = SubmissionFolder(run=run_dir).read_record()
    assert os.getsid(int(record.job_id)) not in (shell.pid, os.getsid(0))
    # A terminal that is closed sends this to all of its session.
    with pytest.raises(ProcessLookupError):
        os.killpg(shell.pid, signal.SIGHUP)
    assert call_json("status", run_dir)["phase"] == "running"


def test_dry_run_prints_the_script_and_leaves_nothing(call, job_path, run_dir):
    result = call("submit", job_path, "--to", "local", "--run-dir", run_dir, "--dry-run")
    assert result.status == 0
    assert result.out.startswith("#!/usr/bin/env bash\n")
    assert f"run='{run_dir}'\n" in result.out
    assert not run_dir.exists()


def test_runs_are_found_by_job_id_and_the_newest_without_one(
    call, call_json, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    result = call("status")
    assert result.status == 2
    assert "error: submitted run must be that of a run folder in" in result.err
    for number, name in enumerate(("b", "a")):
        folder = SubmissionFolder(run=tmp_path / "runs" / name)
        folder.create()
        record = SubmissionRecord(
            back_end="local", job_id=f"99999999{number}", host=socket.gethostname(),
            run_dir=str(folder.run), log_dir=str(folder.path),
        )  # fmt: skip
        folder.write_record(record)
        os.utime(folder.record, (number, number))
    assert call_json("status")["run_dir"] == str(tmp_path / "runs" / "a")
    found = call_json("status", "999999990")
    assert found["run_dir"] == str(tmp_path / "runs" / "b")
    assert found["failure"]["text"] == "The run did not begin."
    assert call("logs", "999999999").status == 2


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--to", "slurm"], "submit.cores must be the processor cores of a node, got 0."),
        (["--to", "pbs"], "submit.form must be 'workers' for 'pbs', got 'nodes'"),
        (["--to", "slurm", "--set", "submit.cores=2"], "submit.memory must be that of a node"),
        (["--to", "slurm", "--set", "submit.cores=2", "--set", "submit.memory=8GB",
          "--set", "submit.nodes=2"], "submit.interface must be the network interface by which"),
        (["--to", "local", "--set", "submit.job_script_prologue=['export API_TOKEN=x']"],
         "submit.job_script_prologue and job_extra_directives must hold no secrets, got one that "
         "sets 'API_TOKEN'."),
        (["--to", "local", "--set", "data.store=nowhere.zarr"], "nowhere.zarr"),
        (["--to", "local", "--run-dir", "memory://bucket/run"],
         "output.run_dir must be a folder, or an address in an object store that the job reaches"),
    ],
)  # fmt: skip
def test_what_cannot_be_submitted_is_refused(call, job_path, arguments, message):
    result = call("submit", job_path, *arguments)
    assert (result.status, result.out) == (2, "")
    assert result.err.startswith("error: ")
    assert message in result.err


def test_machine_without_the_batch_system_is_refused_and_nothing_left(
    call, job_path, run_dir, monkeypatch
):
    monkeypatch.setenv("PATH", "/nowhere")
    result = call("submit", job_path, "--to", "slurm", "--run-dir", run_dir,
                  "--set", "submit.cores=2", "--set", "submit.memory=8GB")  # fmt: skip
    assert result.status == 1
    assert "the program 'sbatch' must be on the PATH to submit to 'slurm'" in result.err
    assert not run_dir.exists()


@pytest.mark.parametrize("step", ["write_text", "send", "write_record"])
@pytest.mark.parametrize("cause", [KeyboardInterrupt, OSError])
def test_interrupted_submission_leaves_nothing_and_can_be_repeated(
    call, job_path, run_dir, tmp_path, step, cause
):
    """Also no process, when it was sent and not noted."""
    logs = tmp_path / "logs"
    submit = ("submit", job_path, "--to", "local", "--run-dir", run_dir,
              "--set", f"submit.log_directory={logs}")  # fmt: skip
    cancelled = []

    def fail(self, *arguments, **options):
        raise cause

    def note(self, record, *, now):
        cancelled.append(now)

    with pytest.MonkeyPatch.context() as patch:
        places = {"write_text": Path, "send": Local, "write_record": SubmissionFolder}
        patch.setattr(places[step], step, fail)
        if step == "write_record":
            patch.setattr(Local, "send", lambda self, given: self.make_record(given, "0"))
        patch.setattr(Local, "cancel", note)
        assert call(*submit).status != 0
    assert cancelled == [True] * (step == "write_record")
    assert not run_dir.exists()
    assert list(logs.iterdir()) == []
    assert call(*submit, "--dry-run").status == 0


def test_folder_of_a_run_of_this_machine_is_refused_for_one_elsewhere(
    call, job_path, tmp_path, monkeypatch
):
    """Script and logs of the pods' run would be in the folder of the other one."""
    monkeypatch.chdir(tmp_path)
    assert call("train", job_path, "--run-dir", "runs/first").status == 0
    words = ("data.store=/data/s.zarr", "submit.cores=2", "submit.memory=8GB",
             "submit.image=dtopk:1", "submit.claim=data")  # fmt: skip
    settings = [word for each in words for word in ("--set", each)]
    submit = ("submit", job_path, "--to", "kubernetes", "--run-dir", "/data/runs/first", *settings)
    for more in ([], ["--dry-run"]):
        result = call(*submit, *more)
        assert result.status == 2
        assert (
            f"folder of a submission must be new or empty, got '{tmp_path}/runs/first' for "
            "'/data/runs/first', which is in use: script and logs would lie with what is another's."
            " Name another folder for such by submit.log_directory."
        ) in result.err
    result = call(*submit, "--dry-run", "--set", f"submit.log_directory={tmp_path / 'pods'}")
    assert result.status == 0, result.err
    assert not (tmp_path / "runs" / "first" / "submission").exists()


def test_unknown_back_end_is_refused_with_those_there_are(call, job_path):
    result = call("submit", job_path, "--to", "condor")
    assert result.status == 2
    assert "'slurm', 'pbs', 'lsf', 'sge', 'kubernetes', 'local'" in result.err


def test_folder_that_was_not_submitted_is_refused(call, tmp_path):
    for command in ("status", "logs", "cancel"):
        result = call(command, tmp_path)
        assert result.status == 2
        assert "run folder must be that of a submitted run, got" in result.err


def test_example_of_a_script_is_what_is_printed(store, call, monkeypatch):
    """Make it anew by putting what is printed in its place."""
    monkeypatch.setattr(sys, "executable", "/shared/venv/bin/python")
    result = call(
        "submit", ROOT / "jobs" / "slurm.toml", "--to", "slurm", "--dry-run",
        "--run-dir", "/shared/runs/first", "--set", f"data.store={store.path}",
    )  # fmt: skip
    assert result.out == (ROOT / "deploy" / "slurm" / "example.sh").read_text()


def test_help_has_an_example_a_line(call):
    result = call("submit", "--help")
    assert result.status == 0
    assert "\n    dtopk submit sweep.toml --to slurm --run-dir runs/sweep\n" in result.out


def test_walltime_that_looks_like_a_time_is_text(call, job_path):
    words = ("cores=2", "memory=8GB", "walltime=04:00:00")
    settings = [word for each in words for word in ("--set", f"submit.{each}")]
    result = call("submit", job_path, "--to", "slurm", "--dry-run", *settings)
    assert "\n#SBATCH --time=04:00:00\n" in result.out


def test_bits_of_a_run_do_not_depend_on_the_workers_that_come_first(call, job_path, tmp_path):
    """Partitions and threads are those of the workers that were asked for."""
    words = ("cores=6", "memory=8GB", "processes=2", "nodes=3", "interface=lo")
    settings = [word for each in words for word in ("--set", f"submit.{each}")]
    back_end = make_back_end("slurm")
    job = _prepare_job(load_job(job_path, settings[1::2], run_dir=str(tmp_path / "run")), back_end)
    assert (job.cluster.partitions, job.cluster.threads_per_partition) == (6, 3)
    result = call("submit", job_path, "--to", "slurm", "--dry-run", *settings,
                  "--set", "cluster.min_workers=7")  # fmt: skip
    assert "cluster.min_workers must be at most the 6 workers that are asked for" in result.err
