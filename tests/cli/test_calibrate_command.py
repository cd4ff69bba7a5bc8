"""`dtopk calibrate`, and what `evaluate` and `info` say of a calibrated model."""

import shutil

import numpy as np
import pytest

from dtopk.job import DataSection, OutputSection, TrackingSection, TrainJob, train
from dtopk.model import load_model


@pytest.fixture
def run(store, tmp_path):
    job = TrainJob(
        data=DataSection(store=store.path),
        output=OutputSection(run_dir=str(tmp_path / "run"), save_dual=False),
        tracking=TrackingSection(mlflow=False),
    )
    train(store, job)
    return tmp_path / "run"


def test_calibrate_keeps_the_weights_and_draws_the_figure(call, run, store):
    before = load_model(run)
    result = call("calibrate", run, "--split", "test")
    assert result.status == 0, result.err
    after = load_model(run)
    np.testing.assert_array_equal(after.W, before.W)
    assert after.certificate == before.certificate
    assert after.calibration.source == {"store": store.path, "split": "test"}
    assert after.calibration.n_rows == 50
    assert f"wrote {run / 'model.npz'}" in result.err
    assert f"wrote {run / 'reliability.png'}" in result.err
    assert (run / "reliability.png").read_bytes().startswith(b"\x89PNG")
    lines = result.out.splitlines()
    assert lines[0].startswith("split 'test': 50 rows, temperature ")
    assert lines[0].endswith(", score lac")
    assert [line.split()[0] for line in lines[3:5]] == ["before", "calibrated"]
    # Of 50 rows sets of 99% cannot be made.
    assert [line.split()[0] for line in lines[7:]] == ["80%", "90%", "95%"]


def test_calibrate_answers_json(call_json, run, store):
    answer = call_json(
        "calibrate", run, store.path, "--split=test", "--score=raps", "--k=2", "--bins=7"
    )
    assert (answer["score"], answer["k"], answer["penalty"]) == ("raps", 2, 0.1)
    assert answer["temperature"] == load_model(run).calibration.temperature
    assert answer["before"]["accuracy"] == answer["calibrated"]["accuracy"]
    likelihoods = [answer[n]["negative_log_likelihood"] for n in ("before", "calibrated")]
    assert likelihoods[1] < likelihoods[0]
    assert answer["calibrated"]["expected_calibration_error"]["n_bins"] == 7
    assert [fields["coverage"] for fields in answer["sets"]] == [0.8, 0.9, 0.95]


def test_calibrate_takes_the_place_of_an_older_calibration(call, run):
    for score in ("lac", "margin"):
        assert call("calibrate", run, "--split", "test", "--score", score).status == 0
        assert load_model(run).calibration.score == score


def test_calibrate_finds_no_store_in_a_model_without_a_job(call, model_path):
    result = call("calibrate", model_path, "--split", "test")
    assert result.status == 2
    assert f"STORE must be given, since {str(model_path)!r} does not say" in result.err


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ((), "split 'val' is unknown in"),
        (("--split", "train"), "must have no row that the model was trained on, got 'train'"),
        (("--split", "test", "--penalty", 1), "penalty must be left out with the score 'lac'"),
    ],
)
def test_calibrate_refuses_and_leaves_the_model(call, run, options, message):
    before = (run / "model.npz").read_bytes()
    result = call("calibrate", run, *options)
    assert result.status == 2
    assert message in result.err
    assert (run / "model.npz").read_bytes() == before
    assert not (run / "reliability.png").exists()


def test_evaluate_tells_of_a_calibrated_model(call, call_json, run, store):
    answer = call_json("evaluate", run, store.path)
    assert "sets" not in answer["splits"]["test"]
    assert call("calibrate", run, "--split", "test").status == 0
    test = call_json("evaluate", run, store.path)["splits"]["test"]
    assert test["probabilities"]["accuracy"] == test["top_k_accuracy"]["1"]
    # Of the rows of the calibration the ceil(51 * 0.9)-th is the last one covered.
    assert [s["reached"] for s in test["sets"]] == [41 / 50, 46 / 50, 49 / 50]
    text = call("evaluate", run, store.path).out
    assert "ECE, equal mass" in text
    assert "90%   92.00%" in text


def test_info_tells_of_a_calibrated_model(call, call_json, run):
    path = run / "model.npz"
    assert call_json("info", path)["calibration"] is None
    assert "calibration" not in call("info", path).out
    assert call("calibrate", run, "--split", "test", "--score", "margin").status == 0
    fields = call_json("info", path)["calibration"]
    assert (fields["score"], fields["k"], fields["split"]) == ("margin", 1, "test")
    assert "sets by margin, k = 1; 50 rows of split 'test'" in call("info", path).out
    assert "reliability.png" in call("info", run).out


def test_verification_takes_a_calibrated_run(call, store, tmp_path):
    job = TrainJob(
        data=DataSection(store=store.path),
        output=OutputSection(run_dir=str(tmp_path / "run")),
        tracking=TrackingSection(mlflow=False),
    )
    train(store, job)
    assert call("calibrate", tmp_path / "run", "--split", "test").status == 0
    assert call("info", tmp_path / "run", "--verify").status == 0


def test_a_calibrated_model_goes_anywhere(call_json, run, store, tmp_path):
    """A model file that was copied says on which store it was trained."""
    shutil.copy(run / "model.npz", tmp_path / "copy.npz")
    answer = call_json("calibrate", tmp_path / "copy.npz", "--split", "test")
    assert answer["model"] == str(tmp_path / "copy.npz")
    assert (tmp_path / "reliability.png").exists()
