"""`dtopk evaluate`."""

import numpy as np
import pytest
from sklearn.metrics import accuracy_score, top_k_accuracy_score

from dtopk.model import load_model
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
    from dtopk_storage import create_store

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
