"""Sweeps: what they train, choose, keep and refuse."""

import csv
import dataclasses
import json
import math
import shutil
import signal
import socket
import subprocess
import sys
import uuid
from pathlib import Path

import numpy as np
import pytest

import dtopk
from dtopk.engine import Callback, Fold, StoreRows
from dtopk.job import (
    ClusterSection,
    DataSection,
    ModelSection,
    OutputSection,
    SolverSection,
    SweepJob,
    SweepSection,
    SweepWatcher,
    TrackingSection,
    load_sweep,
    sweep,
    sweeping,
    train,
)
from dtopk.job.calibration import calibrate_model
from dtopk.job.names import list_settings
from dtopk.job.run_folder import RunFolder
from dtopk.model import load_model
from dtopk_storage import create_store, open_store
from tests.job.test_multilabel_jobs import LABELS, make_sets
from tests.small_stores import make_rows

SIZES = {"train": 120, "val": 60, "test": 50}
ROOT = Path(__file__).parents[2]
GRID = SweepSection(
    loss=("softmax", "topk_hinge_alpha"), k=(1, 2), gamma=(1.0,), C=(1.0, 0.01, 0.1),
    metric=("top_1", "top_2"),
)  # fmt: skip
"""Three losses at three values of C."""


SAVE_PNG = sweeping.save_png


@pytest.fixture(autouse=True)
def no_figure(monkeypatch, no_figures):
    monkeypatch.setattr(sweeping, "save_png", lambda figure, path: None)


@pytest.fixture
def store(tmp_path):
    return write_store(tmp_path / "s.zarr")


def write_store(path):
    names = ("ant", "bee", "cat", "dog")
    with create_store(path, n_features=6, class_names=names, chunk_rows=32) as writer:
        for seed, (split, n_rows) in enumerate(SIZES.items()):
            writer.append(*make_rows(n_rows, seed=seed), split=split)
    return open_store(path)


@pytest.fixture
def make_sweep(tmp_path):
    def make_sweep(run_dir="run", grid=GRID, **sections):
        defaults = {
            "data": DataSection(validation="val"),
            "output": OutputSection(run_dir=str(tmp_path / "runs" / run_dir)),
            "tracking": TrackingSection(mlflow=False),
        }
        return SweepJob(sweep=grid, **(defaults | sections))

    return make_sweep


def with_grid(job, **values):
    return dataclasses.replace(job, sweep=dataclasses.replace(job.sweep, **values))


class Watch(SweepWatcher):
    """Write down what is trained, and do something after some of it."""

    def __init__(self, after=0, act=lambda: None):
        self.done, self._after, self._act = [], after, act

    def on_done(self, unit, result):
        self.done.append(unit.name)
        if len(self.done) == self._after:
            self._act()


# What is trained.


def test_settings_are_the_product_less_what_a_loss_does_not_take(make_sweep):
    grid = SweepSection(
        loss=("softmax", "topk_hinge_alpha", "smooth_hinge_ova"), k=(1, 2), gamma=(0.0, 1.0),
        smoothing=("lapin", "moreau"), C=(1.0, 0.1),
    )  # fmt: skip
    settings, left_out = list_settings(make_sweep(grid=grid))
    assert [each.name for each in settings if each.C == 0.1] == [
        "softmax-C0.1",
        "topk_hinge_alpha-k1-gamma0-C0.1",
        "topk_hinge_alpha-k1-gamma1-C0.1",
        "topk_hinge_alpha-k1-gamma1-moreau-C0.1",
        "topk_hinge_alpha-k2-gamma0-C0.1",
        "topk_hinge_alpha-k2-gamma1-C0.1",
        "topk_hinge_alpha-k2-gamma1-moreau-C0.1",
        "smooth_hinge_ova-gamma1-C0.1",
    ]
    assert [each.C for each in settings[:2]] == [0.1, 1]
    assert set(left_out) == {"smooth_hinge_ova-gamma0-C0.1", "smooth_hinge_ova-gamma0-C1"}


def test_empty_lists_stand_for_the_values_of_the_model(make_sweep):
    model = ModelSection(loss="topk_hinge_alpha", k=2, gamma=0.5, C=3.0)
    (setting,), _ = list_settings(make_sweep(grid=SweepSection(), model=model))
    assert setting.name == "topk_hinge_alpha-k2-gamma0.5-C3"
    assert setting.make_job(make_sweep(model=model), "x").model == model


def test_every_setting_is_the_optimum_that_train_finds(store, make_sweep):
    """Weights differ by less than both certificates allow: |W - W*|^2 / 2 <= P(W) - P(W*)."""
    job = make_sweep()
    result = sweep(store, job)
    assert result.complete
    assert len(result.settings) == result.n_trained == 9
    for each in result.settings:
        assert each.certified
        folder = result.run_dir / "settings" / each.setting.name
        alone = train(store, each.setting.make_job(job, str(folder.parent / "alone")))
        found = load_model(folder)
        gaps = [each.duality_gap, alone.certificate.duality_gap]
        distance = np.linalg.norm(found.W.astype(float) - alone.model.W)
        assert distance <= sum(np.sqrt(2 * gap) for gap in gaps) + 1e-6
        assert found.certificate["primal"] == pytest.approx(alone.certificate.primal, abs=sum(gaps))
        assert found.job["model"]["C"] == each.setting.C
        shutil.rmtree(folder.parent / "alone")


def test_sweep_leaves_every_file(store, make_sweep):
    result = sweep(store, make_sweep())
    names = sorted(path.name for path in result.run_dir.iterdir())
    assert names == ["best", "job.toml", "settings", "sweep-run.json", "sweep.csv", "sweep.json"]
    assert sorted(path.name for path in result.written) == names
    for each in result.settings:
        folder = result.run_dir / "settings" / each.setting.name
        files = {path.name for path in folder.iterdir()}
        assert files == {"model.npz", "history.csv", "result.json"}
        written = json.loads((folder / "result.json").read_text())
        assert written["epochs"] == each.epochs
        assert len((folder / "history.csv").read_text().splitlines()) == each.epochs + 1
    assert json.loads((result.run_dir / "sweep.json").read_text()) == json.loads(
        json.dumps(result.to_dict())
    )
    assert load_sweep(result.run_dir / "job.toml").sweep == GRID


# What is chosen.


def count_topk(model, X, y, k):
    """Count the rows whose class is among the k highest scores, one by one."""
    order = np.argsort(-model.decision_function(X), axis=1, kind="stable")
    return sum(label in best[:k] for label, best in zip(y, order, strict=True)) / len(y)


def test_best_settings_are_those_of_a_count_by_hand(store, make_sweep):
    result = sweep(store, make_sweep())
    X, y = make_rows(SIZES["val"], seed=1)
    with (result.run_dir / "sweep.csv").open(newline="") as file:
        table = {row["name"]: row for row in csv.DictReader(file)}
    for k in (1, 2):
        counted = {}
        for each in result.settings:
            model = load_model(result.run_dir / "settings" / each.setting.name)
            counted[each.setting.name] = count_topk(model, X, y, k)
            assert each.metrics[f"top_{k}"] == pytest.approx(counted[each.setting.name])
            assert float(table[each.setting.name][f"top_{k}"]) == each.metrics[f"top_{k}"]
        best = result.best[f"top_{k}"]
        assert best.value == pytest.approx(max(counted.values()))
        assert counted[best.result.setting.name] == pytest.approx(best.value)


def test_best_model_is_a_copy_that_is_measured_on_the_other_splits(store, make_sweep):
    result = sweep(store, make_sweep())
    best = result.best["top_1"]
    assert best.model_path == result.run_dir / "best" / "top_1" / "model.npz"
    kept = load_model(best.model_path)
    found = load_model(result.run_dir / "settings" / best.result.setting.name)
    np.testing.assert_array_equal(kept.W, found.W)
    X, y = make_rows(SIZES["test"], seed=2)
    assert best.evaluated["test"]["top_1"] == pytest.approx(count_topk(kept, X, y, 1))


def test_validation_rows_are_read_once_for_all_models(store, make_sweep, monkeypatch):
    reads = []
    read = type(store).read_features

    def count(self, start, stop):
        reads.append((start, stop))
        return read(self, start, stop)

    monkeypatch.setattr(type(store), "read_features", count)
    sweep(store, make_sweep())
    validation = [bounds for bounds in reads if 120 <= bounds[0] < 180]
    assert len(validation) == len(set(validation))
    assert sum(stop - start for start, stop in validation) == 60


def test_a_model_that_is_not_certified_is_scored_and_says_so(store, make_sweep):
    result = sweep(store, make_sweep(solver=SolverSection(tol=1e-5, max_epochs=2)))
    assert result.complete
    assert not any(each.certified for each in result.settings if each.setting.C == 1)
    assert all(0 < each.metrics["top_1"] < 1 for each in result.settings)
    text = (result.run_dir / "sweep.csv").read_text()
    assert "False" in text
    assert "max_epochs" in text


def test_figure_is_drawn(store, make_sweep, monkeypatch):
    monkeypatch.setattr(sweeping, "save_png", SAVE_PNG)
    result = sweep(store, make_sweep())
    assert (result.run_dir / "sweep.png").read_bytes().startswith(b"\x89PNG")
    assert result.run_dir / "sweep.png" in result.written


# Folds and training anew.


def test_each_row_is_held_out_once(store):
    weights = []
    for number in (1, 2, 3):
        rows = StoreRows(store, "train", held_out=Fold(number=number, n_folds=3, seed=5))
        weights.append(np.concatenate([rows.read_labels(piece)[1] for piece in rows.pieces]))
    np.testing.assert_array_equal(np.sum(weights, axis=0), 2)
    assert [int(weight.sum()) for weight in weights] == [80, 80, 80]


def test_folds_score_rows_by_models_that_have_not_seen_them(store, make_sweep):
    grid = SweepSection(C=(0.01, 0.1), folds=3, width=2)
    job = make_sweep(grid=grid, solver=SolverSection(tol=1e-8, dtype="float64"))
    result = sweep(store, job)
    assert result.n_trained == 2 * 3 + 1
    X, y = make_rows(SIZES["train"], seed=0)
    for each in result.settings:
        hits = np.zeros(len(y), bool)
        for number in (1, 2, 3):
            rows = StoreRows(store, "train", held_out=Fold(number=number, n_folds=3))
            weight = np.concatenate([rows.read_labels(piece)[1] for piece in rows.pieces])
            out = weight == 0
            alone = train_on(X[~out], y[~out], each.setting.C)
            hits[out] = (X[out] @ alone).argmax(axis=1) == y[out]
            model = load_model(result.run_dir / "settings" / each.setting.name / f"fold-{number}")
            np.testing.assert_allclose(model.W, alone, atol=1e-3)
        assert each.metrics["top_1"] == pytest.approx(hits.mean())
    best = result.best["top_1"]
    assert best.refit
    assert best.trained.splits == ("train",)
    np.testing.assert_allclose(best.model.W, train_on(X, y, best.result.setting.C), atol=1e-3)


def train_on(X, y, C):
    """Train on some rows alone."""
    from dtopk.engine import ArrayRows, FitOptions, fit
    from dtopk.losses import make_loss

    options = FitOptions(C=C, tol=1e-8, dtype="float64", max_epochs=500)
    rows = ArrayRows(np.ascontiguousarray(X), y.astype(np.int32), 4)
    return fit(rows, make_loss("softmax"), options).W


def test_refit_trains_on_the_validation_rows_too(store, make_sweep):
    grid = SweepSection(C=(0.01, 0.1), refit=True)
    job = make_sweep(grid=grid, solver=SolverSection(tol=1e-8, dtype="float64"))
    result = sweep(store, job)
    best = result.best["top_1"]
    assert best.trained.splits == ("train", "val")
    first, more = make_rows(120, seed=0), make_rows(60, seed=1)
    X, y = (np.concatenate(parts) for parts in zip(first, more, strict=True))
    np.testing.assert_allclose(best.model.W, train_on(X, y, best.result.setting.C), atol=1e-3)
    assert best.model.class_rows.sum() == 180
    # The model that was chosen is kept as it was.
    kept = load_model(result.run_dir / "settings" / best.result.setting.name)
    assert kept.class_rows.sum() == 120


@pytest.mark.parametrize("refit", [False, True])
def test_losses_are_compared_each_at_its_best(store, make_sweep, refit):
    """C by each metric on the validation rows, and measured on the test rows."""
    grid = dataclasses.replace(GRID, by_loss=True, refit=refit)
    result = sweep(store, make_sweep(grid=grid))
    families = {each.setting.family for each in result.settings}
    assert len(result.losses) == len(families) * len(GRID.metric) == 6
    X, y = make_rows(SIZES["test"], seed=2)
    with (result.run_dir / "losses.csv").open(newline="") as file:
        lines = list(csv.DictReader(file))
    for each, line in zip(result.losses, lines, strict=True):
        own = [one for one in result.settings if one.setting.family == each.result.setting.family]
        assert each.result.metrics[each.metric] == max(one.metrics[each.metric] for one in own)
        folder = result.run_dir / "settings" / each.result.setting.name
        model = load_model(folder / "refit" if refit else folder)
        assert model.class_rows.sum() == (180 if refit else 120)
        k = int(each.metric.removeprefix("top_"))
        expected = count_topk(model, X, y, k)
        assert each.evaluated["test"] == pytest.approx(expected)
        assert float(line["test"]) == pytest.approx(expected)
        assert float(line["C"]) == each.result.setting.C
    # The best of all is one of them.
    best = result.best["top_1"]
    assert best.evaluated["test"]["top_1"] in {each.evaluated["test"] for each in result.losses}


def test_losses_are_not_compared_unless_asked_for(store, make_sweep):
    """Nor is a table left of an earlier call."""
    sweep(store, make_sweep(grid=dataclasses.replace(GRID, by_loss=True)))
    result = sweep(store, make_sweep())
    assert result.losses == ()
    assert not (result.run_dir / "losses.csv").exists()


def test_turning_refit_on_trains_the_best_alone(store, make_sweep):
    grid = SweepSection(C=(0.01, 0.1))
    sweep(store, make_sweep(grid=grid))
    result = sweep(store, make_sweep(grid=dataclasses.replace(grid, refit=True)))
    assert result.n_trained == 1
    assert result.best["top_1"].refit


# Going on.

_KILLED = """
import os, signal, sys
from dtopk.job import SweepWatcher, load_sweep, sweep

class Kill(SweepWatcher):
    n_done = 0

    def on_done(self, unit, result):
        self.n_done += 1
        if self.n_done == 4:
            os.kill(os.getpid(), signal.SIGKILL)

job = load_sweep(sys.argv[1])
sweep(job.data.store, job, watcher=Kill())
"""


def test_a_killed_sweep_repeats_nothing_that_was_done(store, make_sweep, tmp_path):
    from dtopk.job import job_to_toml

    job = make_sweep(data=DataSection(store=store.path, validation="val"))
    path = tmp_path / "job.toml"
    path.write_text(job_to_toml(job))
    killed = subprocess.run(
        [sys.executable, "-c", _KILLED, str(path)], cwd=ROOT, timeout=120, check=False
    )
    assert killed.returncode == -signal.SIGKILL
    settings = tmp_path / "runs" / "run" / "settings"
    done = {file.parent.name: file.stat().st_mtime_ns for file in settings.glob("*/result.json")}
    assert len(done) == 4
    watch = Watch()
    result = sweep(store, load_sweep(path), watcher=watch)
    assert result.complete
    assert result.n_trained == 5
    assert set(watch.done).isdisjoint(done)
    assert len(watch.done) == 5
    for name, modified in done.items():
        assert (settings / name / "result.json").stat().st_mtime_ns == modified
    assert all(each.certified for each in result.settings)
    whole = sweep(store, make_sweep("whole"))
    for one, other in zip(result.settings, whole.settings, strict=True):
        assert one.setting == other.setting
        assert one.duality_gap >= 0


def test_values_may_be_added(store, make_sweep):
    job = make_sweep()
    sweep(store, job)
    watch = Watch()
    result = sweep(store, with_grid(job, C=(0.01, 0.1, 1.0, 10.0)), watcher=watch)
    assert sorted(watch.done) == sorted(
        each.setting.name for each in result.settings if each.setting.C == 10
    )
    assert len(result.settings) == 12


def test_a_sweep_that_is_done_trains_nothing(store, make_sweep):
    first = sweep(store, make_sweep())
    again = sweep(store, make_sweep())
    assert again.n_trained == 0
    assert again.settings == first.settings


def calibrate_best(result, metric="top_1"):
    """Do what `dtopk calibrate` does, with something for a figure."""
    folder = RunFolder(path=result.run_dir / "best" / metric)
    model = load_model(folder.path)
    calibrate_model(model, open_store(model.job["data"]["store"]), "test").model.save(folder.model)
    folder.reliability.write_bytes(b"png")
    return folder


def test_a_sweep_that_is_done_keeps_calibrations(store, make_sweep, caplog):
    folder = calibrate_best(sweep(store, make_sweep()))
    before = load_model(folder.path).calibration
    again = sweep(store, make_sweep()).best["top_1"]
    kept = load_model(folder.path).calibration
    for found in (again.model.calibration, kept):
        assert found.temperature == before.temperature
        np.testing.assert_array_equal(found.conformal_scores, before.conformal_scores)
    assert folder.reliability.is_file()
    assert "calibration" not in caplog.text


def test_another_best_model_drops_the_calibration(store, make_sweep, caplog):
    """Trained anew on more rows it has other weights; of the second metric none is asked for."""
    first = sweep(store, make_sweep())
    folders = [calibrate_best(first, metric) for metric in ("top_1", "top_2")]
    job = with_grid(make_sweep(), refit=True, metric="top_1")
    assert sweep(store, job).best["top_1"].model.calibration is None
    assert load_model(folders[0].path).calibration is None
    assert not folders[0].reliability.exists()
    assert not folders[1].path.exists()
    for folder in folders:
        assert f"The calibration of the model in {str(folder.path)!r} is dropped" in caplog.text


def test_models_say_what_they_were_trained_and_chosen_on(store, make_sweep):
    result = sweep(store, make_sweep(grid=SweepSection(C=(0.01, 0.1), refit=True)))
    best = load_model(result.best["top_1"].model_path)
    assert (best.trained_on, best.chosen_on) == (("train", "val"), "val")
    setting = result.run_dir / "settings" / result.best["top_1"].result.setting.name
    assert load_model(setting / "refit").trained_on == ("train", "val")
    one = load_model(setting)
    assert (one.trained_on, one.chosen_on) == (("train",), "")
    folds = sweep(store, make_sweep("folds", grid=SweepSection(C=(0.01, 0.1), folds=2)))
    best = load_model(folds.best["top_1"].model_path)
    assert (best.trained_on, best.chosen_on) == (("train",), "train")
    fold = folds.run_dir / "settings" / folds.best["top_1"].result.setting.name / "fold-1"
    assert load_model(fold).trained_on == ("train",)


def test_the_splits_of_a_refit_are_no_rows_to_calibrate_on(store, make_sweep, caplog):
    result = sweep(store, make_sweep(grid=SweepSection(C=(0.01, 0.1), refit=True)))
    model = load_model(result.run_dir / "best" / "top_1")
    for split, n_rows in (("train", 120), ("val", 60)):
        with pytest.raises(ValueError, match=f"{n_rows} rows are in 'train' and 'val'. Calib"):
            calibrate_model(model, store, split)
    calibrate_model(model, store, "test")
    assert not caplog.text


def test_rows_that_a_sweep_chose_by_are_warned_of(store, make_sweep, caplog):
    result = sweep(store, make_sweep(grid=SweepSection(C=(0.01, 0.1))))
    calibrate_model(load_model(result.run_dir / "best" / "top_1"), store, "val")
    assert "The model was chosen by its setting's metric on split 'val'" in caplog.text


def test_a_refit_of_an_older_sweep_says_its_splits_once_gone_on_with(store, make_sweep):
    """Its models in settings/ do not say them; the results beside them do."""
    job = make_sweep(grid=SweepSection(C=(0.01, 0.1), refit=True))
    result = sweep(store, job)
    for path in (result.run_dir / "settings").rglob("model.npz"):
        dataclasses.replace(load_model(path), trained_on=()).save(path)
    sweep(store, job)
    assert load_model(result.run_dir / "best" / "top_1").trained_on == ("train", "val")


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"solver": SolverSection(tol=1e-4)}, r"solver.tol = 0.0001 \(was 0.001\)"),
        ({"model": ModelSection(fit_intercept=True)}, "model.fit_intercept = True"),
        ({"data": DataSection(validation="val", train="test")}, "data.train = 'test'"),
        ({"grid": dataclasses.replace(GRID, C=(0.01, 1.0))}, r"sweep.C without 0.1"),
        ({"grid": dataclasses.replace(GRID, k=(1,))}, r"sweep.k without 2"),
        ({"grid": dataclasses.replace(GRID, folds=2)}, r"sweep.folds = 2 \(was 0\)"),
    ],
)
def test_another_job_is_refused_by_its_key(store, make_sweep, change, named):
    sweep(store, make_sweep())
    with pytest.raises(ValueError, match=f"job must be that of the sweep in .*{named}"):
        sweep(store, make_sweep(**change))


def test_another_store_is_refused(store, make_sweep, tmp_path):
    sweep(store, make_sweep())
    SIZES_BEFORE = dict(SIZES)
    try:
        SIZES["train"] = 110
        other = write_store(tmp_path / "other.zarr")
    finally:
        SIZES.update(SIZES_BEFORE)
    with pytest.raises(ValueError, match=r"data\.store must be the store that the sweep in"):
        sweep(other, make_sweep())


def test_an_interrupt_keeps_what_is_done(store, make_sweep):
    job = make_sweep(grid=dataclasses.replace(GRID, width=1))
    watch = Watch(after=3, act=lambda: signal.raise_signal(signal.SIGINT))
    result = sweep(store, job, watcher=watch)
    assert result.interrupted
    assert not result.complete
    n_done = len(result.settings)
    assert 3 <= n_done < 9
    assert set(result.best) == {"top_1", "top_2"}
    assert json.loads((result.run_dir / "sweep.json").read_text())["complete"] is False
    again = sweep(store, job)
    assert again.complete
    assert again.n_trained == 9 - n_done


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1])
def test_a_request_to_end_keeps_what_is_done_and_leaves_the_scores(store, make_sweep, number):
    handler = signal.getsignal(number)
    job = with_grid(make_sweep(), width=1)
    watch = Watch(after=3, act=lambda: signal.raise_signal(number))
    with pytest.raises(KeyboardInterrupt) as caught:
        sweep(store, job, watcher=watch)
    assert signal.getsignal(number) is handler
    n_done = len(watch.done)
    assert 3 <= n_done < 9
    assert f"{n_done} of 9 models are done and kept" in caught.value.__notes__[0]
    folder = Path(job.output.run_dir)
    assert not (folder / "lock").exists()
    assert not (folder / "sweep.json").exists()
    again = sweep(store, job)
    assert again.complete
    assert again.n_trained == 9 - n_done


def test_a_request_to_end_after_an_interrupt_leaves_the_scores_too(store, make_sweep):
    def ask():
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGTERM)

    job = with_grid(make_sweep(), width=1)
    with pytest.raises(KeyboardInterrupt):
        sweep(store, job, watcher=Watch(after=3, act=ask))
    assert not (Path(job.output.run_dir) / "sweep.json").exists()


def test_a_request_to_end_between_two_folds_begins_no_other(store, make_sweep):
    job = with_grid(make_sweep(), folds=2)
    watch = Watch(after=9, act=lambda: signal.raise_signal(signal.SIGTERM))
    with pytest.raises(KeyboardInterrupt):
        sweep(store, job, watcher=watch)
    assert [name.rpartition("/")[2] for name in watch.done] == ["fold-1"] * 9
    assert sweep(store, job).complete


def test_a_request_to_end_while_models_are_scored_is_obeyed_at_once(store, make_sweep):
    class Ask(SweepWatcher):
        def on_rows(self, what, done, total):
            signal.raise_signal(signal.SIGTERM)
            pytest.fail("it went on")

    job = make_sweep()
    with pytest.raises(KeyboardInterrupt) as caught:
        sweep(store, job, watcher=Ask())
    assert "9 of 9 models are done and kept" in caught.value.__notes__[0]
    again = sweep(store, job)
    assert (again.complete, again.n_trained) == (True, 0)


def test_an_error_says_what_is_kept(store, make_sweep):
    def fail():
        raise RuntimeError("no more")

    # With others that are trained at the same time, some may be done by the same pass.
    job = with_grid(make_sweep(), width=1)
    with pytest.raises(RuntimeError, match="no more") as caught:
        sweep(store, job, watcher=Watch(after=2, act=fail))
    assert "2 of 9 models are done and kept" in caught.value.__notes__[0]


def test_a_sweep_that_fails_at_once_leaves_nothing(store, make_sweep):
    class Fail(SweepWatcher):
        def make_callbacks(self, unit):
            class Broken(Callback):
                def on_start(self, info):
                    raise RuntimeError("at once")

            return [Broken()]

    job = make_sweep()
    with pytest.raises(RuntimeError, match="at once"):
        sweep(store, job, watcher=Fail())
    assert not Path(job.output.run_dir).exists()


def test_folders_in_use_are_refused(store, make_sweep, make_job):
    run = train(store, make_job("one"))
    with pytest.raises(ValueError, match=r"folder of the sweep must be new or empty.*in use"):
        sweep(store, make_sweep("one"))
    result = sweep(store, make_sweep("two"))
    with pytest.raises(ValueError, match="run folder must be new or empty"):
        train(store, make_job("two"))
    assert run.run_dir != result.run_dir


def test_a_damaged_result_is_refused(store, make_sweep):
    result = sweep(store, make_sweep())
    broken = result.run_dir / "settings" / result.settings[0].setting.name / "result.json"
    broken.write_text("{")
    with pytest.raises(ValueError, match="must be as dtopk wrote it"):
        sweep(store, make_sweep())


def test_a_sweep_in_an_object_store_goes_on_there(store, make_sweep, monkeypatch):
    monkeypatch.setattr("dtopk_storage.run_lock._SETTLE_S", 0)
    url = f"memory://{uuid.uuid4().hex}/sweep"
    grid = SweepSection(C=(0.01, 0.1), width=1)
    job = make_sweep(grid=grid, output=OutputSection(run_dir=url))
    first = sweep(store, with_grid(job, C=(0.01,)))
    result = sweep(store, job)
    assert (first.n_trained, result.n_trained) == (1, 1)
    assert str(result.best["top_1"].model_path) == f"{url}/best/top_1/model.npz"
    names = {path.name for path in result.written}
    assert names >= {"best", "settings", "sweep.csv", "sweep.json", "job.toml"}
    kept = load_model(result.best["top_1"].model_path)
    np.testing.assert_array_equal(kept.W, result.best["top_1"].model.W)


# What is refused.


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"C": [0.0]}, r"sweep.C must be a finite number above 0, got 0.0"),
        ({"C": ["a"]}, r"sweep.C must be a list of numbers, got \['a'\]"),
        ({"C": [1, 1.0]}, "sweep.C must have each value once, got 1.0 again"),
        ({"loss": ["softmx"]}, "sweep.loss must be one of .*Did you mean 'softmax'"),
        ({"loss": [1]}, "sweep.loss must be a list of strings"),
        ({"k": [0]}, "sweep.k must be at least 1, got 0"),
        ({"k": [1.5]}, "sweep.k must be a list of whole numbers"),
        ({"gamma": [-1]}, "sweep.gamma must be a finite number, 0 or above, got -1.0"),
        ({"smoothing": "moro"}, "sweep.smoothing must be one of 'lapin', 'moreau', got 'moro'"),
        ({"metric": "top_11"}, "sweep.metric must be 'top_k' with k between 1 and 10"),
        ({"metric": "f1"}, "sweep.metric 'f1' is unknown. Did you mean 'f1_"),
        ({"folds": 1}, "sweep.folds must be 0, .* or at least 2, got 1"),
        ({"folds": -1}, "sweep.folds must be at least 0, got -1"),
        ({"seed": -1}, "sweep.seed must be at least 0, got -1"),
        ({"refit": 1}, "sweep.refit must be true or false, got 1"),
        ({"width": -1}, "sweep.width must be at least 0, got -1"),
    ],
)
def test_bad_values_are_refused_by_key(values, message):
    with pytest.raises(ValueError, match=message):
        SweepSection(**values)


def test_values_may_stand_without_a_list():
    assert SweepSection(C=1, loss="softmax", metric="top_3") == SweepSection(
        C=(1.0,), loss=("softmax",), metric=("top_3",)
    )


def test_a_loss_that_takes_none_of_the_values_is_refused(make_sweep):
    grid = SweepSection(loss=("smooth_hinge_ova",), gamma=(0.0,))
    with pytest.raises(ValueError, match="gamma must be above 0 for loss 'smooth_hinge_ova'"):
        list_settings(make_sweep(grid=grid))


@pytest.mark.parametrize(
    ("sections", "message"),
    [
        ({"data": DataSection()}, "data.validation must name the split that the best"),
        ({"solver": SolverSection(warm_start="x")}, "solver.warm_start must be left out"),
    ],
)
def test_what_a_sweep_cannot_do_is_refused(make_sweep, sections, message):
    with pytest.raises(ValueError, match=message):
        make_sweep(**sections)


@pytest.mark.parametrize(
    ("grid", "message"),
    [
        ({"k": (1, 4)}, r"k must be .*got 4\. Set by sweep\.k of the job"),
        ({"metric": ("top_4",)}, r"must have k below n_classes = 4 .*Set by sweep\.metric"),
        ({"metric": ("map",)}, r"metric 'map' must have a multilabel store"),
        ({"loss": ("multilabel_softmax",)}, r"must have a multilabel store.*Set by sweep\.loss"),
    ],
)
def test_what_the_store_does_not_have_is_refused(store, make_sweep, grid, message):
    job = make_sweep(grid=dataclasses.replace(GRID, **grid))
    with pytest.raises(ValueError, match=message):
        sweep(store, job)
    assert not Path(job.output.run_dir).exists()


def test_partitions_without_workers_are_refused(store, make_sweep):
    job = make_sweep(cluster=ClusterSection(partitions=2))
    with pytest.raises(ValueError, match=r"partitions must be 0 or 1 for a sweep without workers"):
        sweep(store, job)


def test_train_and_sweep_refuse_each_others_jobs(store, make_sweep, make_job):
    with pytest.raises(ValueError, match=r"must have no section \[sweep\].*dtopk sweep"):
        train(store, make_sweep())
    with pytest.raises(ValueError, match=r"job must be a SweepJob, .* got a TrainJob"):
        dtopk.sweep(store, make_job())


# Several labels a row.


@pytest.fixture
def tags(tmp_path):
    path = tmp_path / "tags.zarr"
    with create_store(
        path, n_features=6, class_names=LABELS, chunk_rows=32, kind="multilabel"
    ) as writer:
        for seed, (split, rows) in enumerate(SIZES.items()):
            writer.append(*make_sets(rows, seed), split=split)
    return open_store(path)


def test_multilabel_settings_are_chosen_by_their_metrics(tags, make_sweep):
    from sklearn.metrics import average_precision_score, f1_score, label_ranking_loss

    grid = SweepSection(
        loss=("multilabel_softmax", "logistic_ova"), C=(0.01, 1.0),
        metric=("map", "rank_loss", "f1_macro"),
    )  # fmt: skip
    data = DataSection(validation="val", threshold_metric="f1_macro")
    result = sweep(tags, make_sweep(grid=grid, data=data))
    X, Y = make_sets(SIZES["val"], 1)
    for each in result.settings:
        model = load_model(result.run_dir / "settings" / each.setting.name)
        scores = model.decision_function(X)
        assert each.metrics["rank_loss"] == pytest.approx(label_ranking_loss(Y, scores))
        assert each.metrics["map"] == pytest.approx(average_precision_score(Y, scores))
        predicted = scores > each.metrics["threshold"]
        assert each.metrics["f1_macro"] == pytest.approx(f1_score(Y, predicted, average="macro"))
    assert result.best["map"].value == max(each.metrics["map"] for each in result.settings)
    losses = [each.metrics["rank_loss"] for each in result.settings]
    assert result.best["rank_loss"].value == min(losses)
    best = result.best["f1_macro"]
    assert load_model(best.model_path).threshold == best.result.metrics["threshold"]
    assert set(best.evaluated["test"]) >= {"map", "f1_macro", "top_1"}


def test_multilabel_default_metric_is_map(tags, make_sweep):
    grid = SweepSection(loss=("multilabel_softmax",), C=(0.1, 1.0), folds=2)
    assert set(sweep(tags, make_sweep(grid=grid)).best) == {"map"}


# MLflow.


@pytest.fixture(scope="session")
def uri(tmp_path_factory):
    """Keep one store for the session: its schema takes seconds to create."""
    return f"sqlite:///{tmp_path_factory.mktemp('sweeps') / 'mlflow.db'}"


def test_mlflow_has_a_run_for_the_sweep_and_one_for_each_setting(store, make_sweep, uri):
    from dtopk.tracking import MlflowClient

    tracking = TrackingSection(uri=uri, experiment="sweeps")
    job = make_sweep(grid=with_grid(make_sweep(), C=(0.1, 1.0)).sweep, tracking=tracking)
    result = sweep(store, job)
    client = MlflowClient(tracking_uri=uri)
    parent = client.get_run(result.mlflow["run_id"])
    assert parent.info.status == "FINISHED"
    assert parent.data.metrics["best/top_1"] == result.best["top_1"].value
    files = {item.path for item in client.list_artifacts(parent.info.run_id)}
    assert files >= {"sweep.csv", "sweep.json", "job.toml"}
    runs = client.search_runs([result.mlflow["experiment_id"]], max_results=100)
    by_name = {
        run.info.run_name: run
        for run in runs
        if run.data.tags.get("mlflow.parentRunId") == parent.info.run_id
    }
    assert set(by_name) == {each.setting.name for each in result.settings}
    for each in result.settings:
        run = by_name[each.setting.name]
        assert run.info.status == "FINISHED"
        shown = {**each.setting.parameters, "log10_C": round(math.log10(each.setting.C), 6)}
        assert run.data.params == {key: str(v) for key, v in shown.items()}
        assert run.data.metrics["val/top_1_accuracy"] == each.metrics["top_1"]
        won = [name for name, best in result.best.items() if best.result.setting == each.setting]
        assert run.data.tags["dtopk.best"] == ", ".join(won)
        assert bool(run.outputs and run.outputs.model_outputs) == bool(won)
    # Going on adds no second run of a setting.
    sweep(store, dataclasses.replace(job, sweep=dataclasses.replace(job.sweep, C=(0.1, 1.0, 5.0))))
    names = [
        run.info.run_name
        for run in client.search_runs([result.mlflow["experiment_id"]], max_results=100)
    ]
    assert len(names) == len(set(names)) == 1 + 9


def test_an_mlflow_that_is_away_costs_no_sweep(store, make_sweep, monkeypatch):
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        tracking = TrackingSection(uri=f"http://127.0.0.1:{unused.getsockname()[1]}")
        result = sweep(store, make_sweep(grid=SweepSection(C=(0.1,)), tracking=tracking))
    assert result.complete
    assert result.mlflow == {}


# Workers.


def test_workers_train_the_same_models(client, store, make_sweep):
    """One after the other, each from the duals of the one before, which are gone at the end."""
    grid = SweepSection(C=(0.01, 0.1), folds=2)
    solver = SolverSection(tol=1e-2)
    result = sweep(store, make_sweep("workers", grid=grid, solver=solver), client=client)
    here = sweep(store, make_sweep("here", grid=grid, solver=solver))
    assert result.complete
    assert result.n_trained == 2 * 2 + 1
    for one, other in zip(result.settings, here.settings, strict=True):
        assert one.certified
        for number in (1, 2):
            found, alone = (
                load_model(each.run_dir / "settings" / one.setting.name / f"fold-{number}")
                for each in (result, here)
            )
            gaps = [one.duality_gap, other.duality_gap]
            distance = np.linalg.norm(found.W.astype(float) - alone.W)
            assert distance <= sum(np.sqrt(2 * gap) for gap in gaps) + 1e-6
    names = {path.name for path in (result.run_dir / "settings").rglob("*")}
    assert names.isdisjoint({"dual", "zarr.json"})
    assert load_sweep(result.run_dir / "job.toml").cluster.partitions == 2
