import pickle

import numpy as np
import pytest

from dtopk.losses import LabelSets, join_labels

INDICATOR = np.array(
    [[1, 0, 1, 0], [0, 0, 0, 0], [0, 1, 0, 0], [1, 1, 1, 1], [0, 0, 0, 1]], dtype=bool
)
ROWS = [[0, 2], [], [1], [0, 1, 2, 3], [3]]


@pytest.fixture
def sets():
    return LabelSets.from_indicator(INDICATOR)


def as_lists(sets):
    return [row.tolist() for row in sets]


def test_from_indicator_lists_the_columns_that_are_not_zero(sets):
    assert as_lists(sets) == ROWS
    assert sets.indptr.tolist() == [0, 2, 2, 3, 7, 8]
    assert sets.indices.dtype == np.int32
    assert sets.counts.tolist() == [2, 0, 1, 4, 1]


@pytest.mark.parametrize("dtype", [np.int8, np.int64, np.float32])
def test_from_indicator_takes_numbers(dtype):
    assert as_lists(LabelSets.from_indicator(INDICATOR.astype(dtype))) == ROWS


def test_to_indicator_undoes_from_indicator(sets):
    np.testing.assert_array_equal(sets.to_indicator(4), INDICATOR)
    assert sets.to_indicator(6).shape == (5, 6)
    assert sets.to_indicator(6).sum() == INDICATOR.sum()


def test_from_labels_makes_sets_of_one_label():
    labels = np.array([3, 0, 3], np.int32)
    sets = LabelSets.from_labels(labels)
    assert as_lists(sets) == [[3], [0], [3]]
    assert sets.counts.tolist() == [1, 1, 1]


@pytest.mark.parametrize(
    "rows",
    [
        slice(None),
        slice(1, 4),
        slice(2, 2),
        slice(3, 1),
        slice(None, -1),
        slice(0, 5, 2),
        slice(None, None, -1),
    ],
)
def test_a_slice_picks_the_rows_that_a_list_would_give(sets, rows):
    picked = sets[rows]
    assert as_lists(picked) == ROWS[rows]
    assert len(picked) == len(ROWS[rows])
    np.testing.assert_array_equal(picked.to_indicator(4), INDICATOR[rows])


@pytest.mark.parametrize("rows", [[], [4], [3, 3, 0], [1, 1], [4, 3, 2, 1, 0]])
def test_an_array_of_row_numbers_picks_rows_in_its_order(sets, rows):
    picked = sets[np.array(rows, np.int64)]
    assert as_lists(picked) == [ROWS[row] for row in rows]
    assert picked.indices.dtype == np.int32


def test_rows_are_picked_from_a_slice_as_from_a_whole(sets):
    part = sets[1:5]
    assert as_lists(part[np.array([3, 1])]) == [ROWS[4], ROWS[2]]
    assert as_lists(part[2:]) == ROWS[3:]
    assert part[np.int64(2)].tolist() == ROWS[3]


def test_concatenate_puts_slices_after_one_another(sets):
    joined = LabelSets.concatenate([sets[3:], sets[1:2], sets[:3]])
    assert as_lists(joined) == ROWS[3:] + ROWS[1:2] + ROWS[:3]
    assert joined.indptr[0] == 0
    assert joined.indptr[-1] == len(joined.indices)


def test_join_labels_joins_what_it_is_given(sets):
    assert as_lists(join_labels([sets[:2], sets[2:]])) == ROWS
    labels = join_labels([np.array([1, 2], np.int32), np.array([0], np.int32)])
    assert labels.tolist() == [1, 2, 0]
    assert labels.dtype == np.int32


def test_label_sets_pickle(sets):
    again = pickle.loads(pickle.dumps(sets[1:4]))
    assert as_lists(again) == ROWS[1:4]
