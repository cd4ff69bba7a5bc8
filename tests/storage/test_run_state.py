"""The state of a run: whole or the one before, on disk and in an object store."""

import errno
import json
import os
import pickle
import shutil
import subprocess
import threading
import uuid
from pathlib import Path

import fsspec  # type: ignore[import-untyped]
import google_crc32c
import numcodecs
import numpy as np
import pytest

from dtopk_storage import CheckpointError, open_run_state
from dtopk_storage.locations import ObjectFolder


@pytest.fixture(params=["disk", "memory"])
def state(request, tmp_path):
    """A place for a state that nothing has been written to."""
    if request.param == "disk":
        yield open_run_state(tmp_path / "run" / "state")
    else:
        state = open_run_state(f"memory://{uuid.uuid4().hex}/state")
        yield state
        state.clear()


@pytest.fixture
def disk(tmp_path):
    return open_run_state(tmp_path / "state")


def list_files(state):
    """Names of all files below the state's place."""
    fs, root = fsspec.core.url_to_fs(state.url)
    return sorted(path.removeprefix(f"{root}/") for path in fs.find(root))


def array_path(state, version, name):
    return Path(state.url, "versions", version, f"{name}.array")


def sparse(shape, dtype="float32"):
    values = np.zeros(shape, dtype)
    values[:, 7] = np.linspace(-1, 1, len(values))
    return values


def noise(shape, dtype="float32"):
    return np.random.default_rng(3).standard_normal(shape).astype(dtype)


@pytest.mark.parametrize(
    "values",
    [
        noise((17, 5)),
        noise((17, 5), "float64"),
        np.arange(-4, 20).reshape(2, 3, 4),
        np.array(2.5),
        np.zeros((0, 4), np.float32),
        np.zeros(0, np.int64),
        sparse((64, 100)),
        noise((6, 8))[::2, 1::3],
        noise((6, 8)).T,
        noise((6, 8)).astype(">f4"),
        np.array([np.nan, np.inf, -0.0, 5e-324]),
    ],
    ids=lambda values: f"{values.dtype.str}-{values.shape}",
)
def test_arrays_are_read_as_they_were_written(state, values):
    size = state.write_array("1", "W/0", values)
    read = state.read_array("1", "W/0")
    assert read.dtype == values.dtype.newbyteorder("<")
    assert read.shape == values.shape
    assert read.tobytes() == values.astype(read.dtype).tobytes()
    assert read.flags.c_contiguous
    assert read.flags.aligned
    read[...] = 1
    fs, root = fsspec.core.url_to_fs(state.url)
    assert fs.size(f"{root}/versions/1/W/0.array") == size


@pytest.mark.parametrize("values", [noise((40, 30)), sparse((40, 30))], ids=["dense", "sparse"])
def test_array_files_are_as_the_format_says(disk, values):
    disk.write_array("v-1", "dual/000017", values)
    raw = array_path(disk, "v-1", "dual/000017").read_bytes()
    assert raw[:8] == b"DTOPKARR"
    length = int.from_bytes(raw[8:12], "little")
    assert (12 + length) % 64 == 0
    header = json.loads(raw[12 : 12 + length])
    payload = raw[12 + length : -4]
    assert header.pop("payload_bytes") == len(payload)
    codec = header.pop("codec")
    assert header == {"format": 1, "dtype": "float32", "shape": [40, 30]}
    assert int.from_bytes(raw[-4:], "little") == google_crc32c.value(raw[:-4])
    assert codec == ("blosc" if values[0, 0] == 0 else "none")
    plain = numcodecs.Blosc().decode(payload) if codec == "blosc" else payload
    np.testing.assert_array_equal(np.frombuffer(plain, "<f4").reshape(40, 30), values)


def test_sparse_arrays_cost_little(disk):
    values = sparse((256, 500))
    assert disk.write_array("1", "dual/0", values) < values.nbytes / 25


def test_an_array_too_large_for_the_compressor_is_kept_as_it_is(disk, monkeypatch):
    monkeypatch.setattr(numcodecs.blosc, "MAX_BUFFERSIZE", 1000)
    values = sparse((64, 100))
    assert disk.write_array("1", "a", values) > values.nbytes
    np.testing.assert_array_equal(disk.read_array("1", "a"), values)


def test_a_later_array_takes_the_name(state):
    state.write_array("1", "a", noise((3, 4)))
    state.write_array("1", "a", noise((2, 2)))
    np.testing.assert_array_equal(state.read_array("1", "a"), noise((2, 2)))


def test_a_name_may_be_the_folder_of_another(state):
    state.write_array("1", "W", np.ones(1))
    state.write_array("1", "W/0", np.ones(2))
    assert len(state.read_array("1", "W")) == 1
    assert len(state.read_array("1", "W/0")) == 2


def test_durable_arrays_are_on_the_disk_with_their_folders(disk, monkeypatch):
    synced = []
    fsync = os.fsync

    def note(descriptor):
        synced.append(os.readlink(f"/proc/self/fd/{descriptor}"))
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", note)
    disk.write_array("1", "W/0", np.ones(3))
    assert synced == []
    disk.write_array("1", "W/0", np.ones(3), durable=True)
    assert synced.pop(0).endswith(".tmp")
    folders = [
        f"{disk.url}/versions/1/W", f"{disk.url}/versions/1", f"{disk.url}/versions", disk.url,
    ]  # fmt: skip
    assert synced[:4] == folders
    synced.clear()
    disk.commit("1", {})
    assert synced[0].startswith(f"{disk.url}/.state.json.")
    assert synced[1] == disk.url


def test_nothing_is_loaded_before_the_first_commit(state):
    assert state.load() is None
    state.write_array("1", "a", np.ones(2))
    assert state.load() is None


def test_the_manifest_committed_is_loaded(state):
    manifest = {"round": 3, "theta": [0.1, 1e-300], "names": {"a": None, "b": True}, "text": "ä"}
    state.commit("3", manifest)
    assert state.load() == {"format": 1, "version": "3", **manifest}
    assert pickle.loads(pickle.dumps(state)).load() == state.load()


def test_numbers_of_numpy_and_infinite_ones_are_loaded_as_plain_ones(state):
    state.commit(
        "3", {"gap": np.float32(0.1), "round": np.int64(7), "best": np.inf, 10: 1, 9: (2,)}
    )
    loaded = state.load()
    assert loaded["gap"] == float(np.float32(0.1))
    assert (loaded["round"], loaded["best"], loaded["10"], loaded["9"]) == (7, np.inf, 1, [2])


def test_a_commit_deletes_all_versions_but_its_own(state):
    for version in ("1", "2", "left"):
        state.write_array(version, "W/0", np.ones(3))
    state.commit("2", {})
    assert list_files(state) == ["state.json", "versions/2/W/0.array"]
    state.commit("3", {})
    assert list_files(state) == ["state.json"]


def test_a_commit_and_clear_leave_the_files_of_others(state):
    fs, root = fsspec.core.url_to_fs(state.url)
    fs.makedirs(root, exist_ok=True)
    fs.pipe_file(f"{root}/job.toml", b"x")
    state.write_array("1", "a", np.ones(3))
    state.commit("2", {})
    state.clear()
    assert list_files(state) == ["job.toml"]


def test_leftovers_are_deleted_and_the_state_is_not(state):
    state.write_array("1", "a", np.ones(3))
    state.commit("1", {})
    state.write_array("2", "a", np.ones(3))
    state.delete_leftovers()
    assert list_files(state) == ["state.json", "versions/1/a.array"]


def test_all_is_left_over_where_nothing_is_committed(state):
    state.delete_leftovers()
    state.write_array("2", "a", np.ones(3))
    state.delete_leftovers()
    assert list_files(state) == []


def test_temporary_files_of_a_killed_run_are_left_over(disk):
    disk.write_array("1", "a", np.ones(3))
    disk.commit("1", {})
    Path(disk.url, ".state.json.0123.tmp").write_bytes(b"{")
    disk.delete_leftovers()
    assert list_files(disk) == ["state.json", "versions/1/a.array"]


def test_a_cleared_state_is_gone_with_its_folder(disk):
    disk.write_array("1", "a", np.ones(3))
    disk.commit("1", {})
    disk.clear()
    assert disk.load() is None
    assert not os.path.exists(disk.url)
    disk.clear()


def test_a_state_cleared_halfway_is_no_state(disk, monkeypatch):
    disk.write_array("1", "a", np.ones(3))
    disk.commit("1", {})

    def interrupt(path):
        raise KeyboardInterrupt

    monkeypatch.setattr(shutil, "rmtree", interrupt)
    with pytest.raises(KeyboardInterrupt):
        disk.clear()
    assert disk.load() is None


def test_a_version_that_cannot_be_deleted_is_left_for_the_next_commit(disk, monkeypatch, caplog):
    disk.write_array("1", "a", np.ones(3))
    with monkeypatch.context() as patch:
        patch.setattr(shutil, "rmtree", fail_with(OSError(errno.ENOTEMPTY, "not empty")))
        disk.commit("2", {})
    assert "versions/1' could not be deleted and is left for the next commit" in caplog.text
    assert disk.load()["version"] == "2"
    disk.commit("3", {})
    assert list_files(disk) == ["state.json"]


@pytest.mark.parametrize("name", ["", "/a", "a/", "a//b", "../a", "a/..", ".a", "-a", "a b", "ä"])
def test_names_that_are_no_plain_file_names_are_refused(state, name):
    with pytest.raises(ValueError, match=r"name must be parts with '/' between of letters.*got"):
        state.write_array("1", name, np.ones(1))
    with pytest.raises(ValueError, match="name must be parts"):
        state.read_array("1", name)
    with pytest.raises(ValueError, match="version must be one part of letters"):
        state.commit(name, {})


def test_a_version_of_two_parts_is_refused(state):
    with pytest.raises(ValueError, match=r"version must be one part of .*, got '1/2'"):
        state.write_array("1/2", "a", np.ones(1))


def test_arrays_of_other_dtypes_are_refused(state):
    with pytest.raises(TypeError, match="values must be float32, float64, int64, got float16"):
        state.write_array("1", "a", np.ones(1, np.float16))


@pytest.mark.parametrize("key", ["format", "version", "checksum"])
def test_keys_of_the_state_itself_are_refused_in_a_manifest(state, key):
    with pytest.raises(ValueError, match=f"manifest must have no key of .*, got '{key}'"):
        state.commit("1", {key: 1})
    assert state.load() is None


def test_a_manifest_that_is_no_json_is_refused_and_the_state_stays(state):
    state.commit("1", {})
    with pytest.raises(TypeError, match="manifest must hold JSON values, got ndarray"):
        state.commit("2", {"theta": np.ones(2)})
    assert state.load()["version"] == "1"


def test_a_missing_array_is_named(state):
    with pytest.raises(CheckpointError, match=r"versions/1/W/3\.array' is missing\. .*delete it"):
        state.read_array("1", "W/3")


@pytest.mark.parametrize("values", [noise((40, 30)), sparse((40, 30))], ids=["dense", "sparse"])
def test_every_flipped_bit_is_found(disk, values):
    disk.write_array("1", "a", values)
    path = array_path(disk, "1", "a")
    whole = path.read_bytes()
    positions = [*range(160), *range(160, len(whole), 97), *range(len(whole) - 8, len(whole))]
    for position in positions:
        damaged = bytearray(whole)
        damaged[position] ^= 1 << position % 8
        path.write_bytes(damaged)
        with pytest.raises(CheckpointError, match=r"versions/1/a\.array'"):
            disk.read_array("1", "a")


@pytest.mark.parametrize("kept", [0, 1, 11, 12, 40, 127, 128, 1000, -1])
def test_truncated_arrays_are_found(disk, kept):
    disk.write_array("1", "a", noise((40, 30)))
    path = array_path(disk, "1", "a")
    path.write_bytes(path.read_bytes()[:kept])
    with pytest.raises(CheckpointError, match=r"versions/1/a\.array' must be"):
        disk.read_array("1", "a")


def test_an_array_with_bytes_after_it_is_found(disk):
    disk.write_array("1", "a", noise((40, 30)))
    path = array_path(disk, "1", "a")
    size = path.stat().st_size
    path.write_bytes(path.read_bytes() + b"\0")
    with pytest.raises(CheckpointError, match=rf"must be {size} bytes, got {size + 1}"):
        disk.read_array("1", "a")


@pytest.mark.parametrize(
    "text", [b"", b"{", b"[]", b"3", b"null", b"\xff", b"{}", b'{"format": 1, "version": "1"}']
)
def test_a_state_file_that_is_something_else_is_named(disk, text):
    disk.commit("1", {"round": 5})
    path = Path(disk.url, "state.json")
    path.write_bytes(text)
    with pytest.raises(CheckpointError, match=r"state\.json' must be JSON with a checksum"):
        disk.load()
    with pytest.raises(CheckpointError, match=r"state\.json'"):
        disk.delete_leftovers()


def test_a_changed_number_in_the_state_file_is_found(disk):
    disk.commit("1", {"round": 5})
    path = Path(disk.url, "state.json")
    path.write_bytes(path.read_bytes().replace(b"5", b"4", 1))
    with pytest.raises(CheckpointError, match=r"checksum of .*state\.json' must be 'crc32c:"):
        disk.load()


def test_newer_formats_are_refused_by_name(disk, monkeypatch):
    monkeypatch.setattr("dtopk_storage.run_state._FORMAT", 2)
    monkeypatch.setattr("dtopk_storage.array_files._FORMAT", 2)
    disk.write_array("1", "a", np.ones(2))
    disk.commit("1", {})
    monkeypatch.undo()
    with pytest.raises(CheckpointError, match=r"state\.json' must be of format 1, got 2"):
        disk.load()
    with pytest.raises(CheckpointError, match=r"a\.array' must be of format 1, got 2"):
        disk.read_array("1", "a")


def fail_with(error):
    def fail(*args, **kwargs):
        raise error

    return fail


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EFBIG])
def test_a_full_disk_is_named_and_costs_nothing_that_was_there(disk, monkeypatch, number):
    disk.write_array("1", "a", np.ones(3))
    disk.commit("1", {"round": 1})
    before = list_files(disk)
    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", fail_with(OSError(number, "no room")))
        message = r"{}' could not be written: no space is left for it\. The state committed before"
        with pytest.raises(CheckpointError, match=message.format(r"2/a\.array")) as caught:
            disk.write_array("2", "a", np.zeros(3))
        assert isinstance(caught.value.__cause__, OSError)
        with pytest.raises(CheckpointError, match=message.format(r"state\.json")):
            disk.commit("2", {"round": 2})
    assert list_files(disk) == before
    assert disk.load()["round"] == 1
    np.testing.assert_array_equal(disk.read_array("1", "a"), np.ones(3))


def test_other_errors_of_a_disk_are_not_called_a_full_one(disk, monkeypatch):
    monkeypatch.setattr(os, "replace", fail_with(OSError(errno.EIO, "broken")))
    with pytest.raises(OSError, match="broken"):
        disk.write_array("1", "a", np.ones(3))
    assert list_files(disk) == []


def fill(state, values):
    for i in range(100):
        state.write_array("2", f"W/{i}", values)


def test_a_disk_that_fills_up_keeps_the_state_committed(tmp_path):
    small = tmp_path / "small"
    small.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=512k", "tmpfs", str(small)]
    if shutil.which("mount") is None or subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("mounting a file system takes more rights than this process has")
    try:
        state = open_run_state(small / "state")
        values = noise((200, 100))
        for name in ("W/0", "W/1"):
            state.write_array("1", name, values)
        state.commit("1", {"round": 1})
        with pytest.raises(CheckpointError, match="no space is left for it"):
            fill(state, values + 1)
        assert not [name for name in list_files(state) if name.endswith(".tmp")]
        assert state.load()["round"] == 1
        np.testing.assert_array_equal(state.read_array("1", "W/1"), values)
        state.delete_leftovers()
        state.write_array("2", "W/0", values + 1)
        state.commit("2", {"round": 2})
    finally:
        subprocess.run(["umount", str(small)], check=True)


def test_writers_of_one_name_do_not_mix(state):
    """Each of four threads writes its own number; whatever is read is all one number."""
    state.write_array("1", "a", np.zeros(5000))
    stop = threading.Event()

    def write(number):
        while not stop.is_set():
            state.write_array("1", "a", np.full(5000 + 100 * number, float(number)))

    threads = [threading.Thread(target=write, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    try:
        for _ in range(100):
            values = state.read_array("1", "a")
            assert (values == values[0]).all()
            assert len(values) == 5000 + 100 * values[0]
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    assert list_files(state) == ["versions/1/a.array"]


@pytest.mark.parametrize(
    "url", ["sftp://host/x", "https://host/x", "nonsense://x", "simplecache::s3://b/x", "memory://"]
)
def test_places_that_are_no_path_and_no_object_store_are_refused(url):
    with pytest.raises(ValueError, match=r"state of a run must be a path or an address .*, got"):
        open_run_state(url)


def test_a_store_whose_package_is_missing_is_refused(monkeypatch):
    monkeypatch.setattr(fsspec, "get_filesystem_class", fail_with(ImportError("Install s3fs")))
    with pytest.raises(ValueError, match=r"whose package is installed, got 's3://b/x': Install"):
        open_run_state("s3://b/x")


def test_local_urls_are_absolute_paths(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert open_run_state("run").url == str(tmp_path / "run")
    assert open_run_state(f"file://{tmp_path}/run/").url == str(tmp_path / "run")
    assert open_run_state("memory://a/b/").url == "memory://a/b"


@pytest.mark.parametrize(
    ("error", "kind", "number"),
    [
        (RuntimeError("no credentials"), OSError, errno.EIO),
        (FileNotFoundError("no bucket"), FileNotFoundError, errno.ENOENT),
        (PermissionError("denied"), PermissionError, errno.EACCES),
    ],
)
def test_errors_of_a_store_name_the_object(monkeypatch, error, kind, number):
    store = type(fsspec.filesystem("memory"))
    monkeypatch.setattr(store, "pipe_file", fail_with(error))
    with pytest.raises(kind, match="It could not be written") as caught:
        open_run_state("memory://x").write_array("1", "a", np.ones(1))
    assert caught.value.errno == number
    assert caught.value.filename == "memory://x/versions/1/a.array"


def test_an_object_is_created_once():
    folder = ObjectFolder(f"memory://{uuid.uuid4().hex}")
    folder.create("a", b"1")
    with pytest.raises(FileExistsError):
        folder.create("a", b"2")
    assert folder.read("a").tobytes() == b"1"
    folder.delete("a")
    folder.delete("a")


def test_a_listing_kept_from_before_is_not_used(monkeypatch):
    """An object store's client may keep listings; other processes write here."""
    store = type(fsspec.filesystem("memory"))
    ls = store.ls
    kept = {}

    def ls_once(self, path, **kwargs):
        if path not in kept:
            kept[path] = ls(self, path, **kwargs)
        return kept[path]

    monkeypatch.setattr(store, "ls", ls_once)
    monkeypatch.setattr(store, "invalidate_cache", lambda self, path=None: kept.clear())
    state = open_run_state(f"memory://{uuid.uuid4().hex}")
    for version in ("1", "2", "3"):
        state.write_array(version, "a", np.ones(1))
        state.commit(version, {})
    assert list_files(state) == ["state.json", "versions/3/a.array"]
