"""Every loss on real data: the Letter set, 16,000 training rows of 16 features, 26 classes."""

from pathlib import Path

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression

from dtopk.engine import ArrayRows, FitOptions, fit
from dtopk.losses import make_loss

LETTER = Path(__file__).parents[2] / "jobs" / "data" / "letter.npz"
MAX_EPOCHS = 100
HINGES = [
    {"name": name, "k": k, "gamma": gamma, "smoothing": smoothing}
    for name in ("topk_hinge_alpha", "topk_hinge_alpha_incl", "topk_hinge_beta")
    for k in (1, 3, 5)
    for gamma, smoothing in ((0.0, "lapin"), (1.0, "lapin"), (1.0, "moreau"))
]
PROBLEMS = [{"name": "softmax"}, *HINGES]


def identify(problem):
    return "-".join(str(value) for value in problem.values())


@pytest.fixture(scope="module")
def letter():
    with np.load(LETTER) as arrays:
        X, labels = arrays["X"][:16_000] / np.float32(15), arrays["y"][:16_000]
    return X.astype(np.float32), labels.astype(np.int32)


@pytest.fixture(scope="module")
def rows(letter):
    X, y = letter
    return ArrayRows(X, y, 26)


@pytest.mark.parametrize("C", [1e-3, 0.1, 1.0])
@pytest.mark.parametrize("problem", PROBLEMS, ids=identify)
def test_float32_is_certified_to_a_thousandth(rows, problem, C):
    options = FitOptions(C=C, tol=1e-3, max_epochs=MAX_EPOCHS)
    result = fit(rows, make_loss(**problem), options)
    assert result.certificate.certified


@pytest.mark.parametrize("problem", PROBLEMS, ids=identify)
def test_float64_is_certified_far_below(rows, problem):
    loss = make_loss(**problem)
    tol = 1e-7 if loss.smooth else 1e-4
    options = FitOptions(C=0.1, tol=tol, max_epochs=MAX_EPOCHS, dtype="float64")
    result = fit(rows, loss, options)
    assert result.certificate.certified
    assert 0 <= result.certificate.relative_gap


@pytest.mark.parametrize(("C", "most_passes"), [(0.01, 12), (1.0, 65), (100.0, 130)])
def test_lbfgs_is_certified_to_a_millionth_and_agrees_with_scikit_learn(letter, C, most_passes):
    """On centred rows of unit mean square norm, with an intercept as one more feature."""
    X, y = letter
    X = X - X.mean(axis=0)
    X /= np.sqrt(np.square(X).sum(axis=1).mean())
    options = FitOptions(
        C=C, tol=1e-6, max_epochs=most_passes, solver="lbfgs", constant=1.0, dtype="float64"
    )
    result = fit(ArrayRows(X, y, 26), make_loss("softmax"), options)
    assert result.certificate.certified
    model = LogisticRegression(C=C, fit_intercept=False, tol=1e-8, max_iter=10_000)
    model.fit(np.hstack([X, np.ones((len(X), 1))]).astype(np.float64), y)
    W = np.vstack([result.W, result.intercept])
    distance = np.linalg.norm(W - model.coef_.T)
    # Ours is at most the first term from the optimum; theirs, some fraction of it.
    assert distance <= 1.1 * np.sqrt(2 * result.certificate.duality_gap)
    np.testing.assert_allclose(W, model.coef_.T, rtol=0, atol=1e-3 * np.abs(W).max())
