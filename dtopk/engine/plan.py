"""What each member of a run holds, and what members send each other, worked out before the start.

A run is in one of three ways: rows and duals in memory, rows streamed, or both streamed. The first
that fits is taken. Sizes alone decide: nothing is read or made.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

from dtopk.engine.blocks import Layout
from dtopk.engine.holdings import Holding, list_holdings
from dtopk.engine.memory import MemoryPlan, free_memory
from dtopk.engine.sizes import (
    Sizes,
    kept_rows,
    member_partitions,
    member_rows,
)
from dtopk.engine.traffic import Traffic, count_traffic

_SHARE_OF_FREE = 0.6
"""Share of the free memory that this process takes by default; page cache and the caller need
theirs."""
_SHARE_OF_LIMIT = 0.9
"""Share of a worker's limit that is planned for: it is killed at 95%."""
_MOST_MEMBERS = 1024
_WAYS = ((True, True), (False, True), (False, False))
"""Whether features and whether duals are in memory, the fastest first."""


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
        return member_rows(self.layout, self.n_members)

    @property
    def partitions_hosted(self) -> int:
        """Partitions of the member that has most."""
        return member_partitions(self.layout, self.n_members)

    @property
    def kept_rows(self) -> int:
        """Rows of W in the slices of the member that keeps most."""
        return kept_rows(self.layout, self.n_members)


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
        holdings=list_holdings(sizes, layout, n_members, memory, whole_process),
        traffic=count_traffic(sizes, layout, n_members, memory),
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
