"""Threads that take turns: each runs until it asks for the rows, and one at a time.

Several runs that read the same rows are written as if each had them to itself. In a thread of its
own, a run that asks for rows sleeps until the others have asked as well; then all are handed the
blocks, one after the other. Never do two run at once: what they do comes in a fixed order, and the
matrix products of each have all cores.
"""

import threading
from collections import deque
from collections.abc import Callable, Generator, Sequence
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from dtopk.engine.duals import Duals, NoDuals
from dtopk.engine.feed import Visit
from dtopk.engine.rows import Piece, PieceRange

Waiting = Literal["start", "scan", "block", "update", "end"]


class Ended(BaseException):
    """Ends a run whose rows will not come: another has failed."""


class Lane:
    """A thread that runs when it is told to, until it waits.

    Parameters
    ----------
    name : str
    work : callable
        What the thread does.
    """

    def __init__(self, name: str, work: Callable[[], None]) -> None:
        self.name = name
        self.waiting: Waiting = "start"
        """What the thread waits for: to begin, a scan of the rows, the next block of one, the
        update of some rows, or nothing any more."""
        self.error: BaseException | None = None
        """What the work has ended with."""
        self._work = work
        self._turn = threading.Semaphore(0)
        self._back = threading.Semaphore(0)
        self._block: tuple[int, Piece] | None = None
        self._is_ended = False
        self._thread = threading.Thread(target=self._run, name=f"dtopk-{name}", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        self._turn.acquire()
        try:
            if not self._is_ended:
                self._work()
        except BaseException as error:
            self.error = error
        # It may hold the lane itself, and much besides.
        del self._work
        self.waiting = "end"
        self._back.release()

    # For whoever hands out the turns.

    def resume(self, block: tuple[int, Piece] | None = None) -> None:
        """Let the thread run, and return when it waits.

        Parameters
        ----------
        block : tuple of int and Piece, or None
            What it waits for, where that is a block: its number and rows; None: there are no more.
        """
        self._block = block
        self._turn.release()
        self._back.acquire()

    def end(self) -> None:
        """Have the work end where it waits."""
        self._is_ended = True
        while self.waiting != "end":
            self.resume()
        self._thread.join()

    # For the thread itself.

    def wait(self, what: Waiting) -> tuple[int, Piece] | None:
        """Give the turn away, and return when it comes back.

        Parameters
        ----------
        what : {'scan', 'block', 'update'}

        Raises
        ------
        Ended
        """
        self.waiting = what
        self._back.release()
        self._turn.acquire()
        if self._is_ended:
            raise Ended
        return self._block


class SharedFeed:
    """What a member of one run has in the place of its own feed. See :class:`Feed`.

    Parameters
    ----------
    blocks : sequence of PieceRange
        All blocks of the run.
    read : callable
        Returns the rows of a block, outside a scan.
    look : callable
        Returns some rows of a block, given its number and theirs.
    """

    def __init__(
        self,
        blocks: Sequence[PieceRange],
        read: Callable[[int], Piece],
        look: Callable[[int, NDArray[np.int64]], Piece],
    ) -> None:
        self.blocks = blocks
        self.read = read
        self._look = look
        self.read_seconds = 0.0
        self.duals: Duals = NoDuals()
        """Those of the run."""
        self.lane: Lane | None = None
        """The thread that the run is in."""

    def close(self) -> None:
        """Do nothing: the rows are those of all runs."""

    def drop(self, blocks: Any) -> None:
        """Do nothing: all blocks are here."""

    def visit(
        self, order: Sequence[int], *, update: bool, n_held: int = 1
    ) -> Generator[Visit, None, None]:
        """Yield the blocks, in the order of the scan. See :meth:`Feed.visit`."""
        assert len(order) == len(self.blocks)
        assert self.lane is not None
        held: deque[Visit] = deque()
        n_left = len(order)
        try:
            block = self.lane.wait("scan")
            while block is not None:
                number, piece = block
                dual = self.duals.load(number) if update else self.duals.read(number)
                held.append(Visit(block=number, piece=piece, dual=dual))
                n_left -= 1
                yield held[-1]
                if len(held) == n_held:
                    self._keep(held.popleft(), update)
                block = self.lane.wait("block")
        except GeneratorExit:
            # Nobody asks for a further one: what comes after a scan begins for all at its end.
            if not n_left:
                self.lane.wait("block")
            raise
        finally:
            for visit in held:
                self._keep(visit, update)

    def _keep(self, visit: Visit, update: bool) -> None:
        if update:
            self.duals.keep(visit.block, visit.dual)

    def look(
        self, order: Sequence[int], rows: Sequence[NDArray[np.int64]]
    ) -> Generator[Visit, None, None]:
        """Yield some rows of each block. See :meth:`Feed.look`."""
        for block, chosen in zip(order, rows, strict=True):
            piece = self._look(block, chosen)
            yield Visit(block=block, piece=piece, dual=self.duals.read(block, chosen))
