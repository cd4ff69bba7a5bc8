"""Several partitions in one process: the dual never falls, and the optimum is the same one."""

import itertools

import numpy as np
import pytest

from dtopk.engine import ArrayRows, Callback, FitOptions, StartPoint, fit
from dtopk.losses import make_loss
from dtopk.testing import dual_value, make_features, primal_value
from dtopk_storage import open_dual, open_run_state

N, D, M = 1500, 12, 7
X, Y = make_features(N, D, M, seed=3)
ROWS = ArrayRows(X, Y, M)
LOSSES = {
    "smooth hinge": make_loss("topk_hinge_alpha", k=2, gamma=0.5),
    "hinge": make_loss("topk_hinge_beta", k=2),
    "softmax": make_loss("softmax"),
}


def options(**changes):
    defaults = {"C": 0.5, "tol": 1e-4, "dtype": "float64", "max_epochs": 300, "partitions": 5}
    return FitOptions(**{**defaults, **changes})


@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.parametrize("n_rounds", [1, 4])
def test_partitions_reach_the_certified_optimum_of_one(name, n_rounds):
    alone = fit(ROWS, LOSSES[name], options(partitions=1))
    many = fit(ROWS, LOSSES[name], options(rounds_per_epoch=n_rounds))
    assert many.certificate.certified
    # Both lie within their gap of the same optimum.
    assert many.certificate.primal == pytest.approx(alone.certificate.primal, rel=2e-4)
    costs = np.full(N, 0.5)
    primal = primal_value(LOSSES[name], X, Y, costs, np.asarray(many.W))
    assert primal == pytest.approx(many.certificate.primal, rel=1e-9)


@pytest.mark.parametrize("name", LOSSES)
def test_the_dual_never_falls_whatever_sigma_was(name):
    result = fit(
        ROWS, LOSSES[name], options(acceleration="off", C=10.0, max_epochs=12, rounds_per_epoch=3)
    )
    values = [record.dual_value for record in result.history]
    assert all(after >= before - 1e-9 for before, after in itertools.pairwise(values))
    assert min(record.theta for record in result.history) >= 0


@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.parametrize("acceleration", ["auto", "off"])
def test_the_duals_kept_prove_the_certificate(name, acceleration, tmp_path):
    result = fit(
        ROWS, LOSSES[name], options(acceleration=acceleration), dual_path=tmp_path / "dual"
    )
    dual = open_dual(tmp_path / "dual").read(0, N)
    value = dual_value(LOSSES[name], X, Y, np.full(N, 0.5), dual)
    assert value == pytest.approx(result.certificate.dual_value, rel=1e-9)


@pytest.mark.parametrize("aggregation", ["adding", "averaging"])
def test_published_schemes_reach_it_too(aggregation):
    result = fit(
        ROWS, LOSSES["smooth hinge"], options(aggregation=aggregation, C=0.05, acceleration="off")
    )
    assert result.certificate.certified


def test_partitions_beat_published_schemes():
    epochs = {
        aggregation: fit(
            ROWS,
            LOSSES["smooth hinge"],
            options(aggregation=aggregation, C=0.05, acceleration="off", partitions=8),
        ).epochs
        for aggregation in ("exact", "adding", "averaging")
    }
    assert epochs["exact"] <= min(epochs["adding"], epochs["averaging"])


def test_streamed_rows_and_duals_give_a_certificate_too(tmp_path):
    result = fit(
        ArrayRows(X, Y, M), LOSSES["softmax"], options(memory_limit_bytes=150_000, partitions=1)
    )
    assert result.certificate.certified


@pytest.mark.parametrize("epochs", [1, 3])
@pytest.mark.parametrize("partitions", [1, 4])
@pytest.mark.parametrize("acceleration", ["auto", "off"])
def test_a_run_goes_on_from_its_state_to_the_same_bits(epochs, partitions, acceleration, tmp_path):
    class Stop(Callback):
        def on_epoch(self, record, W):
            if record.epoch == epochs + 1:
                raise RuntimeError("killed")

    chosen = options(
        partitions=partitions, checkpoint_s=0.0, acceleration=acceleration, dtype="float32",
        tol=1e-3,
    )  # fmt: skip
    loss = LOSSES["smooth hinge"]
    whole = fit(ROWS, loss, chosen, dual_path=tmp_path / "whole")
    state = open_run_state(tmp_path / "state")
    with pytest.raises(RuntimeError, match="killed"):
        fit(ROWS, loss, chosen, callbacks=[Stop()], state=state)
    resumed = fit(ROWS, loss, chosen, state=state, dual_path=tmp_path / "resumed")
    np.testing.assert_array_equal(resumed.W, whole.W)
    duals = [open_dual(tmp_path / name).read(0, N) for name in ("whole", "resumed")]
    np.testing.assert_array_equal(duals[0], duals[1])
    assert [r.dual_value for r in resumed.history] == [r.dual_value for r in whole.history]


def test_a_warm_start_of_partitions_begins_where_the_duals_are(tmp_path):
    first = fit(ROWS, LOSSES["softmax"], options(), dual_path=tmp_path / "dual")
    start = StartPoint(dual=open_dual(tmp_path / "dual"))
    again = fit(ROWS, LOSSES["softmax"], options(), start=start)
    assert again.epochs <= 2 < first.epochs
    assert again.certificate.dual_value >= first.certificate.dual_value - 1e-9
