import numpy as np
import pytest
from numba import njit

from dtopk.kernels.elementary import fast_exp, half_to_single

# "A few units in the last place": the polynomials and the reduction of the argument, which costs
# more far from zero.
EXP_ULPS = 4


@njit
def _exponentials(x, out):
    for i in range(x.size):
        out[i] = fast_exp(x[i])


@njit
def _singles(bits, out):
    for i in range(bits.size):
        out[i] = half_to_single(bits[i])


def _exp(x):
    out = np.empty_like(x)
    _exponentials(x, out)
    return out


@pytest.mark.parametrize(("dtype", "low", "high"), [("f4", -87.0, 88.0), ("f8", -708.0, 709.0)])
def test_fast_exp_is_exact_to_a_few_ulps_over_its_range(dtype, low, high):
    x = np.linspace(low, high, 200_001).astype(dtype)
    expected = np.exp(x.astype(np.longdouble))
    error = np.abs(_exp(x).astype(np.longdouble) - expected) / expected
    assert error.max() <= EXP_ULPS * np.finfo(dtype).eps


@pytest.mark.parametrize("dtype", ["f4", "f8"])
def test_fast_exp_is_exact_to_a_few_ulps_near_zero(dtype):
    size = np.logspace(-30, 0, 2001)
    x = np.concatenate((size, -size, [0.0])).astype(dtype)
    expected = np.exp(x.astype(np.longdouble))
    error = np.abs(_exp(x).astype(np.longdouble) - expected) / expected
    assert error.max() <= EXP_ULPS * np.finfo(dtype).eps


@pytest.mark.parametrize("dtype", ["f4", "f8"])
def test_fast_exp_stays_finite_and_not_negative_beyond_its_range(dtype):
    x = np.array([-1e30, -1e4, -745.0, -104.0, 89.0, 710.0, 1e4, 1e30, -np.inf, np.inf], dtype)
    out = _exp(x)
    assert np.isfinite(out).all()
    assert (out >= 0).all()
    assert out[:2].max() < 1e-37


def test_fast_exp_is_monotone_across_the_steps_of_its_reduction():
    """The argument is reduced modulo log 2: nothing may jump back where the multiple changes."""
    steps = (np.arange(-60, 60) + 0.5) * np.log(2)
    x = np.sort(np.concatenate([steps + d for d in (-1e-3, -1e-5, 0, 1e-5, 1e-3)]))
    assert (np.diff(_exp(x)) > 0).all()
    assert (np.diff(_exp(x.astype(np.float32))) >= 0).all()


def test_half_to_single_equals_numpy_for_every_finite_half():
    bits = np.arange(2**16, dtype=np.uint16)
    halves = bits.view(np.float16)
    bits = bits[np.isfinite(halves)]
    out = np.empty(bits.size, np.float32)
    _singles(bits, out)
    expected = bits.view(np.float16).astype(np.float32)
    # As bits, so that -0.0 counts as different from 0.0.
    np.testing.assert_array_equal(out.view(np.uint32), expected.view(np.uint32))
