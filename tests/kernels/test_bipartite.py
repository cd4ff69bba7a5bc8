import cvxpy as cp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dtopk.kernels import bipartite
from dtopk.kernels.bipartite import project_bipartite, project_bipartite_by_sorting
from dtopk.testing import multilabel as slow

KERNELS = {"fixing": project_bipartite, "sorting": project_bipartite_by_sorting}
every_kernel = pytest.mark.parametrize("kernel", KERNELS.values(), ids=KERNELS.keys())
both_dtypes = pytest.mark.parametrize("dtype", [np.float32, np.float64], ids=["f4", "f8"])
# Both sides compute in float64, relative to the sum of the answer; sums of up to 40 terms lose a
# few digits.
FLOAT64_TOLERANCE = 1e-12
# In float32 sums of 40 terms cancel: their rounding, in units of what they sum.
FLOAT32_SLACK = 64 * np.finfo(np.float32).eps
# What Clarabel reaches with its own tolerances of 1e-8.
SOLVER_TOLERANCE = 1e-6


def project(b, c, radius, kernel, dtype=np.float64):
    b, c = np.asarray(b, dtype), np.asarray(c, dtype)
    p, n = np.full(b.size, np.nan, dtype), np.full(c.size, np.nan, dtype)
    height = b.max() + c.max()
    total = kernel(b - b.max(), c - c.max(), height, radius, p, n)
    return p, n, total


def fw_gap(p, n, b, c, radius):
    """Bound the distance from optimum: max <gradient, (p, n) - z> over the domain.

    Its vertices are zero and pairs of one entry of each side at the radius.
    """
    gradient, other = p - b, n - c
    lowest = min(0.0, radius * (gradient.min() + other.min()))
    return gradient @ p + other @ n - lowest


def entries(size):
    return st.one_of(
        st.lists(st.integers(-3, 3), min_size=size, max_size=size),
        st.lists(st.floats(-1, 1, width=32), min_size=size, max_size=size),
    )


@st.composite
def problems(draw):
    """Vectors with and without ties, and radii over fourteen decades."""
    k, m = draw(st.integers(1, 40)), draw(st.integers(1, 40))
    scale = 10.0 ** draw(st.integers(-6, 4))
    shift = draw(st.sampled_from([0.0, 0.5, -0.5, 3.0]))
    b = scale * (np.array(draw(entries(k)), float) + shift)
    c = scale * (np.array(draw(entries(m)), float) + draw(st.sampled_from([0.0, shift, -shift])))
    radius = 10.0 ** draw(st.floats(-8, 6))
    return b.astype(np.float32).astype(float), c.astype(np.float32).astype(float), radius


# b, c, radius, p, n
HAND_COMPUTED = {
    # 0.3 - 0.5 < 0: no pair is worth its cost.
    "zero": ([0.3, 0.1], [-0.5], 1, [0, 0], [0]),
    # One pair at s: minimise s^2 - (1 + 0.5) s, at s = 0.75.
    "a pair": ([1], [0.5], 1, [0.75], [0.75]),
    "a pair at the radius": ([1], [0.5], 0.5, [0.5], [0.5]),
    # 2 (0.6 - t) = 0.8 + t, at t = 0.4/3.
    "two against one": ([0.6, 0.6], [0.8], 9, [1.4 / 3, 1.4 / 3], [2.8 / 3]),
    # The same, the radius below the sum of 2.8/3.
    "two against one, at the radius": ([0.6, 0.6], [0.8], 0.5, [0.25, 0.25], [0.5]),
    # At sums of 1 the thresholds are 0.5 (two entries) and 1: 1.5 >= 0.
    "the second entry in": ([1, 1, -1], [2, 0.5], 1, [0.5, 0.5, 0], [1, 0]),
    # (b - t) + (b' - t) = c + t with t = (1 + 0.4 - 1)/3 < 0.4: all in.
    "all in": ([1, 0.4], [1], 9, [2.6 / 3, 0.8 / 3], [3.4 / 3]),
    # t = (1 - 1)/2 = 0 leaves -0.1 out.
    "one out": ([1, -0.1], [1], 9, [1, 0], [1]),
}


@both_dtypes
@every_kernel
@pytest.mark.parametrize("case", HAND_COMPUTED.values(), ids=HAND_COMPUTED.keys())
def test_project_bipartite_gives_hand_computed_values(case, kernel, dtype):
    b, c, radius, expected_p, expected_n = case
    p, n, total = project(b, c, radius, kernel, dtype)
    tolerance = 8 * float(np.finfo(dtype).eps)
    np.testing.assert_allclose(p, expected_p, atol=tolerance)
    np.testing.assert_allclose(n, expected_n, atol=tolerance)
    assert float(total) == pytest.approx(sum(expected_p), abs=tolerance)


@every_kernel
@settings(max_examples=400, deadline=None, derandomize=True, database=None)
@given(problem=problems())
def test_project_bipartite_equals_its_slow_twin(kernel, problem):
    b, c, radius = problem
    p, n, total = project(b, c, radius, kernel)
    expected_p, expected_n = slow.project_bipartite(b, c, radius)
    tolerance = FLOAT64_TOLERANCE * expected_p.sum()
    np.testing.assert_allclose(p, expected_p, rtol=0, atol=tolerance)
    np.testing.assert_allclose(n, expected_n, rtol=0, atol=tolerance)
    assert total == pytest.approx(p.sum(), rel=1e-13)


@every_kernel
@settings(max_examples=200, deadline=None, derandomize=True, database=None)
@given(problem=problems())
def test_no_point_of_the_bipartite_simplex_is_better_than_the_projection(kernel, problem):
    b, c, radius = problem
    p, n, _ = project(b, c, radius, kernel)
    scale = radius * max(np.abs(b).max(), np.abs(c).max(), radius)
    assert fw_gap(p, n, b, c, radius) <= 1e-12 * scale


@both_dtypes
@every_kernel
@settings(max_examples=200, deadline=None, derandomize=True, database=None)
@given(problem=problems())
def test_the_projection_is_in_the_bipartite_simplex(kernel, dtype, problem):
    b, c, radius = problem
    p, n, _ = project(b, c, radius, kernel, dtype)
    slack = 64 * float(np.finfo(dtype).eps)
    assert p.min() >= 0
    assert n.min() >= 0
    assert p.sum(dtype=float) <= radius * (1 + slack)
    assert p.sum(dtype=float) == pytest.approx(n.sum(dtype=float), rel=slack)


@both_dtypes
@every_kernel
@settings(max_examples=200, deadline=None, derandomize=True, database=None)
@given(problem=problems())
def test_a_projection_projects_on_itself(kernel, dtype, problem):
    """Entries that were zero are at their threshold, and rounding lets each of them in or not."""
    b, c, radius = problem
    p, n, total = project(b, c, radius, kernel, dtype)
    again_p, again_n, _ = project(p, n, radius, kernel, dtype)
    tolerance = 4 * (p.size + n.size) * float(np.finfo(dtype).eps) * float(total)
    np.testing.assert_allclose(again_p, p, rtol=0, atol=tolerance)
    np.testing.assert_allclose(again_n, n, rtol=0, atol=tolerance)


@every_kernel
@settings(max_examples=200, deadline=None, derandomize=True, database=None)
@given(problem=problems())
def test_the_projection_in_float32_is_as_good_as_float32_allows(kernel, problem):
    b, c, radius = problem

    def objective(p, n):
        p, n = p.astype(float), n.astype(float)
        return 0.5 * (p @ p + n @ n) - b @ p - c @ n

    single_p, single_n, _ = project(b, c, radius, kernel, np.float32)
    p, n, total = project(b, c, radius, kernel)
    size = float(total) * (np.abs(b).max() + np.abs(c).max())
    assert objective(single_p, single_n) <= objective(p, n) + FLOAT32_SLACK * size


def test_project_bipartite_equals_a_conic_solver(rng):
    for k, m, radius in [(1, 3, 1.0), (4, 4, 0.3), (5, 30, 2.0), (30, 5, 20.0), (20, 20, 1e3)]:
        b, c = rng.normal(size=k), rng.normal(size=m)
        p, n = cp.Variable(k, nonneg=True), cp.Variable(m, nonneg=True)
        objective = cp.Minimize(cp.sum_squares(p - b) + cp.sum_squares(n - c))
        constraints = [cp.sum(p) == cp.sum(n), cp.sum(p) <= radius]
        cp.Problem(objective, constraints).solve(solver=cp.CLARABEL)
        for kernel in KERNELS.values():
            ours_p, ours_n, _ = project(b, c, radius, kernel)
            np.testing.assert_allclose(ours_p, p.value, atol=SOLVER_TOLERANCE)
            np.testing.assert_allclose(ours_n, n.value, atol=SOLVER_TOLERANCE)


@both_dtypes
@every_kernel
def test_a_radius_far_below_the_rounding_of_the_entries_keeps_its_meaning(kernel, dtype):
    """Entries of 1e4, three ties among them, and a radius of 1e-9."""
    p, n, total = project([1e4, 1e4, 9e3], [1e4, 1e4, 1e4, 0], 1e-9, kernel, dtype)
    rtol = 8 * float(np.finfo(dtype).eps)
    np.testing.assert_allclose(p, [5e-10, 5e-10, 0], rtol=rtol)
    np.testing.assert_allclose(n, [1e-9 / 3, 1e-9 / 3, 1e-9 / 3, 0], rtol=rtol)
    assert float(total) == pytest.approx(1e-9, rel=rtol)


@both_dtypes
@every_kernel
def test_an_entry_of_minus_infinity_is_outside_the_problem(rng, kernel, dtype):
    for radius in (1e-3, 1.0, 1e3):
        b, c = rng.normal(size=6).astype(dtype), rng.normal(size=9).astype(dtype)
        b[2], c[4], c[8] = -np.inf, -np.inf, -np.inf
        p, n, _ = project(b, c, radius, kernel, dtype)
        inside_p, inside_n, _ = project(b[b > -9], c[c > -9], radius, kernel, dtype)
        assert p[2] == n[4] == n[8] == 0
        tolerance = 32 * float(np.finfo(dtype).eps)
        np.testing.assert_allclose(p[b > -9], inside_p, rtol=0, atol=tolerance)
        np.testing.assert_allclose(n[c > -9], inside_n, rtol=0, atol=tolerance)


@both_dtypes
@every_kernel
@pytest.mark.parametrize("value", [1e4, 1.0, 1e-6, 0.0, -1.0, -1e4])
def test_equal_entries_share_the_sum(kernel, dtype, value):
    """With k entries v and m entries w the sum s has s/k - v + s/m - w = 0, if below r."""
    for k, m in [(1, 1), (1, 5), (5, 1), (3, 4)]:
        for radius in (1e-6, 1.0, 1e6):
            b, c = np.full(k, value), np.full(m, 2 * value)
            p, n, total = project(b, c, radius, kernel, dtype)
            expected = min(max(3 * value, 0) * k * m / (k + m), radius)
            rtol = 16 * float(np.finfo(dtype).eps)
            np.testing.assert_allclose(p, expected / k, rtol=rtol)
            np.testing.assert_allclose(n, expected / m, rtol=rtol)
            assert float(total) == pytest.approx(expected, rel=rtol)


def hardest_entries(m):
    """Entries of which a round drops one or two, each just below the threshold without it."""
    b, step = [0.0, -0.5], 1e-15
    for k in range(3, m + 1):
        b.append(max((sum(b) - 1) / (k - 1) - step, -0.999))
        step *= k
    return np.array(b)


@both_dtypes
def test_variable_fixing_ends_without_the_sort(rng, dtype):
    """Among them the entries that take the most rounds of all that are known."""
    for m in (10, 100, 1000):
        for b in (
            rng.normal(size=m),
            -(2.0 ** np.arange(m).clip(max=60)),
            -(1.1 ** np.arange(m).clip(max=600)),
            np.round(rng.normal(size=m)),
            -np.arange(m) / m,
            hardest_entries(m),
        ):
            b = (b - b.max()).astype(dtype)
            c = rng.permutation(b)
            for height in (1e-6, 1.0, 1e3):
                *_, settled = bipartite._balance_by_fixing(b, c, height)
                assert settled
                *_, settled = bipartite._simplex_threshold_by_fixing(b, height)
                assert settled


def test_a_sort_takes_over_where_variable_fixing_does_not_end(rng, monkeypatch):
    """No numbers are known that need it: the kernels are told that it has not ended."""
    problems = [(rng.normal(size=9), rng.normal(size=30), radius) for radius in (0.3, 1e3)]
    expected = [project(*problem, project_bipartite) for problem in problems]
    simplex = bipartite._project_simplex.py_func
    monkeypatch.setattr(bipartite, "_balance_by_fixing", lambda b, c, height: (0.0, 0.0, False))
    monkeypatch.setattr(bipartite, "_simplex_threshold_by_fixing", lambda b, radius: (0.0, False))
    monkeypatch.setattr(bipartite, "_project_simplex", simplex)
    for problem, (p, n, total) in zip(problems, expected, strict=True):
        ours_p, ours_n, ours_total = project(*problem, project_bipartite.py_func)
        np.testing.assert_allclose(ours_p, p, atol=1e-14)
        np.testing.assert_allclose(ours_n, n, atol=1e-14)
        assert ours_total == pytest.approx(total)
