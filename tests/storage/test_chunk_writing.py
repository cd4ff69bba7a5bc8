"""Stores that are written chunk by chunk, in any order."""

import pickle

import numpy as np
import pytest

from dtopk_storage import DatasetError, create_store, open_store
from dtopk_storage.chunk_writing import plan_chunks
from tests.small_stores import make_rows

N, CHUNK_ROWS = 50, 16


def write(folder, chunks, *, weight=None):
    """Write chunks, each by a copy as another process would have it; return the layout."""
    X, y = make_rows(N)
    plan = plan_chunks(
        folder,
        n_samples=N,
        n_features=6,
        dtype="float32",
        chunk_rows=CHUNK_ROWS,
        sample_weight=weight is not None,
    )
    for chunk in chunks:
        copy = pickle.loads(pickle.dumps(plan))
        part = slice(*plan.features.rows_of(chunk))
        copy.features.write_chunk(chunk, X[part])
        copy.labels.write_chunk(chunk, y[part])
        if weight is not None:
            copy.sample_weight.write_chunk(chunk, weight[part])
    return plan


@pytest.mark.parametrize("weighted", [False, True])
def test_chunks_in_any_order_make_the_store_of_rows_appended_in_order(tmp_path, weighted):
    X, y = make_rows(N)
    weight = np.random.default_rng(1).uniform(size=N) if weighted else None
    plan = write(tmp_path / "a", [3, 0, 2, 1, 0], weight=weight)
    store = plan.finish(n_classes=4, provenance={"from": "chunks"})
    with create_store(
        tmp_path / "b",
        n_features=6,
        class_names=range(4),
        chunk_rows=CHUNK_ROWS,
        sample_weight=weighted,
    ) as writer:
        writer.append(X, y, sample_weight=weight)
    other = open_store(tmp_path / "b")
    for name in ("features", "labels", *(["sample_weight"] if weighted else [])):
        one, two = store.arrays[name], other.arrays[name]
        np.testing.assert_array_equal(one.read(0, N), two.read(0, N))
    for chunk in range(4):
        files = [each.arrays["features"].chunk_path(chunk) for each in (store, other)]
        assert files[0].read_bytes() == files[1].read_bytes()
    assert store.splits == other.splits
    assert store.class_names == other.class_names
    assert store.has_sample_weight == weighted
    assert store.provenance == {"from": "chunks"}
    assert np.isnan(store.mean).all()
    assert np.isnan(store.std).all()


def test_store_is_not_there_before_it_is_finished(tmp_path):
    write(tmp_path / "store", range(4))
    with pytest.raises(DatasetError, match=r"must have a zarr\.json"):
        open_store(tmp_path / "store")


def test_chunk_that_nobody_wrote_is_an_error(tmp_path):
    store = write(tmp_path / "store", [0, 1, 3]).finish(n_classes=4, provenance={})
    with pytest.raises(DatasetError, match=r"chunk 2 \(rows 32:48\) .* is missing"):
        store.read_features(0, N)


def test_few_rows_are_one_chunk_of_their_size(tmp_path):
    plan = plan_chunks(
        tmp_path, n_samples=5, n_features=2, dtype="float16", chunk_rows=100, sample_weight=True
    )
    assert plan.features.chunk_rows == plan.labels.chunk_rows == 5
    assert plan.sample_weight.chunk_rows == 5
