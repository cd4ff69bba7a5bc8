"""What is wrong with a source is said in one sentence, and nothing half-made stays."""

import importlib.util
import zipfile

import h5py
import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest
import zarr

from dtopk_storage import DatasetError
from dtopk_storage.ingest import IngestOptions, ingest
from dtopk_storage.sources.base import SourceOptions

Y = np.arange(6) % 2


def refuse(source, message, **options):
    """Ingest, expect the message, and see that nothing is left but what was there."""
    folder = source.parent
    before = sorted(folder.iterdir())
    with pytest.raises(DatasetError, match=message):
        ingest(source, folder / "store", IngestOptions(**options))
    assert sorted(folder.iterdir()) == before


def save(tmp_path, X, y=Y, **others):
    np.savez(tmp_path / "a.npz", X=X, y=y, **others)
    return tmp_path / "a.npz"


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_features_that_are_not_finite_are_named_by_row_and_column(tmp_path, value):
    X = np.ones((6, 3))
    X[4, 1] = value
    message = rf"must be finite, got {value} in row 4, column 1 of 'X' of '.*a\.npz'"
    refuse(save(tmp_path, X), message)
    refuse(save(tmp_path, X), message, shuffle=True)


def test_what_overflows_float16_is_named(tmp_path):
    X = np.ones((6, 3))
    X[2, 2] = -1e5
    message = r"fit into float16 \(at most 65504 in size\), got -100000 in row 2, column 2 of 'X'"
    refuse(save(tmp_path, X), message, dtype="float16")


def test_lengths_that_differ_are_both_named(tmp_path):
    message = r"got 6 in 'X' of '.*a\.npz' and 5 in 'y' of '.*a\.npz'"
    refuse(save(tmp_path, np.ones((6, 3)), Y[:5]), message)


@pytest.mark.parametrize(
    ("n_labels", "message"),
    [(5, r"got more than 5 in '.*a\.csv' and 5 in '.*y\.npy'"), (7, r"got 6 in .* and 7 in")],
)
def test_lengths_that_differ_are_named_when_only_reading_tells(tmp_path, n_labels, message):
    (tmp_path / "a.csv").write_text("p,q\n" + "1,2\n" * 6)
    np.save(tmp_path / "y.npy", np.arange(n_labels) % 2)
    refuse(tmp_path / "a.csv", message, labels=tmp_path / "y.npy")


def test_a_single_class_is_refused(tmp_path):
    message = r"labels of 'y' of '.*a\.npz' must have at least 2 classes, got only '3'"
    refuse(save(tmp_path, np.ones((6, 3)), np.full(6, 3)), message)


@pytest.mark.parametrize(("role", "key"), [("weights", "w"), ("split_names", "w")])
def test_several_values_a_row_are_no_weights_and_no_split_names(tmp_path, role, key):
    source = save(tmp_path, np.ones((6, 3)), w=np.ones((6, 2)))
    refuse(
        source, r"'w' of '.*a\.npz' must hold one value a row, got several", **{f"{role}_key": key}
    )


def test_weights_are_checked(tmp_path):
    X = np.ones((6, 3))
    source = save(tmp_path, X, w=np.array([1, 1, 1, -2, 1, 1]))
    refuse(source, r"at least 0, got -2\.0 in row 3 of 'w' of", weights_key="w")
    source = save(tmp_path, X, w=np.ones(4))
    refuse(source, r"sample weights and labels .* got 4 in 'w' .* and 6 in", weights_key="w")


BAD_MATRICES = {
    "one_dimension": (np.ones(6), r"shape \(n_samples, n_features\), .* got \(6,\) in 'X'"),
    "no_columns": (np.ones((6, 0)), r"none of them 0, got \(6, 0\)"),
    "complex": (np.ones((6, 2), complex), "integers or bool, got 'complex128'"),
    "strings": (np.full((6, 2), "1"), "integers or bool, got 'str32'"),
    "bfloat16": (np.ones((6, 2), "V2"), "bfloat16 is not supported: convert to float32"),
}


@pytest.mark.parametrize(("X", "message"), BAD_MATRICES.values(), ids=BAD_MATRICES)
def test_bad_matrices_are_refused(tmp_path, X, message):
    refuse(save(tmp_path, X), message)


def test_missing_source_is_named(tmp_path):
    refuse(tmp_path / "b.npz", r"must be an existing file or folder, got '.*b\.npz'")


def test_unknown_format_is_named(tmp_path):
    (tmp_path / "a.xyz").write_text("")
    refuse(tmp_path / "a.xyz", r"must be one of 'npy', .* got '\.xyz'\. Name it with source_format")
    (tmp_path / "y.xyz").write_text("")
    source = save(tmp_path, np.ones((6, 3)))
    refuse(source, "a name that tells, such as", labels=tmp_path / "y.xyz")


def test_text_is_no_format_of_features(tmp_path):
    (tmp_path / "a.data").write_text("1\n2\n")
    refuse(tmp_path / "a.data", r"one of 'npy', .* 'zarr', got 'text'", source_format="text")
    (tmp_path / "a.txt").write_text("1\n2\n")
    refuse(tmp_path / "a.txt", "features must be in a file of another format, got")


def test_unknown_keys_name_those_that_are_there(tmp_path):
    source = save(tmp_path, np.ones((6, 3)))
    refuse(
        source,
        r"labels in .* must be 'z', got only 'X', 'y'\. Name the .* labels_key\.",
        labels_key="z",
    )
    np.savez(source, A=np.ones((6, 3)), y=Y)
    refuse(source, "features in .* must be 'X' or 'features', got only 'A', 'y'")


def test_labels_of_an_npy_file_are_asked_for(tmp_path):
    np.save(tmp_path / "X.npy", np.ones((6, 3)))
    message = r"labels must come from another file, since '.*X\.npy' holds one array, got none"
    refuse(tmp_path / "X.npy", message)
    refuse(tmp_path / "X.npy", message, labels_key="y")
    zarr.create_array(tmp_path / "X.zarr", data=np.ones((6, 3)))
    refuse(tmp_path / "X.zarr", r"since '.*X\.zarr' holds one array")


@pytest.mark.parametrize(
    ("role", "what"),
    [("labels", "labels"), ("weights", "sample weights"), ("split_names", "split names")],
)
def test_a_missing_file_is_called_what_it_is_for(tmp_path, role, what):
    source = save(tmp_path, np.ones((6, 3)))
    message = rf"file of {what} must be an existing file or folder, got '.*z\.npy'\. .* {role}\."
    refuse(source, message, **{role: tmp_path / "z.npy"})


@pytest.mark.parametrize("role", ["labels", "weights", "split_names"])
def test_a_key_is_looked_for_by_what_it_is_for(tmp_path, role):
    source = save(tmp_path, np.ones((6, 3)))
    np.savez(tmp_path / "b.npz", a=Y)
    refuse(source, rf"got only 'a'\. .* with {role}_key\.", **{role: tmp_path / "b.npz"})
    np.save(tmp_path / "b.npy", Y)
    options = {role: tmp_path / "b.npy", f"{role}_key": "a"}
    refuse(source, rf"without a key, .* got 'a'\. Leave {role}_key out", **options)


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_of_many_columns_the_last_are_shown(tmp_path, suffix):
    names = ["id", *(f"f{index}" for index in range(30)), "species"]
    table = pa.table({name: [1, 2] for name in names})
    if suffix == ".csv":
        pa.csv.write_csv(table, tmp_path / "a.csv")
    else:
        pq.write_table(table, tmp_path / "a.parquet")
    message = (
        r"labels in .* must be 'y' or .*, got only 'id', 'f0', .* \.\.\., .* 'f29', 'species'\."
    )
    refuse(tmp_path / f"a{suffix}", message)


def test_pickled_labels_are_refused(tmp_path):
    source = save(tmp_path, np.ones((6, 3)), np.array(["a", None] * 3, object))
    refuse(source, "must hold plain values, got pickled Python objects")


@pytest.mark.parametrize("suffix", [".npy", ".npz", ".h5", ".parquet", ".csv.gz", ".svm.bz2"])
def test_a_file_of_another_format_is_named(tmp_path, suffix):
    path = tmp_path / f"a{suffix}"
    path.write_bytes(b"this is not what its name says" * 9)
    np.save(tmp_path / "y.npy", Y)
    options = {"labels": tmp_path / "y.npy"} if suffix == ".npy" else {}
    refuse(path, rf"'.*a{suffix}' must be readable, got", **options)


def test_truncated_npy_is_named(tmp_path):
    np.save(tmp_path / "X.npy", np.ones((6, 3)))
    data = (tmp_path / "X.npy").read_bytes()
    (tmp_path / "X.npy").write_bytes(data[:-8])
    np.save(tmp_path / "y.npy", Y)
    message = r"'.*X\.npy' must hold as many bytes as its header says, of float64 of shape \(6, 3\)"
    refuse(tmp_path / "X.npy", message, labels=tmp_path / "y.npy")


def test_truncated_member_is_named(tmp_path):
    source = save(tmp_path, np.ones((6, 3)))
    with zipfile.ZipFile(source) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile(source, "w") as archive:
        archive.writestr("X.npy", members["X.npy"][:-8])
        archive.writestr("y.npy", members["y.npy"])
    refuse(source, r"'X' of '.*a\.npz' must hold as many bytes as its header says, .* got 136\.")


def test_spoilt_zarr_chunk_is_named(tmp_path, flip_byte):
    group = zarr.create_group(tmp_path / "a.zarr")
    group.create_array("X", data=np.ones((6, 3)), compressors=[zarr.codecs.Crc32cCodec()])
    group.create_array("y", data=Y)
    flip_byte(tmp_path / "a.zarr" / "X" / "c" / "0" / "0")
    refuse(tmp_path / "a.zarr", r"'X' of '.*a\.zarr' must be readable, got: .*checksum")


def test_hdf5_single_value_is_refused(tmp_path):
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["X"], file["y"] = 3.0, Y
    refuse(tmp_path / "a.h5", "'X' of .* must hold an array, got a single value")


BAD_SVMLIGHT = {
    "no_number": ("0 1:2\nx 1:3\n", r"rows 0:2 of '.*a\.svm' must be lines of"),
    "space_in_labels": ("0 1:2\n1, 2 1:3\n", "a comma and no space between labels, all of them"),
    "no_features": ("0\n1\n", "must have features, got none in 2 rows"),
    "fraction": ("0.5 1:2\n1 1:3\n", r"must be whole numbers, .* got 0\.5 in row 0"),
}


@pytest.mark.parametrize(("text", "message"), BAD_SVMLIGHT.values(), ids=BAD_SVMLIGHT)
def test_bad_svmlight_is_refused(tmp_path, text, message):
    (tmp_path / "a.svm").write_text(text)
    refuse(tmp_path / "a.svm", message)


def test_svmlight_indices_outside_what_was_said_are_refused(tmp_path):
    (tmp_path / "a.svm").write_text("0 0:2\n1 7:3\n")
    reading = SourceOptions(n_features=5)
    refuse(tmp_path / "a.svm", r"must be at least 8, .* got 5", reading=reading)
    reading = SourceOptions(index_base="1")
    refuse(tmp_path / "a.svm", "indices of .* must start at 1, got 0", reading=reading)


BAD_CSV = {
    "text": ("a,b,label\n1,2,x\n3,u,y\n", r"column 'b' of '.*' must hold numbers .* 'u' in row 1"),
    "empty": ("a,b,label\n1,2,x\n,4,y\n", r"column 'a' of '.*' must hold numbers .* '' in row 1"),
    "ragged": ("a,b,label\n1,2,x\n3,4\n", r"must have 3 columns, got 2 in row 1"),
    "no_label": ("a,b\n1,2\n", r"must be 'y' or 'label' or .* got only 'a', 'b'"),
    "missing_label": ("a,label\n1,x\n2,\n", r"must not be missing, got '' in row 1 of column"),
    "nothing": ("", "must have rows, got none"),
    "only_labels": ("label\nx\ny\n", "must have columns left for the features, got none"),
    "nan": ("a,b,label\n1,2,x\n3,nan,y\n", "must be finite, got nan in row 1, column 1"),
}


@pytest.mark.parametrize("has_pyarrow", [True, False])
@pytest.mark.parametrize(("text", "message"), BAD_CSV.values(), ids=BAD_CSV)
def test_bad_csv_is_refused_with_and_without_pyarrow(
    tmp_path, text, message, has_pyarrow, monkeypatch
):
    if not has_pyarrow:
        monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    (tmp_path / "a.csv").write_text(text)
    refuse(tmp_path / "a.csv", message)


BAD_PARQUET = {
    "strings": ({"f": ["1"] * 6, "label": Y}, "column 'f' of .* must hold numbers to be a feature"),
    "null": (
        {"f": [1.0, None] * 3, "label": Y},
        "must have a value in every row, got none in row 1",
    ),
    "null_label": ({"f": [1.0] * 6, "label": ["a", None] * 3}, "column 'label' .* none in row 1"),
    "ragged": ({"X": [[1.0]] * 5 + [[1.0, 2.0]], "label": Y}, "all have 1 value, .* 2 in row 5"),
    "null_inside": ({"X": [[1.0]] * 5 + [[None]], "label": Y}, "got null in row 5"),
}


@pytest.mark.parametrize(("columns", "message"), BAD_PARQUET.values(), ids=BAD_PARQUET)
def test_bad_parquet_is_refused(tmp_path, columns, message):
    pq.write_table(pa.table(columns), tmp_path / "a.parquet")
    refuse(tmp_path / "a.parquet", message)


def test_a_store_that_cannot_fit_is_refused_before_features_are_read(tmp_path, monkeypatch):
    monkeypatch.setattr("shutil.disk_usage", lambda path: type("Usage", (), {"free": 71})())
    message = r"must be at least 72 B \(6 rows of 12 B\), got 71 B"
    refuse(save(tmp_path, np.ones((6, 3), np.float32)), message)


def test_bad_reading_options_are_refused():
    with pytest.raises(ValueError, match="n_features must be at least 1, got 0"):
        SourceOptions(n_features=0)
    with pytest.raises(ValueError, match="delimiter must be one character, got ', '"):
        SourceOptions(delimiter=", ")
