import numpy as np
import pytest
from scipy.optimize import brentq

from dtopk import testing
from dtopk.kernels.softmax import solve_softmax_row, update_rows_softmax
from dtopk.losses import make_loss

CURVATURES = [1e-5, 1e-2, 1.0, 30.0, 1e3, 1e6]
SPREADS = [0.0, 1e-3, 1.0, 30.0, 1e4]


def _solve(b, al, warm=None):
    w = np.zeros_like(b) if warm is None else warm.astype(b.dtype)
    t = solve_softmax_row(b, al, b.max(), warm is not None, w)
    return w, t


def _threshold(b, al):
    """Solve sum V(b - t) = al by bracketing."""
    low, high = b.max() - al - np.log(al) - 1, b.max() + np.log(len(b) / al) + 1
    return brentq(lambda t: testing.lambert_v(b - t).sum() / al - 1, low, high, xtol=1e-14)


def _problems(rng, dtype):
    for spread in SPREADS:
        for al in CURVATURES:
            b = (spread * rng.normal(size=11)).astype(dtype)
            b -= b.max()
            yield b, al
            with_own = b.copy()
            with_own[4] += al
            yield with_own - with_own.max(), al


def test_lambert_v_satisfies_its_equation():
    """V(1) = 1, V(0) = 0.5671 (the omega constant), and V + log V = t."""
    t = np.linspace(-30, 300, 991)
    v = testing.lambert_v(t)
    np.testing.assert_allclose(v + np.log(v), t, atol=1e-13, rtol=1e-14)
    assert testing.lambert_v(1.0) == pytest.approx(1)
    assert testing.lambert_v(0.0) == pytest.approx(0.5671432904097838)


def test_solve_softmax_row_of_equal_scores_is_uniform():
    """Four equal b: w = al/4 each, and t = b - w - log w."""
    w, t = _solve(np.zeros(4), 2.0)
    np.testing.assert_allclose(w, 0.5, rtol=1e-14)
    assert t == pytest.approx(-0.5 - np.log(0.5))


def test_solve_softmax_row_equals_a_bracketed_root(rng):
    for b, al in _problems(rng, np.float64):
        w, t = _solve(b, al)
        expected = _threshold(b, al)
        # t decides w by relative errors: its own rounding is all that is lost.
        tolerance = 1e-13 * max(abs(expected), 1)
        assert t == pytest.approx(expected, abs=16 * tolerance)
        np.testing.assert_allclose(
            w, testing.lambert_v(b - expected), rtol=64 * tolerance, atol=1e-290
        )


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_solve_softmax_row_shares_out_all_the_mass(rng, dtype):
    for b, al in _problems(rng, dtype):
        w, _ = _solve(b, al)
        # Where al is large t is near -al, and its rounding is that of al.
        tolerance = 64 * float(np.finfo(dtype).eps) * max(al, 1.0)
        assert w.sum(dtype=float) == pytest.approx(al, rel=min(tolerance, 1e-2))
        assert (w >= 0).all()


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_warm_start_changes_nothing_but_the_way(rng, dtype):
    for b, al in _problems(rng, dtype):
        cold, t = _solve(b, al)
        tolerance = 256 * np.finfo(dtype).eps * max(abs(float(t)), 1.0)
        spike = np.zeros_like(b)
        spike[2] = al
        for guess in (cold, np.full_like(b, al / b.size), spike, np.roll(cold, 3)):
            warm, _ = _solve(b, al, guess)
            np.testing.assert_allclose(
                warm, cold, rtol=min(tolerance, 0.1), atol=1e-6 * al * tolerance
            )


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_update_rows_softmax_returns_the_dual_terms_of_the_new_rows(rng, dtype):
    n, m, cost = 6, 5, 3.0
    X = rng.normal(size=(n, 4)).astype(dtype)
    scores, gram = (X @ rng.normal(size=(4, m))).astype(dtype), X @ X.T
    dual, delta = np.zeros((n, m), dtype), np.empty((n, m), dtype)
    labels = rng.integers(0, m, n).astype(np.int32)
    costs = np.full(n, cost, dtype)
    value = update_rows_softmax(scores, gram, dual, delta, labels, costs, 0, n)
    terms = [
        testing.dual_term(make_loss("softmax"), a, label, cost)
        for a, label in zip(dual, labels, strict=True)
    ]
    # A term is what is left of numbers of the size of C (1 + K C).
    size = cost * n * (1 + cost * float(np.diag(gram).max()))
    assert value == pytest.approx(sum(terms), abs=4 * float(np.finfo(dtype).eps) * size)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("al", [1e4, 1e7])
def test_a_guess_far_from_the_solution_does_not_pass_for_it(dtype, al):
    """A class whose mass grows from 0 to 7%: no few steps of 4 can bring it there."""
    b = np.array([0.0, -0.2 * al, -0.3 * al, -0.5 * al], dtype)
    guess, _ = _solve(b, al)
    b[3] += dtype(0.1 * al)
    expected = testing.lambert_v(b.astype(float) - _threshold(b.astype(float), al))
    warm, _ = _solve(b, al, guess)
    np.testing.assert_allclose(warm, expected, rtol=0, atol=16 * np.finfo(dtype).eps * al)
