"""`dtopk predict`."""

import csv

import numpy as np
import pytest

from dtopk.cli import prediction_files
from dtopk.model import load_model
from dtopk_storage import open_store
from tests.small_stores import make_rows, make_store


@pytest.fixture
def expected(model_path):
    X, _ = make_rows(50, seed=2)
    return load_model(model_path).predict_topk(X, 2)


def test_predict_writes_csv(call, store, model_path, tmp_path, expected):
    result = call(
        "predict", model_path, store.path, tmp_path / "p.csv", "--split", "test", "--k", 2
    )
    assert result.status == 0
    assert f"wrote {tmp_path / 'p.csv'}" in result.err
    with (tmp_path / "p.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    labels, scores = expected
    assert [int(row["row"]) for row in rows] == list(range(120, 170))
    assert [[row["label_1"], row["label_2"]] for row in rows] == labels.tolist()
    np.testing.assert_array_equal(
        np.array([[row["score_1"], row["score_2"]] for row in rows], dtype=np.float32), scores
    )


def test_predict_writes_parquet(call_json, store, model_path, tmp_path, expected):
    parquet = pytest.importorskip("pyarrow.parquet")
    target = tmp_path / "p.parquet"
    answer = call_json("predict", model_path, store.path, target, "--split", "test", "--k", "2")
    assert answer == {"output": str(target), "n_samples": 50, "k": 2}
    table = parquet.read_table(target).to_pydict()
    labels, scores = expected
    assert table["row"] == list(range(120, 170))
    assert table["label_2"] == labels[:, 1].tolist()
    np.testing.assert_array_equal(np.float32(table["score_2"]), scores[:, 1])


@pytest.mark.parametrize("chunk_rows", [7, 50, 65536])
def test_predict_writes_zarr(call, store, model_path, tmp_path, expected, monkeypatch, chunk_rows):
    zarr = pytest.importorskip("zarr")
    monkeypatch.setattr(prediction_files, "_ZARR_CHUNK_ROWS", chunk_rows)
    target = tmp_path / "p.zarr"
    assert call("predict", model_path, store.path, target, "--split=test", "--k=2").status == 0
    group = zarr.open_group(target, mode="r")
    labels, scores = expected
    names = np.array(group.attrs["class_names"])
    np.testing.assert_array_equal(names[group["label_codes"][:]], labels)
    np.testing.assert_array_equal(group["scores"][:], scores)
    np.testing.assert_array_equal(group["row"][:], np.arange(120, 170))


def test_predict_takes_all_rows_without_a_split(call_json, store, model_path, tmp_path):
    answer = call_json("predict", model_path, store.path, tmp_path / "p.csv")
    assert (answer["n_samples"], answer["k"]) == (170, 4)


def test_predict_takes_an_array_file(call, model_path, tmp_path, expected):
    np.save(tmp_path / "X.npy", make_rows(50, seed=2)[0])
    assert call("predict", model_path, tmp_path / "X.npy", tmp_path / "p.csv").status == 0
    with (tmp_path / "p.csv").open(newline="") as file:
        assert [row["label_1"] for row in csv.DictReader(file)] == expected[0][:, 0].tolist()


@pytest.mark.parametrize("k", [0, 5])
def test_predict_refuses_k_out_of_range(call, store, model_path, tmp_path, k):
    result = call("predict", model_path, store.path, tmp_path / "p.csv", "--k", k)
    assert result.status == 2
    assert f"k must be between 1 and n_classes = 4, got {k}." in result.err


def test_predict_refuses_an_unknown_extension(call, store, model_path, tmp_path):
    result = call("predict", model_path, store.path, tmp_path / "p.txt")
    assert result.status == 2
    assert "name of the output must end in '.csv', '.parquet', '.zarr', got" in result.err


@pytest.mark.parametrize("name", ["p.csv", "p.zarr"])
def test_predict_replaces_only_when_told(call, store, model_path, tmp_path, name):
    target = tmp_path / name
    assert call("predict", model_path, store.path, target).status == 0
    result = call("predict", model_path, store.path, target)
    assert result.status == 2
    assert "output must be a new path, got" in result.err
    assert call("predict", model_path, store.path, target, "--overwrite").status == 0


@pytest.mark.parametrize("spelling", ["{}", "{}/", "{}/../small.zarr"])
def test_predict_never_writes_over_its_input(call, store, model_path, spelling):
    target = spelling.format(store.path)
    result = call("predict", model_path, store.path, target, "--overwrite")
    assert result.status == 2
    assert "output must be another path than the input, got" in result.err
    open_store(store.path).verify()


@pytest.mark.parametrize("name", ["other.zarr", "folder.zarr", "folder.csv"])
def test_predict_overwrites_nothing_but_predictions(call, store, model_path, tmp_path, name):
    make_store(tmp_path / "other.zarr")
    for folder in ("folder.zarr", "folder.csv"):
        (tmp_path / folder).mkdir()
    result = call("predict", model_path, store.path, tmp_path / name, "--overwrite")
    assert result.status == 2
    assert "output must be a new path or predictions of dtopk, got" in result.err
    assert (tmp_path / name).is_dir()
    open_store(tmp_path / "other.zarr").verify()


@pytest.mark.parametrize("name", ["p.csv", "p.zarr"])
def test_predictions_that_fail_leave_the_old_ones(call, store, model_path, tmp_path, name):
    target = tmp_path / name
    assert call("predict", model_path, store.path, target).status == 0
    X = make_rows(50, seed=2)[0]
    X[30] = np.nan
    np.save(tmp_path / "X.npy", X)
    before = sorted(tmp_path.rglob("*"))
    assert call("predict", model_path, tmp_path / "X.npy", target, "--overwrite").status == 2
    assert sorted(tmp_path.rglob("*")) == before


def test_predict_refuses_other_features(call, model_path, tmp_path):
    np.save(tmp_path / "X.npy", np.ones((3, 7)))
    result = call("predict", model_path, tmp_path / "X.npy", tmp_path / "p.csv")
    assert result.status == 2
    assert "must hold numbers of shape (n_samples, 6)" in result.err


@pytest.mark.parametrize("name", ["p.csv", "p.parquet", "p.zarr"])
def test_predict_leaves_nothing_behind_when_it_fails(call, model_path, tmp_path, name):
    X = make_rows(50, seed=2)[0]
    X[30] = np.nan
    np.save(tmp_path / "X.npy", X)
    before = sorted(tmp_path.iterdir())
    result = call("predict", model_path, tmp_path / "X.npy", tmp_path / name)
    assert result.status == 2
    assert "X must hold finite numbers, but row 30 has a score that is not." in result.err
    assert sorted(tmp_path.iterdir()) == before
