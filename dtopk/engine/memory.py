"""What fits into memory, decided before the start from the sizes of the problem."""

from dataclasses import dataclass
from pathlib import Path

import psutil

_SHARE_OF_FREE = 0.6
"""Share of the free memory that a run takes by default; page cache and the caller need theirs."""
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


def plan_memory(
    *,
    n_samples: int,
    n_features: int,
    n_classes: int,
    feature_itemsize: int,
    itemsize: int,
    largest_piece: int,
    features_resident: bool,
    limit_bytes: int | None = None,
) -> MemoryPlan:
    """Decide what is held in memory.

    Parameters
    ----------
    n_samples, n_features, n_classes : int
    feature_itemsize, itemsize : int
        Bytes of a feature at rest and of a number of the computation.
    largest_piece : int
        Most rows read together.
    features_resident : bool
        Whether the features are in memory already, and count for nothing.
    limit_bytes : int or None
        What the run may take; None: a share of what is free.

    Returns
    -------
    MemoryPlan

    Raises
    ------
    ValueError
        If not even the weights and the pieces in work fit, with the arithmetic.
    """
    automatic = limit_bytes is None
    limit = int(_SHARE_OF_FREE * free_memory()) if limit_bytes is None else limit_bytes
    # Four copies of W serve the accelerated loop and two more, in float64, the certificate.
    weights = n_features * n_classes * (4 * itemsize + 2 * 8)
    # The piece in work, the one read ahead and the one being written, of what is not in memory.
    features_piece = 0 if features_resident else 3 * largest_piece * n_features * feature_itemsize
    duals_piece = 3 * largest_piece * n_classes * itemsize
    duals = n_samples * n_classes * itemsize
    features = 0 if features_resident else n_samples * n_features * feature_itemsize
    working = weights + features_piece
    duals_fit = working + duals <= limit
    if not duals_fit and working + duals_piece > limit:
        where = "memory that is free" if automatic else "memory_limit"
        raise ValueError(
            f"{where} must be at least {working + min(duals, duals_piece):,} bytes for six copies "
            f"of the weights ({n_features:,} x {n_classes:,}) and three pieces of "
            f"{largest_piece:,} rows, got {limit:,}. Give it more, or train on a machine with "
            f"more memory."
        )
    return MemoryPlan(
        features_in_memory=features_resident or (duals_fit and working + duals + features <= limit),
        duals_in_memory=duals_fit,
    )
