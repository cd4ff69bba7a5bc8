"""The labels of some rows, any number a row."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray


@dataclasses.dataclass(frozen=True, eq=False)
class LabelRows:
    """Label codes of some rows, any number a row, as compressed sparse rows.

    It has a length, and gives some of its rows by a slice or by an array of row numbers. It checks
    no more than where the first row starts and the last one stops: `check_labels` does the rest.
    """

    indptr: NDArray[np.int64]
    """Where the codes of each row start, and where those of the last stop, of shape (rows + 1,)."""
    indices: NDArray[np.int32]
    """The codes, row after row; those of a row rise, and a row may have none."""

    def __post_init__(self) -> None:
        if len(self.indptr) == 0 or self.indptr[0] != 0 or self.indptr[-1] != len(self.indices):
            ends = "nothing" if len(self.indptr) == 0 else f"{self.indptr[0]} to {self.indptr[-1]}"
            raise ValueError(
                f"indptr must go from 0 to the number of codes, {len(self.indices)}, got {ends}."
            )

    @classmethod
    def from_counts(
        cls, counts: NDArray[np.integer[Any]], indices: NDArray[np.int32]
    ) -> "LabelRows":
        """Make it of the number of codes in each row.

        Parameters
        ----------
        counts : ndarray of shape (rows,), int
        indices : ndarray of shape (counts.sum(),), int32

        Returns
        -------
        LabelRows
        """
        return cls(_starts(counts), indices)

    @classmethod
    def concatenate(cls, parts: Sequence["LabelRows"]) -> "LabelRows":
        """Put the rows of one after those of another.

        Parameters
        ----------
        parts : sequence of LabelRows

        Returns
        -------
        LabelRows
        """
        indptr = np.zeros(sum(map(len, parts)) + 1, np.int64)
        row = 0
        for part in parts:
            indptr[row + 1 : row + len(part) + 1] = part.indptr[1:] + indptr[row]
            row += len(part)
        indices = np.concatenate([np.empty(0, np.int32), *(part.indices for part in parts)])
        return cls(indptr, indices)

    @property
    def counts(self) -> NDArray[np.int64]:
        """Number of codes in each row, of shape (rows,)."""
        return np.diff(self.indptr)

    def __len__(self) -> int:
        return len(self.indptr) - 1

    def __getitem__(self, rows: slice | NDArray[np.integer[Any]]) -> "LabelRows":
        if isinstance(rows, int | np.integer):
            raise TypeError(f"rows must be a slice or an array of row numbers, got {rows}.")
        if isinstance(rows, slice):
            start, stop, step = rows.indices(len(self))
            if step == 1:
                indptr = self.indptr[start : max(start, stop) + 1]
                return LabelRows(indptr - indptr[0], self.indices[indptr[0] : indptr[-1]])
            rows = np.arange(start, stop, step)
        counts = self.counts[rows]
        indptr = _starts(counts)
        positions = np.arange(indptr[-1])
        positions += np.repeat(self.indptr[:-1][rows] - indptr[:-1], counts)
        return LabelRows(indptr, self.indices[positions])

    def row_of(self, position: int) -> int:
        """Return the row that has the code at a position of `indices`.

        Parameters
        ----------
        position : int
        """
        return int(np.searchsorted(self.indptr, position, side="right")) - 1

    def first_not_rising(self) -> int | None:
        """Find the first code that is not above the one before it in its row.

        Returns
        -------
        int or None
            Its position in `indices`; None when all rows rise.
        """
        wrong = np.zeros(len(self.indices), bool)
        wrong[1:] = self.indices[1:] <= self.indices[:-1]
        starts = self.indptr[:-1]
        wrong[starts[starts < len(wrong)]] = False
        return int(np.argmax(wrong)) if wrong.any() else None

    def sort(self) -> "LabelRows":
        """Return the same rows with the codes of each in ascending order, repeats kept.

        Returns
        -------
        LabelRows
            This one when there is nothing to do.
        """
        if self.first_not_rising() is None:
            return self
        rows = np.repeat(np.arange(len(self)), self.counts)
        return LabelRows(self.indptr, self.indices[np.lexsort((self.indices, rows))])


Labels = NDArray[np.int32] | LabelRows
"""The labels of some rows: codes of shape (rows,), one a row, or any number a row."""


def _starts(counts: NDArray[np.integer[Any]]) -> NDArray[np.int64]:
    """Return where each row starts, and where the last one stops."""
    starts = np.zeros(len(counts) + 1, np.int64)
    np.cumsum(counts, out=starts[1:])
    return starts
