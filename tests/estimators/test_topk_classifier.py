"""What TopKClassifier computes, and how it works with the rest of scikit-learn."""

import doctest
import pickle
import signal

import numpy as np
import pytest
from scipy.special import expit
from sklearn.datasets import load_iris
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import LinearSVC

from dtopk import TopKClassifier
from dtopk.estimators import classifier as module
from dtopk.estimators import linear
from dtopk.testing import make_features
from tests.small_stores import make_rows

EXACT = {"dtype": "float64", "tol": 1e-13, "max_epochs": 5000, "random_state": 0}
# By strong convexity |W - W*|^2 / 2 is at most the gap, 1e-13 times an objective below 100 here.
COEF_ATOL = 1e-5


@pytest.fixture
def data():
    X, y = make_rows(120, seed=3)
    return X.astype(np.float64), y


@pytest.fixture
def binary(data):
    X, y = data
    return X[y < 2], y[y < 2]


def reference(C):
    return LogisticRegression(C=C, fit_intercept=False, tol=1e-10, max_iter=10_000)


def test_softmax_equals_logistic_regression(data):
    ours = TopKClassifier(C=0.7, fit_intercept=False, **EXACT).fit(*data)
    np.testing.assert_allclose(ours.coef_, reference(0.7).fit(*data).coef_, atol=COEF_ATOL)
    assert (ours.intercept_ == 0).all()


def test_softmax_of_two_classes_equals_logistic_regression_at_twice_c(binary):
    ours = TopKClassifier(C=0.7, fit_intercept=False, **EXACT).fit(*binary)
    theirs = reference(1.4).fit(*binary)
    assert ours.coef_.shape == theirs.coef_.shape
    assert ours.intercept_.shape == (1,)
    np.testing.assert_allclose(ours.coef_, theirs.coef_, atol=COEF_ATOL)


@pytest.mark.parametrize("loss", ["truncated_topk_entropy", "calibrated_topk_hinge"])
def test_losses_that_are_not_convex_are_trained_to_a_stationary_point(data, loss):
    """A restart at the weights never ends above them."""
    X, y = data
    clf = TopKClassifier(loss, k=2, C=0.1, tol=1e-3, random_state=0, warm_start=True).fit(X, y)
    assert clf.stop_reason_ == "tolerance"
    before = clf.certificate_
    again = clf.fit(X, y).certificate_
    assert again.certified
    assert again.primal <= before.primal * (1 + 1e-6)
    assert clf.predict_topk(X, 2).shape == (len(X), 2)


def test_a_gap_above_the_tolerance_is_one_to_a_stationary_point(data):
    clf = TopKClassifier("truncated_topk_entropy", k=2, max_epochs=1)
    with pytest.warns(ConvergenceWarning, match="this far from a stationary point, of which"):
        clf.fit(*data)


def test_intercept_is_the_weight_of_a_constant_feature(data):
    X, y = data
    ours = TopKClassifier(C=0.7, intercept_scaling=2.0, **EXACT).fit(X, y)
    theirs = reference(0.7).fit(np.column_stack([X, np.full(len(X), 2.0)]), y)
    np.testing.assert_allclose(ours.coef_, theirs.coef_[:, :-1], atol=COEF_ATOL)
    np.testing.assert_allclose(ours.intercept_, 2 * theirs.coef_[:, -1], atol=COEF_ATOL)


def test_top1_hinge_reaches_the_objective_of_crammer_and_singer(data):
    X, y = data
    ours = TopKClassifier("topk_hinge_alpha", C=0.1, fit_intercept=False, **EXACT | {"tol": 1e-7})
    ours.fit(X, y)
    theirs = LinearSVC(
        multi_class="crammer_singer", C=0.1, fit_intercept=False, tol=1e-8, max_iter=100_000
    ).fit(X, y)
    margins = 1 + X @ theirs.coef_.T - (X * theirs.coef_[y]).sum(axis=1, keepdims=True)
    margins[np.arange(len(y)), y] = 0
    objective = 0.1 * margins.max(axis=1).sum() + 0.5 * (theirs.coef_**2).sum()
    assert ours.certificate_.dual_value <= objective
    assert ours.certificate_.primal == pytest.approx(objective, rel=1e-5)


def test_balanced_classes_weigh_samples_by_their_weights(data, rng):
    X, y = data
    sample_weight = rng.integers(1, 4, len(y)).astype(float)
    totals = np.bincount(y, sample_weight)
    by_hand = {label: totals.sum() / (4 * total) for label, total in enumerate(totals)}
    params = {"C": 0.1, **EXACT}
    ours = TopKClassifier(class_weight="balanced", **params).fit(X, y, sample_weight)
    same = TopKClassifier(class_weight=by_hand, **params).fit(X, y, sample_weight)
    np.testing.assert_allclose(ours.coef_, same.coef_, atol=COEF_ATOL)


def test_attributes_repeat_the_certificate(data):
    clf = TopKClassifier("topk_hinge_alpha", k=2, gamma=0.5, random_state=0).fit(*data)
    assert clf.stop_reason_ == "tolerance"
    assert clf.certificate_.certified
    assert clf.duality_gap_ == clf.certificate_.primal - clf.certificate_.dual_value
    assert clf.n_iter_ == len(clf.history_) == clf.history_[-1].epoch
    assert clf.coef_.dtype == clf.intercept_.dtype == np.float32


def test_predict_topk_orders_labels_by_score(data):
    X, y = data
    names = np.array(["ant", "bee", "cat", "dog"])
    clf = TopKClassifier(random_state=0).fit(X, names[y])
    labels, scores = clf.predict_topk(X, 3, return_scores=True)
    order = np.argsort(-clf.decision_function(X), axis=1)[:, :3]
    np.testing.assert_array_equal(labels, names[order])
    np.testing.assert_array_equal(labels[:, 0], clf.predict(X))
    assert (np.diff(scores, axis=1) <= 0).all()
    np.testing.assert_array_equal(clf.predict_topk(X, 3), labels)


def test_predict_topk_of_two_classes_has_scores_that_differ_by_the_decision(binary):
    X, y = binary
    clf = TopKClassifier(random_state=0).fit(X, y)
    labels, scores = clf.predict_topk(X, 2, return_scores=True)
    np.testing.assert_array_equal(labels[:, 0], clf.predict(X))
    np.testing.assert_allclose(scores[:, 0] - scores[:, 1], np.abs(clf.decision_function(X)))


def test_probabilities_sum_to_one_and_order_as_scores(data):
    X, _ = data
    clf = TopKClassifier(random_state=0).fit(*data)
    probabilities = clf.predict_proba(X)
    np.testing.assert_allclose(probabilities.sum(axis=1), 1)
    np.testing.assert_array_equal(clf.classes_[probabilities.argmax(axis=1)], clf.predict(X))
    np.testing.assert_allclose(clf.predict_log_proba(X), np.log(probabilities))


def test_probabilities_of_two_classes_are_logistic_in_the_decision(binary):
    X, _ = binary
    clf = TopKClassifier(random_state=0).fit(*binary)
    np.testing.assert_allclose(clf.predict_proba(X)[:, 1], expit(clf.decision_function(X)))


def test_probabilities_are_there_for_softmax_alone():
    assert hasattr(TopKClassifier(), "predict_proba")
    for name in ("predict_proba", "predict_log_proba"):
        assert not hasattr(TopKClassifier("topk_hinge_beta"), name)
        assert not hasattr(TopKClassifier("no_such_loss"), name)


def test_predictions_in_batches_equal_those_at_once(data, monkeypatch):
    X, y = data
    clf = TopKClassifier(random_state=0).fit(X, y)
    at_once = clf.decision_function(X)
    monkeypatch.setattr(linear, "_BATCH_BYTES", 1000)
    np.testing.assert_allclose(clf.decision_function(X), at_once)
    np.testing.assert_array_equal(clf.predict(X), clf.classes_[at_once.argmax(axis=1)])


def test_estimator_survives_pickling(data):
    X, y = data
    clf = TopKClassifier(random_state=0).fit(X, y)
    copy = pickle.loads(pickle.dumps(clf))
    np.testing.assert_array_equal(copy.decision_function(X), clf.decision_function(X))
    assert copy.certificate_ == clf.certificate_
    assert copy.history_ == clf.history_


def test_same_random_state_gives_the_same_weights(data):
    first, second = (TopKClassifier(random_state=5).fit(*data).coef_ for _ in range(2))
    np.testing.assert_array_equal(first, second)


def test_grid_search_tunes_a_pipeline():
    X, y = load_iris(return_X_y=True)
    pipeline = make_pipeline(StandardScaler(), TopKClassifier("topk_hinge_alpha", random_state=0))
    grid = {"topkclassifier__k": [1, 2], "topkclassifier__gamma": [0.5, 1.0]}
    search = GridSearchCV(pipeline, grid, cv=3).fit(X, y)
    assert search.best_score_ > 0.9
    assert search.predict(X).shape == y.shape


def test_cross_validation_scores_accuracy():
    X, y = load_iris(return_X_y=True)
    assert cross_val_score(TopKClassifier(random_state=0), X, y, cv=3).mean() > 0.9


@pytest.mark.parametrize("n_classes", [2, 4])
def test_warm_start_begins_where_the_last_fit_ended(data, n_classes):
    X, y = data
    X, y = X[y < n_classes], y[y < n_classes]
    clf = TopKClassifier(warm_start=True, random_state=0, intercept_scaling=2.0).fit(X, y)
    primal, n_iter = clf.certificate_.primal, clf.n_iter_
    clf.fit(X, y)
    assert clf.n_iter_ < n_iter
    assert clf.certificate_.primal == pytest.approx(primal, rel=1e-3)


def test_fit_warns_of_a_gap_above_the_tolerance(data):
    clf = TopKClassifier(max_epochs=1, tol=1e-7, random_state=0)
    match = r"gap is \d\S* after 1 epochs .* above tol=1e-07.*Raise max_epochs, set dtype='float64'"
    with pytest.warns(ConvergenceWarning, match=match):
        clf.fit(*data)
    assert clf.stop_reason_ == "max_epochs"
    assert clf.certificate_.relative_gap > 1e-7


def test_fit_names_the_time_limit_that_stopped_it(data):
    clf = TopKClassifier(time_limit_s=1e-9, tol=1e-6, random_state=0)
    with pytest.warns(ConvergenceWarning, match="Raise time_limit_s"):
        clf.fit(*data)
    assert clf.stop_reason_ == "time_limit"


def test_interrupt_keeps_the_weights_and_goes_on_to_the_caller(data, monkeypatch):
    """A search over many fits must end too."""

    def interrupt_once(self, record, W):
        if record.epoch == 1:
            signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(linear.EpochLines, "on_epoch", interrupt_once)
    clf = TopKClassifier(verbose=1, tol=1e-6, random_state=0)
    with pytest.raises(KeyboardInterrupt):
        clf.fit(*data)
    assert clf.stop_reason_ == "interrupted"
    assert clf.predict(data[0]).shape == data[1].shape


def test_verbose_writes_a_line_an_epoch_to_standard_error(data, capsys):
    clf = TopKClassifier(verbose=1, random_state=0).fit(*data)
    written = capsys.readouterr()
    assert len(written.err.splitlines()) == clf.n_iter_
    assert written.err.startswith("epoch 1: objective ")
    assert written.out == ""


def test_example_of_the_docstring_is_true():
    assert doctest.testmod(module).failed == 0


def test_the_one_vs_all_losses_of_two_classes_are_one_binary_problem():
    X, y = make_features(150, 6, 2, seed=4)
    X = X.astype(float)
    classifier = TopKClassifier(
        "logistic_ova", C=0.7, fit_intercept=False, tol=1e-10, dtype="float64"
    ).fit(X, y)
    model = LogisticRegression(C=0.7, fit_intercept=False, tol=1e-10, max_iter=10_000).fit(X, y)
    np.testing.assert_allclose(classifier.coef_, model.coef_, atol=1e-4)
    again = classifier.set_params(warm_start=True).fit(X, y)
    np.testing.assert_allclose(again.coef_, model.coef_, atol=1e-4)
    assert again.n_iter_ <= 2


@pytest.mark.parametrize("loss", ["multilabel_softmax", "multilabel_hinge"])
def test_losses_of_sets_of_labels_are_refused(loss):
    with pytest.raises(ValueError, match=rf"one class a row, got '{loss}'\. MultilabelClassifier"):
        TopKClassifier(loss).fit(np.eye(3), [0, 1, 2])
