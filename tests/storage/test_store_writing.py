"""A store appears whole, or not at all."""

import errno
from pathlib import Path

import numpy as np
import pytest
import zarr

from dtopk_storage import DatasetError, create_store, open_store, publishing
from dtopk_storage.files import sync_folder
from dtopk_storage.replacement import find_replaced


def make(path, **options):
    return create_store(path, n_features=6, class_names=["a", "b", "c"], chunk_rows=8, **options)


def test_failed_block_leaves_nothing(tmp_path, rows):
    def fail():
        with make(tmp_path / "s") as writer:
            writer.append(*rows)
            raise RuntimeError("stop")

    with pytest.raises(RuntimeError, match="stop"):
        fail()
    assert list(tmp_path.iterdir()) == []


def test_store_is_absent_until_it_is_whole(tmp_path, rows):
    writer = make(tmp_path / "s")
    writer.append(*rows)
    assert not (tmp_path / "s").exists()
    writer.finish()
    assert [path.name for path in tmp_path.iterdir()] == ["s"]


def test_manifest_is_written_last(tmp_path, rows, monkeypatch):
    seen = []
    create_group = publishing.zarr.create_group

    def spy(folder, **options):
        seen.extend(sorted(path.name for path in folder.iterdir()))
        return create_group(folder, **options)

    monkeypatch.setattr(publishing.zarr, "create_group", spy)
    with make(tmp_path / "s") as writer:
        writer.append(*rows)
    assert seen == ["feature_mean", "feature_std", "features", "labels"]


def test_existing_store_is_not_overwritten_unasked(store, tmp_path):
    with pytest.raises(DatasetError, match=r"'.*store' exists already"):
        make(tmp_path / "store")


def test_existing_store_stays_when_its_replacement_fails(store, rows):
    def fail():
        with make(store.path, overwrite=True) as writer:
            writer.append(*rows)
            raise RuntimeError("stop")

    with pytest.raises(RuntimeError, match="stop"):
        fail()
    open_store(store.path).verify()


def test_existing_store_is_replaced_when_asked(store, rows, tmp_path):
    X, y = rows
    with make(store.path, overwrite=True) as writer:
        writer.append(X[:20] + 1, y[:20])
    assert open_store(store.path).n_samples == 20
    assert [path.name for path in tmp_path.iterdir()] == ["store"]


def test_store_whose_replacement_was_broken_off_is_named_and_put_back(store, rows):
    """A writer was killed between the two renames."""
    path = Path(store.path)
    left = path.with_name(f"{path.name}.writing-1") / "replaced"
    left.with_name("store").mkdir(parents=True)
    path.rename(left)
    with pytest.raises(DatasetError, match=rf"the earlier store is in '{left}'\. Write the new"):
        open_store(path)
    with pytest.raises(DatasetError, match="exists already"):
        make(path)
    open_store(path).verify()


@pytest.mark.parametrize("cause", [KeyboardInterrupt(), OSError(errno.EIO, "disk")])
@pytest.mark.parametrize("failing_call", [1, 2])
def test_store_stays_when_its_replacement_is_interrupted(store, rows, cause, failing_call):
    """While the disk is waited for after either rename: the earlier store is there, or the new."""
    path = Path(store.path)
    calls: list[Path] = []

    def fail(folder):
        if folder.name == "store":
            return  # its manifest has been written
        calls.append(folder)
        if len(calls) == failing_call:
            raise cause
        sync_folder(folder)

    writer = make(path, overwrite=True)
    writer.append(rows[0][:20], rows[1][:20])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(publishing, "sync_folder", fail)
        with pytest.raises(type(cause)):
            writer.finish()
    assert len(calls) == failing_call
    opened = open_store(path)
    opened.verify()
    assert opened.n_samples == (len(rows[0]) if failing_call == 1 else 20)
    assert [each.name for each in path.parent.iterdir()] == [path.name]


def test_store_that_cannot_be_put_back_is_kept(store, rows, monkeypatch, caplog):
    path = Path(store.path)
    writer = make(path, overwrite=True)
    writer.append(*rows)
    rename = Path.rename

    def fail(self, target):
        if Path(target) == path:
            raise OSError(errno.EIO, "disk")
        return rename(self, target)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "rename", fail)
        with pytest.raises(OSError, match="disk"):
            writer.finish()
    assert "could not be put back, and is in" in caplog.text
    with pytest.raises(DatasetError, match="exists already"):
        make(path)
    open_store(path).verify()


def test_store_that_was_replaced_does_not_come_back(store, rows):
    """A writer was killed when the new store was in its place, which somebody deleted then."""
    path = Path(store.path)
    left = path.with_name(f"{path.name}.writing-1") / "replaced"
    left.parent.mkdir()
    path.rename(left)
    with pytest.raises(DatasetError, match="must be an existing folder"):
        open_store(path)
    make(path).abort()
    assert list(path.parent.iterdir()) == []


def test_what_killed_writers_left_is_deleted_by_the_next(store, rows):
    path = Path(store.path)
    for name in (
        "writing-1/replaced",
        "writing-1/store",
        "writing-1-2/store",
        "writing-2020/photos",
    ):
        (path.parent / f"{path.name}.{name}").mkdir(parents=True)
    path.with_name(f"{path.name}.writing-3").touch()
    alive = make(path, overwrite=True)
    make(path, overwrite=True).abort()
    alive.append(*rows)
    alive.finish()
    names = {each.name for each in path.parent.iterdir()}
    assert names == {path.name, f"{path.name}.writing-2020", f"{path.name}.writing-3"}


def test_writer_leaves_a_store_alone_that_another_is_about_to_replace(store, rows, monkeypatch):
    """The second begins between the two renames of the first."""
    path = Path(store.path)
    first = make(path, overwrite=True)
    first.append(rows[0][:20], rows[1][:20])
    rename = Path.rename

    def begin_another(self, target):
        if Path(target) == path and self.name == "store":
            assert find_replaced(path)
            make(path).abort()
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", begin_another)
    first.finish()
    assert open_store(path).n_samples == 20
    assert [each.name for each in path.parent.iterdir()] == [path.name]


def test_a_folder_that_is_no_store_is_never_overwritten(tmp_path):
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "cat.png").write_bytes(b"")
    (tmp_path / "notes").write_text("")
    zarr.create_group(tmp_path / "other.zarr")
    for name in ("photos", "notes", "other.zarr"):
        with pytest.raises(DatasetError, match="must be a store to be overwritten"):
            make(tmp_path / name, overwrite=True)


def test_splits_appended_in_turns_have_several_ranges(tmp_path, rows):
    X, y = rows
    with make(tmp_path / "s") as writer:
        writer.append(X[:10], y[:10])
        writer.append(X[10:15], y[10:15], split="test")
        writer.append(X[15:20], y[15:20])
        writer.append(X[20:50], y[20:50])
    store = open_store(tmp_path / "s")
    assert store.splits == {"train": ((0, 10), (15, 50)), "test": ((10, 15),)}
    train = np.delete(X, np.s_[10:15], axis=0).astype(np.float64)
    np.testing.assert_allclose(store.mean, train.mean(axis=0), rtol=1e-12)
    store.verify()


def test_small_store_has_one_chunk_of_its_own_size(tmp_path, rows):
    with create_store(tmp_path / "s", n_features=6, class_names=list("abc")) as writer:
        writer.append(*rows)
    assert open_store(tmp_path / "s").chunk_rows == 50


def test_default_chunk_is_16_mib(tmp_path):
    with create_store(
        tmp_path / "s", n_features=1 << 19, class_names=["a", "b"], dtype="float16"
    ) as writer:
        writer.append(np.zeros((17, 1 << 19), np.float16), np.arange(17) % 2)
    assert open_store(tmp_path / "s").chunk_rows == 16


def test_large_mean_does_not_spoil_the_deviation(tmp_path):
    """Rows alternate between m - 1 and m + 1, so the deviation is 1 whatever m is."""
    X = 1e8 + np.tile([[-1.0], [1.0]], (500, 3))
    with create_store(
        tmp_path / "s", n_features=3, class_names=["a", "b"], dtype="float64"
    ) as writer:
        for start in range(0, 1000, 90):
            writer.append(X[start : start + 90], np.arange(len(X[start : start + 90])) % 2)
    store = open_store(tmp_path / "s")
    np.testing.assert_allclose(store.std, 1, rtol=1e-12)
    np.testing.assert_allclose(store.mean, 1e8, rtol=1e-15)


BAD_ROWS = {
    "another_width": (lambda X, y: (X[:, :5], y), r"X must have shape \(rows, 6\), got \(50, 5\)"),
    "other_length": (lambda X, y: (X, y[:49]), r"got 50 in X and 49 in y in rows 0:50"),
    "code_too_large": (
        lambda X, y: (X, y + 1),
        r"y must be whole numbers in 0:3, got 3 in row \d+ for",
    ),
    "code_negative": (
        lambda X, y: (X, y - 1),
        r"y must be whole numbers in 0:3, got -1 in row \d+ for",
    ),
}


@pytest.mark.parametrize(("change", "message"), BAD_ROWS.values(), ids=BAD_ROWS)
def test_bad_rows_are_refused(tmp_path, rows, change, message):
    writer = make(tmp_path / "s")
    with pytest.raises(DatasetError, match=message):
        writer.append(*change(*rows))


@pytest.mark.parametrize("code", [1.7, np.nan, np.inf, -0.5])
def test_codes_that_are_no_whole_numbers_are_refused_by_row(tmp_path, rows, code):
    X, y = rows
    writer = make(tmp_path / "s")
    writer.append(X[:10], y[:10].astype(float))
    codes = y[10:].astype(float)
    codes[5] = code
    message = rf"y must be whole numbers in 0:3, got {code} in row 15 for '.*s'"
    with pytest.raises(DatasetError, match=message):
        writer.append(X[10:], codes)


def test_names_are_no_codes(tmp_path, rows):
    with pytest.raises(DatasetError, match=r"y must be label codes, got 'str32' in rows 0:50 for"):
        make(tmp_path / "s").append(rows[0], ["a"] * 50)


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_features_that_are_not_finite_are_refused(tmp_path, rows, value):
    X, y = rows
    X[12, 4] = value
    writer = make(tmp_path / "s")
    writer.append(X[:10], y[:10])
    with pytest.raises(DatasetError, match=rf"finite, got {value} in row 12, column 4 of '.*s'"):
        writer.append(X[10:], y[10:])


def test_features_whose_squares_overflow_are_stored_without_a_warning(tmp_path, rows):
    """Training without scaling may do with them."""
    X, y = rows[0].astype(np.float64) * 1e200, rows[1]
    with make(tmp_path / "s", dtype="float64") as writer:
        writer.append(X[:20], y[:20])
        writer.append(X[20:], y[20:])
    store = open_store(tmp_path / "s")
    store.verify()
    np.testing.assert_array_equal(store.read_features(0, len(X)), X)
    assert np.isposinf(store.std).all()


def test_float16_overflow_is_refused(tmp_path, rows):
    X, y = rows
    X[3, 1] = 70000
    writer = make(tmp_path / "s", dtype="float16")
    message = r"fit into float16 \(at most 65504 in size\), got 70000 in row 3, column 1 of"
    with pytest.raises(DatasetError, match=message):
        writer.append(X, y)


def test_weights_are_given_as_announced(tmp_path, rows):
    with pytest.raises(DatasetError, match="sample_weight must be left out, as at the start"):
        make(tmp_path / "s").append(*rows, sample_weight=np.ones(50))
    with pytest.raises(DatasetError, match="sample_weight must be given, as at the start"):
        make(tmp_path / "t", sample_weight=True).append(*rows)
    with pytest.raises(DatasetError, match="got 50 in X and 2 in sample_weight"):
        make(tmp_path / "u", sample_weight=True).append(*rows, sample_weight=np.ones(2))


def test_store_without_training_rows_is_refused(tmp_path, rows):
    writer = make(tmp_path / "s")
    writer.append(*rows, split="val")
    with pytest.raises(DatasetError, match=r"must include 'train', got \['val'\]"):
        writer.finish()
    assert list(tmp_path.iterdir()) == []


def test_a_url_is_no_place_for_a_store():
    with pytest.raises(
        DatasetError, match=r"store must be a path or an address .*, got 'sftp://b/d'"
    ):
        make("sftp://b/d")


BAD_OPTIONS = {
    "bfloat16": ({"dtype": "bfloat16"}, "float16, float32 or float64, got 'bfloat16'"),
    "int_dtype": ({"dtype": "int32"}, "float16, float32 or float64, got 'int32'"),
    "compression": ({"compression": "gzip"}, "'none', 'lz4' or 'zstd', got 'gzip'"),
    "no_features": ({"n_features": 0}, "n_features must be at least 1, got 0"),
    "chunk_rows": ({"chunk_rows": 0}, "chunk_rows must be at least 1, got 0"),
    "one_class": ({"class_names": ["a"]}, "at least 2 classes, got only 'a'"),
    "large_class": ({"class_names": [1, 2**63]}, "integers of 64 bits, .* '9223372036854775808'"),
    "mixed_classes": ({"class_names": [1, "a"]}, "integers of 64 bits, as the first .* got 'a'"),
    "no_classes": ({"class_names": []}, "at least 2 classes, got none"),
    "same_classes": ({"class_names": ["a", "a"]}, "must differ, got 'a' twice"),
}


@pytest.mark.parametrize(("change", "message"), BAD_OPTIONS.values(), ids=BAD_OPTIONS)
def test_bad_options_are_refused_before_anything_is_written(tmp_path, change, message):
    options = {"n_features": 6, "class_names": ["a", "b"], **change}
    with pytest.raises(ValueError, match=message):
        create_store(tmp_path / "s", **options)
    assert list(tmp_path.iterdir()) == []
