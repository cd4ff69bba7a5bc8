"""Jobs that stop when a metric of the validation split gets no better, and callbacks that stop."""

import csv
import dataclasses
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import dtopk
from dtopk.job import (
    ClusterSection,
    DataSection,
    EarlyStoppingSection,
    ModelSection,
    SolverSection,
    SweepJob,
    SweepSection,
    job_to_toml,
    load_job,
    train,
    training,
)
from dtopk.job.verification import verify_run
from dtopk_storage import open_dual
from tests.small_stores import make_rows

pytestmark = pytest.mark.usefixtures("no_figures")

ROOT = Path(__file__).parents[2]
SOLVER = SolverSection(tol=1e-6, max_epochs=500, dtype="float64")
"""With C = 10 some forty epochs, the best accuracy on 'test' after some ten."""
STOPPING = EarlyStoppingSection(metric="top_1_accuracy", patience=4)
ON_TEST = DataSection(validation="test")
SECTIONS = {
    "model": ModelSection(loss="softmax", C=10.0),
    "solver": SOLVER,
    "data": ON_TEST,
    "cluster": ClusterSection(checkpoint_s=0.0),
}


class KeepWeights(dtopk.Callback):
    """Copies the weights of every epoch."""

    reads_weights = True

    def __init__(self):
        self.weights = []

    def on_epoch(self, record, W):
        self.weights.append(W.copy())


class FailAfter(dtopk.Callback):
    def __init__(self, epoch):
        self._epoch = epoch

    def on_epoch(self, record, W):
        if record.epoch == self._epoch:
            raise RuntimeError("the callback broke")


class StopAfter(dtopk.Callback):
    def __init__(self, epoch):
        self._epoch = epoch

    def should_stop(self, record, W):
        return record.epoch == self._epoch


@pytest.fixture
def make_stopping(make_job):
    def make_stopping(run_dir="run", **sections):
        return make_job(run_dir, **(SECTIONS | {"early_stopping": STOPPING} | sections))

    return make_stopping


def list_accuracies(weights, k=1):
    """Compute the accuracy of every epoch's weights from the rows themselves."""
    X, y = make_rows(50, seed=2)
    found = []
    for W in weights:
        best = np.argsort(-(X.astype(float) @ W), axis=1, kind="stable")[:, :k]
        found.append(float(np.mean([label in row for label, row in zip(y, best, strict=True)])))
    return found


def find_stop(values, patience):
    """Return the first epoch since whose best one `patience` have passed, and that best one."""
    for epoch in range(1, len(values) + 1):
        best = 1 + values[:epoch].index(max(values[:epoch]))
        if epoch - best == patience:
            return epoch, best
    return None, None


def read_history(result):
    with (result.run_dir / "history.csv").open(newline="") as file:
        return list(csv.DictReader(file))


def assert_same_run(one, other):
    assert (one.stop_reason, one.epochs) == (other.stop_reason, other.epochs)
    assert one.early_stopping == other.early_stopping
    np.testing.assert_array_equal(one.model.W, other.model.W)
    assert one.certificate == other.certificate
    duals = [open_dual(each.run_dir / "dual").read(0, 120) for each in (one, other)]
    np.testing.assert_array_equal(*duals)


@pytest.mark.parametrize(("patience", "k"), [(2, 1), (3, 1), (3, 2)])
def test_training_stops_at_the_epoch_that_the_weights_themselves_say(
    store, make_stopping, patience, k
):
    keeper = KeepWeights()
    train(store, make_stopping("long", early_stopping=EarlyStoppingSection()), callbacks=[keeper])
    values = list_accuracies(keeper.weights, k)
    stop, best = find_stop(values, patience)
    assert stop < len(values)
    section = EarlyStoppingSection(metric=f"top_{k}_accuracy", patience=patience)
    result = train(store, make_stopping(early_stopping=section))
    assert (result.stop_reason, result.epochs) == ("early_stopping", stop)
    assert result.early_stopping == {
        "metric": f"test/top_{k}_accuracy", "patience": patience, "min_delta": 0.0,
        "best_epoch": best, "best_value": values[best - 1],
    }  # fmt: skip
    np.testing.assert_array_equal(result.model.W, keeper.weights[stop - 1])
    history = read_history(result)
    assert [float(row[f"test/top_{k}_accuracy"]) for row in history] == values[:stop]
    assert history[-1]["exact"] == "True"
    written = json.loads((result.run_dir / "result.json").read_text())
    assert (written["stop_reason"], written["early_stopping"]) == (
        "early_stopping", result.early_stopping,
    )  # fmt: skip


def test_certificate_is_that_of_the_model_that_is_saved(store, make_stopping):
    result = train(store, make_stopping())
    assert not result.certificate.certified
    verified = dataclasses.astuple(verify_run(result.run_dir))
    assert verified == pytest.approx(dataclasses.astuple(result.certificate), rel=1e-12)
    X, y = make_rows(120, seed=1)
    model = dtopk.load_model(result.run_dir)
    scores = model.decision_function(X)
    losses = np.log(np.exp(scores).sum(axis=1)) - scores[np.arange(120), y]
    primal = 10 * losses.sum() + 0.5 * np.square(model.W).sum()
    assert model.certificate["primal"] == pytest.approx(primal)


def test_metric_that_gets_better_for_ever_stops_nothing(store, make_stopping, monkeypatch):
    from dtopk.job import callbacks

    shares = iter(np.linspace(0.1, 0.9, 400))

    class Better:
        def __init__(self):
            self.share = float(next(shares))

        def topk_accuracy(self, k):
            return self.share

    monkeypatch.setattr(callbacks, "evaluate_split", lambda *arguments: Better())
    result = train(store, make_stopping(early_stopping=dataclasses.replace(STOPPING, patience=1)))
    assert (result.stop_reason, result.certificate.certified) == ("tolerance", True)
    assert result.early_stopping["best_epoch"] == result.epochs > 20


def test_min_delta_is_what_a_better_value_must_exceed(store, make_stopping):
    """All later gains of one epoch are below it: the first epoch stays the best."""
    section = dataclasses.replace(STOPPING, patience=4, min_delta=0.9)
    result = train(store, make_stopping(early_stopping=section))
    assert (result.epochs, result.early_stopping["best_epoch"]) == (5, 1)


@pytest.mark.parametrize(("partitions", "patience"), [(0, 4), (3, 5)])
@pytest.mark.parametrize("before_stop", [0, 1, 2, 4])
def test_run_that_was_killed_stops_where_it_would_have(
    store, make_stopping, partitions, patience, before_stop
):
    """Also where it is killed in the epoch of the stop, or before the best one."""
    sections = {
        "cluster": ClusterSection(checkpoint_s=0.0, partitions=partitions),
        "early_stopping": dataclasses.replace(STOPPING, patience=patience),
    }
    undisturbed = train(store, make_stopping("undisturbed", **sections))
    assert undisturbed.stop_reason == "early_stopping"
    assert undisturbed.epochs > 10
    job = make_stopping("killed", **sections)
    with pytest.raises(RuntimeError, match="the callback broke"):
        train(store, job, callbacks=[FailAfter(undisturbed.epochs - before_stop)])
    resumed = train(store, job)
    assert resumed.resumed_at
    assert_same_run(undisturbed, resumed)
    metrics = [[row["test/top_1_accuracy"] for row in read_history(each)]
               for each in (undisturbed, resumed)]  # fmt: skip
    assert metrics[0] == metrics[1]


@pytest.mark.parametrize(
    ("model", "solver"),
    [
        (ModelSection(loss="topk_hinge_alpha", k=2), "frank_wolfe"),
        (ModelSection(loss="topk_hinge_alpha", k=2), "block_frank_wolfe"),
        (ModelSection(C=10.0), "lbfgs"),
        (ModelSection(loss="truncated_topk_entropy", k=2, C=3.0), "sdca"),
    ],
    ids=["frank_wolfe", "block_frank_wolfe", "lbfgs", "not convex"],
)
def test_every_solver_stops_where_it_would_have(store, make_stopping, model, solver):
    """A certificate changes the weights of some of them, and what they go on from."""
    sections = {"model": model, "solver": dataclasses.replace(SOLVER, name=solver)}
    sections["early_stopping"] = dataclasses.replace(STOPPING, patience=6)
    undisturbed = train(store, make_stopping("undisturbed", **sections))
    assert undisturbed.stop_reason == "early_stopping"
    job = make_stopping("killed", **sections)
    with pytest.raises(RuntimeError, match="the callback broke"):
        train(store, job, callbacks=[FailAfter(undisturbed.epochs - 1)])
    resumed = train(store, job)
    assert resumed.resumed_at == (undisturbed.epochs - 2,)
    assert resumed.early_stopping == undisturbed.early_stopping
    np.testing.assert_array_equal(resumed.model.W, undisturbed.model.W)
    assert resumed.certificate == undisturbed.certificate


def test_killed_process_stops_where_it_would_have(store, make_stopping, tmp_path):
    """SIGKILL comes between two epochs, twice: nothing is told or tidied up."""
    undisturbed = train(store, make_stopping("undisturbed"))
    job = make_stopping("killed")
    path = tmp_path / "job.toml"
    path.write_text(job_to_toml(job))
    script = (
        "import os, signal, sys, dtopk; from dtopk.job import load_job\n"
        "class Kill(dtopk.Callback):\n"
        "    def on_epoch(self, record, W):\n"
        "        if record.epoch == int(sys.argv[2]): os.kill(os.getpid(), signal.SIGKILL)\n"
        f"dtopk.train({store.path!r}, load_job(sys.argv[1], "
        f"['data.store={store.path}']), callbacks=[Kill()])\n"
    )
    environment = os.environ | {"PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'storage'}"}
    for epoch in (undisturbed.epochs - 3, undisturbed.epochs):
        command = [sys.executable, "-c", script, str(path), str(epoch)]
        done = subprocess.run(command, env=environment, capture_output=True, timeout=300)
        assert done.returncode == -signal.SIGKILL, done.stderr
    resumed = train(store, job)
    assert resumed.resumed_at == (undisturbed.epochs - 4, undisturbed.epochs)
    assert_same_run(undisturbed, resumed)


def test_limit_commits_before_callbacks_are_asked(store, make_job):
    """A batch system that ends a job may leave no time to measure anything."""

    class FailWhenAsked(dtopk.Callback):
        def should_stop(self, record, W):
            if record.epoch == 3:
                raise RuntimeError("the callback broke")

    sections = {**SECTIONS, "solver": dataclasses.replace(SOLVER, max_epochs=3)}
    with pytest.raises(RuntimeError, match="the callback broke") as caught:
        train(store, make_job(**sections), callbacks=[FailWhenAsked()])
    assert caught.value.__notes__[0].startswith("The run is kept up to epoch 3;")


def test_best_epoch_may_be_that_of_a_limit(store, make_stopping):
    """The accuracy is best after epoch 10 and no better before."""
    solver = dataclasses.replace(SOLVER, max_epochs=10)
    stopping = dataclasses.replace(STOPPING, patience=9)
    result = train(store, make_stopping(solver=solver, early_stopping=stopping))
    assert (result.stop_reason, result.early_stopping["best_epoch"]) == ("max_epochs", 10)


def test_run_that_was_killed_while_it_is_written_stops_there_again(
    store, make_stopping, monkeypatch
):
    undisturbed = train(store, make_stopping("undisturbed"))

    def fail(*arguments):
        raise RuntimeError("the evaluation broke")

    with monkeypatch.context() as broken:
        broken.setattr(training, "evaluate_split", fail)
        with pytest.raises(RuntimeError, match="the evaluation broke"):
            train(store, make_stopping("killed"))
    assert_same_run(undisturbed, train(store, make_stopping("killed")))


def test_stopped_run_goes_on_with_more_patience_to_the_same_bits(store, make_stopping):
    plain = make_stopping("plain", early_stopping=EarlyStoppingSection())
    undisturbed = train(store, plain)
    stopped = train(store, make_stopping("stopped"))
    assert stopped.resumable
    patient = dataclasses.replace(STOPPING, patience=400)
    resumed = train(store, make_stopping("stopped", early_stopping=patient))
    # The epoch of the stop is asked about again.
    assert resumed.resumed_at == (stopped.epochs,)
    assert (resumed.stop_reason, resumed.epochs) == ("tolerance", undisturbed.epochs)
    np.testing.assert_array_equal(undisturbed.model.W, resumed.model.W)
    assert undisturbed.certificate == resumed.certificate
    assert resumed.early_stopping["best_epoch"] == stopped.early_stopping["best_epoch"]


def test_lost_values_are_told(store, make_stopping, caplog):
    job = make_stopping()
    with pytest.raises(RuntimeError, match="the callback broke"):
        train(store, job, callbacks=[FailAfter(5)])
    (Path(job.output.run_dir) / "history.csv").unlink()
    train(store, job)
    assert "has no test/top_1_accuracy of 4 of the 4 epochs done" in caplog.text


def test_job_on_workers_stops_where_it_does_in_one_process(store, make_stopping, client):
    sections = {
        "cluster": ClusterSection(partitions=3, threads_per_partition=1, checkpoint_s=0.0),
        "early_stopping": dataclasses.replace(STOPPING, patience=5),
    }
    alone = train(store, make_stopping("alone", **sections))
    spread = train(store, make_stopping("spread", **sections), client=client)
    assert (alone.stop_reason, alone.epochs > 10) == ("early_stopping", True)
    assert_same_run(alone, spread)
    job = make_stopping("killed", **sections)
    with pytest.raises(RuntimeError, match="the callback broke"):
        train(store, job, client=client, callbacks=[FailAfter(alone.epochs - 1)])
    assert_same_run(alone, train(store, job, client=client))


def test_callback_stops_a_job(store, make_job):
    undisturbed = train(store, make_job("undisturbed", **SECTIONS))
    job = make_job("stopped", **SECTIONS)
    result = dtopk.train(store, job, callbacks=[StopAfter(4)])
    assert (result.stop_reason, result.epochs, result.resumable) == ("callback", 4, True)
    assert result.early_stopping == {}
    verified = dataclasses.astuple(verify_run(result.run_dir))
    assert verified == pytest.approx(dataclasses.astuple(result.certificate), rel=1e-12)
    resumed = train(store, job)
    assert resumed.resumed_at == (4,)
    np.testing.assert_array_equal(undisturbed.model.W, resumed.model.W)
    assert undisturbed.certificate == resumed.certificate


def test_early_stopping_needs_a_validation_split(make_job):
    with pytest.raises(
        ValueError,
        match=r"^data\.validation must name the split that early_stopping\.metric is taken on, "
        r"got ''\.$",
    ):
        make_job(early_stopping=STOPPING)


@pytest.mark.parametrize("metric", ["accuracy", "top_0_accuracy", "top_accuracy", "val_loss"])
def test_metric_without_meaning_is_refused_with_those_there_are(metric):
    with pytest.raises(
        ValueError,
        match=r"^early_stopping\.metric must be 'top_k_accuracy' with a number k from 1 to "
        rf"n_classes - 1 or 'rank_loss' or 'mean_average_precision', got '{metric}'\.$",
    ):
        EarlyStoppingSection(metric=metric)


@pytest.mark.parametrize("metric", ["top_4_accuracy", "rank_loss"])
def test_metric_that_the_store_does_not_have_is_refused_before_training(
    store, make_stopping, metric
):
    job = make_stopping(early_stopping=EarlyStoppingSection(metric=metric))
    with pytest.raises(
        ValueError,
        match=r"k from 1 to n_classes - 1 = 3, got '\w+'\. Set by early_stopping\.metric of the",
    ):
        train(store, job)
    assert not Path(job.output.run_dir).exists()


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"metric": "top_1_accuracy", "patience": 0}, r"patience must be at least 1, got 0"),
        ({"metric": "top_1_accuracy", "min_delta": -1.0}, r"min_delta must be a finite number, 0"),
        ({"patience": 7}, r"patience must go with early_stopping\.metric, got 7 without"),
        ({"min_delta": 0.1}, r"min_delta must go with early_stopping\.metric, got 0\.1 without"),
    ],
)
def test_improper_values_are_refused(values, message):
    with pytest.raises(ValueError, match=rf"^early_stopping\.{message}"):
        EarlyStoppingSection(**values)


def test_sweep_refuses_early_stopping():
    with pytest.raises(ValueError, match=r"early_stopping\.metric must be left out for a sweep"):
        SweepJob(data=ON_TEST, early_stopping=STOPPING, sweep=SweepSection())


def test_job_file_has_the_section(store, make_stopping):
    result = train(store, make_stopping())
    assert load_job(result.run_dir / "job.toml").early_stopping == STOPPING
