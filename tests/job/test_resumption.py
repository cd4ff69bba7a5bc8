"""Going on with a job's run: after a failure, after a stop, and where it must not."""

import csv
import dataclasses
import errno
import json
import shutil
import signal
from pathlib import Path

import numpy as np
import pytest

from dtopk.engine import Callback
from dtopk.job import (
    ClusterSection,
    DataSection,
    ModelSection,
    OutputSection,
    ResourcesSection,
    SolverSection,
    job_to_toml,
    load_job,
    train,
    training,
)
from dtopk.job.calibration import calibrate_model
from dtopk.job.resumption import check_resumable
from dtopk.job.run_folder import RunFolder
from dtopk.job.verification import verify_run
from dtopk.model import load_model
from dtopk_storage import CheckpointError, RunLock, RunState, open_dual, open_run_state
from tests.small_stores import make_store

pytestmark = pytest.mark.usefixtures("no_figures")

EVERY_EPOCH = ClusterSection(checkpoint_s=0.0)
LONG = SolverSection(tol=1e-6, max_epochs=500, dtype="float64", block_size=8)
"""Some twenty epochs, each of several batches."""


class FailAfter(Callback):
    """Break in an epoch, or at the end."""

    def __init__(self, epoch):
        self._epoch = epoch

    def on_epoch(self, record, W):
        if record.epoch == self._epoch:
            raise RuntimeError("the callback broke")

    def on_end(self, result):
        raise RuntimeError("the callback broke")


class Listen(Callback):
    """Write down where the run goes on, and the epochs it makes."""

    def __init__(self):
        self.resumed_after, self.epochs = None, []

    def on_resume(self, history, saved):
        self.resumed_after = len(history)

    def on_epoch(self, record, W):
        self.epochs.append(record.epoch)


class InterruptAfter(Callback):
    """Press Ctrl-C after an epoch."""

    def __init__(self, epoch):
        self._epoch = epoch

    def on_epoch(self, record, W):
        if record.epoch == self._epoch:
            signal.raise_signal(signal.SIGINT)


class InterruptInFirstEpoch(Callback):
    """Press Ctrl-C while the kernels are compiled."""

    def on_compile(self):
        signal.raise_signal(signal.SIGINT)


@pytest.fixture
def make_long(make_job):
    """Make a job of some twenty epochs that commits after each of them."""

    def make_long(run_dir="run", **sections):
        return make_job(run_dir, **({"solver": LONG, "cluster": EVERY_EPOCH} | sections))

    return make_long


def break_run(store, job, epoch=4):
    with pytest.raises(RuntimeError, match="the callback broke") as caught:
        train(store, job, callbacks=[FailAfter(epoch)])
    return caught.value


def assert_same_run(one, other):
    np.testing.assert_array_equal(one.model.W, other.model.W)
    np.testing.assert_array_equal(one.model.intercept, other.model.intercept)
    assert one.certificate == other.certificate
    assert one.epochs == other.epochs
    n = open_dual(one.run_dir / "dual").n_samples
    duals = [open_dual(result.run_dir / "dual").read(0, n) for result in (one, other)]
    np.testing.assert_array_equal(*duals)


def list_names(folder):
    return sorted(path.name for path in Path(folder).iterdir())


@pytest.mark.parametrize(
    "sections",
    [
        {},
        {"model": ModelSection(loss="topk_hinge_alpha", k=2, C=0.1, fit_intercept=True)},
        {"cluster": ClusterSection(checkpoint_s=0.0, partitions=3)},
    ],
    ids=["softmax", "hinge with intercept", "three partitions"],
)
def test_failed_run_goes_on_to_the_same_bits(store, make_long, sections):
    undisturbed = train(store, make_long("undisturbed", **sections))
    job = make_long("broken", **sections)
    error = break_run(store, job)
    run_dir = Path(job.output.run_dir)
    (note,) = error.__notes__
    assert note == f"The run is kept up to epoch 3; to go on: dtopk train --resume {run_dir}"
    assert "model.npz" not in list_names(run_dir)
    listener = Listen()
    resumed = train(store, job, callbacks=[listener])
    assert (listener.resumed_after, listener.epochs[0]) == (3, 4)
    assert resumed.resumed_at == (3,)
    assert_same_run(undisturbed, resumed)
    assert verify_run(run_dir).certified


def test_run_is_taken_up_again_as_often_as_it_breaks(store, make_long):
    undisturbed = train(store, make_long("undisturbed"))
    job = make_long("broken")
    for epoch in (3, 5, 6):
        break_run(store, job, epoch)
    resumed = train(store, job)
    assert resumed.resumed_at == (2, 4, 5)
    assert_same_run(undisturbed, resumed)
    written = json.loads((resumed.run_dir / "result.json").read_text())
    assert (written["resumed_at"], written["resumable"]) == ([2, 4, 5], False)


def test_streamed_run_goes_on_to_the_same_bits(make_job, tmp_path):
    """Its duals are in the state themselves."""
    names = [f"class {number}" for number in range(40)]
    store = make_store(tmp_path / "wide.zarr", class_names=names, n_train=4000, chunk_rows=64)
    sections = {
        "resources": ResourcesSection(memory_limit="300KB"),
        "solver": SolverSection(tol=1e-4),
    }
    undisturbed = train(store, make_job("undisturbed", **sections))
    job = make_job("broken", **sections)
    break_run(store, job)
    assert "state" in list_names(job.output.run_dir)
    assert_same_run(undisturbed, train(store, job))


def test_run_that_reached_its_tolerance_leaves_no_state(store, make_long):
    result = train(store, make_long())
    assert not result.resumable
    assert "state" not in list_names(result.run_dir)
    with pytest.raises(ValueError, match=r"run folder must be new or empty, got .* has ended"):
        train(store, make_long())
    with pytest.raises(ValueError, match=r"whose run has ended\. To train on from its duals, take"):
        check_resumable(result.run_dir)


def test_run_out_of_epochs_goes_on_with_more_of_them(store, make_long):
    undisturbed = train(store, make_long("undisturbed"))
    short = dataclasses.replace(LONG, max_epochs=5)
    stopped = train(store, make_long("stopped", solver=short))
    assert (stopped.stop_reason, stopped.resumable) == ("max_epochs", True)
    assert not verify_run(stopped.run_dir).certified
    with pytest.raises(
        ValueError, match=r"solver\.max_epochs must be above the 5 epochs that the run in"
    ):
        train(store, make_long("stopped", solver=short))
    resumed = train(store, make_long("stopped"))
    assert resumed.resumed_at == (5,)
    assert_same_run(undisturbed, resumed)
    assert "max_epochs = 500" in (resumed.run_dir / "job.toml").read_text()
    assert verify_run(resumed.run_dir).certified


def calibrate(folder, store):
    """Do what `dtopk calibrate` does, with something for a figure."""
    result = calibrate_model(load_model(folder.path), store, "test")
    result.model.save(folder.model)
    folder.reliability.write_bytes(b"png")
    return result.model.calibration


def test_run_that_goes_on_drops_the_calibration_of_other_weights(store, make_long, caplog):
    few = dataclasses.replace(LONG, max_epochs=3)
    folder = RunFolder(path=train(store, make_long(solver=few)).run_dir)
    calibrate(folder, store)
    result = train(store, make_long())
    assert result.model.calibration is None
    assert load_model(folder.path).calibration is None
    assert not folder.reliability.exists()
    assert f"The calibration of the model in {str(folder.path)!r} is dropped" in caplog.text


def test_run_that_goes_on_keeps_the_calibration_of_its_weights(store, make_long, caplog):
    """No epoch is left to do for a looser tolerance: the model is written anew as it was."""
    few = dataclasses.replace(LONG, max_epochs=3)
    folder = RunFolder(path=train(store, make_long(solver=few)).run_dir)
    before = calibrate(folder, store)
    result = train(store, make_long(solver=dataclasses.replace(few, tol=0.9)))
    assert (result.resumed_at, result.epochs) == ((3,), 3)
    for model in (result.model, load_model(folder.path)):
        np.testing.assert_array_equal(model.calibration.conformal_scores, before.conformal_scores)
    assert folder.reliability.is_file()
    assert "calibration" not in caplog.text


def test_run_killed_while_it_writes_what_it_leaves_does_so_again(store, make_long, monkeypatch):
    """Its epochs have run out: none is left but to certify and write."""

    def fail(*arguments):
        raise RuntimeError("the evaluation broke")

    job = make_long("stopped", solver=dataclasses.replace(LONG, max_epochs=5))
    with monkeypatch.context() as broken:
        broken.setattr(training, "evaluate_split", fail)
        with pytest.raises(RuntimeError, match="the evaluation broke"):
            train(store, job)
    undisturbed = train(
        store, make_long("undisturbed", solver=dataclasses.replace(LONG, max_epochs=5))
    )
    result = train(store, job)
    assert (result.resumed_at, result.epochs) == ((5,), 5)
    assert_same_run(undisturbed, result)
    assert result.topk_accuracy == undisturbed.topk_accuracy


def test_failure_on_the_way_leaves_what_an_earlier_part_has_reached(store, make_long):
    stopped = train(store, make_long(solver=dataclasses.replace(LONG, max_epochs=3)))
    break_run(store, make_long(), epoch=6)
    assert verify_run(stopped.run_dir) == pytest.approx(stopped.certificate)
    np.testing.assert_array_equal(load_model(stopped.run_dir).W, stopped.model.W)
    assert check_resumable(stopped.run_dir).epochs == 5


def test_interrupted_run_goes_on_by_the_same_job(store, make_long):
    undisturbed = train(store, make_long("undisturbed"))
    stopped = train(store, make_long("stopped"), callbacks=[InterruptAfter(4)])
    assert (stopped.stop_reason, stopped.resumable) == ("interrupted", True)
    assert {"model.npz", "dual", "state"} <= set(list_names(stopped.run_dir))
    resumed = train(store, make_long("stopped"))
    assert_same_run(undisturbed, resumed)


@pytest.mark.parametrize("sections", [{}, {"cluster": ClusterSection(partitions=3)}])
def test_run_stopped_before_its_first_commit_starts_again(store, make_long, sections):
    """A batch system warns whenever a job's time ends, be it in the first epoch."""
    undisturbed = train(store, make_long("undisturbed", **sections))
    job = make_long("stopped", **sections)
    for _ in range(2):
        stopped = train(store, job, callbacks=[InterruptInFirstEpoch()])
        assert (stopped.epochs, stopped.stop_reason, stopped.resumable) == (1, "interrupted", True)
        assert "state" not in list_names(stopped.run_dir)
        assert not stopped.certificate.certified
        assert check_resumable(stopped.run_dir) is None
    again = train(store, job)
    assert (again.resumed_at, again.resumable) == ((), False)
    assert_same_run(undisturbed, again)


def test_run_whose_state_was_deleted_is_not_trained_over(store, make_long):
    job = make_long(solver=dataclasses.replace(LONG, max_epochs=3))
    stopped = train(store, job)
    interrupted = train(store, make_long("interrupted"), callbacks=[InterruptAfter(4)])
    for result in (stopped, interrupted):
        assert (result.resumable, result.committed) == (True, True)
        shutil.rmtree(result.run_dir / "state")
        with pytest.raises(ValueError, match="whose run has ended"):
            check_resumable(result.run_dir)
    with pytest.raises(ValueError, match="holds a run that has ended"):
        train(store, job)


def test_run_certified_before_its_first_commit_has_ended(store, make_long):
    job = make_long(solver=dataclasses.replace(LONG, tol=0.999))
    result = train(store, job, callbacks=[InterruptInFirstEpoch()])
    assert (result.certificate.certified, result.resumable) == (True, False)
    with pytest.raises(ValueError, match="holds a run that has ended"):
        train(store, job)


def test_run_out_of_time_goes_on_by_the_same_job(store, make_long, monkeypatch):
    undisturbed = train(store, make_long("undisturbed"))
    job = make_long("stopped", solver=dataclasses.replace(LONG, time_limit_s=1e-9))
    assert not train(store, job).resumable  # no epoch was whole
    shutil.rmtree(job.output.run_dir)
    break_run(store, make_long("stopped"))
    stopped = train(store, job)
    assert (stopped.stop_reason, stopped.resumable) == ("time_limit", True)
    longer = dataclasses.replace(LONG, time_limit_s=3600.0)
    assert_same_run(undisturbed, train(store, make_long("stopped", solver=longer)))


def test_run_killed_before_its_first_commit_starts_again(store, make_long, caplog):
    """Also by another job: there is nothing to go on from."""
    undisturbed = train(store, make_long("undisturbed", model=ModelSection(C=0.2)))
    folder = RunFolder(path=Path(make_long("killed").output.run_dir))
    folder.path.mkdir(parents=True)
    folder.record.write_bytes((undisturbed.run_dir / "run.json").read_bytes())
    record = dataclasses.replace(folder.read_record(), state=str(folder.state))
    folder.claim(record, job_to_toml(make_long("killed")))
    open_run_state(folder.state).write_array("1-abc", "W/0", np.zeros(3))
    with pytest.raises(ValueError, match="whose run was killed before its first commit"):
        check_resumable(folder.path)
    with caplog.at_level("INFO", logger="dtopk.job"):
        again = train(store, make_long("killed", model=ModelSection(C=0.2)))
    assert again.resumed_at == ()
    assert "has no commit: it starts again" in caplog.text
    assert_same_run(undisturbed, again)


def test_failure_before_the_first_commit_leaves_no_run_folder(store, make_job):
    job = make_job()
    error = break_run(store, job, epoch=2)
    assert not hasattr(error, "__notes__")
    assert not Path(job.output.run_dir).exists()


def test_failure_at_the_end_goes_on_from_the_last_commit(store, make_long):
    job = make_long()
    break_run(store, job, epoch=0)
    result = train(store, job)
    assert result.certificate.certified
    assert len(result.resumed_at) == 1


def test_second_interrupt_leaves_what_is_committed(store, make_long):
    job = make_long()
    with pytest.raises(KeyboardInterrupt) as caught:
        train(store, job, callbacks=[InterruptAfter(4), InterruptAfter(4)])
    assert "to go on: dtopk train --resume" in caught.value.__notes__[0]
    assert train(store, job).resumed_at == (3,)


@pytest.mark.parametrize(
    ("sections", "message"),
    [
        ({"model": ModelSection(C=0.2)}, r"got model\.C = 0\.2 \(was 0\.1\)\. What may differ"),
        (
            {"solver": dataclasses.replace(LONG, seed=7, dtype="float32")},
            r"got solver\.dtype = 'float32' \(was 'float64'\), solver\.seed = 7 \(was 0\)",
        ),
        ({"data": DataSection(center=True)}, r"got data\.center = True \(was False\)"),
        ({"cluster": ClusterSection(partitions=2)}, r"cluster\.partitions = 2 \(was 1\)"),
        (
            {"cluster": ClusterSection(threads_per_partition=77)},
            r"cluster\.threads_per_partition = 77 \(was \d+\)",
        ),
        (
            {"solver": dataclasses.replace(LONG, max_epochs=2)},
            r"solver\.max_epochs must be above the 3 epochs that the run in .* got 2",
        ),
    ],
)
def test_job_of_another_run_is_refused(store, make_long, sections, message):
    break_run(store, make_long())
    before = (Path(make_long().output.run_dir) / "job.toml").read_text()
    with pytest.raises(ValueError, match=message):
        train(store, make_long(**sections))
    assert (Path(make_long().output.run_dir) / "job.toml").read_text() == before
    assert train(store, make_long()).resumed_at == (3,)


def test_run_of_another_version_is_refused(store, make_long):
    """Its state may have other numbers in it, and other bits would come of them."""
    break_run(store, make_long())
    folder = RunFolder(path=Path(make_long().output.run_dir))
    folder.write_record(dataclasses.replace(folder.read_record(), version="0.0.7"))
    with pytest.raises(ValueError, match=r"dtopk must be 0\.0\.7 to go on with the run in .* got"):
        train(store, make_long())


def test_what_may_differ_is_taken_from_the_new_job(store, make_long, tmp_path):
    break_run(store, make_long())
    moved = Path(shutil.move(store.path, tmp_path / "moved.zarr"))
    job = make_long(
        data=DataSection(evaluate=("train",)),
        solver=dataclasses.replace(LONG, tol=1e-4),
        resources=ResourcesSection(threads=1, memory_limit="1GB"),
        cluster=ClusterSection(checkpoint_s=3600.0, partitions=1, workers=5),
        output=OutputSection(run_dir=make_long().output.run_dir, save_dual=False),
    )
    result = train(moved, job)
    assert result.resumed_at == (3,)
    assert result.certificate.tol == 1e-4
    assert list(result.topk_accuracy) == ["train"]
    assert "dual" not in list_names(result.run_dir)


def test_another_store_in_the_place_of_the_first_is_refused(store, make_long):
    break_run(store, make_long())
    shutil.rmtree(store.path)
    other = make_store(Path(store.path), class_names=("a", "b", "c", "d"))
    with pytest.raises(ValueError, match=r"data\.store must be the store that the run in"):
        train(other, make_long())


def test_resolved_job_of_the_folder_goes_on(store, make_long):
    """Its partitions are a number, which was left to be chosen."""
    job = make_long(cluster=ClusterSection(checkpoint_s=0.0))
    break_run(store, job)
    own = load_job(Path(job.output.run_dir) / "job.toml")
    assert own.cluster.partitions == 1
    assert train(own.data.store, own).resumed_at == (3,)


def test_run_takes_the_threads_that_it_began_with(store, make_long, monkeypatch):
    told = []

    def fit(rows, loss, options, **arguments):
        told.append(options.threads)
        raise RuntimeError("stop here")

    break_run(store, make_long(resources=ResourcesSection(threads=1)))
    monkeypatch.setattr(training, "fit", fit)
    with pytest.raises(RuntimeError, match="stop here"):
        train(store, make_long())
    assert told == [1]


def test_threads_that_the_machine_has_not_are_told(store, make_long, caplog):
    break_run(store, make_long())
    folder = RunFolder(path=Path(make_long().output.run_dir))
    folder.write_record(dataclasses.replace(folder.read_record(), threads=100_000))
    train(store, make_long())
    assert "The run began with 100000 threads, and this machine has " in caplog.text


def test_folder_serves_one_run_at_a_time(store, make_long):
    class TrainAgain(Callback):
        def on_epoch(self, record, W):
            if record.epoch == 3:
                with pytest.raises(ValueError, match="run folder must have one run at a time"):
                    train(store, make_long())

    result = train(store, make_long(), callbacks=[TrainAgain()])
    assert result.certificate.certified
    assert "lock" not in list_names(result.run_dir)


def test_run_whose_lock_is_gone_ends_before_it_commits(store, make_long):
    class Unlock(Callback):
        def on_epoch(self, record, W):
            if record.epoch == 3:
                (Path(make_long().output.run_dir) / "lock").unlink()

    with pytest.raises(CheckpointError, match="whose file 'lock' is gone or another run's"):
        train(store, make_long(), callbacks=[Unlock()])
    assert check_resumable(make_long().output.run_dir).epochs == 2


def test_locked_folder_is_refused_before_anything_is_written(store, make_long):
    run_dir = Path(make_long().output.run_dir)
    with RunLock(run_dir), pytest.raises(ValueError, match="in use by process"):
        train(store, make_long())
    assert list_names(run_dir) == []


def test_full_disk_at_a_commit_goes_on_when_there_is_room(store, make_long, monkeypatch):
    undisturbed = train(store, make_long("undisturbed"))
    job = make_long("broken")
    commit = RunState.commit

    def commit_until_full(self, version, manifest):
        if manifest["progress"]["epoch"] == 5:
            raise CheckpointError("no space is left") from OSError(errno.ENOSPC, "full")
        commit(self, version, manifest)

    with monkeypatch.context() as full:
        full.setattr(RunState, "commit", commit_until_full)
        with pytest.raises(CheckpointError, match="no space is left") as caught:
            train(store, job)
    assert "kept up to epoch 4" in caught.value.__notes__[0]
    assert_same_run(undisturbed, train(store, job))


def test_full_disk_at_the_model_goes_on_when_there_is_room(store, make_long, monkeypatch):
    def fail(*args, **kwargs):
        raise OSError(errno.ENOSPC, "No space left on device")

    undisturbed = train(store, make_long("undisturbed"))
    job = make_long("broken")
    with monkeypatch.context() as full:
        full.setattr(np.lib.format, "write_array", fail)
        with pytest.raises(OSError, match=r"The disk is full: cannot write: '.*model\.npz'"):
            train(store, job)
    again = train(store, job)
    assert again.resumed_at == (undisturbed.epochs - 1,)
    assert_same_run(undisturbed, again)


def test_validation_accuracies_of_all_parts_are_in_the_history(store, make_long):
    data = DataSection(validation="test")
    undisturbed = train(store, make_long("undisturbed", data=data))
    job = make_long("broken", data=data)
    break_run(store, job)
    tables = []
    for result in (undisturbed, train(store, job)):
        with (result.run_dir / "history.csv").open(newline="") as file:
            rows = list(csv.DictReader(file))
        assert [int(row["epoch"]) for row in rows] == list(range(1, result.epochs + 1))
        tables.append([(row["relative_gap"], row["test/top_1_accuracy"]) for row in rows])
    assert tables[0] == tables[1]


def test_state_can_be_elsewhere(store, make_long, tmp_path):
    """Two runs that share the place have a state of their own each."""
    places = {}
    for name in ("one", "two"):
        output = OutputSection(
            run_dir=str(tmp_path / "runs" / name), state_url=str(tmp_path / "states")
        )
        places[name] = make_long(output=output)
        break_run(store, places[name], epoch={"one": 3, "two": 5}[name])
        assert "state" not in list_names(output.run_dir)
    assert [name[:4] for name in list_names(tmp_path / "states")] == ["one-", "two-"]
    results = {name: train(store, job) for name, job in places.items()}
    assert (results["one"].resumed_at, results["two"].resumed_at) == ((2,), (4,))
    assert_same_run(results["one"], results["two"])
    assert list_names(tmp_path / "states") == []


def test_state_can_be_in_an_object_store(store, make_long):
    output = OutputSection(run_dir=make_long().output.run_dir, state_url="memory://states/a")
    job = make_long(output=output)
    break_run(store, job)
    assert train(store, job).resumed_at == (3,)


def test_failure_before_the_first_commit_leaves_nothing_elsewhere(store, make_job, tmp_path):
    output = OutputSection(run_dir=str(tmp_path / "run"), state_url=str(tmp_path / "states"))
    break_run(store, make_job(output=output), epoch=2)
    assert not (tmp_path / "run").exists()
    assert not (tmp_path / "states").exists() or list_names(tmp_path / "states") == []


def test_warm_start_from_a_run_under_way_points_to_going_on(store, make_long):
    job = make_long("broken")
    break_run(store, job)
    warm = make_long("warm", solver=SolverSection(warm_start=job.output.run_dir))
    with pytest.raises(
        ValueError, match=r"run to start from must have ended, .*: dtopk train --resume .*broken"
    ):
        train(store, warm)


def test_warm_start_takes_the_duals_of_a_run_that_stopped(store, make_long):
    stopped = train(store, make_long("stopped", solver=dataclasses.replace(LONG, max_epochs=8)))
    solver = dataclasses.replace(LONG, warm_start=str(stopped.run_dir))
    warm = train(store, make_long("warm", solver=solver))
    assert warm.epochs < train(store, make_long("cold")).epochs


def test_run_that_started_warm_goes_on_without_its_start(store, make_long):
    first = train(store, make_long("first"))
    job = make_long(solver=dataclasses.replace(LONG, tol=1e-9, warm_start=str(first.run_dir)))
    break_run(store, job, epoch=3)
    shutil.rmtree(first.run_dir)
    assert train(store, job).resumed_at == (2,)


def test_folder_without_a_run_cannot_be_gone_on_in(tmp_path):
    with pytest.raises(ValueError, match=r"must hold a run with a state, got .* where there is n"):
        check_resumable(tmp_path)


def test_damaged_state_is_named(store, make_long):
    job = make_long()
    break_run(store, job)
    (Path(job.output.run_dir) / "state" / "state.json").write_text("{}")
    with pytest.raises(CheckpointError, match=r"state\.json' must be JSON with a checksum"):
        train(store, job)


@pytest.mark.parametrize(
    ("output", "message"),
    [
        ({"run_dir": "sftp://host/run"}, r"output\.run_dir must be a path or an address such as"),
        (
            {"run_dir": "s3://k:secret@bucket/run"},
            r"run_dir must be an address without cred",
        ),
        ({"state_url": "ftp://host/states"}, r"output\.state_url: state of a run must be a path"),
    ],
)
def test_places_that_cannot_hold_a_run_are_refused(output, message):
    with pytest.raises(ValueError, match=message):
        OutputSection(**output)


def test_places_are_paths_or_addresses(tmp_path):
    text = "version = 1\n[data]\nstore = 'x.zarr'\n[output]\nstate_url = {}\n"
    for given, expected in (
        ("'states'", str(tmp_path / "states")),
        ("'memory://states'", "memory://states"),
    ):
        (tmp_path / "job.toml").write_text(text.format(given))
        assert load_job(tmp_path / "job.toml").output.state_url == expected


def test_run_whose_last_result_finds_no_room_is_ended_by_the_same_command(
    store, make_long, monkeypatch
):
    """The first result says that accuracy and figures are to come."""
    job = make_long(data=DataSection(evaluate=("test",)))
    write = RunFolder.write_result

    def write_if_not_complete(folder, fields):
        if fields.get("complete", True):
            raise OSError(errno.ENOSPC, "no space left", str(folder.result))
        write(folder, fields)

    with monkeypatch.context() as patch:
        patch.setattr(RunFolder, "write_result", write_if_not_complete)
        cut = train(store, job)
    folder = RunFolder(path=cut.run_dir)
    assert json.loads(folder.result.read_text())["complete"] is False
    assert not folder.has_ended()
    again = train(store, job)
    assert_same_run(again, cut)
    assert "complete" not in json.loads(folder.result.read_text())
    assert again.topk_accuracy
    assert folder.has_ended()
