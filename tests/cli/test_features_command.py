"""`dtopk features`."""

import numpy as np
import pytest

from dtopk.lifting import load_map
from dtopk_storage import create_store, open_store


def lifted(call, store, tmp_path, *options):
    result = call("features", store.path, tmp_path / "lifted.zarr", "--components", "20", *options)
    assert result.status == 0, result.err
    return open_store(tmp_path / "lifted.zarr")


@pytest.mark.parametrize("kind", ["fourier", "nystroem"])
def test_features_keeps_rows_labels_and_splits(call, store, tmp_path, kind):
    made = lifted(call, store, tmp_path, "--map", kind, "--gamma", "0.1")
    assert (made.n_samples, made.n_features) == (store.n_samples, 20)
    assert made.splits == store.splits
    assert made.class_names == store.class_names
    n = store.n_samples
    np.testing.assert_array_equal(made.read_labels(0, n), store.read_labels(0, n))
    mapping = load_map(tmp_path / "lifted.zarr.map.npz")
    np.testing.assert_array_equal(
        made.read_features(0, n), mapping.apply(store.read_features(0, n))
    )
    assert made.provenance["transform"] == mapping.key


def test_features_of_a_multilabel_store_keep_its_labels(call, tmp_path):
    with create_store(
        tmp_path / "tags.zarr", n_features=3, class_names=["a", "b"], kind="multilabel"
    ) as writer:
        writer.append(np.eye(3), [[0], [], [0, 1]])
    store = open_store(tmp_path / "tags.zarr")
    made = lifted(call, store, tmp_path)
    assert made.read_label_rows(0, 3).indices.tolist() == [0, 0, 1]


def test_features_lifts_another_store_in_the_same_way(call, store, tmp_path):
    first = lifted(call, store, tmp_path)
    again = call(
        "features", store.path, tmp_path / "again.zarr", "--like", tmp_path / "lifted.zarr.map.npz"
    )
    assert again.status == 0
    n = store.n_samples
    np.testing.assert_array_equal(
        open_store(tmp_path / "again.zarr").read_features(0, n), first.read_features(0, n)
    )


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--gamma", "-1"], "--gamma must be 'scale' or a number above 0, got '-1'."),
        (["--gamma", "wide"], "--gamma must be 'scale' or a number above 0, got 'wide'."),
        (["--like", "none.npz"], "map 'none.npz' does not exist."),
        (["--map", "nystroem", "--components", "500"], "at most the 120 training rows"),
    ],
)
def test_features_refuses_what_cannot_be(call, store, tmp_path, options, message):
    result = call("features", store.path, tmp_path / "lifted.zarr", *options)
    assert result.status == 2
    assert message in result.err
    assert not (tmp_path / "lifted.zarr").exists()


def test_features_refuses_a_map_of_other_features(call, store, tmp_path):
    lifted(call, store, tmp_path)
    result = call(
        "features", tmp_path / "lifted.zarr", tmp_path / "twice.zarr",
        "--like", tmp_path / "lifted.zarr.map.npz",
    )  # fmt: skip
    assert result.status == 2
    assert "must be 6, as their transform was made for, got 20." in result.err


def test_features_replaces_a_store_when_told_to(call, store, tmp_path):
    lifted(call, store, tmp_path)
    result = call("features", store.path, tmp_path / "lifted.zarr", "--components", "5")
    assert result.status == 2
    assert "replace it on purpose with --overwrite." in result.err
    result = call(
        "features", store.path, tmp_path / "lifted.zarr", "--components", "5", "--overwrite"
    )
    assert result.status == 0
    assert open_store(tmp_path / "lifted.zarr").n_features == 5
