"""Stores of any number of labels a row: what is written is what is read, here and by plain zarr."""

import itertools
import json
import pickle
import shutil

import numpy as np
import pytest
import zarr
from hypothesis import given, settings
from hypothesis import strategies as st

from dtopk_storage import (
    DatasetError,
    LabelRows,
    check_batch,
    create_store,
    open_store,
)
from dtopk_storage.checks import check_labels
from dtopk_storage.chunk_writing import plan_chunks
from dtopk_storage.chunked import ChunkedArray
from dtopk_storage.manifest import checksum

N, D, N_CLASSES = 50, 6, 5
NAMES = ["ant", "bee", "cat", "dog", "eel"]


def draw_sets(n_rows=N, seed=3):
    """Draw codes in ascending order for each row; a fifth of the rows have none."""
    rng = np.random.default_rng(seed)
    return [
        sorted(rng.choice(N_CLASSES, rng.integers(0, 5), replace=False).tolist())
        if rng.random() > 0.2
        else []
        for _ in range(n_rows)
    ]


def to_rows(sets):
    counts = np.array([len(codes) for codes in sets], np.int64)
    return LabelRows.from_counts(counts, np.array([*itertools.chain(*sets)], np.int32))


def to_lists(labels):
    """Give the codes of each row, as another program would cut them."""
    return [part.tolist() for part in np.split(labels.indices, labels.indptr[1:-1])]


def to_indicator(sets, dtype=np.uint8):
    indicator = np.zeros((len(sets), N_CLASSES), dtype)
    for row, codes in enumerate(sets):
        indicator[row, codes] = 1
    return indicator


@pytest.fixture
def X():
    return np.random.default_rng(7).standard_normal((N, D)).astype(np.float32)


@pytest.fixture(autouse=True)
def small_label_chunks(monkeypatch):
    """Chunks of 16 rows and of 16 codes, so that 50 rows have several."""
    monkeypatch.setattr("dtopk_storage.publishing._LABEL_ROWS", 16)


def make(path, X, y, *, parts=1, **options):
    with create_store(
        path, n_features=D, class_names=NAMES, chunk_rows=8, kind="multilabel", **options
    ) as writer:
        for rows in np.array_split(np.arange(len(X)), parts):
            writer.append(X[rows], y[rows[0] : rows[-1] + 1])
    return open_store(path)


@pytest.fixture
def multilabel(tmp_path, X):
    """50 rows in chunks of 8, with their labels as lists."""
    return make(tmp_path / "m", X, draw_sets())


def contents(store):
    folder = store.arrays["features"].path.parent
    files = (path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


row_sets = st.lists(st.lists(st.integers(0, 4), max_size=4, unique=True).map(sorted), max_size=12)


@given(sets=row_sets, bounds=st.tuples(st.integers(-14, 14), st.integers(-14, 14)))
def test_some_label_rows_are_those_rows(sets, bounds):
    labels = to_rows(sets)
    part = slice(*bounds)
    assert len(labels) == len(sets)
    assert to_lists(labels[part])[: len(sets[part])] == sets[part]
    assert len(labels[part]) == len(sets[part])
    for rows in (np.arange(len(sets))[::-1], np.arange(len(sets))[part], np.zeros(0, int)):
        picked = labels[rows]
        assert picked.indptr.dtype == np.int64
        assert picked.indices.dtype == np.int32
        assert to_lists(picked)[: len(rows)] == [sets[row] for row in rows]
    assert to_lists(labels[::2])[: len(sets[::2])] == sets[::2]
    halves = LabelRows.concatenate([labels[:3], labels[3:]])
    np.testing.assert_array_equal(halves.indptr, labels.indptr)
    np.testing.assert_array_equal(halves.indices, labels.indices)


def test_label_rows_are_picked_by_slices_and_arrays_alone():
    labels = to_rows([[0, 2], [], [1]])
    assert labels[np.array([True, False, True])].indices.tolist() == [0, 2, 1]
    with pytest.raises(TypeError, match="must be a slice or an array of row numbers, got 1"):
        labels[1]
    assert len(LabelRows.concatenate([])) == 0


@pytest.mark.parametrize("indptr", [[], [1, 3], [0, 2], [0, 4]])
def test_label_rows_hold_all_codes(indptr):
    with pytest.raises(ValueError, match="indptr must go from 0 to the number of codes, 3, got"):
        LabelRows(np.array(indptr, np.int64), np.zeros(3, np.int32))


@pytest.mark.parametrize("chunk_codes", [16, 1 << 16])
def test_multilabel_store_is_read_by_plain_zarr(tmp_path, X, chunk_codes, monkeypatch):
    monkeypatch.setattr("dtopk_storage.publishing._LABEL_ROWS", chunk_codes)
    sets = draw_sets()
    make(tmp_path / "s", X, sets)
    group = zarr.open_group(tmp_path / "s", mode="r")
    assert sorted(group.array_keys()) == [
        "feature_mean", "feature_std", "features", "label_indices", "label_indptr",
    ]  # fmt: skip
    indptr, indices = group["label_indptr"], group["label_indices"]
    assert (indptr.dtype, indptr.shape) == (np.int64, (N + 1,))
    assert (indices.dtype, indices.shape) == (np.int32, (sum(map(len, sets)),))
    for array, dimension in ((indptr, "bound"), (indices, "label")):
        codecs = [codec.to_dict()["name"] for codec in array.metadata.codecs]
        assert codecs == ["bytes", "crc32c"]
        assert array.metadata.dimension_names == (dimension,)
    bounds = indptr[:]
    for row, codes in enumerate(sets):
        assert indices[bounds[row] : bounds[row + 1]].tolist() == codes
    manifest = json.loads((tmp_path / "s" / "zarr.json").read_text())["attributes"]["dtopk"]
    assert (manifest["format_version"], manifest["kind"]) == (1, "multilabel")
    assert manifest["class_names"] == NAMES


def test_multilabel_store_written_by_plain_zarr_is_read(tmp_path, multilabel):
    source = zarr.open_group(multilabel.path, mode="r")
    copy = zarr.create_group(tmp_path / "copy", attributes=source.attrs.asdict())
    for name, array in source.arrays():
        chunks = array.chunks if name == "features" else (7,)
        copy.create_array(
            name, data=array[:], chunks=chunks, compressors=[zarr.codecs.Crc32cCodec()]
        )
    opened = open_store(tmp_path / "copy")
    assert opened.kind == "multilabel"
    assert to_lists(opened.read_label_rows(3, 41)) == draw_sets()[3:41]
    opened.verify()


GIVEN = {
    "lists": lambda sets: sets,
    "tuples_in_any_order": lambda sets: [tuple(codes[::-1]) for codes in sets],
    "sets": lambda sets: [set(codes) for codes in sets],
    "arrays": lambda sets: [np.array(codes, np.int64) for codes in sets],
    "whole_floats": lambda sets: [[float(code) for code in codes] for codes in sets],
    "object_array": lambda sets: np.array([*sets, None], object)[:-1],
    "bool_indicator": lambda sets: to_indicator(sets, bool),
    "int_indicator": to_indicator,
    "float_indicator": lambda sets: to_indicator(sets, np.float32),
    "column_major_indicator": lambda sets: np.asfortranarray(to_indicator(sets)),
    "label_rows": to_rows,
}


@pytest.mark.parametrize("parts", [1, 7])
@pytest.mark.parametrize("give", GIVEN.values(), ids=GIVEN)
def test_labels_given_in_any_way_make_the_same_store(tmp_path, X, give, parts):
    store = make(tmp_path / "s", X, give(draw_sets()), parts=parts)
    assert contents(store) == contents(make(tmp_path / "lists", X, draw_sets(), parts=parts))
    store.verify()


@given(bounds=st.tuples(st.integers(0, N), st.integers(0, N)).map(sorted))
@settings(max_examples=60, deadline=None)
def test_any_range_of_labels_is_read_as_it_was_written(shared, bounds):
    start, stop = bounds
    labels = shared.read_label_rows(start, stop)
    assert len(labels) == stop - start
    assert labels.indptr[0] == 0
    assert (labels.indptr.dtype, labels.indices.dtype) == (np.int64, np.int32)
    assert to_lists(labels)[: stop - start] == draw_sets()[start:stop]


@pytest.fixture(scope="module")
def shared(tmp_path_factory):
    X = np.random.default_rng(7).standard_normal((N, D))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("dtopk_storage.publishing._LABEL_ROWS", 16)
        return make(tmp_path_factory.mktemp("shared") / "s", X, draw_sets())


def test_only_the_chunks_of_the_rows_asked_for_are_read(tmp_path, X, monkeypatch):
    """Every row has two labels, so rows 16:24 have codes 32:48, which are chunk 2 of 16 codes."""
    store = make(tmp_path / "s", X, [[1, 3]] * N)
    read = []
    read_into = ChunkedArray._read_into

    def spy(self, chunk, target):
        read.append((self.path.name, chunk))
        read_into(self, chunk, target)

    monkeypatch.setattr(ChunkedArray, "_read_into", spy)
    for (start, stop), expected in {
        (16, 24): [("label_indptr", 1), ("label_indices", 2)],
        (18, 19): [("label_indptr", 1), ("label_indices", 2)],
        (0, 16): [("label_indptr", 0), ("label_indptr", 1), ("label_indices", 0),
                  ("label_indices", 1)],
        (20, 20): [("label_indptr", 1)],
    }.items():  # fmt: skip
        read.clear()
        store.read_label_rows(start, stop)
        assert read == expected


@pytest.mark.parametrize("batch_rows", [None, 1, 3, 8, 100])
@pytest.mark.parametrize("split", ["train", "val", None])
def test_batches_of_any_size_have_the_labels_of_one(tmp_path, X, split, batch_rows):
    sets = draw_sets()
    with create_store(
        tmp_path / "s", n_features=D, class_names=NAMES, chunk_rows=8, kind="multilabel"
    ) as writer:
        writer.append(X[:30], sets[:30])
        writer.append(X[30:], sets[30:], split="val")
    store = open_store(tmp_path / "s")
    batches = list(store.iter_batches(split, batch_rows))
    parts = [batch.y for batch in batches if isinstance(batch.y, LabelRows)]
    labels = LabelRows.concatenate(parts)
    part = {"train": slice(30), "val": slice(30, N), None: slice(N)}[split]
    assert to_lists(labels) == sets[part]
    for batch in batches:
        assert len(batch.y) == len(batch.X)
        check_batch(batch.X, batch.y, batch.weight, start=batch.start, store=store)


def test_multilabel_store_keeps_weights_splits_and_statistics(tmp_path, X):
    weight = np.linspace(0, 2, N)
    with create_store(
        tmp_path / "s", n_features=D, class_names=[10, 20, 30, 40, 50], kind="multilabel",
        sample_weight=True, compression="lz4",
    ) as writer:  # fmt: skip
        writer.append(X[:30], draw_sets()[:30], sample_weight=weight[:30])
        writer.append(X[30:], draw_sets()[30:], sample_weight=weight[30:], split="test")
    store = open_store(tmp_path / "s")
    assert store.splits == {"train": ((0, 30),), "test": ((30, N),)}
    assert store.classes.tolist() == [10, 20, 30, 40, 50]
    np.testing.assert_array_equal(store.read_sample_weight(0, N), weight)
    np.testing.assert_allclose(store.mean, X[:30].astype(np.float64).mean(axis=0), rtol=1e-12)
    store.verify()


def test_a_store_may_have_no_label_at_all(tmp_path, X):
    store = make(tmp_path / "s", X, [[]] * N)
    assert zarr.open(tmp_path / "s")["label_indices"].shape == (0,)
    assert to_lists(store.read_label_rows(4, 7)) == [[], [], []]
    store.verify()


def test_chunks_in_any_order_make_a_multilabel_store(tmp_path, X):
    sets = draw_sets()
    plan = plan_chunks(
        tmp_path / "a", n_samples=N, n_features=D, dtype="float32", chunk_rows=8,
        sample_weight=False,
    )  # fmt: skip
    for chunk in (3, 0, 6, 2, 1, 5, 4):
        plan.features.write_chunk(chunk, X[slice(*plan.features.rows_of(chunk))])
    store = plan.finish(n_classes=N_CLASSES, provenance={}, label_rows=to_rows(sets))
    assert store.kind == "multilabel"
    assert to_lists(store.read_label_rows(0, N)) == sets
    assert not (tmp_path / "a" / "labels").exists()


def test_multilabel_store_pickles_and_reads_afterwards(multilabel):
    copy = pickle.loads(pickle.dumps(multilabel))
    assert to_lists(copy.read_label_rows(0, N)) == draw_sets()


def test_labels_are_read_by_the_kind_of_the_store(multilabel, store):
    message = (
        r"kind of '.*m' must be 'multiclass' for one label a row, got 'multilabel'\. Its .*rows"
    )
    with pytest.raises(DatasetError, match=message):
        multilabel.read_labels(0, 3)
    message = r"kind of '.*store' must be 'multilabel' for any number .*, got 'multiclass'\. Its"
    with pytest.raises(DatasetError, match=message):
        store.read_label_rows(0, 3)


def test_label_rows_outside_the_store_are_refused(multilabel):
    with pytest.raises(
        ValueError, match=r"rows must lie in 0:50, got 40:51 of the labels of '.*m'"
    ):
        multilabel.read_label_rows(40, 51)


def rewrite(store, name, values):
    """Put another array of the same layout in the place of one."""
    group = zarr.open_group(store.path, mode="r+")
    group.create_array(
        name, data=values, chunks=(16,), compressors=[zarr.codecs.Crc32cCodec()], overwrite=True
    )


def change(store, name, index, value):
    zarr.open_group(store.path, mode="r+")[name][index] = value


@pytest.mark.parametrize("name", ["label_indptr", "label_indices"])
def test_opening_names_a_missing_array_of_labels(multilabel, name):
    shutil.rmtree(multilabel.arrays[name].path)
    with pytest.raises(DatasetError, match=rf"{name}' must be a zarr v3 array, got"):
        open_store(multilabel.path)


def test_opening_checks_both_arrays_of_labels(multilabel):
    labels = to_rows(draw_sets())
    n_labels = len(labels.indices)
    rewrite(multilabel, "label_indices", labels.indices.astype(np.int64))
    message = (
        rf"label_indices' must be int32 of shape \({n_labels},\), as label_indptr says, got int64"
    )
    with pytest.raises(DatasetError, match=message):
        open_store(multilabel.path)
    rewrite(multilabel, "label_indices", labels.indices[:-1])
    with pytest.raises(DatasetError, match=rf"says, got int32 of shape \({n_labels - 1},\)\. Ing"):
        open_store(multilabel.path)
    rewrite(multilabel, "label_indptr", labels.indptr[:-1])
    with pytest.raises(
        DatasetError, match=r"label_indptr' must be int64 of shape \(51,\), as the man"
    ):
        open_store(multilabel.path)
    rewrite(multilabel, "label_indptr", labels.indptr.astype(np.int32))
    with pytest.raises(
        DatasetError, match=r"int64 of shape \(51,\), .* got int32 of shape \(51,\)"
    ):
        open_store(multilabel.path)


def test_a_multiclass_manifest_over_multilabel_arrays_is_refused(multilabel):
    group = zarr.open_group(multilabel.path, mode="r+")
    fields = {**group.attrs["dtopk"], "kind": "multiclass"}
    group.attrs["dtopk"] = {**fields, "checksum": checksum(fields)}
    with pytest.raises(DatasetError, match=r"labels' must be a zarr v3 array, got"):
        open_store(multilabel.path)


def test_flipped_byte_in_labels_is_named(multilabel, flip_byte):
    flip_byte(multilabel.arrays["label_indices"].chunk_path(1))
    with pytest.raises(
        DatasetError, match=r"crc32c of chunk 1 \(rows 16:32\) of '.*label_indices'"
    ):
        multilabel.verify()
    multilabel.read_label_rows(0, 1)


@pytest.fixture
def pairs(tmp_path, X):
    """Labels 1 and 3 in every row: row r has the codes 2r and 2r + 1, and chunks hold 8 rows."""
    return make(tmp_path / "pairs", X, [[1, 3]] * N)


def check_batches(store):
    for batch in store.iter_batches(None, 3):
        check_labels(batch.y, start=batch.start, store=store)


READS = {
    "verify": lambda store: store.verify(),
    "batches": check_batches,
    "range": lambda store: check_labels(store.read_label_rows(10, 40), start=10, store=store),
}


@pytest.mark.parametrize("read", READS.values(), ids=READS)
@pytest.mark.parametrize(
    ("name", "index", "value", "message"),
    [
        (
            "label_indices",
            41,
            5,
            r"labels must lie in 0:5, got 5 in chunk 2, row 20 of '.*indices'",
        ),
        ("label_indices", 40, -1, r"labels must lie in 0:5, got -1 in chunk 2, row 20 of"),
        ("label_indices", 41, 0, r"labels of a row must rise, got 0 after 1 in chunk 2, row 20 of"),
        ("label_indices", 41, 1, r"labels of a row must rise, got 1 after 1 in chunk 2, row 20 of"),
        (
            "label_indptr",
            20,
            30,
            r"never fall, and end at 100, got 30 in chunk 1, row 20 of '.*ptr'",
        ),
        ("label_indptr", 20, 101, r"end at 100, got 101 in chunk 1, row 20 of '.*label_indptr'"),
    ],
)
def test_wrong_labels_are_named_by_chunk_and_row(pairs, read, name, index, value, message):
    change(pairs, name, index, value)
    with pytest.raises(DatasetError, match=message):
        read(open_store(pairs.path))


def test_labels_that_do_not_start_at_0_are_named(pairs):
    change(pairs, "label_indptr", 0, 1)
    with pytest.raises(
        DatasetError, match=r"must start at 0, .* got 1 in chunk 0, row 0 of '.*ptr'"
    ):
        pairs.verify()


def test_check_batch_takes_and_refuses_label_rows(pairs):
    X = pairs.read_features(16, 24)
    right = pairs.read_label_rows(16, 24)
    check_batch(X, right, np.ones(8), start=16, store=pairs)
    wrong = LabelRows(right.indptr, right.indices.copy())
    wrong.indices[7] = 9
    with pytest.raises(DatasetError, match=r"got 9 in chunk 2, row 19 of '.*label_indices'"):
        check_batch(X, wrong, np.ones(8), start=16, store=pairs)
    wrong = LabelRows(right.indptr.copy(), right.indices)
    wrong.indptr[3] = 1
    with pytest.raises(DatasetError, match=r"never fall, .* got 1 in chunk 1, row 19 of"):
        check_batch(X, wrong, np.ones(8), start=16, store=pairs)


def spoil(codes):
    """The labels of 50 rows with those of row 12 replaced."""
    return [*draw_sets()[:12], codes, *draw_sets()[13:]]


def spoil_indicator(value, dtype=np.float64):
    indicator = to_indicator(draw_sets(), dtype)
    indicator[12, 3] = value
    return indicator


BAD_LABELS = {
    "code_too_large": (spoil([1, 5]), r"y must be whole numbers in 0:5, got 5 in row 12 for '.*s'"),
    "code_negative": (spoil([-1]), r"y must be whole numbers in 0:5, got -1 in row 12 for"),
    "fraction": (spoil([0.5]), r"y must be whole numbers in 0:5, got 0\.5 in row 12 for"),
    "nan": (spoil([np.nan]), r"y must be whole numbers in 0:5, got nan in row 12 for"),
    "repeated": (spoil([3, 1, 3]), r"y must have a code once in a row, got 3 twice in row 12 for"),
    "names": (spoil(["a"]), r"y must be label codes, got 'str\d+' in rows 0:50 for '.*s'"),
    "no_sequence": (spoil(3), r"y must have a sequence of codes for each row, got 3 in row 12 for"),
    "string": (spoil("13"), r"y must have a sequence of codes .*, got '13' in row 12 for"),
    "nested": ([[[1]]] * N, r"got sequences of sequences in rows 0:50 for"),
    "ragged": (spoil([1, [2]]), r"got sequences of sequences in rows 0:50 for"),
    "too_few": (draw_sets()[1:], r"as many rows as X, got 50 in X and 49 in y in rows 0:50 for"),
    "indicator_2": (spoil_indicator(2), r"in an indicator matrix, got 2\.0 in row 12, column 3"),
    "indicator_nan": (spoil_indicator(np.nan), r"got nan in row 12, column 3 for '.*s'"),
    "indicator_int": (spoil_indicator(-1, np.int8), r"got -1 in row 12, column 3 for '.*s'"),
    "indicator_names": (np.full((N, 5), "a"), r"y must be 0 or 1 in an .*, got 'str32' for '.*s'"),
    "indicator_width": (np.zeros((N, 4)), r"shape \(rows, 5\), .* an array of shape \(50, 4\)"),
    "indicator_rows": (np.zeros((49, 5)), r"got 50 in X and 49 in y in rows 0:50 for"),
    "codes": (np.zeros(N, int), r"indicator matrix of shape \(rows, 5\), .* shape \(50,\) in rows"),
    "label_rows": (to_rows(spoil([9])), r"y must be whole numbers in 0:5, got 9 in row 12 for"),
    "label_rows_repeated": (to_rows(spoil([2, 2])), r"got 2 twice in row 12 for"),
    "label_rows_falling": (
        LabelRows(np.array([0, 3, 2, *[3] * 48]), np.arange(3, dtype=np.int32)),
        r"indptr that never falls, got a fall in row 1 for",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("y", "message"), BAD_LABELS.values(), ids=BAD_LABELS)
def test_bad_labels_are_refused_by_row(tmp_path, X, y, message):
    writer = create_store(tmp_path / "s", n_features=D, class_names=NAMES, kind="multilabel")
    with pytest.raises(DatasetError, match=message):
        writer.append(X, y)


def test_rows_of_bad_labels_are_counted_from_the_start(tmp_path, X):
    writer = create_store(tmp_path / "s", n_features=D, class_names=NAMES, kind="multilabel")
    writer.append(X[:10], draw_sets()[:10])
    with pytest.raises(DatasetError, match="got 5 in row 13 for"):
        writer.append(X[:4], [[], [1, 2], [0], [0, 5]])
    with pytest.raises(DatasetError, match="got 3 twice in row 11 for"):
        writer.append(X[:4], [[], [3, 3], [0], [0, 1]])
    indicator = np.eye(4, 5, dtype=int)
    indicator[2, 1] = 7
    with pytest.raises(DatasetError, match="got 7 in row 12, column 1 for"):
        writer.append(X[:4], indicator)
    writer.append(X[:4], draw_sets()[:4])
    assert writer.finish().n_samples == 14


def test_a_multiclass_store_takes_no_label_rows(tmp_path, X):
    writer = create_store(tmp_path / "s", n_features=D, class_names=NAMES)
    with pytest.raises(
        DatasetError, match=r"y must be one code a row, got LabelRows in rows 0:50 for"
    ):
        writer.append(X, to_rows(draw_sets()))


def test_an_unknown_kind_is_refused_before_anything_is_written(tmp_path):
    with pytest.raises(ValueError, match="kind must be 'multiclass' or 'multilabel', got 'sets'"):
        create_store(tmp_path / "s", n_features=D, class_names=NAMES, kind="sets")
    assert list(tmp_path.iterdir()) == []
