"""Solvers that read all rows before they change the weights, beside SDCA and the definition."""

import numpy as np
import pytest

from dtopk import testing
from dtopk.engine import ArrayRows, Callback, FitOptions, StartPoint, StoreRows, fit
from dtopk.losses import make_loss
from dtopk.solvers.bundle import Bundle
from dtopk.solvers.policy import CheckSchedule
from dtopk_storage import create_store, open_dual, open_run_state, open_store
from tests.engine.test_fit_resume import (
    STREAMED,
    Kill,
    Killed,
    assert_same,
    store,
    train,
)

__all__ = ["store"]  # a fixture

N, D, M = 160, 6, 5
HINGE = make_loss("topk_hinge_alpha", k=2)
LAPIN = make_loss("topk_hinge_alpha", k=2, gamma=0.5)
MOREAU = make_loss("topk_hinge_alpha", k=2, gamma=0.5, smoothing="moreau")
SOFTMAX = make_loss("softmax")
TIGHT = {"dtype": "float64", "tol": 1e-6, "max_epochs": 5000, "C": 0.3}
WITH_FRANK_WOLFE = [
    HINGE,
    LAPIN,
    MOREAU,
    make_loss("topk_hinge_beta", k=2, gamma=0.5),
    make_loss("weighted_usunier", rho=[0.5, 0.3, 0.2]),
    make_loss("structured_hinge", gamma=0.5, label_cost=1.5 * (1 - np.eye(M))),
    make_loss("smooth_hinge_ova", gamma=0.5),
]
frank_wolfe_losses = pytest.mark.parametrize(
    "loss", WITH_FRANK_WOLFE, ids=["hinge", "lapin", "moreau", "beta", "usunier", "costs", "ova"]
)


def problem(seed=8):
    return testing.make_features(N, D, M, seed=seed)


def solve(loss, solver, *, data=None, weight=None, start=None, dual_path=None, **options):
    X, y = problem() if data is None else data
    given = FitOptions(**{**TIGHT, "solver": solver, **options})
    return fit(ArrayRows(X, y, M, weight), loss, given, start=start, dual_path=dual_path)


def assert_same_optimum(one, other, tol):
    assert one.stop_reason == other.stop_reason == "tolerance"
    assert one.certificate.primal == pytest.approx(other.certificate.primal, rel=2 * tol)
    distance = sum(np.sqrt(2 * r.certificate.duality_gap) for r in (one, other))
    assert np.linalg.norm(one.W - other.W) <= distance


class Gaps(Callback):
    def __init__(self):
        self.records = []

    def on_epoch(self, record, W):
        self.records.append((record, W.copy()))


@frank_wolfe_losses
def test_frank_wolfe_finds_the_optimum_of_sdca(loss):
    weight = np.random.default_rng(0).uniform(0, 2, N)
    weight[::7] = 0
    found = solve(loss, "frank_wolfe", weight=weight, tol=1e-4)
    assert_same_optimum(found, solve(loss, "sdca", weight=weight), 1e-4)
    assert found.solver == "frank_wolfe"


@pytest.mark.parametrize("loss", [HINGE, MOREAU], ids=["hinge", "moreau"])
@pytest.mark.parametrize("solver", ["frank_wolfe", "block_frank_wolfe", "frank_wolfe_fixed"])
def test_plain_frank_wolfe_nears_the_optimum_of_sdca(loss, solver):
    """Exact line search, fixed steps and steps row by row get to 1e-2 at a small C."""
    found = solve(loss, solver, atoms=0, tol=1e-2, C=0.02)
    assert_same_optimum(found, solve(loss, "sdca", C=0.02), 1e-2)


def test_atoms_kept_apart_save_passes():
    plain, kept = (solve(HINGE, "frank_wolfe", atoms=atoms, tol=1e-2) for atoms in (0, 10))
    assert kept.epochs < plain.epochs / 2


@pytest.mark.parametrize("loss", [HINGE, LAPIN, MOREAU], ids=["hinge", "lapin", "moreau"])
def test_certificate_is_that_of_the_duals_which_frank_wolfe_stands_for(loss, tmp_path):
    """P is that of the weights by definition; D that of the duals where they are kept."""
    X, y = problem()
    keeps = loss.smooth
    found = solve(loss, "frank_wolfe", tol=1e-3, dual_path=tmp_path / "dual")
    assert found.duals_kept == keeps == (tmp_path / "dual").is_dir()
    scores = X.astype(float) @ found.W
    losses = [testing.loss_value(loss, u, label) for u, label in zip(scores, y, strict=True)]
    norm = np.square(found.W).sum()
    assert found.certificate.primal == pytest.approx(0.3 * np.sum(losses) + norm / 2, rel=1e-12)
    best = solve(loss, "sdca", tol=1e-9).certificate
    assert found.certificate.dual_value <= best.primal
    if keeps:
        duals = open_dual(tmp_path / "dual").read(0, N)
        terms = [testing.dual_term(loss, a, label, 0.3) for a, label in zip(duals, y, strict=True)]
        weights = X.astype(float).T @ duals
        value = np.sum(terms) - np.square(weights).sum() / 2
        assert found.certificate.dual_value == pytest.approx(value, rel=1e-12)


@pytest.mark.parametrize("solver", ["frank_wolfe", "frank_wolfe_fixed", "pegasos"])
@pytest.mark.parametrize("loss", [HINGE, LAPIN], ids=["plain", "smooth"])
def test_every_gap_on_the_way_bounds_the_distance_to_the_optimum(loss, solver):
    best = solve(loss, "sdca", tol=1e-9).certificate.primal
    gaps = Gaps()
    X, y = problem()
    options = FitOptions(**{**TIGHT, "solver": solver, "max_epochs": 12})
    fit(ArrayRows(X, y, M), loss, options, callbacks=[gaps])
    for record, _ in gaps.records:
        assert record.dual_value <= best * (1 + 1e-9)
        assert record.primal >= best * (1 - 1e-9)


@pytest.mark.parametrize("loss", WITH_FRANK_WOLFE[:4], ids=["hinge", "lapin", "moreau", "beta"])
def test_gap_of_frank_wolfe_is_that_of_primal_and_dual(monkeypatch, loss):
    """It is P - D at the weights of a pass without smoothing, and no less with it."""
    found = []

    def add(bundle, *arguments):
        value = bundle.value
        found.append((add_to_bundle(bundle, *arguments), value))

    add_to_bundle = Bundle.add
    monkeypatch.setattr(Bundle, "add", add)
    gaps = Gaps()
    X, y = problem()
    options = FitOptions(**{**TIGHT, "solver": "frank_wolfe", "max_epochs": 9, "atoms": 0})
    fit(ArrayRows(X, y, M), loss, options, callbacks=[gaps])
    assert len(found) == 9
    # The last one's certificate is taken at other weights.
    for (gap, dual_value), (_, W) in zip(found[:-1], gaps.records[:-1], strict=True):
        scores = X.astype(float) @ W
        losses = [testing.loss_value(loss, u, label) for u, label in zip(scores, y, strict=True)]
        difference = 0.3 * np.sum(losses) + np.square(W).sum() / 2 - dual_value
        assert difference > 0
        if loss.smooth:
            assert gap >= difference
        else:
            assert gap == pytest.approx(difference, rel=1e-9)


def test_subgradient_method_nears_the_optimum():
    for loss in (HINGE, SOFTMAX):
        found = solve(loss, "pegasos", tol=5e-2, C=0.05)
        assert_same_optimum(found, solve(loss, "sdca", C=0.05), 5e-2)


@pytest.mark.parametrize("loss", [SOFTMAX, LAPIN, MOREAU], ids=["softmax", "lapin", "moreau"])
@pytest.mark.parametrize("solver", ["lbfgs", "gradient_descent"])
def test_descent_finds_the_optimum_of_sdca(loss, solver, tmp_path):
    tol = 1e-8 if solver == "lbfgs" else 1e-3
    found = solve(loss, solver, tol=tol, constant=1.0, dual_path=tmp_path / "dual")
    assert_same_optimum(found, solve(loss, "sdca", tol=1e-8, constant=1.0), tol)
    assert found.duals_kept


def test_lbfgs_takes_fewer_passes_than_gradient_descent():
    one, other = (solve(SOFTMAX, name, tol=1e-3) for name in ("lbfgs", "gradient_descent"))
    assert one.epochs < other.epochs


@pytest.mark.parametrize(
    ("loss", "solver"),
    [(HINGE, "frank_wolfe"), (MOREAU, "frank_wolfe"), (SOFTMAX, "lbfgs"), (HINGE, "pegasos")],
)
def test_weights_do_not_depend_on_the_partitions(loss, solver):
    one, four = (
        solve(loss, solver, partitions=k, block_rows=b, tol=1e-9, max_epochs=8)
        for k, b in ((1, 0), (4, 16))
    )
    np.testing.assert_allclose(one.W, four.W, rtol=0, atol=1e-9 * np.abs(one.W).max())


@pytest.mark.parametrize(
    ("loss", "solver"), [(HINGE, "frank_wolfe"), (MOREAU, "frank_wolfe"), (SOFTMAX, "lbfgs")]
)
def test_float32_reaches_the_same_certificate(loss, solver):
    found = solve(loss, solver, dtype="float32", tol=1e-3)
    assert_same_optimum(found, solve(loss, "sdca"), 1e-3)
    assert found.W.dtype == np.float32


PASSES = {
    "mixture": {"solver": "frank_wolfe", "loss": HINGE, "atoms": 5},
    "line search": {"solver": "frank_wolfe", "loss": HINGE, "atoms": 0},
    "smooth mixture": {"solver": "frank_wolfe", "loss": LAPIN, "atoms": 5},
    "smooth mixture in parts": {
        "solver": "frank_wolfe", "loss": LAPIN, "atoms": 5, "partitions": 3,
    },
    "streamed": {
        "solver": "frank_wolfe", "loss": LAPIN, "atoms": 5,
        "memory_limit_bytes": STREAMED + 1000,
    },
    "subgradients": {"solver": "pegasos", "loss": HINGE},
    "descent": {"solver": "lbfgs", "loss": SOFTMAX, "constant": 1.0},
    "descent in parts": {"solver": "lbfgs", "loss": SOFTMAX, "partitions": 3},
    "row by row": {"solver": "block_frank_wolfe", "loss": HINGE},
}  # fmt: skip


@pytest.mark.parametrize("options", PASSES.values(), ids=PASSES.keys())
def test_killed_run_goes_on_to_the_same_bits(store, tmp_path, options):
    options = {"C": 0.3, "tol": 1e-9, "max_epochs": 9, **options}
    duals = options["loss"].smooth or options["solver"] == "block_frank_wolfe"
    paths = [tmp_path / name if duals else None for name in ("one", "other")]
    undisturbed = train(store, None, dual_path=paths[0], **options)
    state = open_run_state(tmp_path / "state")
    for epoch in (3, 6):
        with pytest.raises(Killed):
            train(store, state, callbacks=[Kill(epoch)], **options)
        state.delete_leftovers()
    resumed = train(store, state, dual_path=paths[1], **options)
    if duals:
        assert_same(undisturbed, resumed, tmp_path)
    np.testing.assert_array_equal(undisturbed.W, resumed.W)
    assert undisturbed.certificate == resumed.certificate


@pytest.mark.parametrize("partitions", [1, 3])
def test_streamed_duals_outlive_certificates_that_miss(monkeypatch, store, tmp_path, partitions):
    """Each is taken from duals that it writes once more, and the run goes on from them."""
    monkeypatch.setattr(CheckSchedule, "due", lambda schedule, gap: True)
    options = {
        **PASSES["streamed"], "C": 0.3, "tol": 1e-9, "max_epochs": 6, "partitions": partitions,
    }  # fmt: skip
    undisturbed = train(store, None, dual_path=tmp_path / "one", **options)
    assert undisturbed.epochs == 6
    state = open_run_state(tmp_path / "state")
    with pytest.raises(Killed):
        train(store, state, callbacks=[Kill(4)], **options)
    state.delete_leftovers()
    resumed = train(store, state, dual_path=tmp_path / "other", **options)
    assert_same(undisturbed, resumed, tmp_path)


@pytest.mark.parametrize("solver", ["frank_wolfe", "lbfgs"])
def test_run_out_of_passes_goes_on_to_the_same_bits(store, tmp_path, solver):
    """Where it stops it takes a certificate that one with more epochs would not."""
    options = {"C": 0.3, "tol": 1e-5, "loss": LAPIN, "solver": solver}
    undisturbed = train(store, None, max_epochs=12, **options)
    state = open_run_state(tmp_path / "state")
    for max_epochs in (1, 4):
        assert train(store, state, max_epochs=max_epochs, **options).epochs == max_epochs
        state.delete_leftovers()
    resumed = train(store, state, max_epochs=12, **options)
    np.testing.assert_array_equal(undisturbed.W, resumed.W)
    assert undisturbed.certificate == resumed.certificate


@pytest.mark.parametrize("loss", [HINGE, LAPIN], ids=["plain", "smooth"])
def test_pass_cut_short_leaves_a_certificate_of_what_was_reached(loss):
    class Stop(Callback):
        def on_rows(self, rows):
            raise KeyboardInterrupt

    X, y = problem()
    long = {**TIGHT, "solver": "frank_wolfe", "max_epochs": 5}
    whole = fit(ArrayRows(X, y, M), loss, FitOptions(**long))
    cut = fit(ArrayRows(X, y, M), loss, FitOptions(**long, time_limit_s=1e-9))
    assert cut.stop_reason == "time_limit"
    assert cut.certificate.duality_gap >= 0
    assert cut.certificate.dual_value <= whole.certificate.primal


@pytest.mark.parametrize(
    ("loss", "solver"), [(HINGE, "frank_wolfe"), (MOREAU, "frank_wolfe"), (MOREAU, "lbfgs")]
)
def test_start_from_duals_or_weights_saves_passes(loss, solver, tmp_path):
    first = solve(loss, "sdca", tol=1e-4, dual_path=tmp_path / "dual")
    cold = solve(loss, solver, tol=1e-3)
    starts = [
        StartPoint(dual=open_dual(tmp_path / "dual"), dual_factor=1.0),
        StartPoint(W=first.W),
    ]
    from_duals, from_weights = (solve(loss, solver, tol=1e-3, start=start) for start in starts)
    assert from_duals.epochs <= 3 < cold.epochs
    if loss.smooth:
        assert from_weights.epochs < cold.epochs
    for warm in (from_duals, from_weights):
        assert warm.certificate.certified


def test_subgradient_method_refuses_a_start():
    with pytest.raises(ValueError, match="'pegasos' for a warm start: it begins at zero"):
        solve(HINGE, "pegasos", start=StartPoint(W=np.zeros((D, M))))


@pytest.mark.parametrize(
    ("loss", "solver", "named"),
    [(SOFTMAX, "frank_wolfe", "'lbfgs'"), (HINGE, "lbfgs", "'frank_wolfe'")],
)
def test_solver_that_cannot_train_a_loss_is_refused_before_reading(loss, solver, named):
    with pytest.raises(ValueError, match=f"solver for loss .* must be .*{named}"):
        solve(loss, solver, data=(np.full((N, D), np.nan), np.arange(N, dtype=np.int32) % M))


def test_multilabel_hinge_is_trained_by_frank_wolfe(tmp_path):
    from dtopk.losses import LabelSets

    X, y = problem()
    indicator = np.zeros((N, M))
    indicator[np.arange(N), y] = indicator[np.arange(N), (y + 1) % M] = 1
    rows = ArrayRows(X, LabelSets.from_indicator(indicator), M)
    loss = make_loss("multilabel_hinge", gamma=0.5)
    one, other = (
        fit(rows, loss, FitOptions(**{**TIGHT, "solver": name, "tol": 1e-4}))
        for name in ("frank_wolfe", "sdca")
    )
    assert_same_optimum(one, other, 1e-4)


def test_standardized_rows_of_a_store(tmp_path):
    """Centred and scaled, in float16, with an intercept: the problem is the same for all."""
    X, y = problem()
    with create_store(
        tmp_path / "s", n_features=D, class_names=list("abcde"), chunk_rows=50, dtype="float16"
    ) as writer:
        writer.append(X.astype(np.float16), y)
    rows = StoreRows(open_store(tmp_path / "s"), "train")
    options = {
        **TIGHT, "tol": 1e-5, "constant": 1.0,
        "mean": np.full(D, 0.1), "inverse_scale": np.full(D, 2.0),
    }  # fmt: skip
    results = [
        fit(rows, LAPIN, FitOptions(**options, solver=solver))
        for solver in ("sdca", "lbfgs", "frank_wolfe")
    ]
    for other in results[1:]:
        assert_same_optimum(results[0], other, 1e-5)
