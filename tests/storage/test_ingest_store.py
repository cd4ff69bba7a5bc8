"""A store made of another one keeps what its manifest says."""

import numpy as np
import pytest
import zarr

from dtopk_storage import DatasetError, create_store, open_store
from dtopk_storage.ingest import IngestOptions, ingest
from dtopk_storage.sources.base import SourceOptions

NAMES = ["eel", "ant", "cat", "dog"]


@pytest.fixture
def origin(tmp_path, rows):
    """50 rows with weights in two splits; the classes are not sorted, and 'dog' has no rows."""
    X, y = rows
    with create_store(
        tmp_path / "origin",
        n_features=6,
        class_names=NAMES,
        chunk_rows=8,
        sample_weight=True,
        provenance={"camera": "left"},
    ) as writer:
        writer.append(X[:30], y[:30], sample_weight=np.arange(30))
        writer.append(X[30:], y[30:], sample_weight=np.arange(30, 50), split="val")
    return open_store(tmp_path / "origin")


def names_of(store):
    return store.classes[store.read_labels(0, store.n_samples)].tolist()


@pytest.mark.parametrize("source_format", [None, "zarr"])
def test_classes_splits_and_weights_of_a_store_are_kept(origin, tmp_path, source_format):
    options = IngestOptions(dtype="float16", chunk_bytes=60, source_format=source_format)
    store = ingest(origin.path, tmp_path / "s", options)
    assert store.class_names == ("ant", "cat", "dog", "eel")
    assert names_of(store) == names_of(origin)
    assert store.splits == {"train": ((0, 30),), "val": ((30, 50),)}
    assert store.read_sample_weight(0, 50).tolist() == list(range(50))
    expected = origin.read_features(0, 50).astype(np.float16)
    np.testing.assert_array_equal(store.read_features(0, 50), expected)
    assert store.provenance["source_provenance"] == {"camera": "left"}
    store.verify()


def test_integer_classes_of_a_store_stay_integers(tmp_path, rows):
    with create_store(tmp_path / "a", n_features=6, class_names=[10, 9, -1]) as writer:
        writer.append(*rows)
    store = ingest(tmp_path / "a", tmp_path / "s")
    assert store.classes.tolist() == [-1, 9, 10]
    assert names_of(store) == names_of(open_store(tmp_path / "a"))


def test_shuffling_a_store_keeps_its_splits(origin, tmp_path):
    store = ingest(origin.path, tmp_path / "s", IngestOptions(shuffle=True))
    order = store.read_row_id(0, 50)
    assert sorted(order[:30]) == list(range(30))
    assert store.splits == origin.splits
    np.testing.assert_array_equal(store.read_features(0, 50), origin.read_features(0, 50)[order])
    assert store.read_sample_weight(0, 50).tolist() == order.tolist()


def test_what_is_asked_for_goes_before_what_a_store_has(origin, tmp_path):
    np.save(tmp_path / "w.npy", np.ones(50))
    (tmp_path / "y.txt").write_text("left\nright\n" * 25)
    options = IngestOptions(
        labels=tmp_path / "y.txt", weights=tmp_path / "w.npy", split_rows=(("test", 0, 10),)
    )
    store = ingest(origin.path, tmp_path / "s", options)
    assert store.class_names == ("left", "right")
    assert store.splits == {"train": ((10, 50),), "test": ((0, 10),)}
    assert store.read_sample_weight(0, 50).tolist() == [1] * 50


def test_a_store_gives_its_class_names_to_other_features(origin, tmp_path):
    np.save(tmp_path / "X.npy", np.ones((50, 2)))
    store = ingest(tmp_path / "X.npy", tmp_path / "s", IngestOptions(labels=tmp_path / "origin"))
    assert names_of(store) == names_of(origin)


def test_keys_that_a_store_does_not_have_are_named(origin, tmp_path):
    with pytest.raises(DatasetError, match="must be 'y', got only 'labels', 'sample_weight'"):
        ingest(origin.path, tmp_path / "s", IngestOptions(labels_key="y"))
    options = IngestOptions(reading=SourceOptions(features_key="X"))
    with pytest.raises(DatasetError, match="must be 'X', got only 'features'"):
        ingest(origin.path, tmp_path / "s", options)


def test_a_label_outside_the_classes_of_a_store_is_refused(origin, tmp_path):
    zarr.open_group(origin.path, mode="r+")["labels"][33] = -1
    with pytest.raises(DatasetError, match=r"labels must lie in 0:4, got -1 in chunk 0, row 33 of"):
        ingest(origin.path, tmp_path / "s")


def test_a_damaged_store_is_not_read_as_plain_arrays(origin, tmp_path):
    group = zarr.open_group(origin.path, mode="r+")
    group.attrs["dtopk"] = {**group.attrs["dtopk"], "n_samples": 49}
    with pytest.raises(DatasetError, match="it was changed after it was written"):
        ingest(origin.path, tmp_path / "s")
