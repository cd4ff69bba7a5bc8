"""The dual variables of the blocks that a process has, in memory or on disk.

A round changes candidates. What counts are the duals before it until the round is settled, when
each block goes a share theta of the way to its candidate.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from typing import Any, Protocol

import numpy as np
from numpy.typing import DTypeLike, NDArray

from dtopk.engine.rows import PieceRange
from dtopk_storage import RunState, pack_rows

Array = NDArray[Any]


class Duals(Protocol):
    """Where the dual variables are between the visits of their rows."""

    shared: bool
    """Whether every process sees them where they are."""
    absent: bool
    """Whether there are none."""

    def load(self, block: int) -> Array:
        """Return the duals of a block, of shape (n_rows, n_classes), to be changed in place."""

    def keep(self, block: int, dual: Array) -> None:
        """Take back what was changed, as the candidate."""

    def settle(self, theta: Mapping[int, float]) -> None:
        """Go a share of the way to the candidate of each block."""

    def read(self, block: int, rows: NDArray[np.int64] | None = None) -> Array:
        """Return the duals that count, not to be changed; of some rows, or of all."""

    def put(self, block: int, dual: Array) -> None:
        """Take duals that count from now on."""

    def drop(self, blocks: Iterable[int]) -> None:
        """Forget blocks that another process has now."""

    def begin(self, version: str) -> None:
        """Write what follows under a version, once all of the version before is committed."""

    def save(self, state: RunState, version: str) -> int:
        """Have all duals in the state under a version; return the bytes written."""

    def restore(self, state: RunState, version: str, blocks: Iterable[int]) -> None:
        """Take over the duals of blocks from a version of the state."""


def dual_name(block: int) -> str:
    """Return the name of a block's duals in a run's state.

    Parameters
    ----------
    block : int
    """
    return f"dual/{block:07d}"


def _combine(old: Array, candidate: Array, theta: float) -> Array:
    """Go a share of the way, in place of the candidate."""
    candidate -= old
    candidate *= candidate.dtype.type(theta)
    candidate += old
    return candidate


class _HeldDuals(ABC):
    """What duals in memory share; they are zero at the start.

    Parameters
    ----------
    blocks : sequence of PieceRange
        All blocks of the run.
    n_classes : int
    dtype : dtype
    """

    shared = False
    absent = False

    def __init__(self, blocks: tuple[PieceRange, ...], n_classes: int, dtype: DTypeLike) -> None:
        self._blocks = blocks
        self._n_classes = n_classes
        self._dtype = np.dtype(dtype)
        self._values: dict[int, Any] = {}

    @abstractmethod
    def read(self, block: int, rows: NDArray[np.int64] | None = None) -> Array:
        """See :meth:`Duals.read`."""

    @abstractmethod
    def put(self, block: int, dual: Array) -> None:
        """See :meth:`Duals.put`."""

    @property
    def nbytes(self) -> int:
        """Bytes that the duals take between rounds."""
        return sum(values.nbytes for values in self._values.values())

    def load(self, block: int) -> Array:
        """See :meth:`Duals.load`."""
        return self.read(block)

    def drop(self, blocks: Iterable[int]) -> None:
        """See :meth:`Duals.drop`."""
        for block in blocks:
            self._values.pop(block, None)

    def begin(self, version: str) -> None:  # noqa: B027 (nothing is right for both)
        """Do nothing: nothing is written before it is asked for."""

    def save(self, state: RunState, version: str) -> int:
        """See :meth:`Duals.save`."""
        return sum(
            state.write_array(version, dual_name(block), self.read(block)) for block in self._values
        )

    def restore(self, state: RunState, version: str, blocks: Iterable[int]) -> None:
        """See :meth:`Duals.restore`."""
        self._values = {}
        for block in sorted(blocks):
            self.put(block, state.read_array(version, dual_name(block)))

    def _zeros(self, block: int) -> Array:
        return np.zeros((self._blocks[block].n_rows, self._n_classes), self._dtype)


class InPlaceDuals(_HeldDuals):
    """Duals in memory where a round is always gone to its end: the candidate is what counts.

    Parameters
    ----------
    blocks : sequence of PieceRange
        All blocks of the run.
    n_classes : int
    dtype : dtype
    """

    def keep(self, block: int, dual: Array) -> None:
        """Do nothing: it has been changed where it is."""

    def settle(self, theta: Mapping[int, float]) -> None:
        """Do nothing: there is no other share than all."""
        assert all(share == 1.0 for share in theta.values())

    def read(self, block: int, rows: NDArray[np.int64] | None = None) -> Array:
        """See :meth:`Duals.read`."""
        if block not in self._values:
            self._values[block] = self._zeros(block)
        values: Array = self._values[block]
        return values if rows is None else values[rows]

    def put(self, block: int, dual: Array) -> None:
        """See :meth:`Duals.put`."""
        self._values[block] = dual


class MemoryDuals(_HeldDuals):
    """Duals in memory, each block packed where its zeros make that smaller.

    Parameters
    ----------
    blocks : sequence of PieceRange
        All blocks of the run.
    n_classes : int
    dtype : dtype
    """

    def __init__(self, blocks: tuple[PieceRange, ...], n_classes: int, dtype: DTypeLike) -> None:
        super().__init__(blocks, n_classes, dtype)
        self._candidates: dict[int, Array] = {}

    def keep(self, block: int, dual: Array) -> None:
        """See :meth:`Duals.keep`."""
        self._candidates[block] = dual

    def settle(self, theta: Mapping[int, float]) -> None:
        """See :meth:`Duals.settle`."""
        for block, candidate in self._candidates.items():
            if theta[block] == 1.0:
                self.put(block, candidate)
            elif theta[block] > 0.0:
                self.put(block, _combine(self.read(block), candidate, theta[block]))
        self._candidates = {}

    def read(self, block: int, rows: NDArray[np.int64] | None = None) -> Array:
        """See :meth:`Duals.read`; a copy."""
        packed = self._values.get(block)
        if packed is None:
            zeros = self._zeros(block)
            return zeros if rows is None else zeros[rows]
        if rows is not None:
            packed = packed.take(rows)
        dual = np.empty(packed.shape, self._dtype)
        packed.unpack(dual)
        return dual

    def put(self, block: int, dual: Array) -> None:
        """See :meth:`Duals.put`; its negative zeros become zeros."""
        # An update leaves the minus of a zero where a class has no part in the loss.
        dual += dual.dtype.type(0)
        self._values[block] = pack_rows(dual, self._dtype)


class StreamedDuals:
    """Duals in the state of the run, read and written with every visit.

    What a version holds is written once, while the version before stays as it is: a run that is
    killed has it to go back to.

    Parameters
    ----------
    state : RunState
    blocks : sequence of PieceRange
        All blocks of the run.
    n_classes : int
    dtype : dtype
    """

    shared = True
    absent = False

    def __init__(
        self, state: RunState, blocks: tuple[PieceRange, ...], n_classes: int, dtype: DTypeLike
    ) -> None:
        self._state = state
        self._blocks = blocks
        self._n_classes = n_classes
        self._dtype = np.dtype(dtype)
        self._base: str | None = None
        self._version = ""
        self._moved: set[int] = set()
        self._kept: set[int] = set()

    def load(self, block: int) -> Array:
        """See :meth:`Duals.load`."""
        return self.read(block)

    def read(self, block: int, rows: NDArray[np.int64] | None = None) -> Array:
        """See :meth:`Duals.read`."""
        version = self._version if block in self._moved else self._base
        if version is None:
            dual = np.zeros((self._blocks[block].n_rows, self._n_classes), self._dtype)
        else:
            dual = self._state.read_array(version, dual_name(block))
        return dual if rows is None else dual[rows]

    def keep(self, block: int, dual: Array) -> None:
        """See :meth:`Duals.keep`."""
        self._state.write_array(self._version, dual_name(block), dual)
        self._kept.add(block)

    def put(self, block: int, dual: Array) -> None:
        """See :meth:`Duals.put`."""
        self._state.write_array(self._version, dual_name(block), dual)
        self._moved.add(block)

    def settle(self, theta: Mapping[int, float]) -> None:
        """See :meth:`Duals.settle`."""
        for block in sorted(self._kept):
            if theta[block] < 1.0:
                old = self.read(block)
                candidate = self._state.read_array(self._version, dual_name(block))
                dual = _combine(old, candidate, theta[block])
                self._state.write_array(self._version, dual_name(block), dual)
        self._moved |= self._kept
        self._kept = set()

    def drop(self, blocks: Iterable[int]) -> None:
        """Do nothing: every process sees the same files."""

    def begin(self, version: str) -> None:
        """See :meth:`Duals.begin`."""
        self._base = self._version or self._base
        self._version = version
        self._moved, self._kept = set(), set()

    def save(self, state: RunState, version: str) -> int:
        """Do nothing: an epoch visits every block, and each visit has written."""
        return 0

    def restore(self, state: RunState, version: str, blocks: Iterable[int]) -> None:
        """See :meth:`Duals.restore`."""
        self._base, self._version = version, ""
        self._moved, self._kept = set(), set()


class NoDuals:
    """What a solver has that keeps no duals."""

    shared = True
    absent = True

    def load(self, block: int) -> Array:
        """Return nothing."""
        return np.empty((0, 0))

    def read(self, block: int, rows: NDArray[np.int64] | None = None) -> Array:
        """Return nothing."""
        return np.empty((0, 0))

    def keep(self, block: int, dual: Array) -> None:
        """Do nothing."""

    def settle(self, theta: Mapping[int, float]) -> None:
        """Do nothing."""

    def put(self, block: int, dual: Array) -> None:
        """Fail: there is no place for duals."""
        raise AssertionError(block)

    def drop(self, blocks: Iterable[int]) -> None:
        """Do nothing."""

    def begin(self, version: str) -> None:
        """Do nothing."""

    def save(self, state: RunState, version: str) -> int:
        """Write nothing."""
        return 0

    def restore(self, state: RunState, version: str, blocks: Iterable[int]) -> None:
        """Do nothing."""
