import pickle

import numpy as np
import pytest
import scipy.sparse
from sklearn.base import clone
from sklearn.datasets import make_multilabel_classification
from sklearn.exceptions import NotFittedError
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import f1_score

from dtopk import MultilabelClassifier
from dtopk.losses import available
from dtopk_storage import create_store

LOSSES = [info.name for info in available() if "multilabel" in info.targets]
every_loss = pytest.mark.parametrize("loss", LOSSES)


@pytest.fixture(scope="module")
def data():
    """Rows of one to three of four labels."""
    X, Y = make_multilabel_classification(
        150, n_features=8, n_classes=4, n_labels=2, allow_unlabeled=False, random_state=0
    )
    keep = Y.sum(axis=1) < 4
    return np.log1p(X[keep]), Y[keep]


@every_loss
def test_fit_is_certified_and_predicts_an_indicator_matrix(loss, data):
    X, Y = data
    classifier = MultilabelClassifier(loss, C=1.0, random_state=0).fit(X, Y)
    assert classifier.certificate_.certified
    assert classifier.coef_.shape == (4, 8)
    predicted = classifier.predict(X)
    assert predicted.shape == Y.shape
    assert set(np.unique(predicted)) <= {0, 1}
    np.testing.assert_array_equal(predicted, classifier.decision_function(X) > 0)


def test_logistic_ova_equals_one_logistic_regression_a_label(data):
    X, Y = data
    classifier = MultilabelClassifier(C=0.5, fit_intercept=False, tol=1e-10, dtype="float64")
    classifier.fit(X, Y)
    for label, weights in enumerate(classifier.coef_):
        model = LogisticRegression(C=0.5, fit_intercept=False, tol=1e-10, max_iter=10_000)
        model.fit(X, Y[:, label])
        np.testing.assert_allclose(weights, model.coef_[0], atol=1e-4)
        np.testing.assert_allclose(
            classifier.predict_proba(X)[:, label], model.predict_proba(X)[:, 1], atol=1e-4
        )


def test_matrices_of_any_kind_and_lists_are_the_same_labels(data):
    X, Y = data
    expected = MultilabelClassifier(random_state=0).fit(X, Y).coef_
    lists = [np.flatnonzero(row).tolist() for row in Y]
    for given in (Y.astype(bool), scipy.sparse.csr_matrix(Y), scipy.sparse.coo_array(Y), lists):
        classifier = MultilabelClassifier(random_state=0).fit(X, given)
        np.testing.assert_array_equal(classifier.coef_, expected)
        assert classifier.classes_.tolist() == [0, 1, 2, 3]


def test_lists_of_zeros_and_ones_are_labels_and_no_matrix(data):
    X, Y = data
    lists = [[0, 1] if row[0] else [1] for row in Y]
    classifier = MultilabelClassifier(random_state=0).fit(X, lists)
    matrix = np.column_stack([Y[:, 0] > 0, np.ones(len(Y), bool)])
    expected = MultilabelClassifier(random_state=0).fit(X, matrix)
    np.testing.assert_array_equal(classifier.coef_, expected.coef_)


def test_lists_of_strings_name_the_classes(data):
    X, Y = data
    names = np.array(["sea", "sky", "sun", "wet"])
    lists = [names[row > 0].tolist() for row in Y]
    classifier = MultilabelClassifier("multilabel_softmax", random_state=0).fit(X, lists)
    assert classifier.classes_.tolist() == names.tolist()
    assert set(classifier.predict_topk(X[:5], 2).ravel()) <= set(names)


def test_a_store_gives_what_arrays_give(data, tmp_path):
    X, Y = data
    path = tmp_path / "tags.zarr"
    with create_store(
        path, n_features=8, class_names=list("abcd"), dtype="float64", kind="multilabel"
    ) as writer:
        writer.append(X, Y)
    from dtopk_storage import open_store

    from_store = MultilabelClassifier("multilabel_hinge", gamma=1.0, random_state=0)
    from_store.fit(open_store(path))
    from_arrays = clone(from_store).fit(X, Y)
    assert from_store.classes_.tolist() == list("abcd")
    np.testing.assert_allclose(from_store.coef_, from_arrays.coef_, atol=0.1)
    for one, other in ((from_store, from_arrays), (from_arrays, from_store)):
        assert one.certificate_.dual_value <= other.certificate_.primal


def test_tune_threshold_makes_the_metric_best(data):
    X, Y = data
    classifier = MultilabelClassifier("multilabel_softmax", random_state=0).fit(X, Y)
    chosen = classifier.tune_threshold(X, Y, "f1_micro")
    assert classifier.threshold_ == chosen.delta
    assert chosen.value == pytest.approx(f1_score(Y, classifier.predict(X), average="micro"))
    scores = classifier.decision_function(X)
    for delta in np.unique(scores)[::7]:
        assert f1_score(Y, scores > delta, average="micro", zero_division=0) <= chosen.value + 1e-12


def test_rows_without_a_label_or_with_all_are_refused_or_skipped(data):
    X, Y = data
    Y = Y.copy()
    Y[3], Y[7] = 0, 1
    classifier = MultilabelClassifier("multilabel_softmax", random_state=0)
    with pytest.raises(ValueError, match=r"rows must have a label and lack one .* in row 3 of Y\."):
        classifier.fit(X, Y)
    classifier.set_params(skip_unlabelled=True).fit(X, Y)
    assert classifier.n_skipped_ == 2
    rest = np.delete(np.arange(len(X)), [3, 7])
    without = MultilabelClassifier("multilabel_softmax", random_state=0).fit(X[rest], Y[rest])
    assert classifier.certificate_.dual_value <= without.certificate_.primal
    assert without.certificate_.dual_value <= classifier.certificate_.primal
    assert MultilabelClassifier("logistic_ova").fit(X, Y).n_skipped_ == 0


def test_a_weight_of_two_is_the_row_twice(data):
    X, Y = data
    options = {"loss": "multilabel_softmax", "tol": 1e-8, "dtype": "float64"}
    weight = np.where(np.arange(len(X)) < 20, 2.0, 1.0)
    weighted = MultilabelClassifier(**options).fit(X, Y, sample_weight=weight)
    repeated = MultilabelClassifier(**options).fit(np.vstack([X, X[:20]]), np.vstack([Y, Y[:20]]))
    np.testing.assert_allclose(weighted.coef_, repeated.coef_, atol=1e-3)


def test_a_classifier_clones_and_pickles(data):
    X, Y = data
    classifier = MultilabelClassifier("smooth_hinge_ova", gamma=0.5, C=2.0, random_state=0).fit(
        X, Y
    )
    again = pickle.loads(pickle.dumps(classifier))
    np.testing.assert_array_equal(again.predict(X), classifier.predict(X))
    assert clone(classifier).get_params() == classifier.get_params()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"Y": np.full((4, 3), 2)}, r"Y must hold 0 and 1 where it is a matrix"),
        ({"Y": np.zeros(4)}, r"Y must be an indicator matrix of shape .* got shape \(4,\)\."),
        ({"Y": None}, r"Y must be given for an array of features, got None\."),
        (
            {"Y": [["a"], ["b"], ["a", "a"], ["b"]]},
            r"labels of a row must differ, .* in row 2",
        ),
        ({"Y": [["a"], [1], ["b"], ["a"]]}, r"strings throughout or whole .* got 1 in row 1 of Y"),
        ({"Y": ["ab", "b", "a", "a"]}, r"Y must hold a list of labels for each row, got 'ab'"),
        ({"Y": np.eye(3)}, r"inconsistent numbers of samples"),
        ({"threshold": np.nan}, r"threshold must be a finite number, got nan\."),
        ({"threshold": "auto"}, r"threshold must be a finite number, got 'auto'\."),
        ({"loss": "softmax"}, r"loss must be one of 'hinge_ova', .* for sets of labels, got 'soft"),
        ({"loss": "smooth_hinge_ova", "gamma": 0.0}, r"gamma must be above 0 for loss"),
    ],
)
def test_what_cannot_be_fitted_is_refused(changes, message):
    Y = changes.pop("Y", np.eye(4, 3))
    with pytest.raises(ValueError, match=message):
        MultilabelClassifier(**changes).fit(np.ones((4, 2)), Y)


def test_nothing_is_predicted_before_fit():
    with pytest.raises(NotFittedError):
        MultilabelClassifier().predict(np.ones((1, 2)))


def test_probabilities_are_there_with_the_logistic_loss_alone():
    assert hasattr(MultilabelClassifier(), "predict_proba")
    assert not hasattr(MultilabelClassifier("hinge_ova"), "predict_proba")
