"""The members of a run in the workers of a Dask cluster.

Every call of a member is one task, tied to its worker; arrays never go through the scheduler.
Nothing is waited for without end: a member whose worker is gone, or of whose work nothing is heard
for too long, or that cannot reach another, ends the call with `MembersLost`, and the lead may make
a new team of the workers that are there then.
"""

import asyncio
import concurrent.futures
import contextlib
import dataclasses
import logging
import pickle
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields
from types import TracebackType
from typing import Any, Self
from uuid import uuid4

import numpy as np
from distributed import Client, Future, KilledWorker
from distributed.client import ClosedClientError
from distributed.comm.core import CommClosedError
from distributed.protocol.serialize import to_serialize
from numpy.typing import NDArray

from dtopk.engine.blocks import Layout
from dtopk.engine.cluster_watch import ClusterWatch
from dtopk.engine.memory import MemoryPlan
from dtopk.engine.messages import Places
from dtopk.engine.team import MembersLost
from dtopk.engine.worker import (
    MESSAGE_BYTES,
    Delivered,
    MemberSpec,
    Reply,
    Trouble,
    call_member,
    join,
    topic_of,
    unpack_error,
)
from dtopk.launch import ClusterError, WorkerInfo
from dtopk.solvers.sdca import Timings

logger = logging.getLogger(__name__)

Array = NDArray[Any]

_POLL_S = 0.25
"""Seconds after which the lead looks around."""
_SILENT_S = 60.0
"""Seconds of silence that are never taken amiss, where none are set."""
_SILENCES = 10
"""Times the longest silence so far, from where on one is taken amiss."""
_QUIET_CALLS = {"join": 180.0, "compile": 900.0}
"""Calls that may take so many seconds without a sign of progress."""
_SETTLE_S = 3.0
"""Seconds in which it turns out whether a worker that cannot be reached is gone."""
_REPLACEMENT_S = 12.0
"""Seconds in which a lost worker is often replaced."""
_FRUITLESS = 5
"""Losses in a row, none of which let the run get further than before, after which it ends."""
_PIECE_BYTES = 1 << 19
"""Bytes of weights in a message that goes through the scheduler."""
_MESSAGE_S = 60.0
"""Seconds in which a message between lead and worker must arrive."""
_LEAVE_S = 5.0
"""Seconds that are waited, at most, for workers to hear that they are not needed any more."""
_NEARLY = 0.8
"""Share of its memory limit at which a worker may have been killed for it."""


@dataclass(kw_only=True, eq=False)
class _Seat:
    """What the lead knows of one member."""

    worker: WorkerInfo
    index: int
    since: float
    """When it was asked to join."""
    moved: float
    """When its work was last seen to go on."""
    heard: float | None = None
    """When its last sign of life came."""
    lease: "Future[Reply] | None" = None
    """The result of the task that made it, which keeps it alive."""
    call: int = 0
    """The last call that it has begun, as far as is known."""
    busy: bool = True
    """Whether that call has not ended."""
    pulses: int = -1
    """Signs of progress so far."""
    waits: tuple[int, ...] = ()
    """The members that it waits for."""
    rows: int = 0
    """Rows that it has done."""
    rows_told: int = 0
    """Rows of it that have been reported."""
    memory: int = 0
    """Bytes that its process holds."""
    bytes_moved: int = 0
    """Bytes that it has fetched."""
    timings: Timings = field(default_factory=Timings)
    """Seconds in each part of its updates."""

    @property
    def title(self) -> str:
        """What it is called in messages."""
        worker = self.worker
        return f"worker {worker.name!r} ({worker.address}, process {worker.pid} on {worker.host})"


@dataclass(kw_only=True, eq=False)
class _Call:
    """A task that is under way."""

    seat: _Seat
    task: "Future[Reply]"
    reply: "concurrent.futures.Future[Reply]"


def _make_messages() -> tuple[Callable[..., int], Callable[..., bytes], Callable[..., int]]:
    """Make what is run in a worker's event loop.

    As local functions they are sent whole: to import this module there would keep the event loop
    from its work for seconds.
    """

    def hear(run: str, session: str, what: str, dask_worker: Any) -> int:
        import os

        members = dask_worker.extensions.get("dtopk")
        if members is not None:
            members.hear(run, session, what)
        return os.getpid()

    def give_piece(session: str, slice_: int, first: int, last: int, dask_worker: Any) -> bytes:
        piece: bytes = dask_worker.extensions["dtopk"].give_piece(session, slice_, first, last)
        return piece

    def take_piece(
        session: str, first: int, columns: int, dtype: str, raw: bytes, dask_worker: Any
    ) -> int:
        dask_worker.extensions["dtopk"].take_piece(session, first, columns, dtype, raw)
        return len(raw)

    return hear, give_piece, take_piece


class DaskTeam:
    """The members of a run, one in each worker of a cluster.

    As a context it makes members on entry, and frees them when it is left. The first call of
    `stop` that returns True ends sweeps after the block in work.

    Parameters
    ----------
    client : distributed.Client
    spec : MemberSpec
        Of the members; session, plan, mark and threads are filled in here.
    layout : Layout
    n_classes : int
    plan : callable
        Says what is held in memory by the members in workers; None if they have too little.
    min_workers : int
        Fewest workers to go on with.
    wait_s : float
        Seconds to wait for so many.
    round_timeout_s : float
        Seconds after which a member of whose work nothing is heard is given up; 0: ten times the
        longest silence that calls of the same kind have shown, and at least 60.
    """

    near = False

    def __init__(
        self,
        client: Client,
        spec: MemberSpec,
        layout: Layout,
        n_classes: int,
        plan: Callable[[Sequence[WorkerInfo]], MemoryPlan | None],
        *,
        min_workers: int = 1,
        wait_s: float = 300.0,
        round_timeout_s: float = 0.0,
    ) -> None:
        self.stop: Callable[[], bool] = lambda: False
        self.report: Callable[[int], None] = lambda added: None
        self._client = client
        self._spec = spec
        self._layout = layout
        self._n_classes = n_classes
        self._plan = plan
        self._min_workers = min(min_workers, layout.n_partitions)
        self._wait_s = wait_s
        self._round_timeout_s = round_timeout_s
        self._hear, self._give_piece, self._take_piece = _make_messages()
        self._seats: list[_Seat] = []
        self._places = Places(index=0, hosts=(), keepers=())
        self._owners: Sequence[int] = ()
        self._number = 0
        self._stop_sent = False
        self._barred: set[str] = set()
        self._silences: dict[str, float] = {}
        self._furthest = self._fruitless = 0
        self._former_bytes = 0
        self._former_timings = Timings()
        self._is_near = True
        self._looked = threading.Event()

    def __enter__(self) -> Self:
        self._watch = ClusterWatch(self._client, self._looked.set)
        try:
            self._client.subscribe_topic(topic_of(self._spec.run), self._take_beat)
            self._assemble(self._min_workers)
        except BaseException:
            self._leave()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._leave()

    def _leave(self) -> None:
        told = self._dismiss()
        concurrent.futures.wait(told, _LEAVE_S)
        self._watch.close()
        with contextlib.suppress(ValueError, ClosedClientError):
            self._client.unsubscribe_topic(topic_of(self._spec.run))

    # What a team is asked.

    @property
    def names(self) -> tuple[str, ...]:
        """See :attr:`Team.names`."""
        return tuple(seat.worker.name for seat in self._seats)

    @property
    def bytes_moved(self) -> int:
        """See :attr:`Team.bytes_moved`."""
        return self._former_bytes + sum(seat.bytes_moved for seat in self._seats)

    def timings(self) -> Timings:
        """See :meth:`Team.timings`."""
        return _add_timings([self._former_timings, *(seat.timings for seat in self._seats)])

    def call(self, method: str, *arguments: Any) -> list[Any]:
        """See :meth:`Team.call`.

        Raises
        ------
        MembersLost
        ClusterError
            If the scheduler is gone.
        """
        if method == "sweep" and arguments[1].epoch > self._furthest:
            self._furthest, self._fruitless = arguments[1].epoch, 0
        if method == "own":
            self._owners = arguments[0]
        if method == "start" and arguments[0].W is not None:
            self._deliver(arguments[0].W)
            arguments = (Delivered(rows=len(arguments[0].W)),)
        return self._call_each(
            method, [self._narrow(method, arguments, seat.index) for seat in self._seats]
        )

    def renew(self, reason: str) -> None:
        """See :meth:`Team.renew`.

        Raises
        ------
        ClusterError
            If too few workers are there in time, or one loss follows another.
        """
        self._fruitless += 1
        if self._fruitless >= _FRUITLESS:
            raise self._giving_up(
                f"The run has lost workers {self._fruitless} times in a row and got no further. "
                f"The last time: {reason}"
            )
        wanted = len(self._seats)
        self._dismiss()
        self._assemble(wanted, reason)

    def weights(self) -> Array:
        """See :meth:`Team.weights`.

        Raises
        ------
        MembersLost
        """
        W = np.empty(
            (self._layout.slices[-1][1], self._n_classes), np.dtype(self._spec.options.dtype)
        )
        keepers: dict[int, list[int]] = {}
        for number, keeper in enumerate(self._places.keepers):
            keepers.setdefault(keeper, []).append(number)
        self._exchange(
            [self._fetch_slices(self._seats[keeper], kept, W) for keeper, kept in keepers.items()]
        )
        return W

    # One call of all members.

    def _call_each(self, method: str, arguments: Sequence[tuple[Any, ...]]) -> list[Any]:
        assert self._seats, "there is no team to call"
        self._number += 1
        calls = [
            self._submit(
                seat,
                method,
                call_member,
                self._spec.session,
                self._number,
                method,
                pickle.dumps(each, pickle.HIGHEST_PROTOCOL),
            )
            for seat, each in zip(self._seats, arguments, strict=True)
        ]
        return [item for reply in self._wait(method, calls) for item in reply.result]

    def _narrow(self, method: str, arguments: tuple[Any, ...], index: int) -> tuple[Any, ...]:
        """Leave out what a member has no use for, where there may be much of it."""
        hosts = self._places.hosts
        if method == "sweep":
            orders, step = arguments
            mine = [order if hosts[k] == index else [] for k, order in enumerate(orders)]
            return mine, step
        if method == "settle":
            theta, by_block = arguments
            return theta, {
                block: share
                for block, share in by_block.items()
                if hosts[self._owners[block]] == index
            }
        return arguments

    def _submit(
        self, seat: _Seat, name: str, function: Callable[..., Reply], *arguments: Any
    ) -> _Call:
        """Have a task run in a member's worker, and nowhere else."""
        self._check_scheduler()
        try:
            task = self._client.submit(
                function,
                *arguments,
                # The first part names the group of all tasks of a session, which lasts because
                # the leases do. With a group for each call the scheduler would keep every one of
                # them for good, in a span of its own, and workers the times of each.
                key=(f"dtopk-{self._spec.session}", name, self._number, seat.index),
                workers=[seat.worker.address],
                allow_other_workers=False,
                pure=False,
                retries=0,
            )
        except ClosedClientError as error:
            raise self._giving_up("The connection to the scheduler was lost.") from error
        reply = self._watch.start(self._receive(task))
        reply.add_done_callback(lambda done: self._looked.set())
        return _Call(seat=seat, task=task, reply=reply)

    async def _receive(self, task: "Future[Reply]") -> Reply:
        # `gather` would wait too, but leaves its own tasks behind when it is cancelled at that.
        loop, ended = asyncio.get_running_loop(), asyncio.Event()

        def end(done: object) -> None:
            with contextlib.suppress(RuntimeError):  # the loop has ended before
                loop.call_soon_threadsafe(ended.set)

        task.add_done_callback(end)
        await ended.wait()
        reply: Reply = await self._client.gather(task)
        return reply

    def _wait(self, method: str, calls: Sequence[_Call]) -> list[Reply]:
        """Wait for all replies, for as long as there is reason to."""
        for call in calls:
            call.seat.moved = self._watch.now()
        first_trouble: float | None = None
        try:
            while True:
                self._look(method)
                ended = [call for call in calls if call.reply.done()]
                replies = [self._read(call) for call in ended]
                troubles = [
                    (call.seat, reply.trouble)
                    for call, reply in zip(ended, replies, strict=True)
                    if reply.trouble is not None
                ]
                if troubles and self._client.status != "running":
                    first_trouble = None  # tasks are cancelled when the scheduler is gone
                elif troubles:
                    # Soon the scheduler may know that a worker is gone, which says more.
                    first_trouble = first_trouble or self._watch.now()
                    if self._watch.now() - first_trouble > _SETTLE_S:
                        raise self._lost_by(troubles)
                elif len(ended) == len(calls):
                    self._take_in(method, calls, replies)
                    return replies
                self._check_silence(method, [call.seat for call in calls if call not in ended])
        finally:
            for call in calls:
                call.reply.cancel()

    def _look(self, method: str) -> None:
        """Wait a moment, and see what has become of the cluster meanwhile."""
        self._looked.wait(_POLL_S)
        self._looked.clear()
        self._pass_on_rows()
        if self.stop() and not self._stop_sent:
            self._stop_sent = True
            self._tell_all("stop")
        self._check_scheduler()
        gone = [s for s in self._seats if self._watch.is_gone(s.worker.address, s.since)]
        if gone:
            whose = "; ".join(seat.title + _describe_memory(seat) for seat in gone)
            raise MembersLost(f"Lost in {method!r}: {whose}.")

    def _read(self, call: _Call) -> Reply:
        """Return a reply that has come; raise what the member has raised."""
        try:
            reply = call.reply.result()
        except (concurrent.futures.CancelledError, asyncio.CancelledError):
            detail = "its task was cancelled, since the connection to the scheduler was lost"
            return Reply(trouble=Trouble(kind="gone", detail=detail))
        except KilledWorker:
            return Reply(trouble=Trouble(kind="gone", detail="its worker was killed"))
        except CommClosedError:
            detail = "its reply was not fetched, since the connection to the scheduler was lost"
            return Reply(trouble=Trouble(kind="gone", detail=detail))
        except Exception as error:
            error.add_note(f"At {call.seat.title}.")
            raise
        if reply.trouble is not None and reply.trouble.kind == "error":
            raised = unpack_error(reply.trouble.error)
            raised.add_note(f"In {call.seat.title}.")
            raise raised
        return reply

    def _take_in(self, method: str, calls: Sequence[_Call], replies: Sequence[Reply]) -> None:
        """Note what replies say of their members."""
        longest = max(reply.silence_s for reply in replies)
        self._silences[method] = max(longest, self._silences.get(method, 0.0))
        for call, reply in zip(calls, replies, strict=True):
            call.seat.rows = reply.rows
            call.seat.bytes_moved = reply.bytes_moved
            call.seat.timings = reply.timings
        self._pass_on_rows()

    def _pass_on_rows(self) -> None:
        added = 0
        for seat in self._seats:
            rows = seat.rows
            added += rows - seat.rows_told
            seat.rows_told = rows
        if added:
            self.report(added)

    # Who is lost.

    def _take_beat(self, event: tuple[float, dict[str, Any]]) -> None:
        """Take note of a member's sign of life; it is called in the client's event loop."""
        beat = event[1]
        if beat["session"] != self._spec.session:
            return
        for seat in self._seats:
            if seat.worker.address == beat["address"]:
                seat.heard = self._watch.now()
                doing = beat["call"], beat["busy"], beat["pulses"]
                if doing != (seat.call, seat.busy, seat.pulses):
                    seat.moved = seat.heard
                seat.call, seat.busy, seat.pulses = doing
                seat.waits = tuple(beat["waits"])
                seat.rows = max(seat.rows, beat["rows"])
                seat.memory = beat["memory"]

    def _check_silence(self, method: str, pending: Sequence[_Seat]) -> None:
        """Raise if a member has not been heard of, or shows no progress, for too long."""
        if not self._watch.hears:
            return
        now = self._watch.now()
        deaf_s = self._round_timeout_s or _SILENT_S
        deaf = [s for s in self._seats if s.heard is not None and now - s.heard > deaf_s]
        if deaf:
            whose = "; ".join(f"{s.title}, for {now - (s.heard or 0.0):.0f} s" for s in deaf)
            raise MembersLost(f"Not heard of in {method!r}: {whose}.")
        limit = self._limit(method)
        patience = limit + self._spec.fetch_timeout_s
        stuck = [s for s in pending if now - s.moved > (patience if s.waits else limit)]
        if stuck:
            self._barred |= {seat.worker.address for seat in stuck}
            whose = "; ".join(f"{s.title}, for {now - s.moved:.0f} s" for s in stuck)
            raise MembersLost(f"No progress in {method!r}: {whose}.")

    def _limit(self, method: str) -> float:
        floor = _QUIET_CALLS.get(method, 0.0)
        if self._round_timeout_s:
            return max(self._round_timeout_s, floor)
        return max(_SILENT_S, floor, _SILENCES * self._silences.get(method, 0.0))

    def _lost_by(self, troubles: Sequence[tuple[_Seat, Trouble]]) -> MembersLost:
        """Say who is lost where members have ended their calls without a result."""
        cut = [(seat, trouble) for seat, trouble in troubles if trouble.kind == "peer"]
        if not cut:
            whose = "; ".join(f"{seat.title}: {trouble.detail}" for seat, trouble in troubles)
            return MembersLost(f"Lost: {whose}.")
        # Where a link is cut, one of its two ends must go: the one that more members miss.
        missed = Counter(trouble.peer for _, trouble in cut)
        missed.update(seat.index for seat, _ in cut)
        worst = max(missed, key=lambda index: (missed[index], index))
        self._barred.add(self._seats[worst].worker.address)
        links = "; ".join(
            f"{seat.title} cannot reach {self._seats[trouble.peer].title}: {trouble.detail}"
            for seat, trouble in cut
        )
        return MembersLost(f"{links[0].upper()}{links[1:]}.")

    # Who is there.

    def _assemble(self, wanted: int, reason: str = "") -> None:
        """Make a member in every worker that is there, once there are enough of them."""
        began = time.monotonic()
        while True:
            self._check_scheduler()
            if self.stop():
                raise KeyboardInterrupt
            self._spec = dataclasses.replace(self._spec, session=uuid4().hex[:12])
            workers = self._find_workers(patient := time.monotonic() - began < _REPLACEMENT_S)
            plan = self._plan(workers) if workers else None
            if plan is not None and len(workers) >= (wanted if patient else self._min_workers):
                self._spec = dataclasses.replace(self._spec, plan=plan)
                try:
                    self._seat(workers)
                    return
                except MembersLost as lost:
                    reason = lost.reason
                    logger.warning("%s", reason)
                    self._dismiss()
            if time.monotonic() - began > self._wait_s:
                too_little = workers and plan is None
                raise self._giving_up(
                    f"min_workers = {self._min_workers} workers must be there within "
                    f"{self._wait_s:g} s, got {len(workers)}"
                    f"{', whose memory does not suffice for so few' if too_little else ''}."
                    f" {reason}".rstrip()
                )
            self._looked.wait(_POLL_S)
            self._looked.clear()

    def _find_workers(self, patient: bool) -> list[WorkerInfo]:
        """List the workers to take, those with most threads first, and end others' old members."""
        found = self._watch.find_workers(self._hear, self._spec.run, self._spec.session, "renew")
        workers = [worker for worker in found if worker.address not in self._barred]
        if len(workers) < self._min_workers and not patient:
            self._barred.clear()
            workers = found
        workers.sort(key=lambda worker: (-worker.threads, worker.address))
        return workers[: self._layout.n_partitions]

    def _seat(self, workers: Sequence[WorkerInfo]) -> None:
        """Make members in workers, and tell them who does what."""
        now = self._watch.now()
        self._number, self._stop_sent = 0, False
        self._seats = [
            _Seat(worker=worker, index=index, since=now, moved=now)
            for index, worker in enumerate(workers)
        ]
        state = self._spec.state
        mark = "" if state is None else f"mark-{self._spec.session}"
        if state is not None:
            state.write_array(mark, "mark", np.zeros(1))
        self._spec = dataclasses.replace(self._spec, mark=mark)
        calls = [self._submit(seat, "join", join, self._spec_for(seat)) for seat in self._seats]
        for call in calls:
            call.seat.lease = call.task
        self._wait("join", calls)
        for seat in self._seats:
            seat.heard = self._watch.now()
        if state is not None:
            state.delete_leftovers()
        hosts = _share_out(self._layout.n_partitions, [worker.threads for worker in workers])
        keepers = tuple(number % len(workers) for number in range(len(self._layout.slices)))
        self._places = Places(index=0, hosts=hosts, keepers=keepers)
        addresses = [worker.address for worker in workers]
        self._call_each(
            "take_place",
            [
                (dataclasses.replace(self._places, index=seat.index), addresses)
                for seat in self._seats
            ],
        )

    def _spec_for(self, seat: _Seat) -> MemberSpec:
        threads = self._spec.options.threads or seat.worker.threads
        return dataclasses.replace(self._spec, threads=threads)

    def _dismiss(self) -> list["concurrent.futures.Future[int | None]"]:
        """Free the members of this team, and go on without waiting for them to hear of it."""
        told = self._tell_all("end")
        self._former_bytes = self.bytes_moved
        self._former_timings = self.timings()
        self._seats = []  # and with them the leases
        return told

    def _tell_all(self, what: str) -> list["concurrent.futures.Future[int | None]"]:
        run, session = self._spec.run, self._spec.session
        return [
            self._watch.tell(seat.worker.address, self._hear, run, session, what)
            for seat in self._seats
        ]

    def _check_scheduler(self) -> None:
        try:
            self._watch.check_scheduler()
        except ClusterError as error:
            raise self._giving_up(str(error)) from error

    def _giving_up(self, why: str) -> ClusterError:
        advice = "Start the run again"
        if self._spec.state is not None:
            advice = "Run the same command again: it goes on from its last commit"
        return ClusterError(f"{why} {advice}.")

    # Weights, between the lead and members.

    def _exchange(self, coroutines: Sequence[Any]) -> None:
        """Wait for arrays to be sent."""
        sent = [self._watch.start(coroutine) for coroutine in coroutines]
        try:
            while True:
                self._look("weights")
                for done in sent:
                    if done.done():
                        done.result()
                if all(done.done() for done in sent):
                    return
                self._check_silence("weights", [])
        except OSError as error:
            raise MembersLost(f"Weights could not be moved: {error}.") from error
        finally:
            for each in sent:
                each.cancel()

    async def _fetch_slices(self, seat: _Seat, slices: Sequence[int], W: Array) -> None:
        """Fetch slices of W from their keeper."""
        done = 0
        while done < len(slices) and self._is_near:
            keys = [(number,) for number in slices[done:]]
            reply = await self._ask_directly(
                seat, "dtopk_give", session=self._spec.session, kind="weights", keys=keys
            )
            for array in reply.get("arrays", ()):
                first, last = self._layout.slices[slices[done]]
                W[first:last] = array
                done += 1
        for number in slices[done:]:
            first, last = self._layout.slices[number]
            await self._fetch_pieces(seat, number, W[first:last].reshape(-1))

    async def _fetch_pieces(self, seat: _Seat, number: int, out: Array) -> None:
        step = _PIECE_BYTES // out.itemsize
        for first in range(0, len(out), step):
            last = min(first + step, len(out))
            raw = await self._ask_by_way_of_scheduler(
                seat, self._give_piece, self._spec.session, number, first, last
            )
            out[first:last] = np.frombuffer(raw, out.dtype)

    def _deliver(self, weights: Array) -> None:
        """Send all members weights to start from."""
        self._exchange([self._send_weights(seat, weights) for seat in self._seats])

    async def _send_weights(self, seat: _Seat, weights: Array) -> None:
        session = self._spec.session
        step = max(MESSAGE_BYTES // (weights.itemsize * weights.shape[1]), 1)
        for first in range(0, len(weights), step):
            part = np.ascontiguousarray(weights[first : first + step])
            if self._is_near:
                await self._ask_directly(
                    seat, "dtopk_take", session=session, first=first, weights=to_serialize(part)
                )
            if not self._is_near:
                await self._send_pieces(seat, first, part)

    async def _send_pieces(self, seat: _Seat, first: int, part: Array) -> None:
        step = max(_PIECE_BYTES // (part.itemsize * part.shape[1]), 1)
        for low in range(0, len(part), step):
            raw = bytes(part[low : low + step].data)
            await self._ask_by_way_of_scheduler(
                seat, self._take_piece, self._spec.session, first + low, part.shape[1],
                part.dtype.str, raw,
            )  # fmt: skip

    async def _ask_directly(self, seat: _Seat, operation: str, **arguments: Any) -> dict[str, Any]:
        """Ask a worker; if it cannot be reached from here, note so and return nothing."""
        try:
            function = getattr(self._client.rpc(seat.worker.address), operation)
            reply: dict[str, Any] = await asyncio.wait_for(function(**arguments), _MESSAGE_S)
        except OSError as error:
            logger.info(
                "%s cannot be reached from here (%s): weights go by way of the scheduler.",
                seat.title,
                error,
            )
            self._is_near = False
            return {}
        if reply["status"] == "error":
            raise unpack_error(reply["error"])
        if reply["status"] != "OK":
            raise OSError(f"{seat.title} has no member of this run any more")
        return reply

    async def _ask_by_way_of_scheduler(
        self, seat: _Seat, function: Callable[..., Any], *arguments: Any
    ) -> Any:
        address = seat.worker.address
        answers = await asyncio.wait_for(
            self._client.run(function, *arguments, workers=[address], on_error="return"),
            _MESSAGE_S,
        )
        answer = answers.get(address)
        if isinstance(answer, Exception):
            raise OSError(f"{seat.title} does not answer: {answer}") from answer
        return answer


def _add_timings(parts: Sequence[Timings]) -> Timings:
    return Timings(
        **{each.name: sum(getattr(part, each.name) for part in parts) for each in fields(Timings)}
    )


def _share_out(n_partitions: int, threads: Sequence[int]) -> tuple[int, ...]:
    """Give each member neighbouring partitions, at least one, and more to who has more threads."""
    n = len(threads)
    bounds = [0]
    for member in range(n):
        bound = round(n_partitions * sum(threads[: member + 1]) / sum(threads))
        bound = min(max(bound, bounds[-1] + 1), n_partitions - (n - 1 - member))
        bounds.append(bound)
    return tuple(member for member in range(n) for _ in range(bounds[member], bounds[member + 1]))


def _describe_memory(seat: _Seat) -> str:
    """Say that a worker may have been killed for its memory, if it held much of it."""
    limit = seat.worker.memory_limit
    if limit is None or seat.memory < _NEARLY * limit:
        return ""
    return f", which held {seat.memory:,} of at most {limit:,} bytes and may have been killed"
