"""Jobs on stores of odd rows."""

import numpy as np
import pytest

import dtopk
from dtopk.job.files import job_from_dict
from dtopk.job.verification import verify_run
from dtopk_storage import create_store, open_store
from tests.edges.odd_rows import ODD_ROWS, M, plain_rows, scaled_rows


def make_store(folder, X, y, dtype="float32"):
    path = folder / "rows.zarr"
    names = [f"class {code}" for code in range(M)]
    with create_store(path, n_features=X.shape[1], class_names=names, dtype=dtype) as writer:
        writer.append(X.astype(dtype), y, split="train")
    return open_store(path)


def make_job(folder, **sections):
    tables = {
        "data": {"store": str(folder / "rows.zarr"), "evaluate": ()},
        "model": {"loss": "softmax"},
        "solver": {"max_epochs": 30},
        "tracking": {"mlflow": False},
        "output": {"run_dir": str(folder / "run")},
    }
    for name, values in sections.items():
        tables[name] = tables.get(name, {}) | values
    return job_from_dict(tables)


ODDEST = "constant features", "zero features", "the last class without rows", "one feature"


@pytest.mark.parametrize("standardized", [False, True], ids=["as they are", "standardized"])
@pytest.mark.parametrize("edge", ODDEST)
def test_a_job_on_odd_rows_is_certified_and_verified(edge, standardized, tmp_path):
    """What never changes has no deviation to be divided by."""
    store = make_store(tmp_path, *ODD_ROWS[edge]())
    job = make_job(
        tmp_path,
        data={"center": standardized, "scale": standardized},
        model={"fit_intercept": True},
    )
    result = dtopk.train(store, job)
    assert result.certificate.certified
    again = verify_run(result.run_dir)
    assert again.primal == pytest.approx(result.certificate.primal, rel=1e-9)


def test_tiny_features_can_be_standardized(tmp_path):
    store = make_store(tmp_path, *scaled_rows(1e-30, np.float32))
    result = dtopk.train(store, make_job(tmp_path, data={"center": True, "scale": True}))
    assert result.certificate.certified


def test_features_whose_deviation_has_no_inverse_are_refused(tmp_path):
    store = make_store(tmp_path, *scaled_rows(1e-42, np.float32))
    with pytest.raises(ValueError, match=r"inverse_scale must be between .* for feature 0\."):
        dtopk.train(store, make_job(tmp_path, data={"scale": True}))
    assert not (tmp_path / "run" / "model.npz").exists()


def test_features_too_large_end_the_job_with_one_error(tmp_path):
    store = make_store(tmp_path, *scaled_rows(1e30, np.float32))
    with pytest.raises(ValueError, match=r"are too large for float32\. Scale the features"):
        dtopk.train(store, make_job(tmp_path))
    assert not (tmp_path / "run" / "model.npz").exists()


def test_one_class_is_refused_before_anything_is_read(tmp_path):
    X, y = plain_rows()
    store = make_store(tmp_path, X, np.zeros_like(y))
    with pytest.raises(ValueError, match=r"must have rows of at least two classes, got 1\."):
        dtopk.train(store, make_job(tmp_path))


@pytest.mark.parametrize("C", [1e-12, 1e12], ids=str)
def test_extreme_costs_leave_a_result_that_verifies(C, tmp_path):
    store = make_store(tmp_path, *plain_rows())
    result = dtopk.train(store, make_job(tmp_path, model={"C": C}, solver={"dtype": "float64"}))
    again = verify_run(result.run_dir)
    assert again.dual_value == pytest.approx(result.certificate.dual_value, rel=1e-9)
    assert np.isfinite(again.relative_gap)
