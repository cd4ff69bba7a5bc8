"""Estimate the time that training still takes, from how the gap fell."""

import math
from collections.abc import Sequence
from typing import Protocol

import numpy as np

_FEWEST_EPOCHS = 4
"""Before so many the gap falls as it never will again."""
_FITTED_EPOCHS = 10
"""The rate of fall changes in the course of training: only the last epochs count."""
_LEAST_CORRELATION = 0.9
"""Of time and log gap; below it the gap follows no line that could be drawn on."""


class GapAtTime(Protocol):
    """What is read of an epoch."""

    @property
    def seconds(self) -> float:
        """Time since the start, in seconds."""

    @property
    def relative_gap(self) -> float:
        """Relative duality gap."""


def estimate_seconds_left(records: Sequence[GapAtTime], tol: float) -> float:
    """Estimate when the gap will be under the tolerance.

    A line through the logarithm of the gap, by least squares over the last epochs, is followed
    down to the tolerance.

    Parameters
    ----------
    records : sequence of epochs
    tol : float

    Returns
    -------
    float
        Seconds from the last record on; NaN when it cannot be told.
    """
    last = records[-_FITTED_EPOCHS:]
    if len(last) < _FEWEST_EPOCHS or min(record.relative_gap for record in last) <= 0:
        return math.nan
    seconds = np.array([record.seconds for record in last])
    heights = np.log([record.relative_gap for record in last])
    x, y = seconds - seconds.mean(), heights - heights.mean()
    spread = math.sqrt((x @ x) * (y @ y))
    if spread == 0 or -(x @ y) / spread < _LEAST_CORRELATION:
        return math.nan
    slope = (x @ y) / (x @ x)
    end = seconds.mean() + (math.log(tol) - heights.mean()) / slope
    return max(0.0, float(end - seconds[-1]))
