"""Duals on disk: whole chunks, one at a time."""

import errno
import pickle
from pathlib import Path

import numpy as np
import pytest
import zarr

from dtopk_storage import CheckpointError, create_dual, open_dual


@pytest.fixture
def dual(tmp_path):
    return create_dual(tmp_path / "dual", n_samples=20, n_classes=5, dtype="float32", chunk_rows=8)


@pytest.fixture
def values():
    return np.random.default_rng(2).standard_normal((20, 5)).astype(np.float32)


def test_duals_never_written_are_zero(dual):
    np.testing.assert_array_equal(dual.read(0, 20), np.zeros((20, 5), np.float32))


def test_duals_are_read_back_and_by_plain_zarr(dual, values):
    dual.write(8, values[8:])
    expected = np.where(np.arange(20)[:, None] < 8, 0, values)
    opened = open_dual(dual.path)
    np.testing.assert_array_equal(opened.read(0, 20), expected)
    np.testing.assert_array_equal(zarr.open_array(dual.path, mode="r")[:], expected)
    assert (opened.n_samples, opened.n_classes, opened.chunk_rows) == (20, 5, 8)
    assert opened.dtype == np.float32


def test_reopened_duals_write_the_same_bytes(dual, values):
    dual.write(0, values[:8])
    path = dual.array.chunk_path(0)
    before = path.read_bytes()
    open_dual(dual.path).write(0, values[:8])
    assert path.read_bytes() == before


def test_sparse_duals_cost_little(tmp_path):
    dual = create_dual(
        tmp_path / "d", n_samples=256, n_classes=500, dtype="float32", chunk_rows=256
    )
    values = np.zeros((256, 500), np.float32)
    values[:, 7] = np.linspace(-1, 1, 256)
    dual.write(0, values)
    assert dual.array.chunk_path(0).stat().st_size < values.nbytes / 25


def test_duals_pickle(dual, values):
    dual.write(0, values)
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(dual)).read(2, 19), values[2:19])


@pytest.mark.parametrize(("start", "stop"), [(1, 8), (0, 7), (8, 17), (16, 24)])
def test_partial_chunks_are_refused(dual, start, stop):
    with pytest.raises(ValueError, match=rf"whole chunks of 8 rows .* got rows {start}:{stop}"):
        dual.write(start, np.zeros((stop - start, 5), np.float32))


def test_other_widths_are_refused(dual):
    with pytest.raises(ValueError, match=r"5 columns, got rows 0:8 and shape \(8, 4\)"):
        dual.write(0, np.zeros((8, 4), np.float32))


def test_flipped_byte_is_a_checkpoint_error(dual, values, flip_byte):
    dual.write(0, values)
    flip_byte(dual.array.chunk_path(1))
    np.testing.assert_array_equal(dual.read(0, 8), values[:8])
    with pytest.raises(
        CheckpointError, match=r"crc32c of chunk 1 \(rows 8:16\).*Start from other duals"
    ):
        dual.read(8, 9)


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EFBIG])
def test_full_disk_is_a_checkpoint_error_and_keeps_the_old_chunk(dual, values, monkeypatch, number):
    dual.write(0, values)

    def full(self, target):
        raise OSError(number, "no room")

    monkeypatch.setattr(Path, "replace", full)
    message = (
        r"chunk 1 \(rows 8:16\) .* no space is left for it\. Those written before it are whole"
    )
    with pytest.raises(CheckpointError, match=message) as caught:
        dual.write(8, values[8:16] + 1)
    assert isinstance(caught.value.__cause__, OSError)
    np.testing.assert_array_equal(dual.read(0, 20), values)
    assert [path.name for path in dual.array.chunk_path(1).parent.iterdir()] == ["0"]


def test_interrupted_write_keeps_the_old_chunk_and_no_other_file(dual, values, monkeypatch):
    dual.write(0, values)

    def interrupt(self, target):
        raise KeyboardInterrupt

    monkeypatch.setattr(Path, "replace", interrupt)
    with pytest.raises(KeyboardInterrupt):
        dual.write(8, values[8:16] + 1)
    np.testing.assert_array_equal(dual.read(0, 20), values)
    assert [path.name for path in dual.array.chunk_path(1).parent.iterdir()] == ["0"]


def test_existing_duals_are_not_overwritten(dual):
    with pytest.raises(CheckpointError, match="exists already"):
        create_dual(dual.path, n_samples=3, n_classes=2, dtype="float32", chunk_rows=1)


def test_opening_missing_duals_says_so(tmp_path):
    with pytest.raises(CheckpointError, match="duals must be an existing folder, got"):
        open_dual(tmp_path / "none")


def test_opening_something_else_says_so(store, tmp_path):
    with pytest.raises(CheckpointError, match="must be a zarr v3 array, got"):
        open_dual(store.path)
    with pytest.raises(CheckpointError, match=r"of two dimensions, got int32 of shape \(50,\)"):
        open_dual(tmp_path / "store" / "labels")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"dtype": "float16"}, "must be float32 or float64, got 'float16'"),
        ({"n_samples": 0}, "n_samples must be at least 1, got 0"),
        ({"n_classes": 0}, "n_classes must be at least 1, got 0"),
        ({"chunk_rows": 0}, "chunk_rows must be at least 1, got 0"),
    ],
)
def test_bad_dual_sizes_are_refused(tmp_path, change, message):
    options = {"n_samples": 4, "n_classes": 3, "dtype": "float32", "chunk_rows": 2, **change}
    with pytest.raises(ValueError, match=message):
        create_dual(tmp_path / "d", **options)
