"""Evaluation sets, early stopping and callbacks of the estimators."""

import warnings

import numpy as np
import pytest
import zarr
from sklearn.base import clone
from sklearn.metrics import average_precision_score, label_ranking_loss
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from dtopk import Callback, KernelTopKClassifier, MultilabelClassifier, TopKClassifier
from dtopk.testing import make_features
from dtopk_storage import create_store, open_store
from tests.small_stores import make_rows, make_store

PARAMETERS = {"C": 10.0, "tol": 1e-8, "dtype": "float64", "random_state": 0}


class KeepWeights(Callback):
    reads_weights = True

    def __init__(self):
        self.weights = []

    def on_epoch(self, record, W):
        self.weights.append(W.copy())


class StopAfter(Callback):
    def __init__(self, epoch):
        self.epoch, self.epochs = epoch, []

    def on_epoch(self, record, W):
        self.epochs.append(record.epoch)

    def should_stop(self, record, W):
        return record.epoch == self.epoch


@pytest.fixture
def rows():
    return make_rows(120, seed=1)


@pytest.fixture
def held_out():
    return make_rows(50, seed=2)


def accuracy(scores, y, k):
    best = np.argsort(-scores, axis=1, kind="stable")[:, :k]
    return float(np.mean([label in row for label, row in zip(y, best, strict=True)]))


def find_stop(values, patience):
    for epoch in range(1, len(values) + 1):
        best = 1 + values[:epoch].index(max(values[:epoch]))
        if epoch - best == patience:
            return epoch, best
    return None, None


@pytest.mark.parametrize(("fit_intercept", "k"), [(False, 1), (True, 1), (False, 2), (True, 2)])
def test_fit_stops_at_the_epoch_that_the_weights_themselves_say(rows, held_out, fit_intercept, k):
    parameters = PARAMETERS | {"fit_intercept": fit_intercept, "intercept_scaling": 2.0}
    keeper = KeepWeights()
    TopKClassifier(**parameters, callbacks=[keeper]).fit(*rows)
    X = held_out[0].astype(float)
    values = []
    for W in keeper.weights:
        scores = X @ W[:6] + (2.0 * W[6] if fit_intercept else 0.0)
        values.append(accuracy(scores, held_out[1], k))
    stop, best = find_stop(values, 4)
    assert stop < len(values)
    classifier = TopKClassifier(
        **parameters, early_stopping_rounds=4, eval_metric=f"top_{k}_accuracy"
    )
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        classifier.fit(*rows, eval_set=[held_out])
    assert (classifier.stop_reason_, classifier.n_iter_) == ("early_stopping", stop)
    assert classifier.best_iteration_ == best
    assert classifier.best_score_ == values[best - 1]
    assert classifier.evals_result_ == {"validation_0": {f"top_{k}_accuracy": values[:stop]}}
    np.testing.assert_array_equal(classifier.coef_, keeper.weights[stop - 1][:6].T)
    assert classifier.history_[-1].exact
    assert classifier.history_[-1].primal == classifier.certificate_.primal


def test_metrics_are_those_of_score_and_change_nothing(rows, held_out):
    plain = TopKClassifier(**PARAMETERS).fit(*rows)
    classifier = TopKClassifier(**PARAMETERS, eval_metric=["top_2_accuracy", "top_1_accuracy"])
    classifier.fit(*rows, eval_set=[rows, held_out])
    np.testing.assert_array_equal(classifier.coef_, plain.coef_)
    assert classifier.stop_reason_ == "tolerance"
    assert not hasattr(classifier, "best_iteration_")
    results = classifier.evals_result_
    assert list(results) == ["validation_0", "validation_1"]
    for name, pair in zip(results, (rows, held_out), strict=True):
        assert list(results[name]) == ["top_2_accuracy", "top_1_accuracy"]
        assert [len(values) for values in results[name].values()] == [classifier.n_iter_] * 2
        assert results[name]["top_1_accuracy"][-1] == classifier.score(*pair)
        scores = classifier.decision_function(pair[0])
        assert results[name]["top_2_accuracy"][-1] == accuracy(scores, pair[1], 2)


def test_last_metric_of_the_last_set_decides(rows, held_out):
    classifier = TopKClassifier(
        **PARAMETERS, early_stopping_rounds=3, eval_metric=["top_1_accuracy", "top_3_accuracy"]
    ).fit(*rows, eval_set=[rows, held_out])
    values = classifier.evals_result_["validation_1"]["top_3_accuracy"]
    assert find_stop(values, 3) == (classifier.n_iter_, classifier.best_iteration_)


def test_metric_is_that_of_the_loss_by_default(rows, held_out):
    classifier = TopKClassifier("topk_hinge_alpha", k=3).fit(*rows, eval_set=[held_out])
    assert list(classifier.evals_result_["validation_0"]) == ["top_3_accuracy"]


def test_labels_are_those_of_y(rows, held_out):
    """Names, and two classes, whose evaluation set has them in another order."""
    X, y = rows
    two = y < 2
    names = np.array(["b", "a"])
    other = held_out[1] < 2
    pair = held_out[0][other], names[held_out[1][other]]
    classifier = TopKClassifier(**PARAMETERS).fit(X[two], names[y[two]], eval_set=[pair])
    values = classifier.evals_result_["validation_0"]["top_1_accuracy"]
    assert values[-1] == classifier.score(*pair)


@pytest.mark.parametrize("kind", ["zarr", "store", "dask"])
def test_set_may_be_on_disk_or_lazy(rows, held_out, tmp_path, kind):
    expected = TopKClassifier(**PARAMETERS, early_stopping_rounds=3).fit(*rows, eval_set=[held_out])
    X, y = rows
    pair: tuple[object, object]
    if kind == "zarr":
        stored = zarr.create_array(tmp_path / "x.zarr", data=held_out[0], chunks=(7, 3))
        pair = (stored, held_out[1])
    elif kind == "store":
        store = make_store(tmp_path / "small.zarr")
        pair, y = (store, "test"), np.array(store.class_names)[y]
    else:
        import dask.array as da

        pair = (da.from_array(held_out[0], (7, 3)), da.from_array(held_out[1], 9))
    found = TopKClassifier(**PARAMETERS, early_stopping_rounds=3).fit(X, y, eval_set=[pair])
    assert found.evals_result_ == expected.evals_result_
    np.testing.assert_array_equal(found.coef_, expected.coef_)


def test_feature_store_is_stopped_by_its_own_split(tmp_path, held_out):
    store = make_store(tmp_path / "small.zarr")
    classifier = TopKClassifier(**PARAMETERS, early_stopping_rounds=3)
    classifier.fit(store, eval_set=[(store, "test")])
    assert classifier.stop_reason_ == "early_stopping"
    values = classifier.evals_result_["validation_0"]["top_1_accuracy"]
    names = np.array(store.class_names)[held_out[1]]
    assert values[-1] == classifier.score(held_out[0], names)


def test_workers_stop_where_one_process_does(held_out, client, tmp_path):
    rows = make_rows(128, seed=1)  # cut into the same blocks whole and in chunks for two partitions
    parameters = PARAMETERS | {"partitions": 2, "n_jobs": 1, "early_stopping_rounds": 4}
    keeper = StopAfter(0)
    alone = TopKClassifier(**parameters).fit(*rows, eval_set=[held_out])
    spread = TopKClassifier(
        **parameters, client=client, spool_dir=tmp_path, callbacks=[keeper]
    ).fit(*rows, eval_set=[held_out])
    assert alone.stop_reason_ == spread.stop_reason_ == "early_stopping"
    assert keeper.epochs == list(range(1, spread.n_iter_ + 1))
    assert alone.evals_result_ == spread.evals_result_
    np.testing.assert_array_equal(alone.coef_, spread.coef_)


def test_fit_without_a_set_forgets_what_was_measured(rows, held_out):
    classifier = TopKClassifier(**PARAMETERS, early_stopping_rounds=3)
    classifier.fit(*rows, eval_set=[held_out])
    assert classifier.evals_result_
    classifier.set_params(early_stopping_rounds=None).fit(*rows)
    for name in ("evals_result_", "best_iteration_", "best_score_"):
        assert not hasattr(classifier, name)


def test_search_and_pipeline_pass_the_set_on(rows, held_out):
    classifier = TopKClassifier(**PARAMETERS, early_stopping_rounds=3)
    search = GridSearchCV(classifier, {"C": [1.0, 10.0]}, cv=2).fit(*rows, eval_set=[held_out])
    alone = clone(classifier).set_params(**search.best_params_).fit(*rows, eval_set=[held_out])
    np.testing.assert_array_equal(search.best_estimator_.coef_, alone.coef_)
    assert search.best_estimator_.stop_reason_ == "early_stopping"
    pipeline = make_pipeline(StandardScaler(), clone(classifier))
    pipeline.fit(*rows, topkclassifier__eval_set=[held_out])
    assert pipeline[-1].evals_result_


def test_verbose_tells_of_the_metrics(rows, held_out, capsys):
    classifier = TopKClassifier(**PARAMETERS, verbose=1).fit(*rows, eval_set=[held_out])
    last = capsys.readouterr().err.splitlines()[-1]
    value = classifier.evals_result_["validation_0"]["top_1_accuracy"][-1]
    assert last == f"epoch {classifier.n_iter_}: validation_0 top_1_accuracy {value:.4f}"


@pytest.mark.parametrize(
    ("parameters", "eval_set", "error", "message"),
    [
        ({"early_stopping_rounds": 3}, None, ValueError,
         r"eval_set must be given to fit with early_stopping_rounds=3, got None"),
        ({"eval_metric": "top_1_accuracy"}, None, ValueError,
         r"eval_set must be given to fit with eval_metric='top_1_accuracy', got None"),
        ({"early_stopping_rounds": 0}, "pair", ValueError,
         r"early_stopping_rounds must be None or at least 1, got 0"),
        ({"early_stopping_rounds": 2.0}, "pair", TypeError,
         r"early_stopping_rounds must be an integer, got 2\.0"),
        ({"eval_metric": "accuracy"}, "pair", ValueError,
         r"eval_metric must be 'top_k_accuracy' with a number k from 1 to n_classes - 1, got 'acc"),
        ({"eval_metric": ["top_1_accuracy", "top_4_accuracy"]}, "pair", ValueError,
         r"eval_metric must be .* to n_classes - 1 = 3, got 'top_4_accuracy'"),
        ({"eval_metric": [1]}, "pair", TypeError, r"eval_metric must be a string or a list of "),
        ({"eval_metric": []}, "pair", TypeError, r"eval_metric must be .* got \[\]"),
        ({"eval_metric": print}, "pair", TypeError, r"eval_metric must be .* got <built-in"),
        ({}, [], TypeError, r"eval_set must be a list of pairs \(X, y\), at least one, got a list"),
        ({}, "no pair", TypeError, r"eval_set must be a list of pairs .* got a list of int32"),
        ({}, "label", ValueError,
         r"y of eval_set\[0\] must hold labels that the estimator was fitted on, its 4 .* got 9"),
        ({}, "features", ValueError, r"X has 5 features"),
        ({}, "short", ValueError, r"inconsistent numbers of samples"),
        ({"callbacks": [print]}, "pair", TypeError,
         r"callbacks must hold objects of classes made from dtopk\.Callback, got <built-in"),
    ],
)  # fmt: skip
def test_what_cannot_be_used_is_refused(rows, held_out, parameters, eval_set, error, message):
    X, y = held_out
    given = {
        "pair": [held_out], "no pair": [y[0]], "label": [(X, np.full_like(y, 9))],
        "features": [(X[:, :5], y)], "short": [(X, y[:5])],
    }  # fmt: skip
    if isinstance(eval_set, str):
        eval_set = given[eval_set]
    with pytest.raises(error, match=message):
        TopKClassifier(**parameters).fit(*rows, eval_set=eval_set)


def test_split_that_is_none_is_refused(tmp_path, rows):
    store = make_store(tmp_path / "small.zarr")
    with pytest.raises(ValueError, match=r"eval_set\[0\] must name a split of .* got 'val'"):
        TopKClassifier().fit(store, eval_set=[(store, "val")])
    with pytest.raises(ValueError, match=r"y of eval_set\[0\] must hold labels .* got 'ant'"):
        TopKClassifier().fit(*rows, eval_set=[(store, "test")])


def make_three_estimators():
    X, y = make_features(200, 5, 3, seed=0)
    Y = np.eye(3, dtype=int)[y]
    return [(TopKClassifier, X, y), (MultilabelClassifier, X, Y), (KernelTopKClassifier, X, y)]


@pytest.mark.parametrize(("estimator", "X", "y"), make_three_estimators())
def test_callback_stops_every_estimator(estimator, X, y):
    stopper = StopAfter(3)
    classifier = estimator(tol=1e-9, dtype="float64", callbacks=[stopper])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        classifier.fit(X, y)
    assert (classifier.stop_reason_, classifier.n_iter_) == ("callback", 3)
    assert stopper.epochs == [1, 2, 3]
    assert classifier.history_[-1].relative_gap == classifier.certificate_.relative_gap > 1e-9
    copied = clone(classifier).callbacks
    assert [type(each) for each in copied] == [StopAfter]
    assert copied[0] is not stopper


def make_sets(n_rows, seed):
    """Give every row its class and, every third one, the next class too."""
    X, y = make_rows(n_rows, seed=seed)
    Y = np.eye(4, dtype=int)[y]
    Y[::3][np.arange(len(y[::3])), (y[::3] + 1) % 4] = 1
    return X, Y


@pytest.mark.parametrize("metric", ["rank_loss", "mean_average_precision", "top_2_accuracy"])
def test_multilabel_fit_stops_at_the_epoch_that_the_weights_themselves_say(metric):
    """Less of the rank loss is better, and more of the others."""
    rows, (X, Y) = make_sets(120, 1), make_sets(50, 2)
    parameters = PARAMETERS | {"loss": "multilabel_softmax"}
    keeper = KeepWeights()
    MultilabelClassifier(**parameters, callbacks=[keeper]).fit(*rows)
    values = []
    for W in keeper.weights:
        scores = X.astype(float) @ W[:6] + W[6]
        best = np.argsort(-scores, axis=1, kind="stable")[:, :2]
        found = {
            "rank_loss": label_ranking_loss(Y, scores),
            "mean_average_precision": average_precision_score(Y, scores, average="macro"),
            "top_2_accuracy": np.take_along_axis(Y, best, axis=1).any(axis=1).mean(),
        }
        values.append(float(found[metric]))
    stop, best = find_stop([-value for value in values] if metric == "rank_loss" else values, 2)
    classifier = MultilabelClassifier(**parameters, early_stopping_rounds=2, eval_metric=metric)
    classifier.fit(*rows, eval_set=[(X, Y)])
    assert (classifier.stop_reason_, classifier.n_iter_) == ("early_stopping", stop)
    assert classifier.best_iteration_ == best
    assert classifier.evals_result_["validation_0"][metric] == pytest.approx(values[:stop])


def test_multilabel_set_may_be_a_split(tmp_path):
    rows, held_out = make_sets(120, 1), make_sets(50, 2)
    expected = MultilabelClassifier(**PARAMETERS).fit(*rows, eval_set=[held_out])
    with create_store(
        tmp_path / "tags.zarr", n_features=6, class_names="0123", chunk_rows=32, kind="multilabel"
    ) as writer:
        writer.append(*rows, split="train")
        writer.append(*held_out, split="val")
    store = open_store(tmp_path / "tags.zarr")
    for X, Y in (rows, (store, None)):
        found = MultilabelClassifier(**PARAMETERS).fit(X, Y, eval_set=[(store, "val")])
        [values] = found.evals_result_["validation_0"].values()
        assert list(found.evals_result_["validation_0"]) == ["mean_average_precision"]
        if X is not store:
            assert found.evals_result_ == expected.evals_result_
        assert len(values) == found.n_iter_
    with pytest.raises(ValueError, match=r"eval_set\[0\] must name a split of .* got 'test'"):
        MultilabelClassifier().fit(*rows, eval_set=[(store, "test")])
    with pytest.raises(ValueError, match=r"kind of .* in eval_set\[0\] must be 'multiclass', got"):
        TopKClassifier().fit(rows[0], rows[1].argmax(axis=1), eval_set=[(store, "val")])
