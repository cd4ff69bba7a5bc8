"""Options that describe the problem, each against the same problem written out."""

import numpy as np
import pytest

from dtopk import testing
from dtopk.engine import ArrayRows, FitOptions, StartPoint, class_totals, fit
from dtopk.losses import Softmax, make_loss
from dtopk_storage import open_dual

N, D, M = 160, 6, 5
SMOOTH = make_loss("topk_hinge_beta", k=2, gamma=0.5)
LOSSES = (SMOOTH, make_loss("topk_hinge_alpha", k=2), make_loss("softmax"))
losses = pytest.mark.parametrize("loss", LOSSES, ids=["smooth", "plain", "softmax"])
TOL = 1e-6
TIGHT = {"dtype": "float64", "tol": TOL, "max_epochs": 5000, "acceleration": "off"}


def problem(seed=8):
    return testing.make_features(N, D, M, seed=seed)


def train(loss, X, y, *, weight=None, start=None, dual_path=None, **options):
    rows = ArrayRows(X, y, M, weight)
    return fit(rows, loss, FitOptions(**{**TIGHT, **options}), start=start, dual_path=dual_path)


def assert_same_optimum(one, other):
    """The optimum lies between primal and dual of both, and W within sqrt(2 gap) of its own."""
    assert one.stop_reason == other.stop_reason == "tolerance"
    assert one.certificate.primal == pytest.approx(other.certificate.primal, rel=2 * TOL)
    distance = sum(np.sqrt(2 * r.certificate.duality_gap) for r in (one, other))
    assert np.linalg.norm(whole(one) - whole(other)) <= distance


def whole(result):
    return np.vstack((result.W, result.intercept))


@losses
def test_sample_weights_equal_repeated_rows(loss):
    X, y = problem()
    counts = np.random.default_rng(0).integers(0, 4, N)
    weighted = train(loss, X, y, weight=counts.astype(float))
    repeated = train(loss, np.repeat(X, counts, axis=0), np.repeat(y, counts))
    assert_same_optimum(weighted, repeated)


@losses
def test_rows_without_weight_do_not_matter(loss):
    X, y = problem()
    weight = (np.arange(N) % 4 > 0).astype(float)
    wild = X.copy()
    wild[::4] = 1e3
    assert_same_optimum(
        train(loss, wild, y, weight=weight), train(loss, X[weight > 0], y[weight > 0])
    )


@losses
def test_class_weights_equal_sample_weights(loss):
    X, y = problem()
    class_weight = np.array([0.5, 1.0, 2.0, 0.0, 3.0])
    by_class = train(loss, X, y, class_weight=class_weight)
    assert_same_optimum(by_class, train(loss, X, y, weight=class_weight[y]))


@losses
def test_scaling_C_equals_scaling_the_weights(loss):
    X, y = problem()
    assert_same_optimum(train(loss, X, y, C=3.0), train(loss, X, y, weight=np.full(N, 3.0)))


@losses
def test_centring_and_scaling_equal_training_on_standardised_rows(loss):
    X, y = problem()
    wide = X.astype(float)
    mean, scale = wide.mean(axis=0), wide.std(axis=0)
    inside = train(loss, X, y, C=0.05, mean=mean, inverse_scale=1 / scale)
    assert_same_optimum(inside, train(loss, (wide - mean) / scale, y, C=0.05))


@losses
@pytest.mark.parametrize("constant", [1.0, -2.5])
def test_the_intercept_equals_an_explicit_constant_column(loss, constant):
    X, y = problem()
    inside = train(loss, X, y, constant=constant)
    explicit = train(loss, np.column_stack((X, np.full(N, constant, np.float32))), y)
    assert inside.certificate.primal == pytest.approx(explicit.certificate.primal, rel=2 * TOL)
    written_out = np.vstack((inside.W, inside.intercept / constant))
    distance = sum(np.sqrt(2 * r.certificate.duality_gap) for r in (inside, explicit))
    assert np.linalg.norm(written_out - explicit.W) <= distance


def test_without_a_constant_the_intercept_is_zero():
    X, y = problem()
    result = train(SMOOTH, X, y)
    assert result.W.shape == (D, M)
    np.testing.assert_array_equal(result.intercept, np.zeros(M))


@losses
def test_the_accelerated_loop_reaches_the_same_optimum(loss):
    X, y = problem()
    options = {"C": 3.0}
    accelerated = train(loss, X, y, acceleration="auto", **options)
    assert max(record.acceleration for record in accelerated.history) > 1
    assert accelerated.stop_reason == "tolerance"
    plain = train(loss, X, y, acceleration="off", **options)
    assert all(record.acceleration == 1 for record in plain.history)
    assert accelerated.certificate.primal == pytest.approx(plain.certificate.primal, rel=2 * TOL)


@losses
@pytest.mark.parametrize("C", [1e-8, 1e6])
def test_extreme_C_gives_an_honest_certificate(loss, C):
    X, y = problem()
    for dtype in ("float32", "float64"):
        result = train(loss, X, y, C=C, dtype=dtype, tol=1e-3, max_epochs=30)
        assert np.isfinite(result.W).all()
        primal = testing.primal_value(
            loss, X, y, np.full(N, float(np.dtype(dtype).type(C))), result.W
        )
        assert result.certificate.primal == pytest.approx(primal, rel=1e-9)
        assert result.certificate.duality_gap >= -1e-9 * primal


def test_a_tiny_C_leaves_weights_that_are_the_sum_of_full_duals():
    """At C = 1e-8 no margin moves: W = C sum_i x_i (e_y - the mean of the others)."""
    X, y = problem()
    result = train(make_loss("topk_hinge_beta", k=4), X, y, C=1e-8)
    duals = np.full((N, M), -0.25e-8)
    duals[np.arange(N), y] = 1e-8
    np.testing.assert_allclose(result.W, X.astype(float).T @ duals, rtol=1e-6)


@losses
def test_a_start_from_the_duals_takes_fewer_passes(loss, tmp_path):
    X, y = problem()
    cold = train(loss, X, y, tol=1e-5, dual_path=tmp_path / "dual")
    start = StartPoint(dual=open_dual(tmp_path / "dual"))
    warm = train(loss, X, y, tol=1e-5, start=start)
    assert warm.epochs <= cold.epochs / 2
    assert warm.certificate.primal == pytest.approx(cold.certificate.primal, rel=1e-4)


@losses
def test_a_start_from_duals_at_another_C_takes_fewer_passes(loss, tmp_path):
    X, y = problem()
    train(loss, X, y, C=1.0, tol=1e-5, dual_path=tmp_path / "dual")
    start = StartPoint(dual=open_dual(tmp_path / "dual"), dual_factor=1.1)
    cold = train(loss, X, y, C=1.1, tol=1e-4)
    warm = train(loss, X, y, C=1.1, tol=1e-4, start=start)
    assert warm.epochs < cold.epochs


@pytest.mark.parametrize("loss", [SMOOTH, LOSSES[2]], ids=["smooth", "softmax"])
def test_a_start_from_the_weights_is_close_for_a_smooth_loss(loss):
    """The gradients at the optimal weights are the optimal duals."""
    X, y = problem()
    cold = train(loss, X, y, constant=1.0, tol=1e-9)
    W = np.vstack((cold.W, cold.intercept))
    warm = train(loss, X, y, constant=1.0, tol=1e-5, start=StartPoint(W=W))
    assert warm.history[0].relative_gap < 1e-5
    assert warm.epochs < cold.epochs / 2


def test_weights_of_another_shape_are_refused():
    X, y = problem()
    for shape in ((D + 1, M), (D, M + 1)):
        expected = rf"start weights must have at most {D} rows and {M} columns, got shape"
        with pytest.raises(ValueError, match=expected):
            train(SMOOTH, X, y, start=StartPoint(W=np.zeros(shape)))


def test_kept_duals_reproduce_the_certificate(tmp_path):
    X, y = problem()
    result = train(SMOOTH, X, y, C=2.0, tol=1e-4, dual_path=tmp_path / "dual")
    dual = open_dual(tmp_path / "dual").read(0, N)
    value = testing.dual_value(SMOOTH, X, y, np.full(N, 2.0), dual)
    assert result.certificate.dual_value == pytest.approx(value, rel=1e-9)


@pytest.mark.parametrize("n_classes", [2, 3])
def test_few_classes_work_with_the_largest_k(n_classes):
    X, y = testing.make_features(80, 4, n_classes, seed=1)
    for loss in (make_loss("topk_hinge_alpha", k=n_classes - 1), make_loss("softmax")):
        result = fit(ArrayRows(X, y, n_classes), loss, FitOptions(**{**TIGHT, "tol": 1e-4}))
        assert result.certificate.certified


def test_a_class_without_rows_is_legal():
    X, y = problem()
    result = train(SMOOTH, X[y != 2], y[y != 2], tol=1e-4)
    assert result.certificate.certified


def test_rows_of_one_class_only_are_refused():
    X, y = problem()
    expected = r"training rows must have at least two classes, got 1\."
    with pytest.raises(ValueError, match=expected):
        train(SMOOTH, X[y == 3], y[y == 3])
    with pytest.raises(ValueError, match=expected):
        train(SMOOTH, X, y, weight=(y == 3).astype(float))


def test_no_rows_are_refused():
    with pytest.raises(ValueError, match=r"at least two classes, got 0\."):
        train(SMOOTH, np.empty((0, D), np.float32), np.empty(0, np.int32))


def test_k_of_all_classes_is_refused_before_anything_is_read():
    X, y = problem()
    with pytest.raises(ValueError, match=r"k must be between 1 and n_classes - 1 = 4, got 5\."):
        train(make_loss("topk_hinge_beta", k=5), X, y)


def test_features_and_labels_of_different_length_are_refused():
    X, y = problem()
    with pytest.raises(ValueError, match=rf"X and y must have the same length, got {N} and 3\."):
        ArrayRows(X, y[:3], M)


def test_zero_rows_do_not_keep_the_gap_open():
    X, y = problem()
    X[:40] = 0
    for loss in LOSSES:
        for constant in (0.0, 1.0):
            result = train(loss, X, y, tol=1e-6, constant=constant)
            assert result.stop_reason == "tolerance"


def test_class_totals_count_every_piece(tmp_path):
    X, y = problem()
    np.testing.assert_array_equal(class_totals(ArrayRows(X, y, M)), np.bincount(y, minlength=M))


def test_a_nan_in_memory_is_no_certificate():
    X, y = problem()
    X[3, 2] = np.nan
    with pytest.raises(ValueError, match=r"primal and dual must stay finite, got nan"):
        train(SMOOTH, X, y, max_epochs=2)


def test_a_mean_far_above_the_deviation_keeps_its_digits():
    """Features at rest in float64 are centred in float64, whatever the computation's dtype."""
    X, y = testing.make_features(400, 6, 4, seed=2)
    shifted = 1e6 + X.astype(np.float64)
    # The engine rounds the mean to the computation's dtype: one that is round already stays.
    mean, inverse_scale = shifted.mean(axis=0).astype(np.float32), np.ones(6)
    loss = make_loss("softmax")
    options = {"tol": 1e-4, "dtype": "float32"}
    plain = fit(ArrayRows(shifted - mean, y, 4), loss, FitOptions(**options))
    centred = fit(
        ArrayRows(shifted, y, 4),
        loss,
        FitOptions(**options, mean=mean, inverse_scale=inverse_scale),
    )
    assert centred.certificate.primal == pytest.approx(plain.certificate.primal, rel=1e-4)


def test_a_solver_that_cannot_train_the_loss_is_refused(monkeypatch):
    monkeypatch.setattr(Softmax, "solvers", ("lbfgs",))
    X, y = testing.make_features(30, 3, 3, seed=0)
    with pytest.raises(ValueError, match=r"solver for loss 'softmax' must be 'auto' or one of"):
        fit(ArrayRows(X, y, 3), make_loss("softmax"), FitOptions(solver="sdca"))
