import re

import pytest

from dtopk.engine.memory import cgroup_limit, free_memory, plan_memory

SIZES = {
    "n_samples": 1000,
    "n_features": 50,
    "n_classes": 10,
    "feature_itemsize": 2,
    "itemsize": 4,
    "largest_piece": 100,
    "features_resident": False,
}
# 50 x 10 weights four times in float32 and twice in float64.
WEIGHTS = 50 * 10 * (4 * 4 + 2 * 8)
# Three pieces of 100 rows with 50 float16 features, and with 10 float32 duals.
FEATURES_PIECE = 3 * 100 * 50 * 2
DUALS_PIECE = 3 * 100 * 10 * 4
DUALS = 1000 * 10 * 4
FEATURES = 1000 * 50 * 2
LEAST = WEIGHTS + FEATURES_PIECE + DUALS_PIECE


def plan(limit, **changes):
    result = plan_memory(**{**SIZES, **changes}, limit_bytes=limit)
    return result.features_in_memory, result.duals_in_memory


def test_everything_is_held_where_it_just_fits():
    assert plan(WEIGHTS + FEATURES_PIECE + DUALS + FEATURES) == (True, True)


def test_features_are_streamed_where_one_byte_is_missing():
    assert plan(WEIGHTS + FEATURES_PIECE + DUALS + FEATURES - 1) == (False, True)
    assert plan(WEIGHTS + FEATURES_PIECE + DUALS) == (False, True)


def test_duals_are_streamed_too_where_they_do_not_fit():
    assert plan(WEIGHTS + FEATURES_PIECE + DUALS - 1) == (False, False)
    assert plan(LEAST) == (False, False)


def test_features_in_memory_count_for_nothing():
    assert plan(WEIGHTS + DUALS, features_resident=True) == (True, True)
    assert plan(WEIGHTS + DUALS_PIECE, features_resident=True) == (True, False)


def test_what_cannot_work_is_refused_with_the_numbers():
    expected = re.escape(
        f"memory_limit must be at least {LEAST:,} bytes for six copies of the weights (50 x 10) "
        f"and three pieces of 100 rows, got {LEAST - 1:,}."
    )
    with pytest.raises(ValueError, match=expected):
        plan(LEAST - 1)


def test_without_a_limit_a_share_of_the_free_memory_is_taken():
    assert plan(None) == (True, True)
    with pytest.raises(ValueError, match=r"memory that is free must be at least [\d,]+ bytes"):
        plan(None, n_features=10**7, n_classes=10**6)


def test_some_memory_is_free():
    assert free_memory() > 0


def write_groups(tmp_path, own, limits):
    """Write /proc/self/cgroup and files of limits below a root; return both."""
    (tmp_path / "own").write_text(own)
    for name, limit in limits.items():
        file = tmp_path / "root" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"{limit}\n")
    return tmp_path / "own", tmp_path / "root"


def test_a_limit_of_a_group_above_counts(tmp_path):
    limits = {
        "memory.max": "max",
        "slurm/job_7/memory.max": 4000,
        "slurm/job_7/step_0/memory.max": "max",
    }
    assert cgroup_limit(*write_groups(tmp_path, "0::/slurm/job_7/step_0\n", limits)) == 4000


def test_the_lowest_limit_counts(tmp_path):
    limits = {"memory.max": 9000, "a/memory.max": 5000, "a/b/memory.max": 7000}
    assert cgroup_limit(*write_groups(tmp_path, "0::/a/b\n", limits)) == 5000


def test_groups_of_version_1_are_read_below_memory(tmp_path):
    own = "12:cpu,cpuacct:/x\n4:memory:/job\n"
    limits = {"memory/job/memory.limit_in_bytes": 3000}
    assert cgroup_limit(*write_groups(tmp_path, own, limits)) == 3000


def test_no_limit_is_found_where_there_is_none(tmp_path):
    assert cgroup_limit(*write_groups(tmp_path, "0::/\n", {"memory.max": "max"})) is None
    assert cgroup_limit(tmp_path / "missing", tmp_path) is None
