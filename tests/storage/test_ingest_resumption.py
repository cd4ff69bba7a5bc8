"""A broken ingest goes on where it was, and the store is the same to the last byte."""

import dataclasses
import errno
import fcntl
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zarr

from dtopk_storage import DatasetError, open_store, publishing
from dtopk_storage.chunked import ChunkedArray
from dtopk_storage.ingest import IngestOptions, ingest, working_folder
from dtopk_storage.ingest.buckets import Buckets
from dtopk_storage.ingest.plan import Plan, fingerprint, save_plan
from dtopk_storage.publishing import Columns

N, D = 60, 4
CHUNK_BYTES = 7 * D * 4  # 9 chunks of features, the last of 4 rows


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch):
    monkeypatch.setattr("dtopk_storage.sources.arrays._BLOCK_BYTES", 10 * D * 4)
    monkeypatch.setattr("dtopk_storage.ingest.buckets.BUCKET_BYTES", 2 * CHUNK_BYTES)
    monkeypatch.setattr("dtopk_storage.ingest.buckets._SYNC_BYTES", 1)


@pytest.fixture
def source(tmp_path):
    rng = np.random.default_rng(0)
    X = rng.standard_normal((N, D)).astype(np.float32)
    np.savez(tmp_path / "a.npz", X=X, y=rng.choice(["a", "b", "c"], N), w=rng.random(N))
    return tmp_path / "a.npz"


WAYS = {
    "in_order": {},
    "by_row": {"split_rows": (("val", 0, 20), ("test", 33, 41))},
    "drawn": {"splits": (("val", 0.2), ("test", 0.3))},
    "shuffled": {"splits": (("val", 0.2),), "shuffle": True},
    "compressed": {"compression": "lz4", "shuffle": True},
}


def options(way, **changes):
    return IngestOptions(chunk_bytes=CHUNK_BYTES, weights_key="w", **WAYS[way], **changes)


def contents(folder):
    files = (path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


def break_at(monkeypatch, owner, name, call, error):
    """Make the call with this number fail, and leave the others."""
    method = getattr(owner, name)
    calls = iter(range(10**6))

    def fragile(self, *arguments, **options):
        if next(calls) == call:
            raise error
        return method(self, *arguments, **options)

    monkeypatch.setattr(owner, name, fragile)


def interrupt(source, path, chosen, owner, name, call):
    with pytest.MonkeyPatch.context() as patch:
        break_at(patch, owner, name, call, KeyboardInterrupt())
        with pytest.raises(KeyboardInterrupt):
            ingest(source, path, chosen)
    assert not path.exists()


@pytest.mark.parametrize("way", WAYS)
def test_ingest_broken_at_any_chunk_ends_the_same(source, tmp_path, way):
    expected = contents_of_undisturbed(source, tmp_path, way)
    path = tmp_path / "s"
    n_chunks = 9
    for call in (0, 4, n_chunks - 1, n_chunks + 2):
        interrupt(source, path, options(way), ChunkedArray, "write_chunk", call)
        ingest(source, path, options(way))
        assert contents(path) == expected
        shutil.rmtree(path)


@pytest.mark.parametrize("way", WAYS)
def test_ingest_broken_at_every_chunk_ends_the_same(source, tmp_path, way):
    """One chunk a run, and then the run breaks."""
    expected = contents_of_undisturbed(source, tmp_path, way)
    path = tmp_path / "s"
    for _ in range(9):
        interrupt(source, path, options(way), ChunkedArray, "write_chunk", 1)
    ingest(source, path, options(way))
    assert contents(path) == expected


@pytest.mark.parametrize("step", ["deal", "_save", "read", "discard"])
@pytest.mark.parametrize("call", [0, 1, 3])
def test_shuffle_broken_at_any_step_ends_the_same(source, tmp_path, step, call):
    expected = contents_of_undisturbed(source, tmp_path, "shuffled")
    path = tmp_path / "s"
    interrupt(source, path, options("shuffled"), Buckets, step, call)
    ingest(source, path, options("shuffled"))
    assert contents(path) == expected


KILLED = """
import os, sys
from pathlib import Path
from dtopk_storage.ingest import IngestOptions, ingest, working_folder

replace = Path.replace
names = []

def die(self, target):
    names.append(target.name)
    if names.count(sys.argv[3]) == int(sys.argv[4]):
        os._exit(9)
    return replace(self, target)

Path.replace = die
ingest(sys.argv[1], sys.argv[2], IngestOptions(chunk_bytes=112, weights_key="w"))
"""


@pytest.mark.parametrize(
    ("name", "count"),
    [("0", 4), ("zarr.json", 1), ("zarr.json", 3), ("zarr.json", 6), ("plan.json", 1)],
)
def test_killed_ingest_ends_the_same(source, tmp_path, name, count):
    """Killed before a rename, so that the temporary file stays: of a chunk, or of zarr's."""
    expected = contents_of_undisturbed(source, tmp_path, "in_order")
    command = [sys.executable, "-c", KILLED, str(source), str(tmp_path / "s"), name, str(count)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    assert subprocess.run(command, env=environment, check=False).returncode == 9
    assert not (tmp_path / "s").exists()
    ingest(source, tmp_path / "s", options("in_order"))
    assert contents(tmp_path / "s") == expected


def contents_of_undisturbed(source, tmp_path, way):
    ingest(source, tmp_path / "undisturbed", options(way)).verify()
    assert not (tmp_path / "undisturbed.partial").exists()
    return contents(tmp_path / "undisturbed")


@pytest.mark.parametrize(
    ("name", "text", "match"),
    [
        ("plan.json", "[]", "it must be one JSON object"),
        ("plan.json", "[" * 100_000, "nested too deeply"),
        ("plan.json", "{}", "key 'command' is missing"),
        ("plan.json", '{"command": {}, "manifest": {}}', "must tell of 'files'"),
        ("labels.npy", "text", "must be readable"),
        ("buckets/progress.json", "{}", "key 'n_dealt' is missing"),
        ("buckets/progress.json", '{"n_dealt": 999999}', "must be at most 60, got 999999"),
        ("buckets/progress.json", '{"n_dealt": "9"}', "'n_dealt' must be a whole number"),
    ],
)
def test_damaged_files_of_a_broken_ingest_are_named(source, tmp_path, name, text, match):
    interrupt(source, tmp_path / "s", options("shuffled"), Buckets, "deal", 1)
    path = tmp_path / "s.partial" / name
    assert path.is_file()
    path.write_text(text)
    with pytest.raises(DatasetError, match=match) as caught:
        ingest(source, tmp_path / "s", options("shuffled"))
    assert str(path) in str(caught.value)


def test_resumed_ingest_writes_only_what_is_missing(source, tmp_path, monkeypatch):
    interrupt(source, tmp_path / "s", options("in_order"), ChunkedArray, "write_chunk", 6)
    written = []
    write_chunk = ChunkedArray.write_chunk

    def spy(self, chunk, values, **keywords):
        written.append((self.path.name, chunk))
        write_chunk(self, chunk, values, **keywords)

    monkeypatch.setattr(ChunkedArray, "write_chunk", spy)
    ingest(source, tmp_path / "s", options("in_order"))
    assert [chunk for name, chunk in written if name == "features"] == [6, 7, 8]


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EFBIG])
def test_full_disk_says_how_far_it_came_and_goes_on(source, tmp_path, number):
    message = (
        r"no space is left for '.*s\.partial', after 21 rows of features\. "
        r"Free some and run the same command again: it goes on from there\."
    )
    with pytest.MonkeyPatch.context() as patch:
        break_at(patch, ChunkedArray, "write_chunk", 3, OSError(number, os.strerror(number)))
        with pytest.raises(DatasetError, match=message):
            ingest(source, tmp_path / "s", options("in_order"))
    assert ingest(source, tmp_path / "s", options("in_order")).n_samples == N


def test_other_errors_of_the_disk_pass_and_keep_the_work(source, tmp_path):
    with pytest.MonkeyPatch.context() as patch:
        break_at(patch, ChunkedArray, "write_chunk", 3, OSError(errno.EIO, "broken disk"))
        with pytest.raises(OSError, match="broken disk"):
            ingest(source, tmp_path / "s", options("in_order"))
    assert len(list((tmp_path / "s.partial/store/features/c").iterdir())) == 3


def test_another_command_does_not_go_on_with_it(source, tmp_path):
    interrupt(source, tmp_path / "s", options("in_order"), ChunkedArray, "write_chunk", 3)
    message = r"begun by another command: dtype was None, got 'float16'\. Run that command again"
    with pytest.raises(DatasetError, match=message):
        ingest(source, tmp_path / "s", options("in_order", dtype="float16"))
    assert ingest(source, tmp_path / "s", options("in_order")).dtype == np.float32


def test_a_changed_source_does_not_go_on_with_it(source, tmp_path):
    interrupt(source, tmp_path / "s", options("in_order"), ChunkedArray, "write_chunk", 3)
    np.savez(source, X=np.zeros((N, D)), y=np.arange(N) % 2, w=np.ones(N))
    message = r"'.*a\.npz' must be as it was when '.*s\.partial' was begun, but it has changed\."
    with pytest.raises(DatasetError, match=message):
        ingest(source, tmp_path / "s", options("in_order"))


def test_another_source_does_not_go_on_with_it(source, tmp_path):
    interrupt(source, tmp_path / "s", options("in_order"), ChunkedArray, "write_chunk", 3)
    shutil.copy(source, tmp_path / "b.npz")
    message = r"begun by another command: its files were \['.*a\.npz'\], got '.*b\.npz'\. Run that"
    with pytest.raises(DatasetError, match=message):
        ingest(tmp_path / "b.npz", tmp_path / "s", options("in_order"))


def write_zarr(folder, values):
    """Write features in chunks of 10 rows, and labels, over those that are there."""
    if not folder.exists():
        group = zarr.create_group(folder)
        group.create_array("X", shape=(N, D), chunks=(10, D), dtype="float32", compressors=None)
        group.create_array("y", shape=N, chunks=(N,), dtype="int64")
    group = zarr.open_group(folder, mode="r+")
    group["X"][:] = np.full((N, D), values, np.float32)
    group["y"][:] = np.arange(N) % 3


def write_parquet(folder, values):
    folder.mkdir(exist_ok=True)
    for part in range(2):
        table = {"f": np.full(N // 2, values, np.float32), "label": np.arange(N // 2) % 3}
        pq.write_table(pa.table(table), folder / f"{part}.parquet")


FOLDERS = {"zarr": write_zarr, "parquet": write_parquet}


@pytest.mark.parametrize("write", FOLDERS.values(), ids=FOLDERS)
def test_a_folder_whose_files_were_changed_does_not_go_on(tmp_path, write):
    """The folder itself keeps its size and time when the files in it are written anew."""
    folder, chosen = tmp_path / "source", IngestOptions(chunk_bytes=CHUNK_BYTES)
    write(folder, 1)
    before = folder.stat()
    interrupt(folder, tmp_path / "s", chosen, ChunkedArray, "write_chunk", 1)
    write(folder, 2)
    os.utime(folder, ns=(before.st_atime_ns, before.st_mtime_ns))
    with pytest.raises(DatasetError, match=r"source' must be as it was when '.*s\.partial'"):
        ingest(folder, tmp_path / "s", chosen)


def test_a_file_replaced_by_an_older_one_does_not_go_on(tmp_path):
    folder, chosen = tmp_path / "source", IngestOptions(chunk_bytes=CHUNK_BYTES)
    write_zarr(folder, 1)
    interrupt(folder, tmp_path / "s", chosen, ChunkedArray, "write_chunk", 1)
    os.utime(folder / "X" / "c" / "5" / "0", ns=(1, 1))
    with pytest.raises(DatasetError, match="must be as it was when"):
        ingest(folder, tmp_path / "s", chosen)


@pytest.mark.parametrize("write", FOLDERS.values(), ids=FOLDERS)
def test_a_source_that_changes_while_it_is_read_gives_no_store(tmp_path, write):
    folder = tmp_path / "source"
    write(folder, 1)

    def change(progress):
        if progress.stage == "features" and progress.rows < N:
            write(folder, 2)

    message = r"source' must stay as it is while it is read, but it was changed\. Ingest it again"
    with pytest.raises(DatasetError, match=message):
        ingest(folder, tmp_path / "s", IngestOptions(chunk_bytes=CHUNK_BYTES), change)
    assert [path.name for path in tmp_path.iterdir()] == ["source"]


def test_a_second_ingest_at_the_same_time_is_refused(source, tmp_path):
    (tmp_path / "s.partial").mkdir()
    with (tmp_path / "s.partial" / "lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        with pytest.raises(DatasetError, match="must have one writer, but another ingest is at"):
            ingest(source, tmp_path / "s")


def test_an_ingest_that_comes_while_another_ends_finds_its_store(source, tmp_path, monkeypatch):
    """The folder is removed while its lock is held, so nobody works in it."""
    answers: list[str] = []
    rmtree = shutil.rmtree

    def remove(folder, **keywords):
        if not answers:
            answers.append("")
            with pytest.raises(DatasetError) as caught:
                ingest(source, tmp_path / "s", options("in_order"))
            answers[0] = str(caught.value)
        rmtree(folder, **keywords)

    def publish(folder, target):
        with pytest.raises(DatasetError, match="must have one writer"):
            ingest(source, target, options("in_order"))
        publishing.publish(folder, target)
        monkeypatch.setattr(shutil, "rmtree", remove)

    monkeypatch.setattr("dtopk_storage.ingest.working_folder.publish", publish)
    ingest(source, tmp_path / "s", options("in_order")).verify()
    assert "exists already" in answers[0]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.npz", "s"]


def test_a_store_that_turns_up_meanwhile_costs_no_work(source, tmp_path, monkeypatch):
    path = tmp_path / "s"

    def appear(progress):
        if progress.stage == "features" and progress.rows == N and not path.exists():
            shutil.copytree(tmp_path / "other", path)

    ingest(source, tmp_path / "other", options("in_order", dtype="float16"))
    message = r"'.*s' exists already\. What is done is kept in '.*s\.partial'"
    with pytest.raises(DatasetError, match=message):
        ingest(source, path, options("in_order"), appear)
    assert open_store(path).dtype == np.float16
    with monkeypatch.context() as patch:
        patch.setattr("dtopk_storage.ingest.making.convert_features", None)
        store = ingest(source, path, options("in_order", overwrite=True))
    assert store.dtype == np.float32
    store.verify()


def test_a_source_that_cannot_be_read_for_a_while_costs_no_work(tmp_path, monkeypatch):
    np.save(tmp_path / "X.npy", np.ones((N, D), np.float32))
    np.save(tmp_path / "y.npy", np.arange(N) % 3)
    chosen = IngestOptions(chunk_bytes=CHUNK_BYTES, labels=tmp_path / "y.npy")
    blocks = iter(range(99))
    fromfile = np.fromfile

    def fail(*arguments, **options):
        if next(blocks) == 3:
            raise OSError(errno.EIO, "the network is down")
        return fromfile(*arguments, **options)

    monkeypatch.setattr(np, "fromfile", fail)
    with pytest.raises(DatasetError, match=r"must be readable, got: .* the network is down"):
        ingest(tmp_path / "X.npy", tmp_path / "s", chosen)
    assert len(list((tmp_path / "s.partial/store/features/c").iterdir())) == 4
    ingest(tmp_path / "X.npy", tmp_path / "s", chosen).verify()


def test_an_existing_store_stays_until_the_new_one_is_whole(source, tmp_path):
    path = tmp_path / "s"
    ingest(source, path, options("in_order"))
    before = contents(path)
    changed = options("in_order", dtype="float16", overwrite=True)
    with pytest.MonkeyPatch.context() as patch:
        break_at(patch, ChunkedArray, "write_chunk", 3, KeyboardInterrupt())
        with pytest.raises(KeyboardInterrupt):
            ingest(source, path, changed)
    assert contents(path) == before
    assert ingest(source, path, changed).dtype == np.float16
    assert sorted(child.name for child in tmp_path.iterdir()) == ["a.npz", "s"]


class _KilledError(BaseException):
    """Stands for a kill: nothing catches it."""


@pytest.mark.parametrize("call", ["rename", "rmtree"])
def test_an_ingest_killed_once_its_store_is_in_place_is_done(source, tmp_path, monkeypatch, call):
    """Its working folder goes, be it killed before that is renamed or while it is removed."""

    rmtree = shutil.rmtree

    def die(self):
        raise _KilledError

    def die_if_removed(folder, **known):
        if ".removed-" in str(folder):
            raise _KilledError
        rmtree(folder, **known)

    chosen = options("shuffled")
    path = tmp_path / "store"
    with monkeypatch.context() as patch:
        if call == "rename":
            patch.setattr(working_folder._FolderOnDisk, "remove", die)
        else:
            patch.setattr(working_folder.shutil, "rmtree", die_if_removed)
        with pytest.raises(_KilledError):
            ingest(source, path, chosen)
    before = contents(path)
    assert len(list(tmp_path.glob("store.partial*"))) == 1
    if call == "rename":
        assert ingest(source, path, chosen).n_samples == N
    else:
        with pytest.raises(DatasetError, match="exists already"):
            ingest(source, path, chosen)
    assert contents(path) == before
    assert not list(tmp_path.glob("store.partial*"))


@pytest.fixture
def replacing(source, tmp_path):
    """Kill an ingest between its two renames; give its options, and the files of the old store."""
    path = tmp_path / "s"
    ingest(source, path, options("in_order"))
    before = contents(path)
    chosen = options("in_order", dtype="float16", overwrite=True)
    rename = Path.rename

    def die(self, target):
        if self.name == "store":
            raise _KilledError
        return rename(self, target)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Path, "rename", die)
        patch.setattr(publishing, "put_back", lambda replaced, path: None)
        with pytest.raises(_KilledError):
            ingest(source, path, chosen)
    assert not path.exists()
    return chosen, before


def test_ingest_killed_between_two_renames_ends_the_same(source, tmp_path, replacing):
    chosen, _ = replacing
    ingest(source, tmp_path / "undisturbed", chosen)
    ingest(source, tmp_path / "s", chosen)
    assert contents(tmp_path / "s") == contents(tmp_path / "undisturbed")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.npz", "s", "undisturbed"]


def test_store_that_made_room_is_named_to_who_opens_it(tmp_path, replacing):
    message = r"'.*s' must be there, but its replacement .* is in '.*s\.partial/replaced'\. Write"
    with pytest.raises(DatasetError, match=message):
        open_store(tmp_path / "s")


@pytest.mark.parametrize("change", [{"overwrite": False}, {"dtype": "float64"}])
def test_store_that_made_room_is_back_before_another_command_is_refused(
    source, tmp_path, replacing, change
):
    chosen, before = replacing
    with pytest.raises(DatasetError, match=r"exists already|begun by another command"):
        ingest(source, tmp_path / "s", dataclasses.replace(chosen, **change))
    assert contents(tmp_path / "s") == before


def test_store_that_made_room_is_back_where_its_source_is_gone(source, tmp_path, replacing):
    chosen, before = replacing
    source.unlink()
    with pytest.raises(DatasetError, match=r"a\.npz"):
        ingest(source, tmp_path / "s", chosen)
    assert contents(tmp_path / "s") == before


def test_store_that_cannot_take_its_place_leaves_the_earlier_one(source, tmp_path, monkeypatch):
    path = tmp_path / "s"
    ingest(source, path, options("in_order"))
    before = contents(path)
    rename = Path.rename

    def fail(self, target):
        if self.name == "store":
            raise OSError(errno.EIO, "broken disk")
        return rename(self, target)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "rename", fail)
        with pytest.raises(OSError, match="broken disk"):
            ingest(source, path, options("in_order", dtype="float16", overwrite=True))
    assert contents(path) == before


def test_replaced_store_of_an_ingest_killed_at_its_end_goes(source, tmp_path, monkeypatch):
    path = tmp_path / "s"
    chosen = options("in_order", dtype="float16", overwrite=True)

    def die(self):
        raise _KilledError

    ingest(source, path, options("in_order"))
    with monkeypatch.context() as patch:
        patch.setattr(working_folder._FolderOnDisk, "remove", die)
        with pytest.raises(_KilledError):
            ingest(source, path, chosen)
    assert (tmp_path / "s.partial" / "replaced").is_dir()
    assert ingest(source, path, chosen).dtype == np.float16
    assert sorted(child.name for child in tmp_path.iterdir()) == ["a.npz", "s"]


def test_folder_of_a_users_own_beside_the_store_stays(source, tmp_path):
    """Named as one might think that a replaced store is."""
    own = tmp_path / "s.replaced"
    ingest(source, own, options("in_order"))
    before = contents(own)
    for chosen in (options("in_order"), options("in_order", overwrite=True)):
        ingest(source, tmp_path / "s", chosen)
    assert contents(own) == before


def test_another_store_in_place_of_an_unfinished_one_is_not_taken_for_it(source, tmp_path):
    """Its plan is there and no features are: only the manifest tells."""
    path, work = tmp_path / "store", tmp_path / "store.partial"
    chosen = options("in_order")
    done = ingest(source, tmp_path / "other", options("drawn"))
    command = fingerprint(source, chosen)
    work.mkdir()
    columns = Columns(labels=np.zeros(N, np.int32), sample_weight=None, row_id=None)
    manifest = dataclasses.replace(done.manifest, provenance={"source": "elsewhere"})
    save_plan(work, command, Plan(manifest=manifest, columns=columns))
    (tmp_path / "other").rename(path)
    with pytest.raises(DatasetError, match="exists already"):
        ingest(source, path, chosen)
    assert open_store(path).manifest == done.manifest


def test_an_existing_store_is_not_overwritten_unasked(source, tmp_path):
    ingest(source, tmp_path / "s")
    with pytest.raises(DatasetError, match=r"'.*s' exists already"):
        ingest(source, tmp_path / "s")
    open_store(tmp_path / "s").verify()


def test_a_chunk_spoilt_between_the_runs_is_found(source, tmp_path, flip_byte):
    interrupt(source, tmp_path / "s", options("in_order"), ChunkedArray, "write_chunk", 6)
    flip_byte(tmp_path / "s.partial" / "store" / "features" / "c" / "2" / "0")
    with pytest.raises(DatasetError, match=r"crc32c of chunk 2 \(rows 14:21\)"):
        ingest(source, tmp_path / "s", options("in_order"))
    ingest(source, tmp_path / "s", options("in_order")).verify()
