"""What makes probabilities of scores where a model is not calibrated."""

from typing import Any

import numpy as np
from numpy.typing import NDArray


def _softmax(scores: NDArray[Any]) -> NDArray[Any]:
    exponentials = np.exp(scores - scores.max(axis=1, keepdims=True))
    probabilities: NDArray[Any] = exponentials / exponentials.sum(axis=1, keepdims=True)
    return probabilities


def _sparsemax(scores: NDArray[Any]) -> NDArray[Any]:
    """Project rows of scores on distributions: max(u - t, 0), t of the support that fits."""
    u = scores - scores.max(axis=1, keepdims=True)
    sums = np.cumsum(np.sort(u, axis=1)[:, ::-1], axis=1)
    thresholds = (sums - 1) / np.arange(1, u.shape[1] + 1, dtype=u.dtype)
    p = np.maximum(u - thresholds.max(axis=1, keepdims=True), 0)
    probabilities: NDArray[Any] = p / p.sum(axis=1, keepdims=True)
    return probabilities


LINKS = {"softmax": _softmax, "sparsemax": _sparsemax}
"""By the name that the file of a model has of it."""
