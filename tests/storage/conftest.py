"""A small store, and where its chunks are."""

import numpy as np
import pytest

from dtopk_storage import create_store, open_store


@pytest.fixture
def rows():
    """Features of shape (50, 6), float32, and labels of shape (50,) in 0:3."""
    rng = np.random.default_rng(7)
    return rng.standard_normal((50, 6)).astype(np.float32), rng.integers(0, 3, 50)


@pytest.fixture
def store(tmp_path, rows):
    """50 rows in chunks of 8; rows 0:30 are train and 30:50 val."""
    X, y = rows
    with create_store(
        tmp_path / "store", n_features=6, class_names=["cat", "dog", "eel"], chunk_rows=8
    ) as writer:
        writer.append(X[:30], y[:30])
        writer.append(X[30:], y[30:], split="val")
    return open_store(tmp_path / "store")


@pytest.fixture
def flip_byte():
    """Return a function that changes one byte in the middle of a file."""

    def flip(path):
        data = bytearray(path.read_bytes())
        data[len(data) // 2] ^= 0x10
        path.write_bytes(data)

    return flip
