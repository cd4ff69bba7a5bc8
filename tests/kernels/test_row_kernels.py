import numpy as np
import pytest

from dtopk.kernels.corrections import correct_scores
from dtopk.kernels.rows import (
    gather_rows,
    pack_moved_rows,
    pack_rows,
    put_duals,
    take_columns,
    take_duals,
)
from dtopk.kernels.workspace import working_vector

AT_REST = [np.float16, np.float32, np.float64]
COMPUTE = [np.float32, np.float64]


@pytest.mark.parametrize("out_dtype", COMPUTE)
@pytest.mark.parametrize("dtype", AT_REST)
def test_gather_rows_picks_and_converts_rows_exactly(rng, dtype, out_dtype):
    X = rng.normal(size=(9, 5)).astype(dtype)
    rows = np.array([8, 0, 3, 3])
    out = np.empty((4, 5), out_dtype)
    gather_rows(X, rows, None, None, 0.0, out)
    np.testing.assert_array_equal(out, X[rows].astype(out_dtype))


@pytest.mark.parametrize("dtype", AT_REST)
def test_gather_rows_centres_scales_and_adds_a_constant(rng, dtype):
    X = rng.normal(size=(6, 3)).astype(dtype)
    mean, inverse = rng.normal(size=3), rng.uniform(0.5, 2, size=3)
    out = np.empty((2, 4))
    gather_rows(X, np.array([5, 1]), mean, inverse, 1.5, out)
    expected = (X[[5, 1]].astype(float) - mean) * inverse
    np.testing.assert_allclose(out[:, :3], expected, rtol=1e-15)
    assert (out[:, 3] == 1.5).all()


def test_gather_rows_subtracts_a_large_mean_before_anything_is_lost():
    """Mean 1,000 and deviation 1: in float32 the differences are exact, as the mean is."""
    X = (1000 + np.arange(8, dtype=np.float32).reshape(4, 2) / 64).astype(np.float32)
    out = np.empty((4, 2), np.float32)
    ones = np.ones(2, np.float32)
    gather_rows(X, np.arange(4), 1000 * ones, ones, 0.0, out)
    np.testing.assert_array_equal(out, np.arange(8).reshape(4, 2) / 64)


@pytest.mark.parametrize("dtype", AT_REST)
def test_gather_rows_takes_a_slice_of_a_wider_array(rng, dtype):
    X = rng.normal(size=(6, 8)).astype(dtype)[1:5]
    out = np.empty((2, 8))
    gather_rows(X, np.array([3, 0]), None, None, 0.0, out)
    np.testing.assert_array_equal(out, X[[3, 0]].astype(float))


def test_gather_rows_of_no_rows_leaves_out_empty():
    gather_rows(
        np.zeros((3, 2), np.float16), np.empty(0, np.int64), None, None, 1.0, np.empty((0, 3))
    )


@pytest.mark.parametrize("dtype", COMPUTE)
def test_take_and_put_duals_are_inverse(rng, dtype):
    dual = rng.normal(size=(7, 3)).astype(dtype)
    before, rows = dual.copy(), np.array([6, 2, 4])
    taken = np.empty((3, 3), dtype)
    take_duals(dual, rows, dtype(0.25), taken)
    np.testing.assert_array_equal(taken, before[rows] / 4)
    dual[rows] = 0
    put_duals(taken, rows, dtype(4), dual)
    np.testing.assert_array_equal(dual, before)


@pytest.mark.parametrize("dtype", COMPUTE)
@pytest.mark.parametrize("n_changed", [0, 1, 3, 4, 5, 8, 11])
def test_correct_scores_adds_what_changed_rows_did(rng, n_changed, dtype):
    scores = rng.normal(size=(12, 6)).astype(dtype)
    gram = np.tril(rng.normal(size=(12, 12))).astype(dtype)
    delta = rng.normal(size=(12, 6)).astype(dtype)
    changed = rng.permutation(11)[:n_changed]
    expected = scores.astype(float)
    expected[11] += gram[11, changed].astype(float) @ delta[changed].astype(float)
    correct_scores(scores, gram, delta, np.resize(changed, 12), n_changed, 11)
    np.testing.assert_allclose(scores, expected, atol=50 * np.finfo(dtype).eps)


@pytest.mark.parametrize("dtype", COMPUTE)
def test_working_vectors_have_no_array_within_a_vector_loops_reach(dtype):
    """64 bytes a vector, and no compiler unrolls more than eight of them."""
    like = np.zeros(0, dtype)
    vectors = [working_vector(size, like) for size in (7, 7, 1, 26)]
    assert [v.size for v in vectors] == [7, 7, 1, 26]
    assert all(v.dtype == dtype and v.flags.c_contiguous for v in vectors)
    starts = sorted(v.ctypes.data for v in vectors)
    assert min(np.diff(starts)) >= 8 * 64


@pytest.mark.parametrize("dtype", COMPUTE)
def test_rows_that_moved_are_packed_group_by_group(rng, dtype):
    delta = rng.normal(size=(9, 4)).astype(dtype)
    delta[[0, 3, 4, 8]] = 0
    delta[5, :3] = 0  # Its last entry alone has moved.
    expected, moved, n_moved = delta.copy(), np.empty(9, np.int64), 0
    for first in range(0, 9, 4):
        n_moved = pack_moved_rows(delta, first, min(first + 4, 9), moved, n_moved)
    np.testing.assert_array_equal(moved[:n_moved], [1, 2, 5, 6, 7])
    np.testing.assert_array_equal(delta[:n_moved], expected[moved[:n_moved]])


def test_a_row_of_what_is_no_number_has_moved():
    delta, moved = np.array([[0.0, 0.0], [0.0, np.nan]]), np.empty(2, np.int64)
    assert pack_moved_rows(delta, 0, 2, moved, 0) == 1
    assert moved[0] == 1


def test_pack_rows_moves_ascending_rows_to_the_front(rng):
    values = rng.normal(size=(6, 3))
    expected = values[[0, 2, 5]].copy()
    pack_rows(values, np.array([0, 2, 5]))
    np.testing.assert_array_equal(values[:3], expected)


def test_take_columns_writes_those_asked_for(rng):
    values, columns = rng.normal(size=(3, 7)), np.array([6, 0, 2])
    out = np.empty((3, 3))
    take_columns(values, columns, out)
    np.testing.assert_array_equal(out, values[:, columns])
