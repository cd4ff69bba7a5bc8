"""Schedules of faults, drawn from a seed: which command, what is done to it, and when."""

import random
from dataclasses import dataclass

ANYWHERE = ("kill", "stop", "terminate", "second", "clock")
"""Faults that a command may have wherever its files are."""
ON_DISK = ("kill at step", "slow disk", "full disk", "file limit", "disk error")
IN_STORE = ("failing requests", "slow requests", "outage")
DAMAGE = ("bit flipped", "file cut")
ON_CLUSTER = ("worker killed", "worker stopped", "scheduler killed")

FAULTS: dict[str, tuple[str, ...]] = {
    "ingest npz": (*ANYWHERE, *ON_DISK, *DAMAGE),
    "ingest csv": (*ANYWHERE, *ON_DISK, *DAMAGE),
    "train": (*ANYWHERE, *ON_DISK, *DAMAGE),
    "train lbfgs": (*ANYWHERE, *ON_DISK, *DAMAGE),
    "resume": (*ANYWHERE, *ON_DISK, *DAMAGE),
    "sweep": (*ANYWHERE, *ON_DISK, *DAMAGE),
    "predict csv": (*ANYWHERE, *ON_DISK, *DAMAGE),
    "predict zarr": (*ANYWHERE, *ON_DISK, *DAMAGE),
    "train on cluster": (*ANYWHERE, *ON_CLUSTER, *ON_CLUSTER, *DAMAGE),
    "ingest to s3": (*ANYWHERE, *IN_STORE, *DAMAGE),
    "train in s3": (*ANYWHERE, *IN_STORE, *DAMAGE),
}
"""What may be done to each operation; `tests.faults.operations` says what they are."""

_WEIGHTS = {"train": 4, "resume": 4, "ingest npz": 2, "ingest csv": 3, "sweep": 3}
"""How often an operation is drawn, beside 1 for those that are not here."""
_N_FAULTS = (1, 1, 2, 2, 3)


@dataclass(frozen=True, kw_only=True)
class Fault:
    """Something that is done to a command."""

    kind: str
    """A name of `FAULTS`."""
    attempt: int
    """To which start of the command, from 0."""
    moment: float
    """When: the share of the seconds, or of the steps on the disk, that it takes unharmed."""
    size: float
    """How much, of what there is to choose: 0 to 1."""

    def describe(self) -> str:
        """Name it with its numbers."""
        return f"{self.kind} (start {self.attempt + 1}, at {self.moment:.2f}, size {self.size:.2f})"


@dataclass(frozen=True, kw_only=True)
class Schedule:
    """A command, and its faults."""

    seed: int
    operation: str
    faults: tuple[Fault, ...]

    def describe(self) -> str:
        """Name the operation and all faults."""
        return f"{self.operation}: {', '.join(fault.describe() for fault in self.faults)}"


def draw_schedule(seed: int, operations: tuple[str, ...] = tuple(FAULTS)) -> Schedule:
    """Draw one to three faults of one of some operations.

    Parameters
    ----------
    seed : int
    operations : tuple of str
        Names of `FAULTS`.
    """
    rng = random.Random(seed)
    weights = [_WEIGHTS.get(name, 1) for name in operations]
    operation = rng.choices(operations, weights)[0]
    faults = [
        Fault(
            kind=rng.choice(FAULTS[operation]),
            # Others may come to the command when it is started again.
            attempt=rng.randint(0, index),
            moment=round(rng.uniform(0, 1), 3),
            size=round(rng.uniform(0, 1), 3),
        )
        for index in range(rng.choice(_N_FAULTS))
    ]
    return Schedule(seed=seed, operation=operation, faults=tuple(faults))
