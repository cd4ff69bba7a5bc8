"""Duals that count change by the share of the way that a round is gone, wherever they are kept."""

import numpy as np
import pytest

from dtopk.engine.duals import InPlaceDuals, MemoryDuals, StreamedDuals
from dtopk.engine.rows import PieceRange
from dtopk_storage import open_run_state

M = 50
BLOCKS = tuple(
    PieceRange(start=i, stop=i + 8, chunk_start=0, chunk_stop=24) for i in range(0, 24, 8)
)


@pytest.fixture
def state(tmp_path):
    return open_run_state(tmp_path / "state")


@pytest.fixture(params=["memory", "streamed"])
def duals(request, state):
    if request.param == "memory":
        return MemoryDuals(BLOCKS, M, "float32")
    made = StreamedDuals(state, BLOCKS, M, "float32")
    made.begin("1")
    return made


def sparse_rows(seed, share=0.05):
    rng = np.random.default_rng(seed)
    values = rng.normal(size=(8, M)).astype(np.float32)
    return np.where(rng.random((8, M)) < share, values, np.float32(0))


@pytest.mark.parametrize("theta", [0.0, 0.25, 1.0])
def test_duals_go_a_share_of_the_way(duals, theta):
    old, new = sparse_rows(0), sparse_rows(1)
    duals.keep(1, old.copy())
    duals.settle({1: 1.0})
    duals.begin("2")
    candidate = duals.load(1)
    np.testing.assert_array_equal(candidate, old)
    candidate[:] = new
    duals.keep(1, candidate)
    np.testing.assert_array_equal(duals.read(1), old)
    duals.settle({1: theta})
    np.testing.assert_allclose(duals.read(1), old + theta * (new - old), rtol=1e-6, atol=1e-7)


def test_blocks_never_visited_are_zero(duals):
    np.testing.assert_array_equal(duals.read(2), np.zeros((8, M), np.float32))


def test_sparse_duals_take_less_memory_and_dense_ones_no_more_than_dense():
    duals = MemoryDuals(BLOCKS, M, "float32")
    rows = sparse_rows(0, share=0.04)
    rows[rows == 0] = -0.0
    duals.keep(0, rows)
    duals.settle({0: 1.0})
    assert duals.nbytes < 0.2 * 8 * M * 4
    duals.keep(0, np.ones((8, M), np.float32))
    duals.settle({0: 1.0})
    assert duals.nbytes == 8 * M * 4


def test_what_is_dropped_takes_no_memory():
    duals = MemoryDuals(BLOCKS, M, "float32")
    duals.put(0, np.ones((8, M), np.float32))
    duals.drop([0, 2])
    assert duals.nbytes == 0


@pytest.mark.parametrize("kind", [InPlaceDuals, MemoryDuals])
def test_saved_duals_are_restored(kind, state):
    duals = kind(BLOCKS, M, "float32")
    expected = [sparse_rows(seed) for seed in range(3)]
    for block, rows in enumerate(expected):
        duals.put(block, rows.copy())
    assert duals.save(state, "1") > 0
    other = kind(BLOCKS, M, "float32")
    other.restore(state, "1", [2, 0, 1])
    for block, rows in enumerate(expected):
        np.testing.assert_array_equal(other.read(block), rows)


def test_duals_in_place_are_the_candidates():
    duals = InPlaceDuals(BLOCKS, M, "float32")
    duals.load(0)[:] = 2
    duals.settle({0: 1.0})
    assert (duals.read(0) == 2).all()
    with pytest.raises(AssertionError):
        duals.settle({0: 0.5})


def test_a_version_of_streamed_duals_stays_while_the_next_is_written(state):
    duals = StreamedDuals(state, BLOCKS, M, "float32")
    duals.begin("1")
    duals.keep(0, sparse_rows(0))
    duals.settle({0: 1.0})
    duals.begin("2")
    duals.keep(0, sparse_rows(1))
    duals.settle({0: 1.0})
    np.testing.assert_array_equal(state.read_array("1", "dual/0000000"), sparse_rows(0))
    again = StreamedDuals(state, BLOCKS, M, "float32")
    again.restore(state, "1", [0])
    np.testing.assert_array_equal(again.read(0), sparse_rows(0))
