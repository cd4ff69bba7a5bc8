"""A run that goes on from its state ends with the bits of one that was never stopped."""

import os
import signal

import numpy as np
import pytest

from dtopk import testing
from dtopk.engine import ArrayRows, Callback, FitOptions, StoreRows, fit
from dtopk.losses import make_loss
from dtopk_storage import (
    CheckpointError,
    RunState,
    create_store,
    open_dual,
    open_run_state,
    open_store,
)

N, D, M, CHUNK = 400, 8, 5, 20
HINGE = make_loss("topk_hinge_alpha", k=2, gamma=0.5)
SOFTMAX = make_loss("softmax")
STREAMED = (D + 1) * M * (4 * 4 + 2 * 8) + 6 * CHUNK * ((D + 1) * 4 + M * 4)
"""A limit of memory that holds neither features nor duals."""


class Killed(BaseException):
    """Ends a run at once, as a kill does."""


class Kill(Callback):
    def __init__(self, epoch):
        self.epoch = epoch

    def on_epoch(self, record, W):
        if record.epoch == self.epoch:
            raise Killed


class Listen(Callback):
    def __init__(self):
        self.epochs, self.resumed = [], []

    def on_resume(self, history, saved):
        self.resumed.append(([record.epoch for record in history], saved))

    def on_epoch(self, record, W):
        self.epochs.append(record.epoch)


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    X, y = testing.make_features(N, D, M, seed=5)
    path = tmp_path_factory.mktemp("rows") / "s"
    with create_store(path, n_features=D, class_names=list("abcde"), chunk_rows=CHUNK) as writer:
        writer.append(X, y)
    return open_store(path)


def train(store, state, *, loss=HINGE, dual_path=None, callbacks=(), **options):
    options = {"C": 3.0, "tol": 1e-5, "checkpoint_s": 0, "seed": 1, "block_size": 16, **options}
    return fit(
        StoreRows(store, "train"), loss, FitOptions(**options), callbacks=callbacks,
        dual_path=dual_path, state=state,
    )  # fmt: skip


def assert_same(one, other, folder):
    np.testing.assert_array_equal(one.W, other.W)
    np.testing.assert_array_equal(one.intercept, other.intercept)
    assert one.certificate == other.certificate
    assert [r.relative_gap for r in one.history] == [r.relative_gap for r in other.history]
    duals = [open_dual(folder / name).read(0, N) for name in ("one", "other")]
    np.testing.assert_array_equal(*duals)


CASES = {
    "plain": {"acceleration": "off"},
    "accelerated": {"acceleration": "auto"},
    "softmax": {"loss": SOFTMAX, "constant": 1.0},
    "double": {"dtype": "float64"},
    "three parts": {"partitions": 3, "rounds_per_epoch": 2},
    "three accelerated parts": {"partitions": 3, "acceleration": "auto"},
    "streamed": {"memory_limit_bytes": STREAMED, "acceleration": "auto"},
    "streamed in parts": {"memory_limit_bytes": STREAMED, "partitions": 2},
}
cases = pytest.mark.parametrize("options", CASES.values(), ids=CASES.keys())


@cases
@pytest.mark.parametrize("epoch", [2, 7])
def test_killed_run_goes_on_to_the_same_bits(store, tmp_path, options, epoch):
    undisturbed = train(store, None, dual_path=tmp_path / "one", **options)
    assert undisturbed.epochs > epoch + 1
    state = open_run_state(tmp_path / "state")
    with pytest.raises(Killed):
        train(store, state, callbacks=[Kill(epoch)], **options)
    state.delete_leftovers()
    listener = Listen()
    resumed = train(store, state, dual_path=tmp_path / "other", callbacks=[listener], **options)
    ((before, _),) = listener.resumed
    assert before == list(range(1, epoch))
    assert listener.epochs == list(range(epoch, undisturbed.epochs + 1))
    assert_same(undisturbed, resumed, tmp_path)


@cases
def test_run_out_of_epochs_goes_on_to_the_same_bits(store, tmp_path, options):
    """Where it stops, it takes a certificate that one with more epochs would not."""
    undisturbed = train(store, None, dual_path=tmp_path / "one", **options)
    state = open_run_state(tmp_path / "state")
    for max_epochs in (1, 4):
        stopped = train(store, state, max_epochs=max_epochs, **options)
        assert (stopped.stop_reason, stopped.epochs) == ("max_epochs", max_epochs)
        state.delete_leftovers()
    resumed = train(store, state, dual_path=tmp_path / "other", **options)
    np.testing.assert_array_equal(resumed.W, undisturbed.W)
    assert resumed.certificate == undisturbed.certificate
    assert resumed.epochs == undisturbed.epochs


@pytest.mark.parametrize("acceleration", ["off", "auto"])
def test_run_killed_while_it_stops_stops_at_the_same_bits(
    store, tmp_path, monkeypatch, acceleration
):
    """Killed after the last commit, before there is a result: nothing is left but to certify."""
    stopped = train(store, None, max_epochs=6, acceleration=acceleration)
    state = open_run_state(tmp_path / "state")
    with pytest.raises(Killed):
        train(store, state, max_epochs=6, acceleration=acceleration, callbacks=[Kill(6)])
    state.delete_leftovers()
    again = train(store, state, max_epochs=6, acceleration=acceleration)
    assert again.epochs == 6
    np.testing.assert_array_equal(again.W, stopped.W)
    assert again.certificate == stopped.certificate


def test_interrupted_epoch_is_not_committed(store, tmp_path):
    """What was cut short no undisturbed run has: the run goes on from the epoch before it."""

    class Interrupt(Callback):
        def on_rows(self, rows):
            if listener.epochs == [1, 2]:
                os.kill(os.getpid(), signal.SIGINT)

    listener = Listen()
    undisturbed = train(store, None, dual_path=tmp_path / "one", block_size=32)
    state = open_run_state(tmp_path / "state")
    previous = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        stopped = train(store, state, callbacks=[listener, Interrupt()], block_size=32)
    finally:
        signal.signal(signal.SIGINT, previous)
    assert stopped.stop_reason == "interrupted"
    assert state.load()["progress"]["epoch"] <= stopped.epochs
    state.delete_leftovers()
    resumed = train(store, state, dual_path=tmp_path / "other", block_size=32)
    assert_same(undisturbed, resumed, tmp_path)


def test_time_limit_counts_anew_where_a_run_goes_on(store, tmp_path):
    """The state says that an hour was spent; with a limit of a minute the run still goes on."""
    state = open_run_state(tmp_path / "state")
    train(store, state, max_epochs=2)
    manifest = state.load()
    manifest["progress"]["seconds"] = 3600.0
    version = manifest.pop("version")
    del manifest["format"]
    state.commit(version, manifest)
    result = train(store, state, time_limit_s=60.0)
    assert result.stop_reason == "tolerance"
    assert result.seconds > 3600


def test_features_that_no_longer_fit_keep_the_cut(store, tmp_path):
    """A run in parts cuts rows in memory otherwise than streamed ones; its bits depend on it."""
    options = {"partitions": 2, "tol": 1e-4}
    undisturbed = train(store, None, dual_path=tmp_path / "one", **options)
    state = open_run_state(tmp_path / "state")
    with pytest.raises(Killed):
        train(store, state, callbacks=[Kill(3)], **options)
    state.delete_leftovers()
    resumed = train(
        store, state, dual_path=tmp_path / "other", memory_limit_bytes=STREAMED, **options
    )
    assert_same(undisturbed, resumed, tmp_path)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"partitions": 2}, r"n_blocks of the state in .* must be \d+, as in this run, got 20"),
        ({"constant": 1.0}, r"n_features of the state in .* must be 9, as in this run, got 8"),
    ],
)
def test_state_of_another_run_is_refused(store, tmp_path, changed, message):
    state = open_run_state(tmp_path / "state")
    train(store, state, max_epochs=2)
    with pytest.raises(CheckpointError, match=message):
        train(store, state, **changed)


@pytest.mark.parametrize("missing", ["ceiling", "outer"])
def test_state_of_another_version_is_refused(store, tmp_path, missing):
    state = open_run_state(tmp_path / "state")
    train(store, state, max_epochs=1)
    manifest = state.load()
    del manifest["progress"][missing]
    state.commit(
        manifest["version"], {key: manifest[key] for key in ("progress", "layout", "saved")}
    )
    with pytest.raises(CheckpointError, match=f"must have '{missing}': another version of dtopk"):
        train(store, state, max_epochs=2)


def test_state_is_committed_no_more_often_than_asked(store, tmp_path, monkeypatch):
    commits = []
    monkeypatch.setattr(RunState, "commit", lambda self, *arguments: commits.append(arguments))
    train(store, open_run_state(tmp_path / "state"), checkpoint_s=3600.0)
    assert commits == []


def test_rows_in_memory_go_on_too(tmp_path):
    X, y = testing.make_features(N, D, M, seed=5)
    rows, options = ArrayRows(X, y, M), FitOptions(tol=1e-5, checkpoint_s=0)
    undisturbed = fit(rows, SOFTMAX, options)
    state = open_run_state(tmp_path / "state")
    with pytest.raises(Killed):
        fit(rows, SOFTMAX, options, callbacks=[Kill(3)], state=state)
    resumed = fit(rows, SOFTMAX, options, state=state)
    np.testing.assert_array_equal(resumed.W, undisturbed.W)
