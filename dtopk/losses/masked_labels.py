"""Labels with classes that are left out of the loss, row by row."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, overload

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, eq=False)
class MaskedLabel:
    """The label of one row, and the classes that its loss leaves out."""

    label: int
    """The code of the class."""
    masked: NDArray[np.int32]
    """The codes of the classes left out, of shape (n_masked,)."""


@dataclass(frozen=True, eq=False)
class MaskedLabels:
    """The label of each row, and the classes that its loss leaves out, as many in every row.

    Takes the place of an array of labels: it has a length, and its rows are picked by a slice or
    by an array of row numbers.
    """

    labels: NDArray[np.int32]
    """The codes of the labels, of shape (n_samples,)."""
    masked: NDArray[np.int32]
    """The codes of the classes left out, of shape (n_samples, n_masked), without repeats in a
    row. The label may be among them where the loss allows that."""

    @classmethod
    def concatenate(cls, parts: Sequence["MaskedLabels"]) -> "MaskedLabels":
        """Put rows one after another.

        Parameters
        ----------
        parts : sequence of MaskedLabels, not empty
            All with the same number of masked classes.
        """
        return cls(
            np.concatenate([part.labels for part in parts]),
            np.concatenate([part.masked for part in parts]),
        )

    @property
    def n_masked(self) -> int:
        """The number of classes that every row leaves out."""
        return int(self.masked.shape[1])

    @property
    def masks_label(self) -> NDArray[np.bool_]:
        """Whether the label of each row is among its masked classes, of shape (n_samples,)."""
        found: NDArray[np.bool_] = (self.masked == self.labels[:, None]).any(axis=1)
        return found

    def __len__(self) -> int:
        """Return the number of rows."""
        return len(self.labels)

    @overload
    def __getitem__(self, rows: int | np.integer[Any]) -> MaskedLabel: ...
    @overload
    def __getitem__(self, rows: slice | NDArray[np.integer[Any]]) -> "MaskedLabels": ...
    def __getitem__(
        self, rows: int | np.integer[Any] | slice | NDArray[np.integer[Any]]
    ) -> "MaskedLabels | MaskedLabel":
        """Return the label of one row with its masked classes, or those of some rows."""
        if isinstance(rows, int | np.integer):
            return MaskedLabel(int(self.labels[rows]), self.masked[rows])
        return MaskedLabels(self.labels[rows], self.masked[rows])
