"""Rows packed in memory: lossless, and never larger than dense."""

import pickle

import numpy as np
import pytest

from dtopk_storage import pack_rows


def draw(shape, density, dtype):
    rng = np.random.default_rng(5)
    return np.where(rng.random(shape) < density, rng.standard_normal(shape), 0).astype(dtype)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("density", [0, 0.01, 0.3, 0.7, 1])
@pytest.mark.parametrize("shape", [(40, 30), (1, 1), (3, 70_000), (0, 5), (5, 0)])
def test_packed_rows_are_unpacked_as_they_were(shape, density, dtype):
    a = draw(shape, density, dtype)
    packed = pack_rows(a, dtype)
    out = np.full(shape, 7, dtype)
    pickle.loads(pickle.dumps(packed)).unpack(out)
    assert out.tobytes() == a.tobytes()
    assert packed.nbytes <= a.nbytes
    assert packed.shape == shape
    assert packed.dtype == dtype


@pytest.mark.parametrize("density", [0, 0.1, 0.9])
@pytest.mark.parametrize("rows", [[], [0], [3, 3, 1], [9, 0, 5], list(range(10))])
def test_some_packed_rows_are_those_rows(density, rows):
    a = draw((10, 40), density, np.float32)
    some = pack_rows(a, "float32").take(np.array(rows, np.int64))
    out = np.full((len(rows), 40), 7, np.float32)
    some.unpack(out)
    np.testing.assert_array_equal(out, a[rows])


def test_packed_rows_take_what_compressed_sparse_rows_take():
    """4 bytes for a value and 2 for its column, three times; 4 for the count of each of 2 rows."""
    a = np.zeros((2, 100), np.float32)
    a[0, [3, 99]] = 1, 2
    a[1, 5] = 3
    packed = pack_rows(a, "float32")
    assert packed.nbytes == 3 * (4 + 2) + 2 * 4
    assert packed.columns.tolist() == [3, 99, 5]
    assert packed.counts.tolist() == [2, 1]
    assert packed.values.tolist() == [1, 2, 3]


@pytest.mark.parametrize(("n_columns", "dtype"), [(65_536, "uint16"), (65_537, "int32")])
def test_columns_are_as_narrow_as_they_can_be(n_columns, dtype):
    a = np.zeros((2, n_columns), np.float32)
    a[1, -1] = 4
    packed = pack_rows(a, "float32")
    assert packed.columns.dtype == dtype
    assert packed.columns.tolist() == [n_columns - 1]


@pytest.mark.parametrize(("n_values", "is_sparse"), [(65, True), (66, False)])
def test_rows_are_sparse_only_where_that_is_smaller(n_values, is_sparse):
    """Dense, 2 rows of 50 take 400 bytes; sparse, n values take 6 n + 8: equal at 65 1/3."""
    a = np.zeros((2, 50), np.float32)
    a.reshape(-1)[:n_values] = 1
    packed = pack_rows(a, "float32")
    assert (packed.columns is not None) == is_sparse
    assert packed.nbytes == (398 if is_sparse else 400)


def test_signs_of_zeros_and_nan_are_kept():
    a = np.zeros((4, 20))
    a[0, 0], a[1, 3], a[2, 7] = -0.0, np.nan, 5e-324
    out = np.ones((4, 20))
    packed = pack_rows(a, "float64")
    packed.unpack(out)
    assert packed.columns is not None
    assert out.tobytes() == a.tobytes()


@pytest.mark.parametrize("density", [0.1, 1])
def test_values_are_rounded_to_a_narrower_dtype(density):
    a = draw((30, 40), density, "float64")
    packed = pack_rows(a, np.float32)
    out = np.empty((30, 40))
    packed.unpack(out)
    np.testing.assert_array_equal(out, a.astype(np.float32))
    assert packed.values.dtype == np.float32


@pytest.mark.parametrize("density", [0.1, 1])
def test_packed_rows_do_not_follow_the_matrix(density):
    a = draw((30, 40), density, "float32")
    before = a.copy()
    packed = pack_rows(a, "float32")
    a[...] = 9
    out = np.empty_like(a)
    packed.unpack(out)
    np.testing.assert_array_equal(out, before)


@pytest.mark.parametrize("density", [0.1, 1])
def test_a_matrix_that_is_not_contiguous_is_packed(density):
    a = draw((30, 40), density, "float32").T[::2]
    out = np.empty(a.shape, np.float32)
    pack_rows(a, "float32").unpack(out)
    np.testing.assert_array_equal(out, a)


@pytest.mark.parametrize(
    "out", [np.empty((4, 3)), np.empty((3, 4)).T[:3], np.empty((3, 8))[:, ::2]]
)
def test_an_array_that_cannot_take_the_rows_is_refused(out):
    with pytest.raises(ValueError, match=r"out must be C-contiguous and of shape \(3, 4\), got"):
        pack_rows(np.eye(3, 4), "float64").unpack(out)
