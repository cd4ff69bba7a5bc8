"""L-BFGS by products alone, against the recursion on the vectors themselves."""

import numpy as np
import pytest

from dtopk.solvers.quasi_newton import LineSearch, QuasiNewton


def two_loops(pairs, metric_inverse, gradient):
    """Algorithm 7.4 of Nocedal and Wright, on vectors."""
    q, alphas = gradient.copy(), []
    for s, y in reversed(pairs):
        alpha = s @ q / (s @ y)
        q -= alpha * y
        alphas.append(alpha)
    s, y = pairs[-1]
    r = (s @ y) / (y @ metric_inverse @ y) * metric_inverse @ q
    for (s, y), alpha in zip(pairs, reversed(alphas), strict=True):
        r += s * (alpha - y @ r / (s @ y))
    return -r


@pytest.mark.parametrize("with_metric", [False, True])
def test_direction_is_that_of_the_two_loops(rng, with_metric):
    n, memory = 8, 3
    hessian = np.diag(np.arange(1.0, n + 1))
    inverse = np.eye(n)
    if with_metric:
        root = rng.normal(size=(n, n))
        inverse = np.linalg.inv(np.eye(n) + root @ root.T)
    quasi = QuasiNewton(memory)
    pairs: list[tuple[np.ndarray, np.ndarray]] = []
    for name in range(6):
        s = rng.normal(size=n)
        y = hessian @ s
        quasi.make_room()
        pairs = [*pairs, (s, y)][-memory:]
        sy = np.array([s @ other for _, other in pairs])
        ys = np.array([other @ y for other, _ in pairs])
        zy = np.array([other @ inverse @ y for _, other in pairs])
        assert quasi.add(name, sy, ys, zy)
        again = QuasiNewton.from_dict(quasi.to_dict())
        gradient = rng.normal(size=n)
        sg = np.array([s @ gradient for s, _ in pairs])
        zg = np.array([y @ inverse @ gradient for _, y in pairs])
        factor, on_s, on_z = again.direction(sg, zg)
        found = factor * inverse @ gradient
        for (s, y), a, b in zip(pairs, on_s, on_z, strict=True):
            found += a * s + b * inverse @ y
        np.testing.assert_allclose(found, two_loops(pairs, inverse, gradient), rtol=1e-9)


def test_pair_without_curvature_is_left_out():
    quasi = QuasiNewton(2)
    assert not quasi.add(1, np.array([-1.0]), np.array([-1.0]), np.array([1.0]))
    assert quasi.pairs == []
    assert quasi.direction(np.zeros(0), np.zeros(0))[0] == -1.0


FUNCTIONS = {
    "parabola": (lambda t: (t - 3) ** 2, lambda t: 2 * (t - 3)),
    "far": (lambda t: (t / 1e4 - 1) ** 2, lambda t: 2e-4 * (t / 1e4 - 1)),
    "near": (lambda t: (1e4 * t - 1) ** 2, lambda t: 2e4 * (1e4 * t - 1)),
    "kinked": (
        lambda t: np.logaddexp(50 * (t - 2), 0) - t, lambda t: 50 / (1 + np.exp(100 - 50 * t)) - 1,
    ),
    "wavy": (lambda t: 0.1 * t**2 - np.sin(t), lambda t: 0.2 * t - np.cos(t)),
}  # fmt: skip


@pytest.mark.parametrize("name", FUNCTIONS)
def test_line_search_ends_where_the_conditions_of_wolfe_hold(name):
    function, slope = FUNCTIONS[name]
    search = LineSearch(value=function(0.0), slope=slope(0.0), step=1.0, rounding=1e-13)
    for _ in range(40):
        step = search.step
        if search.judge(function(step), slope(step)):
            break
        assert not search.exhausted
        search = LineSearch(**search.to_dict())
    else:
        pytest.fail("no step was accepted")
    assert function(step) <= function(0.0) + 1e-4 * step * slope(0.0)
    assert abs(slope(step)) <= 0.9 * abs(slope(0.0))


def test_line_search_gives_up_where_nothing_falls():
    """What rises in every direction, as by a gradient that is wrong."""
    search = LineSearch(value=1.0, slope=-1.0, step=1.0, rounding=1e-13)
    for _ in range(200):
        assert not search.judge(1.0 + search.step, 1.0)
        if search.exhausted or search.step < 1e-20:
            return
    pytest.fail("it went on")
