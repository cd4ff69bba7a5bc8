"""`FeatureStore.verify` finds what a checksum does not: values that were wrong when written."""

import numpy as np
import pytest
import zarr

from dtopk_storage import DatasetError, check_batch, create_store, open_store


def overwrite(store, name, index, value):
    zarr.open_group(store.path, mode="r+")[name][index] = value
    return open_store(store.path)


def test_verify_passes_a_whole_store_and_reports_progress(store):
    seen = []
    store.verify(lambda done, total: seen.append((done, total)))
    assert seen == [(8, 50), (16, 50), (24, 50), (32, 50), (40, 50), (48, 50), (50, 50)]


def test_verify_names_a_nan(store):
    changed = overwrite(store, "features", (20, 3), np.nan)
    with pytest.raises(DatasetError, match="got nan in chunk 2, row 20, column 3 of"):
        changed.verify()


def test_verify_names_a_label_outside_the_classes(store):
    changed = overwrite(store, "labels", 33, 3)
    with pytest.raises(DatasetError, match=r"labels must lie in 0:3, got 3 in chunk 0, row 33 of"):
        changed.verify()


@pytest.mark.parametrize("name", ["feature_mean", "feature_std"])
def test_verify_names_a_wrong_statistic(store, name):
    changed = overwrite(store, name, 4, 1e3)
    with pytest.raises(DatasetError, match=rf"{name} of column 4 of .* got 1000\."):
        changed.verify()


def test_verify_names_a_negative_weight(tmp_path, rows):
    with create_store(
        tmp_path / "s", n_features=6, class_names=list("abc"), sample_weight=True
    ) as writer:
        writer.append(*rows, sample_weight=np.ones(50))
    changed = overwrite(open_store(tmp_path / "s"), "sample_weight", 9, -1)
    with pytest.raises(DatasetError, match=r"at least 0, got -1\.0 in chunk 0, row 9 of"):
        changed.verify()


def batch_with(store, **changes):
    """The rows 16:24 of a store, which are its chunk 2 of features, with some arrays replaced."""
    arrays = {
        "X": store.read_features(16, 24),
        "labels": store.read_labels(16, 24),
        "weight": np.ones(8),
    }
    return {**arrays, **changes, "start": 16, "store": store}


@pytest.fixture
def weighted(tmp_path, rows):
    with create_store(
        tmp_path / "w", n_features=6, class_names=list("abc"), chunk_rows=8, sample_weight=True
    ) as writer:
        writer.append(*rows, sample_weight=np.ones(50))
    return open_store(tmp_path / "w")


def test_check_batch_takes_what_a_store_holds(store, weighted):
    check_batch(**batch_with(store))
    check_batch(**batch_with(weighted, weight=np.zeros(8)))


@pytest.mark.parametrize("label", [-1, 3])
def test_check_batch_names_a_label_outside_the_classes(store, label):
    labels = np.array([0, 1, 2, label, 0, 1, 2, 0], np.int32)
    message = rf"labels must lie in 0:3, got {label} in chunk 0, row 19 of '.*labels'"
    with pytest.raises(DatasetError, match=message):
        check_batch(**batch_with(store, labels=labels))


@pytest.mark.parametrize("weight", [-1.0, np.nan, np.inf])
def test_check_batch_names_a_weight_that_cannot_be(weighted, weight):
    weights = np.array([1, 1, 1, 1, 1, weight, 1, 1])
    message = rf"at least 0, got {weight} in chunk 0, row 21 of '.*sample_weight'"
    with pytest.raises(DatasetError, match=message):
        check_batch(**batch_with(weighted, weight=weights))


def test_check_batch_names_a_feature_that_is_not_finite(store):
    X = np.zeros((8, 6), np.float32)
    X[5, 2] = np.inf
    with pytest.raises(DatasetError, match="got inf in chunk 2, row 21, column 2 of"):
        check_batch(**batch_with(store, X=X))
