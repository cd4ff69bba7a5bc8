"""When training stops, what it says meanwhile, and what is kept."""

import os
import signal

import numpy as np
import pytest

from dtopk import testing
from dtopk.engine import ArrayRows, Callback, FitOptions, StoreRows, fit
from dtopk.losses import make_loss
from dtopk_storage import create_store, open_dual, open_store

N, D, M = 6000, 8, 5
LOSS = make_loss("topk_hinge_alpha", k=2)


class Recorder(Callback):
    """Writes down all calls."""

    def __init__(self):
        self.calls = []

    def on_start(self, info):
        self.calls.append(("start", info))

    def on_rows(self, rows):
        self.calls.append(("rows", rows))

    def on_epoch(self, record, W):
        self.calls.append(("epoch", record, W.shape))

    def on_end(self, result):
        self.calls.append(("end", result))


class Interrupter(Callback):
    """Sends Ctrl-C, as often as asked, once so many rows of an epoch are done."""

    def __init__(self, *, epoch=0, rows=1, times=1, number=signal.SIGINT):
        self.epoch, self.rows, self.times, self.number = epoch, rows, times, number
        self.done = 0

    def on_epoch(self, record, W):
        self.done = record.epoch

    def on_rows(self, rows):
        if self.done == self.epoch and rows >= self.rows and self.times:
            for _ in range(self.times):
                os.kill(os.getpid(), self.number)
            self.times = 0


@pytest.fixture(scope="module")
def data():
    return testing.make_features(N, D, M, seed=11)


def train(data, *, callbacks=(), dual_path=None, **options):
    X, y = data
    fit_options = FitOptions(**{"block_size": 256, **options})
    return fit(ArrayRows(X, y, M), LOSS, fit_options, callbacks=callbacks, dual_path=dual_path)


def certified_again(data, result, dual_path, C=1.0):
    X, y = data
    costs = np.full(N, C)
    dual = open_dual(dual_path).read(0, N).astype(float)
    LOSS.make_feasible(dual, y, costs)
    return (
        testing.primal_value(LOSS, X, y, costs, result.W),
        testing.dual_value(LOSS, X, y, costs, dual),
    )


def test_callbacks_are_called_in_order_with_all_rows(data):
    one, two = Recorder(), Recorder()
    result = train(data, callbacks=[one, two], tol=1e-9, max_epochs=3)
    kinds = [call[0] for call in one.calls]
    epoch = ["rows", "rows", "epoch"]
    assert kinds == ["start", *epoch, *epoch, *epoch, "end"]
    assert [call[1] for call in one.calls if call[0] == "rows"][1::2] == [N] * 3
    first_reports = [call[1] for call in one.calls if call[0] == "rows"][::2]
    assert all(4096 <= rows < 4096 + 256 for rows in first_reports)
    assert [call[1].epoch for call in one.calls if call[0] == "epoch"] == [1, 2, 3]
    assert one.calls[-1][1] is result
    assert [call[0] for call in two.calls] == kinds
    info = one.calls[0][1]
    assert (info.n_samples, info.n_features, info.n_classes) == (N, D, M)
    assert (info.loss_name, info.solver, info.max_epochs) == ("topk_hinge_alpha", "sdca", 3)
    assert info.features_in_memory
    assert info.duals_in_memory


def test_history_is_what_the_callbacks_were_told(data):
    recorder = Recorder()
    result = train(data, callbacks=[recorder], tol=1e-9, max_epochs=3)
    assert list(result.history) == [call[1] for call in recorder.calls if call[0] == "epoch"]
    assert result.epochs == len(result.history) == 3
    seconds = [record.seconds for record in result.history]
    assert seconds == sorted(seconds)
    assert result.seconds >= seconds[-1]
    assert result.history[-1].exact
    assert result.history[-1].primal == result.certificate.primal


def test_training_stops_at_the_tolerance(data):
    result = train(data, tol=1e-2)
    assert result.stop_reason == "tolerance"
    assert result.certificate.certified
    assert result.certificate.relative_gap <= 1e-2
    assert result.certificate.tol == 1e-2


def test_training_stops_at_max_epochs_with_an_honest_certificate(data, tmp_path):
    result = train(data, tol=1e-12, dtype="float64", max_epochs=1, dual_path=tmp_path / "dual")
    assert result.stop_reason == "max_epochs"
    assert not result.certificate.certified
    primal, dual = certified_again(data, result, tmp_path / "dual")
    assert result.certificate.primal == pytest.approx(primal, rel=1e-10)
    assert result.certificate.dual_value == pytest.approx(dual, rel=1e-10)


def test_training_stops_at_the_time_limit_with_an_honest_certificate(data, tmp_path):
    """The limit is over before the first block is done; that block is kept."""
    result = train(data, tol=1e-12, time_limit_s=1e-9, dual_path=tmp_path / "dual")
    assert result.stop_reason == "time_limit"
    assert result.epochs == 1
    dual = open_dual(tmp_path / "dual").read(0, N)
    assert 0 < np.count_nonzero(dual.any(axis=1)) <= 256
    primal, dual_value = certified_again(data, result, tmp_path / "dual")
    assert result.certificate.primal == pytest.approx(primal, rel=1e-6)
    assert result.certificate.dual_value == pytest.approx(dual_value, rel=1e-6)


@pytest.mark.parametrize("epoch", [0, 2])
def test_an_interrupt_keeps_a_certified_state(data, tmp_path, epoch):
    handler = signal.getsignal(signal.SIGINT)
    recorder = Recorder()
    result = train(
        data,
        tol=1e-12,
        callbacks=[Interrupter(epoch=epoch), recorder],
        dual_path=tmp_path / "dual",
    )
    assert result.stop_reason == "interrupted"
    assert result.epochs == epoch + 1
    assert recorder.calls[-1] == ("end", result)
    # The block in work was the last one.
    reports = [call[1] for call in recorder.calls if call[0] == "rows"]
    assert reports[-1] < N
    primal, dual = certified_again(data, result, tmp_path / "dual")
    assert result.certificate.primal == pytest.approx(primal, rel=1e-6)
    assert result.certificate.dual_value == pytest.approx(dual, rel=1e-6)
    assert signal.getsignal(signal.SIGINT) is handler


def test_an_interrupt_keeps_what_a_streamed_run_has_reached(data, tmp_path):
    X, y = data
    with create_store(
        tmp_path / "s", n_features=D, class_names=list("abcde"), chunk_rows=300
    ) as writer:
        writer.append(X, y)
    working = D * M * (4 * 4 + 2 * 8) + 6 * 300 * (D * 4 + M * 4)
    result = fit(
        StoreRows(open_store(tmp_path / "s"), "train"),
        LOSS,
        FitOptions(tol=1e-12, memory_limit_bytes=working),
        callbacks=[Interrupter(epoch=1)],
        dual_path=tmp_path / "dual",
    )
    assert result.stop_reason == "interrupted"
    primal, dual = certified_again(data, result, tmp_path / "dual")
    assert result.certificate.primal == pytest.approx(primal, rel=1e-6)
    assert result.certificate.dual_value == pytest.approx(dual, rel=1e-6)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1])
@pytest.mark.parametrize("times", [1, 3])
def test_a_request_to_end_is_taken_like_an_interrupt_however_often_it_comes(data, number, times):
    handler = signal.getsignal(number)
    result = train(data, tol=1e-12, callbacks=[Interrupter(epoch=1, times=times, number=number)])
    assert result.stop_reason == "interrupted"
    assert signal.getsignal(number) is handler


def test_a_second_interrupt_drops_the_run_and_gives_the_handler_back(data):
    handler = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        train(data, tol=1e-12, callbacks=[Interrupter(times=2)])
    assert signal.getsignal(signal.SIGINT) is handler


def test_a_handler_of_the_program_itself_is_left_alone(data):
    caught = []
    before = signal.signal(signal.SIGINT, lambda number, frame: caught.append(number))
    try:
        result = train(data, tol=1e-2, callbacks=[Interrupter()])
    finally:
        signal.signal(signal.SIGINT, before)
    assert caught == [signal.SIGINT]
    assert result.stop_reason == "tolerance"


def test_an_error_in_a_callback_comes_through(data):
    class Broken(Callback):
        def on_rows(self, rows):
            raise ZeroDivisionError("in the callback")

    with pytest.raises(ZeroDivisionError, match="in the callback"):
        train(data, callbacks=[Broken()])


def test_the_base_callback_does_nothing(data):
    assert train(data, callbacks=[Callback()], tol=1e-2).certificate.certified


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"C": 0.0}, r"C must be finite and above 0, got 0\.0\."),
        ({"C": -1.0}, r"C must be finite and above 0, got -1\.0\."),
        ({"C": np.nan}, r"C must be finite and above 0, got nan\."),
        ({"C": np.inf}, r"C must be finite and above 0, got inf\."),
        ({"tol": 0.0}, r"tol must be finite and above 0, got 0\.0\."),
        ({"tol": np.nan}, r"tol must be finite and above 0, got nan\."),
        ({"max_epochs": 0}, r"max_epochs must be at least 1, got 0\."),
        ({"block_size": -1}, r"block_size must be at least 0, got -1\."),
        ({"seed": -1}, r"seed must be at least 0, got -1\."),
        ({"threads": -1}, r"threads must be at least 0, got -1\."),
        ({"time_limit_s": 0.0}, r"time_limit_s must be above 0, got 0\.0\."),
        ({"time_limit_s": np.nan}, r"time_limit_s must be above 0, got nan\."),
        ({"solver": "newton"}, r"solver must be one of 'auto', 'sdca', .*, got 'newton'\."),
        ({"dtype": "float16"}, r"dtype must be one of 'float32', 'float64', got 'float16'\."),
        ({"acceleration": True}, r"acceleration must be one of 'auto', 'off', got True\."),
        ({"constant": np.inf}, r"constant must be finite, got inf\."),
        ({"C": 1e-40}, r"C must be between 1\.18e-38 and 3\.4e\+38 in float32, got 1e-40\."),
        ({"C": 1e39}, r"C must be between 1\.18e-38 and 3\.4e\+38 in float32, got 1e\+39\."),
        ({"mean": np.ones(3)}, r"mean and inverse_scale must be given together, got one of them\."),
        ({"class_weight": np.array([1.0, -1.0])}, r"class_weight must be finite and at least 0"),
        ({"class_weight": np.array([1.0, np.nan])}, r"class_weight must be finite and at least 0"),
    ],
)
def test_an_option_that_breaks_its_rule_is_refused(options, message):
    with pytest.raises(ValueError, match=message):
        FitOptions(**options)


class StopAfter(Callback):
    """Asks to stop after an epoch."""

    def __init__(self, epoch):
        self.epoch, self.asked, self.weights = epoch, [], None

    def should_stop(self, record, W):
        self.asked.append((record.epoch, record.exact))
        self.weights = W.copy()
        return record.epoch == self.epoch


def test_callback_stops_training_with_a_certificate_of_its_epoch(data, tmp_path):
    stopper, recorder = StopAfter(3), Recorder()
    result = train(
        data, callbacks=[recorder, stopper], tol=1e-9, dtype="float64", dual_path=tmp_path / "dual"
    )
    assert (result.stop_reason, result.epochs) == ("callback", 3)
    assert stopper.asked == [(1, False), (2, False), (3, False)]
    np.testing.assert_array_equal(stopper.weights, result.W)
    assert result.history[-1].exact
    primal, dual = certified_again(data, result, tmp_path / "dual")
    assert result.certificate.primal == pytest.approx(primal, rel=1e-12)
    assert result.certificate.dual_value == pytest.approx(dual, rel=1e-12)
    assert recorder.calls[-1] == ("end", result)


def test_training_that_is_never_asked_to_stop_has_the_same_bits(data):
    plain = train(data, tol=1e-3)
    asked = train(data, callbacks=[StopAfter(0)], tol=1e-3)
    assert asked.stop_reason == "tolerance"
    np.testing.assert_array_equal(plain.W, asked.W)


@pytest.mark.parametrize(
    ("options", "reason"),
    [({"tol": 0.9}, "tolerance"), ({"tol": 1e-9, "max_epochs": 1}, "max_epochs")],
)
def test_callback_that_asks_with_another_reason_comes_after_it(data, options, reason):
    assert train(data, callbacks=[StopAfter(1)], **options).stop_reason == reason


def test_first_callback_that_asks_names_the_reason(data):
    early = StopAfter(2)
    early.stop_reason = "early_stopping"
    callbacks = [StopAfter(0), early, StopAfter(2)]
    assert train(data, callbacks=callbacks, tol=1e-9).stop_reason == "early_stopping"
    assert [len(each.asked) for each in callbacks] == [2, 2, 2]


@pytest.mark.parametrize("solver", ["frank_wolfe", "block_frank_wolfe", "pegasos"])
def test_other_solvers_ask_too(data, solver):
    result = train(data, callbacks=[StopAfter(2)], tol=1e-9, solver=solver)
    assert (result.stop_reason, result.epochs) == ("callback", 2)
    assert result.history[-1].primal == result.certificate.primal
