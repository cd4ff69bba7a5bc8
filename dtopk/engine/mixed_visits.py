"""The visits of a sweep, a few at a time, as batches of rows of several blocks."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dtopk.engine.blocks import Layout
from dtopk.engine.feed import Visit
from dtopk.solvers.mixing import MIXED_GROUPS, Batch, RowMixer, count_group_blocks
from dtopk.solvers.sdca import RowPart

_BATCH_DUALS = 1 << 25
"""Most duals in a batch of rows of several blocks."""


def count_batch_rows(layout: Layout, n_classes: int, block_size: int) -> int:
    """Count the rows of a batch, at most.

    Parameters
    ----------
    layout : Layout
    n_classes : int
    block_size : int
        Most rows that are to be updated together.
    """
    largest = max(block.n_rows for block in layout.blocks)
    return min(block_size, max(largest, _BATCH_DUALS // n_classes), layout.n_samples)


@dataclass(frozen=True, kw_only=True)
class MixedBatch:
    """Rows that are updated together."""

    blocks: tuple[int, ...]
    """The blocks that they are of."""
    parts: tuple[RowPart, ...]
    """The rows of each."""

    @property
    def n_rows(self) -> int:
        """Rows in all."""
        return sum(len(part.rows) for part in self.parts)


class MixedVisits:
    """How the blocks of a sweep are mixed. See :mod:`dtopk.solvers.mixing`.

    Parameters
    ----------
    n_blocks : int
        Blocks of the sweep.
    block_rows : int
        Most rows in a block.
    batch_rows : int
        Most rows in a batch.
    mixed : bool
        Whether they are mixed at all.
    """

    def __init__(
        self, n_blocks: int, block_rows: int, batch_rows: int, *, mixed: bool = True
    ) -> None:
        self._n_blocks = n_blocks
        self._batch_rows = batch_rows
        self._group_blocks = count_group_blocks(block_rows, batch_rows) if mixed else 1
        n_groups = min(MIXED_GROUPS, -(-n_blocks // self._group_blocks)) if mixed else 1
        self._n_groups = max(n_groups, 1)

    @property
    def n_held(self) -> int:
        """Blocks in hand at a time."""
        return self._n_groups * self._group_blocks

    def deal(
        self,
        visits: Iterator[Visit],
        weigh: Callable[[Visit], NDArray[Any]],
        seed: tuple[int, ...],
        stop: Callable[[], bool],
    ) -> Iterator[list[MixedBatch]]:
        """Take the blocks as they come, and yield the batches that are to be updated after each.

        Parameters
        ----------
        visits : iterator of Visit
            Each is held until so many others have come, the last ones until it is closed: it is
            never asked for more than there are.
        weigh : callable
            Returns the costs of a block's rows, in the dtype of W.
        seed : tuple of int
            Of the order, with the number of the first block of each group.
        stop : callable
            Says whether to take no further block; the rows of those in hand are visited still.

        Yields
        ------
        list of MixedBatch
        """
        mixer = RowMixer(self._n_groups, self._batch_rows)
        in_hand: dict[int, tuple[Visit, NDArray[Any]]] = {}
        n_come = 0

        def fill(batches: list[Batch]) -> list[MixedBatch]:
            return [
                MixedBatch(
                    blocks=tuple(in_hand[number][0].block for number, _ in batch),
                    parts=tuple(_take(*in_hand[number], rows) for number, rows in batch),
                )
                for batch in batches
            ]

        while n_come < self._n_blocks:
            group = list(islice(visits, min(self._group_blocks, self._n_blocks - n_come)))
            for number, visit in enumerate(group, start=n_come):
                in_hand[number] = visit, weigh(visit)
                in_hand.pop(number - self.n_held, None)
            n_come += len(group)
            rng = np.random.default_rng([*seed, group[0].block])
            yield fill(mixer.add([len(visit.piece.labels) for visit in group], rng))
            if stop():
                break
        yield from map(fill, mixer.finish())


def _take(visit: Visit, costs: NDArray[Any], rows: NDArray[np.int64]) -> RowPart:
    return RowPart(
        X=visit.piece.X, labels=visit.piece.labels, costs=costs, dual=visit.dual, rows=rows
    )
