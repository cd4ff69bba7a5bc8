"""What becomes of the duals at the end of a run."""

import errno

import numpy as np
import pytest

from dtopk import testing
from dtopk.engine import ArrayRows, Callback, FitOptions, fit
from dtopk.losses import make_loss
from dtopk_storage import CheckpointError, open_dual

LOSS = make_loss("topk_hinge_beta", k=2, gamma=1.0)


@pytest.fixture
def rows():
    return ArrayRows(*testing.make_features(300, 8, 5, seed=4), 5)


class FailAfter(Callback):
    def on_epoch(self, record, W):
        if record.epoch == 2:
            raise RuntimeError("the disk of the validation set is gone")


def fill_disk(monkeypatch):
    def write_chunk(self, chunk, values):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("dtopk_storage.chunked.ChunkedArray.write_chunk", write_chunk)


def test_duals_of_a_finished_run_are_kept(rows, tmp_path):
    result = fit(rows, LOSS, FitOptions(), dual_path=tmp_path / "dual")
    assert result.duals_kept
    assert np.any(open_dual(tmp_path / "dual").read(0, 300))


def test_without_a_folder_no_duals_are_kept(rows):
    assert not fit(rows, LOSS, FitOptions()).duals_kept


def test_an_error_in_the_middle_leaves_no_duals(rows, tmp_path):
    """They would be mistaken for those of a run that came to its end."""
    with pytest.raises(RuntimeError, match="validation set"):
        fit(rows, LOSS, FitOptions(tol=1e-6), callbacks=[FailAfter()], dual_path=tmp_path / "dual")
    assert not (tmp_path / "dual").exists()


def test_duals_that_are_there_are_refused_before_training(rows, tmp_path):
    fit(rows, LOSS, FitOptions(), dual_path=tmp_path / "dual")
    before = open_dual(tmp_path / "dual").read(0, 300)
    epochs = []

    class Count(Callback):
        def on_epoch(self, record, W):
            epochs.append(record.epoch)

    with pytest.raises(CheckpointError, match="exists already"):
        fit(rows, LOSS, FitOptions(C=9.0), callbacks=[Count()], dual_path=tmp_path / "dual")
    assert epochs == []
    np.testing.assert_array_equal(open_dual(tmp_path / "dual").read(0, 300), before)


def test_a_full_disk_at_the_end_costs_the_duals_and_not_the_result(
    rows, tmp_path, monkeypatch, caplog
):
    fill_disk(monkeypatch)
    result = fit(rows, LOSS, FitOptions(), dual_path=tmp_path / "dual")
    assert result.certificate.certified
    assert not result.duals_kept
    assert "The dual variables are not kept. " in caplog.text
    assert not (tmp_path / "dual").exists()
