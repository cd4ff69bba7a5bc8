"""The check of a whole store, beyond what opening it and its checksums need."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from dtopk_storage.checks import CheckedStore, check_batch
from dtopk_storage.errors import DatasetError
from dtopk_storage.label_rows import Labels
from dtopk_storage.manifest import TRAIN, Manifest
from dtopk_storage.statistics import FeatureStatistics

# Other tools may sum in another order. Relative to the size of the mean and the deviation.
_STATISTICS_RTOL = 1e-6


class Verification:
    """Checks every row of a store, and what only all rows together show.

    Parameters
    ----------
    store : FeatureStore
    manifest : Manifest
        That of the store.
    """

    def __init__(self, store: CheckedStore, manifest: Manifest) -> None:
        self._store = store
        self._train = manifest.splits[TRAIN]
        self._statistics = FeatureStatistics(manifest.n_features)
        self._seen = np.zeros(manifest.n_samples if manifest.has_row_id else 0, bool)

    def add(
        self, X: NDArray[Any], labels: Labels, weight: NDArray[np.float64], *, start: int
    ) -> None:
        """Check the next rows, as `check_batch` does, and take them into the statistics.

        Parameters
        ----------
        X : ndarray of shape (rows, n_features), dtype at rest
        labels : ndarray of shape (rows,), int32, or LabelRows
        weight : ndarray of shape (rows,), float64
        start : int
            Row of the store that they start with.
        """
        check_batch(X, labels, weight, start=start, store=self._store)
        for low, high in self._train:
            part = X[max(low, start) - start : max(0, high - start)]
            if len(part):
                self._statistics.add(part)

    def add_row_id(self, row_id: NDArray[np.int64], *, start: int) -> None:
        """Mark rows of the source as seen, and refuse one that was, or that cannot be.

        Parameters
        ----------
        row_id : ndarray of shape (rows,), int64
        start : int
            Row of the store that they start with.
        """
        seen = self._seen
        wrong = (row_id < 0) | (row_id >= len(seen))
        wrong[~wrong] = seen[row_id[~wrong]]
        seen[row_id[~wrong]] = True
        if wrong.any():
            row = int(np.argmax(wrong))
            raise DatasetError(
                f"row_id must hold each of 0:{len(seen)} once, got {row_id[row]} in row "
                f"{start + row} of {self._store.path!r}. Ingest it again."
            )

    def finish(self, *, mean: NDArray[np.float64], std: NDArray[np.float64]) -> None:
        """Compare the statistics of the store with those of its training rows.

        Parameters
        ----------
        mean, std : ndarray of shape (n_features,), float64
            As stored.
        """
        found = self._statistics
        # What is not finite, of features too large for it, must be the same, and tells no size.
        sizes = (np.where(np.isfinite(each), np.abs(each), 0.0) for each in (found.mean, found.std))
        tolerance = _STATISTICS_RTOL * sum(sizes)
        for name, stored, computed in (
            ("feature_mean", mean, found.mean),
            ("feature_std", std, found.std),
        ):
            wrong = ~np.isclose(stored, computed, rtol=0.0, atol=tolerance, equal_nan=True)
            if wrong.any():
                column = int(np.argmax(wrong))
                raise DatasetError(
                    f"{name} of column {column} of {self._store.path!r} must be "
                    f"{computed[column]:.9g}, as its training rows have it, "
                    f"got {stored[column]:.9g}. Ingest it again."
                )
