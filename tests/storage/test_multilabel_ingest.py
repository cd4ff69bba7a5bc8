"""Several labels a row come from every format, and make the same store."""

import gzip
import importlib.util
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import h5py
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zarr

from dtopk_storage import DatasetError, create_store, open_store
from dtopk_storage.chunked import ChunkedArray
from dtopk_storage.ingest import IngestOptions, ingest
from dtopk_storage.ingest.label_reading import read_labels
from dtopk_storage.sources.base import ListBlock, SourceOptions, Vector

N, D = 40, 5
NAMES = ["birch", "ash", "oak", "elm"]
COLUMNS = [f"f{column}" for column in range(D)]


@pytest.fixture
def X():
    """Features of shape (N, D), float32, with few digits so that text keeps them."""
    X = np.random.default_rng(3).integers(-99, 99, (N, D)) / 8
    X[:, 0] += 100
    return X.astype(np.float32)


@pytest.fixture
def sets():
    """Columns of `NAMES` for each row: any number of them, in any order."""
    rng = np.random.default_rng(4)
    return [rng.permutation(4)[: rng.integers(0, 4)].tolist() for _ in range(N)]


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch):
    """Read a few rows at a time, so that blocks end in all sorts of places."""
    monkeypatch.setattr("dtopk_storage.sources.arrays._BLOCK_BYTES", 9 * D * 4)
    monkeypatch.setattr("dtopk_storage.sources.csv_table._LINES", 9)
    monkeypatch.setattr("dtopk_storage.sources.svmlight._SCAN_LINES", 9)
    monkeypatch.setattr("dtopk_storage.sources.text._LINES", 9)
    monkeypatch.setattr("dtopk_storage.publishing._LABEL_ROWS", 16)


def to_names(sets):
    return [[NAMES[code] for code in codes] for codes in sets]


def to_indicator(sets, dtype=np.uint8):
    indicator = np.zeros((N, 4), dtype)
    for row, codes in enumerate(sets):
        indicator[row, codes] = 1
    return indicator


def write_npz_bool(folder, X, sets):
    np.savez(folder / "a.npz", X=X, y=to_indicator(sets, bool), class_names=NAMES)
    return folder / "a.npz", {"class_names_key": "class_names"}


def write_npz_column_major(folder, X, sets):
    y = np.asfortranarray(to_indicator(sets, np.float64))
    np.savez_compressed(folder / "a.npz", X=X, y=y, names=NAMES)
    return folder / "a.npz", {"class_names_key": "names"}


def write_npz_text(folder, X, sets):
    np.savez(folder / "a.npz", X=X, y=["|".join(row) for row in to_names(sets)])
    return folder / "a.npz", {"label_separator": "|"}


def write_npy_and_names(folder, X, sets, order="C"):
    np.save(folder / "X.npy", X)
    np.save(folder / "y.npy", np.asarray(to_indicator(sets, np.float16), order=order))
    (folder / "names.txt").write_text("\n".join(NAMES) + "\n")
    return folder / "X.npy", {"labels": folder / "y.npy", "class_names": folder / "names.txt"}


def write_npy_column_major(folder, X, sets):
    return write_npy_and_names(folder, X, sets, "F")


def write_npy_and_text(folder, X, sets):
    np.save(folder / "X.npy", X)
    (folder / "y.txt").write_text("".join("; ".join(row) + "\n" for row in to_names(sets)))
    return folder / "X.npy", {"labels": folder / "y.txt", "label_separator": ";"}


def write_hdf5(folder, X, sets):
    with h5py.File(folder / "a.h5", "w") as file:
        file["X"] = X
        file.create_dataset("y", data=to_indicator(sets, np.int64), chunks=(6, 3))
        file["names"] = np.array(NAMES, object)
    return folder / "a.h5", {"class_names_key": "names"}


def write_hdf5_text(folder, X, sets):
    with h5py.File(folder / "a.h5", "w") as file:
        file["X"], file["y"] = X, np.array(["+".join(row) for row in to_names(sets)], object)
    return folder / "a.h5", {"label_separator": "+"}


def write_zarr(folder, X, sets, version=3):
    group = zarr.create_group(folder / "a.zarr", zarr_format=version)
    group.create_array("X", data=X, chunks=(7, 3))
    group.create_array("y", data=to_indicator(sets, np.float32), chunks=(11, 3))
    np.save(folder / "names.npy", NAMES)
    return folder / "a.zarr", {"class_names": folder / "names.npy"}


def write_zarr_2(folder, X, sets):
    return write_zarr(folder, X, sets, 2)


def write_parquet(folder, X, sets):
    table = pa.table({"tags": to_names(sets), **dict(zip(COLUMNS, X.T, strict=True))})
    pq.write_table(table, folder / "a.parquet", row_group_size=11)
    return folder / "a.parquet", {"labels_key": "tags"}


def write_parquet_lists(folder, X, sets):
    tags = pa.array(to_names(sets), pa.large_list(pa.dictionary(pa.int32(), pa.string())))
    pq.write_table(pa.table({"label": tags, "vec": list(X)}), folder / "a.parquet")
    return folder / "a.parquet", {}


def write_parquet_text(folder, X, sets):
    labels = [", ".join(row) for row in to_names(sets)]
    pq.write_table(pa.table({"label": labels, "vec": list(X)}), folder / "a.parquet")
    return folder / "a.parquet", {"label_separator": ","}


def write_parquet_folder(folder, X, sets):
    (folder / "parts").mkdir()
    for start in range(0, N, 15):
        part = slice(start, start + 15)
        labels = pa.array(to_names(sets[part]), pa.list_(pa.string()))
        table = pa.table({"label": labels, **dict(zip(COLUMNS, X[part].T, strict=True))})
        pq.write_table(table, folder / "parts" / f"part-{start:03}.parquet")
    return folder / "parts", {}


def write_csv(folder, X, sets, name="a.csv", delimiter=",", separator=";", opened=open):
    lines = [delimiter.join([*COLUMNS, "label"])]
    for row, labels in zip(X.tolist(), to_names(sets), strict=True):
        lines.append(delimiter.join([*map(str, row), separator.join(labels)]))
    with opened(folder / name, "wt") as file:
        file.write("\n".join(lines) + "\n")
    return folder / name, {"label_separator": separator}


def write_csv_quoted(folder, X, sets):
    lines = [",".join(["label", *COLUMNS])]
    for row, labels in zip(X.tolist(), to_names(sets), strict=True):
        lines.append(",".join([f'"{", ".join(labels)}"', *map(str, row)]))
    (folder / "a.csv").write_text("\n".join(lines) + "\n")
    return folder / "a.csv", {"label_separator": ","}


def write_tsv_gz(folder, X, sets):
    return write_csv(folder, X, sets, "a.tsv.gz", "\t", " ", gzip.open)


def write_store(folder, X, sets):
    with create_store(
        folder / "origin", n_features=D, class_names=NAMES, kind="multilabel", chunk_rows=6
    ) as writer:
        writer.append(X, sets)
    return folder / "origin", {}


WRITERS = [
    write_npz_bool,
    write_npz_column_major,
    write_npz_text,
    write_npy_and_names,
    write_npy_column_major,
    write_npy_and_text,
    write_hdf5,
    write_hdf5_text,
    write_zarr,
    write_zarr_2,
    write_parquet,
    write_parquet_lists,
    write_parquet_text,
    write_parquet_folder,
    write_csv,
    write_csv_quoted,
    write_tsv_gz,
    write_store,
]
TABLES = [write_csv, write_csv_quoted, write_tsv_gz]


def read_names(path):
    """Give the names of each row's labels, read by plain zarr."""
    group = zarr.open_group(path, mode="r")
    metadata = json.loads((Path(path) / "zarr.json").read_text())
    names = metadata["attributes"]["dtopk"]["class_names"]
    indptr, indices = group["label_indptr"][:], group["label_indices"][:]
    return [
        [names[code] for code in indices[indptr[row] : indptr[row + 1]]]
        for row in range(len(indptr) - 1)
    ]


def check_store(store, X, sets):
    assert store.kind == "multilabel"
    assert store.class_names == ("ash", "birch", "elm", "oak")
    assert store.class_name_type == "str"
    assert read_names(store.path) == [sorted(row) for row in to_names(sets)]
    np.testing.assert_array_equal(zarr.open(store.path)["features"][:], X)
    store.verify()


@pytest.mark.parametrize("write", WRITERS)
def test_every_source_becomes_the_same_multilabel_store(tmp_path, X, sets, write):
    source, options = write(tmp_path, X, sets)
    store = ingest(source, tmp_path / "s", IngestOptions(chunk_bytes=8 * D * 4, **options))
    assert store.chunk_rows == 8
    check_store(store, X, sets)


@pytest.mark.parametrize("write", TABLES)
def test_csv_without_pyarrow_becomes_the_same_store(tmp_path, X, sets, write, monkeypatch):
    find_spec = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == "pyarrow" else find_spec(name)
    )
    source, options = write(tmp_path, X, sets)
    check_store(ingest(source, tmp_path / "s", IngestOptions(**options)), X, sets)


def write_svmlight(folder, X, sets, beginning=" "):
    """Codes 2, 12, 22 and 32, so that order by value is not order by character."""
    lines = []
    for row, codes in zip(X.tolist(), sets, strict=True):
        labels = ",".join(str(10 * code + 2) for code in codes)
        values = " ".join(f"{column}:{value}" for column, value in enumerate(row, 1))
        lines.append(f"{labels} {values}" if labels else f"{beginning}{values}")
    (folder / "a.svm").write_text("# a comment\n" + "\n\n".join(lines) + "\n")
    return folder / "a.svm"


@pytest.mark.parametrize("beginning", [" ", "", "\t"])
def test_svmlight_becomes_a_multilabel_store(tmp_path, X, sets, beginning):
    path = write_svmlight(tmp_path, X, sets, beginning)
    store = ingest(path, tmp_path / "s", IngestOptions(chunk_bytes=8 * D * 4))
    assert store.classes.tolist() == [2, 12, 22, 32]
    names = [[str(10 * code + 2) for code in sorted(codes)] for codes in sets]
    assert read_names(tmp_path / "s") == names
    np.testing.assert_array_equal(store.read_features(0, N), X)
    store.verify()


def test_svmlight_reads_what_scikit_learn_wrote(tmp_path, X, sets):
    from sklearn.datasets import dump_svmlight_file

    dump_svmlight_file(X, to_indicator(sets), str(tmp_path / "a.svm"), multilabel=True)
    store = ingest(tmp_path / "a.svm", tmp_path / "s")
    assert read_names(tmp_path / "s") == [[str(code) for code in sorted(row)] for row in sets]
    np.testing.assert_array_equal(store.read_features(0, N), X)


SINGLE_SVMLIGHT = "3 1:2\n1 1:3\n3 2:1\n"


@pytest.mark.parametrize("kind", ["auto", "multiclass"])
def test_svmlight_of_single_labels_is_multiclass(tmp_path, kind):
    (tmp_path / "a.svm").write_text(SINGLE_SVMLIGHT)
    store = ingest(tmp_path / "a.svm", tmp_path / "s", IngestOptions(kind=kind))
    assert store.kind == "multiclass"
    assert store.classes[store.read_labels(0, 3)].tolist() == [3, 1, 3]


def test_single_labels_are_multilabel_when_asked_for(tmp_path):
    (tmp_path / "a.svm").write_text(SINGLE_SVMLIGHT)
    np.savez(tmp_path / "a.npz", X=np.eye(3), y=[3, 1, 3])
    (tmp_path / "y.txt").write_text("3\n\n1\n")
    options = IngestOptions(kind="multilabel")
    ingest(tmp_path / "a.svm", tmp_path / "s", options)
    ingest(tmp_path / "a.npz", tmp_path / "t", options)
    for name in ("s", "t"):
        assert read_names(tmp_path / name) == [["3"], ["1"], ["3"]]
    options = IngestOptions(kind="multilabel", labels=tmp_path / "y.txt")
    assert ingest(tmp_path / "a.npz", tmp_path / "u", options).classes.tolist() == [1, 3]
    assert read_names(tmp_path / "u") == [["3"], [], ["1"]]


def test_lists_and_matrices_of_one_label_are_multiclass_when_asked_for(tmp_path):
    np.savez(tmp_path / "a.npz", X=np.eye(3), y=np.eye(4)[[2, 0, 2]])
    pq.write_table(pa.table({"f": [1.0, 2, 3], "label": [["b"], ["a"], ["b"]]}), tmp_path / "a.pq")
    options = IngestOptions(kind="multiclass")
    store = ingest(tmp_path / "a.npz", tmp_path / "s", options)
    assert store.class_names == ("0", "1", "2", "3")
    assert store.read_labels(0, 3).tolist() == [2, 0, 2]
    assert ingest(tmp_path / "a.pq", tmp_path / "t", options).read_labels(0, 3).tolist() == [
        1,
        0,
        1,
    ]
    store = ingest(tmp_path / "a.pq", tmp_path / "u")
    assert store.kind == "multilabel"
    assert ingest(store.path, tmp_path / "v", options).read_labels(0, 3).tolist() == [1, 0, 1]


def test_columns_are_called_by_their_numbers_unless_named(tmp_path, X, sets):
    np.savez(tmp_path / "a.npz", X=X, y=to_indicator(sets))
    store = ingest(tmp_path / "a.npz", tmp_path / "s")
    assert store.classes.tolist() == [0, 1, 2, 3]
    assert read_names(tmp_path / "s") == [[str(code) for code in sorted(row)] for row in sets]


def test_names_of_columns_that_are_integers_are_sorted_by_value(tmp_path):
    np.savez(tmp_path / "a.npz", X=np.eye(2), y=[[1, 1, 0], [0, 1, 1]])
    (tmp_path / "names.txt").write_text("20\n7\n100\n")
    options = IngestOptions(class_names=tmp_path / "names.txt")
    assert ingest(tmp_path / "a.npz", tmp_path / "s", options).classes.tolist() == [7, 20, 100]
    assert read_names(tmp_path / "s") == [["7", "20"], ["7", "100"]]


def test_a_column_without_rows_is_a_class(tmp_path):
    np.savez(tmp_path / "a.npz", X=np.eye(3), y=np.zeros((3, 4), bool))
    store = ingest(tmp_path / "a.npz", tmp_path / "s")
    assert store.n_classes == 4
    assert read_names(tmp_path / "s") == [[], [], []]
    store.verify()


def test_text_of_integers_becomes_integers(tmp_path):
    (tmp_path / "a.csv").write_text("f,label\n1,10;9\n2,\n3,9; -1 \n")
    store = ingest(tmp_path / "a.csv", tmp_path / "s", IngestOptions(label_separator=";"))
    assert store.classes.tolist() == [-1, 9, 10]
    assert read_names(tmp_path / "s") == [["9", "10"], [], ["-1", "9"]]


@pytest.mark.parametrize("has_pyarrow", [True, False])
def test_a_row_without_labels_in_a_file_of_labels_alone(tmp_path, has_pyarrow, monkeypatch):
    """An empty line is no row of a CSV file; quotes make it one."""
    if not has_pyarrow:
        monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    np.save(tmp_path / "X.npy", np.eye(3))
    (tmp_path / "y.csv").write_text('tags\na;b\n""\nb\n')
    options = {"labels": tmp_path / "y.csv", "labels_key": "tags", "label_separator": ";"}
    ingest(tmp_path / "X.npy", tmp_path / "s", IngestOptions(**options))
    assert read_names(tmp_path / "s") == [["a", "b"], [], ["b"]]
    (tmp_path / "y.csv").write_text("tags\na;b\n\nb\n")
    with pytest.raises(DatasetError, match=r"as many rows, got 3 in .* and 2 in column"):
        ingest(tmp_path / "X.npy", tmp_path / "t", IngestOptions(**options))


def test_classes_without_rows_stay_when_a_store_is_the_source(tmp_path, X, sets):
    with create_store(
        tmp_path / "origin", n_features=D, class_names=["yew", *NAMES], kind="multilabel",
        sample_weight=True,
    ) as writer:  # fmt: skip
        y = [[code + 1 for code in codes] for codes in sets]
        writer.append(X[:30], y[:30], sample_weight=np.arange(30))
        writer.append(X[30:], y[30:], split="val", sample_weight=np.arange(30, N))
    store = ingest(tmp_path / "origin", tmp_path / "s", IngestOptions(shuffle=True))
    assert store.class_names == ("ash", "birch", "elm", "oak", "yew")
    assert store.splits == {"train": ((0, 30),), "val": ((30, N),)}
    order = store.read_row_id(0, N)
    assert store.read_sample_weight(0, N).tolist() == order.tolist()
    expected = [sorted(row) for row in to_names(sets)]
    assert read_names(tmp_path / "s") == [expected[row] for row in order]


WAYS = {
    "in_order": {},
    "by_row": {"split_rows": (("val", 0, 20), ("test", 33, 37))},
    "drawn": {"splits": (("val", 0.2), ("test", 0.3))},
    "shuffled": {"splits": (("val", 0.2),), "shuffle": True},
}
CHUNK_BYTES = 7 * D * 4  # 6 chunks of features, the last of 5 rows


@pytest.fixture
def weighted(tmp_path, X, sets):
    np.savez(tmp_path / "a.npz", X=X, y=to_indicator(sets), w=np.linspace(0, 1, N))
    return tmp_path / "a.npz"


def options(way):
    return IngestOptions(chunk_bytes=CHUNK_BYTES, weights_key="w", **WAYS[way])


@pytest.mark.parametrize("way", WAYS)
def test_labels_keep_to_their_rows(tmp_path, X, sets, weighted, way):
    store = ingest(weighted, tmp_path / "s", options(way))
    order = store.read_row_id(0, N)
    assert (order.tolist() != list(range(N))) == (way in ("drawn", "shuffled"))
    np.testing.assert_array_equal(store.read_features(0, N), X[order])
    np.testing.assert_array_equal(store.read_sample_weight(0, N), np.linspace(0, 1, N)[order])
    names = [[str(code) for code in sorted(sets[row])] for row in order]
    assert read_names(tmp_path / "s") == names
    store.verify()


def contents(folder):
    files = (path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


@pytest.mark.parametrize("way", WAYS)
def test_multilabel_ingest_broken_at_any_chunk_ends_the_same(tmp_path, weighted, way):
    """The chunks 6 and on are of the labels and of what comes after them."""
    ingest(weighted, tmp_path / "undisturbed", options(way))
    expected = contents(tmp_path / "undisturbed")
    path = tmp_path / "s"
    write_chunk = ChunkedArray.write_chunk
    for stop in (0, 3, 6, 7, 9, 11):
        calls = iter(range(99))

        def fragile(self, *arguments, calls=calls, stop=stop, **keywords):
            if next(calls) == stop:
                raise KeyboardInterrupt
            write_chunk(self, *arguments, **keywords)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(ChunkedArray, "write_chunk", fragile)
            with pytest.raises(KeyboardInterrupt):
                ingest(weighted, path, options(way))
        assert not path.exists()
        ingest(weighted, path, options(way))
        assert contents(path) == expected
        shutil.rmtree(path)


KILLED = """
import os, sys
from pathlib import Path
import dtopk_storage.publishing
from dtopk_storage.ingest import IngestOptions, ingest

dtopk_storage.publishing._LABEL_ROWS = 16
replace = Path.replace
names = []

def die(self, target):
    names.append(target.name)
    if names.count(sys.argv[3]) == int(sys.argv[4]):
        os._exit(9)
    return replace(self, target)

Path.replace = die
ingest(sys.argv[1], sys.argv[2], IngestOptions(chunk_bytes=140, weights_key="w"))
"""


@pytest.mark.parametrize(
    ("name", "count"),
    [("label_indptr.npy", 1), ("label_indices.npy", 1), ("plan.json", 1), ("0", 4),
     ("zarr.json", 2), ("zarr.json", 3), ("zarr.json", 7)],
)  # fmt: skip
def test_killed_multilabel_ingest_ends_the_same(tmp_path, weighted, name, count):
    """Killed before a rename: of the plan's arrays, of a chunk, or of zarr's metadata."""
    ingest(weighted, tmp_path / "undisturbed", options("in_order"))
    command = [sys.executable, "-c", KILLED, str(weighted), str(tmp_path / "s"), name, str(count)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    assert subprocess.run(command, env=environment, check=False).returncode == 9
    assert not (tmp_path / "s").exists()
    ingest(weighted, tmp_path / "s", options("in_order"))
    assert contents(tmp_path / "s") == contents(tmp_path / "undisturbed")


def test_another_separator_does_not_go_on_with_it(tmp_path, X, sets, monkeypatch):
    source, chosen = write_csv(tmp_path, X, sets)
    with monkeypatch.context() as patch:
        patch.setattr("dtopk_storage.ingest.making.finish_store", None)
        with pytest.raises(TypeError):
            ingest(source, tmp_path / "s", IngestOptions(**chosen))
    message = r"begun by another command: label_separator was ';', got '\|'\. Run that command"
    with pytest.raises(DatasetError, match=message):
        ingest(source, tmp_path / "s", IngestOptions(label_separator="|"))
    check_store(ingest(source, tmp_path / "s", IngestOptions(**chosen)), X, sets)


def test_changed_class_names_do_not_go_on_with_it(tmp_path, X, sets, monkeypatch):
    source, chosen = write_npy_and_names(tmp_path, X, sets)
    with monkeypatch.context() as patch:
        patch.setattr("dtopk_storage.ingest.making.finish_store", None)
        with pytest.raises(TypeError):
            ingest(source, tmp_path / "s", IngestOptions(**chosen))
    (tmp_path / "names.txt").write_text("yew\nash\noak\nelm\n")
    with pytest.raises(DatasetError, match=r"names\.txt' must be as it was when"):
        ingest(source, tmp_path / "s", IngestOptions(**chosen))


def refuse(source, message, **options):
    """Ingest, expect the message, and see that nothing is left but what was there."""
    folder = source.parent
    before = sorted(folder.iterdir())
    with pytest.raises(DatasetError, match=message):
        ingest(source, folder / "store", IngestOptions(**options))
    assert sorted(folder.iterdir()) == before


def save(folder, y, **others):
    np.savez(folder / "a.npz", X=np.ones((len(y), 3)), y=y, **others)
    return folder / "a.npz"


def binary(value, dtype=np.float64):
    y = np.zeros((20, 3), dtype)
    y[13, 2] = value
    return y


BAD_MATRICES = {
    "two": (binary(2, np.int8), r"in an indicator matrix, got 2 in row 13, column 2 of 'y' of"),
    "half": (binary(0.5), r"labels must be 0 or 1 .*, got 0\.5 in row 13, column 2 of 'y' of"),
    "nan": (binary(np.nan), r"got nan in row 13, column 2 of 'y' of"),
    "minus": (binary(-1), r"got -1\.0 in row 13, column 2 of 'y' of"),
    "strings": (np.full((6, 2), "a"), r"labels must be 0 or 1 in an .*, got 'str32' of 'y' of"),
    "one_column": (np.ones((6, 1), int), r"with 2 classes or more, got 1 column in 'y' of '.*npz'"),
    "no_columns": (np.ones((6, 0), int), r"with 2 classes or more, got 0 columns in 'y' of"),
    "three_dimensions": (np.ones((6, 2, 2)), r"n_samples, n_classes\), got 3 dimensions in 'y'"),
}  # fmt: skip


@pytest.mark.parametrize(("y", "message"), BAD_MATRICES.values(), ids=BAD_MATRICES)
def test_bad_indicator_matrices_are_refused(tmp_path, y, message):
    refuse(save(tmp_path, y), message)


def test_a_matrix_of_another_length_is_refused(tmp_path):
    np.savez(tmp_path / "a.npz", X=np.ones((5, 3)), y=np.eye(6))
    message = r"features and labels must have as many rows, got 5 in 'X' of .* and 6 in 'y' of"
    refuse(tmp_path / "a.npz", message)


BAD_NAMES = {
    "too_few": (
        ["a", "b"],
        r"as many as the columns of the labels, got 2 in 'n' of .* and 3 in 'y'",
    ),
    "twice": (["a", "b", "a"], r"class names of 'n' of '.*a\.npz' must differ, got 'a' twice"),
    "empty": (["a", "", "b"], r"class names must not be missing, got '' in row 1 of 'n' of"),
    "fractions": (
        [1.5, 2, 3],
        r"class names must be whole numbers, .* got 1\.5 in row 0 of 'n' of",
    ),
    "matrix": (np.eye(3), r"'n' of '.*a\.npz' must hold one value a row, got several"),
}


@pytest.mark.parametrize(("names", "message"), BAD_NAMES.values(), ids=BAD_NAMES)
def test_bad_class_names_are_refused(tmp_path, names, message):
    refuse(save(tmp_path, np.eye(3), n=names), message, class_names_key="n")


def test_class_names_go_with_an_indicator_matrix_alone(tmp_path):
    source = save(tmp_path, [0, 1, 0], n=["a", "b"])
    message = (
        r"indicator matrix and no other labels, got those of 'n' of .* with 'y' of .* class_names"
    )
    refuse(source, message, class_names_key="n")


def test_class_names_of_an_npy_file_are_in_another_file(tmp_path):
    np.save(tmp_path / "X.npy", np.eye(3))
    np.save(tmp_path / "y.npy", np.eye(3))
    message = r"class names must come from another file, .* Name that file with class_names\."
    refuse(tmp_path / "X.npy", message, labels=tmp_path / "y.npy", class_names_key="n")
    message = (
        r"file of class names must be an existing file or folder, got '.*z\.txt'\. Correct class"
    )
    refuse(tmp_path / "X.npy", message, labels=tmp_path / "y.npy", class_names=tmp_path / "z.txt")


@pytest.mark.parametrize(
    ("y", "found"),
    [
        ([3, 1, 3], "int64 of 1 dimension in"),
        (np.eye(3), "float64 of 2 dimensions in"),
    ],
)
def test_a_separator_goes_with_text_alone(tmp_path, y, found):
    message = (
        rf"a separator of labels must come with text, got ';' with {found} 'y' of .* label_sep"
    )
    refuse(save(tmp_path, y), message, label_separator=";")


def test_a_separator_goes_with_no_lists(tmp_path):
    pq.write_table(pa.table({"f": [1.0, 2], "label": [["a"], ["b"]]}), tmp_path / "a.parquet")
    message = r"must come with text, got ';' with lists in column 'label' of"
    refuse(tmp_path / "a.parquet", message, label_separator=";")


BAD_TEXT = {
    "repeated": ("1,a;b\n2,c; b;a;b\n", r"of a row must differ, got 'b' twice in row 1 of column"),
    "empty_between": ("1,a;b\n2,a;;b\n", r"labels must not be missing, got '' in row 1 of column"),
    "empty_at_the_end": ("1,a;b\n2,a;\n", r"labels must not be missing, got '' in row 1 of column"),
    "one_class": ("1,a\n2,\n3,a\n", r"must have at least 2 classes, got only 'a'"),
    "no_class": ("1,\n2,\n", r"labels of column 'label' of .* at least 2 classes, got none"),
}  # fmt: skip


@pytest.mark.parametrize(("text", "message"), BAD_TEXT.values(), ids=BAD_TEXT)
def test_bad_texts_of_labels_are_refused(tmp_path, text, message):
    (tmp_path / "a.csv").write_text("f,label\n" + text)
    refuse(tmp_path / "a.csv", message, label_separator=";")


BAD_LISTS = {
    "repeated": (
        [["a", "b"], ["c"], ["b", "b"]],
        r"must differ, got 'b' twice in row 2 of column 'y'",
    ),
    "repeated_ints": (
        [[1, 2], [3], [7, 2, 7]],
        r"must differ, got '7' twice in row 2 of column 'y'",
    ),
    "null_inside": (
        [["a", "b"], [], ["b", None]],
        r"'y' of .* must not hold null, got one in row 2",
    ),
    "null": ([["a", "b"], None, ["b"]], r"must have a value in every row, got none in row 1"),
    "empty_name": (
        [["a", "b"], [], ["b", ""]],
        r"must not be missing, got '' in row 2 of column 'y'",
    ),
    "fraction": (
        [[1.0], [], [2.0, 2.5]],
        r"must be whole numbers, .*, got 2\.5 in row 2 of column 'y'",
    ),
    "no_class": ([[], [], []], r"labels of column 'y' of .* at least 2 classes, got none"),
    "one_class": ([["a"], [], ["a"]], r"at least 2 classes, got only 'a'"),
}


@pytest.mark.parametrize(("lists", "message"), BAD_LISTS.values(), ids=BAD_LISTS)
def test_bad_lists_of_labels_are_refused(tmp_path, lists, message):
    table = pa.table({"f": [1.0, 2, 3], "y": lists})
    if not any(lists):
        table = table.set_column(1, "y", pa.array(lists, pa.list_(pa.string())))
    pq.write_table(table, tmp_path / "a.parquet")
    refuse(tmp_path / "a.parquet", message)


BAD_SVMLIGHT = {
    "repeated": ("1,2 1:2\n3,1,3 1:3\n", r"must differ, got '3' twice in row 1 of '.*a\.svm'"),
    "no_number": (
        "1,2 1:2\n3,x 1:3\n",
        r"a comma and no space between labels, all of them numbers",
    ),
    "empty": ("1,2 1:2\n3, 1:3\n", r"rows 0:2 of '.*a\.svm' must be lines of `label index:value"),
    "fraction": (
        "1,2 1:2\n 1:3\n3,1.5 1:3\n",
        r"whole numbers, .* got 1\.5 in row 2 of '.*a\.svm'",
    ),
    "no_class": (" 1:2\n 1:3\n", r"labels of '.*a\.svm' must have at least 2 classes, got none"),
}


@pytest.mark.parametrize(("text", "message"), BAD_SVMLIGHT.values(), ids=BAD_SVMLIGHT)
def test_bad_multilabel_svmlight_is_refused(tmp_path, text, message):
    (tmp_path / "a.svm").write_text(text)
    refuse(tmp_path / "a.svm", message)


def test_multiclass_takes_one_label_a_row(tmp_path):
    (tmp_path / "a.svm").write_text("1 1:2\n2,3 1:3\n")
    message = (
        r"must be one a row of kind 'multiclass', got 2 in row 1 of '.*a\.svm'\. Leave kind out"
    )
    refuse(tmp_path / "a.svm", message, kind="multiclass")
    y = np.eye(4)
    y[2] = 0
    refuse(save(tmp_path, y), r"got 0 in row 2 of 'y' of '.*a\.npz'", kind="multiclass")


@pytest.mark.parametrize("name", ["labels", "label_indptr"])
def test_labels_of_a_store_have_one_name(tmp_path, X, sets, name):
    source, _ = write_store(tmp_path, X, sets)
    if name == "labels":
        assert ingest(source, tmp_path / "s", IngestOptions(labels_key=name)).kind == "multilabel"
    else:
        with pytest.raises(DatasetError, match="must be 'label_indptr', got only 'labels'"):
            ingest(source, tmp_path / "s", IngestOptions(labels_key=name))


def test_wrong_labels_of_a_store_that_is_the_source_are_named(tmp_path, X, sets):
    source, _ = write_store(tmp_path, X, sets)
    row = next(row for row, codes in enumerate(sets) if codes)
    zarr.open_group(source, mode="r+")["label_indices"][0] = 4
    message = rf"labels must lie in 0:4, got 4 in chunk 0, row {row} of '.*label_indices'"
    with pytest.raises(DatasetError, match=message):
        ingest(source, tmp_path / "s")


def test_lists_of_one_value_are_weights_as_well(tmp_path):
    pq.write_table(
        pa.table({"f": [1.0, 2, 3], "w": [[1.0], [2.0], [0.5]], "y": list("aba")}),
        tmp_path / "a.pq",
    )
    store = ingest(tmp_path / "a.pq", tmp_path / "s", IngestOptions(weights_key="w"))
    assert store.read_sample_weight(0, 3).tolist() == [1, 2, 0.5]
    assert store.n_features == 1


def test_codes_do_not_depend_on_the_blocks():
    values, counts = np.array(["c", "a", "b", "c", "b", "a"]), np.array([2, 0, 1, 3])

    def cut(*stops):
        starts, edges = [0, *stops], np.concatenate([[0], np.cumsum(counts)])
        return lambda: (
            ListBlock(counts=counts[low:high], values=values[edges[low] : edges[high]])
            for low, high in zip(starts, [*stops, 4], strict=True)
        )

    for stops in ((), (1,), (2, 3), (1, 2, 3)):
        seen: list[int] = []
        vector = Vector(place="'y'", blocks=cut(*stops))
        labels, names, kind = read_labels(vector, seen.append)
        assert (names, kind) == (("a", "b", "c"), "str")
        assert labels.indptr.tolist() == [0, 2, 2, 3, 6]
        assert labels.indices.tolist() == [0, 2, 1, 0, 1, 2]
        assert seen == [*stops, 4]


BAD_OPTIONS = {
    "kind": ({"kind": "sets"}, "kind must be 'auto', 'multiclass' or 'multilabel', got 'sets'"),
    "separator": ({"label_separator": ""}, "label_separator must have a character or more, got ''"),
    "both": (
        {"label_separator": ";", "kind": "multiclass"},
        "label_separator must be left out for kind 'multiclass', got ';'",
    ),
}


@pytest.mark.parametrize(("change", "message"), BAD_OPTIONS.values(), ids=BAD_OPTIONS)
def test_bad_options_of_labels_are_refused(change, message):
    with pytest.raises(ValueError, match=message):
        IngestOptions(**change)


def test_provenance_names_the_file_of_class_names(tmp_path, X, sets):
    source, chosen = write_npy_and_names(tmp_path, X, sets)
    ingest(source, tmp_path / "s", IngestOptions(**chosen))
    provenance = open_store(tmp_path / "s").provenance
    assert provenance["class_names"] == str(tmp_path / "names.txt")


def test_tables_set_their_list_of_labels_aside(tmp_path, X, sets):
    """Features are the plain columns, though there is a list column."""
    source, options = write_parquet(tmp_path, X, sets)
    reading = SourceOptions(skip_columns=("f1",))
    store = ingest(source, tmp_path / "s", IngestOptions(reading=reading, **options))
    assert store.provenance["first_feature"] == "f0"
    assert store.n_features == D - 1
