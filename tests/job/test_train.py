"""Carrying out a job: what it checks, what it leaves, and what is left when it fails."""

import csv
import errno
import json
import shutil
import signal
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from matplotlib.figure import Figure

import dtopk
from dtopk.engine import Callback
from dtopk.evaluation import AccuracyCounts
from dtopk.job import (
    DataSection,
    ModelSection,
    OutputSection,
    ResourcesSection,
    SolverSection,
    disk_space,
    load_job,
    train,
)
from dtopk.job.problem import build_problem
from dtopk.job.run_folder import RunFolder
from dtopk.job.scoring import evaluate_split
from dtopk.model import load_model
from dtopk_storage import DatasetError, create_store, open_store
from dtopk_storage.chunked import ChunkedArray
from tests.small_stores import make_rows, make_store


def list_names(folder):
    return sorted(path.name for path in folder.iterdir())


def list_names_of_runs(job):
    runs = Path(job.output.run_dir).parent
    return list_names(runs) if runs.exists() else []


class InterruptAfter(Callback):
    """Press Ctrl-C after an epoch, once or twice."""

    def __init__(self, epoch, times=1):
        self._epoch = epoch
        self._times = times

    def on_epoch(self, record, W):
        if record.epoch == self._epoch:
            for _ in range(self._times):
                signal.raise_signal(signal.SIGINT)


def test_train_leaves_every_file(store, make_job):
    result = train(store, make_job())
    names = [
        "convergence.png", "dual", "history.csv", "job.toml", "model.npz", "result.json",
        "run.json", "topk_accuracy.png",
    ]  # fmt: skip
    assert list_names(result.run_dir) == names
    assert sorted(path.name for path in result.written) == names


def test_train_takes_the_path_of_a_store(store, make_job):
    assert train(store.path, make_job()).n_samples == 120


def test_train_certifies_what_it_saves(store, make_job):
    """Recompute the softmax objective of the saved model, and the dual value's bound on it."""
    result = train(store, make_job())
    model = load_model(result.run_dir)
    X, y = make_rows(120, seed=1)
    scores = model.decision_function(X).astype(np.float64)
    losses = np.log(np.exp(scores).sum(axis=1)) - scores[np.arange(120), y]
    primal = 0.1 * losses.sum() + 0.5 * np.square(model.W, dtype=np.float64).sum()
    assert result.certificate.primal == pytest.approx(primal, rel=1e-5)
    assert result.certificate.dual_value <= result.certificate.primal
    assert result.certificate.certified
    assert model.certificate == result.certificate.to_dict()


def test_train_reports_the_accuracy_of_the_saved_model(store, make_job):
    result = train(store, make_job(data=DataSection(evaluate=("train", "test"))))
    X, y = make_rows(50, seed=2)
    counts = AccuracyCounts(n_classes=4)
    counts.update(y, load_model(result.run_dir).decision_function(X))
    assert list(result.topk_accuracy) == ["train", "test"]
    assert result.topk_accuracy["test"] == counts.topk_accuracies()


def test_result_file_says_what_was_reached(store, make_job):
    result = train(store, make_job())
    written = json.loads((result.run_dir / "result.json").read_text())
    assert written == json.loads(json.dumps(result.to_dict()))
    expected = {
        "run_dir", "model", "loss", "solver", "stop_reason", "epochs", "seconds", "primal",
        "dual", "relative_gap", "certified", "n_samples", "n_features", "n_classes",
        "top_k_accuracy",
    }  # fmt: skip
    assert expected <= set(written)
    assert (written["n_samples"], written["n_features"], written["n_classes"]) == (120, 6, 4)
    assert written["stop_reason"] == "tolerance"


def test_resolved_job_trains_the_same_model(store, make_job, tmp_path):
    first = train(store, make_job())
    again = load_job(first.run_dir / "job.toml", [f"output.run_dir={tmp_path / 'again'}"])
    second = train(again.data.store, again)
    np.testing.assert_array_equal(second.model.W, first.model.W)


def test_history_has_validation_accuracy(store, make_job):
    result = train(store, make_job(data=DataSection(validation="test")))
    with (result.run_dir / "history.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [int(row["epoch"]) for row in rows] == list(range(1, result.epochs + 1))
    assert float(rows[-1]["test/top_1_accuracy"]) == result.topk_accuracy["test"][1]


def test_dual_is_left_out_on_request(store, make_job, tmp_path):
    output = OutputSection(run_dir=str(tmp_path / "a"), save_dual=False)
    assert "dual" not in list_names(train(store, make_job(output=output)).run_dir)


@pytest.mark.parametrize(
    "data",
    [DataSection(center=True), DataSection(scale=True), DataSection(center=True, scale=True)],
)
@pytest.mark.parametrize("fit_intercept", [False, True])
def test_model_scores_raw_features(store, make_job, data, fit_intercept):
    """The objective, from the saved model and raw features, is the certificate's primal."""
    section = ModelSection(C=0.1, fit_intercept=fit_intercept, intercept_scaling=2.0)
    result = train(store, make_job(data=data, model=section))
    model = load_model(result.run_dir)
    X, y = make_rows(120, seed=1)
    scores = model.decision_function(X).astype(np.float64)
    losses = np.log(np.exp(scores).sum(axis=1)) - scores[np.arange(120), y]
    penalised = np.vstack([model.W, model.intercept / 2.0]).astype(np.float64)
    primal = 0.1 * losses.sum() + 0.5 * np.square(penalised).sum()
    assert result.certificate.primal == pytest.approx(primal, rel=1e-5)


@pytest.mark.parametrize("at_rest", ["float32", "float64"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("scale", [False, True])
def test_certificate_is_about_the_saved_model(make_job, tmp_path, at_rest, dtype, scale):
    """With means 1e5 times the deviations: P of the saved model's own scores, summed in float64."""
    X, y = make_rows(120, seed=1)
    X = X.astype(np.float64) + 1e5 * np.arange(1, 7) * X.std(axis=0)
    X = X.astype(at_rest)
    path = tmp_path / "far.zarr"
    with create_store(path, n_features=6, class_names=list("abcd"), dtype=at_rest) as writer:
        writer.append(X, y)
    data = DataSection(center=True, scale=scale, evaluate=())
    result = train(path, make_job(data=data, solver=SolverSection(dtype=dtype)))
    model = load_model(result.run_dir)
    scores = model.decision_function(X).astype(np.float64)
    losses = np.log(np.exp(scores).sum(axis=1)) - scores[np.arange(120), y]
    primal = 0.1 * losses.sum() + 0.5 * np.square(model.W, dtype=np.float64).sum()
    assert result.certificate.certified
    assert result.certificate.primal == pytest.approx(primal, rel=1e-6)


def test_constant_features_can_be_scaled(make_job, tmp_path):
    with create_store(tmp_path / "c.zarr", n_features=7, class_names=list("abcd")) as writer:
        for seed, split in ((1, "train"), (2, "test")):
            X, y = make_rows(60, seed=seed)
            writer.append(np.hstack([X, np.ones((60, 1))]), y, split=split)
    result = train(tmp_path / "c.zarr", make_job(data=DataSection(center=True, scale=True)))
    assert result.certificate.certified
    assert result.model.feature_scale[6] == 1


def test_balanced_class_weights_count_every_class_the_same(store, make_job):
    """Weights are n / (m n_c): the sum over the rows of a class is n / m for each class."""
    problem = build_problem(store, make_job(model=ModelSection(class_weight="balanced")))
    weights = np.asarray(problem.options.class_weight)
    np.testing.assert_allclose(weights * problem.class_rows, 120 / 4)


def test_integer_class_names_come_back_as_integers(make_job, tmp_path):
    store = make_store(tmp_path / "int.zarr", class_names=(10, 20, 30, 40))
    result = train(store, make_job())
    predicted = load_model(result.run_dir).predict(make_rows(50, seed=2)[0])
    assert predicted.dtype == np.int64
    assert set(predicted) <= {10, 20, 30, 40}


def test_softmax_model_has_probabilities(store, make_job):
    model = load_model(train(store, make_job()).run_dir)
    np.testing.assert_allclose(model.predict_proba(np.zeros((1, 6))).sum(), 1, rtol=1e-6)


def test_hinge_model_keeps_its_parameters(store, make_job):
    section = ModelSection(loss="topk_hinge_alpha", k=2, gamma=0.5, C=0.1)
    model = load_model(train(store, make_job(model=section)).run_dir)
    assert model.loss == "topk_hinge_alpha"
    assert model.loss_parameters == {"k": 2, "gamma": 0.5, "smoothing": "lapin"}
    assert model.link == ""


@pytest.mark.parametrize("start", ["run folder", "model file"])
def test_warm_start_needs_fewer_epochs(store, make_job, start):
    model = ModelSection(C=1.0)
    cold = train(store, make_job("cold", model=model))
    path = cold.run_dir if start == "run folder" else cold.run_dir / "model.npz"
    solver = SolverSection(warm_start=str(path))
    warm = train(store, make_job("warm", model=model, solver=solver))
    assert warm.certificate.certified
    assert warm.epochs < cold.epochs


def test_warm_start_takes_another_C(store, make_job):
    cold = train(store, make_job("cold"))
    solver = SolverSection(warm_start=str(cold.run_dir))
    warm = train(store, make_job("warm", solver=solver, model=ModelSection(C=0.2)))
    plain = train(store, make_job("plain", model=ModelSection(C=0.2)))
    assert warm.certificate.certified
    np.testing.assert_allclose(
        warm.certificate.primal, plain.certificate.primal, rtol=2 * plain.certificate.tol
    )


def test_warm_start_refuses_other_rows(store, make_job, tmp_path):
    cold = train(store, make_job("cold"))
    larger = make_store(tmp_path / "larger.zarr", n_train=130)
    job = make_job("warm", solver=SolverSection(warm_start=str(cold.run_dir)))
    with pytest.raises(ValueError, match=r"duals to start from must have the 180 rows .* got 170"):
        train(larger, job)


def test_warm_start_refuses_other_classes(store, make_job, tmp_path):
    cold = train(store, make_job("cold"))
    other = make_store(tmp_path / "other.zarr", class_names=("a", "b", "c", "d"))
    job = make_job("warm", solver=SolverSection(warm_start=str(cold.run_dir / "model.npz")))
    with pytest.raises(ValueError, match="model to start from must have the 6 features and the 4"):
        train(other, job)


def test_run_folder_is_used_once(store, make_job):
    result = train(store, make_job())
    before = (result.run_dir / "model.npz").read_bytes()
    with pytest.raises(ValueError, match="run folder must be new or empty, got"):
        train(store, make_job())
    assert (result.run_dir / "model.npz").read_bytes() == before


@pytest.mark.parametrize(
    ("sections", "message"),
    [
        ({"model": ModelSection(loss="softmx")}, r"loss 'softmx' is unknown\. Did you mean 'soft"),
        ({"model": ModelSection(loss="softmax", k=2)}, "k must be left out for loss 'softmax'"),
        (
            {"model": ModelSection(loss="topk_hinge_alpha", k=4)},
            r"k must be between 1 and n_classes - 1 = 3, got 4\. Set by model\.k of the job",
        ),
        ({"solver": SolverSection(name="scda")}, r"solver\.name must be one of .* got 'scda'"),
        (
            {"data": DataSection(train="tran")},
            r"split 'tran' is unknown.*'train', 'test'\. Set by data\.train",
        ),
        ({"data": DataSection(validation="val")}, r"'val' is unknown.*Set by data\.validation"),
        ({"data": DataSection(evaluate=("tst",))}, r"'tst' is unknown.*Set by data\.evaluate"),
        (
            {"solver": SolverSection(warm_start="/nowhere")},
            r"'/nowhere' does not exist.*warm_start",
        ),
    ],
)
def test_job_at_odds_with_its_store_makes_no_run_folder(store, make_job, sections, message):
    job = make_job(**sections)
    with pytest.raises(ValueError, match=message):
        train(store, job)
    assert list_names_of_runs(job) == []


def test_label_that_training_never_sees_is_named(make_job, tmp_path):
    with create_store(tmp_path / "s.zarr", n_features=6, class_names=list("abcd")) as writer:
        X, y = make_rows(60)
        writer.append(X[y < 3], y[y < 3], split="train")
        writer.append(X, y, split="test")
    with pytest.raises(
        ValueError, match=r"labels of split 'test' must have rows in split 'train', got 'd' in"
    ):
        train(tmp_path / "s.zarr", make_job())


def test_class_without_training_rows_is_no_class_to_evaluate(make_job, tmp_path):
    with create_store(tmp_path / "s.zarr", n_features=6, class_names=list("abcd")) as writer:
        X, y = make_rows(60)
        writer.append(X[y < 3], y[y < 3], split="train")
        writer.append(X, y, split="test")
    result = train(tmp_path / "s.zarr", make_job(data=DataSection(evaluate=())))
    with pytest.raises(ValueError, match="must be a class that the model was trained on, got 'd'"):
        evaluate_split(result.model, open_store(tmp_path / "s.zarr"), "test")


def test_memory_that_does_not_suffice_leaves_no_run_folder(store, make_job):
    job = make_job(resources=ResourcesSection(memory_limit="1KB"))
    with pytest.raises(ValueError, match="memory_limit must be at least"):
        train(store, job)
    assert list_names_of_runs(job) == []


def test_interrupt_keeps_and_certifies_what_was_reached(store, make_job, caplog):
    job = make_job(solver=SolverSection(tol=1e-12, max_epochs=1000))
    result = train(store, job, callbacks=[InterruptAfter(2)])
    assert result.stop_reason == "interrupted"
    assert not result.certificate.certified
    assert result.certificate.relative_gap > 0
    assert {"model.npz", "dual", "result.json", "history.csv"} <= set(list_names(result.run_dir))
    assert "what was reached is kept, with its gap" in caplog.text


def test_second_interrupt_leaves_no_run_folder(store, make_job, caplog):
    job = make_job(solver=SolverSection(tol=1e-12, max_epochs=1000))
    with pytest.raises(KeyboardInterrupt):
        train(store, job, callbacks=[InterruptAfter(2, times=2)])
    assert list_names_of_runs(job) == []


def fail_with_full_disk(*args, **kwargs):
    raise OSError(errno.ENOSPC, "No space left on device")


@pytest.fixture
def wide_store(tmp_path):
    """Make a store whose duals are larger than all else, so that a limit sends them to disk."""
    names = [f"class {number}" for number in range(40)]
    return make_store(tmp_path / "wide.zarr", class_names=names, n_train=4000, chunk_rows=64)


def test_failure_before_the_first_epoch_leaves_no_run_folder(store, make_job):
    class Fail(Callback):
        def on_start(self, info):
            raise RuntimeError("the callback broke")

    job = make_job()
    with pytest.raises(RuntimeError, match="the callback broke"):
        train(store, job, callbacks=[Fail()])
    assert list_names_of_runs(job) == []


def test_one_class_leaves_no_run_folder(make_job, tmp_path):
    with create_store(tmp_path / "s.zarr", n_features=6, class_names=list("abcd")) as writer:
        X, y = make_rows(60)
        writer.append(X[y == 1], y[y == 1], split="train")
    job = make_job(data=DataSection(evaluate=()))
    with pytest.raises(ValueError, match="must have rows of at least two classes, got 1"):
        train(tmp_path / "s.zarr", job)
    assert list_names_of_runs(job) == []


def test_full_disk_at_the_duals_keeps_the_model(store, make_job, monkeypatch, caplog):
    monkeypatch.setattr(ChunkedArray, "write_chunk", fail_with_full_disk)
    result = train(store, make_job())
    assert (result.certificate.certified, result.duals_kept) == (True, False)
    assert "The dual variables are not kept" in caplog.text
    assert "model.npz" in list_names(result.run_dir)
    assert "dual" not in list_names(result.run_dir)


def test_duals_make_room_for_the_model(store, make_job, monkeypatch, caplog):
    """The first attempt finds the disk full, and with the duals gone there is room."""
    write_array = np.lib.format.write_array

    def write(*args, **kwargs):
        if (run_dir / "dual").exists():
            fail_with_full_disk()
        write_array(*args, **kwargs)

    job = make_job()
    run_dir = Path(job.output.run_dir)
    monkeypatch.setattr(np.lib.format, "write_array", write)
    # Before the start there is room; the duals take it, and are in the way of the model.
    free = iter([10**9, 2**16])
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=next(free)))
    result = train(store, job)
    assert not result.duals_kept
    assert "The duals are not kept: they leave no room for the model." in caplog.text
    assert load_model(run_dir).n_classes == 4


def test_full_disk_at_a_figure_is_a_warning(store, make_job, monkeypatch, caplog):
    monkeypatch.setattr(Figure, "savefig", fail_with_full_disk)
    result = train(store, make_job())
    folder = result.run_dir
    assert f"convergence.png'. The model is safe in {str(folder / 'model.npz')!r}." in caplog.text
    assert "The disk is full: cannot write: " in caplog.text
    assert load_model(folder).n_classes == 4
    names = ["dual", "history.csv", "job.toml", "model.npz", "result.json", "run.json"]
    assert list_names(folder) == names
    assert json.loads((folder / "result.json").read_text())["top_k_accuracy"]


def test_result_that_cannot_be_written_says_that_the_model_is_safe(store, make_job, monkeypatch):
    monkeypatch.setattr(RunFolder, "write_result", fail_with_full_disk)
    with pytest.raises(OSError, match="No space left") as caught:
        train(store, make_job())
    assert "The model is safe in '" in caught.value.__notes__[0]


def limit_disk(monkeypatch, free):
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=free))


def test_little_room_for_state_and_duals_is_a_warning(store, make_job, monkeypatch, caplog):
    """170 rows of 4 classes in float32 are 2,720 bytes, in the state and kept at the end."""
    monkeypatch.setattr(disk_space, "MODEL_OVERHEAD_BYTES", 0)
    limit_disk(monkeypatch, 5439)
    train(store, make_job())
    assert "State and duals take up to 5,440 bytes, and the disk of '" in caplog.text
    assert "goes on by the same command once there is some" in caplog.text


def test_room_for_state_and_duals_is_taken_without_a_word(store, make_job, monkeypatch, caplog):
    monkeypatch.setattr(disk_space, "MODEL_OVERHEAD_BYTES", 0)
    limit_disk(monkeypatch, 5440)
    train(store, make_job())
    assert "bytes" not in caplog.text


def test_state_elsewhere_takes_no_room_here(store, make_job, monkeypatch, caplog, tmp_path):
    monkeypatch.setattr(disk_space, "MODEL_OVERHEAD_BYTES", 0)
    limit_disk(monkeypatch, 2719)
    output = OutputSection(run_dir=str(tmp_path / "run"), state_url=str(tmp_path / "states"))
    train(store, make_job(output=output))
    assert "State and duals take up to 2,720 bytes" in caplog.text
    assert "The duals are not kept if they find no room" in caplog.text


def test_disk_without_room_for_the_model_is_refused(store, make_job, monkeypatch):
    limit_disk(monkeypatch, 10)
    job = make_job(output=OutputSection(run_dir="runs/x", save_dual=False))
    with pytest.raises(ValueError, match=r"bytes free for the model, got 10\. Free some"):
        train(store, job)


def test_streaming_to_a_full_disk_is_refused(wide_store, make_job, monkeypatch):
    """The duals of 4,050 rows and 40 classes in float32 are 648,000 bytes."""
    limit_disk(monkeypatch, 64_799)
    monkeypatch.setattr(disk_space, "MODEL_OVERHEAD_BYTES", 0)
    job = make_job(resources=ResourcesSection(memory_limit="300KB"))
    with pytest.raises(
        ValueError, match=r"must have at least 64,800 bytes free for duals .* got 64,799\."
    ):
        train(wide_store, job)
    assert list_names_of_runs(job) == []


def test_warm_start_refuses_duals_of_classes_by_other_names(store, make_job, tmp_path):
    run_dir = train(store, make_job()).run_dir
    with create_store(tmp_path / "o.zarr", n_features=6, class_names=list("abcd")) as writer:
        X, y = make_rows(170)
        writer.append(X, y, split="train")
    job = make_job(
        "again",
        data=DataSection(evaluate=()),
        solver=SolverSection(warm_start=str(run_dir)),
    )
    with pytest.raises(ValueError, match=r"must have the classes of .* got 'ant' for 'a', class 0"):
        train(tmp_path / "o.zarr", job)


def test_damaged_labels_are_not_laid_on_the_job(store, make_job):
    (chunk,) = sorted((Path(store.path) / "labels" / "c").iterdir())[:1]
    damaged = bytearray(chunk.read_bytes())
    damaged[0] ^= 1
    chunk.write_bytes(damaged)
    with pytest.raises(DatasetError, match="Ingest it again") as caught:
        train(store.path, make_job())
    assert "of the job" not in str(caught.value)


def test_train_is_a_public_name():
    assert dtopk.train is train
