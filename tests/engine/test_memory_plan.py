import re

import pytest

from dtopk.engine.memory import free_memory, plan_memory

SIZES = {
    "n_samples": 1000,
    "n_features": 50,
    "n_classes": 10,
    "feature_itemsize": 2,
    "itemsize": 4,
    "largest_piece": 100,
    "features_resident": False,
}
# 50 x 10 weights four times in float32 and twice in float64; three pieces of 100 rows with 50
# float16 features and 10 float32 duals each.
WORKING = 50 * 10 * (4 * 4 + 2 * 8) + 3 * 100 * (50 * 2 + 10 * 4)
DUALS = 1000 * 10 * 4
FEATURES = 1000 * 50 * 2


def plan(limit, **changes):
    result = plan_memory(**{**SIZES, **changes}, limit_bytes=limit)
    return result.features_in_memory, result.duals_in_memory


def test_everything_is_held_where_it_just_fits():
    assert plan(WORKING + DUALS + FEATURES) == (True, True)


def test_features_are_streamed_where_one_byte_is_missing():
    assert plan(WORKING + DUALS + FEATURES - 1) == (False, True)
    assert plan(WORKING + DUALS) == (False, True)


def test_duals_are_streamed_too_where_they_do_not_fit():
    assert plan(WORKING + DUALS - 1) == (False, False)
    assert plan(WORKING) == (False, False)


def test_features_in_memory_count_for_nothing():
    working = 50 * 10 * (4 * 4 + 2 * 8) + 3 * 100 * 10 * 4
    assert plan(working + DUALS, features_resident=True) == (True, True)
    assert plan(working, features_resident=True) == (True, False)


def test_what_cannot_work_is_refused_with_the_numbers():
    expected = re.escape(
        f"memory_limit must be at least {WORKING:,} bytes for six copies of the weights (50 x 10) "
        f"and three pieces of 100 rows, got {WORKING - 1:,}."
    )
    with pytest.raises(ValueError, match=expected):
        plan(WORKING - 1)


def test_without_a_limit_a_share_of_the_free_memory_is_taken():
    assert plan(None) == (True, True)
    with pytest.raises(ValueError, match=r"memory that is free must be at least [\d,]+ bytes"):
        plan(None, n_features=10**7, n_classes=10**6)


def test_some_memory_is_free():
    assert free_memory() > 0
