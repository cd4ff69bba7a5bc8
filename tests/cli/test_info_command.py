"""`dtopk info`."""

import dataclasses
import json

import numpy as np
import pytest
import zarr

from dtopk.job import ModelSection, OutputSection, TrackingSection, TrainJob, train
from dtopk.model import load_model
from tests.small_stores import make_rows, make_store


def test_info_says_what_a_store_holds(call_json, store):
    fields = call_json("info", store.path)
    assert fields["kind"] == "store"
    assert (fields["n_samples"], fields["n_features"], fields["n_classes"]) == (170, 6, 4)
    assert fields["class_names"] == ["ant", "bee", "cat", "dog"]
    assert (fields["dtype"], fields["chunk_rows"], fields["n_chunks"]) == ("float32", 32, 6)
    assert fields["chunk_bytes"] == 32 * 6 * 4
    assert fields["bytes_on_disk"] > 170 * 6 * 4
    assert fields["verified"] is False


def test_info_counts_the_classes_of_each_split(call_json, store):
    part = call_json("info", store.path)["splits"]["train"]
    counts = np.bincount(make_rows(120, seed=1)[1], minlength=4)
    assert part["n_samples"] == 120
    assert part["ranges"] == [[0, 120]]
    assert part["rows_by_class"] == {
        "min": counts.min(),
        "median": np.median(counts),
        "max": counts.max(),
    }
    rarest = ["ant", "bee", "cat", "dog"][int(counts.argmin())]
    assert next(iter(part["rarest_classes"].items())) == (rarest, counts.min())


def test_info_is_readable(call, store):
    result = call("info", store.path)
    assert result.status == 0
    assert result.err == ""
    assert "4: ant, bee, cat, dog" in result.out
    assert "6 of 32 rows (768 B), compression none" in result.out


def test_info_shortens_many_classes_and_large_sizes(call, tmp_path):
    names = [f"class {number}" for number in range(900)]
    make_store(tmp_path / "many", class_names=names)
    out = call("info", tmp_path / "many").out
    assert "900: class 0, class 1, class 2, class 3, class 4, ...\n" in out
    assert " KiB\n" in out


def test_info_verifies(call_json, call, store):
    assert call_json("info", store.path, "--verify")["verified"] is True
    path = store.arrays["features"].chunk_path(3)
    data = bytearray(path.read_bytes())
    data[7] ^= 1
    path.write_bytes(data)
    assert call("info", store.path).status == 0
    result = call("info", store.path, "--verify")
    assert result.status == 2
    assert "crc32c of chunk 3 (rows 96:128) of" in result.err


@pytest.mark.parametrize("label", [-1, 10**6])
def test_info_names_a_label_of_no_class(call, store, label):
    """Another program may write a store, and no checksum tells of such a label."""
    zarr.open_group(store.path, mode="r+")["labels"][5] = label
    result = call("info", store.path)
    assert result.status == 2
    assert f"got {label} in chunk 0, row 5 of" in result.err


@pytest.mark.parametrize("name", ["nowhere", "."])
def test_info_of_no_store_is_one_line_and_status_2(call, tmp_path, name):
    result = call("info", tmp_path / name)
    assert result.status == 2
    assert result.out == ""
    assert result.err.startswith("error: store ")
    assert result.err.count("\n") == 1


@pytest.fixture
def run_dir(store, tmp_path):
    job = TrainJob(
        model=ModelSection(C=0.1),
        output=OutputSection(run_dir=str(tmp_path / "run")),
        tracking=TrackingSection(mlflow=False),
    )
    return train(store, job).run_dir


def test_info_of_a_run_says_what_it_reached(call_json, call, run_dir):
    fields = call_json("info", run_dir)
    assert (fields["kind"], fields["finished"], fields["loss"]) == ("run", True, "softmax")
    assert fields["certified"] is True
    assert "model.npz" in fields["files"]
    text = call("info", run_dir).out
    assert "softmax, C = 0.1\n" in text
    assert "asked 0.001: certified\n" in text
    assert "accuracy on test" in text


def test_info_recomputes_the_certificate_of_a_run(call_json, call, run_dir):
    fields = call_json("info", run_dir, "--verify")
    assert fields["recomputed"]["primal"] == pytest.approx(fields["primal"], rel=1e-9)
    assert fields["recomputed"]["certified"] is True
    result = call("info", run_dir, "--verify")
    assert "recomputed gap" in result.out
    assert "primal and dual, computed anew in float64, agree" in result.err


def test_info_names_what_does_not_agree(call, run_dir):
    fields = json.loads((run_dir / "result.json").read_text())
    fields["dual"] += 0.01
    (run_dir / "result.json").write_text(json.dumps(fields))
    assert call("info", run_dir).status == 0
    result = call("info", run_dir, "--verify")
    assert (result.status, result.out) == (2, "")
    assert "dual of" in result.err
    assert "one of them was changed" in result.err


def test_info_of_a_run_that_did_not_end(call, run_dir):
    (run_dir / "result.json").unlink()
    assert "none: it did not come to its end" in call("info", run_dir).out


def test_info_of_a_model_says_what_it_is(call_json, call, run_dir):
    fields = call_json("info", run_dir / "model.npz")
    assert (fields["kind"], fields["n_features"], fields["n_classes"]) == ("model", 6, 4)
    assert fields["certificate"]["certified"] is True
    assert fields["certificate"]["dual"] <= fields["certificate"]["primal"]
    assert "asked 0.001: certified\n" in call("info", run_dir / "model.npz").out


def test_info_of_a_model_says_what_it_was_trained_and_chosen_on(call_json, call, run_dir):
    path = run_dir / "model.npz"
    fields = call_json("info", path)
    assert (fields["trained_on"], fields["chosen_on"]) == (["train"], None)
    dataclasses.replace(load_model(path), trained_on=("train", "val"), chosen_on="val").save(path)
    fields = call_json("info", path)
    assert (fields["trained_on"], fields["chosen_on"]) == (["train", "val"], "val")
    assert "train, val; chosen on val\n" in call("info", path).out


def test_info_of_a_model_has_nothing_to_verify(call, run_dir):
    result = call("info", run_dir / "model.npz", "--verify")
    assert result.status == 2
    assert "--verify must be given with a store or a run folder" in result.err
