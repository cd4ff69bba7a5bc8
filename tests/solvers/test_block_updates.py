"""Exact blocked SDCA against one row at a time."""

import numpy as np
import pytest

from dtopk import testing
from dtopk.losses import make_loss
from dtopk.solvers.sdca import BlockUpdater, RowConversion, default_block_size
from tests.loss_cases import fit_labels, loss_id, updated_loss_cases

N, D, M = 150, 9, 7
every_loss = pytest.mark.parametrize("loss", updated_loss_cases(M), ids=loss_id)
SMOOTH = make_loss("topk_hinge_alpha", k=2, gamma=0.5)


def problem(loss, dtype=np.float64):
    X, y = testing.make_features(N, D, M, seed=5)
    return X.astype(dtype), fit_labels(loss, y, M)


def passes(loss, X, y, costs, *, block_size, n_passes=2, ratio=1.0, W=None, conversion=None):
    """Make passes in one fixed order; return duals, weights and the sums of the last pass."""
    conversion = conversion or RowConversion(n_features=X.shape[1], dtype=costs.dtype)
    updater = BlockUpdater(loss, conversion, M, block_size)
    W = np.zeros((conversion.width, M), costs.dtype) if W is None else W
    dual = np.zeros((len(X), M), costs.dtype)
    for n in range(n_passes):
        order = np.random.default_rng(n).permutation(len(X))
        blocks = [order[i : i + block_size] for i in range(0, len(X), block_size)]
        sums = [updater.update(X, y, costs, dual, rows, W, ratio) for rows in blocks]
    return dual, W, sums


@every_loss
def test_iterates_do_not_depend_on_the_block_size(loss):
    X, y = problem(loss)
    costs = np.full(N, 3.0)
    dual, W, _ = passes(loss, X, y, costs, block_size=1)
    for block_size in (64, 256):
        other, other_W, _ = passes(loss, X, y, costs, block_size=block_size)
        np.testing.assert_allclose(other, dual, atol=1e-10)
        np.testing.assert_allclose(other_W, W, atol=1e-10)


@every_loss
def test_iterates_are_those_of_one_row_at_a_time(loss):
    X, y = problem(loss)
    costs = np.full(N, 3.0)
    dual, W, _ = passes(loss, X, y, costs, block_size=64)
    slow, slow_W = np.zeros((N, M)), np.zeros((D, M))
    for n in range(2):
        testing.sdca_pass(loss, X, y, costs, slow, slow_W, np.random.default_rng(n).permutation(N))
    np.testing.assert_allclose(dual, slow, atol=1e-9)
    np.testing.assert_allclose(W, slow_W, atol=1e-9)


@every_loss
def test_float32_stays_as_close_as_its_digits_allow(loss):
    X, y = problem(loss, np.float32)
    single = passes(loss, X, y, np.full(N, 3.0, np.float32), block_size=64)
    double = passes(loss, X, y, np.full(N, 3.0), block_size=64)
    costs = np.full(N, 3.0)
    values = []
    for dual, _, _ in (single, double):
        feasible = dual.astype(float)
        loss.make_feasible(feasible, y, costs)
        values.append(testing.dual_value(loss, X, y, costs, feasible))
    assert values[0] == pytest.approx(values[1], rel=1e-4)


@every_loss
def test_the_weights_are_those_of_the_duals(loss):
    X, y = problem(loss)
    dual, W, _ = passes(loss, X, y, np.full(N, 3.0), block_size=64)
    np.testing.assert_allclose(W, X.T @ dual, atol=1e-12)


@every_loss
def test_the_sum_of_a_block_is_that_of_its_dual_terms(loss):
    X, y = problem(loss)
    dual, _, sums = passes(loss, X[:1], y[:1], np.full(1, 3.0), block_size=1, n_passes=1)
    assert sums[0] == pytest.approx(testing.dual_term(loss, dual[0], y[0], 3.0))


def test_a_ratio_solves_the_rows_at_a_smaller_cost_and_scales_their_duals_back():
    """At W = 0, costs C and ratio r are plain updates at C/r with the duals times r."""
    X, y = problem(SMOOTH)
    dual, W, sums = passes(SMOOTH, X, y, np.full(N, 3.0), block_size=64, ratio=4.0)
    plain, plain_W, plain_sums = passes(SMOOTH, X, y, np.full(N, 0.75), block_size=64)
    np.testing.assert_allclose(dual, 4 * plain, atol=1e-12)
    np.testing.assert_allclose(W, plain_W, atol=1e-12)
    assert sum(sums) == pytest.approx(4 * sum(plain_sums))


def test_rows_without_weight_keep_zero_duals_and_move_nothing():
    X, y = problem(SMOOTH)
    costs = np.where(np.arange(N) % 3, 2.0, 0.0)
    dual, W, _ = passes(SMOOTH, X, y, costs, block_size=64)
    assert not dual[::3].any()
    kept = costs > 0
    np.testing.assert_allclose(W, X[kept].T @ dual[kept], atol=1e-12)


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_centring_scaling_and_a_constant_equal_training_on_converted_rows(dtype):
    X, y = problem(SMOOTH)
    X = X.astype(dtype)
    wide = X.astype(float)
    mean, scale = wide.mean(axis=0), wide.std(axis=0)
    conversion = RowConversion(
        n_features=D, dtype=np.dtype(float), mean=mean, inverse_scale=1 / scale, constant=2.0
    )
    assert conversion.width == D + 1
    costs = np.full(N, 0.3)
    dual, W, _ = passes(SMOOTH, X, y, costs, block_size=64, conversion=conversion)
    converted = np.column_stack(((wide - mean) / scale, np.full(N, 2.0)))
    expected, expected_W, _ = passes(SMOOTH, converted, y, costs, block_size=64)
    np.testing.assert_allclose(dual, expected, atol=1e-11)
    np.testing.assert_allclose(W, expected_W, atol=1e-11)


def test_timings_add_up_to_their_total():
    X, y = problem(SMOOTH)
    updater = BlockUpdater(SMOOTH, RowConversion(n_features=D, dtype=np.dtype(float)), M, 64)
    updater.update(X, y, np.ones(N), np.zeros((N, M)), np.arange(64), np.zeros((D, M)), 1.0)
    timings = updater.timings
    parts = (timings.convert, timings.gram, timings.scores, timings.inner, timings.update)
    assert min(parts) > 0
    assert timings.total() == pytest.approx(sum(parts))


def test_blocks_are_larger_where_the_gram_matrix_costs_less():
    assert default_block_size(4096, 10) < default_block_size(4096, 1000)
    assert default_block_size(512, 1000) < default_block_size(4096, 1000)


@every_loss
def test_rows_that_do_not_move_change_nothing_for_those_after(loss):
    """Solved again at once, few rows move; the weights are still those of the duals."""
    X, y = problem(loss)
    costs = np.full(N, 30.0)
    X[::2], costs[1::3] = 0.0, 0.0
    dual, W, _ = passes(loss, X, y, costs, block_size=128, n_passes=6)
    np.testing.assert_allclose(W, X.T @ dual, atol=1e-11)
    slow, slow_W = np.zeros((N, M)), np.zeros((D, M))
    for n in range(6):
        testing.sdca_pass(loss, X, y, costs, slow, slow_W, np.random.default_rng(n).permutation(N))
    np.testing.assert_allclose(W, slow_W, atol=1e-7)
