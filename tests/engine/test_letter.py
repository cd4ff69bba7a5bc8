"""Every loss on real data: the Letter set, 16,000 training rows of 16 features, 26 classes."""

from pathlib import Path

import numpy as np
import pytest

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
def rows():
    with np.load(LETTER) as arrays:
        X, labels = arrays["X"][:16_000] / np.float32(15), arrays["y"][:16_000]
    return ArrayRows(X.astype(np.float32), labels.astype(np.int32), 26)


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
