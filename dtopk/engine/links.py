"""The way of a member in a worker to the other members, which no scheduler sees."""

import asyncio
from collections.abc import Callable, Sequence
from queue import Empty, SimpleQueue
from typing import Any

from distributed import Worker
from numpy.typing import NDArray

from dtopk.engine.calls import unpack_error
from dtopk.engine.messages import Wish
from dtopk.engine.signs import LOOK_S, SignsOfLife

Array = NDArray[Any]

GREETING = "greeting"
"""Kind of a wish that asks for nothing but an answer."""
_GREETING_S = 15.0
"""Seconds in which a peer must be reached at the start."""
_PEERS_AT_A_TIME = 16


class PeerLost(Exception):
    """A peer cannot be reached.

    Parameters
    ----------
    peer : int
    detail : str
    """

    def __init__(self, peer: int, detail: str) -> None:
        super().__init__(peer, detail)
        self.peer = peer
        self.detail = detail


class Links:
    """The way to the other members.

    Parameters
    ----------
    worker : distributed.Worker
    index : int
        Number of the member that has it.
    addresses : sequence of str
        Of all members' workers.
    session : str
        Name of the team.
    signs : SignsOfLife
        Of the member that has it.
    timeout_s : float
        Seconds after which a peer that sends nothing counts as not to be reached.
    """

    def __init__(
        self,
        worker: Worker,
        index: int,
        addresses: Sequence[str],
        *,
        session: str,
        signs: SignsOfLife,
        timeout_s: float,
    ) -> None:
        self.bytes_moved = 0
        self._worker = worker
        self._index = index
        self._addresses = addresses
        self._session = session
        self._signs = signs
        self._timeout_s = timeout_s

    def greet(self) -> None:
        """Reach every peer, at the start, when no work is lost yet.

        Raises
        ------
        PeerLost
            If one cannot be reached.
        """
        others = [peer for peer in range(len(self._addresses)) if peer != self._index]
        wishes = [Wish(member=peer, kind=GREETING, key=()) for peer in others]
        self._fetch(wishes, lambda place, came: None, min(_GREETING_S, self._timeout_s))

    def fetch(self, wishes: Sequence[Wish], take: Callable[[int, Array], None]) -> None:
        """See :meth:`Peers.fetch`.

        Raises
        ------
        PeerLost
            If a peer cannot be reached, or does not answer in time.
        """
        self._fetch(wishes, take, self._timeout_s)

    def _fetch(
        self, wishes: Sequence[Wish], take: Callable[[int, Array], None], timeout_s: float
    ) -> None:
        if not wishes:
            return
        came: SimpleQueue[tuple[int, Array] | BaseException] = SimpleQueue()
        # Work is done in the event loop's thread, and arrays are handed over to this one.
        asking = asyncio.run_coroutine_threadsafe(
            self._ask_all(wishes, came.put, timeout_s),
            self._worker.loop.asyncio_loop,  # type: ignore[attr-defined]
        )
        left = len(wishes)
        try:
            while left:
                try:
                    item = came.get(timeout=LOOK_S)
                except Empty:
                    self._signs.check()
                    continue
                if isinstance(item, BaseException):
                    raise item
                take(*item)
                left -= 1
                self._signs.pulse()
        finally:
            asking.cancel()
            self._signs.waits = ()

    async def _ask_all(
        self, wishes: Sequence[Wish], put: Callable[[Any], None], timeout_s: float
    ) -> None:
        """Ask all peers at a time, each starting from the one after it."""
        groups: dict[tuple[int, str], list[int]] = {}
        for place, wish in enumerate(wishes):
            groups.setdefault((wish.member, wish.kind), []).append(place)
        n = len(self._addresses)
        order = sorted(groups, key=lambda group: (group[0] - self._index) % n)
        waits = {peer for peer, _ in groups}
        self._signs.waits = tuple(waits)
        at_a_time = asyncio.Semaphore(_PEERS_AT_A_TIME)

        async def ask(group: tuple[int, str]) -> None:
            peer, kind = group
            places = groups[group]
            async with at_a_time:
                try:
                    await self._ask(peer, kind, places, wishes, put, timeout_s)
                except OSError as error:
                    detail = str(error).rstrip(".") or f"no answer within {timeout_s:g} s"
                    put(PeerLost(peer, detail))
                except Exception as error:
                    put(error)
            waits.discard(peer)
            self._signs.waits = tuple(waits)

        await asyncio.gather(*map(ask, order))

    async def _ask(
        self,
        peer: int,
        kind: str,
        places: Sequence[int],
        wishes: Sequence[Wish],
        put: Callable[[Any], None],
        timeout_s: float,
    ) -> None:
        """Ask a peer until all has come."""
        rpc = self._worker.rpc(self._addresses[peer])
        done = 0
        while done < len(places):
            keys = [wishes[place].key for place in places[done:]]
            reply = await asyncio.wait_for(
                rpc.dtopk_give(session=self._session, kind=kind, keys=keys), timeout_s
            )
            if reply["status"] == "error":
                raise unpack_error(reply["error"])
            if reply["status"] != "OK":
                raise OSError("it has no member of this run any more")
            for array in reply["arrays"]:
                self.bytes_moved += array.nbytes
                # What came is a part of the whole message, which lives as long as it does.
                put((places[done], array.copy() if kind == "dual" else array))
                done += 1
