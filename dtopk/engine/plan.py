"""What each member of a run holds, and what members send each other, worked out before the start.

A run is in one of three ways: rows and duals in memory, rows streamed, or both streamed. The first
that fits is taken. Sizes alone decide: nothing is read or made.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import DTypeLike

from dtopk.engine.blocks import Layout, make_layout
from dtopk.engine.member import PROBE_BLOCKS, PROBE_SHARE
from dtopk.engine.memory import MemoryPlan, free_memory
from dtopk.engine.options import FitOptions
from dtopk.engine.rows import PieceRange, Rows
from dtopk.solvers.sdca import default_block_size
from dtopk_storage.wording import format_count

PROCESS_BYTES = 240_000_000
"""A worker of Dask with numpy, scipy, numba and this package, its kernels loaded."""
COMPILER_BYTES = 240_000_000
"""What is left of compiling kernels, in a process that is the first on its machine to need them."""
_SHARE_OF_FREE = 0.6
"""Share of the free memory that this process takes by default; page cache and the caller need
theirs."""
_SHARE_OF_LIMIT = 0.9
"""Share of a worker's limit that is planned for: it is killed at 95%."""
_THREAD_BYTES = 6_000_000
"""Of a thread of the matrix products: its packed parts of the factors."""
_SLACK = 0.08
_SLACK_BYTES = 10_000_000
"""What the allocator has of memory that was given back: a share of what is in use, and so much."""
_CERTIFICATE_ROWS = 256
"""Rows that a certificate converts together."""
_ROW_BYTES = 12
"""Of a row's label and weight."""
_MOST_MEMBERS = 1024
_WAYS = ((True, True), (False, True), (False, False))
"""Whether features and whether duals are in memory, the fastest first."""


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
    ahead: bool = False
    """Whether rows are converted while those before them are solved."""

    @classmethod
    def of_rows(cls, rows: Rows, options: FitOptions) -> "Sizes":
        """Take them from rows and options of a run.

        Parameters
        ----------
        rows : Rows
        options : FitOptions
        """
        return cls._make(
            options,
            pieces=tuple(rows.pieces),
            chunk_rows=min(rows.chunk_rows, rows.n_stored) if rows.resident else rows.chunk_rows,
            n_features=rows.n_features,
            feature_itemsize=rows.dtype.itemsize,
            n_classes=rows.n_classes,
            resident=rows.resident,
        )

    @classmethod
    def of_numbers(
        cls,
        options: FitOptions,
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
        *,
        pieces: tuple[PieceRange, ...],
        chunk_rows: int,
        n_features: int,
        feature_itemsize: int,
        n_classes: int,
        resident: bool,
    ) -> "Sizes":
        return cls(
            pieces=pieces,
            chunk_rows=chunk_rows,
            n_features=n_features,
            feature_itemsize=feature_itemsize,
            constant=options.constant != 0,
            n_classes=n_classes,
            itemsize=np.dtype(options.dtype).itemsize,
            block_size=options.block_size or default_block_size(n_classes),
            n_partitions=options.partitions,
            block_rows=options.block_rows,
            n_rounds=options.rounds_per_epoch,
            fixed=options.aggregation != "exact",
            accelerated=options.acceleration != "off",
            resident=resident,
            threads=options.threads or 1,
            ahead=options.threads != 1,
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
        """Bytes of the duals of all training rows."""
        return self.n_samples * self.n_classes * self.itemsize

    def make_layout(self, *, streamed: bool) -> Layout:
        """Cut rows and weights as the run will.

        Parameters
        ----------
        streamed : bool
            Whether rows or duals are.

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
            n_rounds=self.n_rounds,
            fixed=self.fixed,
        )


@dataclass(frozen=True, kw_only=True)
class Holding:
    """Something that a member has in memory."""

    name: str
    """What it is."""
    in_round: int
    """Its bytes while partitions are swept and their changes put together, at most."""
    at_certificate: int
    """Its bytes while a certificate is taken, at most."""


@dataclass(frozen=True, kw_only=True)
class Traffic:
    """Bytes that the busiest member gets: from other members, and from the disk."""

    weights: int
    """Slices of W that others keep, in a round."""
    changes: int
    """Changes of W by others' partitions, in the slices that it keeps, in a round."""
    duals: int
    """Duals of blocks that come from other members, in an epoch."""
    epoch: int
    """All of that, in an epoch; the accelerated loop brings the weights once more."""
    certificate: int
    """For a certificate, beside what an epoch needs."""
    lead: int
    """What the leading process and all members tell each other, in a round."""
    first_read: int
    """Features read from the store until all are there."""
    epoch_read: int
    """Features read from the store in every epoch."""
    duals_streamed: int
    """Duals read and written on disk in every epoch."""
    certificate_read: int
    """Features and duals read for a certificate."""


@dataclass(frozen=True, kw_only=True)
class ClusterPlan:
    """How a run is spread over members, and what each of them needs for it."""

    sizes: Sizes
    """Of the run."""
    layout: Layout
    """How rows and weights are cut."""
    n_members: int
    """Processes that share the run."""
    memory: MemoryPlan
    """What is in memory."""
    limit_bytes: int
    """What a member may take of memory, as given."""
    usable_bytes: int
    """What of it is planned for."""
    whole_process: bool
    """Whether all that a process takes is counted, or only features, duals and weights."""
    holdings: tuple[Holding, ...]
    """What the member with the most to hold has in memory."""
    traffic: Traffic
    """What the busiest member gets."""

    @property
    def round_bytes(self) -> int:
        """Bytes held in a round."""
        return sum(holding.in_round for holding in self.holdings)

    @property
    def certificate_bytes(self) -> int:
        """Bytes held for a certificate."""
        return sum(holding.at_certificate for holding in self.holdings)

    @property
    def needed_bytes(self) -> int:
        """Bytes held at most."""
        return max(self.round_bytes, self.certificate_bytes)

    @property
    def fits(self) -> bool:
        """Whether that is within what may be taken."""
        return self.needed_bytes <= self.usable_bytes

    @property
    def member_rows(self) -> int:
        """Rows of the member that has most."""
        return _member_rows(self.layout, self.n_members)

    @property
    def partitions_hosted(self) -> int:
        """Partitions of the member that has most."""
        return _member_partitions(self.layout, self.n_members)

    @property
    def kept_rows(self) -> int:
        """Rows of W in the slices of the member that keeps most."""
        return _kept_rows(self.layout, self.n_members)


def plan_cluster(sizes: Sizes, *, n_members: int, memory_bytes: int) -> ClusterPlan:
    """Plan a run in worker processes.

    Parameters
    ----------
    sizes : Sizes
    n_members : int
        Processes.
    memory_bytes : int
        What the smallest of them may take before it is killed.

    Returns
    -------
    ClusterPlan

    Raises
    ------
    ValueError
        If that does not suffice, with the arithmetic; or if there are fewer blocks than partitions.
    """
    plan = choose_plan(sizes, n_members=n_members, memory_bytes=memory_bytes)
    if not plan.fits:
        raise ValueError(describe_refusal(plan))
    return plan


def choose_plan(sizes: Sizes, *, n_members: int, memory_bytes: int) -> ClusterPlan:
    """Return the first plan that fits, or the one that needs least if none does.

    Parameters
    ----------
    sizes, n_members, memory_bytes
        As of `plan_cluster`.

    Raises
    ------
    ValueError
        If there are fewer blocks than partitions.
    """
    usable = int(_SHARE_OF_LIMIT * memory_bytes)
    return _choose(sizes, n_members, memory_bytes, usable, whole_process=True)


def plan_process(sizes: Sizes, *, limit_bytes: int | None = None) -> ClusterPlan:
    """Plan a run in this process, of which only features, duals and weights are counted.

    Parameters
    ----------
    sizes : Sizes
    limit_bytes : int or None
        What these may take; None: a share of what is free.

    Returns
    -------
    ClusterPlan

    Raises
    ------
    ValueError
        If that does not suffice, with the arithmetic; or if there are fewer blocks than partitions.
    """
    plan = choose_process_plan(sizes, limit_bytes=limit_bytes)
    if not plan.fits:
        raise ValueError(describe_refusal(plan, automatic=limit_bytes is None))
    return plan


def choose_process_plan(sizes: Sizes, *, limit_bytes: int | None = None) -> ClusterPlan:
    """Return the first plan for this process that fits, or the one that needs least.

    Parameters
    ----------
    sizes, limit_bytes
        As of `plan_process`.

    Raises
    ------
    ValueError
        If there are fewer blocks than partitions.
    """
    limit = int(_SHARE_OF_FREE * free_memory()) if limit_bytes is None else limit_bytes
    return _choose(sizes, 1, limit, limit, whole_process=False)


def _choose(
    sizes: Sizes, n_members: int, limit: int, usable: int, *, whole_process: bool
) -> ClusterPlan:
    """Return the first way's plan that fits, or the plan that needs least."""
    plans, error = [], None
    for features, duals in _WAYS:
        memory = MemoryPlan(features_in_memory=features or sizes.resident, duals_in_memory=duals)
        try:
            plan = _plan(sizes, n_members, memory, whole_process=whole_process)
        except ValueError as cause:
            # Chunks are streamed as they are, and may be fewer than the partitions.
            error = cause
            continue
        plan = replace(plan, limit_bytes=limit, usable_bytes=usable)
        if plan.fits:
            return plan
        plans.append(plan)
    if error is not None and not plans:
        raise error
    return min(plans, key=lambda plan: plan.needed_bytes)


def _plan(sizes: Sizes, n_members: int, memory: MemoryPlan, *, whole_process: bool) -> ClusterPlan:
    layout = sizes.make_layout(streamed=not memory.all_in_memory)
    return ClusterPlan(
        sizes=sizes,
        layout=layout,
        n_members=n_members,
        memory=memory,
        limit_bytes=0,
        usable_bytes=0,
        whole_process=whole_process,
        holdings=_list_holdings(sizes, layout, n_members, memory, whole_process),
        traffic=_count_traffic(sizes, layout, n_members, memory),
    )


def describe_refusal(plan: ClusterPlan, *, automatic: bool = False) -> str:
    """Say what a plan that does not fit needs, and what for.

    Parameters
    ----------
    plan : ClusterPlan
    automatic : bool
        Whether nobody has set the limit.
    """
    certificate = plan.certificate_bytes >= plan.round_bytes
    parts = [
        (holding.name, holding.at_certificate if certificate else holding.in_round)
        for holding in plan.holdings
    ]
    listed = "; ".join(f"{name} {size:,}" for name, size in parts if size)
    needs = f"At {'a certificate' if certificate else 'the end of a round'}: {listed}."
    if not plan.whole_process:
        where = "memory that is free" if automatic else "memory_limit"
        return (
            f"{where} must be at least {plan.needed_bytes:,} bytes, got {plan.limit_bytes:,}. "
            f"{needs} Give it more, or train on a machine with more memory."
        )
    least = math.ceil(plan.needed_bytes / _SHARE_OF_LIMIT)
    more = ", or start more of them" if plan.n_members < plan.sizes.n_partitions else ""
    return (
        f"workers must have at least {least:,} bytes of memory each, a tenth of which stays free, "
        f"got {plan.limit_bytes:,}. {needs} Give each worker more{more}."
    )


# What a member has.


def _member_partitions(layout: Layout, n_members: int) -> int:
    return -(-layout.n_partitions // n_members)


def _member_blocks(layout: Layout, n_members: int) -> int:
    blocks = -(-len(layout.blocks) // layout.n_partitions) * _member_partitions(layout, n_members)
    return min(blocks, len(layout.blocks))


def _member_rows(layout: Layout, n_members: int) -> int:
    return min(_member_blocks(layout, n_members) * _largest_block(layout), layout.n_samples)


def _largest_block(layout: Layout) -> int:
    return max(block.n_rows for block in layout.blocks)


def _kept_rows(layout: Layout, n_members: int) -> int:
    """Rows of W in the slices that a member keeps, at most."""
    heights = sorted(last - first for first, last in layout.slices)
    return sum(heights[-(-len(heights) // n_members) * -1 :])


def _list_holdings(
    sizes: Sizes, layout: Layout, n_members: int, memory: MemoryPlan, whole_process: bool
) -> tuple[Holding, ...]:
    """List what a member holds; :mod:`dtopk.engine.member` has the arrays by their names."""
    holdings = [
        *_list_weights(sizes, layout, n_members),
        *_list_features(sizes, layout, n_members, memory),
        *_list_duals(sizes, layout, n_members, memory),
        *_list_transit(sizes, memory),
    ]
    if whole_process:
        holdings.append(_list_workspace(sizes, layout))
        slack = [
            _SLACK_BYTES + int(_SLACK * sum(getattr(holding, name) for holding in holdings))
            for name in ("in_round", "at_certificate")
        ]
        holdings = [
            _steady("interpreter and libraries", PROCESS_BYTES),
            _steady("compiling kernels, on a machine's first run", COMPILER_BYTES),
            _steady(
                f"buffers of {format_count(sizes.threads, 'thread')}", sizes.threads * _THREAD_BYTES
            ),
            *holdings,
            Holding(name="the allocator's own", in_round=slack[0], at_certificate=slack[1]),
        ]
    return tuple(holding for holding in holdings if holding.in_round or holding.at_certificate)


def _steady(name: str, size: int) -> Holding:
    return Holding(name=name, in_round=size, at_certificate=size)


def _list_weights(sizes: Sizes, layout: Layout, n_members: int) -> list[Holding]:
    """W, what partitions change of it, and what the keepers of its slices have."""
    hosted = _member_partitions(layout, n_members)
    others = layout.n_partitions - hosted
    kept = _kept_rows(layout, n_members) * sizes.n_classes
    height = max(last - first for first, last in layout.slices)
    slice_size = height * sizes.n_classes
    alone = layout.n_partitions == 1
    shape = f"{sizes.width:,} x {sizes.n_classes:,}"
    return [
        _steady(f"weights W, {shape}", sizes.weights_bytes),
        Holding(
            name=f"changes of W, {format_count(hosted, 'partition')}",
            in_round=0 if alone else hosted * sizes.weights_bytes,
            at_certificate=hosted * sizes.exact_bytes,
        ),
        Holding(
            name="W in float64",
            in_round=0,
            at_certificate=sizes.exact_bytes,
        ),
        Holding(
            name=f"changes of kept slices, {format_count(others, 'other partition')}",
            in_round=others * kept * sizes.itemsize,
            at_certificate=others * slice_size * 8,
        ),
        Holding(
            name="products of changes",
            in_round=0 if alone else (layout.n_partitions + 1) * slice_size * 8,
            at_certificate=0,
        ),
        _steady(
            "centre of the accelerated loop", kept * sizes.itemsize if sizes.accelerated else 0
        ),
    ]


def _list_features(
    sizes: Sizes, layout: Layout, n_members: int, memory: MemoryPlan
) -> list[Holding]:
    if sizes.resident:
        return []
    if not memory.features_in_memory:
        # The chunk in work, the one read ahead, and its bytes as they come from the disk.
        return [_steady("three chunks of features", 3 * sizes.chunk_bytes)]
    rows = _member_rows(layout, n_members)
    row_bytes = sizes.n_features * sizes.feature_itemsize + _ROW_BYTES
    return [_steady(f"features of {rows:,} rows", rows * row_bytes)]


def _list_duals(sizes: Sizes, layout: Layout, n_members: int, memory: MemoryPlan) -> list[Holding]:
    row_bytes = sizes.n_classes * sizes.itemsize
    block_bytes = _largest_block(layout) * row_bytes
    if not memory.duals_in_memory:
        # Those in work, those read ahead or written behind, and their bytes on disk.
        return [_steady("three blocks of duals", 3 * block_bytes)]
    rows = _member_rows(layout, n_members)
    share = max(1 / layout.n_rounds, layout.share * (1 - 1 / n_members))
    proposed = min(int(share * rows) + _largest_block(layout), rows) * row_bytes
    return [
        _steady(f"duals of {rows:,} rows", rows * row_bytes),
        Holding(
            name="duals that a round proposes, or that come from others",
            in_round=0 if layout.n_partitions == 1 else proposed,
            at_certificate=0,
        ),
    ]


def _list_transit(sizes: Sizes, memory: MemoryPlan) -> list[Holding]:
    """Count a chunk of features being read, or one of duals being written, where they stay."""
    if sizes.resident:
        return []
    chunk_rows = min(sizes.chunk_rows, sizes.n_samples)
    # Each of them twice: as it is in memory, and as it is on disk.
    read = 2 * sizes.chunk_bytes if memory.features_in_memory else 0
    written = 2 * chunk_rows * sizes.n_classes * sizes.itemsize if memory.duals_in_memory else 0
    return [
        Holding(
            name="a chunk on its way from or to the disk",
            in_round=max(read, written),
            at_certificate=written,
        )
    ]


def _list_workspace(sizes: Sizes, layout: Layout) -> Holding:
    """Count the arrays of `BlockUpdater` and of `CertificateSums.add`."""
    size = min(sizes.block_size, _largest_block(layout))
    # The rows themselves, and those of the next block where they are converted ahead.
    widths = (1 + sizes.ahead) * sizes.width
    return Holding(
        name="rows being solved",
        in_round=size * (widths + size + 3 * sizes.n_classes) * sizes.itemsize,
        at_certificate=_CERTIFICATE_ROWS * (sizes.width + 5 * sizes.n_classes) * 8,
    )


# What members send.


def _count_traffic(sizes: Sizes, layout: Layout, n_members: int, memory: MemoryPlan) -> Traffic:
    members = min(n_members, layout.n_partitions)
    hosted = _member_partitions(layout, n_members)
    others = layout.n_partitions - hosted
    kept = _kept_rows(layout, n_members) * sizes.n_classes
    away = 1 - 1 / members
    weights = sizes.weights_bytes - kept * sizes.itemsize if n_members > 1 else 0
    changes = others * kept * sizes.itemsize
    rows = _member_rows(layout, n_members)
    duals = 0
    if memory.duals_in_memory and layout.n_partitions > 1:
        duals = int(layout.share * away * rows) * sizes.n_classes * sizes.itemsize
    epoch = layout.n_rounds * (weights + changes) + duals
    first, again = _count_reads(sizes, layout, n_members, memory)
    streamed = 0
    if not memory.duals_in_memory:
        streamed = rows * sizes.n_classes * sizes.itemsize
    visited = 0
    if not memory.features_in_memory:
        visited = _visited_bytes(sizes, layout, n_members)
    return Traffic(
        weights=weights,
        changes=changes,
        duals=duals,
        epoch=epoch,
        certificate=others * kept * 8,
        lead=_count_messages(layout, n_members),
        first_read=first,
        epoch_read=again,
        duals_streamed=int(streamed * (2 + _probed_share(layout))),
        certificate_read=visited + streamed,
    )


def _count_reads(
    sizes: Sizes, layout: Layout, n_members: int, memory: MemoryPlan
) -> tuple[int, int]:
    """Count bytes of features that a member reads from the store at first, and in every epoch.

    A chunk is read as a whole for the blocks of it that are at the member.
    """
    if sizes.resident:
        return 0, 0
    if not memory.features_in_memory:
        visited = _visited_bytes(sizes, layout, n_members)
        return 0, int(visited * (1 + _probed_share(layout)))
    share = _member_rows(layout, n_members) / sizes.n_samples
    new = layout.share * share * (1 - 1 / min(n_members, layout.n_partitions))
    return _read_chunks(sizes, layout, share), _read_chunks(sizes, layout, new)


def _visited_bytes(sizes: Sizes, layout: Layout, n_members: int) -> int:
    """Count the bytes of the features that a member reads if it visits each of its blocks once."""
    blocks = _member_blocks(layout, n_members)
    if sizes.block_rows:
        # Blocks that are cut smaller than a chunk are each read with all of it.
        return blocks * sizes.chunk_bytes
    return _member_rows(layout, n_members) * sizes.n_features * sizes.feature_itemsize


def _probed_share(layout: Layout) -> float:
    """Return the share of the blocks that the estimate of the gap reads once more."""
    blocks = -(-len(layout.blocks) // layout.n_partitions)
    return min(max(PROBE_BLOCKS, PROBE_SHARE * blocks), blocks) / blocks


def _read_chunks(sizes: Sizes, layout: Layout, share: float) -> int:
    """Return the bytes of the chunks that have at least one of a drawn share of the blocks."""
    blocks_per_chunk = len(layout.blocks) / len(sizes.pieces)
    return int(sizes.features_bytes * (1 - (1 - min(share, 1.0)) ** blocks_per_chunk))


_ORDER_BYTES, _THETA_BYTES, _REPLY_BYTES = 3, 12, 21
"""Of a block's number in an order; with its theta; with what its visit gave; as pickled."""


def _count_messages(layout: Layout, n_members: int) -> int:
    blocks = -(-len(layout.blocks) // layout.n_rounds)
    told = n_members * blocks * (_ORDER_BYTES + _THETA_BYTES)
    products = len(layout.slices) * (layout.n_partitions + 1) * layout.n_partitions * 8
    return told + blocks * _REPLY_BYTES + (products if layout.n_partitions > 1 else 0)


# What would do.


def memory_for_all(sizes: Sizes, *, n_members: int) -> int:
    """Return the memory that each worker must have to hold its rows and duals.

    Parameters
    ----------
    sizes : Sizes
    n_members : int
    """
    memory = MemoryPlan(features_in_memory=True, duals_in_memory=True)
    plan = _plan(sizes, n_members, memory, whole_process=True)
    return math.ceil(plan.needed_bytes / _SHARE_OF_LIMIT)


def least_members(
    sizes: Sizes, *, memory_bytes: int, partitions: int = 0, in_memory: bool = False
) -> int | None:
    """Find the least number of workers, with so much memory each, that a run can do with.

    Parameters
    ----------
    sizes : Sizes
    memory_bytes : int
        Of each worker.
    partitions : int
        Parts that the rows are dealt to; 0: as many as workers.
    in_memory : bool
        Whether they must hold all rows and duals, rather than stream them.

    Returns
    -------
    int or None
        None if no number up to that of the partitions, or 1,024, suffices.
    """

    def suffices(n_members: int) -> bool:
        cut = replace(sizes, n_partitions=partitions or n_members)
        try:
            plan = choose_plan(cut, n_members=n_members, memory_bytes=memory_bytes)
        except ValueError:
            return False
        return plan.fits and (plan.memory.all_in_memory or not in_memory)

    return _find_least(suffices, partitions or _MOST_MEMBERS)


def _find_least(suffices: Callable[[int], bool], most: int) -> int | None:
    """Double until it suffices, then halve the distance; as if more always did at least as well."""
    low, high = 0, 1
    while not suffices(high):
        if high == most:
            return None
        low, high = high, min(2 * high, most)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if suffices(middle) else (middle, high)
    return high
