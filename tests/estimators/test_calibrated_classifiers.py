"""Probabilities and conformal sets of the estimators."""

import pickle

import dask.array as da
import numpy as np
import pytest
import zarr
from scipy.optimize import minimize_scalar
from sklearn.base import clone
from sklearn.metrics import log_loss

from dtopk import KernelTopKClassifier, TopKClassifier, TopKClassifierCV
from dtopk_storage import create_store, open_store
from tests.small_stores import make_rows

NAMES = np.array(["ant", "bee", "cat", "dog"])
ESTIMATORS = {
    "linear": TopKClassifier("topk_hinge_alpha", k=2, gamma=1.0, C=0.1, random_state=0),
    "chosen": TopKClassifierCV("topk_hinge_alpha", gamma=1.0, Cs=[0.1], cv=2, random_state=0),
    "kernel": KernelTopKClassifier("topk_hinge_alpha", k=2, gamma=1.0, C=0.1, random_state=0),
}
COVERAGES = (0.8, 0.9, 0.95)


@pytest.fixture(scope="module")
def rows():
    """400 rows to fit, 1,000 to calibrate, 1,000 to test, with names for labels."""
    parts = [make_rows(n, seed=seed) for n, seed in ((400, 1), (1000, 2), (1000, 3))]
    return [(X, NAMES[y]) for X, y in parts]


@pytest.fixture(scope="module", params=ESTIMATORS)
def calibrated(request, rows):
    return clone(ESTIMATORS[request.param]).fit(*rows[0]).calibrate(*rows[1])


def test_methods_are_there_once_calibrated(rows):
    for estimator in ESTIMATORS.values():
        clf = clone(estimator).fit(*rows[0])
        names = ("predict_proba", "predict_log_proba", "predict_set")
        assert not any(hasattr(clf, name) for name in names)
        assert clf.calibrate(*rows[1]) is clf
        assert all(hasattr(clf, name) for name in names)


def test_fit_drops_the_calibration(calibrated, rows):
    again = pickle.loads(pickle.dumps(calibrated))
    again.fit(*rows[0])
    assert not hasattr(again, "calibration_")
    assert not hasattr(again, "predict_proba")
    assert not hasattr(clone(calibrated), "calibration_")


def test_sets_without_a_calibration_say_what_is_missing(rows):
    clf = TopKClassifier(random_state=0).fit(*rows[0])
    with pytest.raises(AttributeError) as error:
        clf.predict_set(rows[2][0])
    assert "Call its method calibrate" in str(error.value.__cause__)


def test_probabilities_sum_to_one_and_leave_predictions(calibrated, rows):
    X, _ = rows[2]
    p = calibrated.predict_proba(X)
    np.testing.assert_allclose(p.sum(axis=1), 1, rtol=1e-5)
    np.testing.assert_array_equal(NAMES[p.argmax(axis=1)], calibrated.predict(X))
    np.testing.assert_allclose(calibrated.predict_log_proba(X), np.log(p))


def test_temperature_is_scipys_minimiser(calibrated, rows):
    X, y = rows[1]
    scores = calibrated.decision_function(X).astype(np.float64)

    def likelihood(inverse):
        p = np.exp(inverse * (scores - scores.max(axis=1, keepdims=True)))
        return log_loss(y, p / p.sum(axis=1, keepdims=True))

    found = minimize_scalar(likelihood, bracket=(0.1, 1, 10), options={"xtol": 1e-10})
    assert calibrated.calibration_.temperature == pytest.approx(1 / found.x, rel=1e-5)


@pytest.mark.parametrize("score", ["lac", "aps", "raps", "margin"])
def test_sets_cover_what_was_asked_for(rows, score):
    """Within 3.5 standard deviations of the share, of both thousand rows."""
    clf = clone(ESTIMATORS["linear"]).fit(*rows[0]).calibrate(*rows[1], score=score)
    X, y = rows[2]
    for coverage in COVERAGES:
        sets = clf.predict_set(X, coverage)
        assert sets.dtype == np.bool_
        reached = sets[np.arange(len(y)), np.searchsorted(NAMES, y)].mean()
        deviation = np.sqrt(2 * coverage * (1 - coverage) / 1000)
        assert abs(reached - coverage) < 3.5 * deviation


def test_sets_are_the_best_labels(calibrated, rows):
    X, _ = rows[2]
    sets = calibrated.predict_set(X, 0.9)
    order = np.argsort(-calibrated.decision_function(X), axis=1)
    in_order = np.take_along_axis(sets, order, axis=1).astype(int)
    assert (np.diff(in_order, axis=1) <= 0).all()


@pytest.mark.parametrize("loss", ["softmax", "logistic_ova", "topk_hinge_beta"])
def test_two_classes_have_two_columns(rows, loss):
    (X, y), (X_val, y_val), (X_test, _) = [(X, y == "ant") for X, y in rows]
    clf = TopKClassifier(loss, random_state=0).fit(X, y).calibrate(X_val, y_val)
    p = clf.predict_proba(X_test)
    assert p.shape == clf.predict_set(X_test).shape == (1000, 2)
    np.testing.assert_array_equal(p.argmax(axis=1) == 1, clf.predict(X_test))


def test_softmax_changes_by_its_temperature_alone(rows):
    clf = TopKClassifier(C=1e-3, random_state=0).fit(*rows[0])
    X, y = rows[2]
    before = log_loss(y, clf.predict_proba(X))
    scores = clf.decision_function(X)
    clf.calibrate(*rows[1])
    np.testing.assert_array_equal(clf.decision_function(X), scores)
    assert log_loss(y, clf.predict_proba(X)) < before


def test_zarr_and_dask_arrays_give_the_same(rows):
    clf = clone(ESTIMATORS["linear"]).fit(*rows[0])
    (X, y), (X_test, _) = rows[1:]
    expected = clf.calibrate(X, y).calibration_
    sets, p = clf.predict_set(X_test, 0.9), clf.predict_proba(X_test)
    on_disk = zarr.array(X, chunks=(300, 6))
    lazy, labels = da.from_array(X, chunks=(300, 3)), da.from_array(y, chunks=400)
    for features, column in ((on_disk, y), (lazy, labels), (lazy, y)):
        found = clf.calibrate(features, column).calibration_
        assert found.temperature == pytest.approx(expected.temperature, rel=1e-5)
        np.testing.assert_allclose(found.conformal_scores, expected.conformal_scores, atol=1e-5)
    clf.calibrate(X, y)
    lazy = da.from_array(X_test, chunks=(300, 3))
    np.testing.assert_array_equal(clf.predict_set(lazy, 0.9).compute(), sets)
    np.testing.assert_allclose(clf.predict_proba(lazy).compute(), p, rtol=1e-5)


@pytest.fixture(scope="module")
def store(rows, tmp_path_factory):
    """Its classes are in another order than an array's."""
    path = tmp_path_factory.mktemp("store") / "s.zarr"
    names = ["dog", "cat", "bee", "ant"]
    with create_store(path, n_features=6, class_names=names, chunk_rows=64) as writer:
        for split, (X, y) in zip(("train", "val", "test"), rows, strict=True):
            writer.append(X, np.array([names.index(each) for each in y], np.int32), split=split)
    return open_store(path)


def test_stores_give_the_same(rows, store):
    clf = clone(ESTIMATORS["linear"]).fit(*rows[0])
    expected = clf.calibrate(*rows[1]).calibration_
    found = clf.calibrate(store).calibration_
    assert found.temperature == pytest.approx(expected.temperature, rel=1e-5)
    np.testing.assert_allclose(found.conformal_scores, expected.conformal_scores, atol=1e-5)
    other = clf.calibrate(store, split="test").calibration_
    assert other.temperature != expected.temperature


@pytest.mark.parametrize(
    ("y", "options", "message"),
    [
        ("y", {}, "y must be left out for a feature store"),
        (None, {"split": "train"}, "split must be another than 'train', which `fit` takes"),
        (None, {"split": "nope"}, "split 'nope' is unknown"),
    ],
)
def test_stores_refuse_what_does_not_belong(rows, store, y, options, message):
    clf = clone(ESTIMATORS["linear"]).fit(*rows[0])
    with pytest.raises(ValueError, match=message):
        clf.calibrate(store, y and rows[1][1], **options)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"y": None}, "y must be given for an array of features, got None"),
        ({"y": np.array(["ant", "cow"] * 500)}, "labels that the estimator .* got 'cow'"),
        ({"y": np.array(["ant", "bee"])}, "inconsistent numbers of samples"),
        ({"split": "val"}, "split must be left out for others than a feature store, got 'val'"),
        ({"score": "rank"}, "score 'rank' is unknown. Available: 'lac'"),
        ({"score": "margin", "k": 4}, "k must be between 1 and n_classes - 1 = 3, got 4"),
        ({"k": 2}, "k must be left out with the score 'lac', got 2"),
    ],
)
def test_arrays_refuse_what_does_not_belong(rows, change, message):
    clf = clone(ESTIMATORS["linear"]).fit(*rows[0])
    X, y = rows[1]
    with pytest.raises(ValueError, match=message):
        clf.calibrate(**({"X": X, "y": y} | change))


def test_a_failed_calibration_leaves_the_one_before(calibrated, rows):
    before = calibrated.calibration_
    X, _ = rows[1]
    with pytest.raises(ValueError, match="must hold one that is not predicted right"):
        calibrated.calibrate(X, calibrated.predict(X))
    assert calibrated.calibration_ is before


def test_too_few_rows_for_a_coverage_are_refused(rows):
    X, y = rows[1]
    clf = clone(ESTIMATORS["linear"]).fit(*rows[0]).calibrate(X[:50], y[:50])
    for features in (X, da.from_array(X)):
        with pytest.raises(ValueError, match=r"at most n / \(n \+ 1\) = 0.980392 with the n = 50"):
            clf.predict_set(features, 0.99)
