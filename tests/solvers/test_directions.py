import numpy as np
import pytest
from scipy.sparse import csr_matrix

from dtopk.solvers.directions import DirectionSum, SparseRows


def make_rows(rng, n_rows, n_columns, share, dtype=np.float32):
    rows = rng.normal(size=(n_rows, n_columns)).astype(dtype)
    rows[rng.random(rows.shape) >= share] = 0
    return rows


def assert_same(found, rows):
    expected = csr_matrix(rows)
    np.testing.assert_array_equal(found.indptr, expected.indptr)
    np.testing.assert_array_equal(found.indices, expected.indices)
    np.testing.assert_array_equal(found.values, expected.data)
    assert found.values.dtype == rows.dtype


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("share", [0.0, 0.1, 1.0])
def test_entries_are_found_as_scipy_does(rng, share, dtype):
    rows = make_rows(rng, 30, 17, share, dtype)
    rows[7] = 0
    assert_same(SparseRows.from_dense(rows), rows)


def test_rows_with_too_many_entries_are_not_taken(rng):
    rows = make_rows(rng, 30, 17, 0.3)
    count = np.count_nonzero(rows)
    assert_same(SparseRows.find(rows, count), rows)
    assert SparseRows.find(rows, count - 1) is None
    assert SparseRows.find(np.ones((3, 5), np.float32), 0) is None


def test_parts_are_put_together_and_taken_out(rng):
    rows = make_rows(rng, 30, 17, 0.2)
    parts = [SparseRows.from_dense(rows[part]) for part in (slice(0, 11), slice(11, 30))]
    whole = SparseRows.concatenate(parts)
    assert_same(whole, rows)
    assert_same(whole[5:20], rows[5:20])
    others = rng.normal(size=rows.shape).astype(np.float32)
    assert whole.dot(others) == pytest.approx(np.sum(rows.astype(float) * others), rel=1e-12)
    out = others.copy()
    whole.add_to(out, 0.5)
    np.testing.assert_allclose(out, others + 0.5 * rows, rtol=1e-6)


@pytest.mark.parametrize("n_columns", [3, 40])
@pytest.mark.parametrize("shares", [(0.02,), (1.0,), (0.02, 1.0, 0.0)])
def test_sum_is_that_of_the_products(rng, shares, n_columns):
    """Over more rows than are summed in float32, and twice in the same memory."""
    total = DirectionSum(300, n_columns, np.dtype(np.float32))
    for _ in range(2):
        total.restart()
        expected = np.zeros((300, n_columns))
        for turn in range(4):
            X = rng.normal(size=(1500, 300)).astype(np.float32)
            A = make_rows(rng, 1500, n_columns, shares[turn % len(shares)])
            found = total.add(X, A)
            assert (found is None) == (shares[turn % len(shares)] == 1)
            expected += X.T.astype(float) @ A
        np.testing.assert_allclose(total.total(), expected, rtol=0, atol=1e-3)


def test_sum_of_no_rows_is_zero(rng):
    total = DirectionSum(4, 3, np.dtype(np.float32))
    np.testing.assert_array_equal(total.total(), np.zeros((4, 3)))
    total.add(np.ones((2, 4), np.float32), np.ones((2, 3), np.float32))
    total.total()
    total.restart()
    np.testing.assert_array_equal(total.total(), np.zeros((4, 3)))
