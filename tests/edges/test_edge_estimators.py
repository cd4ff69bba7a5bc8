"""Estimators on odd rows and with odd parameters."""

import warnings

import numpy as np
import pytest
from sklearn.exceptions import ConvergenceWarning

from dtopk import MultilabelClassifier, TopKClassifier
from tests.edges.odd_rows import ODD_ROWS, M, plain_rows, scaled_rows


def fit_quietly(classifier, X, y, **options):
    """Fit, and let nothing but that the tolerance was not reached be a warning."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.simplefilter("ignore", ConvergenceWarning)
        classifier.fit(X, y, **options)
    certificate = classifier.certificate_
    values = [certificate.primal, certificate.dual_value, certificate.relative_gap]
    assert np.isfinite(values).all()
    assert np.isfinite(classifier.coef_).all()
    assert certificate.relative_gap >= -1e-9
    return classifier


def refuse_or_fit(classifier, X, y, **options):
    """Return the error with which fit ends; None: it does not."""
    try:
        fit_quietly(classifier, X, y, **options)
    except ValueError as error:
        return str(error)
    return None


@pytest.mark.parametrize("edge", ODD_ROWS)
@pytest.mark.parametrize("loss", ["softmax", "topk_hinge_alpha"])
def test_a_classifier_of_odd_rows_is_certified_and_predicts(edge, loss):
    X, y = ODD_ROWS[edge]()
    gamma = 0.5 if loss == "topk_hinge_alpha" else 0.0
    classifier = fit_quietly(TopKClassifier(loss, gamma=gamma, random_state=0), X, y)
    assert classifier.certificate_.certified
    assert set(classifier.predict(X)) <= set(y.tolist())


@pytest.mark.parametrize("edge", ODD_ROWS)
def test_a_multilabel_classifier_of_odd_rows_is_certified(edge):
    X, y = ODD_ROWS[edge]()
    Y = np.eye(M, dtype=int)[y]
    classifier = fit_quietly(MultilabelClassifier("multilabel_softmax", random_state=0), X, Y)
    assert classifier.certificate_.certified


@pytest.mark.parametrize("scale", [1e-42, 1e-30, 1e18, 1e30, 1e37], ids=str)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_features_of_any_size_give_a_true_certificate_or_one_error(scale, dtype):
    """Of the largest, the sum that scikit-learn looks at first is NaN."""
    X, y = scaled_rows(scale, np.float32)
    classifier = TopKClassifier(random_state=0, dtype=dtype, max_epochs=20)
    refusal = refuse_or_fit(classifier, X, y)
    if dtype == "float64" or scale < 1:
        assert refusal is None
    elif scale > 1e18 or refusal is not None:
        assert "too large for float32. Scale" in refusal


@pytest.mark.parametrize(
    ("parameters", "error", "match"),
    [
        ({"C": 10**400}, ValueError, r"C must be finite and above 0"),
        ({"C": 1e39}, ValueError, r"C must be between 1\.18e-38 and 3\.4e\+38 in float32"),
        ({"C": "1"}, TypeError, r"C must be a number, got '1'"),
        ({"k": 10**30, "loss": "topk_hinge_beta"}, ValueError, r"k must be between 1 and"),
        ({"intercept_scaling": 10**400}, ValueError, r"intercept_scaling must be finite"),
        ({"intercept_scaling": 1e300}, ValueError, r"constant feature must be between"),
        ({"intercept_scaling": 1e-300}, ValueError, r"constant feature must be between"),
        ({"class_weight": {0: 1e300}}, ValueError, r"C times the weight of a row must be at most"),
    ],
)
def test_parameters_beyond_the_type_are_refused(parameters, error, match):
    X, y = plain_rows()
    with pytest.raises(error, match=match):
        fit_quietly(TopKClassifier(random_state=0, **parameters), X, y)


@pytest.mark.parametrize("weight", [1e-300, 1e-30, 1e30], ids=str)
def test_weights_of_any_size_give_a_true_certificate_or_one_error(weight):
    X, y = plain_rows()
    classifier = TopKClassifier(random_state=0, max_epochs=20)
    refusal = refuse_or_fit(classifier, X, y, sample_weight=np.full(len(y), weight))
    if weight < 1:
        assert refusal is None
    else:
        assert "too large for float32. Scale" in refusal


def test_weights_beyond_the_type_are_refused():
    X, y = plain_rows()
    with pytest.raises(ValueError, match=r"C times the weight of a row must be at most 3\.4e\+38"):
        TopKClassifier().fit(X, y, sample_weight=np.full(len(y), 1e300))


def test_a_class_whose_rows_weigh_nothing_is_trained_all_the_same():
    X, y = plain_rows()
    classifier = fit_quietly(
        TopKClassifier(random_state=0), X, y, sample_weight=(y != 0).astype(float)
    )
    assert classifier.certificate_.certified
    assert classifier.classes_.tolist() == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("y", [[0], [0] * 24], ids=["one row", "one class"])
def test_one_class_is_refused_by_name(y):
    X, _ = plain_rows()
    with pytest.raises(ValueError, match=r"at least 2 classes in the data.* only one class: 0"):
        TopKClassifier().fit(X[: len(y)], y)
