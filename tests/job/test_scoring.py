"""Running a model over the rows of a store."""

import numpy as np
import pytest

from dtopk.evaluation import AccuracyCounts
from dtopk.job import scoring
from dtopk.job.scoring import evaluate_split, widen
from dtopk.model import Model
from dtopk_storage import create_store, open_store
from tests.small_stores import make_rows


@pytest.fixture
def model(rng):
    return Model(
        W=rng.normal(size=(6, 4)).astype(np.float32),
        intercept=np.zeros(4, dtype=np.float32),
        classes=np.array(list("abcd")),
        loss="softmax",
    )


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_split_counts_as_its_rows_together(tmp_path, model, monkeypatch, dtype):
    X, y = make_rows(90)
    with create_store(
        tmp_path / "s.zarr", n_features=6, class_names=list("abcd"), dtype=dtype, chunk_rows=20
    ) as writer:
        writer.append(X, y)
    # Batches of two rows, so that chunks are cut.
    monkeypatch.setattr(scoring, "_BATCH_BYTES", 2 * 4 * (6 + 2 * 4))
    store = open_store(tmp_path / "s.zarr")
    expected = AccuracyCounts(n_classes=4)
    expected.update(y, model.decision_function(X.astype(dtype).astype(np.float32)))
    seen = []
    counts = evaluate_split(model, store, "train", progress=lambda *rows: seen.append(rows))
    np.testing.assert_array_equal(counts.rows_by_rank, expected.rows_by_rank)
    assert counts.confusions == expected.confusions
    assert seen[0] == (2, 90)
    assert seen[-1] == (90, 90)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_widened_rows_equal_numpys(rng, dtype):
    X = rng.normal(size=(50, 7)).astype(np.float16)
    widened = widen(X, np.dtype(dtype))
    assert widened.dtype == dtype
    np.testing.assert_array_equal(widened, X.astype(dtype))
