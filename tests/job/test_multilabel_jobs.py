"""Jobs on stores whose rows have sets of labels, and jobs with a loss of many parameters."""

import csv
import json

import numpy as np
import pytest
from sklearn.metrics import f1_score, label_ranking_loss

from dtopk.job import (
    ClusterSection,
    DataSection,
    EarlyStoppingSection,
    ModelSection,
    SolverSection,
    load_job,
    train,
)
from dtopk.job.scoring import evaluate_label_sets
from dtopk.job.verification import verify_run
from dtopk.model import load_model
from dtopk_storage import create_store, open_store
from tests.small_stores import make_rows, make_store

pytestmark = pytest.mark.usefixtures("no_figures")

LABELS = ("sea", "sky", "sun", "wet")


def make_sets(n_rows, seed):
    """The class of a row, the next one in every third row, and one row in twenty without any."""
    X, y = make_rows(n_rows, seed=seed)
    indicator = np.zeros((n_rows, 4), np.uint8)
    indicator[np.arange(n_rows), y] = 1
    indicator[::3][np.arange(len(y[::3])), (y[::3] + 1) % 4] = 1
    return X, indicator


@pytest.fixture
def tags(tmp_path):
    """A multilabel store of three splits."""
    path = tmp_path / "tags.zarr"
    with create_store(
        path, n_features=6, class_names=LABELS, chunk_rows=32, kind="multilabel"
    ) as writer:
        for seed, (split, rows) in enumerate((("train", 120), ("val", 40), ("test", 50))):
            writer.append(*make_sets(rows, seed), split=split)
    return open_store(path)


@pytest.fixture
def holey(tmp_path):
    """A store with a row that has no label and one that has all."""
    path = tmp_path / "holey.zarr"
    X, indicator = make_sets(60, 0)
    indicator[5], indicator[41] = 0, 1
    with create_store(
        path, n_features=6, class_names=LABELS, chunk_rows=32, kind="multilabel"
    ) as writer:
        writer.append(X, indicator)
    return open_store(path)


RANKING = ModelSection(loss="multilabel_softmax", C=0.1)


def test_a_multilabel_job_reports_what_sklearn_computes(tags, make_job):
    data = DataSection(validation="val", threshold_metric="f1_micro")
    result = train(tags, make_job(model=RANKING, data=data))
    assert result.certificate.certified
    metrics = result.label_metrics["test"]
    X, indicator = make_sets(50, 2)
    model = load_model(result.run_dir)
    assert metrics["rank_loss"] == pytest.approx(
        label_ranking_loss(indicator, model.decision_function(X))
    )
    assert metrics["f1_macro"] == pytest.approx(
        f1_score(indicator, model.predict(X), average="macro")
    )
    assert metrics["threshold"] == model.threshold
    written = json.loads((result.run_dir / "result.json").read_text())
    assert written["label_metrics"]["test"] == pytest.approx(metrics)
    assert written["n_skipped"] == 0


def test_the_threshold_is_the_best_on_the_validation_split(tags, make_job):
    data = DataSection(validation="val", threshold_metric="f1_micro")
    model = train(tags, make_job(model=RANKING, data=data)).model
    X, indicator = make_sets(40, 1)
    scores = model.decision_function(X)
    best = f1_score(indicator, scores > model.threshold, average="micro")
    for delta in np.unique(scores):
        assert f1_score(indicator, scores > delta, average="micro", zero_division=0) <= best + 1e-12


@pytest.mark.parametrize("metric", ["rank_loss", "mean_average_precision", "top_3_accuracy"])
def test_a_multilabel_job_stops_early(tags, make_job, metric):
    """Less of the rank loss is better, and more of the others."""
    sections = {
        "model": ModelSection(loss="multilabel_softmax", C=10.0),
        "data": DataSection(validation="val"),
        "solver": SolverSection(tol=1e-7, dtype="float64"),
    }
    full = train(tags, make_job("full", **sections))
    stopping = EarlyStoppingSection(metric=metric, patience=2)
    result = train(tags, make_job("stopped", early_stopping=stopping, **sections))
    with (result.run_dir / "history.csv").open(newline="") as file:
        values = [float(row[f"val/{metric}"]) for row in csv.DictReader(file)]
    best = (min if metric == "rank_loss" else max)(values)
    assert result.stop_reason == "early_stopping"
    assert result.epochs == 1 + values.index(best) + 2 < full.epochs
    assert result.early_stopping["best_value"] == best


@pytest.mark.parametrize("loss", ["logistic_ova", "multilabel_hinge"])
def test_a_multilabel_run_can_be_verified(tags, make_job, loss):
    result = train(tags, make_job(model=ModelSection(loss=loss, gamma=0.0, C=0.1)))
    verify_run(result.run_dir)


def test_partitions_give_the_same_bits_on_workers_as_here(tags, make_job):
    cluster = ClusterSection(partitions=3, threads_per_partition=1)
    here = train(tags, make_job("here", model=RANKING, cluster=cluster))
    local = ClusterSection(partitions=3, threads_per_partition=1, kind="local", workers=2)
    there = train(tags, make_job("there", model=RANKING, cluster=local))
    np.testing.assert_array_equal(here.model.W, there.model.W)


def test_rows_without_a_label_or_with_all_are_refused_or_skipped(holey, make_job):
    data = DataSection(evaluate=())
    expected = r"rows of split 'train' must have a label and lack one .* got 0 of 4 labels in row 5"
    with pytest.raises(ValueError, match=expected):
        train(holey, make_job(model=RANKING, data=data))
    data = DataSection(evaluate=(), skip_unlabelled=True)
    result = train(holey, make_job(model=RANKING, data=data))
    assert result.n_skipped == 2
    assert result.certificate.certified
    logistic = train(holey, make_job("ova", model=ModelSection(loss="logistic_ova"), data=data))
    assert logistic.n_skipped == 0


@pytest.mark.parametrize(
    ("model", "data", "message"),
    [
        (
            {"loss": "softmax"},
            {},
            r"loss 'softmax' must have a multiclass store",
        ),
        ({"loss": "logistic_ova", "class_weight": "balanced"}, {}, r"class_weight must be empty"),
        (
            {"loss": "logistic_ova"},
            {"threshold_metric": "f1"},
            r"threshold_metric must be one of",
        ),
        (
            {"loss": "logistic_ova"},
            {"threshold_metric": "f1_micro"},
            r"data\.validation must name the split that the threshold is chosen on",
        ),
    ],
)
def test_a_job_at_odds_with_a_multilabel_store_is_refused(tags, make_job, model, data, message):
    with pytest.raises(ValueError, match=message):
        train(tags, make_job(model=ModelSection(**model), data=DataSection(**data)))


def test_a_multiclass_store_refuses_a_ranking_of_labels(store, make_job):
    expected = r"loss 'multilabel_softmax' must have a multilabel store, got .* multiclass"
    with pytest.raises(ValueError, match=expected):
        train(store, make_job(model=RANKING))


def test_models_and_stores_of_unlike_labels_are_not_evaluated(tags, store, make_job):
    model = train(tags, make_job(model=RANKING)).model
    with pytest.raises(ValueError, match=r"must both be multilabel, got a multilabel model and a"):
        evaluate_label_sets(model, store, "test")


def write_job(tmp_path, **model):
    if not (tmp_path / "small.zarr").exists():
        make_store(tmp_path / "small.zarr")
    lines = "\n".join(f"{key} = {json.dumps(value)}" for key, value in model.items())
    (tmp_path / "job.toml").write_text(
        f'version = 1\n[data]\nstore = "small.zarr"\n[model]\n{lines}\n[tracking]\nmlflow = false\n'
    )
    return tmp_path / "job.toml"


def test_weights_of_ranks_come_from_the_job(tmp_path):
    job = load_job(write_job(tmp_path, loss="weighted_usunier", rho=[0.5, 0.5], C=0.1))
    result = train(job.data.store, job)
    assert result.model.loss_parameters["rho"] == (0.5, 0.5)
    assert load_model(result.run_dir).loss_parameters["rho"] == [0.5, 0.5]
    job = load_job(
        write_job(tmp_path, loss="topk_hinge_beta", k=2, C=0.1), run_dir=str(tmp_path / "beta")
    )
    beta = train(job.data.store, job)
    assert beta.certificate.primal == pytest.approx(result.certificate.primal, rel=2e-3)


@pytest.mark.parametrize("suffix", ["npy", "csv"])
def test_label_costs_come_from_a_file_beside_the_job(tmp_path, suffix):
    costs = 2.0 * (1 - np.eye(4))
    if suffix == "npy":
        np.save(tmp_path / "costs.npy", costs)
    else:
        np.savetxt(tmp_path / "costs.csv", costs, delimiter=",")
    job = load_job(write_job(tmp_path, loss="structured_hinge", label_cost=f"costs.{suffix}"))
    result = train(job.data.store, job)
    assert result.certificate.certified
    assert result.model.loss_parameters["label_cost"].startswith("sha256 ")


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (
            {"loss": "structured_hinge", "label_cost": "no.npy"},
            r"got .*no\.npy.: No such file or directory\.",
        ),
        ({"loss": "softmax", "rho": [1.0]}, r"rho must be left out for loss 'softmax'"),
        ({"loss": "weighted_usunier", "rho": [0.1, 0.5]}, r"rho must be finite, nonincreasing"),
        ({"loss": "weighted_usunier", "rho": ["a"]}, r"model\.rho must be a list of numbers"),
    ],
)
def test_parameters_that_break_their_rule_are_refused(tmp_path, model, message):
    with pytest.raises(ValueError, match=message):
        load_job(write_job(tmp_path, **model))


def test_costs_of_other_classes_are_refused(tmp_path):
    np.save(tmp_path / "costs.npy", 1 - np.eye(3))
    job = load_job(write_job(tmp_path, loss="structured_hinge", label_cost="costs.npy"))
    with pytest.raises(ValueError, match=r"label_cost must have shape .* = \(4, 4\), got shape"):
        train(job.data.store, job)


def test_label_costs_that_have_changed_are_refused_on_resume_and_by_verify(tmp_path):
    np.save(tmp_path / "costs.npy", 1 - np.eye(4))
    path = write_job(tmp_path, loss="structured_hinge", label_cost="costs.npy", C=10.0)
    run = str(tmp_path / "run")
    cut = load_job(path, ["solver.max_epochs=1"], run_dir=run)
    train(cut.data.store, cut)
    np.save(tmp_path / "costs.npy", 3 * (1 - np.eye(4)))
    job = load_job(path, run_dir=run)
    with pytest.raises(ValueError, match=r"model\.label_cost must hold the costs that the run in"):
        train(job.data.store, job)
    with pytest.raises(ValueError, match=r"label costs of .* must be those trained with, sha256"):
        verify_run(run)
