"""Which rows of a partition are looked at for an estimate of the duality gap."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

PROBE_SHARE = 1 / 32
"""Share of a partition's blocks whose rows are looked at for the gap, where all are streamed."""
PROBE_BLOCKS = 3
"""The same, at least."""


def draw_rows(
    sizes: Sequence[int], share: float, rng: np.random.Generator, *, few_blocks: bool
) -> dict[int, NDArray[np.int64]]:
    """Draw some rows of a partition.

    Parameters
    ----------
    sizes : sequence of int
        Numbers of rows of the partition's blocks.
    share : float
        Of all rows, about.
    rng : numpy.random.Generator
    few_blocks : bool
        Whether a row costs the reading of its block: they are of few blocks then, and more of each.

    Returns
    -------
    dict of int to ndarray of int64
        The rows of a block, counted in it and in their order, by the block's place in `sizes`.
    """
    chosen: Sequence[int] = range(len(sizes))
    if few_blocks:
        some = max(PROBE_BLOCKS, round(PROBE_SHARE * len(sizes)))
        chosen = np.sort(rng.permutation(len(sizes))[:some]).tolist()
    share = share * sum(sizes) / sum(sizes[i] for i in chosen)
    counts = {i: min(int(share * sizes[i] + rng.random()), sizes[i]) for i in chosen}
    return {i: np.sort(rng.choice(sizes[i], counts[i], replace=False)) for i in chosen if counts[i]}
