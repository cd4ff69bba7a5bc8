"""Stores, models and run folders that an earlier state of version 0.1.0 wrote can still be used.

`version-1.tar.xz` holds a store of 48 rows, a run on it that is done, one that was interrupted in
its fourth epoch, and the scores that the finished model gave the test rows then. It is never made
anew: a change that cannot read it breaks what users have.
"""

import tarfile
from pathlib import Path

import numpy as np
import pytest

import dtopk
from dtopk.job import load_job, train
from dtopk.job.run_folder import RunFolder
from dtopk.job.verification import verify_run
from dtopk.testing import make_features
from dtopk_storage import open_dual, open_store

ARCHIVE = Path(__file__).parents[1] / "data" / "version-1.tar.xz"

pytestmark = pytest.mark.usefixtures("no_figures")


@pytest.fixture
def old(tmp_path):
    with tarfile.open(ARCHIVE) as archive:
        archive.extractall(tmp_path, filter="data")
    for path in tmp_path.rglob("*"):
        if path.suffix in (".toml", ".json") and b"@HERE@" in path.read_bytes():
            path.write_text(path.read_text().replace("@HERE@", str(tmp_path)))
    return tmp_path


def test_store_is_read_and_whole(old):
    store = open_store(old / "store.zarr")
    assert (store.n_samples, store.n_features, store.class_names) == (
        48, 6, ("ant", "bee", "cat", "dog"),
    )  # fmt: skip
    store.verify()
    X, y = make_features(48, 6, 4, seed=0)
    np.testing.assert_array_equal(store.read_features(0, 48), X.astype(np.float16))
    np.testing.assert_array_equal(store.read_labels(0, 48), y)


def test_model_gives_the_scores_it_gave(old):
    model = dtopk.load_model(old / "run")
    X = open_store(old / "store.zarr").read_features(32, 48).astype(np.float64)
    np.testing.assert_allclose(
        model.decision_function(X), np.load(old / "scores.npy"), rtol=1e-12, atol=1e-12
    )


def test_finished_run_is_verified_and_kept(old):
    certificate = verify_run(old / "run")
    assert certificate.certified
    assert certificate.primal == pytest.approx(16.504360637, rel=1e-9)
    with pytest.raises(ValueError, match="holds a run that has ended"):
        RunFolder(path=old / "run").check_usable()


def test_interrupted_run_goes_on_to_where_the_finished_one_came(old):
    job = load_job(old / "stopped" / "job.toml")
    result = train(job.data.store, job)
    assert (result.resumed_at, result.epochs) == ((4,), 14)
    finished = dtopk.load_model(old / "run")
    np.testing.assert_allclose(result.model.W, finished.W, rtol=1e-9, atol=1e-12)
    duals = [open_dual(old / name / "dual").read(0, 48) for name in ("run", "stopped")]
    np.testing.assert_allclose(duals[1], duals[0], rtol=1e-9, atol=1e-12)
