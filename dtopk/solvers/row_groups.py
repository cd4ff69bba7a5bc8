"""The rows of a block, one after the other, at the speed of matrix products.

What the rows before have done to a row's scores is ``sum_j G_ij da_j``. For some rows in a row it
is summed row by row, in the kernels of the losses; what earlier groups have done to a group is one
product. Rows whose duals did not move have done nothing and are left out: of a hinge loss late in
training these are most.
"""

from collections.abc import Iterator, Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from dtopk.kernels.blas import gemm
from dtopk.kernels.rows import pack_moved_rows, take_columns
from dtopk.losses import Labels

Array = NDArray[Any]

GROUP_ROWS = 64
"""Rows whose corrections among themselves are made one by one."""


class RowSolver(Protocol):
    """What changes the duals of rows one after the other: a loss, or something in its place."""

    def update_rows(
        self,
        scores: Array,
        gram: Array,
        dual: Array,
        delta: Array,
        labels: Any,
        costs: Array,
        first: int,
        last: int,
    ) -> float:
        """See :meth:`dtopk.losses.Loss.update_rows`."""


def cut_groups(counts: Sequence[int]) -> Iterator[tuple[int, int, int]]:
    """Cut rows into groups, none of which has rows of two parts.

    Parameters
    ----------
    counts : sequence of int
        Rows of each part.

    Yields
    ------
    tuple of int
        The part, the first row of the group and the one after its last.
    """
    start = 0
    for part, count in enumerate(counts):
        for first in range(start, start + count, GROUP_ROWS):
            yield part, first, min(first + GROUP_ROWS, start + count)
        start += count


class RowGroups:
    """Solves the rows of blocks in their order.

    Parameters
    ----------
    solver : RowSolver
        A loss, for the exact update of each row.
    block_size : int
        Most rows in a block.
    dtype : dtype
        Of the computation.
    """

    def __init__(self, solver: RowSolver, block_size: int, dtype: np.dtype[Any]) -> None:
        self.solver = solver
        """May be another one from one call to the next."""
        self._moved = np.empty(block_size, np.int64)
        self._factors = np.empty(GROUP_ROWS * block_size, dtype)

    def compile(self) -> None:
        """Call the kernel that needs more than one group, so that no sweep waits for it."""
        values = np.zeros((1, 1), self._factors.dtype)
        take_columns(values, np.zeros(1, np.int64), np.empty_like(values))

    def solve(
        self,
        scores: Array,
        G: Array,
        dual: Array,
        delta: Array,
        labels: Labels,
        costs: Array,
        counts: Sequence[int],
    ) -> tuple[list[float], NDArray[np.int64]]:
        """Maximise the dual over rows, one after the other.

        Parameters
        ----------
        scores : ndarray of shape (n_rows, n_classes)
            X W before any of them has changed; of no use after.
        G : ndarray of shape (n_rows, n_rows)
            X X', the lower triangle.
        dual : ndarray of shape (n_rows, n_classes)
            Updated in place.
        delta : ndarray of shape (n_rows, n_classes)
            Its first rows are the changes of the duals that have moved.
        labels : ndarray of shape (n_rows,), int32, or LabelSets
        costs : ndarray of shape (n_rows,)
        counts : sequence of int
            Rows of each part whose duals are summed; n_rows in all.

        Returns
        -------
        values : list of float
            sum_i D_i over the rows of each part, at their new duals.
        moved : ndarray of shape (n_moved,), int64
            The rows whose duals have moved, ascending; valid until the next call.
        """
        values, n_moved = [0.0] * len(counts), 0
        for part, first, last in cut_groups(counts):
            if n_moved:
                factors = self._take_factors(G, first, last, n_moved)
                gemm(factors, delta[:n_moved], scores[first:last], beta=1.0)
            values[part] += self.solver.update_rows(
                scores, G, dual, delta, labels, costs, first, last
            )
            n_moved = pack_moved_rows(delta, first, last, self._moved, n_moved)
        return values, self._moved[:n_moved]

    def _take_factors(self, G: Array, first: int, last: int, n_moved: int) -> Array:
        """Return the columns of rows first to last of G that belong to rows that have moved."""
        if n_moved == first:
            return G[first:last, :first]
        out = self._factors[: (last - first) * n_moved].reshape(last - first, n_moved)
        take_columns(G[first:last], self._moved[:n_moved], out)
        return out
