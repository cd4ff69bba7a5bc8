"""Rows of several blocks in turns: each is visited once, while its block is in hand."""

import numpy as np
import pytest

from dtopk.solvers.mixing import RowMixer, count_group_blocks


def deal(groups, n_groups, batch_rows, seed=0):
    """Return the batches of each step."""
    mixer = RowMixer(n_groups, batch_rows)
    steps = [mixer.add(sizes, np.random.default_rng(seed)) for sizes in groups]
    return steps + list(mixer.finish())


GROUPS = [
    [[40]],
    [[7, 1], [5, 5], [3]],
    [[30], [30], [30], [30], [30], [2]],
    [[1], [1], [1]],
]


@pytest.mark.parametrize("groups", GROUPS)
@pytest.mark.parametrize("n_groups", [1, 2, 4])
@pytest.mark.parametrize("batch_rows", [1, 8, 64])
def test_every_row_is_visited_once_in_batches_that_are_full(groups, n_groups, batch_rows):
    sizes = [size for group in groups for size in group]
    visited = []
    for batches in deal(groups, n_groups, batch_rows):
        counts = [sum(len(rows) for _, rows in batch) for batch in batches]
        assert all(count == batch_rows for count in counts[:-1])
        assert all(0 < count <= batch_rows for count in counts)
        for batch in batches:
            blocks = [block for block, _ in batch]
            assert blocks == sorted(set(blocks))
            visited += [(block, row) for block, rows in batch for row in rows.tolist()]
    assert sorted(visited) == [(block, row) for block, n in enumerate(sizes) for row in range(n)]


def test_a_block_is_let_go_when_as_many_groups_have_come():
    groups = [[9, 9]] * 6
    for step, batches in enumerate(deal(groups, 3, 8)):
        blocks = {block for batch in batches for block, _ in batch}
        in_hand = range(max(step - 2, 0), min(step, 5) + 1)
        assert blocks == {2 * group + i for group in in_hand for i in range(2)}


def test_of_each_group_in_hand_there_is_an_equal_share():
    steps = deal([[400]] * 5, 4, 100)
    assert [sum(len(rows) for batch in batches for _, rows in batch) for batches in steps] == [
        100, 200, 300, 400, 400, 300, 200, 100,
    ]  # fmt: skip
    # A batch has rows of all of them, as a random choice has.
    for batch in steps[3]:
        assert [block for block, _ in batch] == [0, 1, 2, 3]
        assert all(8 < len(rows) < 45 for _, rows in batch)


def test_rows_of_one_block_come_in_the_order_that_is_drawn():
    [batches] = deal([[50]], 1, 16, seed=3)
    order = np.random.default_rng(3).permutation(50)
    np.testing.assert_array_equal(np.concatenate([batch[0][1] for batch in batches]), order)
    assert all(len(batch) == 1 and batch[0][1].flags.c_contiguous for batch in batches)


def test_a_group_has_the_rows_of_a_batch():
    assert [count_group_blocks(rows, 128) for rows in (1, 31, 64, 127, 128, 5000)] == [
        128, 5, 2, 2, 1, 1,
    ]  # fmt: skip
