"""Exact blocked stochastic dual coordinate ascent (SDCA).

One-at-a-time SDCA [1]_ maximises the dual over the variables of one row after another, and each
step reads and writes all of W. Here a block of rows shares both: with ``S = X W`` and the Gram
matrix ``G = X X'`` of the block, the scores that row i would have seen are
``S_i + sum_{j<i} G_ij da_j``, and ``W += X' dA`` afterwards. The iterates are those of the
one-at-a-time method up to rounding, at the speed of matrix products.

References
----------
.. [1] Shalev-Shwartz, Zhang. Stochastic Dual Coordinate Ascent Methods for Regularized Loss
   Minimization. JMLR 2013.
"""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from dtopk.kernels.blas import gemm, gram
from dtopk.kernels.rows import gather_rows, pack_rows, put_duals, take_duals
from dtopk.losses import Labels, join_labels
from dtopk.solvers.row_groups import RowGroups, RowSolver

Array = NDArray[Any]

_LARGE_BLOCK = 500
"""From this half of the harmonic mean of features and classes on, blocks are the larger ones."""


def default_block_size(width: int, n_classes: int) -> int:
    """Choose the rows of a block.

    Of the two products with W, of 4 d m operations a row, what BLAS spends on packing W is shared
    by the rows of a block: it goes like d m / B. Their products with each other, and with each
    other's changes, cost B (d + m).

    Parameters
    ----------
    width : int
        Features, with the constant one, d.
    n_classes : int
        m.
    """
    return 256 if width * n_classes >= _LARGE_BLOCK * (width + n_classes) else 128


@dataclass(frozen=True, kw_only=True)
class RowConversion:
    """How rows at rest become rows of the computation."""

    n_features: int
    """Features at rest, d."""
    dtype: np.dtype[Any]
    """float32 or float64."""
    mean: Array | None = None
    """Subtracted from every row, of shape (d,); None: rows as they are."""
    inverse_scale: Array | None = None
    """Multiplied with every row after that, of shape (d,); None just if mean is."""
    constant: float = 0.0
    """Value of a constant feature at the end of each row, whose weights are the intercept; 0:
    there is none."""

    @property
    def width(self) -> int:
        """Length of a converted row."""
        return self.n_features + (self.constant != 0)

    def in_dtype(self, dtype: DTypeLike) -> "RowConversion":
        """Return the same conversion to another dtype."""
        kind = np.dtype(dtype)
        return RowConversion(
            n_features=self.n_features,
            dtype=kind,
            mean=None if self.mean is None else self.mean.astype(kind),
            inverse_scale=None if self.inverse_scale is None else self.inverse_scale.astype(kind),
            constant=self.constant,
        )

    def gather(self, X: Array, rows: NDArray[np.int64], out: Array) -> None:
        """Convert X[rows] into out (n_rows, width)."""
        gather_rows(X, rows, self.mean, self.inverse_scale, self.constant, out)

    def convert(self, X: Array) -> Array:
        """Return rows as those of the computation: the same memory, where they are that already.

        Parameters
        ----------
        X : ndarray of shape (n_rows, n_features)

        Returns
        -------
        ndarray of shape (n_rows, width)
        """
        if self.mean is None and not self.constant and X.dtype == self.dtype:
            return X
        out = np.empty((len(X), self.width), self.dtype)
        self.gather(X, np.arange(len(X)), out)
        return out


@dataclass(kw_only=True)
class Timings:
    """Seconds spent in each part of the block updates."""

    convert: float = 0.0
    """Picking rows, converting them, and their duals."""
    gram: float = 0.0
    """Gram matrices."""
    scores: float = 0.0
    """S = X W."""
    inner: float = 0.0
    """The rows' own problems and the corrections between them."""
    update: float = 0.0
    """W += X' dA."""

    def total(self) -> float:
        """Return the sum of all parts."""
        return sum(float(getattr(self, field.name)) for field in fields(self))


@dataclass(frozen=True, kw_only=True)
class RowPart:
    """Rows of one array, among those that are updated together."""

    X: Array
    """Features of shape (n, d), in their dtype at rest."""
    labels: Labels
    """Of shape (n,), int32, or LabelSets."""
    costs: Array
    """C times the weight of each row, of shape (n,), in the dtype of W."""
    dual: Array
    """Feasible for these costs, of shape (n, n_classes), in the dtype of W; the entries at `rows`
    are updated in place."""
    rows: NDArray[np.int64]
    """Which rows, of shape (n_rows,), in the order in which they are solved."""

    def take_duals(self, ratio: float, out: Array) -> None:
        """Write the rows' duals, divided by r of the accelerated loop, into out."""
        take_duals(self.dual, self.rows, self.dual.dtype.type(1 / ratio), out)

    def put_duals(self, values: Array, ratio: float) -> None:
        """Take the rows' duals back, multiplied by r."""
        put_duals(values, self.rows, self.dual.dtype.type(ratio), self.dual)


def take_labels(parts: Sequence[RowPart]) -> Labels:
    """Return the labels of the rows of all parts, one part after the other.

    Parameters
    ----------
    parts : sequence of RowPart, not empty
    """
    return join_labels([part.labels[part.rows] for part in parts])


def take_costs(parts: Sequence[RowPart], ratio: float) -> Array:
    """Return the costs of the rows of all parts, divided by r of the accelerated loop.

    Parameters
    ----------
    parts : sequence of RowPart, not empty
    ratio : float
    """
    costs: Array = np.concatenate([part.costs[part.rows] for part in parts])
    costs /= costs.dtype.type(ratio)
    return costs


def find_places(parts: Sequence[RowPart]) -> list[slice]:
    """Return where the rows of each part are, one part after the other.

    Parameters
    ----------
    parts : sequence of RowPart
    """
    ends = np.cumsum([0, *(len(part.rows) for part in parts)]).tolist()
    return [slice(first, last) for first, last in pairwise(ends)]


class BlockUpdater:
    """The update of one block, with its workspace.

    Parameters
    ----------
    loss : RowSolver
        A loss, for the exact update of each row.
    conversion : RowConversion
    n_classes : int
    block_size : int, at least 1
        Most rows in a block.
    """

    def __init__(
        self, loss: RowSolver, conversion: RowConversion, n_classes: int, block_size: int
    ) -> None:
        self.conversion = conversion
        self.block_size = block_size
        self.timings = Timings()
        dtype = conversion.dtype
        self._X = np.empty((block_size, conversion.width), dtype)
        self._gram = np.empty(block_size * block_size, dtype)
        self._groups = RowGroups(loss, block_size, dtype)
        self._scores, self._dual, self._delta = (
            np.empty((block_size, n_classes), dtype) for _ in range(3)
        )

    @property
    def loss(self) -> RowSolver:
        """What updates each row; may be another one from one call to the next."""
        return self._groups.solver

    @loss.setter
    def loss(self, loss: RowSolver) -> None:
        self._groups.solver = loss

    def compile(self, X: Array, labels: Labels, W: Array) -> None:
        """Call every kernel of an update once, so that no sweep waits for the compiler.

        Parameters
        ----------
        X : ndarray of shape (1, d), at-rest dtype
        labels : ndarray of shape (1,), int32, or LabelSets
        W : ndarray of shape (width, n_classes), C-contiguous, float32 or float64
            Overwritten.
        """
        costs, dual = np.ones(1, W.dtype), np.zeros((1, W.shape[1]), W.dtype)
        self.update(X, labels, costs, dual, np.zeros(1, np.int64), W, 1.0)
        self._groups.compile()

    def update(
        self,
        X: Array,
        labels: Labels,
        costs: Array,
        dual: Array,
        rows: NDArray[np.int64],
        W: Array,
        ratio: float,
        sigma: float = 1.0,
    ) -> float:
        """Maximise the dual over some rows, one after the other, and bring W up to date.

        Parameters
        ----------
        X : ndarray of shape (n, d), at-rest dtype
        labels : ndarray of shape (n,), int32, or LabelSets
        costs : ndarray of shape (n,), the dtype of W
            C times the weight of each row.
        dual : ndarray of shape (n, n_classes), the dtype of W
            Feasible for these costs; the entries at `rows` are updated in place.
        rows : ndarray of shape (n_rows,), int64
            In the order in which they are solved.
        W : ndarray of shape (width, n_classes), C-contiguous, float32 or float64
            Updated in place.
        ratio : float, at least 1
            r of the accelerated outer loop (:mod:`dtopk.solvers.acceleration`): the rows are
            solved for costs/r, and W moves by X' dA / r; 1 for plain SDCA.
        sigma : float, at least 1
            sigma' of a partition among others (:mod:`dtopk.solvers.dual_step`): W moves by so many
            times its own change, and each row takes its own curvature for as much greater.

        Returns
        -------
        float
            sum_i D_i over the rows, at their new duals and for the costs as given.
        """
        part = RowPart(X=X, labels=labels, costs=costs, dual=dual, rows=rows)
        return self.update_parts([part], W, ratio, sigma)[0]

    def update_parts(
        self, parts: Sequence[RowPart], W: Array, ratio: float, sigma: float = 1.0
    ) -> list[float]:
        """Maximise the dual over rows of several arrays. See :meth:`update`.

        Parameters
        ----------
        parts : sequence of RowPart
            At most as many rows as a block has, in all.
        W, ratio, sigma
            See :meth:`update`.

        Returns
        -------
        list of float
            sum_i D_i over the rows of each part.
        """
        places = find_places(parts)
        n_rows = places[-1].stop
        scores, a, delta = self._scores[:n_rows], self._dual[:n_rows], self._delta[:n_rows]
        clock = [time.perf_counter()]
        # Contiguous of any number of rows: other strides would be kernels of their own to compile.
        block, G = self._X[:n_rows], self._gram[: n_rows * n_rows].reshape(n_rows, n_rows)
        for part, place in zip(parts, places, strict=True):
            part.take_duals(ratio, a[place])
            self.conversion.gather(part.X, part.rows, block[place])
        y, cost = take_labels(parts), take_costs(parts, ratio)
        clock.append(time.perf_counter())
        gram(block, G, alpha=sigma)
        clock.append(time.perf_counter())
        gemm(block, W, scores)
        clock.append(time.perf_counter())
        counts = [len(part.rows) for part in parts]
        dual_values, moved = self._groups.solve(scores, G, a, delta, y, cost, counts)
        clock.append(time.perf_counter())
        n_moved = len(moved)
        pack_rows(block, moved)
        gemm(block[:n_moved].T, delta[:n_moved], W, alpha=sigma, beta=1.0)
        clock.append(time.perf_counter())
        for part, place in zip(parts, places, strict=True):
            part.put_duals(a[place], ratio)
        clock.append(time.perf_counter())
        self._add_times(clock)
        return [ratio * value for value in dual_values]

    def update_all(
        self,
        batches: Sequence[Sequence[RowPart]],
        W: Array,
        ratio: float,
        sigma: float = 1.0,
    ) -> Iterator[list[float]]:
        """Update one batch of rows after the other.

        Parameters
        ----------
        batches : sequence of sequences of RowPart
        W, ratio, sigma
            See :meth:`update`.

        Yields
        ------
        list of float
            What :meth:`update_parts` returns of a batch.
        """
        for parts in batches:
            yield self.update_parts(parts, W, ratio, sigma)

    def _add_times(self, clock: list[float]) -> None:
        spent = np.diff(clock)
        self.timings.convert += spent[0] + spent[5]
        self.timings.gram += spent[1]
        self.timings.scores += spent[2]
        self.timings.inner += spent[3]
        self.timings.update += spent[4]
