"""What of a run is held in this process's memory, and how much memory is free."""

import re

import numpy as np
import pytest

from dtopk.engine import ArrayRows, FitOptions
from dtopk.engine.memory import cgroup_limit, free_memory
from dtopk.engine.plan import plan_process
from dtopk.engine.sizes import Sizes

# W of 50 x 10 in float32 and the centre of the accelerated loop; for a certificate, W and the
# weights of the duals in float64.
ROUND = 50 * 10 * 4 * (1 + 1)
CERTIFICATE = ROUND + 50 * 10 * 8 * 2
# Three thousand rows of 50 float16 features, a label and a weight, in chunks of 100.
FEATURES = 3000 * (50 * 2 + 4 + 8)
# Two of them are a batch, and four batches are in hand, beside the two that come or go.
CHUNKS = 10 * 100 * 50 * 2
# Ten float32 duals a row.
DUALS = 3000 * 10 * 4
BLOCKS = 10 * 100 * 10 * 4
# A chunk read from disk and one of duals written there, each as it is in memory and on disk.
READING, WRITING = 2 * 100 * 50 * 2, 2 * 100 * 10 * 4

# In a round there is a chunk being read; the certificate needs less than that.
ALL = ROUND + FEATURES + DUALS + READING
# It has no more than three chunks in hand, and needs less than a round there too.
DUALS_ONLY = ROUND + CHUNKS + DUALS + WRITING
NOTHING = ROUND + CHUNKS + BLOCKS


def make_sizes(n_samples=3000, n_features=50, n_classes=10, dtype="float16", **options):
    return Sizes.of_numbers(
        FitOptions(**options),
        n_samples=n_samples,
        n_features=n_features,
        n_classes=n_classes,
        dtype=dtype,
        chunk_rows=100,
    )


def decide(limit, sizes=None):
    memory = plan_process(sizes or make_sizes(), limit_bytes=limit).memory
    return memory.features_in_memory, memory.duals_in_memory


def test_everything_is_held_where_it_just_fits():
    assert decide(ALL) == (True, True)


def test_features_are_streamed_where_one_byte_is_missing():
    assert decide(ALL - 1) == (False, True)
    assert decide(DUALS_ONLY) == (False, True)


def test_duals_are_streamed_too_where_they_do_not_fit():
    assert decide(DUALS_ONLY - 1) == (False, False)
    assert decide(NOTHING) == (False, False)


def test_what_cannot_work_is_refused_with_the_numbers():
    expected = re.escape(
        f"memory_limit must be at least {NOTHING:,} bytes, got {NOTHING - 1:,}. "
        "At the end of a round: weights W, 50 x 10 2,000; "
        "centre of the accelerated loop 2,000; 10 chunks of features 100,000; "
        "10 blocks of duals 40,000. Give it more"
    )
    with pytest.raises(ValueError, match=expected):
        decide(NOTHING - 1)


def test_features_in_memory_count_for_nothing():
    rows = ArrayRows(np.zeros((1000, 50), np.float16), np.zeros(1000, np.int32), 10)
    sizes = Sizes.of_rows(rows, FitOptions())
    assert decide(CERTIFICATE + DUALS, sizes) == (True, True)


def test_duals_of_features_in_memory_are_streamed_where_they_do_not_fit():
    m = (1 << 25) // 3  # so many that rows are cut into pieces of 3
    rows = ArrayRows(np.zeros((30, 2), np.float16), np.zeros(30, np.int32), m)
    sizes = Sizes.of_rows(rows, FitOptions(acceleration="off"))
    weights = 2 * m * (4 + 8 + 8)
    assert decide(weights + 30 * m * 4, sizes) == (True, True)
    assert decide(weights + 30 * m * 4 - 1, sizes) == (True, False)
    least = 2 * m * 4 + 6 * 3 * m * 4  # W, four pieces in hand, and two that come or go
    assert decide(least, sizes) == (True, False)
    with pytest.raises(ValueError, match="6 blocks of duals"):
        decide(least - 1, sizes)


def test_without_acceleration_there_is_no_centre():
    sizes = make_sizes(acceleration="off")
    assert decide(NOTHING - 50 * 10 * 4, sizes) == (False, False)


def test_a_constant_feature_is_a_row_of_the_weights():
    sizes = make_sizes(constant=1.0)
    assert decide(NOTHING + (ROUND // 50), sizes) == (False, False)
    with pytest.raises(ValueError, match="weights W, 51 x 10"):
        decide(NOTHING + (ROUND // 50) - 1, sizes)


def test_features_of_another_dtype_take_their_own_bytes():
    plan = plan_process(make_sizes(dtype="float64"), limit_bytes=10**9)
    assert plan.needed_bytes - ALL == 3000 * 50 * 6 + 2 * 100 * 50 * 6


def test_computing_in_float64_takes_twice_the_weights_and_duals():
    options = FitOptions(dtype="float64")
    sizes = Sizes.of_numbers(
        options, n_samples=3000, n_features=50, n_classes=10, dtype="float16", chunk_rows=100
    )
    plan = plan_process(sizes, limit_bytes=10**9)
    exact = CERTIFICATE - ROUND  # is in float64 all the same
    assert plan.needed_bytes == 2 * ROUND + exact + FEATURES + 2 * DUALS + 2 * WRITING


def test_each_partition_in_this_process_has_its_own_change_of_the_weights():
    one, four = (
        plan_process(make_sizes(partitions=k), limit_bytes=10**9).certificate_bytes for k in (1, 4)
    )
    assert four - one == 3 * 50 * 10 * 8


def test_without_a_limit_a_share_of_the_free_memory_is_taken():
    assert decide(None) == (True, True)
    with pytest.raises(ValueError, match=r"memory that is free must be at least [\d,]+ bytes"):
        decide(None, make_sizes(n_features=10**7, n_classes=10**6))


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
