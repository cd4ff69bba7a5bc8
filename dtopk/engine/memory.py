"""How much memory is free, and what of a run is held in it."""

from dataclasses import dataclass
from pathlib import Path

import psutil

_OWN_CGROUPS = Path("/proc/self/cgroup")
_CGROUPS = Path("/sys/fs/cgroup")


def free_memory() -> int:
    """Return the bytes that this process may take, within the limits of its control groups."""
    free: int = psutil.virtual_memory().available
    limit = cgroup_limit()
    if limit is None:
        return free
    used = int(psutil.Process().memory_info().rss)
    return max(min(free, limit - used), 0)


def cgroup_limit(own: Path = _OWN_CGROUPS, root: Path = _CGROUPS) -> int | None:
    """Return the lowest memory limit of this process's control group and those above it.

    A batch system limits a job in a group of its own, far below the root; a container sees its
    group as the root.

    Parameters
    ----------
    own : Path
        File that names the groups of the process, in the form of /proc/self/cgroup.
    root : Path
        Where the groups are mounted, in version 2, or version 1 below `memory`.

    Returns
    -------
    int or None
        In bytes; None where there is no limit.
    """
    try:
        lines = own.read_text().splitlines()
    except OSError:
        return None
    limits = []
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            limits += _read_limits(root, path, "memory.max")
        elif "memory" in controllers.split(","):
            limits += _read_limits(root / "memory", path, "memory.limit_in_bytes")
    return min(limits, default=None)


def _read_limits(root: Path, path: str, name: str) -> list[int]:
    """Read the limits of a group and of all above it; 'max' and missing files are none."""
    group = root / path.lstrip("/")
    limits = []
    for folder in [group, *group.parents]:
        try:
            text = (folder / name).read_text().strip()
        except OSError:
            text = "max"
        if text != "max":
            limits.append(int(text))
        if folder == root:
            break
    return limits


@dataclass(frozen=True, kw_only=True)
class MemoryPlan:
    """What is held in memory and what is streamed."""

    features_in_memory: bool
    """Whether the features are kept after the first pass."""
    duals_in_memory: bool
    """Whether the duals are."""

    @property
    def all_in_memory(self) -> bool:
        """Whether nothing is streamed."""
        return self.features_in_memory and self.duals_in_memory
