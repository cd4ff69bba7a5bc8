"""Sets of labels, one a row, in compressed form."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, overload

import numpy as np
from numpy.typing import NDArray

from dtopk.losses.masked_labels import MaskedLabels


@dataclass(frozen=True, eq=False)
class LabelSets:
    """The labels of some rows, any number a row, as the rows of a CSR matrix have their columns.

    Takes the place of an array of labels: it has a length, and its rows are picked by a slice or
    by an array of row numbers.
    """

    indptr: NDArray[np.int64]
    """Where the labels of each row begin, the first at 0, and where the last end, of shape
    (n_samples + 1,)."""
    indices: NDArray[np.int32]
    """The codes of the labels, row after row, each row's in ascending order and without repeats."""

    @classmethod
    def from_labels(cls, labels: NDArray[np.int32]) -> "LabelSets":
        """Make sets of one label each.

        Parameters
        ----------
        labels : ndarray of shape (n_samples,), int32
        """
        return cls(np.arange(len(labels) + 1), labels)

    @classmethod
    def from_indicator(cls, indicator: NDArray[Any]) -> "LabelSets":
        """Make sets of the columns that are not zero.

        Parameters
        ----------
        indicator : ndarray of shape (n_samples, n_classes), any dtype
        """
        rows, columns = np.nonzero(indicator)
        counts = np.bincount(rows, minlength=len(indicator))
        return cls(_starts(counts), columns.astype(np.int32))

    @classmethod
    def concatenate(cls, parts: Sequence["LabelSets"]) -> "LabelSets":
        """Put sets one after another.

        Parameters
        ----------
        parts : sequence of LabelSets, not empty
        """
        counts = np.concatenate([part.counts for part in parts])
        return cls(_starts(counts), np.concatenate([part.indices for part in parts]))

    @property
    def counts(self) -> NDArray[np.int64]:
        """The number of labels of each row, of shape (n_samples,)."""
        return np.diff(self.indptr)

    def to_indicator(self, n_classes: int) -> NDArray[np.bool_]:
        """Return a matrix that is true where a row has a label.

        Parameters
        ----------
        n_classes : int

        Returns
        -------
        ndarray of shape (n_samples, n_classes), bool
        """
        indicator = np.zeros((len(self), n_classes), np.bool_)
        rows = np.repeat(np.arange(len(self)), self.counts)
        indicator[rows, self.indices] = True
        return indicator

    def __len__(self) -> int:
        """Return the number of rows."""
        return len(self.indptr) - 1

    @overload
    def __getitem__(self, rows: int | np.integer[Any]) -> NDArray[np.int32]: ...
    @overload
    def __getitem__(self, rows: slice | NDArray[np.integer[Any]]) -> "LabelSets": ...
    def __getitem__(
        self, rows: int | np.integer[Any] | slice | NDArray[np.integer[Any]]
    ) -> "LabelSets | NDArray[np.int32]":
        """Return the labels of one row, or the sets of some rows."""
        if isinstance(rows, int | np.integer):
            row = range(len(self))[rows]
            return self.indices[self.indptr[row] : self.indptr[row + 1]]
        if isinstance(rows, slice):
            first, last, step = rows.indices(len(self))
            if step == 1:
                indptr = self.indptr[first : max(last, first) + 1]
                return LabelSets(indptr - indptr[0], self.indices[indptr[0] : indptr[-1]])
            rows = np.arange(first, last, step)
        starts, counts = self.indptr[:-1][rows], self.counts[rows]
        indptr = _starts(counts)
        within = np.arange(indptr[-1]) - np.repeat(indptr[:-1], counts)
        return LabelSets(indptr, self.indices[np.repeat(starts, counts) + within])


def join_labels(
    parts: Sequence[NDArray[np.int32] | LabelSets | MaskedLabels],
) -> NDArray[np.int32] | LabelSets | MaskedLabels:
    """Put the labels of some rows after those of others.

    Parameters
    ----------
    parts : sequence of ndarray of shape (n_rows,), int32, of LabelSets or of MaskedLabels
        Not empty, and all of one kind.
    """
    if isinstance(parts[0], LabelSets):
        return LabelSets.concatenate([part for part in parts if isinstance(part, LabelSets)])
    if isinstance(parts[0], MaskedLabels):
        return MaskedLabels.concatenate([part for part in parts if isinstance(part, MaskedLabels)])
    return np.concatenate([part for part in parts if isinstance(part, np.ndarray)])


def _starts(counts: NDArray[np.int64]) -> NDArray[np.int64]:
    return np.concatenate(([0], np.cumsum(counts))).astype(np.int64)
