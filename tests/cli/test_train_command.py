"""`dtopk train`."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from dtopk.cli import train_progress
from dtopk.cli.output import tell
from dtopk.cli.time_left import estimate_seconds_left
from dtopk.cli.train_progress import BarProgress, LineProgress, describe_epoch
from dtopk.engine import EpochRecord, FitInfo

ROOT = Path(__file__).parents[2]


@pytest.fixture
def job_path(store, tmp_path):
    path = tmp_path / "job.toml"
    path.write_text(
        "version = 1\n[data]\nstore = 'small.zarr'\n[model]\nC = 0.1\n"
        "[output]\nrun_dir = 'runs/a'\n[tracking]\nmlflow = false\n"
    )
    return path


def test_train_answers_with_one_json_object(call_json, job_path, tmp_path):
    answer = call_json("train", job_path)
    assert answer["run_dir"] == str(tmp_path / "runs" / "a")
    assert answer["model"] == str(tmp_path / "runs" / "a" / "model.npz")
    assert (answer["loss"], answer["solver"], answer["stop_reason"]) == (
        "softmax", "sdca", "tolerance",
    )  # fmt: skip
    assert answer["certified"] is True
    assert answer["dual"] <= answer["primal"]
    assert answer["relative_gap"] == pytest.approx(
        (answer["primal"] - answer["dual"]) / answer["primal"]
    )
    assert (answer["n_samples"], answer["n_features"], answer["n_classes"]) == (120, 6, 4)
    assert set(answer["top_k_accuracy"]["test"]) == {"1", "2", "3", "4"}


def test_train_prints_every_path_it_wrote(call, job_path, tmp_path):
    result = call("train", job_path)
    assert result.status == 0
    for path in (tmp_path / "runs" / "a").iterdir():
        assert f"wrote {path}\n" in result.err
    assert "certified: relative gap" in result.out
    assert "top-k" in result.out


def test_train_says_what_is_certified_of_a_loss_that_is_not_convex(call, job_path, tmp_path):
    choice = ("--set", "model.loss=truncated_topk_entropy", "--set", "model.k=2")
    result = call("train", job_path, *choice)
    assert "\n\ncertified stationary: relative gap" in result.out
    assert "The loss is not convex. No weights are better by more than the gap as" in result.out
    text = call("info", tmp_path / "runs" / "a", "--verify").out
    assert "asked 0.001: certified stationary\n" in text


def test_train_says_when_the_gap_was_not_reached(call, job_path):
    result = call("train", job_path, "--set", "solver.tol=1e-9", "--set", "solver.max_epochs=2")
    assert result.status == 0
    assert "not certified: relative gap" in result.out
    assert "the epochs ran out (solver.max_epochs)" in result.out
    run_dir = job_path.parent / "runs" / "a"
    assert (
        f"To get there, go on: dtopk train --resume {run_dir} --set solver.max_epochs=4\n"
        in result.out
    )
    assert f"wrote {run_dir / 'state'}\n" in result.err


OUT_OF_TIME = ("--set", "solver.time_limit_s=1e-9", "--set", "solver.block_size=8")
"""No epoch is whole then, and there is no state to go on from."""


def test_train_without_a_state_says_how_to_start_from_the_duals(call, job_path):
    result = call("train", job_path, *OUT_OF_TIME)
    run_dir = job_path.parent / "runs" / "a"
    assert (
        f"go on from here with --set solver.warm_start={run_dir}, and raise solver.time_limit_s"
        in result.out
    )


def test_train_without_duals_says_which_limit_to_raise(call, job_path):
    result = call("train", job_path, *OUT_OF_TIME, "--set", "output.save_dual=false")
    assert "To get there, raise solver.time_limit_s.\n" in result.out


def test_run_dir_option_starts_at_the_working_directory(call_json, job_path, tmp_path, monkeypatch):
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    answer = call_json("train", job_path, "--run-dir", "b", "--set", "model.C=0.2")
    assert answer["run_dir"] == str(tmp_path / "elsewhere" / "b")
    assert "C = 0.2" in (tmp_path / "elsewhere" / "b" / "job.toml").read_text()


def test_train_evaluate_and_predict_agree(call_json, job_path, store, tmp_path):
    trained = call_json("train", job_path)
    evaluated = call_json("evaluate", trained["run_dir"], store.path)
    assert evaluated["splits"]["test"]["top_k_accuracy"] == trained["top_k_accuracy"]["test"]
    predicted = call_json("predict", trained["run_dir"], store.path, tmp_path / "p.csv")
    assert predicted["n_samples"] == 170


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("model.C=nan", "model.C must be a finite number above 0, got nan."),
        ("model.C=0", "model.C must be a finite number above 0, got 0.0."),
        ("solver.tol=-1", "solver.tol must be a finite number above 0, got -1.0."),
        ("model.gamma=inf", "model.gamma must be a finite number, 0 or above, got inf."),
        ("model.loss=softmx", "loss 'softmx' is unknown. Did you mean 'softmax'?"),
        ("solver.name=scda", "solver.name must be one of 'auto', 'sdca', 'frank_wolfe', "),
        ("solver.epochs=3", "key in [solver] 'epochs' is unknown. Did you mean 'max_epochs'?"),
        ("data.evaluate=['tst']", "split 'tst' is unknown"),
        ("C=1", "--set must be section.key=value, got 'C=1'."),
    ],
)
def test_bad_value_is_one_line_and_status_2(call, job_path, tmp_path, text, message):
    result = call("train", job_path, "--set", text)
    assert (result.status, result.out) == (2, "")
    assert result.err.startswith(f"error: {message}")
    assert result.err.count("\n") == 1
    assert not (tmp_path / "runs").exists()


def test_absent_job_is_one_line_and_status_2(call):
    result = call("train", "nowhere.toml")
    assert result.status == 2
    assert result.err == "error: job file 'nowhere.toml' does not exist.\n"


@pytest.mark.parametrize(
    ("name", "what"), [("job.toml", "which is a file"), ("no.zarr", "which does not exist")]
)
def test_store_that_is_none_is_named_by_its_key(call, job_path, tmp_path, name, what):
    result = call("train", job_path, "--set", f"data.store={tmp_path / name}")
    assert result.status == 2
    assert result.err == (
        f"error: data.store must be the folder of a feature store, got {str(tmp_path / name)!r}, "
        f"{what}. `dtopk ingest` makes one.\n"
    )


def test_error_does_not_name_an_option_that_was_not_given(call, job_path):
    result = call("train", job_path, "--run-dir", "x", "--set", "model.k=0")
    assert result.err == "error: model.k must be at least 1, got 0. In --set model.k=0.\n"


def test_used_run_folder_is_refused(call, job_path):
    assert call("train", job_path).status == 0
    result = call("train", job_path)
    assert result.status == 2
    assert "run folder must be new or empty" in result.err
    assert "--run-dir" in result.err


def test_interrupt_keeps_the_run_and_exits_130(call, job_path, tmp_path, monkeypatch):
    def interrupt(self, record, W):
        if record.epoch == 1:
            signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(LineProgress, "on_epoch", interrupt)
    result = call("train", job_path, "--json", "--set", "solver.tol=1e-9")
    assert result.status == 130
    assert json.loads(result.out)["stop_reason"] == "interrupted"
    assert (tmp_path / "runs" / "a" / "model.npz").exists()


def test_second_interrupt_stops_at_once(call, job_path, tmp_path, monkeypatch):
    def interrupt(self, record, W):
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(LineProgress, "on_epoch", interrupt)
    result = call("train", job_path, "--set", "solver.tol=1e-9")
    assert (result.status, result.out) == (130, "")
    assert result.err.endswith("error: interrupted.\n")
    assert not (tmp_path / "runs" / "a").exists()


@pytest.mark.parametrize("sigint", [signal.SIG_DFL, signal.SIG_IGN])
def test_request_to_end_keeps_the_run(job_path, tmp_path, sigint):
    """Also in the background of a script, where a shell has interrupts ignored."""
    arguments = [
        "train",
        str(job_path),
        "--set=solver.tol=1e-12",
        "--set=solver.max_epochs=1000000",
    ]
    environment = os.environ | {"PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'storage'}"}
    with subprocess.Popen(
        [sys.executable, "-c", f"from dtopk.cli import main; main({arguments!r})"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        env=environment,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, sigint),
    ) as process:
        for line in process.stderr:
            if line.startswith("epoch"):
                process.terminate()
                break
        rest = process.stderr.read()
    assert process.returncode == 130
    assert "what was reached is kept, with its gap" in rest
    result = json.loads((tmp_path / "runs" / "a" / "result.json").read_text())
    assert result["stop_reason"] == "interrupted"


def test_progress_is_a_bar_on_a_terminal(job_path):
    """Run on a pseudo-terminal: the bar is drawn, and the answer is on standard output."""
    pty = pytest.importorskip("pty")
    master, slave = pty.openpty()
    environment = os.environ | {
        "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'storage'}", "TERM": "xterm",
    }  # fmt: skip
    arguments = ["train", str(job_path), "--json"]
    process = subprocess.Popen(
        [sys.executable, "-c", f"from dtopk.cli import main; main({arguments!r})"],
        stdout=subprocess.PIPE, stderr=slave, env=environment,
    )  # fmt: skip
    os.close(slave)
    drawn = b""
    while True:
        try:
            part = os.read(master, 4096)
        except OSError:
            # Linux answers EIO once the other end is closed.
            break
        if not part:
            break
        drawn += part
    out, _ = process.communicate()
    os.close(master)
    assert process.returncode == 0
    assert json.loads(out)["certified"] is True
    assert b"epoch   1/200" in drawn
    assert "\u2501".encode() in drawn


def make_records(gaps, seconds_each=2.0):
    return [
        SimpleNamespace(relative_gap=gap, seconds=seconds_each * place)
        for place, gap in enumerate(gaps)
    ]


def test_time_left_follows_the_fall_of_the_gap():
    """The gap falls tenfold in 2 s; from 1e-3 to 1e-5 that is 4 s more."""
    assert estimate_seconds_left(make_records([1, 1e-1, 1e-2, 1e-3]), 1e-5) == pytest.approx(4)


def test_time_left_follows_the_last_epochs_alone():
    """Ten epochs that fall tenfold each, after twenty that did not fall."""
    gaps = [1.0] * 20 + [10.0**-n for n in range(10)]
    assert estimate_seconds_left(make_records(gaps), 1e-11) == pytest.approx(4)


@pytest.mark.parametrize(
    "gaps",
    [[], [1, 0.1, 0.01], [0.1, 0.2, 0.3, 0.4], [0.1] * 5, [1, 0.1, 0.01, -1e-3], [1, 0.1, 1, 0.1]],
)
def test_time_left_is_unknown_early_and_where_the_gap_does_not_fall_steadily(gaps):
    assert np.isnan(estimate_seconds_left(make_records(gaps), 1e-3))


INFO = FitInfo(
    n_samples=10, n_features=2, n_classes=3, loss_name="softmax", solver="sdca", tol=1e-3,
    max_epochs=200, features_in_memory=True, duals_in_memory=True,
)  # fmt: skip
RECORD = EpochRecord(
    epoch=3, seconds=12.34, rows_per_second=45678.9, primal=2.0, dual_value=1.0,
    relative_gap=0.5, exact=False, read_seconds=0.0, acceleration=1.0,
)  # fmt: skip


def test_epoch_line_tells_gap_limits_speed_and_time():
    assert describe_epoch(RECORD, INFO, 130.0) == (
        "epoch 3 of 200, gap 5.00e-01 (estimated; asked 0.001), 45,679 rows/s, 12.3 s, ~2 min left"
    )


def test_compiling_is_told_where_it_takes_long(capsys, monkeypatch):
    monkeypatch.setattr(train_progress, "_COMPILE_NOTICE_S", 0.0)
    progress = LineProgress()
    progress.on_start(INFO)
    progress.on_compile()
    progress._notice._timer.join()
    assert "compiling for this loss and dtype, once on a machine" in capsys.readouterr().err


def test_kernels_that_are_there_are_not_told(capsys):
    progress = LineProgress()
    progress.on_start(INFO)
    progress.on_compile()
    progress.on_rows(5)
    progress._notice._timer.join()
    assert "compiling" not in capsys.readouterr().err


def test_message_during_the_bar_goes_above_it(capsys, monkeypatch):
    """It is the console's to write it, which takes the bar away before."""
    progress = BarProgress()
    written = []
    monkeypatch.setattr(progress._bar.console, "print", lambda *a, **_: written.extend(a))
    progress.on_start(INFO)
    tell("Interrupted")
    progress.stop()
    tell("wrote it")
    assert written == ["Interrupted"]
    assert capsys.readouterr().err.endswith("wrote it\n")


@pytest.mark.parametrize(
    ("n_characters", "state"),
    [
        (80, "gap 5.0e-01 (asked 0.001), 12 s, ~5 s left, 45,679 rows/s"),
        (45, "gap 5.0e-01 (asked 0.001), 12 s, ~5 s left"),
        (3, "gap 5.0e-01 (asked 0.001)"),
    ],
)
def test_state_beside_the_bar_is_never_cut(n_characters, state):
    assert train_progress._describe_state(RECORD, INFO, 5.0, n_characters) == state
