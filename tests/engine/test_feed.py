"""Pieces come in order, duals are kept before they are read again, and errors come through."""

import threading

import numpy as np
import pytest

from dtopk.engine.feed import Feed, FileDuals, MemoryDuals
from dtopk.engine.rows import Piece, PieceRange
from dtopk_storage import create_dual

M = 3


class ListedRows:
    """Six pieces of four rows; a read of piece `broken` fails."""

    n_features, n_classes, n_stored, chunk_rows, itemsize, resident = 2, M, 24, 4, 4, False

    def __init__(self, broken=None):
        self.pieces = tuple(
            PieceRange(start=i, stop=i + 4, chunk_start=i, chunk_stop=i + 4)
            for i in range(0, 24, 4)
        )
        self.broken = broken
        self.reads = []

    def read(self, piece):
        self.reads.append(piece.start)
        if self.broken == piece.start:
            raise OSError(f"chunk at row {piece.start} is gone")
        return Piece(
            X=np.full((4, 2), piece.start, np.float32),
            labels=np.zeros(4, np.int32),
            weight=np.ones(4),
        )


class BrokenDuals(MemoryDuals):
    def keep(self, piece, dual):
        raise OSError(f"no space for row {piece.start}")


def memory_duals(kind=MemoryDuals):
    return kind(24, M, np.float32)


def test_pieces_come_in_the_order_asked_for():
    with Feed(ListedRows(), memory_duals(), keep_features=False) as feed:
        visits = list(feed.visit([3, 0, 5], update=False))
    assert [v.range.start for v in visits] == [12, 0, 20]
    assert [v.piece.X[0, 0] for v in visits] == [12, 0, 20]
    assert all(v.dual.shape == (4, M) for v in visits)


@pytest.mark.parametrize(("keep", "reads"), [(True, 6), (False, 12)])
def test_features_are_read_once_just_if_they_are_kept(keep, reads):
    rows = ListedRows()
    with Feed(rows, memory_duals(), keep_features=keep) as feed:
        for _ in range(2):
            assert len(list(feed.visit(range(6), update=False))) == 6
    assert len(rows.reads) == reads


@pytest.mark.parametrize("in_file", [False, True])
def test_updated_duals_are_there_at_the_next_visit(in_file, tmp_path):
    if in_file:
        shape = {"n_samples": 24, "n_classes": M, "dtype": "float32", "chunk_rows": 4}
        duals = FileDuals(create_dual(tmp_path / "dual", **shape))
    else:
        duals = memory_duals()
    with Feed(ListedRows(), duals, keep_features=False) as feed:
        for _ in range(3):
            for visit in feed.visit([5, 2, 0], update=True):
                visit.dual[:] += visit.range.start + 1
        sums = {v.range.start: v.dual.sum() for v in feed.visit(range(6), update=False)}
    assert sums == {0: 36, 4: 0, 8: 9 * 36, 12: 0, 16: 0, 20: 21 * 36}


def test_a_visit_left_in_the_middle_keeps_the_duals_changed_so_far(tmp_path):
    shape = {"n_samples": 24, "n_classes": M, "dtype": "float32", "chunk_rows": 4}
    file = create_dual(tmp_path / "dual", **shape)
    with Feed(ListedRows(), FileDuals(file), keep_features=False) as feed:
        visits = feed.visit(range(6), update=True)
        for visit in visits:
            visit.dual[:] += 1
            if visit.range.start == 4:
                break
        visits.close()
    assert file.read(0, 8).all()
    assert not file.read(8, 24).any()


def test_pieces_of_one_chunk_leave_the_other_rows_of_it_alone(tmp_path):
    """Rows 2 to 5 and 6 to 8 of chunk 0, as where a split stops and starts again."""
    shape = {"n_samples": 12, "n_classes": M, "dtype": "float32", "chunk_rows": 8}
    file = create_dual(tmp_path / "dual", **shape)
    file.write(0, np.full((8, M), 7, np.float32))
    duals = FileDuals(file)
    pieces = [PieceRange(start=a, stop=b, chunk_start=0, chunk_stop=8) for a, b in ((2, 5), (6, 8))]
    for value, piece in enumerate(pieces):
        dual = duals.load(piece)
        assert dual.shape == (piece.n_rows, M)
        dual[:] = value
        duals.keep(piece, dual)
    np.testing.assert_array_equal(file.read(0, 8)[:, 0], [7, 7, 0, 0, 0, 7, 1, 1])


@pytest.mark.parametrize("broken", [0, 8, 20])
def test_a_reading_error_comes_through_at_its_piece(broken):
    seen: list[int] = []
    with Feed(ListedRows(broken), memory_duals(), keep_features=False) as feed:
        with pytest.raises(OSError, match=f"chunk at row {broken} is gone"):
            seen.extend(v.range.start for v in feed.visit(range(6), update=True))
    assert seen == list(range(0, broken, 4))


def test_a_writing_error_comes_through_even_for_the_last_piece():
    for order in ([0], [0, 1], range(6)):
        with Feed(ListedRows(), memory_duals(BrokenDuals), keep_features=False) as feed:
            with pytest.raises(OSError, match="no space for row"):
                list(feed.visit(order, update=True))


def test_an_error_of_the_caller_comes_through_and_ends_the_thread():
    def work(feed):
        for visit in feed.visit(range(6), update=True):
            raise RuntimeError(f"at {visit.range.start}")

    with Feed(ListedRows(), memory_duals(), keep_features=False) as feed:
        with pytest.raises(RuntimeError, match="at 0"):
            work(feed)
    assert not any(t.name.startswith("dtopk-read") for t in threading.enumerate())
