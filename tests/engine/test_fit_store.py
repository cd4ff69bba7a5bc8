"""Training from a store: splits, streaming, dtypes and damage."""

import numpy as np
import pytest

from dtopk import testing
from dtopk.engine import ArrayRows, FitOptions, StartPoint, StoreRows, class_totals, fit
from dtopk.losses import make_loss
from dtopk_storage import DatasetError, create_store, open_dual, open_store

D, M, CHUNK = 12, 6, 32
LOSS = make_loss("topk_hinge_alpha", k=2, gamma=0.5)
SOFTMAX = make_loss("softmax")
WEIGHTS = D * M * (2 * 4 + 2 * 8)
PIECES = 6 * CHUNK * (D * 4 + M * 4)
LIMITS = {
    "duals in memory": WEIGHTS + PIECES + 400 * M * 4,
    "nothing in memory": WEIGHTS + PIECES,
}


def make_store(path, parts, *, dtype="float32", weights=False, X=None):
    """Write parts (split, n_rows) one after the other; no part need end with a chunk."""
    n = sum(rows for _, rows in parts)
    features, y = testing.make_features(n, D, M, seed=9)
    X = features.astype(dtype) if X is None else X
    weight = np.random.default_rng(0).choice([0.5, 1.0, 2.0], n)
    names = [f"c{j}" for j in range(M)]
    with create_store(
        path,
        n_features=D,
        class_names=names,
        chunk_rows=CHUNK,
        dtype=dtype,
        sample_weight=weights,
    ) as writer:
        start = 0
        for split, rows in parts:
            part = slice(start, start + rows)
            given = {"sample_weight": weight[part]} if weights else {}
            writer.append(X[part], y[part], split=split, **given)
            start += rows
    return open_store(path)


def rows_of(store, split):
    return np.concatenate([np.arange(a, b) for a, b in store.split_ranges(split)])


def train(store, split="train", loss=LOSS, dual_path=None, start=None, **options):
    options = {"tol": 1e-3, "seed": 3, **options}
    rows = StoreRows(store, split)
    return fit(
        rows, loss, FitOptions(**{"block_size": 16} | options), dual_path=dual_path, start=start
    )


# "train" begins and ends in the middle of chunks, in two ranges that share a chunk with others.
CUT = [("val", 10), ("train", 100), ("val", 5), ("train", 130), ("test", 70)]


@pytest.mark.parametrize("loss", [LOSS, SOFTMAX], ids=lambda loss: loss.name)
@pytest.mark.parametrize("limit", LIMITS.values(), ids=LIMITS.keys())
@pytest.mark.parametrize("constant", [0.0, 1.0])
def test_streaming_gives_the_same_bits_as_memory(tmp_path, loss, limit, constant):
    store = make_store(tmp_path / "s", CUT)
    if constant:
        limit += (WEIGHTS + PIECES) // D + 1
    in_memory = train(store, loss=loss, constant=constant, dual_path=tmp_path / "a")
    streamed = train(
        store, loss=loss, constant=constant, memory_limit_bytes=limit, dual_path=tmp_path / "b"
    )
    np.testing.assert_array_equal(streamed.W, in_memory.W)
    np.testing.assert_array_equal(streamed.intercept, in_memory.intercept)
    assert streamed.certificate == in_memory.certificate
    assert [r.dual_value for r in streamed.history] == [r.dual_value for r in in_memory.history]
    duals = [open_dual(tmp_path / name).read(0, store.n_samples) for name in "ab"]
    np.testing.assert_array_equal(*duals)


def test_streamed_duals_without_a_path_leave_nothing_behind(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "tmp"))
    (tmp_path / "tmp").mkdir()
    store = make_store(tmp_path / "s", CUT)
    result = train(store, memory_limit_bytes=LIMITS["nothing in memory"])
    assert result.certificate.certified
    assert list((tmp_path / "tmp").iterdir()) == []


def test_too_little_memory_is_refused_with_the_numbers(tmp_path):
    store = make_store(tmp_path / "s", CUT)
    needed = D * M * 2 * 4 + PIECES  # a certificate has fewer in hand
    with pytest.raises(ValueError, match=f"memory_limit must be at least {needed:,} bytes, got"):
        train(store, memory_limit_bytes=needed - 1)


@pytest.mark.parametrize("weights", [False, True])
def test_a_split_trains_on_its_rows_only(tmp_path, weights):
    store = make_store(tmp_path / "s", CUT, weights=weights)
    options = {"dtype": "float64", "tol": 1e-8, "acceleration": "off"}
    result = train(store, dual_path=tmp_path / "dual", **options)
    rows = rows_of(store, "train")
    X = store.read_features(0, store.n_samples)[rows]
    y = store.read_labels(0, store.n_samples)[rows]
    weight = store.read_sample_weight(0, store.n_samples)[rows]
    expected = fit(ArrayRows(X, y, M, weight), LOSS, FitOptions(**options))
    assert result.certificate.primal == pytest.approx(expected.certificate.primal, rel=1e-7)
    dual = open_dual(tmp_path / "dual").read(0, store.n_samples)
    outside = np.setdiff1d(np.arange(store.n_samples), rows)
    assert not dual[outside].any()
    np.testing.assert_allclose(X.astype(float).T @ dual[rows], result.W, atol=1e-12)


@pytest.mark.parametrize(
    "parts",
    [
        [("val", 300), ("train", 10)],
        [("val", 290), ("train", 25)],
        [("val", 100), ("train", 40)],
        [("train", 20), ("val", 100)],
        [("val", 40), ("train", 20), ("val", 60)],
        [("train", 64)],
        [("train", 7)],
    ],
    ids=str,
)
@pytest.mark.parametrize("stream", [False, True])
def test_a_split_may_lie_anywhere_in_the_chunks(tmp_path, parts, stream):
    store = make_store(tmp_path / "s", parts)
    limit = LIMITS["nothing in memory"] if stream else None
    path = tmp_path / "dual"
    result = train(store, dual_path=path, memory_limit_bytes=limit)
    assert result.certificate.certified
    rows = rows_of(store, "train")
    dual = open_dual(path).read(0, store.n_samples)
    assert dual[rows].any()
    again = train(store, start=StartPoint(dual=open_dual(path)))
    assert again.epochs <= result.epochs


def test_features_at_rest_of_any_dtype_give_the_same_weights(tmp_path):
    """The features are rounded to float16 first, so that all three stores hold the same."""
    X, _ = testing.make_features(200, D, M, seed=9)
    X = X.astype(np.float16)
    results = []
    for dtype in ("float16", "float32", "float64"):
        store = make_store(tmp_path / dtype, [("train", 200)], dtype=dtype, X=X.astype(dtype))
        results.append(train(store))
    for other in results[1:]:
        np.testing.assert_array_equal(other.W, results[0].W)
        assert other.certificate == results[0].certificate


def test_the_same_seed_gives_the_same_bits_and_another_one_does_not(tmp_path):
    store = make_store(tmp_path / "s", CUT)
    one, again, other = (train(store, seed=seed, max_epochs=2) for seed in (1, 1, 2))
    np.testing.assert_array_equal(one.W, again.W)
    assert not np.array_equal(one.W, other.W)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_a_value_that_is_not_finite_is_named_with_its_chunk_and_row(tmp_path, value):
    """Written behind the writer's back, which would have refused it."""
    from dtopk_storage.array_opening import open_array

    store = make_store(tmp_path / "s", CUT)
    chunk = store.read_features(64, 96).copy()
    chunk[10, 3] = value
    open_array(tmp_path / "s" / "features").write_chunk(2, chunk)
    with pytest.raises(DatasetError, match=r"features must be finite, got .* chunk 2, row 74"):
        train(store)
    result = train(store, split="test")
    assert result.certificate.certified


def test_a_chunk_that_is_gone_is_an_error_and_no_hang(tmp_path):
    store = make_store(tmp_path / "s", CUT)
    chunks = [p for p in (tmp_path / "s" / "features").rglob("*") if p.is_file()]
    for chunk in chunks:
        if chunk.name != "zarr.json":
            chunk.unlink()
    with pytest.raises(DatasetError):
        train(store)


def test_an_unknown_or_empty_split_is_refused(tmp_path):
    store = make_store(tmp_path / "s", CUT)
    with pytest.raises(DatasetError, match=r"split 'trian' is unknown .* Available: 'train'"):
        StoreRows(store, "trian")


def test_class_totals_are_those_of_the_split(tmp_path):
    store = make_store(tmp_path / "s", CUT)
    y = store.read_labels(0, store.n_samples)[rows_of(store, "train")]
    np.testing.assert_array_equal(
        class_totals(StoreRows(store, "train")), np.bincount(y, minlength=M)
    )
