"""Mean and standard deviation of features, in one pass."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

_BLOCK_BYTES = 1 << 21


class FeatureStatistics:
    """Mean and standard deviation of each feature over rows that come in pieces.

    Each block is centred on its own mean in float64 and merged by Chan's formula. Sums of
    squares of the raw values would lose everything when the mean is large beside the deviation.

    Parameters
    ----------
    n_features : int

    References
    ----------
    .. [1] Chan, Golub, LeVeque. Updating formulae and a pairwise algorithm for computing
       sample variances. COMPSTAT 1982.
    """

    def __init__(self, n_features: int) -> None:
        self.count = 0
        self.mean = np.zeros(n_features)
        self._deviations = np.zeros(n_features)

    @property
    def std(self) -> NDArray[np.float64]:
        """Standard deviation of the rows seen (divided by their number, not one less)."""
        return np.sqrt(self._deviations / max(1, self.count))

    def add(self, X: NDArray[Any]) -> None:
        """Take in rows.

        Parameters
        ----------
        X : ndarray of shape (rows, n_features), float16, float32 or float64
        """
        rows = max(1, _BLOCK_BYTES // (8 * max(1, X.shape[1])))
        for start in range(0, len(X), rows):
            self._merge(X[start : start + rows].astype(np.float64))

    def _merge(self, block: NDArray[np.float64]) -> None:
        count = len(block)
        mean = block.mean(axis=0)
        block -= mean
        deviations = np.einsum("ij,ij->j", block, block)
        total = self.count + count
        shift = mean - self.mean
        self._deviations += deviations + shift**2 * (self.count * count / total)
        self.mean += shift * (count / total)
        self.count = total
