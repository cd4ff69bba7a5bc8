"""Cut the training rows into blocks, and deal the blocks to partitions, anew every epoch.

A partition is a piece of work and no machine: which rows it has and in what order it visits them
depends on the seed, the epoch and the number of partitions, and on nothing else.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from dtopk.engine.rows import PieceRange
from dtopk.solvers.mixing import MIXED_GROUPS

_BLOCKS_PER_PARTITION, _UNMIXED_BLOCKS = 128, 32
"""Blocks that a partition has at least, mixed or not, where they need not be smaller than
`_FEWEST_ROWS`: the smaller they are, the less stay the same rows together."""
_FEWEST_ROWS, _UNMIXED_ROWS = 8, 16
_ROUND_ROWS = 4096
"""Rows that a partition visits between two synchronisations, where it has many: bringing the
changes of W together costs as much as about a thousand of them."""
_MOST_ROUNDS = 8
"""Synchronisations in an epoch of many rows."""
_MOST_LEAST_ROUNDS = 32
"""Synchronisations in any epoch are as many as partitions, up to so many: the more there are, the
more of what each finds on its own is lost."""
_N_SLICES = 64
"""W is cut into so many slices of rows, each of which is summed in one place. They do not depend
on how many processes there are, and so neither do the sums."""


@dataclass(frozen=True, kw_only=True)
class Layout:
    """How rows and weights are cut."""

    blocks: tuple[PieceRange, ...]
    """Rows that are dealt out together, in the order of the store."""
    n_partitions: int
    """Parts that an epoch's work is dealt to, K."""
    n_rounds: int
    """Synchronisations in an epoch."""
    streamed: bool
    """Whether rows or duals are read again in every epoch."""
    fixed: bool = False
    """Whether every block stays in the partition that it is in first."""
    mixed: bool = True
    """Whether rows of several blocks are visited in turns; in runs that an earlier version has
    begun they are not."""
    slices: tuple[tuple[int, int], ...]
    """First row and row after the last of each slice of W."""

    @property
    def share(self) -> float:
        """Share of the blocks that are dealt anew every epoch.

        What is in memory stays where it is as far as it can: a quarter brings about as much as all.
        """
        if self.fixed:
            return 0.0
        return 1.0 if self.streamed else 0.25

    @property
    def n_samples(self) -> int:
        """Training rows."""
        return sum(block.n_rows for block in self.blocks)


def make_layout(
    pieces: Sequence[PieceRange],
    width: int,
    *,
    n_partitions: int,
    streamed: bool,
    batch_rows: int = 1,
    block_rows: int = 0,
    n_rounds: int = 0,
    fixed: bool = False,
    mixed: bool = True,
) -> Layout:
    """Cut pieces into blocks, and weights into slices.

    Parameters
    ----------
    pieces : sequence of PieceRange
        The training rows.
    width : int
        Rows of W.
    n_partitions : int
    streamed : bool
        Whether rows are read again in every epoch. Then blocks are whole pieces, and all of them
        are dealt anew; rows in memory stay where they are but for a quarter of the blocks.
    batch_rows : int
        Rows that the solver takes at a time: a larger block is a multiple of them.
    block_rows : int
        Most rows in a block; 0: from the number of rows and partitions.
    n_rounds : int
        Synchronisations in an epoch; 0: from the number of rows and partitions.
    fixed : bool
        Whether blocks stay where they are for ever, as in the published schemes.
    mixed : bool
        Whether rows of several blocks are visited in turns, and cut accordingly.

    Returns
    -------
    Layout

    Raises
    ------
    ValueError
        If there are fewer blocks than partitions.
    """
    n_samples = sum(piece.n_rows for piece in pieces)
    blocks = tuple(pieces)
    if n_partitions > 1 and (block_rows or not streamed):
        if block_rows:
            most, batch = block_rows, 1
        else:
            most, batch = _choose_block_rows(n_samples // n_partitions, batch_rows, mixed)
        blocks = tuple(block for piece in pieces for block in _cut(piece, most, batch))
    if len(blocks) < n_partitions:
        raise ValueError(
            f"partitions must be at most the {len(blocks)} blocks that the {n_samples:,} training "
            f"rows are cut into, got {n_partitions}. Take fewer partitions, or smaller blocks."
        )
    rounds = n_rounds or _choose_rounds(n_samples // n_partitions, n_partitions, mixed)
    if streamed and mixed and not n_rounds:
        # Blocks that are large are not mixed where there is one in a round.
        rounds = min(rounds, max(len(blocks) // (n_partitions * MIXED_GROUPS), 1))
    return Layout(
        blocks=blocks,
        n_partitions=n_partitions,
        n_rounds=1 if n_partitions == 1 else min(rounds, len(blocks) // n_partitions),
        streamed=streamed,
        fixed=fixed,
        mixed=mixed,
        slices=_cut_evenly(width, min(width, _N_SLICES)),
    )


def _choose_block_rows(n_rows: int, batch_rows: int, mixed: bool) -> tuple[int, int]:
    """Choose the most rows in a block, and what they are a multiple of, from a partition's rows."""
    if mixed:
        most = max(_FEWEST_ROWS, n_rows // _BLOCKS_PER_PARTITION)
    else:
        most = max(_UNMIXED_ROWS, n_rows // _UNMIXED_BLOCKS)
    return (most, 1) if most < batch_rows else (most - most % batch_rows, batch_rows)


def _choose_rounds(n_rows: int, n_partitions: int, mixed: bool) -> int:
    """Choose the synchronisations in an epoch, from the rows of a partition."""
    least = min(n_partitions, _MOST_LEAST_ROUNDS) if mixed else int(2 * math.sqrt(n_partitions))
    return max(min(n_rows // _ROUND_ROWS, _MOST_ROUNDS), least)


def _cut_evenly(n: int, n_parts: int) -> tuple[tuple[int, int], ...]:
    bounds = [n * part // n_parts for part in range(n_parts + 1)]
    return tuple(pairwise(bounds))


def _cut(piece: PieceRange, most: int, batch: int) -> list[PieceRange]:
    """Cut a piece into parts of nearly the same size, of at most so many rows, in whole batches."""
    n_batches = -(-piece.n_rows // batch)
    parts = _cut_evenly(n_batches, -(-n_batches * batch // most))
    return [
        replace(
            piece,
            start=piece.start + first * batch,
            stop=min(piece.start + last * batch, piece.stop),
        )
        for first, last in parts
    ]


class Dealer:
    """Who has which block, from epoch to epoch.

    Parameters
    ----------
    layout : Layout
    seed : int
    """

    def __init__(self, layout: Layout, seed: int) -> None:
        self._layout = layout
        self._seed = seed
        n_blocks = len(layout.blocks)
        order = np.random.default_rng([seed, 0]).permutation(n_blocks)
        self.owners: NDArray[np.int64] = np.empty(n_blocks, np.int64)
        """The partition that each block is in."""
        self.owners[order] = np.arange(n_blocks) * layout.n_partitions // n_blocks

    def redeal(self, epoch: int) -> None:
        """Deal a share of the blocks anew: chosen blocks change places among themselves.

        Parameters
        ----------
        epoch : int
            The one that is about to start, counted from 1.
        """
        if self._layout.n_partitions == 1:
            return
        n_blocks = len(self.owners)
        rng = np.random.default_rng([self._seed, epoch, 1])
        chosen = rng.choice(n_blocks, round(self._layout.share * n_blocks), replace=False)
        self.owners[chosen] = self.owners[rng.permutation(chosen)]

    def orders(self, epoch: int) -> list[list[list[int]]]:
        """Return the blocks to visit in an epoch, by round and partition, in their order.

        Parameters
        ----------
        epoch : int
        """
        order = np.random.default_rng([self._seed, epoch]).permutation(len(self.owners))
        mine = [order[self.owners[order] == k] for k in range(self._layout.n_partitions)]
        n_rounds = self._layout.n_rounds
        return [
            [
                blocks[len(blocks) * r // n_rounds : len(blocks) * (r + 1) // n_rounds].tolist()
                for blocks in mine
            ]
            for r in range(n_rounds)
        ]
