"""Losses that are not convex: a convex problem after the other, to a stationary point."""

import numpy as np
import pytest

from dtopk import testing
from dtopk.engine import ArrayRows, Callback, FitOptions, StartPoint, fit
from dtopk.engine.masked_run import MaskedRun
from dtopk.losses import make_loss
from dtopk_storage import RunState, open_dual, open_run_state
from tests import cluster_runs
from tests.engine.test_fit_resume import (
    Kill,
    Killed,
    assert_same,
    store,
    train,
)

__all__ = ["store"]  # a fixture

N, D, M = 160, 6, 5
C = 0.3
TRUNCATED = make_loss("truncated_topk_entropy", k=3)
SMOOTH = make_loss("calibrated_topk_hinge", k=2, gamma=0.5)
HINGE = make_loss("calibrated_topk_hinge", k=2)
TOL = 1e-3
TIGHT = {"dtype": "float64", "tol": TOL, "max_epochs": 3000, "C": C}
every_loss = pytest.mark.parametrize(
    "loss", [TRUNCATED, SMOOTH, HINGE], ids=["truncated", "smooth", "hinge"]
)


smooth_losses = pytest.mark.parametrize("loss", [TRUNCATED, SMOOTH], ids=["truncated", "smooth"])


class Records(Callback):
    def __init__(self):
        self.records = []

    def on_epoch(self, record, W):
        self.records.append((record, W.copy()))


def problem(seed=8):
    return testing.make_features(N, D, M, seed=seed)


def solve(loss, *, weight=None, start=None, dual_path=None, callbacks=(), **options):
    X, y = problem()
    return fit(
        ArrayRows(X, y, M, weight), loss, FitOptions(**{**TIGHT, **options}), start=start,
        dual_path=dual_path, callbacks=callbacks,
    )  # fmt: skip


def true_objective(loss, W, weight=1.0):
    """Sum the loss from its definition: the least of its masked losses."""
    X, y = problem()
    scores = X.astype(float) @ W
    losses = [testing.loss_value(loss, u, label) for u, label in zip(scores, y, strict=True)]
    return C * np.sum(weight * np.array(losses)) + 0.5 * np.square(W).sum()


def fast_objective(loss, W):
    X, y = problem()
    return C * loss.values(X.astype(float) @ W, y).sum() + 0.5 * np.square(W).sum()


def masked_optimum(loss, W, weight=1.0, tol=1e-7):
    """Solve the convex problem with the masks of W, by one SDCA pass after the other."""
    X, y = problem()
    X = X.astype(float)
    masks = loss.choose_masks(X @ W, y)
    costs = np.full(N, C) * weight
    dual, V = np.zeros((N, M)), np.zeros((D, M))
    for n in range(4000):
        order = np.random.default_rng(n).permutation(N)
        scores, G = X[order] @ V, X[order] @ X[order].T
        a, delta = dual[order], np.empty((N, M))
        loss.update_rows(scores, G, a, delta, masks[order], costs[order], 0, N)
        dual[order] = a
        V = X.T @ dual
        if n % 50 == 49:
            primal = costs @ loss.values(X @ V, masks) + 0.5 * np.sum(V**2)
            terms = loss.make_feasible(dual.copy(), masks, costs)
            if primal - (terms.sum() - 0.5 * np.sum(V**2)) <= tol * primal:
                return primal
    raise AssertionError("it did not converge")


@every_loss
@pytest.mark.parametrize("weighted", [False, True])
def test_weights_are_the_optimum_of_the_problem_with_their_own_masks(loss, weighted):
    """Choosing masks at the weights and solving to the end brings P down by no more than tol."""
    rng = np.random.default_rng(0)
    weight = rng.choice([0.0, 0.5, 2.0], N) if weighted else np.ones(N)
    found = solve(loss, weight=weight if weighted else None)
    assert found.stop_reason == "tolerance"
    certificate = found.certificate
    assert certificate.primal == pytest.approx(true_objective(loss, found.W, weight), rel=1e-12)
    best = masked_optimum(loss, found.W, weight)
    assert certificate.dual_value <= best
    assert best >= certificate.primal * (1 - 1.1 * TOL)


@every_loss
@pytest.mark.parametrize("acceleration", ["off", "auto"])
def test_objective_never_rises_from_one_stage_to_the_next(loss, acceleration):
    records = Records()
    found = solve(loss, callbacks=[records], acceleration=acceleration, max_epochs=100)
    stages = np.array([record.masking for record in found.history])
    assert stages[0] == 0
    assert set(np.diff(stages)) == {0, 1}
    # With the record that precedes it, a stage begins at the weights of a certificate.
    begins = [found.history[i - 1] for i in np.flatnonzero(np.diff(stages)) + 1]
    assert all(record.exact for record in begins)
    objectives = [record.primal for record in begins] + [found.certificate.primal]
    assert (np.diff(objectives) <= 0).all()
    for record, W in records.records:
        if record in begins:
            assert record.primal == pytest.approx(fast_objective(loss, W), rel=1e-12)


def test_truncated_entropy_of_k_one_is_trained_as_softmax():
    one, other = solve(make_loss("truncated_topk_entropy")), solve(make_loss("softmax"))
    np.testing.assert_array_equal(one.W, other.W)
    assert one.certificate == other.certificate
    assert [record.masking for record in one.history] == [0] * one.epochs


@pytest.mark.parametrize("name", ["truncated_topk_entropy", "calibrated_topk_hinge"])
def test_the_largest_k_is_certified(name):
    found = solve(make_loss(name, k=M - 1))
    assert found.certificate.certified
    assert found.certificate.primal == pytest.approx(
        true_objective(make_loss(name, k=M - 1), found.W), rel=1e-12
    )


@every_loss
def test_three_partitions_and_float32_are_certified_too(loss):
    one = solve(loss).certificate
    for options in (
        {"partitions": 3, "block_rows": 16},
        {"partitions": 3, "block_rows": 16, "acceleration": "auto"},
        {"dtype": "float32"},
    ):
        found = solve(loss, **options)
        assert found.certificate.certified
        # Another stationary point may be reached.
        assert found.certificate.primal == pytest.approx(one.primal, rel=0.03)


def test_run_out_of_epochs_returns_the_best_weights():
    """Within a stage the objective may be above what it was at its start."""
    for max_epochs in range(2, 14):
        found = solve(HINGE, max_epochs=max_epochs)
        accepted = [r.primal for r in found.history[:-1] if r.exact]
        assert found.certificate.primal <= min(accepted, default=np.inf)
        assert found.certificate.primal == pytest.approx(true_objective(HINGE, found.W), rel=1e-12)


CASES = {
    "truncated": {"loss": TRUNCATED, "constant": 1.0},
    "hinge": {"loss": HINGE},
    "plain": {"loss": SMOOTH, "acceleration": "off"},
    "three parts": {"loss": SMOOTH, "partitions": 3, "rounds_per_epoch": 2},
    "streamed": {"loss": SMOOTH},
    "streamed in parts": {"loss": TRUNCATED, "partitions": 2},
}


@pytest.mark.parametrize(("name", "options"), CASES.items(), ids=CASES.keys())
def test_killed_run_goes_on_to_the_same_bits(store, tmp_path, monkeypatch, name, options):
    options = {"tol": 1e-3, "C": C, **options}
    if name.startswith("streamed"):
        cluster_runs.streaming(monkeypatch)
    undisturbed = train(store, None, dual_path=tmp_path / "one", **options)
    assert undisturbed.certificate.certified
    state = open_run_state(tmp_path / "state")
    # In the first stage, and in two of the others.
    for epoch in (2, 5, undisturbed.epochs - 1):
        with pytest.raises(Killed):
            train(store, state, callbacks=[Kill(epoch)], **options)
        state.delete_leftovers()
    resumed = train(store, state, dual_path=tmp_path / "other", **options)
    assert_same(undisturbed, resumed, tmp_path)


@every_loss
def test_run_out_of_epochs_goes_on_to_the_same_bits(store, tmp_path, loss):
    """Where it stops it takes a certificate that one with more epochs would not."""
    options = {"loss": loss, "C": C, "tol": 1e-3}
    undisturbed = train(store, None, **options)
    state = open_run_state(tmp_path / "state")
    for max_epochs in (1, 4, 6):
        assert train(store, state, max_epochs=max_epochs, **options).epochs == max_epochs
        state.delete_leftovers()
    resumed = train(store, state, **options)
    np.testing.assert_array_equal(undisturbed.W, resumed.W)
    assert undisturbed.certificate == resumed.certificate


@pytest.mark.parametrize("loss", [TRUNCATED, HINGE], ids=["truncated", "hinge"])
@pytest.mark.parametrize("streamed", [False, True])
def test_two_workers_give_the_bits_of_one_process(client, tmp_path, monkeypatch, loss, streamed):
    """Blocks change places, and with them whoever finds their masks."""
    rows = cluster_runs.make_rows(tmp_path / "features")
    changes = {"C": 1.0, "tol": 1e-3, "max_epochs": 12}
    states: list[dict[str, RunState]] = [{}, {}]
    if streamed:
        cluster_runs.streaming(monkeypatch)
        states = [{"state": open_run_state(tmp_path / name)} for name in ("f", "g")]
    here = cluster_runs.train_here(rows, loss, tmp_path / "d", **changes, **states[0])
    there = cluster_runs.train_there(
        client, rows, loss, tmp_path / "e", options=changes, **states[1]
    )
    assert here.history[-1].masking >= 2
    cluster_runs.assert_same(here, tmp_path / "d", there, tmp_path / "e")


@every_loss
def test_start_from_duals_or_weights_saves_passes(loss, tmp_path):
    first = solve(loss, dual_path=tmp_path / "dual")
    starts = [
        StartPoint(dual=open_dual(tmp_path / "dual"), dual_factor=1.0),
        StartPoint(W=first.W),
    ]
    for start in starts:
        warm = solve(loss, start=start)
        assert warm.certificate.certified
        assert warm.certificate.primal <= first.certificate.primal * (1 + 1e-3)
        assert all(record.masking >= 1 for record in warm.history)
        if start.dual is not None or loss.smooth:
            assert warm.epochs < first.epochs


def test_stages_are_announced_by_the_choice_of_solver():
    class Info(Callback):
        def on_start(self, info):
            self.reason = info.solver_reason

    info = Info()
    found = solve(TRUNCATED, callbacks=[info])
    assert found.solver == "sdca"
    assert "convex problems that leave out what the loss forgives" in info.reason


@smooth_losses
def test_gradient_descent_nears_a_stationary_point_as_low(loss, tmp_path):
    found = solve(loss, solver="gradient_descent", dual_path=tmp_path / "dual")
    assert found.certificate.certified
    assert found.duals_kept
    assert found.certificate.primal == pytest.approx(solve(loss).certificate.primal, rel=0.03)
    best = masked_optimum(loss, found.W)
    assert found.certificate.dual_value <= best
    assert best >= found.certificate.primal * (1 - 1.1e-3)


@smooth_losses
def test_gradient_descent_begins_with_a_convex_loss(loss):
    """Nearly at its optimum the loss itself is descended, from the weights reached."""
    records = Records()
    found = solve(loss, solver="gradient_descent", callbacks=[records])
    stages = [record.masking for record in found.history]
    begins = stages.index(1)
    assert stages == [0] * begins + [1] * (found.epochs - begins)
    assert 0 < begins < found.epochs / 2
    before, after = found.history[begins - 1 : begins + 1]
    assert before.relative_gap <= 3e-2
    softmax = solve(make_loss("softmax")).certificate.primal
    assert softmax <= before.primal * (1 + 1e-9) <= softmax * 1.04
    W = records.records[begins][1]
    assert after.primal == pytest.approx(true_objective(loss, W), rel=1e-9)


@pytest.mark.parametrize("partitions", [1, 2])
def test_killed_gradient_descent_goes_on_to_the_same_bits(store, tmp_path, partitions):
    options = {
        "loss": TRUNCATED, "solver": "gradient_descent", "C": 3.0, "tol": 1e-9, "max_epochs": 14,
        "partitions": partitions,
    }  # fmt: skip
    undisturbed = train(store, None, dual_path=tmp_path / "one", **options)
    state = open_run_state(tmp_path / "state")
    begins = [record.masking for record in undisturbed.history].index(1)
    assert begins > 1
    # With the convex loss, where it has ended, and later.
    for epoch in (begins, begins + 1, 13):
        with pytest.raises(Killed):
            train(store, state, callbacks=[Kill(epoch)], **options)
        state.delete_leftovers()
    resumed = train(store, state, dual_path=tmp_path / "other", **options)
    assert_same(undisturbed, resumed, tmp_path)


def test_members_of_other_runs_know_of_no_masks():
    from dtopk.engine.leads import member_class, run_class
    from dtopk.engine.member import Member
    from dtopk.engine.sdca_run import SdcaRun

    softmax = make_loss("softmax")
    assert run_class("sdca", TRUNCATED) is MaskedRun
    assert run_class("sdca", softmax) is SdcaRun
    assert member_class("sdca", softmax) is Member
