import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dtopk import testing
from dtopk.kernels.projections import (
    ALPHA,
    ALPHA_INCL,
    BETA,
    largest_entries,
    project_top_k,
)

CODES = {"alpha": ALPHA, "alpha_incl": ALPHA_INCL, "beta": BETA}
# Both sides compute in float64, relative to the radius; sums of up to 40 terms lose a few digits.
FLOAT64_TOLERANCE = 1e-12
# In float32 sums of 40 terms cancel: their rounding, in units of what they sum.
FLOAT32_SLACK = 16 * np.finfo(np.float32).eps


def project(b, domain, k, radius, rho=0.0, dtype=np.float64):
    b = np.asarray(b, dtype)
    out = np.full(b.size, np.nan, dtype)
    top = np.empty(k + 1, dtype)
    total = project_top_k(b, CODES[domain], k, radius, dtype(rho), top, out)
    return out, total


@st.composite
def problems(draw):
    """Vectors with and without ties, and radii over fourteen decades."""
    m = draw(st.integers(1, 40))
    k = draw(st.integers(1, m))
    entries = draw(
        st.one_of(
            st.lists(st.integers(-3, 3), min_size=m, max_size=m),
            st.lists(st.floats(-1, 1, width=32), min_size=m, max_size=m),
        )
    )
    scale = 10.0 ** draw(st.integers(-6, 4))
    b = scale * (np.array(entries, float) + draw(st.sampled_from([0.0, 0.5, -0.5, 3.0])))
    radius = 10.0 ** draw(st.floats(-8, 6))
    rho = draw(st.sampled_from([0.0, 1.0, 0.3, 1e-6]))
    return b.astype(np.float32).astype(float), k, float(np.float32(radius)), rho


# b, k, radius, rho, x
HAND_COMPUTED = {
    # The two largest sum to -0.1: nothing is worth its cost.
    "alpha, zero": ("alpha", [-1, 0.5, -0.6], 2, 1, 0, [0, 0, 0]),
    # x = (c, c, 0): minimise c^2 - 0.8 c; t = 0.3 - 0.4 is above -1.
    "alpha, two at the cap": ("alpha", [0.5, 0.3, -1], 2, 1, 0, [0.4, 0.4, 0]),
    # With the bias c^2 + 2 c^2 - 0.8 c, so c = 0.8 / 6.
    "alpha, two at the cap, biased": ("alpha", [0.5, 0.3, -1], 2, 1, 1, [0.8 / 6, 0.8 / 6, 0]),
    # x = (c, c/2, c/2): minimise 0.75 c^2 - c.
    "alpha, one at the cap": ("alpha", [1, 0, 0], 2, 10, 0, [2 / 3, 1 / 3, 1 / 3]),
    # The same with s = 2 c and the bias: 0.75 c^2 + 2 c^2 - c, so c = 2/11.
    "alpha, one at the cap, biased": ("alpha", [1, 0, 0], 2, 10, 1, [2 / 11, 1 / 11, 1 / 11]),
    # The sum is 1, the first at its cap 1/2, the others share 1/2 with t = -0.15.
    "alpha, radius binds": ("alpha", [1, 0.2, 0], 2, 1, 0, [0.5, 0.35, 0.15]),
    "beta, inside": ("beta", [0.3, 0.2, -1], 2, 1, 0, [0.3, 0.2, 0]),
    "beta, one at the cap": ("beta", [2, 0, -1], 2, 1, 0, [0.5, 0, 0]),
    "beta, radius binds": ("beta", [1, 1, 1], 2, 1, 0, [1 / 3, 1 / 3, 1 / 3]),
    # x_j = 1 - s with s = 2 x_j.
    "beta, biased": ("beta", [1, 1, -5], 1, 10, 1, [1 / 3, 1 / 3, 0]),
    "beta, all negative": ("beta", [-1, -2], 1, 1, 0, [0, 0]),
    # s = 0.8 is above (k-1)/k = 2/3: the cap is 1/3.
    "incl, as beta": ("alpha_incl", [0.3, 0.3, 0.2], 3, 1, 0, [0.3, 0.3, 0.2]),
    # s is below 2/3, the cap s/2: x = (c, c, 0), minimise c^2 - 0.4 c.
    "incl, as alpha with k - 1": ("alpha_incl", [0.3, 0.1, -1], 3, 1, 0, [0.2, 0.2, 0]),
    # beta gives s = 0.63, too little; alpha with k - 1 gives s = 1.3, too much: s is 2/3.
    "incl, between the two": ("alpha_incl", [1, 0.3, -1], 3, 1, 0, [1 / 3, 1 / 3, 0]),
}


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("case", HAND_COMPUTED.values(), ids=HAND_COMPUTED.keys())
def test_project_top_k_gives_hand_computed_values(case, dtype):
    domain, b, k, radius, rho, expected = case
    x, total = project(b, domain, k, radius, rho, dtype)
    np.testing.assert_allclose(x, expected, atol=8 * np.finfo(dtype).eps)
    assert float(total) == pytest.approx(sum(expected), abs=8 * float(np.finfo(dtype).eps))


@pytest.mark.parametrize("domain", CODES)
@settings(max_examples=150, deadline=None, derandomize=True, database=None)
@given(problem=problems())
def test_project_top_k_equals_its_slow_twin(domain, problem):
    b, k, radius, rho = problem
    x, total = project(b, domain, k, radius, rho)
    expected = testing.project(b, domain, k, radius, rho)
    np.testing.assert_allclose(x, expected, rtol=0, atol=FLOAT64_TOLERANCE * radius)
    assert total == pytest.approx(x.sum(), rel=1e-12, abs=FLOAT64_TOLERANCE * radius)


@pytest.mark.parametrize("domain", CODES)
@settings(max_examples=150, deadline=None, derandomize=True, database=None)
@given(problem=problems())
def test_no_point_of_the_domain_is_better_than_the_projection(domain, problem):
    """The Frank-Wolfe gap bounds the gain of any feasible change, whatever the method."""
    b, k, radius, rho = problem
    x, _ = project(b, domain, k, radius, rho)
    scale = radius * max(np.abs(b).max(), radius)
    assert testing.fw_gap(x, b, domain, k, radius, rho) <= FLOAT64_TOLERANCE * scale


@pytest.mark.parametrize("domain", CODES)
@settings(max_examples=200, deadline=None, derandomize=True, database=None)
@given(problem=problems())
def test_the_projection_in_float32_is_feasible_and_as_good_as_float32_allows(domain, problem):
    b, k, radius, rho = problem

    def objective(x):
        return 0.5 * x @ x + 0.5 * rho * x.sum() ** 2 - b @ x

    single, _ = project(b, domain, k, radius, rho, np.float32)
    double, _ = project(b, domain, k, radius, rho)
    x = single.astype(float)
    cap, _ = testing.sum_cap(domain, k, radius, x.sum())
    size = min(radius, np.abs(b).sum())
    assert x.min() >= 0
    assert x.sum() <= radius * (1 + FLOAT32_SLACK)
    assert x.max() <= cap + FLOAT32_SLACK * size
    assert objective(x) <= objective(double) + FLOAT32_SLACK * size * np.abs(b).max()


def test_entries_at_the_cap_do_not_hide_the_rest_from_float32():
    """Above a threshold far below, they sum to more than the rest by more than its precision."""
    b = np.repeat([30, 20, 10, 0, -10, -20, -30], [5, 3, 6, 7, 8, 7, 2])
    single, _ = project(b, "alpha_incl", b.size, 1.17, 1.0, np.float32)
    double, _ = project(b, "alpha_incl", b.size, 1.17, 1.0)
    np.testing.assert_allclose(single, double, rtol=0, atol=1e-5)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("domain", CODES)
def test_an_entry_of_minus_infinity_is_outside_the_problem(rng, domain, dtype):
    for k in (1, 2, 5, 7):
        for radius in (1e-3, 1.0, 1e3):
            b = rng.normal(size=8).astype(dtype)
            b[3] = -np.inf
            x, _ = project(b, domain, k, radius, 0.5, dtype)
            without, _ = project(np.delete(b, 3), domain, k, radius, 0.5, dtype)
            assert x[3] == 0
            tolerance = 32 * np.finfo(dtype).eps
            np.testing.assert_allclose(np.delete(x, 3), without, rtol=0, atol=tolerance)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("domain", CODES)
@pytest.mark.parametrize("value", [1e4, 1.0, 1e-6, 0.0, -1.0, -1e4])
def test_equal_entries_share_the_radius_or_are_zero(domain, value, dtype):
    """With all m entries v > 0 each is min(v, radius/m) without a bias."""
    for m, k in [(5, 1), (5, 2), (5, 4), (5, 5), (1, 1), (2, 2)]:
        for radius in (1e-6, 1.0, 1e6):
            x, _ = project(np.full(m, value), domain, k, radius, 0.0, dtype)
            # Ties at the cap may be broken: the sum and the domain are what is determined.
            expected = min(max(value, 0), radius / m)
            np.testing.assert_allclose(x, expected, rtol=16 * np.finfo(dtype).eps)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("k", [1, 2, 7, 31, 32, 33, 40, 60])
def test_largest_entries_are_those_of_a_sort(rng, k, dtype):
    for b in (rng.normal(size=60), np.round(rng.normal(size=60)), np.arange(60.0), np.zeros(60)):
        top = np.empty(k, dtype)
        largest_entries(b.astype(dtype), k, top)
        np.testing.assert_array_equal(top, np.sort(b.astype(dtype))[::-1][:k])


@pytest.mark.parametrize("domain", CODES)
def test_project_top_k_of_many_classes_equals_its_slow_twin(rng, domain):
    b = 3 * rng.normal(size=500)
    for k, radius, rho in [(5, 1.0, 1.0), (100, 50.0, 0.1), (400, 1e4, 1.0)]:
        x, _ = project(b, domain, k, radius, rho)
        expected = testing.project(b, domain, k, radius, rho)
        np.testing.assert_allclose(x, expected, rtol=0, atol=FLOAT64_TOLERANCE * radius)
