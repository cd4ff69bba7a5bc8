"""Feature stores in an object store: in memory, and on a real S3 server."""

import contextlib
import errno
import json
import os
import pickle
import signal
import subprocess
import sys
import uuid

import fsspec  # type: ignore[import-untyped]
import numpy as np
import pytest

from dtopk_storage import DatasetError, create_dual, create_store, open_dual, open_store
from dtopk_storage.chunked import ChunkedArray
from dtopk_storage.ingest import IngestOptions, ingest
from dtopk_storage.objects import ObjectPath
from tests.s3_server import FailingProxy, forget_clients, make_environment, use_server

N, D = 60, 4
CHUNK_BYTES = 7 * D * 4  # 9 chunks of features, the last of 4 rows
_NOW = "dtopk_storage.run_lock._SETTLE_S"


@pytest.fixture(params=["memory", "s3"])
def far(request, monkeypatch):
    """Give an address in an object store where nothing is."""
    monkeypatch.setattr(_NOW, 0)
    if request.param == "s3":
        return request.getfixturevalue("s3")
    return f"memory://{uuid.uuid4().hex}"


@pytest.fixture
def source(tmp_path):
    rng = np.random.default_rng(0)
    X = rng.standard_normal((N, D)).astype(np.float32)
    np.savez(tmp_path / "a.npz", X=X, y=rng.choice(["a", "b", "c"], N), w=rng.random(N))
    return tmp_path / "a.npz"


WAYS = {
    "in_order": {},
    "drawn": {"splits": (("val", 0.2), ("test", 0.3))},
    "shuffled": {"splits": (("val", 0.2),), "shuffle": True, "compression": "zstd"},
}


def options(way, **changes):
    return IngestOptions(chunk_bytes=CHUNK_BYTES, weights_key="w", **WAYS[way], **changes)


def contents(url):
    """Give all objects below an address, by name."""
    path = ObjectPath(url)
    return {name: (path / name).read_bytes() for name in path.find()}


@contextlib.contextmanager
def count_chunks():
    """Give a list of the names of arrays, one for each chunk of them that is written."""
    written: list[str] = []
    write_chunk = ChunkedArray.write_chunk

    def note(self, *arguments, **more):
        written.append(self.path.name)
        write_chunk(self, *arguments, **more)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ChunkedArray, "write_chunk", note)
        yield written


def files(store):
    """Give all files of a store on disk, by name."""
    folder = store.arrays["features"].path.parent
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }


@pytest.mark.parametrize("way", WAYS)
def test_a_store_has_the_same_bytes_as_on_disk(source, tmp_path, far, way):
    on_disk = ingest(source, tmp_path / "s", options(way))
    made = ingest(source, f"{far}/s", options(way))
    assert made.path == f"{far}/s"
    assert contents(made.path) == files(on_disk)
    # Neither plan nor lock is left, nor rows on their way.
    assert list(ObjectPath(f"{far}/s.partial").find()) == []
    made.verify()
    for start, stop in [(0, N), (3, 5), (5, 30), (N, N)]:
        np.testing.assert_array_equal(
            made.read_features(start, stop), on_disk.read_features(start, stop)
        )
    assert made.read_features(0, 3).flags.writeable


def test_any_zarr_reader_opens_it(source, s3):
    made = ingest(source, f"{s3}/s", options("shuffled"))
    code = "import sys, zarr; print(zarr.open_group(sys.argv[1], mode='r')['features'][:].tolist())"
    # In a process of its own, which does not close its connections.
    read = subprocess.run([sys.executable, "-c", code, made.path], capture_output=True, timeout=120)
    assert json.loads(read.stdout) == made.read_features(0, N).tolist()


def test_multilabel_rows_are_read(tmp_path, far):
    with create_store(
        f"{far}/s", n_features=D, class_names=["a", "b", "c"], kind="multilabel", chunk_rows=4
    ) as writer:
        writer.append(np.ones((10, D), np.float32), [[0], [], [1, 2]] + [[2]] * 7)
    store = open_store(f"{far}/s")
    assert store.read_label_rows(0, 3).indices.tolist() == [0, 1, 2]
    store.verify()


def test_a_store_can_be_sent_while_chunks_are_under_way(source, far):
    store = ingest(source, f"{far}/s", options("in_order"))
    store.expect([(0, N)])
    other = pickle.loads(pickle.dumps(store))
    np.testing.assert_array_equal(other.read_features(0, N), store.read_features(0, N))


def test_a_store_may_be_the_source_of_another(source, tmp_path, far):
    first = ingest(source, f"{far}/s", options("in_order"))
    for target in (f"{far}/t", tmp_path / "t"):
        second = ingest(f"{far}/s", target, IngestOptions(dtype="float16"))
        assert second.provenance["source"] == first.path
        assert str(second.provenance["source_modified"]) > "2020"
        np.testing.assert_array_equal(
            second.read_features(0, N), first.read_features(0, N).astype(np.float16)
        )


def test_other_files_in_an_object_store_are_no_source(far):
    ObjectPath(f"{far}/x.npz").write_bytes(b"x")
    with pytest.raises(DatasetError, match=r"source in an object store must be a feature store"):
        ingest(f"{far}/x.npz", f"{far}/s")


def test_a_store_is_there_once_its_manifest_is(source, far, monkeypatch):
    monkeypatch.setattr(
        "dtopk_storage.publishing.write_manifest", lambda *_: (_ for _ in ()).throw(KeyError)
    )
    with pytest.raises(KeyError):
        ingest(source, f"{far}/s", options("in_order"))
    assert any(name.startswith("labels/") for name in contents(f"{far}/s"))
    with pytest.raises(DatasetError, match=r"unfinished ingest in '.*s\.partial'"):
        open_store(f"{far}/s")


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("call", [4, 10])
def test_a_broken_ingest_goes_on(source, tmp_path, far, way, call):
    expected = files(ingest(source, tmp_path / "s", options(way)))
    calls = iter(range(100))
    write_chunk = ChunkedArray.write_chunk

    def fragile(self, *arguments, **more):
        if next(calls) == call:
            raise KeyboardInterrupt
        write_chunk(self, *arguments, **more)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ChunkedArray, "write_chunk", fragile)
        with pytest.raises(KeyboardInterrupt):
            ingest(source, f"{far}/s", options(way))
    with count_chunks() as written:
        ingest(source, f"{far}/s", options(way))
    assert contents(f"{far}/s") == expected
    assert written.count("features") == max(9 - call, 0)


def test_another_command_does_not_go_on(source, far):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ChunkedArray, "write_chunk", lambda *a, **k: (_ for _ in ()).throw(KeyError))
        with pytest.raises(KeyError):
            ingest(source, f"{far}/s", options("in_order"))
    with pytest.raises(DatasetError, match=r"was begun by another command: seed was 0, got 1"):
        ingest(source, f"{far}/s", options("in_order", seed=1))


def test_what_an_ingest_left_is_in_nobodys_way(source, tmp_path, far):
    """Its plan was deleted, as the message advises; its chunks are none of another one's."""
    expected = files(ingest(source, tmp_path / "s", options("in_order")))
    ObjectPath(f"{far}/s/features/c/0/0").write_bytes(b"of another time")
    ingest(source, f"{far}/s", options("in_order"))
    assert contents(f"{far}/s") == expected


def test_what_stands_there_is_replaced_on_purpose_only(source, far):
    ingest(source, f"{far}/s", options("in_order"))
    with pytest.raises(DatasetError, match=r"'.*/s' exists already"):
        ingest(source, f"{far}/s", options("in_order"))
    made = ingest(source, f"{far}/s", IngestOptions(dtype="float16", overwrite=True))
    assert made.dtype == np.float16
    assert len([name for name in contents(made.path) if name.startswith("features/c/")]) == 1
    with pytest.raises(DatasetError, match="exists already"):
        create_store(f"{far}/s", n_features=D, class_names=["a", "b"])
    ObjectPath(f"{far}/t/notes.txt").write_bytes(b"x")
    for overwrite in (False, True):
        with pytest.raises(DatasetError, match=r"exists already|must be a store to be overwritten"):
            ingest(source, f"{far}/t", options("in_order", overwrite=overwrite))
    assert contents(f"{far}/t") == {"notes.txt": b"x"}


def test_a_writer_that_fails_leaves_nothing(far):
    writer = create_store(f"{far}/s", n_features=D, class_names=["a", "b"], chunk_rows=2)
    with pytest.raises(DatasetError, match="got 7 in row 5"), writer:  # noqa: PT012
        writer.append(np.ones((5, D), np.float32), [0, 1, 0, 1, 0])
        writer._behind.wait()
        assert len(contents(f"{far}/s")) == 2
        writer.append(np.ones((1, D), np.float32), [7])
    assert contents(f"{far}/s") == {}


def test_two_ingests_do_not_write_at_the_same_time(source, far):
    def come_too(progress):
        with pytest.raises(DatasetError, match=r"s\.partial' must have one writer, but another"):
            ingest(source, f"{far}/s", options("in_order"))

    ingest(source, f"{far}/s", options("in_order"), come_too)
    open_store(f"{far}/s").verify()


def test_an_ingest_that_lost_its_lock_leaves_all_to_the_other(source, far):
    """It makes no store, and deletes none of the chunks, which may be the other's."""

    def lose_lock(progress):
        if progress.rows == N and progress.stage == "features":
            ObjectPath(f"{far}/s.partial/lock").unlink()
            lost.append(1)

    lost: list[int] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("dtopk_storage.run_lock.ObjectLock.lost", property(lambda self: bool(lost)))
        with pytest.raises(DatasetError, match="another ingest is at work in it"):
            ingest(source, f"{far}/s", options("in_order"), lose_lock)
    assert len([name for name in contents(f"{far}/s") if name.startswith("features/c/")]) == 9
    assert "plan.json" in contents(f"{far}/s.partial")
    open_after = ingest(source, f"{far}/s", options("in_order"))
    open_after.verify()


def test_damage_is_named(source, far):
    store = ingest(source, f"{far}/s", options("in_order"))
    chunk = store.arrays["features"].chunk_path(3)
    body = bytearray(chunk.read_bytes())
    body[9] ^= 1
    chunk.write_bytes(bytes(body))
    with pytest.raises(DatasetError, match=rf"crc32c of chunk 3 \(rows 21:28\) of '{far}/s/fea"):
        store.verify()
    chunk.write_bytes(bytes(body[:-1]))
    with pytest.raises(DatasetError, match=r"chunk 3 .* must be 116 bytes, got 115"):
        store.verify()
    chunk.unlink()
    with pytest.raises(DatasetError, match=r"chunk 3 .* is missing\. Ingest it again"):
        store.verify()


def test_duals_are_zero_until_they_are_written(far):
    dual = create_dual(f"{far}/dual", n_samples=5, n_classes=3, dtype="float32", chunk_rows=2)
    values = np.arange(6, dtype=np.float32).reshape(2, 3)
    dual.write(2, values)
    read = open_dual(f"{far}/dual").read(0, 5)
    np.testing.assert_array_equal(read, np.vstack([np.zeros((2, 3)), values, np.zeros((1, 3))]))
    with pytest.raises(ValueError, match="exists already"):
        create_dual(f"{far}/dual", n_samples=5, n_classes=3, dtype="float32", chunk_rows=2)


def test_several_chunks_are_under_way_at_a_time(far, source, monkeypatch):
    store = ingest(source, f"{far}/s", options("in_order"))
    fetched = []
    fetch = ChunkedArray._fetch

    def note(self, chunk):
        fetched.append(chunk)
        return fetch(self, chunk)

    monkeypatch.setattr(ChunkedArray, "_fetch", note)
    store.expect([(0, 7), (35, N), (0, 7)])
    store.read_features(0, 7)
    store.read_features(35, 42)
    for start in (42, 49, 56):
        store.read_features(start, min(start + 7, N))
    assert sorted(fetched) == [0, 5, 6, 7, 8]


# Errors and credentials.


def test_a_bucket_that_is_not_there_is_named(s3, source):
    with pytest.raises(
        OSError, match="bucket must exist, but there is no 'dtopk-nowhere'"
    ) as caught:
        open_store("s3://dtopk-nowhere/s")
    assert caught.value.errno == errno.ENXIO
    assert caught.value.filename.startswith("s3://dtopk-nowhere/s")
    with pytest.raises(OSError, match="bucket must exist"):
        ingest(source, "s3://dtopk-nowhere/s")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"AWS_SECRET_ACCESS_KEY": "not-that-one"}, "refuses access .*Check the credentials"),
        ({"AWS_ACCESS_KEY_ID": "nobody"}, "refuses access .*Check the credentials"),
        ({"AWS_ACCESS_KEY_ID": "", "AWS_SECRET_ACCESS_KEY": ""}, "credentials must be in the env"),
        ({"AWS_PROFILE": "none-such"}, "credentials must be in the environment"),
    ],
)
def test_wrong_credentials_are_told_and_not_repeated(s3, s3_server, monkeypatch, changes, message):
    use_server(monkeypatch, s3_server, **changes)
    with pytest.raises(PermissionError, match=message) as caught:
        open_store(f"{s3}/s")
    assert "not-that-one" not in f"{caught.value} {caught.value.__cause__!r}"


def test_a_store_that_is_not_there_is_not_found(far):
    with pytest.raises(DatasetError, match=r"store must be an existing folder, got '.*/none'"):
        open_store(f"{far}/none")


@pytest.mark.parametrize(
    "url",
    [
        "s3://AKIAKEY:topsecret@bucket/s",
        "s3://AKIAKEY:top/secret@bucket/s",
        "s3://topsecret@bucket/s",
        "s3://bucket/s?AWSAccessKeyId=AKIAKEY&Signature=topsecret",
        "abfs://user:topsecret@account/s",
        "ftp://user:topsecret@bucket/s",
    ],
)
def test_addresses_with_credentials_are_refused_and_not_repeated(url, source):
    for attempt in (
        lambda: open_store(url),
        lambda: create_store(url, n_features=1, class_names=["a", "b"]),
        lambda: ingest(source, url),
        lambda: ingest(url, "t"),
        lambda: open_dual(url),
    ):
        with pytest.raises(ValueError, match=r"must be (an address without|a path or)") as caught:
            attempt()
        assert "secret" not in str(caught.value)
        assert "AKIAKEY" not in str(caught.value)


def test_an_azure_container_is_no_user():
    from dtopk_storage.addresses import has_credentials

    assert not has_credentials("abfs://container@account.dfs.core.windows.net/s")
    assert not has_credentials("s3://arn:aws:s3:eu-west-1:1:accesspoint/name/a@b")
    assert not has_credentials("s3://bucket/who@where")


def test_a_path_made_of_an_address_is_refused(tmp_path):
    from pathlib import Path

    with pytest.raises(DatasetError, match=r"must be a string where it is an address, got a path"):
        open_store(Path("s3://bucket/s"))


def test_a_store_is_no_whole_bucket():
    with pytest.raises(DatasetError, match=r"must be a path or an address such as"):
        open_store("s3://bucket")


def test_a_missing_package_is_named_with_its_extra(monkeypatch):
    def fail(scheme):
        raise ImportError("Install s3fs to access S3")

    monkeypatch.setattr(fsspec, "get_filesystem_class", fail)
    with pytest.raises(DatasetError, match=r"Install s3fs .*Run: pip install \"dtopk\[s3\]\""):
        open_store("s3://bucket/s")


# Faults.


@pytest.fixture
def no_waits(monkeypatch):
    monkeypatch.setattr("dtopk_storage.objects._FIRST_WAIT_S", 1e-3)
    monkeypatch.setattr("dtopk_storage.objects._LONGEST_WAIT_S", 1e-2)


@pytest.mark.parametrize(
    "error",
    [
        OSError(errno.EBUSY, "slow down"),
        ConnectionResetError("gone"),
        TimeoutError("late"),
    ],
)
def test_what_passes_is_tried_again(monkeypatch, no_waits, error):
    store = type(fsspec.filesystem("memory"))
    path, cat_file, failures = ObjectPath(f"memory://{uuid.uuid4().hex}/a"), store.cat_file, [1] * 7
    path.write_bytes(b"x")

    def fail(self, *arguments, **more):
        if failures:
            failures.pop()
            raise error
        return cat_file(self, *arguments, **more)

    monkeypatch.setattr(store, "cat_file", fail)
    assert path.read_bytes() == b"x"
    failures[:] = [1] * 8
    with pytest.raises(OSError, match="It could not be read"):
        path.read_bytes()


def test_what_does_not_pass_is_told_at_once(monkeypatch, no_waits):
    calls = []

    def fail(self, path, *arguments, **more):
        calls.append(path)
        raise PermissionError("no")

    monkeypatch.setattr(type(fsspec.filesystem("memory")), "cat_file", fail)
    with pytest.raises(PermissionError, match="refuses access"):
        ObjectPath("memory://a/b").read_bytes()
    assert len(calls) == 1


def test_a_store_with_faults_gives_the_same_bytes(source, tmp_path, s3, s3_server, monkeypatch):
    """A twentieth of the requests fail, in ingest and in reading."""
    expected = files(ingest(source, tmp_path / "s", options("drawn")))
    with FailingProxy(s3_server, share=0.05, seed=3) as proxy:
        use_server(monkeypatch, proxy.endpoint)
        for number in range(3):
            store = ingest(source, f"{s3}/{number}", options("drawn"))
            store.verify()
        forget_clients()
    use_server(monkeypatch, s3_server)
    for number in range(3):
        assert contents(f"{s3}/{number}") == expected
    assert proxy.n_requests > 100
    assert proxy.n_failed > 3


KILLED = """
import os, signal, sys
from dtopk_storage.chunked import ChunkedArray
from dtopk_storage.ingest import IngestOptions, ingest

write_chunk, calls = ChunkedArray.write_chunk, []

def die(self, *arguments, **more):
    if len(calls) == int(sys.argv[3]):
        more["behind"].wait()
        os.kill(os.getpid(), signal.SIGKILL)
    calls.append(1)
    write_chunk(self, *arguments, **more)

ChunkedArray.write_chunk = die
ingest(sys.argv[1], sys.argv[2], IngestOptions(chunk_bytes=112, weights_key="w", shuffle=True))
"""


@pytest.mark.slow
def test_a_killed_ingest_goes_on_at_once(source, tmp_path, s3, s3_server):
    """Its lock is not fresh for a minute: the machine knows that the process is gone."""
    chosen = IngestOptions(chunk_bytes=CHUNK_BYTES, weights_key="w", shuffle=True)
    expected = files(ingest(source, tmp_path / "s", chosen))
    for calls in (0, 3):
        killed = subprocess.run(
            [sys.executable, "-c", KILLED, str(source), f"{s3}/s", str(calls)],
            env={
                **os.environ, **make_environment(s3_server),
                "PYTHONPATH": os.pathsep.join(sys.path),
            },
            timeout=120,
        )  # fmt: skip
        assert killed.returncode == -signal.SIGKILL
        with pytest.raises(DatasetError, match="unfinished ingest"):
            open_store(f"{s3}/s")
    with count_chunks() as written:
        ingest(source, f"{s3}/s", chosen)
    assert written.count("features") == 6
    assert contents(f"{s3}/s") == expected
