"""`dtopk evaluate`."""

import numpy as np
import pytest
from sklearn.metrics import (
    accuracy_score,
    average_precision_score,
    f1_score,
    hamming_loss,
    top_k_accuracy_score,
)

from dtopk.model import Model, load_model
from dtopk_storage import create_store
from tests.small_stores import make_rows, make_store


def score_test_rows(model_path):
    X, y = make_rows(50, seed=2)
    return y, load_model(model_path).decision_function(X)


def test_evaluate_equals_sklearn(call_json, store, model_path):
    result = call_json("evaluate", model_path, store.path)["splits"]["test"]
    y, scores = score_test_rows(model_path)
    assert result["n_samples"] == 50
    for k in (1, 2, 3):
        expected = top_k_accuracy_score(y, scores, k=k, labels=range(4))
        assert result["top_k_accuracy"][str(k)] == pytest.approx(expected)
    for label, row in enumerate(result["class_accuracy"]):
        expected = accuracy_score(y[y == label], scores[y == label].argmax(axis=1))
        assert row["accuracy"] == pytest.approx(expected)


def test_evaluate_takes_several_splits(call_json, store, model_path):
    result = call_json("evaluate", model_path, store.path, "--split", "train", "--split", "test")
    assert {split: row["n_samples"] for split, row in result["splits"].items()} == {
        "train": 120,
        "test": 50,
    }


def test_evaluate_matches_classes_by_name(call_json, store, model_path, tmp_path):
    """Rename the codes: the same rows, with the labels of the store in another order."""
    X, y = make_rows(50, seed=2)
    turned = tmp_path / "turned.zarr"
    with create_store(turned, n_features=6, class_names=("dog", "cat", "bee", "ant")) as writer:
        writer.append(X, 3 - y, split="train")
    expected = call_json("evaluate", model_path, store.path)["splits"]["test"]
    result = call_json("evaluate", model_path, turned, "--split", "train")["splits"]["train"]
    assert result == expected


def test_evaluate_names_a_label_that_training_never_saw(call, model_path, tmp_path):
    other = make_store(tmp_path / "other.zarr", class_names=("ant", "bee", "yak", "dog"))
    result = call("evaluate", model_path, other.path)
    assert result.status == 2
    first = 120 + int(np.flatnonzero(make_rows(50, seed=2)[1] == 2)[0])
    assert (
        f"label of row {first} must be a class that the model was trained on, got 'yak'"
        in result.err
    )
    assert result.err.count("\n") == 1


def test_evaluate_bears_an_unknown_class_without_rows(call_json, model_path, tmp_path):
    names = ("ant", "bee", "cat", "dog", "yak")
    other = make_store(tmp_path / "other.zarr", class_names=names)
    assert call_json("evaluate", model_path, other.path)["splits"]["test"]["n_samples"] == 50


def test_evaluate_names_the_nearest_split(call, store, model_path):
    result = call("evaluate", model_path, store.path, "--split", "tset")
    assert result.status == 2
    assert "split 'tset' is unknown" in result.err
    assert "Available: 'test', 'train'" in result.err


def test_evaluate_refuses_other_features(call, model_path, tmp_path):
    from dtopk_storage import create_store

    with create_store(tmp_path / "wide.zarr", n_features=7, class_names=("a", "b")) as writer:
        writer.append(np.ones((3, 7)), [0, 1, 0])
    result = call("evaluate", model_path, tmp_path / "wide.zarr", "--split", "train")
    assert result.status == 2
    assert "n_features of" in result.err
    assert "must be 6, as the model was trained on, got 7." in result.err


def test_evaluate_shows_accuracy_and_confusions(call, store, model_path):
    result = call("evaluate", model_path, store.path)
    assert result.status == 0
    assert result.err == ""
    assert "split 'test': 50 rows, 4 classes" in result.out
    assert "top-k accuracy" in result.out
    assert "taken for" in result.out


def test_evaluate_names_an_absent_model(call, store, tmp_path):
    result = call("evaluate", tmp_path / "nowhere", store.path)
    assert result.status == 2
    assert result.err.startswith("error: model ")


@pytest.fixture
def tags(tmp_path):
    """A multilabel store of a split 'test', and a model that scores its labels."""
    X, y = make_rows(40, seed=2)
    indicator = np.eye(4, dtype=np.uint8)[y]
    indicator[::3] |= indicator[1]
    with create_store(
        tmp_path / "tags.zarr", n_features=6, class_names=("ant", "bee", "cat", "dog"),
        kind="multilabel",
    ) as writer:  # fmt: skip
        writer.append(X[:1], indicator[:1])
        writer.append(X, indicator, split="test")
    model = Model(
        W=np.random.default_rng(0).normal(size=(6, 4)),
        intercept=np.zeros(4),
        classes=np.array(["ant", "bee", "cat", "dog"]),
        loss="multilabel_softmax",
        target="multilabel",
        threshold=0.25,
    )
    model.save(tmp_path / "tags.npz")
    return X, indicator, model


def test_evaluate_of_label_sets_equals_sklearn(call_json, tags, tmp_path):
    X, indicator, model = tags
    result = call_json("evaluate", tmp_path / "tags.npz", tmp_path / "tags.zarr")["splits"]["test"]
    scores = model.decision_function(X)
    metrics = result["label_metrics"]
    assert metrics["threshold"] == 0.25
    assert metrics["f1_samples"] == pytest.approx(
        f1_score(indicator, scores > 0.25, average="samples", zero_division=0)
    )
    precision = [average_precision_score(indicator[:, c], scores[:, c]) for c in range(4)]
    assert metrics["mean_average_precision"] == pytest.approx(np.mean(precision))
    found = [row["average_precision"] for row in result["class_average_precision"]]
    assert found == pytest.approx(precision)


def test_evaluate_takes_another_threshold_for_label_sets(call, call_json, tags, tmp_path):
    X, indicator, model = tags
    paths = (tmp_path / "tags.npz", tmp_path / "tags.zarr")
    result = call_json("evaluate", *paths, "--threshold", "-1")["splits"]["test"]
    expected = hamming_loss(indicator, model.decision_function(X) > -1)
    assert result["label_metrics"]["hamming_loss"] == pytest.approx(expected)
    out = call("evaluate", *paths, "--threshold", "-1").out
    assert "rank loss" in out
    assert "at the threshold           -1.0000" in out


def test_evaluate_refuses_a_threshold_for_one_class_a_row(call, store, model_path):
    result = call("evaluate", model_path, store.path, "--threshold", "0.5")
    assert result.status == 2
    assert "--threshold must be left out for a model of one class a row." in result.err


def test_evaluate_refuses_labels_of_another_kind_than_the_model(call, store, tags, tmp_path):
    result = call("evaluate", tmp_path / "tags.npz", store.path)
    assert result.status == 2
    assert "must both be multilabel, got a multilabel model and a multiclass store" in result.err
