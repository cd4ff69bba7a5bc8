"""Every format gives the same store."""

import bz2
import gzip
import importlib.util

import h5py
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zarr
from sklearn.datasets import dump_svmlight_file

from dtopk_storage import DatasetError
from dtopk_storage.ingest import IngestOptions, ingest
from dtopk_storage.sources.base import SourceOptions

N, D = 40, 5
NAMES = np.array(["birch", "ash", "oak"])
COLUMNS = [f"f{column}" for column in range(D)]


@pytest.fixture
def X():
    """Features of shape (N, D), float32, with few digits so that text keeps them."""
    rng = np.random.default_rng(3)
    X = rng.integers(-99, 99, (N, D)) / 8
    X[rng.random((N, D)) < 0.3] = 0
    return X.astype(np.float32)


@pytest.fixture
def names():
    """Labels of shape (N,), strings."""
    return NAMES[np.random.default_rng(4).integers(0, 3, N)]


def write_npz(folder, X, y, save=np.savez):
    save(folder / "a.npz", X=X, y=y)
    return folder / "a.npz", {}


def write_npz_column_major(folder, X, y):
    return write_npz(folder, np.asfortranarray(X), y)


def write_npz_compressed(folder, X, y):
    return write_npz(folder, X, y, np.savez_compressed)


def write_npy(folder, X, y):
    np.save(folder / "X.npy", X)
    np.save(folder / "y.npy", y)
    return folder / "X.npy", {"labels": folder / "y.npy"}


def write_npy_and_text(folder, X, y):
    np.save(folder / "X.npy", X)
    (folder / "y.txt").write_text("\n".join(y) + "\n")
    return folder / "X.npy", {"labels": folder / "y.txt"}


def write_npy_and_npz(folder, X, y):
    np.save(folder / "X.npy", X)
    np.savez(folder / "y.npz", other=y[::-1], mine=y)
    return folder / "X.npy", {"labels": folder / "y.npz", "labels_key": "mine"}


def write_hdf5(folder, X, y):
    with h5py.File(folder / "a.h5", "w") as file:
        file["deep/feats"] = X
        file["y"] = y.astype(object)
    return folder / "a.h5", {"reading": SourceOptions(features_key="deep/feats")}


def write_zarr(folder, X, y, version=3):
    group = zarr.create_group(folder / "a.zarr", zarr_format=version)
    group.create_array("X", data=X, chunks=(7, 3))
    group.create_array("y", shape=N, dtype="string", chunks=(16,))[:] = y
    return folder / "a.zarr", {}


def write_zarr_2(folder, X, y):
    zarr.create_array(folder / "X", data=X, chunks=(7, 3), zarr_format=2)
    np.save(folder / "y.npy", y)
    return folder / "X", {"labels": folder / "y.npy"}


def write_parquet(folder, X, y):
    table = pa.table({"label": y, **dict(zip(COLUMNS, X.T, strict=True))})
    pq.write_table(table, folder / "a.parquet", row_group_size=11)
    return folder / "a.parquet", {}


def write_parquet_lists(folder, X, y):
    table = pa.table({"id": np.arange(N), "vec": list(X), "species": y})
    pq.write_table(table, folder / "a.parquet", row_group_size=11)
    return folder / "a.parquet", {"labels_key": "species"}


def write_parquet_fixed_lists(folder, X, y):
    vectors = pa.FixedSizeListArray.from_arrays(pa.array(X.ravel()), D)
    table = pa.table({"vec": vectors, "label": pa.array(y).dictionary_encode()})
    pq.write_table(table, folder / "a.parquet")
    return folder / "a.parquet", {"reading": SourceOptions(features_key="vec")}


def write_parquet_folder(folder, X, y):
    (folder / "parts").mkdir()
    for start in range(0, N, 15):
        part = slice(start, start + 15)
        table = pa.table({"label": y[part], **dict(zip(COLUMNS, X[part].T, strict=True))})
        pq.write_table(table, folder / "parts" / f"part-{start:03}.parquet")
    return folder / "parts", {}


def write_csv(folder, X, y, name="a.csv", delimiter=",", opened=open):
    lines = [delimiter.join([*COLUMNS, "label"])]
    lines += [
        delimiter.join([*map(str, row.tolist()), label]) for row, label in zip(X, y, strict=True)
    ]
    with opened(folder / name, "wt") as file:
        file.write("\n".join(lines) + "\n")
    return folder / name, {}


def write_tsv_gz(folder, X, y):
    return write_csv(folder, X, y, "a.tsv.gz", "\t", gzip.open)


def write_csv_without_header(folder, X, y):
    path, _ = write_csv(folder, X, y)
    path.write_text(path.read_text().split("\n", 1)[1])
    return path, {"labels_key": "-1", "reading": SourceOptions(header=False)}


TYPED = [
    write_npz,
    write_npz_column_major,
    write_npz_compressed,
    write_npy,
    write_npy_and_text,
    write_npy_and_npz,
    write_hdf5,
    write_zarr,
    write_zarr_2,
    write_parquet,
    write_parquet_lists,
    write_parquet_fixed_lists,
    write_parquet_folder,
]
TEXT = [write_csv, write_tsv_gz, write_csv_without_header]


def check_store(store, X, names):
    np.testing.assert_array_equal(store.read_features(0, N), X)
    assert store.class_names == ("ash", "birch", "oak")
    assert store.class_name_type == "str"
    np.testing.assert_array_equal(store.classes[store.read_labels(0, N)], names)
    store.verify()


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch):
    """Read a few rows at a time, so that blocks end in all sorts of places."""
    monkeypatch.setattr("dtopk_storage.sources.arrays._BLOCK_BYTES", 9 * D * 4)
    monkeypatch.setattr("dtopk_storage.sources.csv_table._LINES", 9)
    monkeypatch.setattr("dtopk_storage.sources.svmlight._SCAN_LINES", 9)
    monkeypatch.setattr("dtopk_storage.sources.text._LINES", 9)


@pytest.mark.parametrize("write", TYPED + TEXT)
def test_source_becomes_the_same_store(tmp_path, X, names, write):
    source, options = write(tmp_path, X, names)
    store = ingest(source, tmp_path / "s", IngestOptions(chunk_bytes=8 * D * 4, **options))
    assert store.dtype == np.float32
    assert store.chunk_rows == 8
    check_store(store, X, names)


@pytest.mark.parametrize("write", TYPED + TEXT)
def test_source_is_entered_at_any_row(tmp_path, X, names, write):
    """As a resumed ingest does."""
    from dtopk_storage.sources.formats import open_source

    path, options = write(tmp_path, X, names)
    reading = options.get("reading", SourceOptions())
    source = open_source(path, reading)
    if write in (write_parquet, write_parquet_folder, *TEXT):
        column = "-1" if write is write_csv_without_header else "label"
        source.options = SourceOptions(header=reading.header, skip_columns=(column,))
    rows = source.open_features()
    for start in (0, 1, 11, 26, N - 1, N):
        blocks = [np.asarray(block) for block in rows.blocks(start)]
        np.testing.assert_array_equal(np.concatenate([X[:0], *blocks]), X[start:])


@pytest.mark.parametrize("write", TEXT)
def test_csv_without_pyarrow_becomes_the_same_store(tmp_path, X, names, write, monkeypatch):
    find_spec = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == "pyarrow" else find_spec(name)
    )
    source, options = write(tmp_path, X, names)
    check_store(ingest(source, tmp_path / "s", IngestOptions(**options)), X, names)


@pytest.mark.parametrize("zero_based", [True, False])
@pytest.mark.parametrize("suffix", [".svm", ".libsvm.bz2"])
def test_svmlight_becomes_the_same_store(tmp_path, X, suffix, zero_based):
    X[:, 0] += 1000  # an index 0 occurs, so the base can be told
    y = np.random.default_rng(5).choice([-1, 3, 12], N)
    path = tmp_path / f"a{suffix}"
    with (bz2.open if suffix.endswith("bz2") else open)(path, "wb") as file:
        dump_svmlight_file(X, y, file, zero_based=zero_based, comment="three species")
    store = ingest(path, tmp_path / "s", IngestOptions(chunk_bytes=8 * D * 4))
    np.testing.assert_array_equal(store.read_features(0, N), X)
    assert store.classes.tolist() == [-1, 3, 12]
    np.testing.assert_array_equal(store.classes[store.read_labels(0, N)], y)


def test_svmlight_takes_the_number_of_features_and_the_base(tmp_path):
    path = tmp_path / "a.svm"
    path.write_text("0 1:5\n1 2:7\n")
    for base, expected in (
        ("0", [[0, 5, 0, 0], [0, 0, 7, 0]]),
        ("1", [[5, 0, 0, 0], [0, 7, 0, 0]]),
    ):
        reading = SourceOptions(n_features=4, index_base=base)
        store = ingest(path, tmp_path / base, IngestOptions(reading=reading))
        assert store.read_features(0, 2).tolist() == expected


def test_svmlight_is_entered_at_any_row(tmp_path, X):
    from dtopk_storage.sources.formats import open_source

    dump_svmlight_file(X, np.arange(N), str(tmp_path / "a.svm"))
    rows = open_source(tmp_path / "a.svm", SourceOptions(n_features=D)).open_features()
    for start in (0, 10, N - 1):
        np.testing.assert_array_equal(np.concatenate(list(rows.blocks(start))), X[start:])


@pytest.mark.parametrize(
    ("dtype", "stored"),
    [
        ("float16", "float16"),
        ("float32", "float32"),
        ("float64", "float64"),
        ("uint8", "float32"),
        ("int64", "float32"),
        ("bool", "float32"),
        (">f8", "float64"),
    ],
)
def test_dtype_of_the_source_is_kept_where_a_store_can_have_it(tmp_path, dtype, stored):
    X = np.arange(12).reshape(6, 2).astype(dtype)
    np.savez(tmp_path / "a.npz", X=X, y=[0, 1] * 3)
    store = ingest(tmp_path / "a.npz", tmp_path / "s")
    assert store.dtype == stored
    np.testing.assert_array_equal(store.read_features(0, 6), X)


def test_features_are_divided_before_they_are_rounded(tmp_path):
    X = np.arange(16, dtype=np.uint8).reshape(8, 2)
    np.savez(tmp_path / "a.npz", X=X, y=[0, 1] * 4)
    store = ingest(tmp_path / "a.npz", tmp_path / "s", IngestOptions(divide_by=15))
    np.testing.assert_array_equal(store.read_features(0, 8), (X / 15).astype(np.float32))


def test_skipped_columns_are_no_features(tmp_path, X, names):
    source, _ = write_csv(tmp_path, X, names)
    reading = SourceOptions(skip_columns=("f1", "3"))
    store = ingest(source, tmp_path / "s", IngestOptions(reading=reading))
    np.testing.assert_array_equal(store.read_features(0, N), X[:, [0, 2, 4]])


def test_weights_come_from_a_file_or_from_the_source(tmp_path, X, names):
    weight = np.linspace(0, 2, N)
    np.savez(tmp_path / "a.npz", X=X, y=names, w=weight)
    (tmp_path / "w.txt").write_text("".join(f"{value!r}\n" for value in weight.tolist()))
    for number, options in enumerate(
        (IngestOptions(weights_key="w"), IngestOptions(weights=tmp_path / "w.txt"))
    ):
        store = ingest(tmp_path / "a.npz", tmp_path / f"s{number}", options)
        np.testing.assert_array_equal(store.read_sample_weight(0, N), weight)


def test_weight_and_split_columns_of_a_table_are_no_features(tmp_path, X, names):
    table = pa.table(
        {
            "w": np.arange(N) * 1.0,
            "part": np.where(np.arange(N) < 30, "train", "test"),
            "label": names,
            **dict(zip(COLUMNS, X.T, strict=True)),
        }
    )
    pq.write_table(table, tmp_path / "a.parquet")
    options = IngestOptions(weights_key="w", split_names_key="part")
    store = ingest(tmp_path / "a.parquet", tmp_path / "s", options)
    check_store(store, X, names)
    assert store.splits == {"train": ((0, 30),), "test": ((30, 40),)}
    np.testing.assert_array_equal(store.read_sample_weight(0, N), np.arange(N))


@pytest.mark.parametrize(
    ("package", "file", "extra"), [("h5py", "a.h5", "hdf5"), ("pyarrow", "a.parquet", "parquet")]
)
def test_missing_optional_package_is_named(tmp_path, monkeypatch, package, file, extra):
    (tmp_path / file).write_bytes(b"")
    find_spec = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == package else find_spec(name)
    )
    message = rf'{package} must be installed .* Run: pip install "dtopk\[{extra}\]"'
    with pytest.raises(DatasetError, match=message):
        ingest(tmp_path / file, tmp_path / "s")


def test_labels_of_many_classes_that_shrink_to_nothing_are_a_source(tmp_path):
    """An indicator matrix of one label a row is some 15,000 times smaller in zarr's own codec."""
    indicator = np.zeros((256, 50_000), np.int64)
    indicator[np.arange(256), np.arange(256) % 3] = 1
    group = zarr.open_group(tmp_path / "s.zarr", mode="w")
    group.create_array("y", data=indicator, chunks=(64, 50_000))
    group.create_array("X", data=np.ones((256, 2), np.float32))
    options = IngestOptions(kind="multilabel")
    assert ingest(tmp_path / "s.zarr", tmp_path / "t", options).n_classes == 50_000


def test_what_follows_the_array_of_an_npy_file_is_left_alone(tmp_path):
    with open(tmp_path / "X.npy", "wb") as file:
        np.save(file, np.ones((4, 2), np.float32))
        np.save(file, np.zeros(3))
    np.save(tmp_path / "y.npy", np.array([0, 1, 0, 1]))
    made = ingest(tmp_path / "X.npy", tmp_path / "t", IngestOptions(labels=tmp_path / "y.npy"))
    np.testing.assert_array_equal(made.read_features(0, 4), np.ones((4, 2)))
