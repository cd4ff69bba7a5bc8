"""The sizes of a run, and how they are shared out to its members."""

from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import DTypeLike

from dtopk.engine.blocks import Layout, make_layout
from dtopk.engine.options import FitOptions
from dtopk.engine.rows import PieceRange, Rows, StoreRows
from dtopk.engine.solvers import Needs, find_needs
from dtopk.losses import Loss
from dtopk.solvers.sdca import default_block_size


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """The sizes that memory and traffic of a run depend on."""

    pieces: tuple[PieceRange, ...]
    """The training rows, as they are read."""
    chunk_rows: int
    """Rows of a chunk, which is read as a whole."""
    n_features: int
    """Features at rest."""
    feature_itemsize: int
    """Bytes of one of them."""
    constant: bool
    """Whether a constant feature is added."""
    n_classes: int
    """Classes."""
    itemsize: int
    """Bytes of a number of the computation."""
    block_size: int
    """Rows solved together, at most."""
    n_partitions: int
    """Parts that the rows are dealt to, K."""
    block_rows: int = 0
    """Most rows in a block that is dealt out; 0: from the numbers of rows and partitions."""
    n_rounds: int = 0
    """Synchronisations in an epoch; 0: from the numbers of rows and partitions."""
    fixed: bool = False
    """Whether no block changes its partition."""
    accelerated: bool = True
    """Whether there is the accelerated outer loop."""
    resident: bool = False
    """Whether the features are in memory already, and count for nothing."""
    threads: int = 1
    """Threads of the matrix products."""
    needs: Needs = field(default_factory=Needs)
    """What the solver keeps beside weights and features."""
    ahead_bytes: int = 0
    """Bytes of features under way from an object store at most."""

    @classmethod
    def of_rows(cls, rows: Rows, options: FitOptions, loss: Loss | None = None) -> "Sizes":
        """Take them from rows and options of a run.

        Parameters
        ----------
        rows : Rows
        options : FitOptions
        loss : Loss, optional
            None for one that SDCA trains.
        """
        sizes = cls._make(
            options,
            loss,
            pieces=tuple(rows.pieces),
            chunk_rows=min(rows.chunk_rows, rows.n_stored) if rows.resident else rows.chunk_rows,
            n_features=rows.n_features,
            feature_itemsize=rows.dtype.itemsize,
            n_classes=rows.n_classes,
            resident=rows.resident,
        )
        ahead_bytes = rows.store.ahead_bytes if isinstance(rows, StoreRows) else 0
        return replace(sizes, ahead_bytes=ahead_bytes)

    @classmethod
    def of_numbers(
        cls,
        options: FitOptions,
        loss: Loss | None = None,
        *,
        n_samples: int,
        n_features: int,
        n_classes: int,
        dtype: DTypeLike,
        chunk_rows: int,
    ) -> "Sizes":
        """Make them for a store that need not be there.

        Parameters
        ----------
        options : FitOptions
        loss : Loss, optional
            None for one that SDCA trains.
        n_samples, n_features, n_classes : int
        dtype : dtype
            Of the features at rest.
        chunk_rows : int
            Rows in a chunk of the store.
        """
        pieces = tuple(
            PieceRange(start=start, stop=stop, chunk_start=start, chunk_stop=stop)
            for start in range(0, n_samples, chunk_rows)
            for stop in [min(start + chunk_rows, n_samples)]
        )
        return cls._make(
            options,
            loss,
            pieces=pieces,
            chunk_rows=chunk_rows,
            n_features=n_features,
            feature_itemsize=np.dtype(dtype).itemsize,
            n_classes=n_classes,
            resident=False,
        )

    @classmethod
    def _make(
        cls,
        options: FitOptions,
        loss: Loss | None,
        *,
        pieces: tuple[PieceRange, ...],
        chunk_rows: int,
        n_features: int,
        feature_itemsize: int,
        n_classes: int,
        resident: bool,
    ) -> "Sizes":
        width = n_features + (options.constant != 0)
        needs = Needs() if loss is None else find_needs(loss, options, width, n_classes)
        return cls(
            pieces=pieces,
            chunk_rows=chunk_rows,
            n_features=n_features,
            feature_itemsize=feature_itemsize,
            constant=options.constant != 0,
            n_classes=n_classes,
            itemsize=np.dtype(options.dtype).itemsize,
            block_size=options.block_size or default_block_size(width, n_classes),
            n_partitions=options.partitions,
            block_rows=options.block_rows,
            n_rounds=options.rounds_per_epoch,
            fixed=options.aggregation != "exact",
            accelerated=options.acceleration != "off" and not needs.passes,
            needs=needs,
            resident=resident,
            threads=options.threads or 1,
        )

    @property
    def n_samples(self) -> int:
        """Training rows."""
        return sum(piece.n_rows for piece in self.pieces)

    @property
    def width(self) -> int:
        """Rows of W."""
        return self.n_features + self.constant

    @property
    def weights_bytes(self) -> int:
        """Bytes of W, in the precision of the computation."""
        return self.width * self.n_classes * self.itemsize

    @property
    def exact_bytes(self) -> int:
        """Bytes of a matrix of W's shape in float64."""
        return self.width * self.n_classes * 8

    @property
    def chunk_bytes(self) -> int:
        """Bytes of a chunk of features."""
        return self.chunk_rows * self.n_features * self.feature_itemsize

    @property
    def features_bytes(self) -> int:
        """Bytes of the features of all training rows, at rest."""
        return self.n_samples * self.n_features * self.feature_itemsize

    @property
    def duals_bytes(self) -> int:
        """Bytes of the duals of all training rows; 0 where the solver keeps none."""
        return self.n_samples * self.n_classes * self.itemsize * self.needs.duals

    def make_layout(self, *, streamed: bool, mixed: bool = True) -> Layout:
        """Cut rows and weights as the run will.

        Parameters
        ----------
        streamed : bool
            Whether rows or duals are.
        mixed : bool
            See :func:`dtopk.engine.blocks.make_layout`.

        Raises
        ------
        ValueError
            If there are fewer blocks than partitions.
        """
        return make_layout(
            self.pieces,
            self.width,
            n_partitions=self.n_partitions,
            streamed=streamed,
            batch_rows=self.block_size,
            block_rows=self.block_rows,
            n_rounds=1 if self.needs.passes else self.n_rounds,
            fixed=self.fixed or self.needs.passes,
            mixed=mixed,
        )


def member_partitions(layout: Layout, n_members: int) -> int:
    """Return the partitions that a member hosts, at most.

    Parameters
    ----------
    layout : Layout
    n_members : int
    """
    return -(-layout.n_partitions // n_members)


def member_blocks(layout: Layout, n_members: int) -> int:
    """Return the blocks that a member has, at most.

    Parameters
    ----------
    layout : Layout
    n_members : int
    """
    blocks = -(-len(layout.blocks) // layout.n_partitions) * member_partitions(layout, n_members)
    return min(blocks, len(layout.blocks))


def member_rows(layout: Layout, n_members: int) -> int:
    """Return the rows that a member has, at most.

    Parameters
    ----------
    layout : Layout
    n_members : int
    """
    return min(member_blocks(layout, n_members) * largest_block(layout), layout.n_samples)


def largest_block(layout: Layout) -> int:
    """Return the rows of the largest block.

    Parameters
    ----------
    layout : Layout
    """
    return max(block.n_rows for block in layout.blocks)


def kept_rows(layout: Layout, n_members: int) -> int:
    """Return the rows of W in the slices that a member keeps, at most.

    Parameters
    ----------
    layout : Layout
    n_members : int
    """
    heights = sorted(last - first for first, last in layout.slices)
    return sum(heights[-(-len(heights) // n_members) * -1 :])
