"""Several models trained together end where each would have ended alone."""

import gc
import signal
import threading
import weakref

import numpy as np
import pytest

from dtopk import testing
from dtopk.engine import (
    ArrayRows,
    Callback,
    Candidate,
    FitOptions,
    StartPoint,
    StoreRows,
    fit,
    fit_many,
)
from dtopk.engine.duals import Duals
from dtopk.engine.fit import make_member
from dtopk.engine.joint_run import JointRun
from dtopk.engine.member import Member
from dtopk.losses import make_loss
from dtopk_storage import create_store, open_store

N, D, M, CHUNK = 300, 8, 5, 10
SOFTMAX = make_loss("softmax")
HINGE = make_loss("topk_hinge_alpha", k=2, gamma=0.5)
PLAIN = make_loss("topk_hinge_alpha", k=1)
OPTIONS = FitOptions(tol=1e-5, dtype="float64", max_epochs=2000, constant=1.0, block_size=8)
STREAMED_FEATURES = 40_000
"""A limit of memory with room for the duals of a few models, but not for the features too."""
STREAMED_ALL = (D + 1) * M * (8 * 4 + 2 * 8) + 6 * CHUNK * ((D + 1) * 8 + M * 8)


def problem():
    return testing.make_features(N, D, M, seed=5)


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    X, y = problem()
    path = tmp_path_factory.mktemp("rows") / "s"
    with create_store(path, n_features=D, class_names=list("abcde"), chunk_rows=CHUNK) as writer:
        writer.append(X, y)
    return open_store(path)


def candidates(*losses, C=(0.01, 0.1, 1.0)):
    return [
        Candidate(name=f"{place}-{value:g}", loss=loss, C=value)
        for place, loss in enumerate(losses)
        for value in C
    ]


def assert_same_optimum(one, other):
    assert one.stop_reason == other.stop_reason == "tolerance"
    gaps = [np.sqrt(2 * result.certificate.duality_gap) for result in (one, other)]
    assert np.linalg.norm(one.W - other.W) <= sum(gaps)
    assert one.certificate.primal == pytest.approx(other.certificate.primal, rel=2e-5)


@pytest.mark.parametrize("width", [0, 1, 2, 20])
def test_models_are_those_that_are_trained_alone(width):
    X, y = problem()
    rows = ArrayRows(X, y, M)
    given = candidates(SOFTMAX, HINGE, PLAIN)
    found = fit_many(rows, given, OPTIONS, width=width)
    assert list(sorted(found)) == sorted(each.name for each in given)
    for each in given:
        alone = fit(rows, each.loss, FitOptions(**vars_of(OPTIONS, C=each.C)))
        assert_same_optimum(found[each.name], alone)


class StopAfter(Callback):
    def __init__(self, epoch):
        self.epoch = epoch

    def should_stop(self, record, W):
        return record.epoch == self.epoch


def test_callback_stops_its_own_model_alone():
    X, y = problem()
    given = candidates(SOFTMAX)
    last = given[-1].name
    found = fit_many(
        ArrayRows(X, y, M), given, OPTIONS, width=2,
        callbacks=lambda each: [StopAfter(1)] if each.name == last else [],
    )  # fmt: skip
    assert {name: result.stop_reason for name, result in found.items()} == {
        each.name: "callback" if each.name == last else "tolerance" for each in given
    }
    assert found[last].epochs == 1


def vars_of(options, **others):
    return {name: getattr(options, name) for name in options.__dataclass_fields__} | others


@pytest.mark.parametrize("limit", [STREAMED_FEATURES, STREAMED_ALL], ids=["features", "all"])
def test_streamed_rows_give_the_same_models(store, limit):
    options = FitOptions(**vars_of(OPTIONS, memory_limit_bytes=limit))
    found = fit_many(StoreRows(store, "train"), candidates(SOFTMAX, HINGE), options, width=3)
    for each in candidates(SOFTMAX, HINGE):
        alone = fit(StoreRows(store, "train"), each.loss, FitOptions(**vars_of(OPTIONS, C=each.C)))
        assert_same_optimum(found[each.name], alone)


class CountedRows(StoreRows):
    reads = 0

    def read(self, piece):
        self.reads += 1
        return super().read(piece)


def count_reads(store, given, width):
    options = FitOptions(**vars_of(OPTIONS, memory_limit_bytes=STREAMED_FEATURES))
    rows = CountedRows(store, "train")
    found = fit_many(rows, given, options, width=width)
    return rows.reads, max(result.epochs for result in found.values())


def test_rows_are_read_once_for_all_models(store):
    """As often as for the model that takes most passes, with its certificates, or hardly more."""
    given = candidates(SOFTMAX, HINGE)
    hardest = candidates(SOFTMAX, HINGE, C=(1.0,))
    few, passes = count_reads(store, hardest, 2)
    many, _ = count_reads(store, given, 6)
    assert passes > 5
    assert many <= 1.5 * few


def test_a_model_starts_where_the_one_before_has_ended():
    X, y = problem()
    rows = ArrayRows(X, y, M)
    C = tuple(10.0 ** np.arange(-2, 2.1, 0.25))
    chain, cold = (
        sum(
            result.epochs
            for result in fit_many(rows, candidates(SOFTMAX, C=C), OPTIONS, width=w).values()
        )
        for w in (1, len(C))
    )
    assert chain < cold


@pytest.fixture
def started(monkeypatch):
    """Give the C of the models that start from another one, as they do."""
    found: list[float] = []
    start = Member.start

    def note(self, point):
        found.append(self.options.C)
        return start(self, point)

    monkeypatch.setattr(Member, "start", note)
    return found


def test_a_model_starts_from_another_one_only_if_its_c_is_little_smaller(started):
    X, y = problem()
    given = candidates(SOFTMAX, C=(0.01, 0.05, 1.0))
    fit_many(ArrayRows(X, y, M), given, OPTIONS, width=1)
    assert started == [0.05]


def test_a_start_is_kept_while_models_of_a_larger_c_end(started, monkeypatch):
    """The first model is alone in its first pass; those that join it have a large C."""
    X, y = problem()
    monkeypatch.setattr(JointRun, "_choose_width", lambda self: 2 if self._scans else 1)
    given = candidates(SOFTMAX, C=(0.01, 0.05, 1.0, 10.0))
    fit_many(ArrayRows(X, y, M), given, OPTIONS)
    assert started == [0.05]


def test_duals_of_a_model_that_is_done_and_no_start_are_not_held(monkeypatch):
    """Not even by a cycle: they may be most of the memory that there is."""
    X, y = problem()
    duals: list[weakref.ref[Duals]] = []

    def note(*arguments, **others):
        member = make_member(*arguments, **others)
        duals.append(weakref.ref(member.duals))
        return member

    monkeypatch.setattr("dtopk.engine.joint_run.make_member", note)
    held: list[int] = []
    given = candidates(SOFTMAX, C=(0.01, 0.05, 0.25, 1.0, 100.0))
    gc.disable()
    try:
        fit_many(
            ArrayRows(X, y, M), given, OPTIONS, width=1,
            take=lambda *_: held.append(sum(each() is not None for each in duals)),
        )  # fmt: skip
    finally:
        gc.enable()
    assert held == [1, 2, 2, 2, 1]


def test_of_models_that_share_passes_those_with_a_large_c_come_first():
    X, y = problem()
    events: list[tuple[str, object]] = []
    given = candidates(SOFTMAX, C=(0.001, 1.0, 10.0))
    fit_many(
        ArrayRows(X, y, M), given, OPTIONS, width=2,
        callbacks=lambda each: [Notes(each.name, events)],
    )  # fmt: skip
    assert [name for name, what in events if what == 1] == ["0-10", "0-1", "0-0.001"]


def test_a_start_that_is_given_is_taken():
    X, y = problem()
    rows = ArrayRows(X, y, M)
    best = fit(rows, SOFTMAX, FitOptions(**vars_of(OPTIONS, C=1.0, tol=1e-9)))
    W = np.vstack([best.W, best.intercept[None]])
    given = [Candidate(name="warm", loss=SOFTMAX, C=1.0, start=StartPoint(W=W))]
    assert fit_many(rows, given, OPTIONS)["warm"].epochs == 1


@pytest.mark.parametrize("solver", ["lbfgs", "frank_wolfe", "block_frank_wolfe"])
def test_every_solver_can_share_its_rows(solver):
    X, y = problem()
    rows = ArrayRows(X, y, M)
    loss = SOFTMAX if solver == "lbfgs" else HINGE
    options = FitOptions(**vars_of(OPTIONS, solver=solver, tol=1e-3))
    found = fit_many(rows, candidates(loss, C=(0.01, 0.1)), options, width=2)
    for C in (0.01, 0.1):
        alone = fit(rows, loss, FitOptions(**vars_of(options, C=C)))
        one, other = found[f"0-{C:g}"].certificate, alone.certificate
        assert one.certified
        assert one.primal == pytest.approx(other.primal, rel=2e-3)


def test_a_loss_that_is_not_convex_is_trained_beside_the_others():
    X, y = problem()
    rows = ArrayRows(X, y, M)
    truncated = make_loss("truncated_topk_entropy", k=2)
    found = fit_many(rows, candidates(SOFTMAX, truncated, C=(0.1,)), OPTIONS)
    assert found["1-0.1"].certificate.certified
    assert found["0-0.1"].certificate.certified


def test_same_models_to_the_bit_every_time(store):
    results = [
        fit_many(StoreRows(store, "train"), candidates(SOFTMAX, HINGE), OPTIONS, width=4)
        for _ in range(2)
    ]
    for name, result in results[0].items():
        np.testing.assert_array_equal(result.W, results[1][name].W)


class Notes(Callback):
    def __init__(self, name, events):
        self.name, self.events = name, events

    def on_epoch(self, record, W):
        self.events.append((self.name, record.epoch))

    def on_end(self, result):
        self.events.append((self.name, "end"))


def test_models_take_turns_and_are_handed_over_when_they_are_done():
    X, y = problem()
    events: list[tuple[str, object]] = []
    given = candidates(SOFTMAX, C=(0.001, 10.0))
    fit_many(
        ArrayRows(X, y, M), given, OPTIONS, width=2,
        callbacks=lambda each: [Notes(each.name, events)],
        take=lambda each, result: events.append((each.name, "taken")),
    )  # fmt: skip
    first = [place for place, event in enumerate(events) if event[1] == 1]
    # Both make their first pass before either makes its second.
    assert first == [0, 1]
    assert events.index(("0-0.001", "taken")) < events.index(("0-10", "end"))
    assert events.index(("0-0.001", "end")) < events.index(("0-0.001", "taken"))


def test_an_interrupt_ends_all_with_certificates():
    X, y = problem()

    class Interrupt(Callback):
        def on_epoch(self, record, W):
            if record.epoch == 2:
                signal.raise_signal(signal.SIGINT)

    given = candidates(PLAIN, C=(1.0, 2.0, 3.0))
    found = fit_many(
        ArrayRows(X, y, M), given, FitOptions(**vars_of(OPTIONS, tol=1e-10)), width=2,
        callbacks=lambda each: [Interrupt()] if each.C == 3.0 else [],
    )  # fmt: skip
    assert set(found) == {"0-2", "0-3"}
    for result in found.values():
        assert result.stop_reason == "interrupted"
        assert 0 <= result.certificate.relative_gap < 1


def test_an_interrupt_ends_a_model_that_is_trained_by_itself():
    """Its fit is one within the fit of all."""
    X, y = problem()

    class Interrupt(Callback):
        def on_epoch(self, record, W):
            if record.epoch == 2:
                signal.raise_signal(signal.SIGINT)

    given = candidates(make_loss("truncated_topk_entropy", k=2), C=(1.0, 2.0))
    found = fit_many(
        ArrayRows(X, y, M), given, FitOptions(**vars_of(OPTIONS, tol=1e-12)),
        callbacks=lambda each: [Interrupt()],
    )  # fmt: skip
    assert {name: result.stop_reason for name, result in found.items()} == {"0-1": "interrupted"}


def test_an_error_in_one_ends_all(store):
    class Fail(Callback):
        def on_epoch(self, record, W):
            raise RuntimeError("no room")

    before = threading.active_count()
    with pytest.raises(RuntimeError, match="no room"):
        fit_many(
            StoreRows(store, "train"), candidates(SOFTMAX), OPTIONS, width=3,
            callbacks=lambda each: [Fail()] if each.C == 0.1 else [],
        )  # fmt: skip
    assert threading.active_count() == before


def test_what_cannot_be_trained_is_refused_before_anything_is():
    X, y = problem()
    rows = ArrayRows(X, y, M)
    taken = []
    given = [*candidates(SOFTMAX), *candidates(make_loss("topk_hinge_alpha", k=M))]
    with pytest.raises(ValueError, match="k"):
        fit_many(rows, given, OPTIONS, take=lambda *_: taken.append(1))
    with pytest.raises(ValueError, match="partitions must be 1 for several models, got 2"):
        fit_many(rows, candidates(SOFTMAX), FitOptions(**vars_of(OPTIONS, partitions=2)))
    assert not taken
