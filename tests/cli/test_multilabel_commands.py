"""`dtopk ingest` and `dtopk info` of several labels a row."""

import numpy as np
import pytest
import zarr

from dtopk_storage import create_store, open_store

SETS = [[0, 2], [], [1], [0, 1, 2], [2], []]


@pytest.fixture
def store(tmp_path):
    """Rows 0:4 are train, rows 4:6 are test; class 'fox' has no row."""
    with create_store(
        tmp_path / "s.zarr", n_features=2, class_names=["ant", "bee", "cat", "fox"],
        kind="multilabel",
    ) as writer:  # fmt: skip
        writer.append(np.eye(4, 2), SETS[:4])
        writer.append(np.eye(2), SETS[4:], split="test")
    return open_store(tmp_path / "s.zarr")


def test_info_counts_the_labels_of_rows_and_the_rows_of_labels(call_json, store):
    """Six rows have 2, 0, 1, 3, 1 and 0 labels: 7 in all."""
    fields = call_json("info", store.path)
    assert fields["labels"] == "multilabel"
    assert fields["labels_per_row"] == {
        "mean": pytest.approx(7 / 6), "min": 0, "max": 3, "n_rows_without": 2,
    }  # fmt: skip
    train, test = fields["splits"]["train"], fields["splits"]["test"]
    assert train["labels_per_row"] == {"mean": 1.5, "min": 0, "max": 3, "n_rows_without": 1}
    assert test["labels_per_row"] == {"mean": 0.5, "min": 0, "max": 1, "n_rows_without": 1}
    assert train["rows_by_class"] == {"min": 0, "median": 2.0, "max": 2}
    assert train["rarest_classes"] == {"fox": 0, "ant": 2, "bee": 2, "cat": 2}
    assert (train["n_classes_present"], test["n_classes_present"]) == (3, 1)


def test_info_of_a_multilabel_store_is_readable(call, store):
    out = call("info", store.path).out
    assert "labels              multilabel: 0 to 3 a row, 1.167 on average; 2 rows without\n" in out
    assert "split  labels a row  fewest  most  rows without\n" in out
    assert "train           1.5       0     3             1\n" in out


def test_info_of_a_multiclass_store_says_nothing_of_labels_a_row(call_json, call, tmp_path):
    with create_store(tmp_path / "c", n_features=2, class_names=["a", "b"]) as writer:
        writer.append(np.eye(2), [0, 1])
    fields = call_json("info", tmp_path / "c")
    assert fields["labels"] == "multiclass"
    assert "labels_per_row" not in fields
    assert "multilabel" not in call("info", tmp_path / "c").out


def test_info_verifies_a_multilabel_store(call, call_json, store):
    assert call_json("info", store.path, "--verify")["verified"] is True
    zarr.open_group(store.path, mode="r+")["label_indices"][3] = 9
    for options in ([], ["--verify"]):
        result = call("info", store.path, *options)
        assert result.status == 2
        assert "labels must lie in 0:4, got 9 in chunk 0, row 3 of" in result.err


def test_ingest_splits_labels_at_a_separator(call, tmp_path):
    (tmp_path / "t.csv").write_text("f,g,tags\n1,2,ant;bee\n2,3,\n3,4,cat\n4,4,bee; ant\n")
    options = ["--labels-key", "tags", "--label-separator", ";", "--split-rows", "test=2:3"]
    result = call("ingest", tmp_path / "t.csv", tmp_path / "s", *options)
    assert result.status == 0, result.err
    assert "4 rows of 2 features (float32), 3 classes, multilabel; train 3, test 1\n" in result.err
    assert "note: split 'train' has no row of 1 class: 'cat'.\n" in result.err
    group = zarr.open(tmp_path / "s", mode="r")
    assert group["label_indptr"][:].tolist() == [0, 2, 2, 3, 5]
    assert group["label_indices"][:].tolist() == [0, 1, 2, 0, 1]


def test_ingest_names_the_columns_of_an_indicator_matrix(call, call_json, tmp_path):
    np.save(tmp_path / "X.npy", np.eye(3))
    np.save(tmp_path / "Y.npy", [[1, 1], [0, 1], [0, 0]])
    (tmp_path / "names.txt").write_text("wet\nsoft\n")
    np.savez(tmp_path / "names.npz", mine=["wet", "soft"])
    labels = ["--labels", tmp_path / "Y.npy"]
    names = ["--class-names", tmp_path / "names.txt"]
    fields = call_json("ingest", tmp_path / "X.npy", tmp_path / "s", *labels, *names)
    assert fields["class_names"] == ["soft", "wet"]
    assert fields["labels_per_row"]["n_rows_without"] == 1
    names = ["--class-names", tmp_path / "names.npz", "--class-names-key", "mine"]
    assert call("ingest", tmp_path / "X.npy", tmp_path / "t", *labels, *names).status == 0
    assert open_store(tmp_path / "t").class_names == ("soft", "wet")


def test_ingest_makes_the_kind_that_is_asked_for(call, tmp_path):
    (tmp_path / "a.svm").write_text("3 1:1\n5 2:4\n")
    assert call("ingest", tmp_path / "a.svm", tmp_path / "s", "--kind", "multilabel").status == 0
    assert open_store(tmp_path / "s").kind == "multilabel"
    (tmp_path / "b.svm").write_text("3 1:1\n5,3 2:4\n")
    result = call("ingest", tmp_path / "b.svm", tmp_path / "t", "--kind", "multiclass")
    assert result.status == 2
    assert "got 2 in row 1 of" in result.err
    assert result.err.endswith("Leave --kind out, or choose multilabel.\n")


def test_ingest_names_the_options_of_labels(call, tmp_path):
    np.savez(tmp_path / "a.npz", X=np.eye(3), y=[0, 1, 0], n=["a", "b"])
    result = call("ingest", tmp_path / "a.npz", tmp_path / "s", "--label-separator", ";")
    assert result.err.endswith("Leave --label-separator out.\n")
    result = call("ingest", tmp_path / "a.npz", tmp_path / "s", "--class-names-key", "n")
    assert result.err.endswith("Leave --class-names out.\n")
    result = call("ingest", tmp_path / "a.npz", tmp_path / "s", "--class-names-key", "m")
    assert "class names in " in result.err
    assert result.err.endswith("Name the right one with --class-names-key.\n")
    assert not (tmp_path / "s.partial").exists()
