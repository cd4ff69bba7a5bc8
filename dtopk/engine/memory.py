"""What fits into memory, decided before the start from the sizes of the problem."""

from dataclasses import dataclass
from pathlib import Path

import psutil

_SHARE_OF_FREE = 0.6
"""Share of the free memory that a run takes by default; page cache and the caller need theirs."""
_CGROUP_LIMIT = Path("/sys/fs/cgroup/memory.max")


def free_memory() -> int:
    """Return the bytes that this process may take, within the limit of its control group."""
    free: int = psutil.virtual_memory().available
    try:
        limit = _CGROUP_LIMIT.read_text().strip()
    except OSError:
        return free
    if limit == "max":
        return free
    used = int(psutil.Process().memory_info().rss)
    return max(min(free, int(limit) - used), 0)


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
    row = n_features * feature_itemsize * (not features_resident) + n_classes * itemsize
    # The piece in work, the one read ahead and the one being written.
    working = weights + 3 * largest_piece * row
    if working > limit:
        where = "memory that is free" if automatic else "memory_limit"
        raise ValueError(
            f"{where} must be at least {working:,} bytes for six copies of the weights "
            f"({n_features:,} x {n_classes:,}) and three pieces of {largest_piece:,} rows, got "
            f"{limit:,}. Ingest with smaller chunks, or use a machine with more memory."
        )
    duals = n_samples * n_classes * itemsize
    features = 0 if features_resident else n_samples * n_features * feature_itemsize
    rest = limit - working
    duals_fit = duals <= rest
    return MemoryPlan(
        features_in_memory=features_resident or (duals_fit and features <= rest - duals),
        duals_in_memory=duals_fit,
    )
