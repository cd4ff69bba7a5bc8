import numpy as np
import pytest

from dtopk.kernels.ranked import largest_places


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("m", [1, 7, 16, 100])
def test_largest_places_are_those_of_a_stable_sort(m, dtype, rng):
    for values in (rng.normal(size=m), rng.integers(0, 4, m), np.zeros(m), np.arange(m)):
        b = np.append(values, -np.inf).astype(dtype)
        expected = np.argsort(-b, kind="stable")
        for k in sorted({1, (m + 1) // 2, m}):
            top, places = np.empty(k, dtype), np.empty(k, np.int64)
            largest_places(b, k, top, places)
            np.testing.assert_array_equal(places, expected[:k])
            np.testing.assert_array_equal(top, b[expected[:k]])
