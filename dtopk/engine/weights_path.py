"""Weights on their way between the one who leads a run on a cluster and its members.

They go from process to process where those can reach each other, and else in small pieces by way
of the scheduler.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from distributed import Client
from distributed.protocol.serialize import to_serialize
from numpy.typing import NDArray

from dtopk.engine.calls import MESSAGE_BYTES, unpack_error
from dtopk.engine.remote_calls import RemoteCalls
from dtopk.engine.remote_member import RemoteMember
from dtopk.engine.team import MembersLost

logger = logging.getLogger(__name__)

Array = NDArray[Any]

_PIECE_BYTES = 1 << 19
"""Bytes of weights in a message that goes through the scheduler."""
_MESSAGE_S = 60.0
"""Seconds in which a message between lead and worker must arrive."""


def _make_messages() -> tuple[Callable[..., bytes], Callable[..., int]]:
    """Make what is run in a worker's event loop.

    As local functions they are sent whole: to import this module there would keep the event loop
    from its work for seconds.
    """

    def give_piece(session: str, slice_: int, first: int, last: int, dask_worker: Any) -> bytes:
        piece: bytes = dask_worker.extensions["dtopk"].give_piece(session, slice_, first, last)
        return piece

    def take_piece(
        session: str, first: int, columns: int, dtype: str, raw: bytes, dask_worker: Any
    ) -> int:
        dask_worker.extensions["dtopk"].take_piece(session, first, columns, dtype, raw)
        return len(raw)

    return give_piece, take_piece


class WeightsPath:
    """Moves weights between the lead and the members.

    Parameters
    ----------
    client : distributed.Client
    calls : RemoteCalls
        Has the members, and watches them meanwhile.
    slices : sequence of tuple of int
        First row, and the one after the last, of each slice of W.
    """

    def __init__(
        self, client: Client, calls: RemoteCalls, slices: Sequence[tuple[int, int]]
    ) -> None:
        self._client = client
        self._calls = calls
        self._slices = slices
        self._give_piece, self._take_piece = _make_messages()
        self._is_near = True

    def fetch(self, keepers: Sequence[int], W: Array) -> None:
        """Fetch all of W.

        Parameters
        ----------
        keepers : sequence of int
            The member that has each slice.
        W : ndarray of shape (width, n_classes)
            Filled in.

        Raises
        ------
        MembersLost
        """
        kept: dict[int, list[int]] = {}
        for number, keeper in enumerate(keepers):
            kept.setdefault(keeper, []).append(number)
        self._exchange(
            [
                self._fetch_slices(self._calls.members[keeper], numbers, W)
                for keeper, numbers in kept.items()
            ]
        )

    def deliver(self, weights: Array) -> None:
        """Send all members weights to start from.

        Parameters
        ----------
        weights : ndarray of shape (n_rows, n_classes)

        Raises
        ------
        MembersLost
        """
        self._exchange([self._send_weights(member, weights) for member in self._calls.members])

    def _exchange(self, coroutines: Sequence[Any]) -> None:
        """Wait for arrays to be sent."""
        sent = [self._calls.watch.start(coroutine) for coroutine in coroutines]
        try:
            while True:
                self._calls.look("weights")
                for done in sent:
                    if done.done():
                        done.result()
                if all(done.done() for done in sent):
                    return
                self._calls.check_silence("weights", [])
        except OSError as error:
            raise MembersLost(f"Weights could not be moved: {error}.") from error
        finally:
            for each in sent:
                each.cancel()

    async def _fetch_slices(self, member: RemoteMember, slices: Sequence[int], W: Array) -> None:
        """Fetch slices of W from their keeper."""
        done = 0
        while done < len(slices) and self._is_near:
            keys = [(number,) for number in slices[done:]]
            reply = await self._ask_directly(
                member, "dtopk_give", session=self._calls.session, kind="weights", keys=keys
            )
            for array in reply.get("arrays", ()):
                first, last = self._slices[slices[done]]
                W[first:last] = array
                done += 1
        for number in slices[done:]:
            first, last = self._slices[number]
            await self._fetch_pieces(member, number, W[first:last].reshape(-1))

    async def _fetch_pieces(self, member: RemoteMember, number: int, out: Array) -> None:
        step = _PIECE_BYTES // out.itemsize
        for first in range(0, len(out), step):
            last = min(first + step, len(out))
            raw = await self._ask_by_way_of_scheduler(
                member, self._give_piece, self._calls.session, number, first, last
            )
            out[first:last] = np.frombuffer(raw, out.dtype)

    async def _send_weights(self, member: RemoteMember, weights: Array) -> None:
        step = max(MESSAGE_BYTES // (weights.itemsize * weights.shape[1]), 1)
        for first in range(0, len(weights), step):
            part = np.ascontiguousarray(weights[first : first + step])
            if self._is_near:
                await self._ask_directly(
                    member,
                    "dtopk_take",
                    session=self._calls.session,
                    first=first,
                    weights=to_serialize(part),
                )
            if not self._is_near:
                await self._send_pieces(member, first, part)

    async def _send_pieces(self, member: RemoteMember, first: int, part: Array) -> None:
        step = max(_PIECE_BYTES // (part.itemsize * part.shape[1]), 1)
        for low in range(0, len(part), step):
            raw = bytes(part[low : low + step].data)
            await self._ask_by_way_of_scheduler(
                member, self._take_piece, self._calls.session, first + low, part.shape[1],
                part.dtype.str, raw,
            )  # fmt: skip

    async def _ask_directly(
        self, member: RemoteMember, operation: str, **arguments: Any
    ) -> dict[str, Any]:
        """Ask a worker; if it cannot be reached from here, note so and return nothing."""
        try:
            function = getattr(self._client.rpc(member.worker.address), operation)
            reply: dict[str, Any] = await asyncio.wait_for(function(**arguments), _MESSAGE_S)
        except OSError as error:
            logger.info(
                "%s cannot be reached from here (%s): weights go by way of the scheduler.",
                member.title,
                error,
            )
            self._is_near = False
            return {}
        if reply["status"] == "error":
            raise unpack_error(reply["error"])
        if reply["status"] != "OK":
            raise OSError(f"{member.title} has no member of this run any more")
        return reply

    async def _ask_by_way_of_scheduler(
        self, member: RemoteMember, function: Callable[..., Any], *arguments: Any
    ) -> Any:
        address = member.worker.address
        answers = await asyncio.wait_for(
            self._client.run(function, *arguments, workers=[address], on_error="return"),
            _MESSAGE_S,
        )
        answer = answers.get(address)
        if isinstance(answer, Exception):
            raise OSError(f"{member.title} does not answer: {answer}") from answer
        return answer
