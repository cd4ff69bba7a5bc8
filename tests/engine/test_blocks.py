"""Blocks cover the rows once, and are dealt by seed, epoch and number of partitions alone."""

import numpy as np
import pytest

from dtopk.engine.blocks import Dealer, make_layout
from dtopk.engine.rows import PieceRange


def pieces(*sizes, chunk=1000):
    return tuple(
        PieceRange(start=i * chunk, stop=i * chunk + size, chunk_start=i * chunk,
                   chunk_stop=(i + 1) * chunk)
        for i, size in enumerate(sizes)
    )  # fmt: skip


def rows_of(blocks):
    return sorted(row for block in blocks for row in range(block.start, block.stop))


@pytest.mark.parametrize("n_partitions", [1, 2, 7])
@pytest.mark.parametrize("streamed", [False, True])
def test_blocks_cover_every_row_once_and_stay_in_their_chunk(n_partitions, streamed):
    given = pieces(*[1000] * 7, 313)
    layout = make_layout(given, 10, n_partitions=n_partitions, streamed=streamed)
    assert rows_of(layout.blocks) == rows_of(given)
    assert all(b.chunk_start <= b.start < b.stop <= b.chunk_stop for b in layout.blocks)
    assert layout.n_samples == 7313
    if streamed or n_partitions == 1:
        assert layout.blocks == given


def test_blocks_have_the_rows_asked_for_or_few_of_a_partition():
    given = pieces(*[1000] * 32)
    asked = make_layout(given, 10, n_partitions=4, streamed=False, block_rows=100)
    assert {block.n_rows for block in asked.blocks} == {100}
    chosen = make_layout(given, 10, n_partitions=4, streamed=False)
    assert (
        max(block.n_rows for block in chosen.blocks) == 59
    )  # 32000 / (128 * 4) = 62, in even parts


def test_blocks_that_are_larger_than_a_batch_are_whole_batches():
    given = pieces(*[1000] * 128)
    for batch, n_blocks in ((96, 6), (128, 8), (250, 4), (256, 4)):
        layout = make_layout(given, 10, n_partitions=4, streamed=False, batch_rows=batch)
        assert rows_of(layout.blocks) == rows_of(given)
        assert len(layout.blocks) == 128 * n_blocks
        assert max(block.n_rows for block in layout.blocks) <= 250
        if batch < 256:
            broken = [block for block in layout.blocks if block.n_rows % batch]
            assert all(block.stop % 1000 == 0 for block in broken)


@pytest.mark.parametrize(
    ("n_rows", "n_partitions", "rounds"),
    [
        (64_000, 1, 1),
        (64_000, 2, 7),
        (640_000, 2, 8),
        (16_000, 2, 2),
        (16_000, 16, 16),
        (64_000, 64, 32),
    ],
)
def test_rounds_follow_from_rows_and_partitions(n_rows, n_partitions, rounds):
    given = pieces(*[1000] * (n_rows // 1000))
    assert make_layout(given, 10, n_partitions=n_partitions, streamed=False).n_rounds == rounds


@pytest.mark.parametrize(("n_blocks", "rounds"), [(6, 1), (16, 2), (40, 4), (400, 8)])
def test_a_round_of_streamed_rows_has_blocks_to_be_mixed(n_blocks, rounds):
    layout = make_layout(pieces(*[1000] * n_blocks), 10, n_partitions=2, streamed=True)
    assert layout.n_rounds == rounds


def test_more_partitions_than_blocks_are_refused():
    with pytest.raises(ValueError, match=r"partitions must be at most the 3 blocks .* got 4"):
        make_layout(pieces(10, 10, 10), 10, n_partitions=4, streamed=True)


@pytest.mark.parametrize("width", [1, 10, 64, 1000])
def test_slices_cover_the_weights(width):
    slices = make_layout(pieces(10), width, n_partitions=1, streamed=False).slices
    assert [row for first, last in slices for row in range(first, last)] == list(range(width))
    assert len(slices) == min(width, 64)


@pytest.mark.parametrize("share", ["all", "a quarter"])
def test_each_epoch_visits_every_block_once_in_rounds(share):
    layout = make_layout(
        pieces(*[1000] * 32), 10, n_partitions=4, streamed=share == "all", n_rounds=3
    )
    dealer = Dealer(layout, seed=5)
    for epoch in (1, 2, 3):
        if epoch > 1:
            before = dealer.owners.copy()
            dealer.redeal(epoch)
            moved = np.mean(before != dealer.owners)
            assert 0 < moved <= layout.share
        orders = dealer.orders(epoch)
        assert len(orders) == 3
        visited = [block for parts in orders for blocks in parts for block in blocks]
        assert sorted(visited) == list(range(len(layout.blocks)))
        for parts in orders:
            for partition, blocks in enumerate(parts):
                assert (dealer.owners[blocks] == partition).all()


def test_partitions_have_nearly_the_same_number_of_blocks_for_ever():
    layout = make_layout(pieces(*[1000] * 9), 10, n_partitions=4, streamed=False, block_rows=90)
    dealer = Dealer(layout, seed=0)
    for epoch in range(2, 30):
        dealer.redeal(epoch)
        counts = np.bincount(dealer.owners, minlength=4)
        assert counts.max() - counts.min() <= 1


def test_dealing_goes_on_from_the_owners_alone():
    layout = make_layout(pieces(*[1000] * 8), 10, n_partitions=4, streamed=False)
    dealer, other = Dealer(layout, seed=1), Dealer(layout, seed=1)
    dealer.redeal(2)
    other.owners = np.array(dealer.owners.tolist())
    dealer.redeal(3)
    other.redeal(3)
    assert dealer.orders(3) == other.orders(3)
