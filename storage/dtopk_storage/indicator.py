"""Labels as an indicator matrix: a column for each class, and 1 where a row has its label."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from dtopk_storage.errors import DatasetError
from dtopk_storage.label_rows import LabelRows


def read_indicator(indicator: NDArray[Any], *, what: str, start: int, place: str) -> LabelRows:
    """Turn rows of an indicator matrix into the numbers of the columns that are 1.

    Parameters
    ----------
    indicator : ndarray of shape (rows, columns), bool, int or float
        Of zeros and ones.
    what : str
        What to call the labels in messages.
    start : int
        Row that it starts with, for messages.
    place : str
        Where it is, for messages, with the word before it: of 'y.npy'.

    Returns
    -------
    LabelRows

    Raises
    ------
    DatasetError
        Names the row and the column of the first value that is neither.
    """
    if indicator.dtype.kind not in "biuf":
        raise DatasetError(
            f"{what} must be 0 or 1 in an indicator matrix, got {indicator.dtype.name!r} {place}."
        )
    wrong = (indicator != 0) & (indicator != 1)
    if wrong.any():
        row, column = np.argwhere(wrong)[0].tolist()
        raise DatasetError(
            f"{what} must be 0 or 1 in an indicator matrix, got {indicator[row, column]} "
            f"in row {start + row}, column {column} {place}."
        )
    rows, columns = np.nonzero(indicator)
    counts = np.bincount(rows, minlength=len(indicator))
    return LabelRows.from_counts(counts, columns.astype(np.int32))
