"""Rows that are read in blocks are trained on in nearly as few passes as rows in one piece."""

import inspect

import numpy as np
import pytest

from dtopk.engine import ArrayRows, FitOptions, fit
from dtopk.engine.feed import Visit
from dtopk.engine.mixed_visits import MixedVisits
from dtopk.engine.rows import Piece
from dtopk.losses import make_loss
from dtopk.testing import make_features

N_CLASSES = 20


def count_epochs(monkeypatch, piece_rows, **options):
    monkeypatch.setattr("dtopk.engine.rows._PIECE_DUALS", piece_rows * N_CLASSES)
    X, labels = make_features(16_000, 64, N_CLASSES, seed=0)
    loss = make_loss("topk_hinge_alpha", k=1, gamma=1.0)
    plain = FitOptions(C=0.1, tol=1e-3, max_epochs=12, acceleration="off", **options)
    result = fit(ArrayRows(X, labels, N_CLASSES), loss, plain)
    assert result.certificate.relative_gap <= 1e-3
    return result.epochs


def test_rows_in_pieces_take_few_passes_more(monkeypatch):
    # 10 where each of the pieces is visited as a whole.
    assert count_epochs(monkeypatch, 16_000) <= 4
    assert count_epochs(monkeypatch, 1000) <= 5


def test_partitions_take_few_passes_more(monkeypatch):
    # 9 where blocks are four times as large and each is visited as a whole.
    assert count_epochs(monkeypatch, 16_000, partitions=4) <= 6


def make_visits(sizes):
    """Make blocks whose rows are their numbers, counted through all blocks."""
    start = 0
    for block, size in enumerate(sizes):
        rows = np.arange(start, start + size)
        piece = Piece(X=rows[:, None], labels=rows.astype(np.int32), weight=np.ones(size))
        yield Visit(block=10 + block, piece=piece, dual=-rows[:, None])
        start += size


def weigh(visit):
    return 2.0 * visit.piece.labels


def deal(sizes, stop=lambda: False):
    mixed = MixedVisits(len(sizes), max(sizes), 8)
    steps = mixed.deal(make_visits(sizes), weigh, (1, 2), stop)
    return mixed, [batch for step in steps for batch in step]


@pytest.mark.parametrize("sizes", [[20], [3, 3, 2], [30, 30, 30, 30, 30, 30, 7]])
def test_parts_have_what_belongs_to_their_rows(sizes):
    _, batches = deal(sizes)
    seen = []
    for batch in batches:
        assert batch.n_rows <= 8
        for block, part in zip(batch.blocks, batch.parts, strict=True):
            rows = part.X[part.rows, 0]
            assert (np.searchsorted(np.cumsum(sizes), rows, side="right") + 10 == block).all()
            np.testing.assert_array_equal(part.labels[part.rows], rows)
            np.testing.assert_array_equal(part.costs[part.rows], 2.0 * rows)
            np.testing.assert_array_equal(part.dual[part.rows, 0], -rows)
            seen += rows.tolist()
    assert sorted(seen) == list(range(sum(sizes)))


def test_blocks_are_held_as_long_as_said():
    mixed, _ = deal([3, 3, 2])
    assert mixed.n_held == 3  # which are one batch
    mixed, batches = deal([8] * 9)
    assert mixed.n_held == 4
    latest = 0
    for batch in batches:
        latest = max(latest, *batch.blocks)
        assert min(batch.blocks) > latest - 4


@pytest.mark.parametrize("sizes", [[20], [8] * 9, [3, 3, 2, 5]])
def test_the_last_blocks_are_held_until_their_rows_are_visited(sizes):
    """An iterator that is asked for more than there are ends, and their duals would be kept."""
    visits = make_visits(sizes)
    mixed = MixedVisits(len(sizes), max(sizes), 8)
    steps = list(mixed.deal(visits, weigh, (1, 2), lambda: False))
    assert sum(batch.n_rows for step in steps for batch in step) == sum(sizes)
    assert inspect.getgeneratorstate(visits) == inspect.GEN_SUSPENDED


def test_a_stop_takes_no_further_block_and_leaves_no_row_of_those_in_hand():
    told = iter([False, False, True])
    _, batches = deal([8] * 9, stop=lambda: next(told))
    rows = [row for batch in batches for part in batch.parts for row in part.rows.tolist()]
    assert {block for batch in batches for block in batch.blocks} == {10, 11, 12}
    assert sorted(rows) == sorted([*range(8)] * 3)
