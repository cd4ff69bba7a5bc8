"""Scores and labels kept in memory and in a temporary file."""

import errno
import gc
import io
import tempfile

import numpy as np
import pytest

from dtopk.evaluation import score_spool
from dtopk.evaluation.score_spool import ScoreSpool
from dtopk.evaluation.temporary_arrays import TemporaryArrays

ROW_BYTES = 3 * (4 + 1)
"""Three classes, float32."""


@pytest.fixture
def rows(rng):
    scores = rng.normal(size=(50, 3)).astype(np.float32)
    return scores > 0.5, scores


def fill(rows, memory_bytes):
    spool = ScoreSpool(n_classes=3, dtype=np.float32, memory_bytes=memory_bytes)
    for start in range(0, 50, 7):
        spool.append(*(values[start : start + 7] for values in rows))
    return spool


@pytest.mark.parametrize("memory_rows", [0, 1, 4, 20, 99, 1000])
def test_rows_come_back_as_they_went_in(rows, memory_rows):
    spool = fill(rows, max(1, memory_rows * ROW_BYTES))
    assert spool.n_rows == 50
    for kept, given in zip(zip(*spool.iter_chunks(), strict=True), rows, strict=True):
        np.testing.assert_array_equal(np.concatenate(kept), given)
    for kept, given in zip(zip(*spool.iter_classes(), strict=True), rows, strict=True):
        np.testing.assert_array_equal(np.concatenate(kept), given.T)


@pytest.mark.parametrize("memory_rows", [2, 4, 20, 99, 1000])
def test_memory_stays_within_its_limit(rows, memory_rows):
    assert fill(rows, memory_rows * ROW_BYTES).held_bytes <= memory_rows * ROW_BYTES


def test_file_is_made_only_where_memory_is_short(rows, monkeypatch):
    """Chunks of ten rows, of which two fit: the one being filled and the first."""
    made = []

    def make():
        made.append(TemporaryArrays())
        return made[-1]

    monkeypatch.setattr(score_spool, "TemporaryArrays", make)
    fill(tuple(values[:19] for values in rows), 20 * ROW_BYTES)
    assert not made
    fill(rows, 20 * ROW_BYTES)
    assert len(made) == 1


def test_file_has_no_name(rows, monkeypatch, tmp_path):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    spool = fill(rows, 1)
    assert list(tmp_path.iterdir()) == []
    assert next(spool.iter_chunks())[1].base is not None


def test_arrays_outlast_their_file(rng):
    arrays = TemporaryArrays()
    given = [rng.random(5), rng.random((2, 3)) > 0.5, rng.random(4).astype(np.float32)]
    numbers = [arrays.put(values) for values in given]
    read = [arrays.get(number) for number in numbers]
    del arrays
    gc.collect()
    for values, expected in zip(read, given, strict=True):
        assert not values.flags.writeable
        assert values.flags.aligned
        np.testing.assert_array_equal(values, expected)


def test_full_disk_is_reported_with_its_folder(monkeypatch, tmp_path):
    class FullFile(io.BytesIO):
        def write(self, data):
            raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(tempfile, "TemporaryFile", lambda **options: FullFile())
    with pytest.raises(OSError, match=rf"TMPDIR must have room for 40 bytes.*{tmp_path}") as caught:
        TemporaryArrays().put(np.zeros(5))
    assert caught.value.errno == errno.ENOSPC
