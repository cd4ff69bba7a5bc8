"""What the tests know of a loss besides its kernels: its definition, in plain numpy."""

from abc import ABC, abstractmethod
from typing import Any, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from dtopk.losses import Loss

Array = NDArray[Any]
Float64 = NDArray[np.float64]
AnyLoss = TypeVar("AnyLoss", bound=Loss)


class Twin(ABC, Generic[AnyLoss]):
    """The slow, obvious twin of one loss, in float64, of one row at a time.

    A label is the code of a class, an array of them where the loss takes sets of labels, or a
    MaskedLabel where it leaves classes out.

    Parameters
    ----------
    loss : Loss
        Whose parameters it has, and nothing else.
    """

    def __init__(self, loss: AnyLoss) -> None:
        self.loss = loss

    @abstractmethod
    def value(self, scores: Float64, label: Any) -> float:
        """Return the loss at scores (n_classes,) from its definition."""

    @abstractmethod
    def dual_term(self, dual: Float64, label: Any, cost: float) -> float:
        """Return D_i(a) = -C L*(y, -a/C) of a dual row (n_classes,) in its domain; C > 0."""

    @abstractmethod
    def infeasibility(self, dual: Float64, label: Any) -> float:
        """Return by how much a dual row, divided by its cost, breaks the rules of its domain."""
