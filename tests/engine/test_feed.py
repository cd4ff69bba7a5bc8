"""Blocks come in order, duals are kept before they are read again, and errors come through."""

import threading

import numpy as np
import pytest

from dtopk.engine.duals import InPlaceDuals, MemoryDuals, StreamedDuals
from dtopk.engine.feed import Feed
from dtopk.engine.rows import Piece, PieceRange
from dtopk_storage import open_run_state

M = 3
BLOCKS = tuple(
    PieceRange(start=i, stop=i + 4, chunk_start=i, chunk_stop=i + 4) for i in range(0, 24, 4)
)
ALL = range(len(BLOCKS))


class ListedRows:
    """Six blocks of four rows; a read of the block at row `broken` fails."""

    n_features, n_classes, n_stored, chunk_rows, resident = 2, M, 24, 4, False
    dtype = np.dtype(np.float32)
    pieces = BLOCKS

    def __init__(self, broken=None):
        self.broken = broken
        self.reads = []

    def expect(self, pieces):
        self.expected = [piece.start for piece in pieces]

    def read(self, piece):
        self.reads.append(piece.start)
        if self.broken == piece.start:
            raise OSError(f"chunk at row {piece.start} is gone")
        return Piece(
            X=np.full((4, 2), piece.start, np.float32),
            labels=np.zeros(4, np.int32),
            weight=np.ones(4),
        )


class BrokenDuals(InPlaceDuals):
    def keep(self, block, dual):
        raise OSError(f"no space for block {block}")


def memory_duals(kind=InPlaceDuals):
    return kind(BLOCKS, M, np.float32)


@pytest.fixture(params=["in place", "in memory", "streamed"])
def duals(request, tmp_path):
    if request.param == "streamed":
        streamed = StreamedDuals(open_run_state(tmp_path / "state"), BLOCKS, M, np.float32)
        streamed.begin("1")
        return streamed
    return memory_duals({"in place": InPlaceDuals, "in memory": MemoryDuals}[request.param])


def settle(duals):
    duals.settle(dict.fromkeys(ALL, 1.0))


def test_blocks_come_in_the_order_asked_for():
    with Feed(ListedRows(), BLOCKS, memory_duals(), keep_features=False) as feed:
        visits = list(feed.visit([3, 0, 5], update=False))
    assert [v.block for v in visits] == [3, 0, 5]
    assert [v.piece.X[0, 0] for v in visits] == [12, 0, 20]
    assert all(v.dual.shape == (4, M) for v in visits)


@pytest.mark.parametrize("settled", [False, True])
def test_some_rows_are_those_of_the_whole_blocks(duals, settled):
    with Feed(ListedRows(), BLOCKS, duals, keep_features=False) as feed:
        if settled:
            for visit in feed.visit(ALL, update=True):
                visit.dual[:] = np.arange(12).reshape(4, M) * visit.block
            settle(duals)
        picks = [np.array([1, 3]), np.array([0])]
        seen = list(feed.look([4, 1], picks))
        whole = list(feed.visit([4, 1], update=False))
    assert [visit.block for visit in seen] == [4, 1]
    for some, rows, every in zip(seen, picks, whole, strict=True):
        np.testing.assert_array_equal(some.dual, every.dual[rows])
        np.testing.assert_array_equal(some.piece.X, every.piece.X[rows])
        assert len(some.piece.labels) == len(some.piece.weight) == len(rows)


@pytest.mark.parametrize(("keep", "reads"), [(True, 6), (False, 12)])
def test_features_are_read_once_just_if_they_are_kept(keep, reads):
    rows = ListedRows()
    with Feed(rows, BLOCKS, memory_duals(), keep_features=keep) as feed:
        for _ in range(2):
            assert len(list(feed.visit(ALL, update=False))) == 6
    assert len(rows.reads) == reads


def test_updated_duals_are_there_at_the_next_visit(duals):
    with Feed(ListedRows(), BLOCKS, duals, keep_features=False) as feed:
        for _ in range(3):
            for visit in feed.visit([5, 2, 0], update=True):
                visit.dual[:] += visit.block + 1
            settle(duals)
        sums = [visit.dual.sum() for visit in feed.visit(ALL, update=False)]
    assert sums == [36, 0, 3 * 36, 0, 0, 6 * 36]


def test_a_visit_left_in_the_middle_keeps_the_duals_changed_so_far(duals):
    with Feed(ListedRows(), BLOCKS, duals, keep_features=False) as feed:
        visits = feed.visit(ALL, update=True)
        for visit in visits:
            visit.dual[:] += 1
            if visit.block == 1:
                break
        visits.close()
        settle(duals)
        kept = [bool(visit.dual.any()) for visit in feed.visit(ALL, update=False)]
    assert kept == [True, True, False, False, False, False]


@pytest.mark.parametrize("broken", [0, 8, 20])
def test_a_reading_error_comes_through_at_its_block(broken):
    seen: list[int] = []
    with Feed(ListedRows(broken), BLOCKS, memory_duals(), keep_features=False) as feed:
        with pytest.raises(OSError, match=f"chunk at row {broken} is gone"):
            seen.extend(4 * visit.block for visit in feed.visit(ALL, update=True))
    assert seen == list(range(0, broken, 4))


def test_a_writing_error_comes_through_even_for_the_last_block():
    for order in ([0], [0, 1], ALL):
        with Feed(ListedRows(), BLOCKS, memory_duals(BrokenDuals), keep_features=False) as feed:
            with pytest.raises(OSError, match="no space for block"):
                list(feed.visit(order, update=True))


def test_an_error_of_the_caller_comes_through_and_ends_the_thread():
    def work(feed):
        for visit in feed.visit(ALL, update=True):
            raise RuntimeError(f"at {visit.block}")

    with Feed(ListedRows(), BLOCKS, memory_duals(), keep_features=False) as feed:
        with pytest.raises(RuntimeError, match="at 0"):
            work(feed)
    assert not any(t.name.startswith("dtopk-read") for t in threading.enumerate())
