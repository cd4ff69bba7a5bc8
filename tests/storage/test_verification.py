"""`FeatureStore.verify` finds what a checksum does not: values that were wrong when written."""

import numpy as np
import pytest
import zarr

from dtopk_storage import DatasetError, create_store, open_store


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
    with pytest.raises(DatasetError, match=r"at least 0, got -1\.0 in row 9 of"):
        changed.verify()
