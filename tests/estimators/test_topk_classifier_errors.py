"""What TopKClassifier refuses, and how it says so."""

import re

import numpy as np
import pytest
from scipy.sparse import csr_array
from sklearn.exceptions import NotFittedError

from dtopk import TopKClassifier
from dtopk.engine import SOLVERS
from dtopk.estimators.parameters import make_options
from tests.small_stores import make_rows, make_store


@pytest.fixture
def data():
    return make_rows(60)


@pytest.mark.parametrize(
    ("parameters", "match"),
    [
        ({"loss": "softmx"}, "loss 'softmx' is unknown. Did you mean 'softmax'?"),
        ({"loss": "softmax", "k": 3}, "k must be left out for loss 'softmax', got 3."),
        ({"C": 0}, "C must be finite and above 0, got 0."),
        ({"tol": -1.0}, "tol must be finite and above 0, got -1.0."),
        ({"intercept_scaling": 0}, "intercept_scaling must be finite and above 0, got 0."),
        ({"max_epochs": 0}, "max_epochs must be at least 1, got 0."),
        ({"time_limit_s": 0}, "time_limit_s must be above 0, got 0."),
        (
            {"solver": "adam"},
            f"solver must be one of {', '.join(map(repr, SOLVERS))}, got 'adam'.",
        ),
        ({"acceleration": True}, "acceleration must be one of 'auto', 'off', got True."),
        ({"dtype": "float16"}, "dtype must be one of 'float32', 'float64', got 'float16'."),
        ({"block_size": 0}, "block_size must be None or at least 1, got 0."),
        ({"n_jobs": 0}, "n_jobs must be None, -1 or at least 1, got 0."),
        ({"class_weight": {0: -1.0}}, "class_weight must be finite and at least 0, got {0: -1.0}."),
    ],
)
def test_fit_refuses_a_value(data, parameters, match):
    with pytest.raises(ValueError, match=re.escape(match)):
        TopKClassifier(**parameters).fit(*data)


@pytest.mark.parametrize(
    ("parameters", "match"),
    [
        ({"C": "1"}, "C must be a number, got '1'."),
        ({"max_epochs": 2.5}, "max_epochs must be an integer, got 2.5."),
        ({"time_limit_s": True}, "time_limit_s must be a number, got True."),
        ({"block_size": 8.0}, "block_size must be an integer, got 8.0."),
    ],
)
def test_fit_refuses_a_type(data, parameters, match):
    with pytest.raises(TypeError, match=match):
        TopKClassifier(**parameters).fit(*data)


def test_k_must_be_below_the_number_of_classes(rng):
    X, y = rng.normal(size=(40, 3)), np.arange(40) % 10
    match = r"k must be between 1 and n_classes - 1 = 9, got 12\."
    with pytest.raises(ValueError, match=match):
        TopKClassifier("topk_hinge_alpha", k=12).fit(X, y)


def test_predict_topk_refuses_more_than_all_classes(data):
    clf = TopKClassifier(random_state=0).fit(*data)
    with pytest.raises(ValueError, match=r"k must be between 1 and n_classes = 4, got 5\."):
        clf.predict_topk(data[0], 5)


@pytest.mark.parametrize("method", ["predict", "decision_function", "predict_proba"])
def test_predictions_need_a_fit(data, method):
    with pytest.raises(NotFittedError):
        getattr(TopKClassifier(), method)(data[0])


def test_one_class_is_refused(data):
    X, _ = data
    match = "samples of at least 2 classes in the data, but the data contains only one class: 'x'"
    with pytest.raises(ValueError, match=match):
        TopKClassifier().fit(X, ["x"] * len(X))


def test_one_class_of_positive_weight_is_refused(data):
    X, y = data
    with pytest.raises(ValueError, match="only one class: 2"):
        TopKClassifier().fit(X, y, sample_weight=(y == 2).astype(float))
    with pytest.raises(ValueError, match="only one class: 1"):
        TopKClassifier(class_weight={0: 0, 1: 1, 2: 0, 3: 0}).fit(X, y)


def test_sparse_features_are_refused(data):
    X, y = data
    with pytest.raises(TypeError, match="Sparse data was passed"):
        TopKClassifier().fit(csr_array(X), y)


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_features_that_are_not_finite_are_refused(data, value):
    X, y = data
    X[3, 2] = value
    with pytest.raises(ValueError, match=r"NaN|infinity"):
        TopKClassifier().fit(X, y)


@pytest.mark.filterwarnings("ignore:.*encountered in:RuntimeWarning")
def test_features_whose_products_overflow_are_refused(data):
    X, y = data
    with pytest.raises(ValueError, match=r"too large for float32\. Scale the features"):
        TopKClassifier(random_state=0, max_epochs=2).fit(X * np.float32(1e20), y)


def test_negative_sample_weights_are_refused(data):
    X, y = data
    with pytest.raises(ValueError, match="Negative values in data passed to `sample_weight`"):
        TopKClassifier().fit(X, y, sample_weight=np.where(y == 0, -1.0, 1.0))


def test_warm_start_refuses_other_features_and_classes(data):
    X, y = data
    clf = TopKClassifier(warm_start=True, random_state=0).fit(X, y)
    with pytest.raises(ValueError, match=r"the 6 features .* got 5 features and 4 classes"):
        clf.fit(X[:, :5], y)
    with pytest.raises(ValueError, match=r"the 4 classes .* got 6 features and 2 classes"):
        clf.fit(X, y % 2)


def test_predictions_refuse_a_store_with_other_features(data, tmp_path):
    X, y = data
    clf = TopKClassifier(random_state=0).fit(X[:, :5], y)
    with pytest.raises(ValueError, match="X has 6 features, but TopKClassifier is expecting 5"):
        clf.predict(make_store(tmp_path / "store"))


@pytest.mark.parametrize(("n_jobs", "threads"), [(None, 0), (-1, 0), (3, 3)])
def test_n_jobs_is_the_number_of_threads(n_jobs, threads):
    parameters = TopKClassifier(n_jobs=n_jobs, random_state=0).get_params()
    assert make_options(parameters).threads == threads
