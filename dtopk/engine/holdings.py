"""What a member of a run holds in memory, array by array."""

from dataclasses import dataclass

from dtopk.engine.blocks import Layout
from dtopk.engine.memory import MemoryPlan
from dtopk.engine.mixed_visits import MixedVisits, count_batch_rows
from dtopk.engine.sizes import (
    Sizes,
    kept_rows,
    largest_block,
    member_partitions,
    member_rows,
)
from dtopk.solvers.directions import BATCH_ARRAYS, choose_batch_rows
from dtopk.solvers.row_groups import GROUP_ROWS
from dtopk_storage.wording import format_count

PROCESS_BYTES = 240_000_000
"""A worker of Dask with numpy, scipy, numba and this package, its kernels loaded."""
COMPILER_BYTES = 240_000_000
"""What is left of compiling kernels, in a process that is the first on its machine to need them."""
_THREAD_BYTES = 6_000_000
"""Of a thread of the matrix products: its packed parts of the factors."""
_SLACK = 0.08
_SLACK_BYTES = 10_000_000
"""What the allocator has of memory that was given back: a share of what is in use, and so much."""
_CERTIFICATE_ROWS = 256
"""Rows that a certificate converts together."""
_ROW_BYTES = 12
"""Of a row's label and weight."""


@dataclass(frozen=True, kw_only=True)
class Holding:
    """Something that a member has in memory."""

    name: str
    """What it is."""
    in_round: int
    """Its bytes while partitions are swept and their changes put together, at most."""
    at_certificate: int
    """Its bytes while a certificate is taken, at most."""


def list_holdings(
    sizes: Sizes, layout: Layout, n_members: int, memory: MemoryPlan, whole_process: bool
) -> tuple[Holding, ...]:
    """List what the member with the most to hold has, as :mod:`dtopk.engine.member` names it.

    Parameters
    ----------
    sizes : Sizes
    layout : Layout
    n_members : int
    memory : MemoryPlan
    whole_process : bool
        Whether all that a process takes is listed, or only features, duals and weights.
    """
    holdings = [
        *_list_weights(sizes, layout, n_members),
        *_list_features(sizes, layout, n_members, memory),
        *_list_duals(sizes, layout, n_members, memory),
        _list_masks(sizes, layout, n_members),
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


def count_model_bytes(sizes: Sizes, layout: Layout, memory: MemoryPlan) -> int:
    """Count what a model has of its own, where several are trained on the same rows.

    Parameters
    ----------
    sizes : Sizes
    layout : Layout
    memory : MemoryPlan
    """
    holdings = [*_list_weights(sizes, layout, 1), *_list_duals(sizes, layout, 1, memory)]
    return max(
        sum(holding.in_round for holding in holdings),
        sum(holding.at_certificate for holding in holdings),
    )


def _steady(name: str, size: int) -> Holding:
    return Holding(name=name, in_round=size, at_certificate=size)


def _list_weights(sizes: Sizes, layout: Layout, n_members: int) -> list[Holding]:
    """W, what partitions change of it, and what the keepers of its slices have."""
    hosted = member_partitions(layout, n_members)
    others = layout.n_partitions - hosted
    kept = kept_rows(layout, n_members) * sizes.n_classes
    height = max(last - first for first, last in layout.slices)
    slice_size = height * sizes.n_classes
    alone, passes = layout.n_partitions == 1, sizes.needs.passes
    shape = f"{sizes.width:,} x {sizes.n_classes:,}"
    return [
        _steady(f"weights W, {shape}", sizes.weights_bytes),
        Holding(
            name=f"changes of W, {format_count(hosted, 'partition')}",
            in_round=_changes_in_round(sizes, hosted, alone),
            at_certificate=hosted * sizes.exact_bytes,
        ),
        Holding(
            name="W in float64",
            in_round=0,
            at_certificate=sizes.exact_bytes,
        ),
        Holding(
            name=f"changes of kept slices, {format_count(others, 'other partition')}",
            in_round=others * (slice_size * 8 if passes else kept * sizes.itemsize),
            at_certificate=others * slice_size * 8,
        ),
        Holding(
            name="products of changes",
            in_round=0 if alone or passes else (layout.n_partitions + 1) * slice_size * 8,
            at_certificate=0,
        ),
        _steady(
            "centre of the accelerated loop", kept * sizes.itemsize if sizes.accelerated else 0
        ),
        _steady(
            "weights that rows' masks are chosen at",
            sizes.weights_bytes if sizes.needs.masked else 0,
        ),
        *_list_vectors(sizes, layout, kept),
    ]


def _changes_in_round(sizes: Sizes, hosted: int, alone: bool) -> int:
    """Count the bytes of what partitions change of W, or sum for it in a pass."""
    if sizes.needs.passes:
        return hosted * sizes.exact_bytes
    return 0 if alone else hosted * sizes.weights_bytes


def _list_vectors(sizes: Sizes, layout: Layout, kept: int) -> list[Holding]:
    """List what a solver of passes keeps of matrices that are as large as W."""
    needs = sizes.needs
    if not needs.passes:
        return []
    vectors = kept * (needs.vectors * sizes.itemsize + needs.exact_vectors * 8)
    metric = kept // sizes.n_classes * sizes.width * sizes.itemsize if needs.metric else 0
    return [
        _steady(f"{needs.vectors + needs.exact_vectors} vectors of the solver", vectors),
        Holding(name="the latest part of a sum", in_round=sizes.weights_bytes, at_certificate=0),
        _steady("metric of the features", metric),
        # It is made before the first pass, from its sum and its factor.
        Holding(
            name="making that metric",
            in_round=3 * sizes.width**2 * 8 if needs.metric else 0,
            at_certificate=0,
        ),
    ]


def _list_features(
    sizes: Sizes, layout: Layout, n_members: int, memory: MemoryPlan
) -> list[Holding]:
    if sizes.resident:
        return []
    if not memory.features_in_memory:
        # Those in work, the one read ahead, and its bytes as they come from the disk.
        n_chunks = _count_held(sizes, layout) + 2
        return [
            Holding(
                name=f"{format_count(n_chunks, 'chunk')} of features",
                in_round=n_chunks * sizes.chunk_bytes,
                at_certificate=3 * sizes.chunk_bytes,
            ),
            _steady("chunks under way from the object store", sizes.ahead_bytes),
        ]
    rows = member_rows(layout, n_members)
    row_bytes = sizes.n_features * sizes.feature_itemsize + _ROW_BYTES
    return [
        _steady(f"features of {rows:,} rows", rows * row_bytes),
        Holding(
            name="chunks under way from the object store",
            in_round=sizes.ahead_bytes,
            at_certificate=0,
        ),
    ]


def _list_duals(sizes: Sizes, layout: Layout, n_members: int, memory: MemoryPlan) -> list[Holding]:
    if not sizes.needs.duals:
        return []
    row_bytes = sizes.n_classes * sizes.itemsize
    block_bytes = largest_block(layout) * row_bytes
    if not memory.duals_in_memory:
        # Those in work, those read ahead or written behind, and their bytes on disk.
        n_blocks = _count_held(sizes, layout) + 2
        return [
            Holding(
                name=f"{format_count(n_blocks, 'block')} of duals",
                in_round=n_blocks * block_bytes,
                at_certificate=3 * block_bytes,
            )
        ]
    rows = member_rows(layout, n_members)
    share = max(1 / layout.n_rounds, layout.share * (1 - 1 / n_members))
    proposed = min(int(share * rows) + largest_block(layout), rows) * row_bytes
    return [
        _steady(f"duals of {rows:,} rows", rows * row_bytes),
        _steady("what the last passes have found of them", sizes.needs.rows * rows * row_bytes),
        Holding(
            name="duals that a round proposes, or that come from others",
            in_round=0 if layout.n_partitions == 1 else proposed,
            at_certificate=0,
        ),
    ]


def _count_held(sizes: Sizes, layout: Layout) -> int:
    """Count the blocks whose rows a sweep, or a pass, has in work at a time."""
    if sizes.needs.passes:
        return 1
    swept = -(-len(layout.blocks) // (layout.n_partitions * layout.n_rounds))
    batch_rows = count_batch_rows(layout, sizes.n_classes, sizes.block_size)
    mixed = MixedVisits(swept, largest_block(layout), batch_rows, mixed=layout.mixed)
    return min(mixed.n_held, swept)


def _list_masks(sizes: Sizes, layout: Layout, n_members: int) -> Holding:
    """Count the classes that rows leave out, with their labels: a certificate finds the next."""
    row_bytes = 4 * (sizes.needs.masked + 1) if sizes.needs.masked else 0
    size = member_rows(layout, n_members) * row_bytes
    return Holding(name="masks of the rows", in_round=size, at_certificate=2 * size)


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
    """Count the arrays of `BlockUpdater` or of a pass's batch, and of `CertificateSums.add`."""
    if sizes.needs.passes:
        size = min(
            choose_batch_rows(sizes.width, sizes.n_classes, sizes.itemsize), largest_block(layout)
        )
        columns = sizes.width + BATCH_ARRAYS * sizes.n_classes
    else:
        size = count_batch_rows(layout, sizes.n_classes, sizes.block_size)
        columns = sizes.width + size + GROUP_ROWS + 3 * sizes.n_classes
    return Holding(
        name="rows being worked on",
        in_round=size * columns * sizes.itemsize,
        at_certificate=_CERTIFICATE_ROWS * (sizes.width + 5 * sizes.n_classes) * 8,
    )
