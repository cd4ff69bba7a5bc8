"""How long an epoch will take, from figures worked out by hand and from a short measurement."""

from dataclasses import replace

import pytest

from dtopk.engine import FitOptions
from dtopk.engine.forecast import CALL_SECONDS, Speed, forecast, measure_speed
from dtopk.engine.plan import plan_cluster, plan_process
from dtopk.engine.sizes import Sizes
from dtopk.losses import make_loss

GB = 10**9
SLOW = Speed(
    gflops=1.0, ratio=1.5, certificate_ratio=2.0, copy_rate=1e6, n_features=50, n_classes=10
)


FOUR = {"partitions": 4, "block_rows": 25, "rounds_per_epoch": 1}


def make_plan(n_members, **options):
    """Plan 1,000 rows of 50 float16 features and 10 classes: ten chunks of 100 rows."""
    sizes = Sizes.of_numbers(
        FitOptions(**options),
        n_samples=1000,
        n_features=50,
        n_classes=10,
        dtype="float16",
        chunk_rows=100,
    )
    return plan_cluster(sizes, n_members=n_members, memory_bytes=GB)


def test_times_are_as_worked_out_by_hand():
    plan = make_plan(2, **FOUR)
    times = forecast(plan, SLOW, bandwidth=1e6, read_rate=2e6)
    # Two products of 500 rows: 4 * 500 * 50 * 10 operations, 1e9 of them a second.
    assert times.sweep_seconds == pytest.approx(1.5e-3)
    assert times.certificate_seconds == pytest.approx(2e-3 + 4000 / 1e6)
    # Four copies of two changes of W in float32, and of four changes of 25 rows in float64.
    assert times.join_seconds == pytest.approx(4 * (2 * 2000 + 4 * 25 * 10 * 8) / 1e6)
    assert times.exchange_seconds == pytest.approx(plan.traffic.epoch / 1e6)
    assert times.read_seconds == pytest.approx(plan.traffic.epoch_read / 2e6)
    assert times.first_read_seconds == pytest.approx(93_750 / 2e6)
    # The gap is estimated on all of so few rows.
    assert times.estimate_seconds == pytest.approx(1e-3)
    # One round of three calls, and three beside it.
    assert times.call_seconds == pytest.approx(6 * CALL_SECONDS)


def test_reading_goes_on_beside_the_sweeps():
    plan = make_plan(2, **FOUR)
    for read_rate in (1.0, 1e12):
        times = forecast(plan, SLOW, read_rate=read_rate)
        longer = max(times.read_seconds, times.sweep_seconds)
        others = times.join_seconds + times.exchange_seconds + times.estimate_seconds
        assert times.epoch_seconds == pytest.approx(longer + others + times.call_seconds)


def test_one_process_joins_and_sends_nothing():
    times = forecast(make_plan(1), SLOW)
    assert (times.join_seconds, times.exchange_seconds, times.call_seconds) == (0, 0, 0)
    assert times.epoch_seconds == times.sweep_seconds + times.estimate_seconds


def test_of_many_rows_a_share_is_looked_at_for_the_gap():
    sizes = replace(make_plan(1).sizes, pieces=make_plan(1).sizes.pieces * 1000)
    plan = plan_process(sizes, limit_bytes=GB)
    times = forecast(plan, SLOW)
    # Two products of a million rows take 2 s.
    assert times.estimate_seconds == pytest.approx(2 / 64)


def test_a_certificate_of_streamed_rows_waits_for_them():
    sizes = make_plan(1).sizes
    # W in float32, the centre; ten chunks of rows and blocks of duals, of which eight are in work.
    plan = plan_process(sizes, limit_bytes=4_000 + 100_000 + 40_000)
    assert not plan.memory.duals_in_memory
    times = forecast(plan, SLOW, read_rate=1e3)
    assert times.certificate_seconds == pytest.approx((100_000 + 40_000) / 1e3)


def test_twice_the_members_halve_the_sweeps():
    one, two = (forecast(make_plan(n_members, **FOUR), SLOW).sweep_seconds for n_members in (1, 2))
    assert one == pytest.approx(2 * two)


@pytest.mark.parametrize("name", ["softmax", "topk_hinge_alpha"])
def test_the_speed_of_the_solver_is_measured(name):
    loss = make_loss(name, **({} if name == "softmax" else {"k": 2, "gamma": 1.0}))
    speed = measure_speed(loss, 40, 12, threads=1)
    assert (speed.n_features, speed.n_classes) == (40, 12)
    assert speed.gflops > 0
    assert speed.ratio > 0
    assert speed.certificate_ratio > 0
    assert speed.copy_rate > 0


def test_weights_that_are_too_large_are_measured_with_fewer_classes(monkeypatch):
    monkeypatch.setattr("dtopk.engine.forecast._MOST_WEIGHTS", 64 * 100)
    speed = measure_speed(make_loss("softmax"), 100, 1000, threads=1)
    assert (speed.n_features, speed.n_classes) == (100, 64)
    speed = measure_speed(make_loss("softmax"), 1000, 1000, threads=1)
    assert (speed.n_features, speed.n_classes) == (100, 64)
