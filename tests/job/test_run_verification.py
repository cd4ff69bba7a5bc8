"""Recomputing a run's certificate from its files."""

import dataclasses
import json
import shutil

import numpy as np
import pytest

from dtopk.job import DataSection, ModelSection, OutputSection, SolverSection, train
from dtopk.job.verification import verify_run
from dtopk.model import load_model
from dtopk_storage import create_store, open_dual
from tests.small_stores import make_rows, make_store


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(
    "model",
    [
        ModelSection(C=0.1),
        ModelSection(C=0.1, fit_intercept=True),
        ModelSection(C=0.1, fit_intercept=True, intercept_scaling=3.0, class_weight="balanced"),
        ModelSection(loss="topk_hinge_alpha", k=2, gamma=0.5, C=0.1),
    ],
)
def test_recomputed_certificate_is_the_runs(store, make_job, model, dtype):
    job = make_job(
        model=model,
        solver=SolverSection(dtype=dtype),
        data=DataSection(center=True, scale=True),
    )
    result = train(store, job)
    certificate = verify_run(result.run_dir)
    assert certificate.primal == pytest.approx(result.certificate.primal, rel=1e-6)
    assert certificate.dual_value == pytest.approx(result.certificate.dual_value, rel=1e-6)
    assert certificate.tol == 1e-3
    assert certificate.certified


def test_recomputed_certificate_counts_sample_weights(make_job, tmp_path, rng):
    path = tmp_path / "weighted.zarr"
    with create_store(path, n_features=6, class_names=list("abcd"), sample_weight=True) as writer:
        for seed, split in ((1, "train"), (2, "test")):
            X, y = make_rows(60, seed=seed)
            writer.append(X, y, split=split, sample_weight=rng.uniform(0.5, 2, 60))
    result = train(path, make_job())
    assert verify_run(result.run_dir).primal == pytest.approx(result.certificate.primal, rel=1e-9)


def test_verification_tells_its_progress(store, make_job):
    seen = []
    verify_run(train(store, make_job()).run_dir, lambda *rows: seen.append(rows))
    assert seen[-1] == (120, 120)


def change_model(result, store):
    model = load_model(result.run_dir)
    W = model.W.copy()
    W[0, 0] += 0.01
    dataclasses.replace(model, W=W).save(result.run_dir / "model.npz")


def change_dual(result, store):
    dual = open_dual(result.run_dir / "dual")
    dual.write(0, 0.5 * dual.read(0, dual.chunk_rows))


def change_store(result, store):
    shutil.rmtree(store.path)
    with create_store(store.path, n_features=6, class_names=store.class_names) as writer:
        for n_rows, split in ((120, "train"), (50, "test")):
            X, y = make_rows(n_rows, seed=7)
            writer.append(X, y, split=split)


def change_result(result, store):
    fields = json.loads((result.run_dir / "result.json").read_text())
    fields["relative_gap"] /= 2
    (result.run_dir / "result.json").write_text(json.dumps(fields))


@pytest.mark.parametrize("change", [change_model, change_dual, change_store, change_result])
def test_changed_file_is_found(store, make_job, change):
    result = train(store, make_job())
    change(result, store)
    with pytest.raises(ValueError, match=r"as its result\.json says, but model, duals and store"):
        verify_run(result.run_dir)


def test_store_of_other_classes_is_found(store, make_job):
    result = train(store, make_job())
    shutil.rmtree(store.path)
    make_store(store.path, class_names=list("abcd"))
    with pytest.raises(ValueError, match="another store has taken the place of the one trained on"):
        verify_run(result.run_dir)


def test_run_without_duals_has_no_certificate_to_recompute(store, make_job, tmp_path):
    output = OutputSection(run_dir=str(tmp_path / "a"), save_dual=False)
    result = train(store, make_job(output=output))
    with pytest.raises(ValueError, match=r"must have 'model\.npz' and 'dual'.*save_dual = true"):
        verify_run(result.run_dir)


def test_run_that_did_not_end_has_no_certificate(store, make_job):
    result = train(store, make_job())
    (result.run_dir / "result.json").unlink()
    with pytest.raises(ValueError, match=r"must have a 'result\.json', but it did not come to"):
        verify_run(result.run_dir)


def test_damaged_dual_is_found(store, make_job):
    result = train(store, make_job())
    path = open_dual(result.run_dir / "dual").array.chunk_path(1)
    data = bytearray(path.read_bytes())
    data[7] ^= 1
    path.write_bytes(data)
    with pytest.raises(ValueError, match="crc32c of chunk 1"):
        verify_run(result.run_dir)


def test_weights_of_float64_are_not_rounded(store, make_job):
    """A change in the eighth digit is found, which the tolerance of float32 would hide."""
    result = train(store, make_job(solver=SolverSection(dtype="float64")))
    fields = json.loads((result.run_dir / "result.json").read_text())
    fields["primal"] *= 1 + 1e-8
    (result.run_dir / "result.json").write_text(json.dumps(fields))
    assert load_model(result.run_dir).W.dtype == np.float64
    with pytest.raises(ValueError, match="primal of"):
        verify_run(result.run_dir)
