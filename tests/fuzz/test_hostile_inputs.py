"""Files that once hung, crashed or misled a reader, or were made to: the least of each kind."""

import gzip
import io
import json
import struct
import zipfile

import numpy as np
import pytest

from dtopk.job import load_job
from dtopk.job.run_folder import RunFolder
from dtopk.job.sweep_folder import SweepFolder
from dtopk.job.verification import read_result
from dtopk.lifting import load_map
from dtopk.model import load_model
from dtopk.tracking.outbox import read_kept
from dtopk_storage import (
    CheckpointError,
    DatasetError,
    create_dual,
    open_dual,
    open_run_state,
    open_store,
)
from dtopk_storage.ingest import IngestOptions, ingest
from dtopk_storage.npy_files import map_array
from tests.fuzz.readers import list_readers

READERS = list_readers()
HUGE = (10**12, 4096)


def npy(shape, descr="<f4", body=b"\x00" * 48, more=""):
    """Make a .npy file whose header says whatever it is told."""
    header = f"{{'descr': {descr!r}, 'fortran_order': False, 'shape': {shape}, {more}}}\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header.encode() + body


def zipped(members, method=zipfile.ZIP_STORED):
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", method) as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return file.getvalue()


def put(folder, files):
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)


def seed(reader, number=0):
    return dict(READERS[reader].make_seeds()[number])


def refuse_source(folder, name, content, match, **options):
    """Ingest a file, which must be refused before a store is begun."""
    put(folder, {name: content})
    with pytest.raises(DatasetError, match=match) as caught:
        ingest(folder / name, folder / "out.zarr", IngestOptions(**options))
    assert name in str(caught.value)
    assert {path.name for path in folder.iterdir()} <= {name, "y.npy", "y.txt"}


# Arrays in numpy's format.


@pytest.mark.parametrize(
    ("content", "match"),
    [
        pytest.param(npy(HUGE), r"as many bytes as its header says", id="huge"),
        pytest.param(npy("(-1,)", "<U0"), r"as many bytes as its header says", id="no bytes a row"),
        pytest.param(npy("(True, 4)"), r"whole numbers must be", id="truth"),
        pytest.param(npy("(-3, 4)"), r"as many bytes as its header says", id="negative"),
        pytest.param(npy("(12,)", "|O"), r"plain values, got pickled Python objects", id="objects"),
        pytest.param(npy("()", body=b"\x00" * 4), r"an array, got a single value", id="scalar"),
        pytest.param(npy("(" * 4000), r"must be readable", id="nested"),
        pytest.param(npy("(1" + "0" * 5000 + ",)"), r"must be readable", id="digits"),
        pytest.param(zipped({"a.npy": npy("(12,)")}), r"must be readable", id="zip"),
        pytest.param(b"\x80\x04\x95", r"must be readable", id="pickle"),
        pytest.param(b"", r"must be readable", id="empty"),
    ],
)
def test_an_array_is_mapped_only_as_far_as_it_is_there(content, match, tmp_path):
    """numpy itself ends the process by dividing by a size of 0 in the second of these."""
    path = tmp_path / "x.npy"
    path.write_bytes(content)
    with pytest.raises(DatasetError, match=match) as caught:
        map_array(path)
    assert "x.npy" in str(caught.value)


@pytest.mark.parametrize("method", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
@pytest.mark.parametrize(
    ("header", "match"),
    [
        (npy(HUGE), r"as many bytes as its header says"),
        (npy("(12, 3)", "|O"), r"plain values, got pickled Python objects"),
    ],
    ids=["huge", "objects"],
)
def test_a_member_is_read_only_as_far_as_it_is_there(header, match, method, tmp_path):
    labels = npy("(12,)", "<i4", np.arange(12, dtype="<i4").tobytes())
    content = zipped({"X.npy": header, "y.npy": labels}, method)
    refuse_source(tmp_path, "x.npz", content, match)


def test_members_with_names_of_other_folders_are_not_written_there(tmp_path):
    files = seed("npz")
    with zipfile.ZipFile(io.BytesIO(files["x.npz"])) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    members["../../outside.npy"] = members["X.npy"]
    members["/outside.npy"] = members["X.npy"]
    put(tmp_path / "a" / "b", {"x.npz": zipped(members)})
    ingest(tmp_path / "a" / "b" / "x.npz", tmp_path / "a" / "b" / "out.zarr")
    written = {path.name for path in tmp_path.rglob("*.npy")}
    assert not written


# Text.


def test_an_index_that_makes_rows_of_gigabytes_is_refused(tmp_path):
    content = b"0 1:1\n1 99999999999:1\n"
    refuse_source(tmp_path, "x.svm", content, r"label index:value.* value too large")


def test_an_index_below_that_of_32_bits_is_refused_before_rows_are_made(tmp_path):
    content = b"0 1:1\n1 2000000000:1\n"
    refuse_source(tmp_path, "x.svm", content, r"features must be at most 134,217,728 a row")


def test_a_line_without_end_in_a_compressed_file_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr("dtopk_storage.sources.text.MOST_LINE_CHARACTERS", 1 << 16)
    content = gzip.compress(b"0 1:1\n1 " + b"1" * (1 << 20))
    refuse_source(tmp_path, "x.svm.gz", content, r"must have at most 65,536 characters")


@pytest.mark.parametrize(
    "line", [b'"' + b"x" * 200_000 + b"\n", b"a,\x00b,label\n"], ids=["long field", "NUL"]
)
def test_a_table_that_csv_cannot_read_is_refused(line, tmp_path):
    refuse_source(tmp_path, "x.csv", line + b"1,2,3\n", r"x\.csv")


def test_labels_that_are_no_text_are_refused(tmp_path):
    put(tmp_path, {"x.npy": npy("(12, 1)")})
    put(tmp_path, {"y.txt": b"a\n" * 11 + b"\xff\n"})
    with pytest.raises(DatasetError, match=r"y\.txt' must be readable"):
        ingest(tmp_path / "x.npy", tmp_path / "o.zarr", IngestOptions(labels=tmp_path / "y.txt"))


def test_labels_of_bytes_that_are_no_text_name_their_row(tmp_path):
    labels = np.array([b"a", b"b"] * 5 + [b"\xff", b"a"])
    put(tmp_path, {"x.npy": npy("(12, 1)")})
    np.save(tmp_path / "y.npy", labels)
    with pytest.raises(DatasetError, match=r"must be text in UTF-8, got b'\\xff' in row 10 of"):
        ingest(tmp_path / "x.npy", tmp_path / "o.zarr", IngestOptions(labels=tmp_path / "y.npy"))


# HDF5 and zarr.


def test_a_heap_that_does_not_end_is_refused(tmp_path):
    """The HDF5 library goes round in it for ever, and is not to be interrupted."""
    content = bytearray(seed("hdf5")["x.h5"])
    heap = content.find(b"GCOL")
    at = heap + 16
    while content[at : at + 2] != b"\x00\x00":
        size = int.from_bytes(content[at + 8 : at + 16], "little")
        at += 16 + -(-size // 8) * 8
    content[at + 8 : at + 16] = bytes(8)
    refuse_source(tmp_path, "x.h5", bytes(content), rf"got one at byte {heap:,} whose free space")


def test_hdf5_rows_that_were_never_written_are_refused(tmp_path):
    h5py = pytest.importorskip("h5py")
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file.create_dataset("X", shape=HUGE, dtype="f4", chunks=(1, 4096))
        file.create_dataset("y", shape=HUGE[:1], dtype="i4", chunks=(4096,))
    with pytest.raises(DatasetError, match=r"must hold its values, compressed 100,000 times"):
        ingest(tmp_path / "x.h5", tmp_path / "out.zarr")


def test_zarr_rows_that_were_never_written_are_refused(tmp_path):
    import zarr

    group = zarr.open_group(tmp_path / "x.zarr", mode="w")
    group.create_array("X", shape=HUGE, dtype="f4", chunks=(1, 4096))
    group.create_array("y", shape=HUGE[:1], dtype="i4", chunks=(4096,))
    with pytest.raises(DatasetError, match=r"must hold its values, compressed 100,000 times"):
        ingest(tmp_path / "x.zarr", tmp_path / "out.zarr")


# Stores.


def change_json(files, name, change, reader):
    """Change the JSON of a file, and make its checksum right again."""
    fields = json.loads(files[name])
    change(fields)
    files[name] = READERS[reader].repair(name, json.dumps(fields).encode())


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("n_samples", "12"), ("n_samples", -1), ("n_samples", True), ("n_samples", 2**70),
        ("n_features", 1.0), ("class_names", "abc"), ("class_names", ["a", 1]),
        ("splits", []), ("splits", {"train": [[0]]}), ("splits", {"train": [["0", 12]]}),
        ("splits", {"train": None}), ("provenance", None), ("has_row_id", 1), ("dtype", []),
    ],
)  # fmt: skip
def test_a_manifest_with_a_field_of_another_type_is_refused(field, value, tmp_path):
    files = seed("store")

    def change(fields):
        fields["attributes"]["dtopk"][field] = value

    change_json(files, "x.zarr/zarr.json", change, "store")
    put(tmp_path, files)
    with pytest.raises(DatasetError, match=rf"'{field}' in the manifest of .*x\.zarr"):
        open_store(tmp_path / "x.zarr")


def test_a_store_of_more_features_than_a_row_may_have_is_refused(tmp_path):
    files = seed("store")

    def change(fields):
        fields["attributes"]["dtopk"]["n_features"] = 10**12

    change_json(files, "x.zarr/zarr.json", change, "store")
    put(tmp_path, files)
    with pytest.raises(DatasetError, match=r"n_features of .* must be at most 134,217,728"):
        open_store(tmp_path / "x.zarr")


@pytest.mark.parametrize("text", ["[" * 100_000, '{"a": ' * 100_000, "null", "{}", '{"x": 1'])
@pytest.mark.parametrize("name", ["zarr.json", "features/zarr.json"])
def test_metadata_that_are_no_metadata_are_refused(name, text, tmp_path):
    files = seed("store") | {f"x.zarr/{name}": text.encode()}
    put(tmp_path, files)
    with pytest.raises(DatasetError, match=r"x\.zarr"):
        open_store(tmp_path / "x.zarr")


@pytest.mark.parametrize("rows", [10**9, 10**15, 2**62])
def test_a_chunk_larger_than_its_file_gets_no_memory(rows, tmp_path):
    """Compressed chunks are refused by their size, plain ones by that of their file."""
    matches = r"chunks of .*features.* must be at most", r"must be \d+ bytes"
    for number, match in enumerate(matches):
        files = seed("store", number)

        def change(fields):
            fields["chunk_grid"]["configuration"]["chunk_shape"][0] = rows

        change_json(files, "x.zarr/features/zarr.json", change, "store")
        folder = tmp_path / str(number)
        put(folder, files)
        with pytest.raises(DatasetError, match=match):
            open_store(folder / "x.zarr").read_features(0, 1)


def test_duals_of_chunks_without_end_are_refused(tmp_path):
    create_dual(tmp_path / "dual", n_samples=9, n_classes=3, dtype="float32", chunk_rows=4)
    path = tmp_path / "dual" / "zarr.json"
    fields = json.loads(path.read_text())
    fields["chunk_grid"]["configuration"]["chunk_shape"][0] = 10**12
    path.write_text(json.dumps(fields))
    with pytest.raises(CheckpointError, match=r"chunks of .*dual.* must be at most"):
        open_dual(tmp_path / "dual")


# Models and maps.


def changed_model(name, content, method=zipfile.ZIP_STORED):
    with zipfile.ZipFile(io.BytesIO(seed("model", 1)["model.npz"])) as archive:
        members = {each: archive.read(each) for each in archive.namelist()}
    return zipped(members | {name: content}, method)


def changed_header(**changes):
    with zipfile.ZipFile(io.BytesIO(seed("model")["model.npz"])) as archive:
        return changed_model(
            "model.json", json.dumps(json.loads(archive.read("model.json")) | changes)
        )


@pytest.mark.parametrize(
    ("content", "match"),
    [
        pytest.param(changed_model("W.npy", npy(HUGE)), r"as many bytes", id="huge"),
        pytest.param(changed_model("W.npy", npy("(3, 3)", "|O")), r"pickled", id="objects"),
        pytest.param(changed_model("W.npy", npy("(True, 12)")), r"whole numbers", id="truth"),
        pytest.param(
            changed_model("W.npy", npy("(3, 3)", body=b"\xff" * 36)), r"W must be finite", id="nan"
        ),
        pytest.param(changed_model("model.json", "[" * 100_000), r"damaged", id="nested"),
        pytest.param(changed_model("model.json", "[]"), r"must be a JSON object", id="list"),
        pytest.param(
            changed_model("W.npy", npy("(3, 3)"), zipfile.ZIP_DEFLATED), r"stored", id="compressed"
        ),
        pytest.param(changed_model("calibration.npz", b"PK"), r"damaged", id="calibration"),
        pytest.param(changed_header(certificate=[]), r"'certificate' is a list", id="certificate"),
        pytest.param(changed_header(certificate={"primal": "1"}), r"no numbers", id="values"),
        pytest.param(changed_header(job="x"), r"'job' is a str", id="job"),
        pytest.param(changed_header(version=None), r"damaged", id="version"),
        pytest.param(changed_header(threshold="x"), r"'threshold' is a str", id="threshold"),
        pytest.param(b"PK\x03\x04", r"damaged", id="torn"),
    ],
)
def test_a_model_of_other_content_is_refused(content, match, tmp_path):
    put(tmp_path, {"model.npz": content})
    with pytest.raises(ValueError, match=match) as caught:
        load_model(tmp_path / "model.npz")
    assert "model.npz' must be a dtopk model, but is damaged" in str(caught.value)


def test_a_map_of_a_huge_header_is_refused(tmp_path):
    with zipfile.ZipFile(io.BytesIO(seed("map")["map.npz"])) as archive:
        members = {each: archive.read(each) for each in archive.namelist()}
    put(tmp_path, {"map.npz": zipped(members | {"random_weights_.npy": npy(HUGE)})})
    with pytest.raises(ValueError, match=r"map\.npz' must be a map of features.*as many bytes"):
        load_map(tmp_path / "map.npz")


# Runs.


@pytest.mark.parametrize("version", ["../../outside", "/outside", "", 7, None])
def test_a_state_whose_version_is_no_name_is_refused(version, tmp_path):
    files = seed("state")
    change_json(files, "state/state.json", lambda fields: fields.update(version=version), "state")
    put(tmp_path, files)
    with pytest.raises(CheckpointError, match=r"version in .*state\.json' must be the name"):
        open_run_state(tmp_path / "state").load()


def test_a_state_nested_without_end_is_refused(tmp_path):
    put(tmp_path, {"state/state.json": b"[" * 100_000})
    with pytest.raises(CheckpointError, match=r"state\.json' must be JSON with a checksum"):
        open_run_state(tmp_path / "state").load()


@pytest.mark.parametrize(
    "changes",
    [
        {"shape": HUGE}, {"shape": [-1, 3]}, {"dtype": "O"}, {"codec": "pickle"},
        {"shape": "8"}, {"payload_bytes": -5}, {"payload_bytes": 10**400}, {"codec": "none"},
    ],
)  # fmt: skip
def test_an_array_whose_header_says_what_is_not_there_is_refused(changes, tmp_path):
    files = seed("state")
    name = "state/versions/000001-a/dual/000000.array"
    content = files[name]
    length = int.from_bytes(content[8:12], "little")
    header = json.dumps(json.loads(content[12 : 12 + length]) | changes).encode()
    body = content[12 + length :]
    whole = content[:8] + len(header).to_bytes(4, "little") + header + body
    files[name] = READERS["state"].repair(name, whole)
    put(tmp_path, files)
    with pytest.raises(CheckpointError, match=r"000000\.array' must "):
        open_run_state(tmp_path / "state").read_array("000001-a", "dual/000000")


def test_an_array_that_blosc_cannot_unpack_is_refused(tmp_path):
    files = seed("state")
    name = "state/versions/000001-a/dual/000000.array"
    content = files[name]
    start = 12 + int.from_bytes(content[8:12], "little")
    files[name] = READERS["state"].repair(
        name, content[: start + 16] + b"\xff" * (len(content) - start - 20) + content[-4:]
    )
    put(tmp_path, files)
    with pytest.raises(CheckpointError, match=r"must hold values compressed with blosc"):
        open_run_state(tmp_path / "state").read_array("000001-a", "dual/000000")


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"resumed_at": None}, r"'resumed_at' must be a list"),
        ({"state": 7}, r"'state' must be a string"),
        ({"threads": 1.5}, r"'threads' must be a whole number"),
        ({"loss": []}, r"'loss' must be an object"),
        ({"mlflow": {"a": 1}}, r"'mlflow' must be a string"),
        ({"more": 1}, r"key 'more' is unknown"),
    ],
)
def test_a_record_of_other_types_is_refused(changes, match, tmp_path):
    files = seed("run")
    change_json(files, "run/run.json", lambda fields: fields.update(changes), "run")
    put(tmp_path, files)
    with pytest.raises(CheckpointError, match=rf"run\.json' must be as dtopk wrote it.*{match}"):
        RunFolder(path=tmp_path / "run").read_record()


@pytest.mark.parametrize("text", ["[" * 100_000, "[]", "null", "{", "\x00"])
def test_a_result_that_is_none_is_refused(text, tmp_path):
    put(tmp_path, seed("run") | {"run/result.json": text.encode()})
    folder = RunFolder(path=tmp_path / "run")
    for read in (folder.starts_again, lambda: read_result(folder)):
        with pytest.raises(CheckpointError, match=r"result\.json' must be as dtopk wrote it"):
            read()


@pytest.mark.parametrize("text", ["[" * 100_000, "[]", "\x00"])
def test_a_result_of_a_sweep_that_is_none_is_refused(text, tmp_path):
    put(tmp_path, seed("sweep") | {"sweep/sweep.json": text.encode()})
    with pytest.raises(CheckpointError, match=r"sweep\.json' must be as dtopk wrote it"):
        SweepFolder(path=tmp_path / "sweep").read_result()


@pytest.mark.parametrize(
    "text",
    [
        "epoch\n1\n",
        "epoch,seconds,relative_gap\nx,1,1\n",
        "epoch,seconds,relative_gap\n1,1,1\n",
        "\x00\n\x00",
        "a,b\n1,2,3\n",
    ],
)
def test_a_history_that_is_none_is_refused(text, tmp_path):
    put(tmp_path, {"run/history.csv": text.encode()})
    with pytest.raises(CheckpointError, match=r"history\.csv' must be as dtopk wrote it"):
        RunFolder(path=tmp_path / "run").read_history()


@pytest.mark.parametrize("content", [b"\xff\n", b"[" * 100_000 + b"\n{}\n", b"[]\n{}\n"])
def test_metrics_kept_for_mlflow_that_are_none_are_refused(content, tmp_path):
    put(tmp_path, {"mlflow.jsonl": content})
    with pytest.raises(ValueError, match=r"mlflow\.jsonl' must be as dtopk wrote it"):
        read_kept(tmp_path / "mlflow.jsonl")


# Jobs.


@pytest.mark.parametrize(
    ("line", "match"),
    [
        ("[model]\nk = 0x" + "f" * 5000, r"a whole number in it has 20,000 bits"),
        ("[model]\nk = " + "1" * 5000, r"must be TOML"),
        ("[model]\nk = 9223372036854775808", r"a whole number in it has 64 bits"),
        ("[model]\nrho = " + "[" * 5000, r"nested too deeply"),
        ('[solver]\nwarm_start = "~nobody-of-that-name/x"', r"solver\.warm_start must begin with"),
        ('[output]\nrun_dir = "a\\u0000b"', r"output\.run_dir must be a path"),
        (f'[resources]\nmemory_limit = "{"9" * 400}GB"', r"resources\.memory_limit must be 'auto'"),
    ],
)
def test_a_job_with_values_beyond_reason_is_refused(line, match, tmp_path):
    text = f'version = 1\n[data]\nstore = "x.zarr"\n{line}\n'
    put(tmp_path, {"job.toml": text.encode()})
    with pytest.raises(ValueError, match=match) as caught:
        load_job(tmp_path / "job.toml")
    assert "job.toml" in str(caught.value)


def test_label_costs_of_a_huge_header_are_refused(tmp_path):
    put(tmp_path, seed("label_cost") | {"costs.npy": npy(HUGE, "<f8")})
    with pytest.raises(ValueError, match=r"label_cost must be a \.npy or \.csv.*as many bytes"):
        load_job(tmp_path / "job.toml")
