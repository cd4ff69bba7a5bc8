import numpy as np
import pytest

from dtopk import testing
from dtopk.projections import project_knapsack, project_topk_simplex, project_topk_simplex_incl

FUNCTIONS = {
    "alpha": project_topk_simplex,
    "alpha_incl": project_topk_simplex_incl,
    "beta": project_knapsack,
}
functions = pytest.mark.parametrize("project", FUNCTIONS.values(), ids=FUNCTIONS.keys())


def test_project_topk_simplex_gives_the_value_of_its_example():
    """The radius binds: cap 1/2, and the other two share 1/2 with t = -0.15."""
    np.testing.assert_allclose(project_topk_simplex([1.0, 0.2, 0.0], 2), [0.5, 0.35, 0.15])


def test_the_domains_are_nested():
    """alpha has the fewest points, so that its projection is the furthest from b."""
    b = np.array([0.5, 0.1, -1.0, -2.0])
    near = [float(np.sum((project(b, 3) - b) ** 2)) for project in FUNCTIONS.values()]
    assert near[0] > near[1] > near[2]


@pytest.mark.parametrize("domain", FUNCTIONS)
def test_rows_are_projected_one_by_one(rng, domain):
    b = rng.normal(size=(6, 5))
    x = FUNCTIONS[domain](b, 3, radius=0.7, rho=0.4)
    expected = [testing.project(row, domain, 3, 0.7, 0.4) for row in b]
    np.testing.assert_allclose(x, expected, atol=1e-14)


@functions
def test_a_point_of_the_domain_is_its_own_projection(project):
    x = np.array([0.2, 0.2, 0.2, 0.1])
    np.testing.assert_allclose(project(x, 3), x, atol=1e-15)


@functions
def test_k_may_be_the_number_of_entries(project):
    np.testing.assert_allclose(project(np.array([3.0, 3.0, 3.0]), 3), np.full(3, 1 / 3))


@functions
def test_float32_stays_float32_and_integers_become_float64(project):
    assert project(np.ones(3, np.float32), 2).dtype == np.float32
    assert project(np.ones(3, np.float16), 2).dtype == np.float64
    assert project([1, 0, 0], 2).dtype == np.float64


@functions
def test_the_argument_is_left_alone_and_may_be_laid_out_in_any_way(project, rng):
    b = rng.normal(size=(5, 4))
    before = b.copy()
    np.testing.assert_array_equal(project(np.asfortranarray(b), 2), project(b, 2))
    np.testing.assert_array_equal(project(b[:, ::2], 1), project(b[:, ::2].copy(), 1))
    np.testing.assert_array_equal(b, before)


@functions
def test_no_rows_give_no_rows(project):
    assert project(np.empty((0, 3)), 2).shape == (0, 3)


@functions
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"k": 0}, r"k must be between 1 and m = 3, got 0\."),
        ({"k": 4}, r"k must be between 1 and m = 3, got 4\."),
        ({"radius": 0.0}, r"radius must be finite and above 0, got 0\.0\."),
        ({"radius": -1.0}, r"radius must be finite and above 0, got -1\.0\."),
        ({"radius": np.inf}, r"radius must be finite and above 0, got inf\."),
        ({"rho": -0.1}, r"rho must be finite and at least 0, got -0\.1\."),
        ({"rho": np.nan}, r"rho must be finite and at least 0, got nan\."),
        ({"b": np.array([[0, 1, 2], [0, np.nan, 1]])}, r"b must be finite, got nan at .*\(1, 1\)"),
        ({"b": np.array([0, np.inf])}, r"b must be finite, got inf at index \(1,\)\."),
        ({"b": np.empty(0)}, r"b must have shape \(m,\) or \(n, m\) with m >= 1, got shape"),
        ({"b": np.zeros((2, 2, 2))}, r"got shape \(2, 2, 2\)\."),
    ],
)
def test_what_breaks_a_rule_is_refused(project, arguments, message):
    given = {"b": np.zeros(3), "k": 1, **arguments}
    with pytest.raises(ValueError, match=message):
        project(given.pop("b"), given.pop("k"), **given)


@functions
@pytest.mark.parametrize("k", [1.5, "2", True, None])
def test_k_must_be_an_integer(project, k):
    with pytest.raises(TypeError, match="k must be an integer, got"):
        project(np.zeros(3), k)
