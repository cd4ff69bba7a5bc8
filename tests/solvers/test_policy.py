import math

import numpy as np
import pytest

from dtopk.solvers.policy import (
    CheckSchedule,
    StagnationWatch,
    choose_ratio,
    first_ratio,
    passes_per_fold,
    steer_ratio,
    weaker_ratio,
)


def test_passes_per_fold_of_a_geometric_ascent_is_that_of_its_ratio():
    """Ascents 1 and 1/2: the distance halves in a pass, 1/log 2 passes for a factor e."""
    assert passes_per_fold([0.0, 1.0, 1.5]) == pytest.approx(1 / math.log(2))
    assert passes_per_fold([9.0, 0.0, 1.0, 1 + 1 / math.e]) == pytest.approx(1.0)


@pytest.mark.parametrize("values", [[0, 1, 2], [0, 1, 3], [0, 1, 1], [0, 1, 0.5], [1, 0, 0.5]])
def test_passes_per_fold_says_nothing_where_ascents_do_not_shrink(values):
    assert passes_per_fold([float(v) for v in values]) == 0


def geometric(factor, n_passes):
    return np.cumsum([0.0, *factor ** np.arange(n_passes)]).tolist()


def test_a_fast_start_is_left_alone():
    assert choose_ratio(geometric(0.1, 3), 0.1, 1e-3) == 1


def test_nothing_is_decided_from_fewer_than_three_passes():
    for n_passes in (1, 2):
        assert choose_ratio(geometric(0.9, n_passes), 0.5, 1e-3) == 1


def test_the_ratio_grows_with_the_root_of_the_passes_up_to_a_bound():
    """Ascents fall by 0.9: T = 1/log(1/0.9) = 9.49, r = 6 sqrt(T) = 18.5."""
    assert choose_ratio(geometric(0.9, 3), 0.5, 1e-3) == pytest.approx(18.48, abs=0.01)
    assert choose_ratio(geometric(1 - 1e-9, 3), 0.5, 1e-3) <= 1000


def test_late_in_a_run_few_passes_to_go_are_not_worth_it():
    values = geometric(0.6, 6)
    assert choose_ratio(values, 1.1e-3, 1e-3) == 1


def test_a_ratio_is_weakened_down_to_a_bound_above_one():
    ratio = 200.0
    for _ in range(20):
        weaker = weaker_ratio(ratio)
        assert 1 < weaker <= ratio
        ratio = weaker
    assert weaker_ratio(ratio) == ratio


def test_a_ratio_stays_where_a_pass_leaves_the_share_aimed_at():
    assert steer_ratio(10.0, 0.45) == pytest.approx(10.0)
    assert steer_ratio(10.0, 0.54) == pytest.approx(12.0)
    assert steer_ratio(10.0, 0.36) == pytest.approx(8.0)


def test_a_ratio_moves_by_steps_within_bounds():
    assert steer_ratio(10.0, 0.9999) == pytest.approx(22.22, abs=0.01)
    assert steer_ratio(10.0, 0.0) == 6.0
    ratio = first_ratio(16)
    assert ratio == 12.0
    for _ in range(50):
        ratio = steer_ratio(ratio, 0.0)
    assert 1 < ratio < 2
    for _ in range(50):
        ratio = steer_ratio(ratio, 1.0)
    assert ratio == 1000.0


def test_a_gap_that_falls_does_not_stagnate():
    watch = StagnationWatch()
    assert not any(watch.stagnates(0.8**n) for n in range(100))
    watch.restart()
    assert not watch.stagnates(1.0)


def test_a_gap_that_stays_stagnates_again_and_again_and_not_at_once():
    watch = StagnationWatch()
    told = [watch.stagnates(0.5 + 0.01 * (-1) ** n) for n in range(100)]
    first = told.index(True)
    assert first >= 5
    assert sum(told) >= 2


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
