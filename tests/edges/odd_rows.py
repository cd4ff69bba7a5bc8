"""Rows at the edge of what can be trained on."""

import numpy as np

M = 5
"""Classes of most of them."""


def plain_rows(n=24, d=4):
    """Draw rows near the unit vectors of their classes."""
    y = (np.arange(n) % M).astype(np.int32)
    return np.random.default_rng(0).normal(size=(n, d)) + 2 * np.eye(M, d)[y], y


def _constant():
    X, y = plain_rows()
    return np.full_like(X, 3.0), y


def _zero():
    X, y = plain_rows()
    return np.zeros_like(X), y


def _one_constant():
    X, y = plain_rows()
    X[:, 1] = 7.0
    return X, y


def _duplicates():
    X, y = plain_rows()
    return np.repeat(X[:5], 5, axis=0), np.repeat(y[:5], 5)


def _conflicting():
    X, _ = plain_rows()
    return np.repeat(X[:5], 5, axis=0), np.tile(np.arange(5, dtype=np.int32), 5)


def _one_each():
    X, y = plain_rows()
    return X[:M], y[:M]


def _without(label, instead):
    X, y = plain_rows()
    return X, np.where(y == label, instead, y).astype(np.int32)


def _one_feature():
    X, y = plain_rows()
    return X[:, :1], y


def _two_rows():
    X, y = plain_rows()
    return X[:2], y[:2]


ODD_ROWS = {
    "constant features": _constant,
    "zero features": _zero,
    "one constant feature": _one_constant,
    "equal rows": _duplicates,
    "equal rows of other labels": _conflicting,
    "one row a class": _one_each,
    "a class without rows": lambda: _without(2, 1),
    "the last class without rows": lambda: _without(4, 2),
    "one feature": _one_feature,
    "two rows": _two_rows,
}
"""Rows with which every loss must reach a certificate, by what is odd in them."""


def scaled_rows(scale, dtype):
    """Scale plain rows, by a number or one a feature, and give them a type."""
    X, y = plain_rows()
    with np.errstate(over="ignore", under="ignore"):
        return (X * scale).astype(dtype), y
