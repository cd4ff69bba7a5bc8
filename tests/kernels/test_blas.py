import numpy as np
import pytest

from dtopk.kernels.blas import gemm, gram

SIZES = [(3, 4, 5), (1, 1, 1), (1, 7, 1), (7, 1, 1), (1, 1, 7), (1, 7, 6), (6, 7, 1), (33, 65, 17)]
EMPTY = [(0, 4, 5), (3, 4, 0), (0, 0, 0), (3, 0, 5)]


def _matrix(rng, shape, layout, dtype):
    """A matrix that BLAS can read: C-contiguous, transposed, or a slice with a longer stride."""
    if layout == "rows":
        return rng.normal(size=shape).astype(dtype)
    if layout == "columns":
        return rng.normal(size=shape[::-1]).astype(dtype).T
    wide = rng.normal(size=(shape[0] + 2, shape[1] + 3)).astype(dtype)
    return wide[1 : 1 + shape[0], 2 : 2 + shape[1]]


def _tolerance(dtype, inner):
    """Rounding of a sum of `inner` products of numbers of order one."""
    return 8 * (inner + 1) * np.finfo(dtype).eps


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("layout_b", ["rows", "columns", "slice"])
@pytest.mark.parametrize("layout_a", ["rows", "columns", "slice"])
def test_gemm_equals_numpy_for_every_layout_and_size(rng, layout_a, layout_b, dtype):
    for p, q, r in SIZES + EMPTY:
        a, b = _matrix(rng, (p, q), layout_a, dtype), _matrix(rng, (q, r), layout_b, dtype)
        out = _matrix(rng, (p, r), "slice", dtype)
        expected = 2.0 * a.astype(float) @ b.astype(float) - 0.5 * out.astype(float)
        gemm(a, b, out, alpha=2.0, beta=-0.5)
        np.testing.assert_allclose(out, expected, atol=_tolerance(dtype, q))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_gemm_with_beta_zero_overwrites_what_was_not_a_number(rng, dtype):
    a, b = rng.normal(size=(3, 4)).astype(dtype), rng.normal(size=(4, 5)).astype(dtype)
    out = np.full((3, 5), np.nan, dtype)
    gemm(a, b, out)
    np.testing.assert_allclose(out, a @ b, atol=_tolerance(dtype, 4))


def test_gemm_writes_nothing_outside_a_slice(rng):
    whole = np.zeros((6, 9))
    gemm(rng.normal(size=(2, 4)), rng.normal(size=(4, 3)), whole[2:4, 3:6])
    assert np.count_nonzero(whole) == np.count_nonzero(whole[2:4, 3:6]) == 6


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_gram_equals_numpy_in_its_lower_triangle(rng, dtype):
    for p, q in [(1, 1), (1, 5), (5, 1), (7, 3), (40, 65), (200, 9), (1100, 3), (0, 3)]:
        for layout in ("rows", "slice"):
            a = _matrix(rng, (p, q), layout, dtype)
            out = np.full((p + 2, p + 3), 7.0, dtype)
            gram(a, out[:p, :p])
            lower = np.tril(a.astype(float) @ a.astype(float).T)
            np.testing.assert_allclose(np.tril(out[:p, :p]), lower, atol=_tolerance(dtype, q))


def test_gram_writes_nothing_outside_a_slice(rng):
    whole = np.full((140, 150), 7.0)
    gram(rng.normal(size=(130, 3)), whole[4:134, 5:135])
    whole[4:134, 5:135] = 7.0
    assert (whole == 7.0).all()


def test_gram_of_rows_without_columns_is_zero():
    out = np.full((3, 3), 7.0)
    gram(np.empty((3, 0)), out)
    assert (np.tril(out)[np.tril_indices(3)] == 0).all()
