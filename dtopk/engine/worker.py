"""What a worker process of a cluster is asked for in a run.

The one who leads the run has Dask run two functions as tasks: :func:`join` makes a member, and
:func:`call_member` calls a method of it. Members fetch arrays from each other, and the lead from
them, by handlers of the worker's (:meth:`WorkerMembers.give`, :meth:`WorkerMembers.take`), which no
scheduler sees. What the lead says between tasks comes to :meth:`WorkerMembers.hear`.

A member lives as long as the lead holds the result of the task that made it: should the lead be
gone, the scheduler forgets that result, and the worker frees the member (:mod:`dtopk.engine.seat`).
"""

import asyncio
import threading
from collections.abc import Sequence
from typing import Any

import numpy as np
from dask.typing import Key
from distributed import Worker, get_worker
from distributed.protocol.serialize import to_serialize
from numpy.typing import NDArray

from dtopk.engine.calls import MESSAGE_BYTES, MemberSpec, Reply, Trouble, pack_error
from dtopk.engine.links import GREETING
from dtopk.engine.member import Member
from dtopk.engine.seat import Seat

Array = NDArray[Any]

EXTENSION = "dtopk"
"""Name by which a worker has its members."""


def join(spec: MemberSpec) -> Reply:
    """Make a member in this worker; it lives as long as somebody wants the result of this task.

    Parameters
    ----------
    spec : MemberSpec
    """
    worker = get_worker()
    members = WorkerMembers.of(worker)
    return members.join(spec, worker.get_current_task())


def call_member(session: str, number: int, method: str, arguments: bytes) -> Reply:
    """Call a method of the member that this worker has of a session.

    Parameters
    ----------
    session : str
    number : int
        One more than that of the call before. A call that the scheduler repeats is refused.
    method : str
    arguments : bytes
        Pickled.
    """
    seat = WorkerMembers.of(get_worker()).seats.get(session)
    if seat is None:
        return Reply(trouble=Trouble(kind="gone", detail="it has no member of this run any more"))
    return seat.call(number, method, arguments)


class WorkerMembers:
    """The members that a worker has, by session.

    Parameters
    ----------
    worker : distributed.Worker
    """

    _making = threading.Lock()

    def __init__(self, worker: Worker) -> None:
        self.worker = worker
        self.seats: dict[str, Seat] = {}
        self.leaving: list[Seat] = []
        worker.handlers["dtopk_give"] = self.give
        worker.handlers["dtopk_take"] = self.take

    @classmethod
    def of(cls, worker: Worker) -> "WorkerMembers":
        """Return what a worker has, made now if it is not there."""
        with cls._making:
            found = worker.extensions.get(EXTENSION)
            if found is None:
                found = worker.extensions[EXTENSION] = cls(worker)
        assert isinstance(found, WorkerMembers)
        return found

    def join(self, spec: MemberSpec, key: Key) -> Reply:
        """See :func:`join`.

        Parameters
        ----------
        spec : MemberSpec
        key : str or tuple
            Name of the task.
        """
        self.hear(spec.run, spec.session, "renew")
        if spec.session in self.seats:
            return Reply(trouble=Trouble(kind="gone", detail="it was asked to join twice"))
        seat = Seat(self, spec, key)
        self.seats[spec.session] = seat
        return seat.make()

    def hear(self, run: str, session: str, what: str) -> None:
        """Take note of what the lead says.

        Parameters
        ----------
        run, session : str
        what : {'stop', 'end', 'renew'}
            End the sweep after the block in work; free the member; free all of the run's members
            but that of the session.
        """
        for seat in list(self.seats.values()):
            if what == "renew":
                if seat.spec.run == run and seat.spec.session != session:
                    seat.end()
            elif seat.spec.session == session:
                if what == "stop":
                    seat.stopped = True
                else:
                    seat.end()

    async def give(self, session: str, kind: str, keys: Sequence[Sequence[int]]) -> dict[str, Any]:
        """Send arrays of the member of a session: as many of those asked for as fit a message."""
        seat = self.seats.get(session)
        member = None if seat is None else seat.member
        if seat is None or member is None or seat.ended:
            return {"status": "gone"}
        arrays, size = [], 0
        try:
            for key in keys:
                array = await self._find(member, kind, key)
                arrays.append(to_serialize(array))
                size += array.nbytes
                if size >= MESSAGE_BYTES:
                    break
        except Exception as error:
            return {"status": "error", "error": pack_error(error)}
        return {"status": "OK", "arrays": arrays}

    @staticmethod
    async def _find(member: Member, kind: str, key: Sequence[int]) -> Array:
        if kind == GREETING:
            return np.empty(0)
        if kind == "dual" and member.duals.shared:
            return await asyncio.to_thread(member.give, kind, *key)  # it reads a file
        return member.give(kind, *key)

    async def take(self, session: str, first: int, weights: Array) -> dict[str, Any]:
        """Take rows of the weights that the run is to start from."""
        seat = self.seats.get(session)
        if seat is None or seat.ended:
            return {"status": "gone"}
        seat.delivered[first] = weights
        return {"status": "OK"}

    # The same by way of the scheduler, in small pieces, for a lead that cannot reach workers.

    def give_piece(self, session: str, slice_: int, first: int, last: int) -> bytes:
        """Return some of the numbers of a slice of W."""
        member = self.seats[session].member
        assert member is not None
        return bytes(np.ravel(member.give("weights", slice_))[first:last].data)

    def take_piece(self, session: str, first: int, columns: int, dtype: str, raw: bytes) -> None:
        """Take some rows of the weights that the run is to start from."""
        self.seats[session].delivered[first] = np.frombuffer(raw, dtype).reshape(-1, columns)
