"""What the members of a run send each other, and read."""

from dataclasses import dataclass

from dtopk.engine.blocks import Layout
from dtopk.engine.memory import MemoryPlan
from dtopk.engine.probe import PROBE_BLOCKS, PROBE_SHARE
from dtopk.engine.sizes import (
    Sizes,
    kept_rows,
    member_blocks,
    member_partitions,
    member_rows,
)


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


def count_traffic(sizes: Sizes, layout: Layout, n_members: int, memory: MemoryPlan) -> Traffic:
    """Count what the busiest member gets.

    Parameters
    ----------
    sizes : Sizes
    layout : Layout
    n_members : int
    memory : MemoryPlan
    """
    members = min(n_members, layout.n_partitions)
    hosted = member_partitions(layout, n_members)
    others = layout.n_partitions - hosted
    kept = kept_rows(layout, n_members) * sizes.n_classes
    away = 1 - 1 / members
    weights = sizes.weights_bytes - kept * sizes.itemsize if n_members > 1 else 0
    changes = others * kept * (8 if sizes.needs.passes else sizes.itemsize)
    rows = member_rows(layout, n_members)
    duals = 0
    if memory.duals_in_memory and layout.n_partitions > 1:
        duals = int(layout.share * away * rows) * sizes.n_classes * sizes.itemsize
    epoch = layout.n_rounds * (weights + changes) + duals
    first, again = _count_reads(sizes, layout, n_members, memory)
    streamed = 0
    if not memory.duals_in_memory:
        streamed = rows * sizes.n_classes * sizes.itemsize * sizes.needs.duals
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
        duals_streamed=int(streamed * (2 + _probed_share(sizes, layout))),
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
        return 0, int(visited * (1 + _probed_share(sizes, layout)))
    share = member_rows(layout, n_members) / sizes.n_samples
    new = layout.share * share * (1 - 1 / min(n_members, layout.n_partitions))
    return _read_chunks(sizes, layout, share), _read_chunks(sizes, layout, new)


def _visited_bytes(sizes: Sizes, layout: Layout, n_members: int) -> int:
    """Count the bytes of the features that a member reads if it visits each of its blocks once."""
    blocks = member_blocks(layout, n_members)
    if sizes.block_rows:
        # Blocks that are cut smaller than a chunk are each read with all of it.
        return blocks * sizes.chunk_bytes
    return member_rows(layout, n_members) * sizes.n_features * sizes.feature_itemsize


def _probed_share(sizes: Sizes, layout: Layout) -> float:
    """Return the share of the blocks that the estimate of the gap reads once more."""
    if sizes.needs.passes:
        return 0.0  # A pass gives the gap by itself.
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
