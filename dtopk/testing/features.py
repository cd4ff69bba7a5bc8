"""Made data."""

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

PIECE_ROWS = 32_768


def make_features(
    n: int, d: int, m: int, *, seed: int
) -> tuple[NDArray[np.float32], NDArray[np.int32]]:
    """Draw features like those of a network's last ReLU, one cluster a class.

    ``X = max(0.7 mu[y] + 2 N(0, 1), 0)`` with class means ``mu ~ N(0, 1)`` and uniform labels;
    each row is then divided by its norm.

    Parameters
    ----------
    n, d, m : int
        Rows, features and classes.
    seed : int

    Returns
    -------
    X : ndarray of shape (n, d), float32
        Rows of unit norm (a row whose entries are all clipped stays zero).
    y : ndarray of shape (n,), int32
        Class codes, 0 to m - 1.
    """
    rng = np.random.default_rng(seed)
    means = rng.normal(size=(m, d))
    y = rng.integers(0, m, size=n).astype(np.int32)
    X = np.maximum(0.7 * means[y] + 2.0 * rng.normal(size=(n, d)), 0.0)
    norms = np.linalg.norm(X, axis=1, keepdims=True)
    return (X / np.where(norms > 0, norms, 1.0)).astype(np.float32), y


def draw_pieces(
    n: int, d: int, m: int, *, seed: int
) -> Iterator[tuple[NDArray[np.float32], NDArray[np.int32]]]:
    """Draw such features piece by piece, so that there may be more of them than memory holds.

    The pieces share their class means. The first rows do not depend on how many follow, as long as
    they end with a piece.

    Parameters
    ----------
    n, d, m : int
        Rows, features and classes.
    seed : int

    Yields
    ------
    X : ndarray of shape (PIECE_ROWS or fewer, d), float32
        Rows of unit norm.
    y : ndarray of shape (PIECE_ROWS or fewer,), int32
    """
    rng = np.random.default_rng(seed)
    means = rng.standard_normal((m, d), np.float32)
    for start in range(0, n, PIECE_ROWS):
        rows = min(PIECE_ROWS, n - start)
        y = rng.integers(0, m, rows).astype(np.int32)
        X = rng.standard_normal((rows, d), np.float32)
        X *= 2
        X += np.float32(0.7) * means[y]
        np.maximum(X, 0, out=X)
        norms = np.linalg.norm(X, axis=1, keepdims=True)
        X /= np.where(norms > 0, norms, 1)
        yield X, y
