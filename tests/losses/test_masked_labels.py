import pickle

import numpy as np
import pytest

from dtopk.losses import LabelSets, MaskedLabels, join_labels, make_loss

CODES = np.array([2, 0, 1, 3, 0], np.int32)
MASKED = np.array([[0, 1], [2, 3], [1, 3], [0, 2], [0, 1]], np.int32)


@pytest.fixture
def masks():
    return MaskedLabels(CODES, MASKED)


@pytest.mark.parametrize(
    "rows", [slice(None), slice(1, 4), slice(2, 2), slice(None, None, -1), np.array([3, 3, 0])]
)
def test_rows_are_picked_as_those_of_an_array(masks, rows):
    picked = masks[rows]
    assert len(picked) == len(CODES[rows])
    np.testing.assert_array_equal(picked.labels, CODES[rows])
    np.testing.assert_array_equal(picked.masked, MASKED[rows])


def test_one_row_is_its_label_and_its_masked_classes(masks):
    row = masks[np.int64(1)]
    assert row.label == 0
    assert row.masked.tolist() == [2, 3]
    assert [row.label for row in masks] == CODES.tolist()


def test_masks_tell_whether_they_hold_the_label(masks):
    assert masks.n_masked == 2
    assert masks.masks_label.tolist() == [False, False, True, False, True]
    none = MaskedLabels(CODES, MASKED[:, :0])
    assert none.n_masked == 0
    assert not none.masks_label.any()


def test_join_labels_puts_masked_labels_after_one_another(masks):
    joined = join_labels([masks[3:], masks[:3]])
    np.testing.assert_array_equal(joined.labels, np.roll(CODES, 2))
    np.testing.assert_array_equal(joined.masked, np.roll(MASKED, 2, axis=0))
    assert joined.masked.dtype == np.int32


def test_join_labels_still_joins_what_has_no_masks():
    assert join_labels([CODES[:2], CODES[2:]]).tolist() == CODES.tolist()
    assert len(join_labels([LabelSets.from_labels(CODES)] * 2)) == 2 * len(CODES)


def test_masked_labels_pickle(masks):
    again = pickle.loads(pickle.dumps(masks[1:4]))
    np.testing.assert_array_equal(again.labels, CODES[1:4])
    np.testing.assert_array_equal(again.masked, MASKED[1:4])


def test_a_convex_loss_has_no_masks_to_choose():
    with pytest.raises(ValueError, match=r"loss 'softmax' is convex and leaves no classes out\."):
        make_loss("softmax").choose_masks(np.zeros((1, 3)), np.zeros(1, np.int32))
    assert make_loss("softmax").n_masked == 0
