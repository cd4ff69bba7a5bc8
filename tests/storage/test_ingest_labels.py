"""Labels of any type become codes of the sorted classes."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dtopk_storage import DatasetError
from dtopk_storage.ingest.labels import LabelEncoder, read_weights
from dtopk_storage.sources.base import Vector


def encode(*blocks, is_text=False):
    encoder = LabelEncoder("'y.npy'", is_text=is_text)
    for block in blocks:
        encoder.add(np.asarray(block))
    codes, names, kind = encoder.finish()
    return codes.tolist(), names, kind


CASES = {
    "ints_by_value": ([10, 9, -1, 9], ([2, 1, 0, 1], ("-1", "9", "10"), "int")),
    "uint8": (np.array([7, 3], np.uint8), ([1, 0], ("3", "7"), "int")),
    "large_uint64": (np.array([2**63 - 1, 3], np.uint64), ([1, 0], ("3", str(2**63 - 1)), "int")),
    "large_floats": ([2.0**53, 2.0**53 - 1], ([1, 0], (str(2**53 - 1), str(2**53)), "int")),
    "bools": ([True, False], ([1, 0], ("0", "1"), "int")),
    "whole_floats": ([2.0, 10.0, 2.0], ([0, 1, 0], ("2", "10"), "int")),
    "strings_by_character": (["b", "a", "10", "9"], ([3, 2, 0, 1], ("10", "9", "a", "b"), "str")),
    "strings_of_digits_stay_strings": (["10", "9"], ([0, 1], ("10", "9"), "str")),
    "bytes": ([b"caf\xc3\xa9", b"a"], ([1, 0], ("a", "café"), "str")),
    "objects": (np.array(["b", "a"], object), ([1, 0], ("a", "b"), "str")),
}


@pytest.mark.parametrize(("labels", "expected"), CASES.values(), ids=CASES)
def test_labels_are_encoded(labels, expected):
    assert encode(labels) == expected


def test_text_becomes_integers_when_all_of_it_is():
    assert encode(["10", "9"], ["-3"], is_text=True) == ([2, 1, 0], ("-3", "9", "10"), "int")
    assert encode(["10", "9"], ["x"], is_text=True) == ([0, 1, 2], ("10", "9", "x"), "str")
    assert encode(["007", "7"], is_text=True) == ([0, 1], ("007", "7"), "str")


def test_text_of_integers_that_are_too_large_stays_text():
    large = str(2**63)
    assert encode([large, "7"], is_text=True) == ([1, 0], ("7", large), "str")
    assert encode(["9" * 5000, "7"], is_text=True)[2] == "str"


@given(st.lists(st.lists(st.integers(-50, 50), max_size=8), max_size=6))
def test_codes_do_not_depend_on_the_blocks(blocks):
    flat = [label for block in blocks for label in block]
    expected = encode(np.array(flat, np.int64))
    assert encode(*[np.array(block, np.int64) for block in blocks]) == expected
    classes = sorted(set(flat))
    assert [classes[code] for code in expected[0]] == flat


BAD = {
    "fraction": ([1.0, 2.5], r"must be whole numbers, .* got 2\.5 in row 3 of 'y\.npy'"),
    "nan": ([1.0, np.nan], r"must be whole numbers, .* got nan in row 3 of"),
    "inf": ([1.0, -np.inf], r"must be whole numbers, .* got -inf in row 3 of"),
    "large_uint": (
        np.array([1, 2**63], np.uint64),
        r"must be signed integers of 64 bits, got 9223372036854775808 in row 3 of",
    ),
    "large_objects": (np.array([1, 10**20], object), r"of 64 bits, got 10{20} in row 3 of"),
    "large_floats": (
        [1e15, 1e20],
        r"at most 9007199254740992 in size as float64, got 1e\+20 in row",
    ),
    "large_float32": (
        np.array([2**24, 2**24 + 2], np.float32),
        r"at most 16777216 in size as float32, got 16777218\.0 in row 3 of",
    ),
    "none": (np.array(["a", None], object), r"must not be missing, got None in row 3 of"),
    "empty": (["a", ""], r"must not be missing, got '' in row 3 of 'y\.npy'"),
    "empty_bytes": ([b"a", b""], r"must not be missing, got '' in row 3 of"),
    "complex": ([1j, 2j], r"got 'complex128' in 'y\.npy'"),
    "three_dimensions": (np.ones((2, 3, 4), int), r"\(n_samples, n_classes\), got 3 dimensions in"),
}


@pytest.mark.parametrize(("labels", "message"), BAD.values(), ids=BAD)
def test_bad_labels_are_refused(labels, message):
    encoder = LabelEncoder("'y.npy'", is_text=False)
    encoder.add(np.array([1, 2]))
    with pytest.raises(DatasetError, match=message):
        encoder.add(np.asarray(labels))


def test_empty_lines_are_missing_labels():
    with pytest.raises(DatasetError, match=r"must not be missing, got '' in row 1"):
        encode(["a", "", "b"], is_text=True)


def test_weights_that_are_no_numbers_are_refused():
    vector = Vector(place="'w.txt'", blocks=lambda: iter([np.array(["1", "heavy"])]))
    with pytest.raises(DatasetError, match=r"must be numbers, got: .*heavy.* in 'w\.txt'"):
        read_weights(vector)
