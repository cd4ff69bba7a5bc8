"""The blocks of rows that a member's partitions have now, and their duals."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dtopk.engine.blocks import Layout
from dtopk.engine.duals import Duals
from dtopk.engine.feed import Feed
from dtopk.engine.lanes import SharedFeed
from dtopk.engine.messages import Wish
from dtopk.engine.slice_keeper import SliceKeeper
from dtopk_storage import DualFile, RunState

Array = NDArray[Any]


class BlockKeeper(SliceKeeper):
    """The blocks of a member beside the slices that it keeps. See :class:`SliceKeeper`.

    Parameters
    ----------
    layout : Layout
    W : ndarray of shape (width, n_classes)
    duals : Duals
    state : RunState or None
        Where the run's state is written.
    """

    feed: Feed | SharedFeed
    pulse: Callable[[], None]

    def __init__(self, layout: Layout, W: Array, duals: Duals, state: RunState | None) -> None:
        super().__init__(layout, W)
        self.duals = duals
        self.state = state
        self._owned: dict[int, list[int]] = {}
        self._partition_of: Sequence[int] = ()
        self._has_leftovers = False
        self._version = ""

    def give(self, kind: str, *key: int) -> Array:
        """See :meth:`SliceKeeper.give`; 'dual' are the duals of a block."""
        return self.duals.read(key[0]) if kind == "dual" else super().give(kind, *key)

    def own(self, owners: Sequence[int], former: Sequence[int] | None) -> None:
        """Take over the blocks that this member's partitions have now, with their duals.

        Parameters
        ----------
        owners : sequence of int
            The partition of each block.
        former : sequence of int or None
            The partition that each block was in; None where no duals are anywhere yet.
        """
        self._partition_of = owners
        # Others may still ask for what was here: it goes when the next sweep says that all have it.
        self._has_leftovers = True
        self._owned = {k: np.flatnonzero(np.equal(owners, k)).tolist() for k in self._hosted}
        if former is None or self.duals.shared:
            return
        wishes = [
            Wish(member=self.places.hosts[former[block]], kind="dual", key=(block,))
            for blocks in self._owned.values()
            for block in blocks
        ]
        wishes = [wish for wish in wishes if wish.member != self.places.index]
        self._peers.fetch(wishes, lambda place, dual: self.duals.put(wishes[place].key[0], dual))

    def _forget_others(self) -> None:
        """Forget the blocks that other members have now."""
        self._has_leftovers = False
        mine = {block for blocks in self._owned.values() for block in blocks}
        others = [block for block in range(len(self.layout.blocks)) if block not in mine]
        self.duals.drop(others)
        self.feed.drop(others)

    def begin_version(self, version: str) -> None:
        """Write duals that are streamed under another version from here on."""
        self._version = version
        self.duals.begin(version)

    # On disk.

    def write_duals(self, file: DualFile) -> None:
        """Write the chunks of a file whose first block is at this member.

        Parameters
        ----------
        file : DualFile
            Rows outside the training split stay zero.
        """
        mine = {block for blocks in self._owned.values() for block in blocks}
        chunks: dict[tuple[int, int], list[int]] = {}
        for number, block in enumerate(self.layout.blocks):
            chunks.setdefault((block.chunk_start, block.chunk_stop), []).append(number)
        for (start, stop), blocks in chunks.items():
            if blocks[0] not in mine:
                continue
            file.write(start, self._assemble_duals(start, stop, blocks, file))
            self.pulse()

    def _assemble_duals(
        self, start: int, stop: int, blocks: Sequence[int], file: DualFile
    ) -> Array:
        values = np.zeros((stop - start, file.n_classes), file.dtype)
        # Streamed duals too: only the block's own member knows which version counts.
        wishes = [
            Wish(member=self.places.hosts[self._partition_of[block]], kind="dual", key=(block,))
            for block in blocks
        ]

        def take(place: int, dual: Array) -> None:
            block = self.layout.blocks[blocks[place]]
            values[block.start - start : block.stop - start] = dual

        self._collect(wishes, take)
        return values

    def save(self, version: str) -> list[int]:
        """Write the duals that are here and the slices kept here.

        Returns
        -------
        list of int
            Bytes written.
        """
        assert self.state is not None
        written = [self.duals.save(self.state, version)]
        return written + self.save_slices(self.state, version)

    def restore(self, version: str, ratio: float) -> None:
        """Take over what a version of the state has of the blocks and slices that are here.

        Parameters
        ----------
        version : str
        ratio : float
            r of the accelerated outer loop.
        """
        assert self.state is not None
        blocks = [block for blocks in self._owned.values() for block in blocks]
        self.duals.restore(self.state, version, blocks)
        self.restore_slices(self.state, version, ratio)
