"""Columns of a table that count its rows, and are taken for features when nobody says otherwise."""

import logging

import numpy as np
from numpy.typing import NDArray

from dtopk_storage.sources.base import SourceFeatures

logger = logging.getLogger(__name__)

# Fewer rows may hold 0, 1, 2, ... by chance.
_LEAST_ROWS = 8
_MOST_ROWS = 1000


def warn_of_row_counters(rows: SourceFeatures, X: NDArray[np.generic]) -> None:
    """Log a warning for each column that is 0, 1, 2, ... or 1, 2, 3, ... over the first rows.

    Parameters
    ----------
    rows : SourceFeatures
        What X is the start of.
    X : ndarray of shape (rows, n_features), any real dtype
    """
    head = X[:_MOST_ROWS]
    if not rows.columns or len(head) < _LEAST_ROWS:
        return
    counted = np.arange(len(head))[:, None]
    for first in (0, 1):
        for index in np.flatnonzero((head == counted + first).all(axis=0)):
            logger.warning(
                "column %r of %s counts the rows from %d and is taken as a feature. If it is none, "
                "ingest again with skip_columns (--skip-column).",
                rows.columns[index],
                rows.place,
                first,
            )
