"""What TopKClassifierCV chooses, and how it works with the rest of scikit-learn."""

import doctest
import pickle

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import make_scorer, top_k_accuracy_score
from sklearn.model_selection import KFold, StratifiedKFold, cross_val_score
from sklearn.utils.estimator_checks import parametrize_with_checks

from dtopk import Callback, TopKClassifier, TopKClassifierCV, open_store
from dtopk.estimators import cross_validation as module
from tests.small_stores import make_rows, make_store

EXACT = {"dtype": "float64", "tol": 1e-12, "max_epochs": 5000, "random_state": 0}
CS = [0.001, 0.03, 1.0]


@pytest.fixture
def data():
    X, y = make_rows(150, seed=3)
    return X.astype(np.float64), y


def test_scores_are_those_of_a_search_with_logistic_regression(data):
    """At the optimum both predict the same; the intercept of the one is penalised."""
    cv = StratifiedKFold(4, shuffle=True, random_state=1)
    ours = TopKClassifierCV(Cs=CS, cv=cv, fit_intercept=False, **EXACT).fit(*data)
    for place, C in enumerate(CS):
        theirs = LogisticRegression(C=C, fit_intercept=False, tol=1e-10, max_iter=10_000)
        np.testing.assert_allclose(ours.scores_[:, place], cross_val_score(theirs, *data, cv=cv))
    assert ours.scores_.shape == ours.relative_gaps_.shape == (4, 3)
    assert ours.C_ == CS[int(ours.scores_.mean(axis=0).argmax())]
    np.testing.assert_array_equal(ours.Cs_, CS)


def test_refit_is_the_classifier_at_the_best_c(data):
    ours = TopKClassifierCV(Cs=CS, cv=3, **EXACT).fit(*data)
    alone = TopKClassifier(C=ours.C_, **EXACT).fit(*data)
    np.testing.assert_allclose(ours.coef_, alone.coef_, atol=1e-5)
    np.testing.assert_allclose(ours.intercept_, alone.intercept_, atol=1e-5)
    assert ours.certificate_.certified
    assert 0 <= ours.duality_gap_ < 1e-8
    assert ours.stop_reason_ == "tolerance"


def test_without_refit_coefficients_are_means_without_a_certificate(data):
    X, y = data
    ours = TopKClassifierCV(Cs=CS, cv=KFold(3), refit=False, **EXACT).fit(X, y)
    alone = [
        TopKClassifier(C=ours.C_, **EXACT).fit(X[train], y[train]).coef_
        for train, _ in KFold(3).split(X)
    ]
    np.testing.assert_allclose(ours.coef_, np.mean(alone, axis=0), atol=1e-5)
    assert not hasattr(ours, "certificate_")
    assert ours.n_iter_ >= 1


@pytest.mark.parametrize("k", [1, 2, 3])
def test_top_k_accuracy_counts_rows_among_the_k_best(data, k):
    X, y = data
    ours = TopKClassifierCV(Cs=[0.01], cv=KFold(3), scoring_k=k, **EXACT).fit(X, y)
    for fold, (train, test) in enumerate(KFold(3).split(X)):
        alone = TopKClassifier(C=0.01, **EXACT).fit(X[train], y[train])
        expected = top_k_accuracy_score(y[test], alone.decision_function(X[test]), k=k)
        assert ours.scores_[fold, 0] == pytest.approx(expected)
    assert ours.score(X, y) == pytest.approx(
        top_k_accuracy_score(y, ours.decision_function(X), k=k)
    )


def test_k_of_the_loss_is_that_of_the_score(data):
    options = {"k": 2, "gamma": 0.5, "Cs": [0.1], "cv": 3, "random_state": 0}
    ours = TopKClassifierCV("topk_hinge_alpha", **options).fit(*data)
    same = TopKClassifierCV("topk_hinge_alpha", scoring_k=2, **options).fit(*data)
    np.testing.assert_array_equal(ours.scores_, same.scores_)


@pytest.mark.parametrize(
    "scoring",
    ["accuracy", "neg_log_loss", make_scorer(lambda y, p: float((y == p).mean()))],
    ids=["accuracy", "neg_log_loss", "callable"],
)
def test_scorers_of_scikit_learn_are_taken(data, scoring):
    X, y = data
    ours = TopKClassifierCV(Cs=CS, cv=KFold(3), scoring=scoring, **EXACT).fit(X, y)
    for place, C in enumerate(CS):
        expected = cross_val_score(TopKClassifier(C=C, **EXACT), X, y, cv=KFold(3), scoring=scoring)
        np.testing.assert_allclose(ours.scores_[:, place], expected, atol=1e-6)
    assert np.isfinite(ours.score(X, y))


def test_two_classes_have_scikit_learns_shapes(data):
    X, y = data
    X, y = X[y < 2], np.array(["no", "yes"])[y[y < 2]]
    ours = TopKClassifierCV(Cs=CS, cv=3, scoring="accuracy", random_state=0).fit(X, y)
    assert ours.coef_.shape == (1, 6)
    assert set(ours.predict(X)) <= {"no", "yes"}


def test_weights_count_in_training_and_score(data):
    """A row of weight 2 is that row twice, in training and in the score of its fold."""
    X, y = data
    weight = np.random.default_rng(0).integers(1, 4, len(y))
    twice = np.repeat(np.arange(len(y)), weight)
    folds = np.arange(len(y)) % 3
    weighted = TopKClassifierCV(
        Cs=CS, cv=[(np.flatnonzero(folds != f), np.flatnonzero(folds == f)) for f in range(3)],
        **EXACT,
    ).fit(X, y, sample_weight=weight)  # fmt: skip
    folds = folds[twice]
    repeated = TopKClassifierCV(
        Cs=CS, cv=[(np.flatnonzero(folds != f), np.flatnonzero(folds == f)) for f in range(3)],
        **EXACT,
    ).fit(X[twice], y[twice])  # fmt: skip
    np.testing.assert_allclose(weighted.scores_, repeated.scores_)
    np.testing.assert_allclose(weighted.coef_, repeated.coef_, atol=1e-5)


def test_cs_may_be_a_number(data):
    ours = TopKClassifierCV(Cs=3, cv=2, random_state=0, tol=0.3).fit(*data)
    np.testing.assert_allclose(ours.Cs_, [1e-4, 1.0, 1e4])


def test_the_smallest_of_equally_good_c_is_taken(data):
    X, y = data
    ours = TopKClassifierCV(
        Cs=[1.0, 0.1, 0.5], cv=2, scoring=lambda estimator, X, y: 0.5, random_state=0
    ).fit(X, y)
    assert ours.C_ == 0.1


def test_models_that_are_not_certified_are_told_once(data):
    with pytest.warns(ConvergenceWarning) as caught:
        TopKClassifierCV(Cs=[0.1, 10.0], cv=2, max_epochs=1, tol=1e-9, dtype="float64").fit(*data)
    messages = [str(each.message) for each in caught]
    assert sum("models in the cross-validation" in message for message in messages) == 1
    assert len(messages) == 2


def test_fit_is_the_same_every_time_and_is_pickled_and_cloned(data):
    X, y = data
    ours = TopKClassifierCV(Cs=CS, cv=3, random_state=0).fit(X, y)
    again = clone(ours).fit(X, y)
    np.testing.assert_array_equal(ours.coef_, again.coef_)
    np.testing.assert_array_equal(ours.scores_, again.scores_)
    loaded = pickle.loads(pickle.dumps(ours))
    np.testing.assert_array_equal(loaded.predict_topk(X, 2), ours.predict_topk(X, 2))


class Trainings(Callback):
    """Notes the epochs of every training, in their order, and stops those asked for at once."""

    def __init__(self, stops=()):
        self.epochs, self.stops = [], stops

    def on_start(self, info):
        self.epochs.append(0)

    def on_epoch(self, record, W):
        self.epochs[-1] += 1

    def should_stop(self, record, W):
        return len(self.epochs) - 1 in self.stops


def test_callbacks_are_told_of_every_training_one_after_the_other(data):
    told = Trainings()
    ours = TopKClassifierCV(Cs=CS, cv=2, callbacks=[told], random_state=0).fit(*data)
    assert len(told.epochs) == 2 * len(CS) + 1
    assert told.epochs[-1] == ours.n_iter_
    assert min(told.epochs) >= 1


def test_a_model_of_a_fold_that_a_callback_stops_is_scored_and_told(data):
    told = Trainings(stops={2})
    with pytest.warns(ConvergenceWarning, match="1 of 6 models in the cross-validation"):
        ours = TopKClassifierCV(Cs=CS, cv=2, callbacks=[told], tol=1e-6, dtype="float64").fit(*data)
    assert told.epochs[2] == 1
    assert ours.relative_gaps_[0, 2] > 1e-6
    assert (np.delete(ours.relative_gaps_.ravel(), 2) <= 1e-6).all()
    assert np.isfinite(ours.scores_).all()


def test_eval_set_is_measured_while_the_model_on_all_rows_is_trained(data):
    X, y = data
    given = {"cv": 2, "random_state": 0}
    ours = TopKClassifierCV(Cs=CS, eval_metric=["top_2_accuracy", "top_1_accuracy"], **given)
    ours.fit(X, y, eval_set=[(X[:50], y[:50])])
    measured = ours.evals_result_["validation_0"]
    assert [len(values) for values in measured.values()] == [ours.n_iter_] * 2
    assert measured["top_1_accuracy"][-1] == pytest.approx(np.mean(ours.predict(X[:50]) == y[:50]))
    without = TopKClassifierCV(Cs=CS, **given).fit(X, y)
    np.testing.assert_array_equal(ours.coef_, without.coef_)
    assert not hasattr(without, "evals_result_")
    ours.set_params(eval_metric=None).fit(X, y)
    assert not hasattr(ours, "evals_result_")


def test_a_set_that_cannot_be_measured_is_refused_before_anything_is_trained(data):
    X, y = data
    told = Trainings()
    ours = TopKClassifierCV(Cs=CS, cv=2, callbacks=[told])
    with pytest.raises(ValueError, match=r"y of eval_set\[0\] must hold labels"):
        ours.fit(X, y, eval_set=[(X, np.full(len(X), 99))])
    with pytest.raises(ValueError, match="eval_set must be left out with refit=False, got 1"):
        ours.set_params(refit=False).fit(X, y, eval_set=[(X, y)])
    assert told.epochs == []


@pytest.mark.parametrize(
    ("parameters", "error", "message"),
    [
        ({"callbacks": [1]}, TypeError, "callbacks must hold objects of classes made from"),
        ({"eval_metric": "top_1_accuracy"}, ValueError, "eval_set must be given to fit with"),
        ({"Cs": 0}, ValueError, "Cs must be at least 1, got 0"),
        ({"Cs": 0.5}, TypeError, "Cs must be an integer or an array of numbers, got 0.5"),
        ({"Cs": [1.0, -1.0]}, ValueError, "Cs must be finite numbers above 0"),
        ({"Cs": []}, ValueError, "Cs must be finite numbers above 0"),
        ({"scoring": 3}, TypeError, "scoring must be a string or a callable, got 3"),
        ({"scoring": "nope"}, ValueError, "scoring"),
        ({"scoring_k": 5}, ValueError, "scoring_k must be between 1 and n_classes = 4, got 5"),
        ({"scoring_k": 1.5}, TypeError, "scoring_k must be an integer or None, got 1.5"),
        ({"loss": "nope"}, ValueError, "loss 'nope' is unknown"),
        ({"tol": -1.0}, ValueError, "tol must be"),
    ],
)
def test_bad_parameters_are_refused(data, parameters, error, message):
    with pytest.raises(error, match=message):
        TopKClassifierCV(**parameters).fit(*data)


def test_a_store_is_refused_with_what_to_do(tmp_path):
    store = open_store(make_store(tmp_path / "s.zarr").path)
    with pytest.raises(TypeError, match=r"X must be an array in memory, .*dtopk sweep"):
        TopKClassifierCV().fit(store)


def test_examples_of_the_docstring():
    assert doctest.testmod(module).failed == 0


_NEEDS_SEVEN_DIGITS = "check_sample_weight_equivalence_on_dense_data"
"""As of `TopKClassifier`: a gap that is down to its rounding leaves them at a small C alone."""


# To the last digits, as for TopKClassifier; few values of C, since all of them are trained for each
# fold of each check.
@pytest.mark.filterwarnings("ignore:The relative duality gap")
@parametrize_with_checks(
    [
        TopKClassifierCV(
            Cs=[1e-3, 1e-2], cv=3, dtype="float64", tol=1e-16, max_epochs=200, random_state=0
        )
    ]
)
def test_estimator_keeps_conventions(estimator, check):
    if check.func.__name__ == _NEEDS_SEVEN_DIGITS:
        estimator = clone(estimator).set_params(Cs=[1e-7, 1e-6])
    check(estimator)
