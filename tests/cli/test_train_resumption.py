"""`dtopk train` going on with a run, and on workers."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from dtopk.cli.train_progress import (
    BarProgress,
    LineProgress,
    _describe_state,
    describe_epoch,
    format_time,
)
from dtopk.engine import EpochRecord, FitInfo
from dtopk.launch import ClusterError
from dtopk.model import load_model
from dtopk_storage import open_dual
from tests.small_stores import make_store

ROOT = Path(__file__).parents[2]
COMMIT_ALWAYS = "[cluster]\ncheckpoint_s = 0\n"


@pytest.fixture
def job_path(store, tmp_path):
    path = tmp_path / "job.toml"
    path.write_text(
        "version = 1\n[data]\nstore = 'small.zarr'\n[model]\nC = 0.1\n"
        "[solver]\ntol = 1e-6\ndtype = 'float64'\n"
        f"[output]\nrun_dir = 'runs/a'\n[tracking]\nmlflow = false\n{COMMIT_ALWAYS}"
    )
    return path


@pytest.fixture
def run_dir(tmp_path):
    return tmp_path / "runs" / "a"


def fail_after(monkeypatch, epoch):
    def on_epoch(self, record, W):
        if record.epoch == epoch:
            raise OSError(5, "Input/output error", "/dev/sda")

    monkeypatch.setattr(LineProgress, "on_epoch", on_epoch)


def test_failure_says_how_to_go_on(call, call_json, job_path, run_dir, monkeypatch):
    with monkeypatch.context() as patched:
        fail_after(patched, 5)
        result = call("train", job_path)
    assert result.status == 1
    assert result.err.splitlines()[-1] == (
        "error: Input/output error: '/dev/sda'. The run is kept up to epoch 4; to go on: "
        f"dtopk train --resume {run_dir}"
    )
    answer = call_json("train", "--resume", run_dir)
    assert answer["certified"]
    assert answer["resumed_at"] == [4]


def test_same_command_goes_on_and_says_where(call, job_path, run_dir, monkeypatch):
    with monkeypatch.context() as patched:
        fail_after(patched, 5)
        call("train", job_path)
    result = call("train", job_path)
    assert result.status == 0
    assert re.search(r"Resuming at epoch 5 from the state of \d\d:\d\d:\d\d\n", result.err)


def test_resumption_takes_other_limits(call, call_json, job_path, run_dir):
    call("train", job_path, "--set", "solver.max_epochs=2")
    result = call("train", "--resume", run_dir)
    assert result.status == 2
    assert "solver.max_epochs must be above the 2 epochs that the run in" in result.err
    answer = call_json("train", "--resume", run_dir, "--set", "solver.max_epochs=4")
    assert (answer["epochs"], answer["stop_reason"], answer["resumable"]) == (4, "max_epochs", True)
    answer = call_json("train", job_path, "--resume", run_dir)
    assert (answer["certified"], answer["resumed_at"]) == (True, [2, 4])


def test_early_stop_is_told_with_how_to_go_on(call, call_json, job_path, run_dir):
    stopping = ["data.validation=test", "early_stopping.metric=top_1_accuracy",
                "early_stopping.patience=2", "solver.tol=1e-9", "model.C=10"]  # fmt: skip
    result = call("train", job_path, *(word for each in stopping for word in ("--set", each)))
    assert result.status == 0
    written = json.loads((run_dir / "result.json").read_text())
    epochs, best = written["epochs"], written["early_stopping"]["best_epoch"]
    assert epochs == best + 2
    assert "; the validation metric got no better (early_stopping.patience)\n" in result.out
    value = written["early_stopping"]["best_value"]
    told = f"test/top_1_accuracy was best after epoch {best}, {value:.4f} (patience 2)"
    assert f"{told}. The model is that of epoch {epochs}." in result.out
    command = f"dtopk train --resume {run_dir} --set early_stopping.patience=4"
    assert f"To get there, go on: {command}" in result.out
    assert f"{told}\n" in call("info", run_dir).out
    page = run_dir.parent / "page.html"
    call("report", run_dir, "--out", page)
    assert f"{value:.4f} after epoch {best}" in page.read_text()
    answer = call_json("train", "--resume", run_dir, "--set", "early_stopping.patience=4")
    assert (answer["resumed_at"], answer["epochs"] > epochs) == ([epochs], True)


def test_early_stopping_without_a_validation_split_is_one_clear_error(call, job_path, run_dir):
    result = call("train", job_path, "--set", "early_stopping.metric=top_1_accuracy")
    assert (result.status, result.out) == (2, "")
    assert result.err == (
        "error: data.validation must name the split that early_stopping.metric is taken on, got "
        "''. In --set early_stopping.metric=top_1_accuracy.\n"
    )
    assert not run_dir.exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "JOB.toml must be given, or --resume RUN_DIR."),
        (["--resume", "x", "--run-dir", "y"], "--resume and --run-dir must not both be given."),
        (["--resume", "x"], "folder to go on in must hold a run with a state, got 'x', where"),
    ],
)
def test_what_cannot_be_gone_on_with_is_refused(call, arguments, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = call("train", *arguments)
    assert (result.status, result.out) == (2, "")
    assert result.err.startswith(f"error: {message}")


def test_other_job_is_refused_with_what_differs(call, job_path, run_dir):
    call("train", job_path, "--set", "solver.max_epochs=2")
    result = call("train", job_path, "--set", "model.C=0.2")
    assert result.status == 2
    assert "got model.C = 0.2 (was 0.1)." in result.err


def test_info_of_a_run_that_can_go_on_says_so(call, call_json, job_path, run_dir, monkeypatch):
    with monkeypatch.context() as patched:
        fail_after(patched, 5)
        call("train", job_path)
    fields = call_json("info", run_dir)
    assert (fields["finished"], fields["resumable"], fields["state"]["epochs"]) == (False, True, 4)
    out = call("info", run_dir).out
    assert f"after epoch 4; to go on: dtopk train --resume {run_dir}" in out
    call("train", job_path, "--set", "solver.max_epochs=6")
    fields = call_json("info", run_dir)
    assert (fields["finished"], fields["resumable"], fields["state"]["epochs"]) == (True, True, 6)
    call("train", job_path)
    assert call_json("info", run_dir)["resumable"] is False


def start_training(*arguments):
    environment = os.environ | {"PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'storage'}"}
    listed = ["train", *map(str, arguments)]
    return subprocess.Popen(
        [sys.executable, "-c", f"from dtopk.cli import main; main({listed!r})"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        env=environment,
        text=True,
    )


def test_killed_process_goes_on_to_the_same_bits(call_json, job_path, tmp_path):
    """Killed with SIGKILL in the middle of what it does, over and over."""
    make_store(tmp_path / "larger.zarr", n_train=6000, chunk_rows=500)
    store = ("--set", f"data.store={tmp_path / 'larger.zarr'}", "--set", "solver.tol=1e-9")
    undisturbed = call_json("train", job_path, *store, "--run-dir", tmp_path / "undisturbed")
    state = tmp_path / "runs" / "a" / "state" / "state.json"
    for kill in range(2):
        before = state.read_bytes() if kill else b""
        with start_training(job_path, *store) as process:
            ends = time.monotonic() + 60
            while time.monotonic() < ends and process.poll() is None:
                if state.exists() and state.read_bytes() != before:
                    process.send_signal(signal.SIGKILL)
                    break
                time.sleep(0.002)
            process.stderr.close()
        assert process.returncode == -signal.SIGKILL
    resumed = call_json("train", "--resume", tmp_path / "runs" / "a")
    assert len(resumed["resumed_at"]) == 2
    assert (resumed["primal"], resumed["dual"]) == (undisturbed["primal"], undisturbed["dual"])
    models = [load_model(answer["run_dir"]) for answer in (undisturbed, resumed)]
    np.testing.assert_array_equal(models[0].W, models[1].W)
    duals = [open_dual(Path(answer["run_dir"]) / "dual") for answer in (undisturbed, resumed)]
    np.testing.assert_array_equal(*[dual.read(0, 6000) for dual in duals])


INFO = FitInfo(
    n_samples=10, n_features=2, n_classes=3, loss_name="softmax", solver="sdca", tol=1e-3,
    max_epochs=200, features_in_memory=True, duals_in_memory=True, n_partitions=4,
)  # fmt: skip
RECORD = EpochRecord(
    epoch=3, seconds=12.34, rows_per_second=45678.9, primal=2.0, dual_value=1.0,
    relative_gap=0.5, exact=False, read_seconds=0.0, acceleration=1.0, theta=0.25, sigma=1.8,
    correlation=1.62, bytes_moved=3_500_000, slowest_seconds=2.5, median_seconds=1.0,
    late="7",
)  # fmt: skip


def test_epoch_line_of_several_partitions_tells_how_they_went_together():
    assert describe_epoch(RECORD, INFO, 130.0) == (
        "epoch 3 of 200, gap 5.00e-01 (estimated; asked 0.001), 45,679 rows/s, 12.3 s, "
        "~2 min left, theta 0.25, sigma' 1.8, r 1.62, 3.338 MiB moved, "
        "late: worker 7 (2.5 s, others 1)"
    )


def test_state_beside_the_bar_has_as_much_of_it_as_there_is_room_for():
    state = "gap 5.0e-01 (asked 0.001), 12 s, ~5 s left, 45,679 rows/s, theta 0.25, sigma' 1.8"
    assert _describe_state(RECORD, INFO, 5.0, len(state)) == state


def test_time_of_a_state_has_its_date_where_it_is_not_of_today():
    now = time.time()
    assert re.fullmatch(r"\d\d:\d\d:\d\d", format_time(now))
    assert re.fullmatch(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d", format_time(now - 48 * 3600))


def test_bar_goes_on_where_the_run_does(capsys):
    progress = BarProgress()
    progress.on_start(INFO)
    progress.on_resume([RECORD], time.time())
    progress.stop()
    assert "Resuming at epoch 4 from the state of" in capsys.readouterr().err
    assert progress._bar.tasks[0].fields["epoch"] == "epoch   4/200"


def test_error_of_the_cluster_is_one_line_and_status_1(call, job_path, run_dir, monkeypatch):
    def on_epoch(self, record, W):
        if record.epoch == 3:
            raise ClusterError("workers must be there, but they are gone.")

    monkeypatch.setattr(LineProgress, "on_epoch", on_epoch)
    for arguments in ([], ["--json"]):
        result = call("train", job_path, *arguments)
        assert (result.status, result.out) == (1, "")
        assert result.err.splitlines()[-1] == (
            "error: workers must be there, but they are gone. The run is kept up to epoch 2; to "
            f"go on: dtopk train --resume {run_dir}"
        )


def test_scheduler_that_is_not_there_leaves_no_run_folder(call, job_path, run_dir):
    result = call(
        "train", job_path, "--set", "cluster.kind=scheduler",
        "--set", "cluster.scheduler=tcp://127.0.0.1:9", "--set", "cluster.wait_s=0.5",
    )  # fmt: skip
    assert result.status == 1
    assert "none answered at 'tcp://127.0.0.1:9' within wait_s = 0.5 s" in result.err
    assert not run_dir.exists()


def test_train_on_a_local_cluster_gives_the_bits_of_one_process(call, job_path, tmp_path):
    cut = ("--set", "cluster.partitions=3", "--set", "cluster.threads_per_partition=1", "--json")
    alone = json.loads(call("train", job_path, *cut).out)
    result = call(
        "train", job_path, *cut, "--set", "cluster.kind=local", "--run-dir", tmp_path / "b"
    )
    assert result.status == 0, result.err
    spread = json.loads(result.out)
    np.testing.assert_array_equal(load_model(spread["run_dir"]).W, load_model(alone["run_dir"]).W)
    assert "Training on 2 workers of the scheduler tcp://127.0.0.1:" in result.err
    assert "dashboard" in result.err.lower()
    assert re.search(r"theta \d\.\d\d, sigma' \d\.\d, r \d\.\d\d, [\d.]+ \w+ moved", result.err)
