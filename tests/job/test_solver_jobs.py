"""Jobs that name a solver: what they leave, and what can be recomputed from it."""

import json

import pytest

from dtopk.job import ModelSection, SolverSection, train
from dtopk.job.verification import verify_run
from dtopk_storage import CheckpointError

HINGE = {"loss": "topk_hinge_alpha", "k": 2, "C": 0.05}


@pytest.mark.parametrize(
    ("solver", "model"),
    [
        ("lbfgs", {"loss": "softmax", "C": 0.1}),
        ("frank_wolfe", {**HINGE, "gamma": 0.5}),
        ("block_frank_wolfe", HINGE),
        ("sdca", {"loss": "truncated_topk_entropy", "k": 3}),
        ("sdca", {"loss": "calibrated_topk_hinge", "k": 2, "class_weight": "balanced"}),
        ("gradient_descent", {"loss": "truncated_topk_entropy", "k": 2, "C": 0.1}),
    ],
)
def test_certificate_of_a_solver_is_computed_anew_from_its_files(store, make_job, solver, model):
    job = make_job(model=ModelSection(**model), solver=SolverSection(name=solver))
    result = train(store, job)
    assert result.solver == solver
    assert result.certificate.certified
    again = verify_run(result.run_dir)
    assert again.primal == pytest.approx(result.certificate.primal, rel=1e-9)
    assert again.dual_value == pytest.approx(result.certificate.dual_value, rel=1e-9)


@pytest.mark.parametrize("solver", ["frank_wolfe", "pegasos"])
def test_solver_without_duals_says_that_its_certificate_cannot_be_computed_anew(
    store, make_job, solver
):
    options = SolverSection(name=solver, tol=0.1)
    result = train(store, make_job(model=ModelSection(**HINGE), solver=options))
    assert result.certificate.certified
    assert not (result.run_dir / "dual").exists()
    fields = json.loads((result.run_dir / "result.json").read_text())
    assert fields["certified"] is True
    assert fields["solver"] == solver
    with pytest.raises(CheckpointError, match=f"solver '{solver}' keeps none of loss 'topk_hinge"):
        verify_run(result.run_dir)


def test_loss_without_an_update_is_trained_by_frank_wolfe_unless_told_otherwise(store, make_job):
    model = ModelSection(loss="weighted_topk_hinge", rho=(0.6, 0.4), C=0.05)
    result = train(store, make_job(model=model, solver=SolverSection(tol=1e-2)))
    assert result.solver == "frank_wolfe"
    assert result.certificate.certified


def test_solver_that_does_not_serve_the_loss_is_refused_by_its_key(store, make_job):
    model = ModelSection(loss="truncated_topk_entropy", k=2)
    job = make_job(model=model, solver=SolverSection(name="lbfgs"))
    with pytest.raises(ValueError, match=r"got 'lbfgs'\. Set by solver\.name of the job"):
        train(store, job)
