"""The updates of a block for several models at a time: one conversion, one product each way.

The weights of models with few classes lie side by side in one matrix. Their scores are one product
with it, and so are their changes: of a product with few columns most of the time would go into
reading the rows. What is between the two, the rows' own problems, is each model's own.
"""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dtopk.engine.lanes import Lane
from dtopk.kernels.blas import gemm, gram
from dtopk.losses import Labels
from dtopk.solvers.row_groups import cut_groups
from dtopk.solvers.sdca import (
    BlockUpdater,
    RowConversion,
    RowPart,
    find_places,
    take_costs,
    take_labels,
)

Array = NDArray[Any]

_STACK_COLUMNS = 256
"""Columns of weights that lie side by side, at most: with so many a product is at full speed."""


class WeightStack:
    """Weights of several models, side by side.

    Parameters
    ----------
    width : int
        Features, with the constant one.
    n_classes : int
        Columns of each model.
    n_models : int
        Places.
    block_size : int
        Most rows in a block.
    dtype : dtype
    """

    def __init__(
        self, width: int, n_classes: int, n_models: int, block_size: int, dtype: np.dtype[Any]
    ) -> None:
        columns = n_models * n_classes
        self.W = np.zeros((width, columns), dtype)
        self._scores, self._delta = (np.zeros((block_size, columns), dtype) for _ in range(2))
        self._places = [slice(first, first + n_classes) for first in range(0, columns, n_classes)]
        self._free = list(self._places)

    @property
    def n_places(self) -> int:
        """Places for models."""
        return len(self._places)

    @property
    def n_taken(self) -> int:
        """Places that models have."""
        return len(self._places) - len(self._free)

    def take_place(self) -> slice:
        """Return the columns of a model that comes, which are zero."""
        # All from one side, so that they lie together: those that come first, with a large C,
        # mostly leave last, and the places beside them fall free from the other side.
        place = max(self._free, key=lambda place: place.start)
        self._free.remove(place)
        self.W[:, place] = 0
        return place

    def leave(self, place: slice) -> None:
        """Give the columns of a model back that is done."""
        self._free.append(place)

    def update(
        self,
        number: int,
        block: Array,
        G: Array,
        requests: "Sequence[SharedUpdater]",
    ) -> None:
        """Update the rows of a batch for some of the models.

        Parameters
        ----------
        number : int
            Which of the batches asked for it is.
        block : ndarray of shape (n_rows, width)
        G : ndarray of shape (n_rows, n_rows)
            Its Gram matrix, the lower triangle.
        requests : sequence of SharedUpdater
        """
        scores, delta = self._scores[: len(block)], self._delta[: len(block)]
        # What is beside them would be multiplied in vain.
        used = slice(
            min(each.place.start for each in requests), max(each.place.stop for each in requests)
        )
        delta[:, used] = 0
        gemm(block, self.W[:, used], scores[:, used])
        for each in requests:
            each.begin(number)
        counts = [len(part.rows) for part in requests[0].request.batches[number]]
        for part, first, last in cut_groups(counts):
            if first:
                # What the groups before have done to this one: one product for all models.
                gemm(G[first:last, :first], delta[:first, used], scores[first:last, used], beta=1.0)
            for each in requests:
                each.solve(part, scores[:, each.place], delta[:, each.place], G, first, last)
        for each in requests:
            each.finish()
        gemm(block.T, delta[:, used], self.W[:, used], beta=1.0)


@dataclass(frozen=True, kw_only=True, eq=False)
class _Request:
    """What :meth:`BlockUpdater.update_all` was asked for."""

    batches: Sequence[Sequence[RowPart]]
    ratio: float


class SharedUpdater(BlockUpdater):
    """The updates of rows, which are made together with those of others.

    Parameters
    ----------
    own : BlockUpdater
        What the model has had.
    n_classes : int
    stack : WeightStack
        There a place is taken for the model.
    """

    def __init__(self, own: BlockUpdater, n_classes: int, stack: WeightStack) -> None:
        super().__init__(own.loss, own.conversion, n_classes, own.block_size)
        self.lane: Lane | None = None
        """The thread that the model's run is in."""
        self.stack = stack
        self.place = stack.take_place()
        """The model's columns."""
        self.W = stack.W[:, self.place]
        """The model's weights, of shape (width, n_classes)."""
        self._request: _Request | None = None
        self._answers: list[list[float]] = []
        self._parts: Sequence[RowPart] = ()
        self._labels: Labels
        self._costs: Array

    @property
    def request(self) -> _Request:
        """What the run waits for."""
        assert self._request is not None
        return self._request

    def update_all(
        self,
        batches: Sequence[Sequence[RowPart]],
        W: Array,
        ratio: float,
        sigma: float = 1.0,
    ) -> Iterator[list[float]]:
        """See :meth:`BlockUpdater.update_all`; all at once, when all others want the same."""
        assert self.lane is not None
        assert sigma == 1.0  # There is one partition.
        assert W.base is self.stack.W
        if not batches:
            return
        self._request, self._answers = _Request(batches=batches, ratio=ratio), []
        self.lane.wait("update")
        self._request = None
        yield from self._answers

    def leave(self) -> None:
        """Give the model's place to another one."""
        self.stack.leave(self.place)

    def begin(self, number: int) -> None:
        """Take what this model has of the rows of a batch.

        Parameters
        ----------
        number : int
        """
        began, ratio = time.perf_counter(), self.request.ratio
        self._parts = self.request.batches[number]
        for part, place in zip(self._parts, find_places(self._parts), strict=True):
            part.take_duals(ratio, self._dual[place])
        self._labels, self._costs = take_labels(self._parts), take_costs(self._parts, ratio)
        self._answers.append([0.0] * len(self._parts))
        self.timings.convert += time.perf_counter() - began

    def solve(
        self, part: int, scores: Array, delta: Array, G: Array, first: int, last: int
    ) -> None:
        """Solve a group of these rows for this model.

        Parameters
        ----------
        part : int
            The part that they are of.
        scores : ndarray of shape (n_rows, n_classes)
            Of the group, with what the groups before have done to it.
        delta : ndarray of shape (n_rows, n_classes)
            Its rows of the group are written to: the changes of the duals.
        G : ndarray of shape (n_rows, n_rows)
        first, last : int
            The group.
        """
        began = time.perf_counter()
        group = slice(first, last)
        # Contiguous, for the kernels.
        self._scores[group] = scores[group]
        value = self.loss.update_rows(
            self._scores, G, self._dual, self._delta, self._labels, self._costs, first, last
        )
        delta[group] = self._delta[group]
        self._answers[-1][part] += self.request.ratio * value
        self.timings.inner += time.perf_counter() - began

    def finish(self) -> None:
        """Put the rows' duals back."""
        began = time.perf_counter()
        for part, place in zip(self._parts, find_places(self._parts), strict=True):
            part.put_duals(self._dual[place], self.request.ratio)
        self.timings.convert += time.perf_counter() - began


class JointUpdates:
    """Makes the updates of all models that wait for one.

    Parameters
    ----------
    conversion : RowConversion
    n_classes : int
    n_models : int
        Most that are trained at a time.
    block_size : int
        Most rows in a block.
    """

    def __init__(
        self,
        conversion: RowConversion,
        n_classes: int,
        n_models: int,
        block_size: int,
    ) -> None:
        self.seconds = 0.0
        """Spent on what is shared: rows and their Gram matrices."""
        self._conversion = conversion
        self._n_classes = n_classes
        self._block_size = block_size
        self._n_models = n_models
        self._stacks: list[WeightStack] = []
        self._block = np.empty((block_size, conversion.width), conversion.dtype)
        self._gram = np.empty(block_size * block_size, conversion.dtype)

    def make_updater(self, own: BlockUpdater) -> SharedUpdater:
        """Make what takes the place of a model's own updater.

        Parameters
        ----------
        own : BlockUpdater
        """
        with_place = [stack for stack in self._stacks if stack.n_taken < stack.n_places]
        if not with_place:
            n_left = self._n_models - sum(stack.n_places for stack in self._stacks)
            n_places = max(min(_STACK_COLUMNS // self._n_classes, n_left), 1)
            width, dtype = self._conversion.width, self._conversion.dtype
            with_place = [WeightStack(width, self._n_classes, n_places, self._block_size, dtype)]
            self._stacks += with_place
        return SharedUpdater(own, self._n_classes, with_place[0])

    def update(self, updaters: Sequence[SharedUpdater]) -> None:
        """Make the updates that models wait for.

        Parameters
        ----------
        updaters : sequence of SharedUpdater, not empty
            What the models have asked for is the same rows.
        """
        batches = updaters[0].request.batches
        assert all(_are_same_rows(each.request.batches, batches) for each in updaters)
        work = [
            (stack, here)
            for stack in self._stacks
            if (here := [each for each in updaters if each.stack is stack])
        ]
        for number, parts in enumerate(batches):
            began = time.perf_counter()
            places = find_places(parts)
            n_rows = places[-1].stop
            # Contiguous, as BlockUpdater has it.
            G = self._gram[: n_rows**2].reshape(n_rows, n_rows)
            block = self._block[:n_rows]
            for part, place in zip(parts, places, strict=True):
                self._conversion.gather(part.X, part.rows, block[place])
            gram(block, G)
            self.seconds += time.perf_counter() - began
            for stack, requests in work:
                stack.update(number, block, G, requests)


def _are_same_rows(
    batches: Sequence[Sequence[RowPart]], others: Sequence[Sequence[RowPart]]
) -> bool:
    return all(
        part.X.shape == other.X.shape and np.array_equal(part.rows, other.rows)
        for parts, other_parts in zip(batches, others, strict=True)
        for part, other in zip(parts, other_parts, strict=True)
    )


def count_place_bytes(n_classes: int, block_size: int, itemsize: int) -> int:
    """Count what the rows of a block take, of one model.

    Parameters
    ----------
    n_classes : int
    block_size : int
    itemsize : int
    """
    # Scores and changes, in the matrix of all and by themselves, and the duals.
    return 5 * block_size * n_classes * itemsize
