"""What is written through the API is what plain zarr and the API read."""

import json
import pickle
import shutil
import threading

import numpy as np
import pytest
import zarr
from hypothesis import given, settings
from hypothesis import strategies as st

from dtopk_storage import DatasetError, check_finite, create_store, drop_page_cache, open_store
from dtopk_storage.manifest import checksum


def edit_manifest(store, *, sign=True, **changes):
    group = zarr.open_group(store.path, mode="r+")
    fields = {**group.attrs["dtopk"], **changes}
    group.attrs["dtopk"] = {**fields, "checksum": checksum(fields)} if sign else fields


@pytest.mark.parametrize("compression", ["none", "lz4", "zstd"])
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_store_is_read_by_plain_zarr(tmp_path, rows, dtype, compression):
    X, y = rows
    with create_store(
        tmp_path / "s",
        n_features=6,
        class_names=[3, 5, 9],
        dtype=dtype,
        chunk_rows=8,
        compression=compression,
    ) as writer:
        writer.append(X, y)
    group = zarr.open_group(tmp_path / "s", mode="r")
    assert group["features"].dtype == dtype
    assert group["features"].metadata.codecs[-1].to_dict() == {"name": "crc32c"}
    np.testing.assert_array_equal(group["features"][:], X.astype(dtype))
    np.testing.assert_array_equal(group["labels"][:], y)


def test_store_written_by_plain_zarr_is_read(tmp_path, store, rows):
    """The arrays and the manifest are all there is to the format."""
    source = zarr.open_group(store.path, mode="r")
    copy = zarr.create_group(tmp_path / "copy", attributes=source.attrs.asdict())
    for name, array in source.arrays():
        copy.create_array(
            name,
            data=array[:],
            chunks=array.chunks,
            compressors=[zarr.codecs.ZstdCodec(level=3), zarr.codecs.Crc32cCodec()],
        )
    opened = open_store(tmp_path / "copy")
    np.testing.assert_array_equal(opened.read_features(3, 41), rows[0][3:41])
    opened.verify()


def test_store_metadata_is_what_was_written(store, rows):
    X, _ = rows
    assert (store.n_samples, store.n_features, store.n_classes) == (50, 6, 3)
    assert store.dtype == np.float32
    assert store.chunk_rows == 8
    assert store.class_names == ("cat", "dog", "eel")
    assert store.classes.tolist() == ["cat", "dog", "eel"]
    assert store.splits == {"train": ((0, 30),), "val": ((30, 50),)}
    assert store.split_size("val") == 20
    train = X[:30].astype(np.float64)
    np.testing.assert_allclose(store.mean, train.mean(axis=0), rtol=1e-13)
    np.testing.assert_allclose(store.std, train.std(axis=0), rtol=1e-13)


def test_integer_class_names_come_back_as_integers(tmp_path, rows):
    with create_store(tmp_path / "s", n_features=6, class_names=[-3, 5, 9]) as writer:
        writer.append(*rows)
    store = open_store(tmp_path / "s")
    assert store.class_names == ("-3", "5", "9")
    assert store.classes.dtype == np.int64
    assert store.classes.tolist() == [-3, 5, 9]


@given(bounds=st.tuples(st.integers(0, 50), st.integers(0, 50)).map(sorted))
@settings(max_examples=60, deadline=None)
def test_any_range_is_read_as_it_was_written(shared_store, bounds):
    store, X, y = shared_store
    start, stop = bounds
    values = store.read_features(start, stop)
    assert values.flags.c_contiguous
    np.testing.assert_array_equal(values, X[start:stop])
    np.testing.assert_array_equal(store.read_labels(start, stop), y[start:stop])


@pytest.fixture(scope="module")
def shared_store(tmp_path_factory):
    rng = np.random.default_rng(1)
    X, y = rng.standard_normal((50, 6)), rng.integers(0, 3, 50)
    path = tmp_path_factory.mktemp("shared") / "s"
    with create_store(
        path, n_features=6, class_names=["a", "b", "c"], dtype="float64", chunk_rows=7
    ) as writer:
        for start in range(0, 50, 11):
            writer.append(X[start : start + 11], y[start : start + 11])
    return open_store(path), X, y


@pytest.mark.parametrize("batch_rows", [None, 1, 3, 8, 100])
@pytest.mark.parametrize("split", ["train", "val", None])
def test_batches_cover_a_split_once_and_stay_in_chunks(store, rows, split, batch_rows):
    X, y = rows
    batches = list(store.iter_batches(split, batch_rows))
    covered = [row for batch in batches for row in range(batch.start, batch.start + len(batch.X))]
    expected = {"train": range(30), "val": range(30, 50), None: range(50)}[split]
    assert covered == list(expected)
    for batch in batches:
        assert len(batch.X) <= (batch_rows or 8)
        assert batch.start // 8 == (batch.start + len(batch.X) - 1) // 8
        np.testing.assert_array_equal(batch.X, X[batch.start : batch.start + len(batch.X)])
        np.testing.assert_array_equal(batch.y, y[batch.start : batch.start + len(batch.X)])
        np.testing.assert_array_equal(batch.weight, np.ones(len(batch.X)))


def test_sample_weights_are_read_back(tmp_path, rows):
    X, y = rows
    weight = np.linspace(0, 2, 50)
    with create_store(
        tmp_path / "s", n_features=6, class_names=["a", "b", "c"], sample_weight=True
    ) as writer:
        writer.append(X, y, sample_weight=weight)
    store = open_store(tmp_path / "s")
    assert store.has_sample_weight
    np.testing.assert_array_equal(store.read_sample_weight(5, 45), weight[5:45])


def test_store_pickles_and_reads_afterwards(store, rows):
    copy = pickle.loads(pickle.dumps(store))
    np.testing.assert_array_equal(copy.read_features(0, 50), rows[0])


def test_store_reads_from_several_threads(store, rows):
    X, _ = rows
    wrong = []

    def read():
        for _ in range(20):
            for start in range(0, 50, 9):
                if not np.array_equal(store.read_features(start, start + 5), X[start : start + 5]):
                    wrong.append(start)

    threads = [threading.Thread(target=read) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_dropping_the_page_cache_keeps_the_bytes(store, rows):
    assert drop_page_cache(store.path) > rows[0].nbytes
    np.testing.assert_array_equal(store.read_features(0, 50), rows[0])


def test_unknown_split_names_the_known_ones_nearest_first(store):
    with pytest.raises(DatasetError, match=r"split 'vall' is unknown in .*: 'val', 'train'\."):
        store.split_ranges("vall")


def test_rows_outside_the_store_are_refused(store):
    with pytest.raises(ValueError, match=r"rows must lie in 0:50, got 40:51 of"):
        store.read_features(40, 51)


def test_opening_a_missing_store_says_so(tmp_path):
    with pytest.raises(DatasetError, match=r"store must be an existing folder, got '.*nowhere'"):
        open_store(tmp_path / "nowhere")


def test_opening_a_file_says_what_to_do(tmp_path):
    (tmp_path / "a.npz").write_text("hello")
    message = r"must be a folder, got '.*a\.npz', a file\. .* `dtopk ingest`\."
    with pytest.raises(DatasetError, match=message):
        open_store(tmp_path / "a.npz")


@pytest.mark.parametrize("name", ["s.zarr", "s.zarr.partial"])
def test_opening_an_unfinished_store_says_how_to_finish_it(tmp_path, name):
    (tmp_path / "s.zarr.partial").mkdir()
    message = rf"'.*{name}' must be whole, got an unfinished ingest in '.*s\.zarr\.partial'\. Run"
    with pytest.raises(DatasetError, match=message):
        open_store(tmp_path / name)


def test_opening_a_url_says_so():
    with pytest.raises(
        DatasetError, match=r"store must be a path or an address .*, got 'sftp://b/d'"
    ):
        open_store("sftp://b/d")


def test_opening_a_folder_that_is_no_zarr_group_says_so(tmp_path):
    (tmp_path / "file").write_text("hello")
    with pytest.raises(DatasetError, match=r"store '.*' must have a zarr\.json, got a folder with"):
        open_store(tmp_path)


def test_opening_a_group_without_manifest_says_so(tmp_path):
    zarr.create_group(tmp_path / "g")
    with pytest.raises(DatasetError, match="must have a manifest in its attribute 'dtopk'"):
        open_store(tmp_path / "g")


def test_opening_cut_off_metadata_says_so(store, tmp_path):
    path = tmp_path / "store" / "zarr.json"
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(DatasetError, match="must be a zarr v3 group, got"):
        open_store(store.path)


def test_newer_format_version_is_refused(store):
    edit_manifest(store, format_version=2)
    with pytest.raises(DatasetError, match=r"must be at most 1, got 2. A newer dtopk wrote it"):
        open_store(store.path)


def test_older_format_version_is_refused(store):
    edit_manifest(store, format_version=0)
    with pytest.raises(DatasetError, match=r"format_version of .* must be 1, got 0"):
        open_store(store.path)


def test_changed_manifest_is_refused(store):
    edit_manifest(store, sign=False, n_samples=49)
    with pytest.raises(DatasetError, match="it was changed after it was written"):
        open_store(store.path)


def test_store_of_an_unknown_kind_is_refused(store):
    edit_manifest(store, kind="ranking")
    message = r"kind of .* must be 'multiclass' or 'multilabel', got 'ranking': this version"
    with pytest.raises(DatasetError, match=message):
        open_store(store.path)


def test_manifest_that_disagrees_with_an_array_is_refused(store):
    edit_manifest(store, n_samples=51)
    with pytest.raises(DatasetError, match=r"features' must be float32 of shape \(51, 6\)"):
        open_store(store.path)


def test_missing_array_is_refused(store, tmp_path):
    shutil.rmtree(tmp_path / "store" / "labels")
    with pytest.raises(DatasetError, match=r"labels' must be a zarr v3 array, got"):
        open_store(store.path)


def test_array_of_another_layout_is_refused(store, tmp_path):
    """Sharded, column-chunked or unchecked arrays are zarr, but not this format."""
    path = tmp_path / "store" / "features" / "zarr.json"
    metadata = json.loads(path.read_text())
    metadata["codecs"] = metadata["codecs"][:1]
    path.write_text(json.dumps(metadata))
    with pytest.raises(DatasetError, match=r"then crc32c; got .* codecs \['bytes'\]"):
        open_store(store.path)


READS = {
    "features": lambda store: store.read_features(16, 24),
    "features_across_chunks": lambda store: store.read_features(3, 50),
    "batches": lambda store: list(store.iter_batches("train")),
    "verify": lambda store: store.verify(),
}


@pytest.mark.parametrize("read", READS.values(), ids=READS)
@pytest.mark.parametrize("compression", ["none", "lz4", "zstd"])
def test_flipped_byte_is_named_by_every_read(tmp_path, rows, flip_byte, read, compression):
    X, y = rows
    with create_store(
        tmp_path / "s",
        n_features=6,
        class_names=["a", "b", "c"],
        chunk_rows=8,
        compression=compression,
    ) as writer:
        writer.append(X, y)
    flip_byte(tmp_path / "s" / "features" / "c" / "2" / "0")
    message = r"crc32c of chunk 2 \(rows 16:24\) of '.*features' must be .* Ingest it again\."
    with pytest.raises(DatasetError, match=message):
        read(open_store(tmp_path / "s"))


def test_flipped_byte_in_labels_is_named(store, tmp_path, flip_byte):
    flip_byte(tmp_path / "store" / "labels" / "c" / "0")
    with pytest.raises(DatasetError, match=r"crc32c of chunk 0 \(rows 0:50\) of '.*labels'"):
        store.read_labels(0, 10)


def test_missing_chunk_is_named(store, tmp_path):
    (tmp_path / "store" / "features" / "c" / "6" / "0").unlink()
    with pytest.raises(DatasetError, match=r"chunk 6 \(rows 48:50\) of .* is missing. Ingest"):
        store.read_features(48, 50)


@pytest.mark.parametrize("size", [0, 3, 100])
@pytest.mark.parametrize("compression", ["none", "zstd"])
def test_truncated_chunk_is_named(tmp_path, rows, size, compression):
    with create_store(
        tmp_path / "s", n_features=6, class_names=list("abc"), compression=compression
    ) as writer:
        writer.append(*rows)
    path = tmp_path / "s" / "features" / "c" / "0" / "0"
    path.write_bytes(path.read_bytes()[:size])
    with pytest.raises(DatasetError, match=r"chunk 0 \(rows 0:50\) of .* Ingest it again\."):
        open_store(tmp_path / "s").read_features(0, 1)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_check_finite_names_chunk_row_and_column(store, dtype, value):
    X = np.zeros((8, 6), dtype)
    check_finite(X, 16, store.path, chunk_rows=8)
    X[5, 2] = value
    with pytest.raises(DatasetError, match=rf"got {value} in chunk 2, row 21, column 2 of"):
        check_finite(X, 16, store.path, chunk_rows=8)


def test_check_finite_takes_the_largest_numbers(store):
    for dtype in ("float16", "float32", "float64"):
        X = np.full((3, 6), -np.finfo(dtype).max, dtype)
        check_finite(X, 0, store.path, chunk_rows=8)
