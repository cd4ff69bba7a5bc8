"""Dask arrays in TopKClassifier: rows as they are chunked, labels, errors, lazy predictions."""

import pickle
import subprocess
import sys
import threading
import time

import dask
import dask.array as da
import numpy as np
import pytest
import scipy.sparse

from dtopk import TopKClassifier
from dtopk.estimators import spool as spool_module
from tests.small_stores import make_rows

pd = pytest.importorskip("pandas")

N, D = 120, 6
CHUNKINGS = {
    "one chunk": ((N,), (D,)),
    "rows and columns": ((50, 70), (2, 4)),
    "single rows": ((1,) * N, (D,)),
    "empty chunks": ((0, 30, 0, 90, 0), (D,)),
    "single columns": ((N,), (1,) * D),
}


@pytest.fixture
def data():
    return make_rows(N)


@pytest.fixture
def folder(tmp_path):
    """Give a folder for spools, which must be empty in the end."""
    place = tmp_path / "spools"
    place.mkdir()
    yield place
    # A thread that writes while its fit fails removes what it wrote itself.
    deadline = time.monotonic() + 10
    while list(place.iterdir()) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert list(place.iterdir()) == []


def fit(X, y, sample_weight=None, **parameters):
    return TopKClassifier(**{"random_state": 0, **parameters}).fit(X, y, sample_weight)


def assert_same(one, other):
    """Weights and certificate are the same to the bit, and so are the classes."""
    np.testing.assert_array_equal(one.coef_, other.coef_)
    np.testing.assert_array_equal(one.intercept_, other.intercept_)
    np.testing.assert_array_equal(one.classes_, other.classes_)
    assert one.classes_.dtype == other.classes_.dtype
    assert one.coef_.dtype == other.coef_.dtype
    assert one.certificate_ == other.certificate_
    assert one.n_features_in_ == other.n_features_in_


@pytest.mark.parametrize("chunks", CHUNKINGS.values(), ids=CHUNKINGS)
@pytest.mark.parametrize("y_chunks", [N, 7], ids=["y whole", "y in sevens"])
def test_chunks_change_no_bit(data, folder, chunks, y_chunks):
    """So few rows are one chunk of the spool, as they are one piece of an array."""
    X, y = data
    clf = fit(da.from_array(X, chunks), da.from_array(y, y_chunks), spool_dir=folder)
    assert_same(clf, fit(X, y))


def test_numpy_features_go_with_dask_labels_and_the_reverse(data, folder):
    X, y = data
    weight = np.random.default_rng(1).uniform(0.5, 2, N)
    same = fit(X, y, weight)
    dask_X, dask_y, dask_weight = (da.from_array(each, 50) for each in (X, y, weight))
    assert_same(fit(X, dask_y, dask_weight, spool_dir=folder), same)
    assert_same(fit(dask_X, y, weight, spool_dir=folder), same)
    listed = fit(dask_X, y.tolist(), weight.tolist(), spool_dir=folder)
    np.testing.assert_array_equal(listed.coef_, same.coef_)
    assert_same(fit(X, y, dask_weight, spool_dir=folder), same)
    assert_same(fit(dask_X, dask_y, 2.5, spool_dir=folder), fit(X, y, np.full(N, 2.5)))


def test_column_names_are_kept_and_forgotten(data):
    X, y = data
    frame = pd.DataFrame(X, columns=list("abcdef"))
    clf = fit(frame, da.from_array(y, 50))
    assert clf.feature_names_in_.tolist() == list("abcdef")
    with pytest.warns(UserWarning, match="X does not have valid feature names"):
        lazy = clf.predict(da.from_array(X, 50))
    np.testing.assert_array_equal(lazy.compute(), clf.predict(frame))
    assert not hasattr(clf.fit(da.from_array(X, 50), y), "feature_names_in_")


LABELS = {
    "integers": np.array([-7, 0, 3, 2**40]),
    "unsigned": np.array([9, 8, 7, 6], np.uint8),
    "strings": np.array(["ant", "bee", "cat", "dog of some length"]),
    "objects": np.array(["zebra", "bee", "cat", "äpfel"], object),
    "whole floats": np.array([0.0, 1.0, 2.0, -3.0]),
    "booleans": np.array([False, True, True, False]),
}


@pytest.mark.parametrize("names", LABELS.values(), ids=LABELS)
def test_labels_keep_their_type_and_may_be_missing_in_chunks(data, folder, names):
    X, y = data
    order = np.argsort(y, kind="stable")
    X, labels = X[order], names[y[order]]
    clf = fit(da.from_array(X, 40), da.from_array(labels, 15), spool_dir=folder)
    same = fit(X, labels)
    assert_same(clf, same)
    lazy = clf.predict(da.from_array(X, 40))
    assert lazy.dtype == lazy.compute().dtype == same.predict(X).dtype
    np.testing.assert_array_equal(lazy.compute(), same.predict(X))


def test_strings_may_be_longer_than_the_array_says(data):
    X, y = data
    names = np.array(["a", "bb", "ccc", "dddd"])[y]
    untold = da.from_array(y, 50).map_blocks(
        lambda codes: np.array(["a", "bb", "ccc", "dddd"])[codes], dtype="<U1"
    )
    assert_same(fit(da.from_array(X, 50), untold), fit(X, names))


@pytest.mark.parametrize("class_weight", ["balanced", {0: 2.0, 3: 0.0}])
def test_classes_are_weighed_as_those_of_arrays(data, class_weight):
    X, y = data
    weight = np.random.default_rng(1).uniform(0.5, 2, N)
    clf = fit(*(da.from_array(a, 25) for a in (X, y, weight)), class_weight=class_weight)
    assert_same(clf, fit(X, y, weight, class_weight=class_weight))


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", ">f4", "int32", "bool", object])
@pytest.mark.parametrize("compute", ["float32", "float64"])
def test_features_are_taken_in_the_type_that_arrays_are(data, dtype, compute):
    X, y = data
    X = np.rint(X).astype(dtype)
    clf = fit(da.from_array(X, (50, 3)), y, dtype=compute)
    assert_same(clf, fit(X, y, dtype=compute))
    scores = clf.decision_function(da.from_array(X, (50, 3)))
    assert scores.dtype == scores.compute().dtype == clf.decision_function(X).dtype


def test_warm_start_goes_on_from_dask_arrays(data):
    X, y = (da.from_array(each, 50) for each in data)
    clf = fit(X, y, warm_start=True)
    n_iter = clf.n_iter_
    assert clf.fit(X, y).n_iter_ < n_iter


def test_partitions_are_parts_of_any_rows(data):
    X, y = data
    one, three = fit(X, y), fit(X, y, partitions=3)
    assert three.certificate_.certified
    assert not np.array_equal(one.coef_, three.coef_)
    assert fit(da.from_array(X, 50), y, partitions=3).certificate_.certified


def test_many_rows_are_streamed_in_chunks(data, folder, monkeypatch):
    """Chunk sizes of the spool are none of the user's; results agree by their certificates."""
    monkeypatch.setattr(spool_module, "_MOST_ROWS", 16)
    X, y = data
    clf = fit(da.from_array(X, (50, 3)), da.from_array(y, 33), tol=1e-5, spool_dir=folder)
    same = fit(X, y, tol=1e-5)
    assert clf.certificate_.certified
    assert clf.certificate_.primal == pytest.approx(same.certificate_.primal, rel=1e-5)


def test_features_and_labels_of_one_source_read_it_once(data, folder):
    X, y = data
    seen = []

    def read(block, block_id=None):
        if block_id:  # not when Dask wants to know what comes out
            seen.append(block_id[0])
        part = slice(block_id[0] * 30, block_id[0] * 30 + 30) if block_id else slice(0, 0)
        return np.column_stack([X[part], y[part]])

    source = da.zeros((N, 1), chunks=(30, 1)).map_blocks(
        read, dtype=np.float32, chunks=(30, D + 1), meta=np.empty((0, 0), np.float32)
    )
    clf = fit(source[:, :D], source[:, D].astype(int), spool_dir=folder)
    assert sorted(seen) == [0, 1, 2, 3]
    np.testing.assert_array_equal(clf.coef_, fit(X, y).coef_)


def with_value(array, row, value):
    array = array.astype(np.result_type(array, type(value)))
    array[row] = value
    return da.from_array(array, 50)


@pytest.mark.parametrize("value", [np.nan, np.inf, 1e39])
def test_feature_that_is_not_finite_is_named_by_its_row(data, folder, value):
    X, y = data
    X = X.astype(object)
    X[77, 4] = value
    match = rf"X must be finite in float32, got {value!r} in row 77, column 4\."
    with pytest.raises(ValueError, match=match.replace("+", r"\+")):
        fit(da.from_array(X, 50), y, spool_dir=folder)


def one_class(y):
    return da.from_array(np.zeros_like(y), 50)


def some_of(array):
    return array[array >= 0]


BAD_LABELS = {
    "nan": (lambda y: with_value(y, 60, np.nan), "whole numbers, got .*nan.* in row 60"),
    "fraction": (lambda y: with_value(y, 61, 0.5), r"whole numbers, got .*0\.5.* in row 61"),
    "no strings": (
        lambda y: with_value(y.astype(str).astype(object), 62, None),
        "y must hold strings throughout, got None in row 62",
    ),
    "one class": (one_class, "the data contains only one class: 0"),
    "complex": (lambda y: with_value(y, 3, 1j), "whole numbers or strings, got the type complex"),
    "matrix": (
        lambda y: da.from_array(y[:, None], 50),
        r"y must be of shape \(n_samples,\), got shape \(120, 1\)",
    ),
    "too few": (lambda y: da.from_array(y[:-1], 50), "number of rows, got 120 and 119"),
    "too few here": (lambda y: y[:-1], "number of rows, got 120 and 119"),
    "unknown": (lambda y: some_of(da.from_array(y, 50)), r"y\.compute_chunk_sizes\(\)"),
    "none": (lambda y: None, "y must be given for an array of features, got None"),
}


@pytest.mark.parametrize(("make", "match"), BAD_LABELS.values(), ids=BAD_LABELS)
def test_labels_are_refused(data, folder, make, match):
    X, y = data
    with pytest.raises(ValueError, match=match):
        fit(da.from_array(X, 50), make(y), spool_dir=folder)


def test_numbers_in_some_chunks_and_strings_in_others_are_refused(data, folder):
    X, y = data
    mixed = da.from_array(y, 60).map_blocks(
        lambda codes, block_id=(0,): codes.astype("U1" if block_id[0] else int), dtype=int
    )
    match = r"y must hold numbers or strings throughout, got \d in row 0 .* and '\d' in row 60"
    with pytest.raises(ValueError, match=match):
        fit(da.from_array(X, 60), mixed, spool_dir=folder, partitions=2)


BAD_FEATURES = {
    "unknown": (lambda X: X[X[:, 0] > -99], r"X\.compute_chunk_sizes\(\)"),
    "vector": (lambda X: X[:, 0], r"X must be of shape \(n_samples, n_features\), got"),
    "complex": (lambda X: X + 1j, "X must hold real numbers, got the type complex64"),
    "strings": (lambda X: X.astype("U5"), "X must hold real numbers, got the type <U5"),
    "empty": (lambda X: X[:0], "X must have at least 1 row, got none"),
    "other shape": (
        lambda X: X.map_blocks(lambda block: block[:-1], dtype=X.dtype),
        r"X must have blocks of the shapes that it says, got .* Correct its chunks",
    ),
}


@pytest.mark.parametrize(("make", "match"), BAD_FEATURES.values(), ids=BAD_FEATURES)
def test_features_are_refused(data, folder, make, match):
    X, y = data
    with pytest.raises(ValueError, match=match):
        fit(make(da.from_array(X, (N, D))), y, spool_dir=folder)


@pytest.mark.parametrize("value", [-1.0, np.nan, np.inf])
def test_sample_weight_is_named_by_its_row(data, folder, value):
    X, y = data
    match = r"sample_weight must be finite and at least 0, got \S+ in row 100\."
    with pytest.raises(ValueError, match=match):
        fit(da.from_array(X, 50), y, with_value(np.ones(N), 100, value), spool_dir=folder)


def test_blocks_must_be_numpy_arrays(data, folder):
    X, y = data
    sparse = da.from_array(X, (50, D)).map_blocks(
        scipy.sparse.csr_array, meta=scipy.sparse.csr_array((0, 0))
    )
    with pytest.raises(TypeError, match="X must be made of NumPy arrays, got a Dask array of csr"):
        fit(sparse, y, spool_dir=folder)
    untold = da.from_array(X, (N, D)).map_blocks(
        scipy.sparse.csr_array, meta=np.empty((0, 0), np.float32)
    )
    with pytest.raises(TypeError, match="X must be made of NumPy arrays, got a csr_array for the"):
        fit(untold, y, spool_dir=folder)


def test_other_collections_of_dask_are_refused(data):
    dataframes = pytest.importorskip("dask.dataframe")
    X, y = data
    frame = dataframes.from_pandas(pd.DataFrame(X), npartitions=2)
    match = r"must be arrays, got a DataFrame of Dask's.*\.to_dask_array\(lengths=True\)"
    with pytest.raises(TypeError, match=match):
        fit(frame, y)
    clf = fit(frame.to_dask_array(lengths=True), y)
    with pytest.raises(TypeError, match=match):
        clf.predict(frame)


def test_folder_and_room_are_looked_for_first(data, tmp_path, monkeypatch):
    X, y = (da.from_array(each, 50) for each in data)
    with pytest.raises(ValueError, match=r"spool_dir must be an existing folder, got '.*nowhere'"):
        fit(X, y, spool_dir=tmp_path / "nowhere")
    usage = spool_module.shutil.disk_usage(tmp_path)
    monkeypatch.setattr(spool_module.shutil, "disk_usage", lambda path: usage._replace(free=100))
    match = r"room for 3,840 bytes \(120 x 6 float32, labels and weights\), got 100 that are free"
    with pytest.raises(ValueError, match=match):
        fit(X, y, spool_dir=tmp_path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("value", "error", "match"),
    [
        (0, ValueError, "partitions must be at least 1, got 0"),
        (1.5, TypeError, r"partitions must be an integer, got 1\.5"),
        (50, ValueError, "partitions must be at most the .* blocks .*, got 50"),
    ],
)
def test_partitions_are_refused(data, value, error, match):
    with pytest.raises(error, match=match):
        fit(*data, partitions=value)


def test_task_that_outlives_its_fit_leaves_nothing(data, folder):
    """A fit fails while another thread still has a chunk to write."""
    X, y = data
    failed, done = threading.Event(), threading.Event()

    def slowly(block, block_id=(0,)):
        if block_id[0] == 0:
            failed.wait(20)
        else:
            block = np.full_like(block, np.nan)
        return block

    class Told(spool_module.Spool):
        def put_features(self, values, chunk):
            try:
                super().put_features(values, chunk)
            finally:
                if chunk == 0:
                    done.set()

    late = da.from_array(X, (60, D)).map_blocks(slowly, dtype=X.dtype)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(spool_module, "Spool", Told)
        with (
            dask.config.set(scheduler="threads", num_workers=2),
            pytest.raises(ValueError, match="X must be finite"),
        ):
            fit(late, y, spool_dir=folder, partitions=2)
        assert list(folder.iterdir()) == []
        failed.set()
        assert done.wait(20)


def test_writer_that_is_overtaken_removes_what_it_wrote(data, folder):
    X, _ = data
    with spool_module.open_spool(folder, None) as root:
        spool = spool_module.plan_spool(
            root, n_samples=N, n_features=D, dtype=X.dtype, sample_weight=False, n_parts=2
        )
        write = type(spool.chunks.features).write_chunk

        def overtaken(self, chunk, values, **known):
            spool_module.shutil.rmtree(root)
            write(self, chunk, values, **known)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(type(spool.chunks.features), "write_chunk", overtaken)
            with pytest.raises(ValueError, match="is not there, or no longer"):
                spool.put_features(X[:60], 0)
        assert not root.exists()


METHODS = ["decision_function", "predict", "predict_proba", "predict_log_proba"]


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("n_classes", [2, 4])
@pytest.mark.parametrize("chunks", CHUNKINGS.values(), ids=CHUNKINGS)
def test_predictions_are_lazy_and_equal_those_of_arrays(data, method, n_classes, chunks):
    X, y = data
    clf = fit(X, y % n_classes)
    computed = []
    with dask.config.set(scheduler=lambda *a, **known: computed.append(a)):
        lazy = getattr(clf, method)(da.from_array(X, chunks))
    assert computed == []
    at_once = getattr(clf, method)(X)
    assert isinstance(lazy, da.Array)
    assert lazy.shape == at_once.shape
    assert lazy.chunks[0] == chunks[0]
    assert lazy.dtype == lazy._meta.dtype == at_once.dtype
    assert type(lazy._meta) is np.ndarray
    values = lazy.compute()
    assert values.dtype == at_once.dtype
    np.testing.assert_allclose(values, at_once, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("n_classes", [2, 4])
def test_topk_predictions_are_lazy_and_equal_those_of_arrays(data, n_classes):
    X, y = data
    names = np.array(["ant", "bee", "cat", "dog"])
    clf = fit(X, names[y % n_classes])
    lazy = clf.predict_topk(da.from_array(X, (33, 2)), 2, return_scores=True)
    at_once = clf.predict_topk(X, 2, return_scores=True)
    for one, other in zip(lazy, at_once, strict=True):
        assert one.dtype == one._meta.dtype == other.dtype
        assert one.chunks == ((33, 33, 33, 21), (2,))
    labels, scores = dask.compute(*lazy)
    np.testing.assert_array_equal(labels, at_once[0])
    np.testing.assert_allclose(scores, at_once[1], rtol=1e-5, atol=1e-6)
    only = clf.predict_topk(da.from_array(X, 50), 1)
    np.testing.assert_array_equal(only.compute()[:, 0], clf.predict(X))


def test_predictions_take_chunks_of_unknown_size(data):
    X, y = data
    clf = fit(X, y)
    some = da.from_array(X, (50, 3))
    some = some[some[:, 0] > 0]
    kept = X[X[:, 0] > 0]
    np.testing.assert_array_equal(clf.predict(some).compute(), clf.predict(kept))
    assert clf.predict_proba(some).compute_chunk_sizes().shape == (len(kept), 4)
    with pytest.raises(ValueError, match=r"X must have chunks of known sizes"):
        clf.score(some, y)


def test_predictions_refuse_what_those_of_arrays_refuse(data):
    X, y = data
    clf = fit(X[:, :5], y)
    with pytest.raises(ValueError, match="X has 6 features, but TopKClassifier is expecting 5"):
        clf.predict(da.from_array(X, 50))
    with pytest.raises(ValueError, match=r"k must be between 1 and n_classes = 4, got 5\."):
        clf.predict_topk(da.from_array(X[:, :5], 50), 5)
    X[70, 1] = np.nan
    with pytest.raises(ValueError, match="NaN"):
        clf.predict(da.from_array(X[:, :5], 50)).compute()


def test_weights_are_in_a_graph_once(rng):
    """They are all there is in it, beside a few hundred bytes a block."""
    d, m = 2000, 100
    X, y = rng.normal(size=(200, d)).astype(np.float32), np.arange(200) % m
    clf = fit(X, y, max_epochs=5, tol=0.5)
    lazy = clf.predict(da.zeros((400, d), chunks=(10, d), dtype=np.float32))
    size = len(pickle.dumps(dict(lazy.__dask_graph__())))
    assert clf.coef_.nbytes < size < 1.1 * clf.coef_.nbytes


def test_predictions_keep_to_the_weights_that_made_them(data):
    X, y = data
    clf = fit(X, y)
    before = clf.predict(X)
    lazy = clf.predict(da.from_array(X, 50))
    clf.fit(X, (y + 1) % 4)
    np.testing.assert_array_equal(lazy.compute(), before)


@pytest.mark.parametrize("weighted", [False, True])
def test_score_of_dask_arrays_is_that_of_arrays(data, weighted):
    X, y = data
    names = np.array(["ant", "bee", "cat", "dog"])[y]
    clf = fit(X, names)
    weight = np.random.default_rng(1).uniform(0, 2, N) if weighted else None
    expected = clf.score(X, names, weight)
    dask_weight = None if weight is None else da.from_array(weight, 31)
    lazy_X, lazy_y = da.from_array(X, (50, 3)), da.from_array(names, 17)
    for score in (
        clf.score(lazy_X, lazy_y, dask_weight),
        clf.score(lazy_X, names, weight),
        clf.score(X, lazy_y, weight),
        clf.score(lazy_X, lazy_y.astype(object), dask_weight),
    ):
        assert isinstance(score, float)
        assert score == pytest.approx(expected, rel=1e-12)
    with pytest.raises(
        ValueError, match="X and y must have the same number of rows, got 120 and 1"
    ):
        clf.score(lazy_X, names[:1])


def test_arrays_are_trained_on_without_dask():
    """Its import takes most of a second."""
    code = """
import sys
from dtopk import TopKClassifier
TopKClassifier().fit([[0.0], [1.0]], [0, 1]).predict([[0.0]])
assert not {"dask", "distributed"} & set(sys.modules), "Dask is imported"
"""
    subprocess.run([sys.executable, "-c", code], check=True)
