"""What of a chunk is kept where several blocks are cut from it."""

from dataclasses import replace

import numpy as np
import pytest

from dtopk.engine.duals import InPlaceDuals
from dtopk.engine.feed import Feed
from dtopk.engine.rows import PieceRange, StoreRows
from dtopk_storage import DatasetError, create_store, open_store

D, M, CHUNK = 3, 2, 8
# Two chunks; of the second one, rows 10 and 11 are of another split.
RANGES = [(0, 3), (3, 6), (6, 8), (8, 10), (12, 14), (14, 16)]
BLOCKS = tuple(
    PieceRange(start=a, stop=b, chunk_start=a - a % CHUNK, chunk_stop=a - a % CHUNK + CHUNK)
    for a, b in RANGES
)


class CountedRows(StoreRows):
    """Rows that note what is read."""

    def __init__(self, store):
        super().__init__(store, "train")
        self.reads = []

    def read(self, piece):
        self.reads.append((piece.start, piece.stop))
        return super().read(piece)


@pytest.fixture
def rows(tmp_path):
    X = np.arange(16 * D, dtype=np.float32).reshape(16, D)
    y = (np.arange(16) % M).astype(np.int32)
    with create_store(
        tmp_path / "s", n_features=D, class_names=["a", "b"], chunk_rows=CHUNK, dtype="float32"
    ) as writer:
        writer.append(X[:10], y[:10], split="train")
        writer.append(X[10:12], y[10:12], split="test")
        writer.append(X[12:], y[12:], split="train")
    return CountedRows(open_store(tmp_path / "s"))


@pytest.fixture
def make_feed(rows):
    feeds = []

    def make_feed(**options):
        duals = InPlaceDuals(BLOCKS, M, "float32")
        feeds.append(Feed(rows, BLOCKS, duals, **options))
        return feeds[-1]

    yield make_feed
    for feed in feeds:
        feed.close()


def check(feed, block):
    start, stop = RANGES[block]
    expected = np.arange(start * D, stop * D, dtype=np.float32).reshape(-1, D)
    piece = feed.read(block)
    np.testing.assert_array_equal(piece.X, expected)
    np.testing.assert_array_equal(piece.labels, np.arange(start, stop) % M)
    assert len(piece.weight) == stop - start
    return piece.X


def test_a_chunk_is_read_once_for_all_of_its_blocks(make_feed, rows):
    feed = make_feed(keep_features=True)
    for block in (1, 0, 2, 1):
        check(feed, block)
    assert rows.reads == [(0, 8)]


def test_rows_of_another_split_are_not_read(make_feed, rows):
    feed = make_feed(keep_features=True)
    for block in (5, 3, 4):
        check(feed, block)
    assert rows.reads == [(12, 16), (8, 10)]


def test_blocks_keep_their_own_rows_in_memory_and_not_their_chunk(make_feed):
    feed = make_feed(keep_features=True)
    for block in range(len(BLOCKS)):
        X = check(feed, block)
        assert X.base is None or X.base.nbytes == X.nbytes


def test_blocks_of_other_processes_are_not_kept(make_feed, rows):
    feed = make_feed(keep_features=True)
    feed.drop([0, 3, 4, 5])
    check(feed, 2)
    check(feed, 1)
    assert rows.reads == [(3, 8)]
    # Block 0 comes, block 2 goes.
    feed.drop([2, 3, 4, 5])
    check(feed, 0)
    assert rows.reads == [(3, 8), (0, 3)]
    feed.drop([3, 4, 5])
    check(feed, 2)
    assert rows.reads[2:] == [(6, 8)]


def test_streamed_blocks_are_read_every_time(make_feed, rows):
    feed = make_feed(keep_features=False)
    check(feed, 0)
    check(feed, 0)
    assert rows.reads == [(0, 3), (0, 3)]


def test_a_block_that_is_a_whole_chunk_is_kept_without_a_copy(rows):
    whole = replace(BLOCKS[0], stop=8)
    duals = InPlaceDuals((whole,), M, "float32")
    with Feed(rows, (whole,), duals, keep_features=True) as feed:
        X = feed.read(0).X
        assert X.base is not None
        assert feed.read(0).X is X


def test_rows_read_later_in_a_longer_stretch_are_checked_too(rows):
    """A block that was found sound says nothing of the block behind it."""
    features = rows.store.arrays["features"]
    X = features.read_chunk(0).copy()
    X[5, 1] = np.nan
    features.write_chunk(0, X)
    rows.read(BLOCKS[0])
    with pytest.raises(DatasetError, match="row 5, column 1"):
        rows.read(replace(BLOCKS[0], stop=8))
