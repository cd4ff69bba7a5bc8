"""`dtopk predict`."""

import csv
import dataclasses
import errno
import itertools
import json
from pathlib import Path

import numpy as np
import pytest
import zarr

from dtopk.cli import prediction_arrays
from dtopk.model import load_model
from dtopk_storage import open_store
from dtopk_storage.chunked import ChunkedArray
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
    monkeypatch.setattr(prediction_arrays, "_ZARR_CHUNK_ROWS", chunk_rows)
    target = tmp_path / "p.zarr"
    assert call("predict", model_path, store.path, target, "--split=test", "--k=2").status == 0
    group = zarr.open_group(target, mode="r")
    labels, scores = expected
    names = np.array(group.attrs["class_names"])
    np.testing.assert_array_equal(names[group["label_codes"][:]], labels)
    np.testing.assert_array_equal(group["scores"][:], scores)
    np.testing.assert_array_equal(group["row"][:], np.arange(120, 170))


@pytest.fixture
def shuffled(call, tmp_path):
    """Ingest 100 rows whose first feature is their number, in a drawn order."""
    X, y = make_rows(100, seed=2)
    X[:, 0] = np.arange(100)
    np.savez(tmp_path / "X.npz", X=X, y=np.array(["ant", "bee", "cat", "dog"])[y])
    path = tmp_path / "shuffled.zarr"
    result = call("ingest", tmp_path / "X.npz", path, "--split", "test=0.3")
    assert result.status == 0, result.err
    return X, path


def read_rows(target):
    """Read the columns 'row_id' and 'score_1'."""
    if target.suffix == ".csv":
        with target.open(newline="") as file:
            rows = list(csv.DictReader(file))
        table = {name: [row[name] for row in rows] for name in ("row_id", "score_1")}
    elif target.suffix == ".parquet":
        table = pytest.importorskip("pyarrow.parquet").read_table(target).to_pydict()
    else:
        group = zarr.open_group(target, mode="r")
        table = {"row_id": group["row_id"][:], "score_1": group["scores"][:, 0]}
    return np.array(table["row_id"], dtype=int), np.array(table["score_1"], dtype=np.float32)


@pytest.mark.parametrize("name", ["p.csv", "p.parquet", "p.zarr"])
def test_predictions_name_the_row_of_the_source(call, shuffled, model_path, tmp_path, name):
    X, path = shuffled
    target = tmp_path / name
    assert call("predict", model_path, path, target, "--split", "test", "--k", 1).status == 0
    row_id, scores = read_rows(target)
    assert len(row_id) == 30
    _, expected = load_model(model_path).predict_topk(X[row_id], 1)
    np.testing.assert_allclose(scores, expected[:, 0], rtol=1e-6)


@pytest.mark.parametrize("value", [np.nan, np.inf])
@pytest.mark.parametrize("command", ["predict", "evaluate"])
def test_values_that_are_not_finite_are_named(call, store, model_path, tmp_path, command, value):
    """Written by another program, with the checksum that belongs to it."""
    array = zarr.open_array(f"{store.path}/features", mode="r+")
    array[130, 2] = value
    targets = [tmp_path / "p.csv"] if command == "predict" else []
    result = call(command, model_path, store.path, *targets, "--split", "test")
    assert result.status == 2
    assert f"features must be finite, got {value} in chunk 4, row 130, column 2" in result.err
    assert not (tmp_path / "p.csv").exists()


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


@pytest.fixture
def calibrated_path(call, store, model_path):
    """Calibrate on the rows of 'test', of which there are 50."""
    result = call("calibrate", model_path, store.path, "--split", "test")
    assert result.status == 0, result.err
    return model_path


@pytest.fixture
def expected_sets(calibrated_path):
    """Labels and scores of each row's set, best first."""
    X, _ = make_rows(50, seed=2)
    model = load_model(calibrated_path)
    marked, scores = model.predict_set(X, 0.9), model.decision_function(X)
    ranked = np.argsort(-scores, axis=1, kind="stable")
    order = [row[marked[place, row]] for place, row in enumerate(ranked)]
    assert {len(columns) for columns in order} >= {1, 2}
    return (
        [model.classes[columns].tolist() for columns in order],
        [u[columns] for columns, u in zip(order, scores, strict=True)],
    )


def test_predict_writes_sets_to_csv(call, store, calibrated_path, tmp_path, expected_sets):
    target = tmp_path / "p.csv"
    result = call(
        "predict", calibrated_path, store.path, target, "--split", "test", "--coverage", 0.9
    )
    assert result.status == 0, result.err
    with target.open(newline="") as file:
        rows = list(csv.DictReader(file))
    labels, scores = expected_sets
    assert list(rows[0]) == ["row", "set_size", "labels", "scores"]
    assert [int(row["row"]) for row in rows] == list(range(120, 170))
    assert [json.loads(row["labels"]) for row in rows] == labels
    assert [int(row["set_size"]) for row in rows] == list(map(len, labels))
    for row, each in zip(rows, scores, strict=True):
        np.testing.assert_array_equal(np.array(json.loads(row["scores"]), np.float32), each)
    assert f"50 rows, sets of {np.mean(list(map(len, labels))):.2f} labels" in result.out


def test_predict_writes_sets_to_parquet(call_json, store, calibrated_path, tmp_path, expected_sets):
    parquet = pytest.importorskip("pyarrow.parquet")
    target = tmp_path / "p.parquet"
    answer = call_json(
        "predict", calibrated_path, store.path, target, "--split=test", "--coverage=0.9"
    )
    labels, scores = expected_sets
    assert answer["mean_size"] == np.mean(list(map(len, labels)))
    table = parquet.read_table(target).to_pydict()
    assert table["labels"] == labels
    assert table["set_size"] == list(map(len, labels))
    np.testing.assert_array_equal(np.float32(table["scores"][1]), scores[1])


@pytest.mark.parametrize("chunk_rows", [7, 50, 65536])
def test_predict_writes_sets_to_zarr(
    call, store, calibrated_path, tmp_path, expected_sets, monkeypatch, chunk_rows
):
    monkeypatch.setattr(prediction_arrays, "_ZARR_CHUNK_ROWS", chunk_rows)
    target = tmp_path / "p.zarr"
    result = call("predict", calibrated_path, store.path, target, "--split=test", "--coverage=0.9")
    assert result.status == 0, result.err
    group = zarr.open_group(target, mode="r")
    assert group.attrs["coverage"] == 0.9
    names = np.array(group.attrs["class_names"])
    starts, codes = group["label_indptr"][:], group["label_codes"][:]
    labels, scores = expected_sets
    assert [names[codes[a:b]].tolist() for a, b in itertools.pairwise(starts)] == labels
    np.testing.assert_array_equal(group["scores"][:], np.concatenate(scores))
    np.testing.assert_array_equal(group["row"][:], np.arange(120, 170))


@pytest.mark.parametrize("name", ["p.csv", "p.parquet", "p.zarr"])
def test_predict_writes_sets_without_a_label(call, store, model_path, tmp_path, name):
    """Sets of the smallest coverage, by margin: of the surest row at most."""
    if name == "p.parquet":
        pytest.importorskip("pyarrow.parquet")
    calibrated = call(
        "calibrate", model_path, store.path, "--split", "test", "--score=margin", "--k=1"
    )
    assert calibrated.status == 0, calibrated.err
    X = np.zeros((3, 6), np.float32)
    np.save(tmp_path / "X.npy", X)
    assert not load_model(model_path).predict_set(X, 0.01).any()
    result = call("predict", model_path, tmp_path / "X.npy", tmp_path / name, "--coverage=0.01")
    assert result.status == 0, result.err
    if name == "p.csv":
        assert (tmp_path / name).read_text().splitlines()[1] == "0,0,[],[]"
    if name == "p.zarr":
        group = zarr.open_group(tmp_path / name, mode="r")
        np.testing.assert_array_equal(group["label_indptr"][:], 0)
        assert group["label_codes"].shape == (0,)


def test_predict_writes_names_that_hold_anything(call, store, model_path, tmp_path):
    names = np.array(['a "b"', "c, d", "é]", "1\n2"])
    model = dataclasses.replace(load_model(model_path), classes=names)
    other = tmp_path / "other.npz"
    make_store(tmp_path / "other.zarr", class_names=names.tolist())
    model.save(other)
    assert call("calibrate", other, tmp_path / "other.zarr", "--split=test").status == 0
    target = tmp_path / "p.csv"
    assert call("predict", other, store.path, target, "--coverage=0.95").status == 0
    with target.open(newline="") as file:
        found = {name for row in csv.DictReader(file) for name in json.loads(row["labels"])}
    assert found == set(names.tolist())


def test_predict_writes_probabilities_in_the_place_of_scores(
    call, store, calibrated_path, tmp_path
):
    target = tmp_path / "p.csv"
    options = ("--split", "test", "--k", 4, "--probabilities")
    assert call("predict", calibrated_path, store.path, target, *options).status == 0
    X, _ = make_rows(50, seed=2)
    p = load_model(calibrated_path).predict_proba(X)
    with target.open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert list(rows[0])[:3] == ["row", "label_1", "probability_1"]
    found = [[float(row[f"probability_{place}"]) for place in (1, 2, 3, 4)] for row in rows]
    np.testing.assert_allclose(found, -np.sort(-p, axis=1), rtol=1e-5)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--coverage", 0.9), "model must be calibrated for sets of a coverage, got one that is"),
        (("--probabilities",), "--probabilities must be given with a model that has some, got"),
    ],
)
def test_predict_refuses_a_model_that_is_not_calibrated(
    call, store, model_path, tmp_path, options, message
):
    result = call("predict", model_path, store.path, tmp_path / "p.csv", *options)
    assert result.status == 2
    assert message in result.err


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--coverage", 0.99), "coverage must be at most n / (n + 1) = 0.980392 with the n = 50"),
        (("--coverage", 90), "coverage must be above 0 and below 1, got 90.0"),
        (("--coverage", 0.9, "--k", 3), "--k must be left out with --coverage"),
    ],
)
def test_predict_refuses_sets_that_there_are_not(
    call, store, calibrated_path, tmp_path, options, message
):
    result = call("predict", calibrated_path, store.path, tmp_path / "p.csv", *options)
    assert result.status == 2
    assert message in result.err
    assert not (tmp_path / "p.csv").exists()


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


def test_predict_takes_a_suffix_in_capitals_and_makes_the_folder(call, store, model_path, tmp_path):
    target = tmp_path / "new" / "P.CSV"
    assert call("predict", model_path, store.path, target).status == 0
    assert target.read_text().startswith("row,label_1,score_1")


def test_predict_prints_float32_in_few_digits(call, store, model_path, tmp_path):
    assert call("predict", model_path, store.path, tmp_path / "p.csv").status == 0
    with (tmp_path / "p.csv").open(newline="") as file:
        scores = [row["score_1"] for row in csv.DictReader(file)]
    assert max(len(score.lstrip("-0.").replace(".", "")) for score in scores) <= 9


@pytest.mark.parametrize(
    ("name", "what"), [("X.npz", "which is another file"), ("no", "which does not exist")]
)
def test_predict_names_an_input_that_is_none(call, model_path, tmp_path, name, what):
    (tmp_path / "X.npz").touch()
    result = call("predict", model_path, tmp_path / name, tmp_path / "p.csv")
    assert result.status == 2
    assert result.err == (
        "error: INPUT must be a feature store or a .npy file, got "
        f"{str(tmp_path / name)!r}, {what}.\n"
    )


def test_predict_names_the_zarr_output_on_a_full_disk(
    call, store, model_path, tmp_path, monkeypatch
):
    def fail(*args):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(ChunkedArray, "write_chunk", fail)
    result = call("predict", model_path, store.path, tmp_path / "p.zarr")
    assert result.status == 1
    assert result.err == f"error: The disk is full: cannot write: {str(tmp_path / 'p.zarr')!r}.\n"
    assert not list(tmp_path.glob(".p.zarr*"))


@pytest.mark.parametrize("name", ["p.csv", "p.zarr"])
def test_predict_names_no_temporary_file(call, store, model_path, tmp_path, monkeypatch, name):
    def refuse(path, *args, **kwargs):
        raise PermissionError(errno.EACCES, "Permission denied", str(path))

    monkeypatch.setattr(Path, "open" if name == "p.csv" else "mkdir", refuse_partial(refuse, name))
    result = call("predict", model_path, store.path, tmp_path / name)
    assert result.status == 2
    assert result.err == f"error: Permission denied: {str(tmp_path / name)!r}.\n"


def refuse_partial(refuse, name):
    """Refuse to make what lies beside the output, and nothing else."""
    original = Path.open if name == "p.csv" else Path.mkdir

    def call(path, *args, **kwargs):
        make = refuse if path.name.startswith(f".{name}.partial") else original
        return make(path, *args, **kwargs)

    return call
