"""`dtopk sweep`."""

import csv
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from dtopk.cli import sweep_progress
from dtopk.cli.sweep_progress import SweepBars, SweepLines
from dtopk.job import Setting
from dtopk.job.sweep_units import Unit, UnitResult

ROOT = Path(__file__).parents[2]


@pytest.fixture
def job_path(store, tmp_path):
    path = tmp_path / "job.toml"
    path.write_text(
        "version = 1\n[data]\nstore = 'small.zarr'\nevaluate = ['test']\n"
        "[sweep]\nC = [0.01, 0.1]\nloss = ['softmax', 'topk_hinge_alpha']\nk = 2\nfolds = 2\n"
        "metric = ['top_1', 'top_2']\n"
        "[output]\nrun_dir = 'runs/a'\n[tracking]\nmlflow = false\n"
    )
    return path


def test_sweep_answers_with_the_best_and_prints_every_path(call, job_path, tmp_path):
    result = call("sweep", job_path)
    assert result.status == 0, result.err
    folder = tmp_path / "runs" / "a"
    for path in folder.iterdir():
        assert f"wrote {path}\n" in result.err
    assert f"wrote {folder / 'best' / 'top_1' / 'model.npz'}\n" in result.err
    assert (folder / "sweep.png").stat().st_size > 10_000
    assert "training 8 models: 4 settings in 2 folds\n" in result.err
    assert "8 of 8: " in result.err
    lines = result.out.splitlines()
    assert lines[0].startswith("4 settings, all certified to a relative gap of 0.001; ")
    header = next(line for line in lines if line.startswith("best by"))
    assert header.split()[-2:] == ["test", "gap"]
    assert "2 folds of split 'train'" in header
    assert [line.split()[0] for line in lines if line.startswith("top_")] == ["top_1", "top_2"]
    assert "trained anew on the rows of 'train'" in result.out


def test_sweep_answers_with_one_json_object(call_json, job_path, tmp_path):
    answer = call_json("sweep", job_path, "--set", "sweep.loss=softmax", "--set", "sweep.folds=3")
    assert answer["complete"] is True
    assert (answer["n_settings"], answer["n_done"]) == (2, 2)
    folder = tmp_path / "runs" / "a"
    assert answer["run_dir"] == str(folder)
    best = answer["best"]["top_1"]
    assert best["model"] == str(folder / "best" / "top_1" / "model.npz")
    assert best["value"] == max(each["top_1"] for each in answer["settings"])
    with (folder / "sweep.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["name"] for row in rows] == ["softmax-C0.01", "softmax-C0.1"]
    assert set(rows[0]) >= {
        "loss", "k", "gamma", "smoothing", "C", "epochs", "certified", "gap", "seconds", "top_1",
        "top_4",
    }  # fmt: skip
    evaluated = call_json("evaluate", folder / "best" / "top_1", answer_store(tmp_path))
    assert evaluated["splits"]["test"]["top_k_accuracy"]["1"] == best["evaluated"]["test"]["top_1"]


def test_table_of_losses_has_a_line_for_each(call, job_path):
    settings = ("--set", "sweep.by_loss=true", "--set", "solver.max_epochs=2")
    result = call("sweep", job_path, *settings, "--set", "sweep.folds=0",
                  "--set", "data.validation=test")  # fmt: skip
    assert result.status == 0, result.err
    table = result.out[result.out.index("on test, C by each metric") :].splitlines()
    assert table[0].split()[-2:] == ["top_1", "top_2"]
    assert table[1].startswith("softmax ")
    assert table[2].startswith("topk_hinge_alpha, k = 2, gamma = 0 ")
    assert "%*" in table[2]
    assert "* not certified" in result.out


def answer_store(tmp_path):
    return tmp_path / "small.zarr"


def test_sweep_again_trains_nothing(call, job_path):
    call("sweep", job_path)
    result = call("sweep", job_path)
    assert result.status == 0
    assert "8 done already" in result.err
    assert "; 0 models trained" in result.out


def test_info_shows_the_sweep(call, call_json, job_path, tmp_path):
    call("sweep", job_path)
    folder = tmp_path / "runs" / "a"
    text = call("info", folder).out
    assert "4 of 4 done" in text
    assert "topk_hinge_alpha-k2-gamma0-C0.1" in text
    assert call_json("info", folder)["best"].keys() == {"top_1", "top_2"}
    (folder / "sweep.json").unlink()
    assert "the command that began it goes on" in call("info", folder).out
    assert call("info", folder, "--verify").status == 2


def test_sweep_says_where_the_best_c_is_at_an_end(call, job_path):
    result = call("sweep", job_path, "--set", "sweep.C=[1e-9, 0.1]", "--set", "sweep.metric=top_1")
    assert (
        "The best C by top_1, 0.1, is at the end of those tried: larger ones may be better."
        in result.out
    )


def test_sweep_says_what_is_not_certified(call, job_path):
    result = call("sweep", job_path, "--set", "solver.max_epochs=1", "--set", "solver.tol=1e-5")
    assert result.status == 0
    assert "4 settings, 0 certified" in result.out
    assert "not certified" in result.out
    assert "raise solver.max_epochs" in result.out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--set", "sweep.C=[0]"], "sweep.C must be a finite number above 0, got 0.0. In --set"),
        (["--set", "sweep.Cs=[1]"], "key in [sweep] 'Cs' is unknown. Did you mean 'C'?"),
        (["--set", "sweep.k=4"], "got 4. Set by sweep.k of the job."),
        (["--set", "sweep.folds=0"], "data.validation must name the split"),
        (["--set", "data.store=nope.zarr"], "which does not exist"),
    ],
)
def test_bad_values_end_with_status_2(call, job_path, tmp_path, arguments, message):
    result = call("sweep", job_path, *arguments)
    assert result.status == 2
    assert message in result.err
    assert not (tmp_path / "runs" / "a").exists()


def test_train_and_sweep_name_each_other(call, job_path, tmp_path):
    result = call("train", job_path)
    assert result.status == 2
    assert "must have no section [sweep]" in result.err
    assert "`dtopk sweep`" in result.err
    plain = tmp_path / "plain.toml"
    plain.write_text("version = 1\n[data]\nstore = 'small.zarr'\n")
    result = call("sweep", plain)
    assert result.status == 2
    assert "must have a section [sweep], got none" in result.err
    assert "`dtopk train`" in result.err


def test_ctrl_c_ends_with_what_is_done_and_status_130(job_path, tmp_path):
    arguments = ["--set", "solver.tol=1e-12", "--set", "solver.dtype=float64",
                 "--set", "solver.max_epochs=1000000", "--set", "sweep.C=[1e-9, 100]",
                 "--set", "sweep.gamma=0.0", "--set", "sweep.loss=topk_hinge_alpha",
                 "--set", "sweep.width=1", "--set", "sweep.folds=2"]  # fmt: skip
    process = subprocess.Popen(
        [sys.executable, "-m", "dtopk.cli", "sweep", str(job_path), *arguments, "--json"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
    )  # fmt: skip
    assert process.stderr is not None
    for line in process.stderr:
        if line.startswith("1 of 4"):
            process.send_signal(signal.SIGINT)
            break
    out, _ = process.communicate(timeout=60)
    assert process.returncode == 130
    answer = json.loads(out)
    assert answer["interrupted"] is True
    assert answer["complete"] is False
    assert (tmp_path / "runs" / "a" / "settings").is_dir()


UNIT = Unit(setting=Setting(loss="softmax", C=0.1))
RESULT = UnitResult(
    solver="sdca", stop_reason="max_epochs", epochs=1, seconds=0.5, primal=2.0, dual=1.0,
    duality_gap=1.0, relative_gap=0.5, certified=False, splits=("train",),
)  # fmt: skip


def test_lines_say_what_a_model_came_to(capsys):
    lines = SweepLines()
    lines.on_start([UNIT, Unit(setting=Setting(loss="softmax", C=1.0))], 1)
    lines.on_done(UNIT, RESULT)
    err = capsys.readouterr().err
    assert "training 2 models; 1 done already\n" in err
    assert (
        "2 of 2: softmax, C = 0.1: not certified (max_epochs), gap 5.00e-01, 1 epoch, 0.5 s\n"
        in err
    )


def test_bars_come_and_go_with_the_models(monkeypatch):
    from dtopk.engine import EpochRecord, FitInfo

    monkeypatch.setattr(sweep_progress.sys.stderr, "isatty", lambda: True, raising=False)
    bars = SweepBars()
    bars.on_start([UNIT], 0)
    (callback,) = bars.make_callbacks(UNIT)
    callback.on_start(
        FitInfo(
            n_samples=10,
            n_features=2,
            n_classes=3,
            loss_name="softmax",
            solver="sdca",
            tol=1e-3,
            max_epochs=5,
            features_in_memory=True,
            duals_in_memory=True,
        )
    )
    callback.on_compile()
    callback.on_rows(5)
    callback.on_epoch(
        EpochRecord(
            epoch=1,
            seconds=1.0,
            rows_per_second=10.0,
            primal=2.0,
            dual_value=1.0,
            relative_gap=0.5,
            exact=False,
            read_seconds=0.0,
            acceleration=1.0,
        ),
        None,
    )
    shown = [task.description for task in bars._bars.tasks]
    assert shown == ["all", "softmax-C0.1"]
    assert bars._bars.tasks[1].fields["state"] == "epoch 2, gap 5.0e-01"
    callback.on_end(None)
    bars.on_done(UNIT, RESULT)
    bars.on_rows("val", 5, 10)
    assert [task.description for task in bars._bars.tasks] == ["all", "scoring val"]
    bars.on_rows("val", 10, 10)
    bars.stop()
    bars.stop()
    assert [task.fields["state"] for task in bars._bars.tasks] == ["1 of 1 models"]
