"""A small, separable store that several rooms test with."""

from pathlib import Path

import numpy as np

from dtopk_storage import FeatureStore, create_store


def make_rows(n_rows, *, n_classes=4, n_features=6, seed=0):
    """Draw rows around one mean a class; most of them lie nearest to their own."""
    means = np.random.default_rng(0).normal(size=(n_classes, n_features))
    rng = np.random.default_rng(seed)
    y = rng.integers(0, n_classes, size=n_rows).astype(np.int32)
    return (means[y] + 1.5 * rng.normal(size=(n_rows, n_features))).astype(np.float32), y


def make_store(
    path: Path, *, class_names=("ant", "bee", "cat", "dog"), n_train=120, n_test=50, chunk_rows=32
) -> FeatureStore:
    """Write a store with splits 'train' and 'test'."""
    with create_store(path, n_features=6, class_names=class_names, chunk_rows=chunk_rows) as writer:
        writer.append(*make_rows(n_train, seed=1), split="train")
        writer.append(*make_rows(n_test, seed=2), split="test")
    from dtopk_storage import open_store

    return open_store(path)
