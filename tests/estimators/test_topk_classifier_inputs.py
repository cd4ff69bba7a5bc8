"""What features may come in, and what is copied of them."""

import numpy as np
import pytest
import zarr
from sklearn.linear_model import LogisticRegression

from dtopk import TopKClassifier
from dtopk.engine import ArrayRows
from dtopk.estimators import class_rows, inputs, linear
from dtopk_storage import DatasetError, create_store, open_store
from tests.small_stores import make_rows, make_store

pd = pytest.importorskip("pandas")

EXACT = {"dtype": "float64", "tol": 1e-13, "max_epochs": 5000, "random_state": 0}
# As in test_topk_classifier.py.
COEF_ATOL = 1e-5


@pytest.fixture
def taken(monkeypatch):
    """List the features that the engine is handed."""
    arrays = []

    class Spy(ArrayRows):
        def __init__(self, X, *args):
            arrays.append(X)
            super().__init__(X, *args)

    monkeypatch.setattr(class_rows, "ArrayRows", Spy)
    return arrays


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize("compute", ["float32", "float64"])
def test_contiguous_features_are_not_copied(taken, dtype, compute):
    X, y = make_rows(60)
    X = X.astype(dtype)
    TopKClassifier(dtype=compute, random_state=0).fit(X, y)
    assert taken[0].dtype == dtype
    assert np.shares_memory(taken[0], X)


def test_column_major_features_are_copied_into_rows(taken):
    X, y = make_rows(60)
    TopKClassifier(random_state=0).fit(np.asfortranarray(X), y)
    assert taken[0].flags.c_contiguous
    assert taken[0].dtype == np.float32


@pytest.mark.parametrize("compute", ["float32", "float64"])
def test_integers_become_the_type_of_the_computation(taken, compute):
    X, y = make_rows(60)
    clf = TopKClassifier(dtype=compute, random_state=0).fit(np.rint(X).astype(int), y)
    assert taken[0].dtype == compute
    assert clf.coef_.dtype == compute


def test_half_precision_features_train_and_predict_as_their_values_do():
    X, y = make_rows(60)
    half = X.astype(np.float16)
    clf = TopKClassifier(random_state=0).fit(half, y)
    same = TopKClassifier(random_state=0).fit(half.astype(np.float32), y)
    np.testing.assert_array_equal(clf.coef_, same.coef_)
    scores = clf.decision_function(half)
    assert scores.dtype == np.float32
    np.testing.assert_array_equal(scores, same.decision_function(half.astype(np.float32)))


def test_column_names_of_a_dataframe_are_kept_and_compared():
    X, y = make_rows(60)
    frame = pd.DataFrame(X, columns=list("abcdef"))
    clf = TopKClassifier(random_state=0).fit(frame, y)
    assert clf.feature_names_in_.tolist() == list("abcdef")
    with pytest.raises(ValueError, match="feature names"):
        clf.predict(frame[list("fedcba")])


@pytest.fixture
def store(tmp_path):
    """Rows with weights, in chunks of 32; 50 of them are not for training."""
    weight = np.random.default_rng(4).uniform(0.5, 2, 120)
    with create_store(
        tmp_path / "store",
        n_features=6,
        class_names=("ant", "bee", "cat", "dog"),
        chunk_rows=32,
        sample_weight=True,
    ) as writer:
        writer.append(*make_rows(120, seed=1), split="train", sample_weight=weight)
        writer.append(*make_rows(50, seed=2), split="test", sample_weight=np.ones(50))
    return open_store(tmp_path / "store")


@pytest.mark.parametrize("class_weight", [None, "balanced"])
def test_store_trains_as_its_training_rows_do(store, class_weight):
    weight = store.read_sample_weight(0, 120)
    X, labels = store.read_features(0, 120), store.classes[store.read_labels(0, 120)]
    ours = TopKClassifier(C=0.1, class_weight=class_weight, **EXACT).fit(store)
    same = TopKClassifier(C=0.1, class_weight=class_weight, **EXACT).fit(X, labels, weight)
    assert ours.n_features_in_ == 6
    assert ours.classes_.tolist() == ["ant", "bee", "cat", "dog"]
    np.testing.assert_allclose(ours.coef_, same.coef_, atol=COEF_ATOL)
    np.testing.assert_allclose(ours.intercept_, same.intercept_, atol=COEF_ATOL)


def test_store_is_predicted_row_by_row(store, monkeypatch):
    monkeypatch.setattr(linear, "_BATCH_BYTES", 2000)
    clf = TopKClassifier(random_state=0).fit(store)
    X = store.read_features(0, 170)
    np.testing.assert_array_equal(clf.predict(store), clf.predict(X))
    np.testing.assert_array_equal(clf.predict_topk(store, 2), clf.predict_topk(X, 2))
    np.testing.assert_allclose(clf.predict_proba(store), clf.predict_proba(X), rtol=1e-5)


def test_store_forgets_the_column_names_of_an_earlier_fit(store):
    X, y = make_rows(60)
    clf = TopKClassifier(random_state=0).fit(pd.DataFrame(X, columns=list("abcdef")), y)
    assert not hasattr(clf.fit(store), "feature_names_in_")


@pytest.mark.parametrize("given", [{"y": np.zeros(170)}, {"sample_weight": np.ones(170)}])
def test_store_comes_without_labels_and_weights(store, given):
    (name,) = given
    with pytest.raises(ValueError, match=f"{name} must be left out for a feature store"):
        TopKClassifier().fit(store, **given)


def test_prediction_names_the_chunk_of_a_store_with_nan(tmp_path):
    clf = TopKClassifier(random_state=0).fit(make_store(tmp_path / "good"))
    store = make_store(tmp_path / "bad")
    features = zarr.open_array(tmp_path / "bad" / "features", mode="r+")
    features[40, 2] = np.nan
    with pytest.raises(DatasetError, match="chunk 1, row 40, column 2"):
        clf.predict(store)


def make_zarr(X, chunk_rows):
    return zarr.create_array(zarr.storage.MemoryStore(), data=X, chunks=(chunk_rows, X.shape[1]))


def test_zarr_features_train_and_predict_as_arrays_do(monkeypatch):
    X, y = make_rows(60)
    array = make_zarr(X, 16)
    clf = TopKClassifier(random_state=0).fit(array, y)
    np.testing.assert_array_equal(clf.coef_, TopKClassifier(random_state=0).fit(X, y).coef_)
    for batch_bytes in (100, 2000, 10**6):
        monkeypatch.setattr(linear, "_BATCH_BYTES", batch_bytes)
        np.testing.assert_allclose(
            clf.decision_function(array), clf.decision_function(X), rtol=1e-5, atol=1e-6
        )
    assert clf.score(array, y) == clf.score(X, y)


def test_zarr_features_above_the_memory_are_sent_to_ingest(monkeypatch):
    X, y = make_rows(60)
    monkeypatch.setattr(inputs, "free_memory", lambda: 2000)
    match = r"at most 1,200 bytes .* 1,440 bytes \(60 x 6 float32\).*`dtopk ingest`"
    with pytest.raises(ValueError, match=match):
        TopKClassifier().fit(make_zarr(X, 16), y)


def test_zarr_features_must_be_a_matrix():
    array = zarr.create_array(zarr.storage.MemoryStore(), data=np.zeros(5), chunks=(5,))
    with pytest.raises(ValueError, match=r"X must be of shape \(n_samples, n_features\), got"):
        TopKClassifier().fit(array, np.arange(5))


def test_labels_keep_their_type():
    X, y = make_rows(60)
    for labels in (np.array(["a", "b", "c", "d"])[y], np.array([-1, 5, 7, 9])[y], y % 2 == 0):
        clf = TopKClassifier(random_state=0).fit(X, labels)
        assert clf.predict(X).dtype == labels.dtype
        assert LogisticRegression().fit(X, labels).classes_.tolist() == clf.classes_.tolist()
