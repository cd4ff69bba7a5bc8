"""Calibrating trained models on the Letter data: what is promised, held to rows not seen."""

import dataclasses
import logging
from pathlib import Path

import numpy as np
import pytest
from scipy.optimize import minimize_scalar
from scipy.special import log_softmax

from dtopk.calibration import CONFORMAL_SCORES
from dtopk.evaluation import CalibrationCounts, ReliabilityCounts
from dtopk.job import (
    DataSection,
    ModelSection,
    OutputSection,
    TrackingSection,
    TrainJob,
    scoring,
    train,
)
from dtopk.job.calibration import calibrate_model
from dtopk.job.scoring import iter_scores
from dtopk.model import load_model
from dtopk_storage import create_store, open_store
from tests.small_stores import make_store

LETTER = Path(__file__).parents[2] / "jobs" / "data" / "letter.npz"
MODELS = {
    "softmax": ModelSection(C=10.0),
    "hinge": ModelSection(loss="topk_hinge_alpha", k=5, gamma=1.0, C=10.0),
    "truncated": ModelSection(loss="truncated_topk_entropy", k=3, C=10.0),
}
DEVIATIONS = 3.5
"""Of the share covered, which both the rows of the calibration and those of the test make vary:
48 comparisons have one beyond with a probability of 2%, were they independent."""


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    """Split the rows at random: sets promise nothing for rows that are of another kind."""
    path = tmp_path_factory.mktemp("letter") / "letter.zarr"
    with np.load(LETTER) as arrays:
        X, y = (arrays["X"] / np.float32(15)).astype(np.float32), arrays["y"].astype(np.int32)
    order = np.random.default_rng(0).permutation(len(y))
    names = [chr(ord("A") + code) for code in range(26)]
    with create_store(path, n_features=16, class_names=names) as writer:
        for split, rows in zip(
            ("train", "val", "test"), np.split(order, [12_000, 16_000]), strict=True
        ):
            writer.append(X[rows], y[rows], split=split)
    return open_store(path)


@pytest.fixture(scope="module", params=MODELS)
def model(request, store, tmp_path_factory):
    job = TrainJob(
        data=DataSection(store=store.path, center=True),
        model=MODELS[request.param],
        output=OutputSection(run_dir=str(tmp_path_factory.mktemp("run") / "r"), save_dual=False),
        tracking=TrackingSection(mlflow=False),
    )
    return train(store, job).model


@pytest.fixture(scope="module")
def scored(model, store):
    """Labels and scores of the rows of 'val' and 'test'."""
    pairs = {split: zip(*iter_scores(model, store, split), strict=True) for split in store.splits}
    return {split: tuple(map(np.concatenate, pair)) for split, pair in pairs.items()}


@pytest.fixture(scope="module")
def calibrated(model, store):
    return calibrate_model(model, store, "val")


def test_temperature_equals_scipys_minimiser(calibrated, scored):
    y, scores = scored["val"]
    u = scores.astype(np.float64)

    def likelihood(inverse):
        return -log_softmax(inverse * u, axis=1)[np.arange(len(y)), y].mean()

    found = minimize_scalar(likelihood, bracket=(0.1, 1, 10), options={"xtol": 1e-10})
    temperature = calibrated.model.calibration.temperature
    assert temperature == pytest.approx(1 / found.x, rel=1e-6)


def test_probabilities_sum_to_one_and_leave_the_best_class(calibrated, scored):
    _, scores = scored["test"]
    p = calibrated.model.score_probabilities(scores)
    np.testing.assert_allclose(p.sum(axis=1), 1, rtol=1e-5)
    np.testing.assert_array_equal(p.argmax(axis=1), scores.argmax(axis=1))


def test_likelihood_is_better_on_rows_not_seen(calibrated, scored):
    y, scores = scored["test"]
    before, after = ReliabilityCounts(), ReliabilityCounts()
    before.update(y, np.exp(log_softmax(scores, axis=1)))
    after.update(y, calibrated.model.score_probabilities(scores))
    assert after.negative_log_likelihood < before.negative_log_likelihood


def test_calibration_error_drops(calibrated, model):
    """One number cannot mend everything: of the truncated loss the likelihood gains alone."""
    before, after = calibrated.before, calibrated.after.reliability
    assert after.negative_log_likelihood < before.negative_log_likelihood
    assert after.accuracy() == before.accuracy()
    if model.loss != "truncated_topk_entropy":
        for binning in ("equal_width", "equal_mass"):
            errors = [counts.bins(15, binning).calibration_error for counts in (before, after)]
            assert errors[1] < 0.6 * errors[0]


@pytest.mark.parametrize("score", CONFORMAL_SCORES)
def test_sets_cover_what_was_asked_for(model, store, scored, score):
    result = calibrate_model(model, store, "val", score=score)
    counts = CalibrationCounts(calibration=result.model.calibration)
    counts.update(*scored["test"])
    assert [each.coverage for each in counts.sets] == [0.8, 0.9, 0.95, 0.99]
    # The best label is in every set of these two, also where fewer would do.
    accuracy = counts.reliability.accuracy() if score in ("aps", "raps") else 0.0
    for each in counts.sets:
        if score in ("aps", "raps"):
            assert each.n_empty == 0
        if each.coverage <= accuracy:
            assert each.reached == accuracy
            continue
        share = each.coverage * (1 - each.coverage)
        deviation = np.sqrt(share / 4000 + share / each.n_rows)
        assert abs(each.reached - each.coverage) < DEVIATIONS * deviation


def test_sets_of_the_calibrations_own_rows_cover_exactly(calibrated):
    """The ceil((n + 1) coverage)-th smallest of n scores, none of them equal."""
    for each in calibrated.after.sets:
        assert each.n_covered == np.ceil(4001 * each.coverage)


def test_sets_are_far_from_all_labels(calibrated):
    sizes = [each.mean_size for each in calibrated.after.sets]
    assert sizes == sorted(sizes)
    assert sizes[1] < 4


def test_calibration_is_kept_with_the_model(calibrated, scored, tmp_path):
    calibrated.model.save(tmp_path / "model.npz")
    again = load_model(tmp_path / "model.npz")
    _, scores = scored["test"]
    for coverage in (0.8, 0.99):
        np.testing.assert_array_equal(
            again.calibration.find_sets(scores, coverage),
            calibrated.model.calibration.find_sets(scores, coverage),
        )
    assert again.calibration.source["split"] == "val"


def test_batches_change_nothing(calibrated, model, store, monkeypatch):
    monkeypatch.setattr(scoring, "_BATCH_BYTES", 100 * 4 * (16 + 2 * 26))
    again = calibrate_model(model, store, "val").model.calibration
    first = calibrated.model.calibration
    assert again.temperature == pytest.approx(first.temperature, rel=1e-6)
    np.testing.assert_allclose(again.conformal_scores, first.conformal_scores, rtol=1e-4)


def test_an_older_calibration_has_no_part(calibrated, store):
    again = calibrate_model(calibrated.model, store, "val")
    assert again.model.calibration.temperature == calibrated.model.calibration.temperature
    assert again.before.negative_log_likelihood == calibrated.before.negative_log_likelihood


@pytest.fixture
def small(tmp_path):
    """Train on the four classes of a small store."""
    path = tmp_path / "small.zarr"
    job = TrainJob(
        data=DataSection(store=str(path)),
        output=OutputSection(run_dir=str(tmp_path / "run"), save_dual=False),
        tracking=TrackingSection(mlflow=False),
    )
    store = make_store(path)
    return train(store, job).model, store


def test_rows_that_were_trained_on_are_refused(small):
    model, store = small
    with pytest.raises(ValueError, match="got 'train', of which 120 rows are in 'train'"):
        calibrate_model(model, store, "train")


def test_rows_that_may_have_been_trained_on_are_warned_of(small, tmp_path, caplog):
    """A store of another place: its split may hold the same rows, or others."""
    model, _ = small
    other = make_store(tmp_path / "other.zarr")
    with caplog.at_level(logging.WARNING):
        calibrate_model(model, other, "train")
    assert "The model was trained on split 'train' of" in caplog.text
    caplog.clear()
    calibrate_model(model, other, "test")
    assert not caplog.text


def test_rows_of_all_splits_trained_on_are_refused(small):
    """Each row counts once, also where two splits have it."""
    model, store = small
    refit = dataclasses.replace(model, trained_on=("train", "test", "train"))
    with pytest.raises(ValueError, match="'test', of which 50 rows are in 'train' and 'test' and"):
        calibrate_model(refit, store, "test")


def test_rows_that_the_model_was_chosen_by_are_warned_of(small, tmp_path, caplog):
    model, store = small
    stopped = {"early_stopping": {"metric": "top_1"}}
    data = {"data": model.job["data"] | {"validation": "test"}}
    for chosen, how in (
        (dataclasses.replace(model, chosen_on="test"), "setting's metric"),
        (dataclasses.replace(model, job={**model.job, **data, **stopped}), "early stopping"),
    ):
        caplog.clear()
        calibrate_model(chosen, store, "test")
        assert f"The model was chosen by its {how} on split 'test'" in caplog.text
    caplog.clear()
    calibrate_model(dataclasses.replace(model, job=model.job | data), store, "test")
    other = make_store(tmp_path / "other.zarr")
    calibrate_model(dataclasses.replace(model, chosen_on="test"), other, "test")
    assert not caplog.text


def test_a_split_that_is_not_there_is_named(small):
    model, store = small
    with pytest.raises(ValueError, match="split 'val' is unknown in"):
        calibrate_model(model, store, "val")


def test_classes_of_another_store_are_refused(small, tmp_path):
    model, _ = small
    other = make_store(tmp_path / "other.zarr", class_names=("ant", "bee", "cow", "dog"))
    with pytest.raises(ValueError, match="must be a class that the model was trained on, got 'cow"):
        calibrate_model(model, other, "test")


def test_a_multilabel_model_is_refused(small):
    model, store = small
    with pytest.raises(ValueError, match="must both be multiclass, got a multilabel model"):
        calibrate_model(dataclasses.replace(model, target="multilabel"), store, "test")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"score": "margin", "k": 4}, "k must be between 1 and n_classes - 1 = 3, got 4"),
        ({"score": "aps", "k": 2}, "k must be left out with the score 'aps', got 2"),
        ({"score": "raps", "penalty": -1.0}, "penalty must be finite and above 0"),
    ],
)
def test_parameters_are_checked_before_rows_are_read(small, monkeypatch, options, message):
    model, store = small
    monkeypatch.setattr("dtopk.job.calibration.iter_scores", None)
    with pytest.raises(ValueError, match=message):
        calibrate_model(model, store, "test", **options)


def test_scores_by_rank_take_the_k_of_the_loss(small):
    model, store = small
    hinge = dataclasses.replace(model, loss="topk_hinge_alpha", link="", loss_parameters={"k": 2})
    assert calibrate_model(hinge, store, "test", score="margin").model.calibration.k == 2
    found = calibrate_model(model, store, "test", score="raps").model.calibration
    assert (found.k, found.penalty) == (1, 0.1)
