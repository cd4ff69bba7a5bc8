"""Cut the rows of a training split into folds, of which one at a time is held out."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, kw_only=True)
class Fold:
    """A fold that is held out: its rows weigh nothing in training."""

    number: int
    """Which one, 1 to `n_folds`."""
    n_folds: int
    """How many folds there are, at least 2."""
    seed: int = 0
    """Of the permutation of the rows."""

    def __post_init__(self) -> None:
        if self.n_folds < 2:
            raise ValueError(f"n_folds must be at least 2, got {self.n_folds}.")
        if not 1 <= self.number <= self.n_folds:
            raise ValueError(f"number must be between 1 and {self.n_folds}, got {self.number}.")


class FoldNumbers:
    """The fold of every row of a split, of sizes that differ by one row at most.

    Parameters
    ----------
    ranges : sequence of (start, stop)
        The rows of the split, which do not overlap.
    n_folds : int
    seed : int
    """

    def __init__(self, ranges: Sequence[tuple[int, int]], n_folds: int, seed: int) -> None:
        starts, stops = (np.array(ends, dtype=np.int64) for ends in zip(*ranges, strict=True))
        order = np.argsort(starts)
        self._starts = starts[order]
        self._firsts = np.concatenate([[0], np.cumsum((stops - starts)[order])])
        numbers = np.arange(self._firsts[-1]) % n_folds + 1
        drawn = np.random.default_rng(seed).permutation(numbers)
        self._numbers = drawn.astype(np.min_scalar_type(n_folds))

    def read(self, start: int, stop: int) -> NDArray[np.unsignedinteger]:
        """Return the folds of consecutive rows, which are all of one range of the split.

        Parameters
        ----------
        start, stop : int
            Counted in the store.

        Returns
        -------
        ndarray of shape (stop - start,)
            From 1.
        """
        place = int(np.searchsorted(self._starts, start, side="right")) - 1
        first = int(self._firsts[place] + start - self._starts[place])
        return self._numbers[first : first + stop - start]
