"""A member of a run in a worker process of a cluster.

The one who leads the run calls members by tasks of Dask; members fetch arrays from each other by a
handler of the worker's, which no scheduler sees. A member lives as long as the lead holds the
result of the task that made it: should the lead be gone, the scheduler forgets that result, and
the worker frees the member.
"""

import asyncio
import ctypes
import gc
import hashlib
import logging
import os
import pickle
import threading
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from queue import Empty, SimpleQueue
from typing import Any, Literal, Protocol

import numpy as np
import psutil
from distributed import Worker, get_worker
from distributed.protocol.serialize import to_serialize
from numpy.typing import NDArray
from threadpoolctl import ThreadpoolController
from tornado.ioloop import PeriodicCallback

from dtopk.engine.fit import make_member
from dtopk.engine.folds import Fold
from dtopk.engine.member import Member
from dtopk.engine.memory import MemoryPlan
from dtopk.engine.messages import Places, Wish
from dtopk.engine.options import FitOptions, StartPoint
from dtopk.engine.rows import Rows, StoreRows
from dtopk.engine.sizes import Sizes
from dtopk.losses import Loss
from dtopk.solvers.sdca import Timings
from dtopk_storage import CheckpointError, DatasetError, DualFile, RunState, open_store

logger = logging.getLogger(__name__)

Array = NDArray[Any]

EXTENSION = "dtopk"
"""Name by which a worker has its members."""
MESSAGE_BYTES = 32 << 20
"""Bytes of arrays in a message, about."""
_BEAT_S = 1.0
"""Seconds between two signs of life."""
_LOOK_S = 0.25
"""Seconds after which it is looked whether what is waited for is still wanted."""
_PEERS_AT_A_TIME = 16
_GREETING = "greeting"
_GREETING_S = 15.0
"""Seconds in which a peer must be reached at the start."""
_UNCLAIMED_S = 30.0
"""Seconds after which a member is freed that nobody turns out to hold."""


class RowsSource(Protocol):
    """What a worker makes the rows of a run of; small, and can be pickled."""

    def open(self) -> Rows:
        """Make the rows."""

    def fingerprint(self, rows: Rows) -> str:
        """Return something that is the same wherever the rows are the same ones."""


@dataclass(frozen=True, kw_only=True)
class StoreSource:
    """A split of a store that every worker sees under the same path."""

    path: str
    """An absolute path."""
    split: str
    """Name of the split."""
    skip_improper: bool = False
    """Whether rows with none of the labels, or with all, are to weigh nothing."""
    more: tuple[str, ...] = ()
    """Other splits, whose rows come beside those."""
    held_out: Fold | None = None
    """Fold whose rows are to weigh nothing."""

    def open(self) -> StoreRows:
        """See :meth:`RowsSource.open`."""
        return StoreRows(
            open_store(self.path),
            self.split,
            skip_improper=self.skip_improper,
            more=self.more,
            held_out=self.held_out,
        )

    def fingerprint(self, rows: Rows) -> str:
        """See :meth:`RowsSource.fingerprint`."""
        assert isinstance(rows, StoreRows)
        store = rows.store
        digest = hashlib.sha256(repr((store.manifest, rows.pieces)).encode())
        digest.update(store.mean.tobytes())
        digest.update(store.std.tobytes())
        return digest.hexdigest()


@dataclass(frozen=True, kw_only=True)
class MemberSpec:
    """What a worker makes a member of."""

    run: str
    """Name of the run, whose other members in the same worker are of no use any more."""
    session: str
    """Name of the team; a team that is made anew has another one."""
    rows: RowsSource
    """Where the rows are."""
    fingerprint: str
    """Of the rows that the lead has."""
    loss: Loss
    """The loss."""
    options: FitOptions
    """How the problem is solved."""
    streamed: bool
    """How the rows are cut, as of `Sizes.make_layout`."""
    plan: MemoryPlan
    """What is in memory."""
    state: RunState | None
    """Where the run's state is."""
    mark: str
    """Version of the state under which the lead has written the array 'mark'; empty: none."""
    threads: int = 1
    """Threads of the matrix products."""
    fetch_timeout_s: float = 60.0
    """Seconds after which a peer that sends nothing counts as not to be reached."""


@dataclass(frozen=True, kw_only=True)
class Trouble:
    """Why a call came to nothing."""

    kind: Literal["gone", "peer", "error"]
    """The member is not there; it could not reach another; or it raised something."""
    detail: str
    """What happened."""
    peer: int = -1
    """The member that could not be reached."""
    error: bytes = b""
    """What was raised, as of `pack_error`."""


@dataclass(frozen=True, kw_only=True)
class Reply:
    """What a call of a member comes to."""

    result: list[Any] = field(default_factory=list)
    """What the method returned."""
    trouble: Trouble | None = None
    """Why it did not."""
    rows: int = 0
    """Rows that the member has reported since it was made."""
    bytes_moved: int = 0
    """Bytes that it has fetched since then."""
    timings: Timings = field(default_factory=Timings)
    """Seconds in each part of its updates since then."""
    silence_s: float = 0.0
    """Longest time in the call without a sign of progress."""


@dataclass(frozen=True, kw_only=True)
class Delivered:
    """Stands for weights to start from, which have been sent ahead."""

    rows: int
    """Of the weights."""


class SessionEnded(Exception):
    """The lead has given this member up."""


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


def pack_error(error: BaseException) -> bytes:
    """Pickle an exception with its cause, and without the frames that would keep arrays alive.

    Parameters
    ----------
    error : BaseException
    """
    if not isinstance(error, ValueError | MemoryError):
        lines = "".join(traceback.format_exception(error))
        error.add_note(f"In the worker:\n{lines}")
    for packed in (error, RuntimeError(f"{type(error).__name__}: {error}")):
        try:
            pickled = pickle.dumps((packed, packed.__cause__))
            pickle.loads(pickled)
        except Exception:
            # An error of any library may fail in any way at this; its text does not.
            continue
        return pickled
    raise AssertionError(error)


def unpack_error(pickled: bytes) -> BaseException:
    """Return the exception that `pack_error` was given.

    Parameters
    ----------
    pickled : bytes
    """
    error, cause = pickle.loads(pickled)
    error.__cause__ = cause
    assert isinstance(error, BaseException)
    return error


# What the lead has Dask run.


def join(spec: MemberSpec) -> Reply:
    """Make a member in this worker; it lives as long as somebody wants the result of this task.

    Parameters
    ----------
    spec : MemberSpec
    """
    worker = get_worker()
    members = WorkerMembers.of(worker)
    return members.join(spec, str(worker.get_current_task()))


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

    def join(self, spec: MemberSpec, key: str) -> Reply:
        """See :func:`join`.

        Parameters
        ----------
        spec : MemberSpec
        key : str
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
        if kind == _GREETING:
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


class Seat:
    """A member in its worker.

    Parameters
    ----------
    members : WorkerMembers
    spec : MemberSpec
    key : str
        Name of the task that makes it.
    """

    def __init__(self, members: WorkerMembers, spec: MemberSpec, key: str) -> None:
        self.members = members
        self.worker = members.worker
        self.spec = spec
        self.member: Member | None = None
        self.stopped = False
        self.ended = False
        self.delivered: dict[int, Array] = {}
        self.waits: tuple[int, ...] = ()
        self._key = key
        self._links: Links | None = None
        self._busy = True
        self._number = 0
        self._doing = "join"
        self._rows = 0
        self._pulses = 0
        self._pulsed = self._made = time.monotonic()
        self._silence = 0.0
        self._claimed = False
        self._lock = threading.Lock()
        self._process = psutil.Process()
        self._beats = PeriodicCallback(self._beat, 1000 * _BEAT_S)
        self._blas: ThreadpoolController | None = None
        self.worker.loop.add_callback(self._beats.start)

    # Signs of life.

    def pulse(self) -> None:
        """Take note that work goes on, and raise if nobody wants it any more.

        Raises
        ------
        SessionEnded
        """
        self.check()
        now = time.monotonic()
        self._silence = max(self._silence, now - self._pulsed)
        self._pulsed = now
        self._pulses += 1

    def check(self) -> None:
        """Raise if nobody wants the work any more.

        Raises
        ------
        SessionEnded
        """
        if self.ended:
            raise SessionEnded

    def _add_rows(self, added: int) -> None:
        self._rows += added

    def _beat(self) -> None:
        """Tell the lead how far the work is; it runs in the worker's event loop."""
        if self.ended:
            self._beats.stop()
            return
        if self._is_abandoned():
            logger.info("Nobody leads run %s any more; its member is freed.", self.spec.run)
            self.end()
            return
        beat = {
            "session": self.spec.session,
            "address": self.worker.address,
            "call": self._number,
            "busy": self._busy,
            "pulses": self._pulses,
            "rows": self._rows,
            "waits": list(self.waits),
            "memory": self._process.memory_info().rss,
        }
        self.worker.log_event(topic_of(self.spec.run), beat)

    def _is_abandoned(self) -> bool:
        if self._key in self.worker.data:
            self._claimed = True
            return False
        if self._claimed:
            return True
        return self.member is not None and time.monotonic() - self._made > _UNCLAIMED_S

    # Beginning and end.

    def make(self) -> Reply:
        """Make the member."""
        return self._attempt(self._make)

    def _make(self) -> list[Any]:
        spec = self.spec
        while any(seat.spec.run == spec.run for seat in self.members.leaving):
            time.sleep(_LOOK_S)  # for its memory
            self.check()
        rows = spec.rows.open()
        if spec.rows.fingerprint(rows) != spec.fingerprint:
            raise DatasetError(
                f"{spec.rows} must be the same for the worker as for the process that leads the "
                "run, but another one lies there. Use a folder that all of them share."
            )
        state = None
        if spec.state is not None:
            state = _PulsingState(spec.state.url, self.pulse)
            if spec.mark:
                _find_mark(spec.state, spec.mark)
        layout = Sizes.of_rows(rows, spec.options, spec.loss).make_layout(streamed=spec.streamed)
        member = make_member(rows, spec.loss, spec.options, layout, spec.plan, state)
        member.stop = lambda: self.stopped
        member.report = self._add_rows
        member.pulse = self.pulse
        self.member = member
        self._blas = ThreadpoolController()
        self._made = time.monotonic()
        return [os.getpid()]

    def end(self) -> None:
        """Free the member, as soon as the call in work has ended."""
        with self._lock:
            if self.ended:
                return
            self.ended = True
            busy = self._busy
        self.members.leaving.append(self)
        self.members.seats.pop(self.spec.session, None)
        if not busy:
            # Not here, which may be the event loop: it waits for a read that is under way.
            threading.Thread(target=self._free, name="dtopk-free", daemon=True).start()

    def _free(self) -> None:
        member, self.member = self.member, None
        self._links, self.delivered, self._blas = None, {}, None
        if member is not None:
            member.close()
        del member
        release_memory()
        self.members.leaving.remove(self)

    # Calls.

    def call(self, number: int, method: str, arguments: bytes) -> Reply:
        """See :func:`call_member`."""
        with self._lock:
            if self.ended or number != self._number + 1:
                return Reply(trouble=Trouble(kind="gone", detail="its member was given up"))
            self._number = number
            self._busy = True
            self._doing = method
        return self._attempt(lambda: self._dispatch(method, pickle.loads(arguments)))

    def _attempt(self, function: Callable[[], list[Any] | None]) -> Reply:
        """Call a function; make a reply of what it returns or raises."""
        result, trouble = None, None
        self._pulsed, self._silence = time.monotonic(), 0.0
        try:
            result = function()
            self.pulse()
        except SessionEnded:
            trouble = Trouble(kind="gone", detail="its member was given up")
        except PeerLost as lost:
            trouble = Trouble(kind="peer", detail=lost.detail, peer=lost.peer)
        except Exception as error:
            # The task itself must not fail: Dask would keep the frames of the error, and with them
            # the member's arrays.
            trouble = Trouble(kind="error", detail=str(error), error=pack_error(error))
        member, links = self.member, self._links
        reply = Reply(
            result=result or [],
            trouble=trouble,
            rows=self._rows,
            bytes_moved=0 if links is None else links.bytes_moved,
            timings=Timings() if member is None else member.updater.timings,
            silence_s=self._silence,
        )
        with self._lock:
            self._busy = False
            ended = self.ended
        if ended:
            del member
            self._free()
        return reply

    def _dispatch(self, method: str, arguments: tuple[Any, ...]) -> list[Any] | None:
        assert self.member is not None
        assert self._blas is not None
        special: Mapping[str, Callable[..., list[Any] | None]] = {
            "take_place": self._take_place,
            "start": self._start,
            "write_duals": self._write_duals,
        }
        function = special.get(method) or getattr(self.member, method)
        with self._blas.limit(limits=self.spec.threads, user_api="blas"):
            result: list[Any] | None = function(*arguments)
        return result

    def _take_place(self, places: Places, addresses: Sequence[str]) -> None:
        assert self.member is not None
        self._links = Links(self, places.index, addresses)
        self.member.take_place(places, self._links)
        self._links.greet()

    def _start(self, start: StartPoint | Delivered) -> list[Any]:
        assert self.member is not None
        if isinstance(start, Delivered):
            parts = [part for _, part in sorted(self.delivered.items())]
            self.delivered = {}
            weights = np.concatenate(parts)
            assert len(weights) == start.rows
            start = StartPoint(W=weights)
        return self.member.start(start)

    def _write_duals(self, file: DualFile) -> None:
        assert self.member is not None
        if not file.array.path.is_dir():
            raise CheckpointError(
                f"duals must be written to a folder that all workers see, got {file.path!r}, which "
                f"worker {self.worker.name!r} does not see."
            )
        self.member.write_duals(file)


class Links:
    """The way to the other members.

    Parameters
    ----------
    seat : Seat
    index : int
        Number of the member that has it.
    addresses : sequence of str
        Of all members' workers.
    """

    def __init__(self, seat: Seat, index: int, addresses: Sequence[str]) -> None:
        self.bytes_moved = 0
        self._seat = seat
        self._index = index
        self._addresses = addresses

    def greet(self) -> None:
        """Reach every peer, at the start, when no work is lost yet.

        Raises
        ------
        PeerLost
            If one cannot be reached.
        """
        others = [peer for peer in range(len(self._addresses)) if peer != self._index]
        wishes = [Wish(member=peer, kind=_GREETING, key=()) for peer in others]
        self._fetch(wishes, lambda place, came: None, min(_GREETING_S, self._timeout_s))

    @property
    def _timeout_s(self) -> float:
        return self._seat.spec.fetch_timeout_s

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
            self._seat.worker.loop.asyncio_loop,  # type: ignore[attr-defined]
        )
        left = len(wishes)
        try:
            while left:
                try:
                    item = came.get(timeout=_LOOK_S)
                except Empty:
                    self._seat.check()
                    continue
                if isinstance(item, BaseException):
                    raise item
                take(*item)
                left -= 1
                self._seat.pulse()
        finally:
            asking.cancel()
            self._seat.waits = ()

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
        self._seat.waits = tuple(waits)
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
            self._seat.waits = tuple(waits)

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
        rpc = self._seat.worker.rpc(self._addresses[peer])
        done = 0
        while done < len(places):
            keys = [wishes[place].key for place in places[done:]]
            reply = await asyncio.wait_for(
                rpc.dtopk_give(session=self._seat.spec.session, kind=kind, keys=keys), timeout_s
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


class _PulsingState(RunState):
    """The state of a run, with a sign of life before and after every array."""

    def __init__(self, url: str, pulse: Callable[[], None]) -> None:
        super().__init__(url)
        object.__setattr__(self, "_pulse", pulse)

    def write_array(self, version: str, name: str, values: Array, *, durable: bool = False) -> int:
        self._pulse()  # type: ignore[attr-defined]
        written = super().write_array(version, name, values, durable=durable)
        self._pulse()  # type: ignore[attr-defined]
        return written

    def read_array(self, version: str, name: str) -> Array:
        self._pulse()  # type: ignore[attr-defined]
        values = super().read_array(version, name)
        self._pulse()  # type: ignore[attr-defined]
        return values


def _find_mark(state: RunState, version: str) -> None:
    try:
        state.read_array(version, "mark")
    except CheckpointError as error:
        raise CheckpointError(
            f"the state of a run must be in a folder that all workers see, got {state.url!r}, "
            "where a worker does not see what the process that leads the run has written."
        ) from error


def topic_of(run: str) -> str:
    """Return the name under which members' signs of life go through the scheduler."""
    return f"dtopk-{run}"


def release_memory() -> None:
    """Give memory that was freed back to the system."""
    gc.collect()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
