"""Splits partition the rows, and each stands together."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dtopk_storage import DatasetError
from dtopk_storage.ingest import IngestOptions
from dtopk_storage.ingest.splits import arrange
from dtopk_storage.sources.base import Vector


def rows_of(arrangement, name, n_samples):
    """Return the source's rows of a split, in the order of the store."""
    order = np.arange(n_samples) if arrangement.order is None else arrangement.order
    return np.concatenate([order[start:stop] for start, stop in arrangement.splits[name]])


def arranged(options, n_samples, split_names=None, own=None):
    return arrange(options, n_samples, split_names=split_names, own=own, place="'a'")


def names_vector(names):
    return Vector(place="'names.txt'", blocks=lambda: iter(np.array_split(np.array(names), 3)))


@given(
    n_samples=st.integers(20, 200),
    val=st.floats(0.05, 0.4),
    test=st.floats(0.05, 0.4),
    seed=st.integers(0, 99),
    shuffle=st.booleans(),
)
def test_fractions_partition_the_rows(n_samples, val, test, seed, shuffle):
    options = IngestOptions(splits=(("val", val), ("test", test)), seed=seed, shuffle=shuffle)
    arrangement = arranged(options, n_samples)
    assert list(arrangement.splits) == ["train", "val", "test"]
    parts = {name: rows_of(arrangement, name, n_samples) for name in arrangement.splits}
    assert len(parts["val"]) == round(val * n_samples)
    assert len(parts["test"]) == round(test * n_samples)
    assert sorted(np.concatenate(list(parts.values()))) == list(range(n_samples))
    assert all(len(ranges) == 1 for ranges in arrangement.splits.values())
    if not shuffle:
        assert all((np.diff(rows) > 0).all() for rows in parts.values())


@given(
    names=st.lists(st.sampled_from(["train", "a", "b"]), min_size=1, max_size=60).filter(
        lambda names: "train" in names
    ),
    shuffle=st.booleans(),
)
def test_named_splits_gather_their_rows(names, shuffle):
    options = IngestOptions(split_names_key="part", shuffle=shuffle)
    arrangement = arranged(options, len(names), names_vector(names))
    assert next(iter(arrangement.splits)) == "train"
    for name in set(names):
        rows = rows_of(arrangement, name, len(names))
        assert sorted(rows) == [row for row, own in enumerate(names) if own == name]


@given(cuts=st.lists(st.integers(1, 99), min_size=1, max_size=5, unique=True).map(sorted))
def test_splits_by_row_leave_the_rest_to_train(cuts):
    """Every second piece between the cuts is 'val'."""
    edges = [0, *cuts, 100]
    pieces = list(itertools.pairwise(edges))
    options = IngestOptions(split_rows=tuple(("val", *piece) for piece in pieces[1::2]))
    arrangement = arranged(options, 100)
    assert arrangement.order is None
    assert arrangement.splits == {"train": tuple(pieces[::2]), "val": tuple(pieces[1::2])}


def test_shuffling_keeps_splits_by_row_apart():
    rows = (("train", 0, 50), ("val", 50, 60), ("train", 60, 100))
    options = IngestOptions(split_rows=rows, shuffle=True)
    arrangement = arranged(options, 100)
    train = rows_of(arrangement, "train", 100)
    assert sorted(train) == [*range(50), *range(60, 100)]
    assert sorted(rows_of(arrangement, "val", 100)) == list(range(50, 60))
    assert (train[:50] >= 60).any()


def test_rows_outside_an_explicit_train_belong_to_no_split():
    options = IngestOptions(split_rows=(("train", 0, 50), ("val", 60, 70)))
    assert arranged(options, 100).splits == {"train": ((0, 50),), "val": ((60, 70),)}


def test_the_seed_decides():
    def draw(seed):
        options = IngestOptions(splits=(("val", 0.5),), seed=seed)
        return rows_of(arranged(options, 100), "val", 100).tolist()

    assert draw(1) == draw(1)
    assert draw(1) != draw(2)


def test_fractions_with_train_sum_to_one():
    options = IngestOptions(splits=(("train", 0.8), ("val", 0.2)))
    assert arranged(options, 50).splits == {"train": ((0, 40),), "val": ((40, 50),)}


BAD_OPTIONS = {
    "two_ways": (
        {"splits": (("val", 0.1),), "split_rows": (("val", 0, 1),)},
        "must be given in one way",
    ),
    "zero": ({"splits": (("val", 0.0),)}, r"fraction of split 'val' must be above 0 .* got 0\.0"),
    "nan": ({"splits": (("val", float("nan")),)}, r"must be above 0 and at most 1, got nan"),
    "no_train": ({"splits": (("a", 0.5), ("b", 0.5))}, "must leave rows for 'train', got a sum of"),
    "too_little": ({"splits": (("train", 0.5), ("b", 0.4))}, r"must sum to 1 .* got 0\.9"),
    "twice": ({"splits": (("a", 0.1), ("a", 0.1))}, "split 'a' must be given once"),
    "backwards": ({"split_rows": (("a", 5, 5),)}, r"0 <= START < STOP, got 5:5"),
    "divisor": ({"divide_by": 0.0}, r"divide_by must be finite and not 0, got 0\.0"),
    "seed": ({"seed": -1}, "seed must be at least 0, got -1"),
    "chunk": ({"chunk_bytes": 0}, "chunk_bytes must be at least 1, got 0"),
    "dtype": ({"dtype": "bfloat16"}, "float16, float32 or float64, got 'bfloat16'"),
    "compression": ({"compression": "xz"}, "'none', 'lz4' or 'zstd', got 'xz'"),
}


@pytest.mark.parametrize(("options", "message"), BAD_OPTIONS.values(), ids=BAD_OPTIONS)
def test_bad_options_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        IngestOptions(**options)


BAD_ROWS = {
    "beyond": ((("val", 90, 101),), r"split 'val' must lie in 0:100, got 90:101 for 'a'"),
    "shared": ((("train", 0, 60), ("val", 50, 70)), "got row 50 in 'train' and in 'val'"),
    "nothing_left": ((("val", 0, 100),), "split 'train' of 'a' must have at least 1 row"),
}


@pytest.mark.parametrize(("rows", "message"), BAD_ROWS.values(), ids=BAD_ROWS)
def test_bad_splits_by_row_are_refused(rows, message):
    with pytest.raises(DatasetError, match=message):
        arranged(IngestOptions(split_rows=rows), 100)


def test_a_fraction_that_rounds_to_no_row_is_refused():
    with pytest.raises(DatasetError, match="split 'val' of 'a' must have at least 1 row"):
        arranged(IngestOptions(splits=(("val", 0.001),)), 100)


def test_names_without_train_are_refused():
    options = IngestOptions(split_names_key="part")
    with pytest.raises(DatasetError, match=r"must include 'train', got \['a', 'b'\] in 'names"):
        arranged(options, 4, names_vector(["a", "b", "a", "b"]))


def test_names_of_another_length_are_refused():
    options = IngestOptions(split_names_key="part")
    with pytest.raises(DatasetError, match=r"as many rows as the labels, 5, got 4 in 'names\.txt'"):
        arranged(options, 5, names_vector(["train"] * 4))
