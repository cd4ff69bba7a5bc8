import math

import pytest

from dtopk.solvers.policy import (
    CheckSchedule,
    StagnationWatch,
    first_ratio,
    lower_ceiling,
    steer_ratio,
)


def test_a_ratio_stays_where_both_parts_of_the_gap_are_the_same():
    assert steer_ratio(10.0, 3.0, 3.0) == 10.0
    assert steer_ratio(10.0, 32.0, 1.0) == pytest.approx(20.0)
    assert steer_ratio(10.0, 1.0, 1.1**5) == pytest.approx(10 / 1.1)


def test_a_ratio_moves_by_steps_within_bounds():
    assert steer_ratio(10.0, 1.0, 0.0) == 30.0
    assert steer_ratio(10.0, 0.0, 1.0) == 5.0
    ratio = first_ratio(16)
    assert ratio == 12.0
    for _ in range(50):
        ratio = steer_ratio(ratio, 0.0, 1.0)
    assert 1 < ratio < 2
    for _ in range(50):
        ratio = steer_ratio(ratio, 1.0, 0.0)
    assert ratio == 1000.0


def test_a_ratio_stays_below_a_ceiling_that_falls_to_a_bound_above_one():
    assert steer_ratio(10.0, 1.0, 0.0, ceiling=12.0) == 12.0
    ceiling = 200.0
    for _ in range(20):
        lower = lower_ceiling(ceiling)
        assert 1 < lower <= ceiling
        ceiling = lower
    assert lower_ceiling(ceiling) == ceiling


def test_a_gap_that_falls_does_not_stagnate():
    watch = StagnationWatch()
    assert {watch.judge(0.8**n) for n in range(100)} == {"falls"}
    watch.restart()
    assert watch.judge(1.0) == "falls"


@pytest.mark.parametrize(
    ("gap", "up", "course"), [(0.1, 1.1, "stalls"), (0.1, 3.0, "swings"), (0.6, 3.0, "stalls")]
)
def test_a_gap_that_stays_is_told_again_and_again_and_not_at_once(gap, up, course):
    """It swings only where it goes up far from where it has begun to fall."""
    watch = StagnationWatch()
    told = [watch.judge(gap * up ** (n % 2)) for n in range(100)]
    assert set(told) == {"falls", course}
    assert told.index(course) >= 5
    assert told.count(course) >= 2


def test_a_watch_goes_on_as_if_never_stopped():
    watch, other = StagnationWatch(), StagnationWatch()
    for n in range(60):
        told = watch.judge(0.1 * (1 + n % 3))
        assert other.judge(0.1 * (1 + n % 3)) == told
        values = other.to_dict()
        other = StagnationWatch()
        other.restore(values)


def test_no_check_is_due_while_the_gap_is_far_above_the_tolerance():
    schedule = CheckSchedule(1e-3)
    assert not any(schedule.due(1e-2 * 1.01) for _ in range(50))


def test_a_check_is_due_once_the_estimate_is_surely_below_the_tolerance():
    schedule = CheckSchedule(1e-3)
    assert not schedule.due(0.99e-3)
    assert schedule.due(0.94e-3)


def test_a_missed_check_delays_the_next_one_but_not_for_ever():
    schedule = CheckSchedule(1e-3)
    while not schedule.due(5e-4):
        pass
    schedule.missed(1e-2)
    waits = 0
    while not schedule.due(5e-4):
        waits += 1
    assert 1 <= waits <= 20


def test_an_estimate_that_is_no_number_makes_no_check_due():
    assert not CheckSchedule(1e-3).due(math.nan)
