"""Tasks that run in the workers of a run's members, and the watch over them while they do.

Nothing is waited for without end: a member whose worker is gone, or of whose work nothing is heard
for too long, or that cannot reach another, ends the wait with `MembersLost`.
"""

import asyncio
import concurrent.futures
import contextlib
import pickle
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from distributed import Client, Future, KilledWorker
from distributed.client import ClosedClientError
from distributed.comm.core import CommClosedError

from dtopk.engine.beats import Beat
from dtopk.engine.calls import MemberSpec, Reply, Trouble, unpack_error
from dtopk.engine.cluster_watch import ClusterWatch
from dtopk.engine.remote_member import RemoteMember
from dtopk.engine.team import MembersLost
from dtopk.engine.worker import call_member, join
from dtopk.launch import ClusterError

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


@dataclass(kw_only=True, eq=False)
class Call:
    """A task that is under way."""

    member: RemoteMember
    """In whose worker."""
    task: "Future[Reply]"
    """The task."""
    reply: "concurrent.futures.Future[Reply]"
    """What it comes to, once it has been fetched."""


class RemoteCalls:
    """Calls the members of a team.

    Parameters
    ----------
    client : distributed.Client
    look_around : callable
        Called time and again while members work.
    round_timeout_s : float
        As of :class:`DaskTeam`.
    fetch_timeout_s : float
        As of :class:`MemberSpec`.
    advice : str
        What a user can do if the run has to be given up.
    """

    watch: ClusterWatch
    """What is known of the cluster, between `open` and `close`."""

    def __init__(
        self,
        client: Client,
        look_around: Callable[[], None],
        *,
        round_timeout_s: float,
        fetch_timeout_s: float,
        advice: str,
    ) -> None:
        self.members: list[RemoteMember] = []
        self.barred: set[str] = set()
        """Addresses of the workers that are better left out."""
        self._client = client
        self._look_around = look_around
        self._round_timeout_s = round_timeout_s
        self._fetch_timeout_s = fetch_timeout_s
        self._advice = advice
        self.session = ""
        """Name of the team."""
        self._number = 0
        self._silences: dict[str, float] = {}
        self._changed = threading.Event()

    def open(self) -> None:
        """Begin to watch the cluster."""
        self.watch = ClusterWatch(self._client, self._changed.set)

    def close(self) -> None:
        """End the watch."""
        self.watch.close()

    def pause(self) -> None:
        """Wait a moment, or until something has changed."""
        self._changed.wait(_POLL_S)
        self._changed.clear()

    # Calls.

    def join(self, session: str, members: list[RemoteMember], specs: Sequence[MemberSpec]) -> None:
        """Make the members of a new team.

        Parameters
        ----------
        session : str
        members : list of RemoteMember
        specs : sequence of MemberSpec
            Of each of them.

        Raises
        ------
        MembersLost
        ClusterError
            If the scheduler is gone.
        """
        self.session, self._number = session, 0
        self.members = members
        calls = [
            self._submit(member, "join", join, spec)
            for member, spec in zip(members, specs, strict=True)
        ]
        for call in calls:
            call.member.lease = call.task
        self._wait("join", calls)
        for member in members:
            member.heard = self.watch.now()

    def call_each(self, method: str, arguments: Sequence[tuple[Any, ...]]) -> list[Any]:
        """Call a method of every member, each with its own arguments.

        Parameters
        ----------
        method : str
        arguments : sequence of tuple

        Returns
        -------
        list
            What they return, joined in their order.

        Raises
        ------
        MembersLost
        ClusterError
            If the scheduler is gone.
        """
        assert self.members, "there is no team to call"
        self._number += 1
        calls = [
            self._submit(
                member,
                method,
                call_member,
                self.session,
                self._number,
                method,
                pickle.dumps(each, pickle.HIGHEST_PROTOCOL),
            )
            for member, each in zip(self.members, arguments, strict=True)
        ]
        return [item for reply in self._wait(method, calls) for item in reply.result]

    def _submit(
        self, member: RemoteMember, name: str, function: Callable[..., Reply], *arguments: Any
    ) -> Call:
        """Have a task run in a member's worker, and nowhere else."""
        self.check_scheduler()
        try:
            task = self._client.submit(
                function,
                *arguments,
                # The first part names the group of all tasks of a session, which lasts because
                # the leases do. With a group for each call the scheduler would keep every one of
                # them for good, in a span of its own, and workers the times of each.
                key=(f"dtopk-{self.session}", name, self._number, member.index),
                workers=[member.worker.address],
                allow_other_workers=False,
                pure=False,
                retries=0,
            )
        except ClosedClientError as error:
            raise self.giving_up("The connection to the scheduler was lost.") from error
        reply = self.watch.start(self._receive(task))
        reply.add_done_callback(lambda done: self._changed.set())
        return Call(member=member, task=task, reply=reply)

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

    def _wait(self, method: str, calls: Sequence[Call]) -> list[Reply]:
        """Wait for all replies, for as long as there is reason to."""
        for call in calls:
            call.member.moved = self.watch.now()
        first_trouble: float | None = None
        try:
            while True:
                self.look(method)
                ended = [call for call in calls if call.reply.done()]
                replies = [read_reply(call) for call in ended]
                troubles = [
                    (call.member, reply.trouble)
                    for call, reply in zip(ended, replies, strict=True)
                    if reply.trouble is not None
                ]
                if troubles and self._client.status != "running":
                    first_trouble = None  # tasks are cancelled when the scheduler is gone
                elif troubles:
                    # Soon the scheduler may know that a worker is gone, which says more.
                    first_trouble = first_trouble or self.watch.now()
                    if self.watch.now() - first_trouble > _SETTLE_S:
                        raise self._lost_by(troubles)
                elif len(ended) == len(calls):
                    longest = max(reply.silence_s for reply in replies)
                    self._silences[method] = max(longest, self._silences.get(method, 0.0))
                    for call, reply in zip(calls, replies, strict=True):
                        call.member.take_reply(reply)
                    return replies
                self.check_silence(method, [call.member for call in calls if call not in ended])
        finally:
            for call in calls:
                call.reply.cancel()

    # Who is lost.

    def look(self, method: str) -> None:
        """Wait a moment, and see what has become of the cluster meanwhile.

        Parameters
        ----------
        method : str
            What the members are at.

        Raises
        ------
        MembersLost
            If workers are gone.
        ClusterError
            If the scheduler is.
        """
        self.pause()
        self._look_around()
        self.check_scheduler()
        gone = [m for m in self.members if self.watch.is_gone(m.worker.address, m.since)]
        if gone:
            whose = "; ".join(member.title + member.describe_memory() for member in gone)
            raise MembersLost(f"Lost in {method!r}: {whose}.")

    def take_beat(self, beat: Beat) -> None:
        """Take note of a member's sign of life; it is called in the client's event loop.

        Parameters
        ----------
        beat : dict
        """
        if beat["session"] != self.session:
            return
        for member in self.members:
            if member.worker.address == beat["address"]:
                member.take_beat(beat, self.watch.now())

    def check_silence(self, method: str, pending: Sequence[RemoteMember]) -> None:
        """Raise if a member has not been heard of, or shows no progress, for too long.

        Parameters
        ----------
        method : str
        pending : sequence of RemoteMember
            Those that are at it.

        Raises
        ------
        MembersLost
        """
        if not self.watch.hears:
            return
        now = self.watch.now()
        deaf_s = self._round_timeout_s or _SILENT_S
        deaf = [m for m in self.members if m.heard is not None and now - m.heard > deaf_s]
        if deaf:
            whose = "; ".join(f"{m.title}, for {now - (m.heard or 0.0):.0f} s" for m in deaf)
            raise MembersLost(f"Not heard of in {method!r}: {whose}.")
        limit = self._limit(method)
        patience = limit + self._fetch_timeout_s
        stuck = [m for m in pending if now - m.moved > (patience if m.waits else limit)]
        if stuck:
            self.barred |= {member.worker.address for member in stuck}
            whose = "; ".join(f"{m.title}, for {now - m.moved:.0f} s" for m in stuck)
            raise MembersLost(f"No progress in {method!r}: {whose}.")

    def _limit(self, method: str) -> float:
        floor = _QUIET_CALLS.get(method, 0.0)
        if self._round_timeout_s:
            return max(self._round_timeout_s, floor)
        return max(_SILENT_S, floor, _SILENCES * self._silences.get(method, 0.0))

    def _lost_by(self, troubles: Sequence[tuple[RemoteMember, Trouble]]) -> MembersLost:
        """Say who is lost where members have ended their calls without a result."""
        cut = [(member, trouble) for member, trouble in troubles if trouble.kind == "peer"]
        if not cut:
            whose = "; ".join(f"{member.title}: {trouble.detail}" for member, trouble in troubles)
            return MembersLost(f"Lost: {whose}.")
        # Where a link is cut, one of its two ends must go: the one that more members miss.
        missed = Counter(trouble.peer for _, trouble in cut)
        missed.update(member.index for member, _ in cut)
        worst = max(missed, key=lambda index: (missed[index], index))
        self.barred.add(self.members[worst].worker.address)
        links = "; ".join(
            f"{member.title} cannot reach {self.members[trouble.peer].title}: {trouble.detail}"
            for member, trouble in cut
        )
        return MembersLost(f"{links[0].upper()}{links[1:]}.")

    def check_scheduler(self) -> None:
        """Raise if there is no scheduler any more.

        Raises
        ------
        ClusterError
        """
        try:
            self.watch.check_scheduler()
        except ClusterError as error:
            raise self.giving_up(str(error)) from error

    def giving_up(self, why: str) -> ClusterError:
        """Make the error that ends a run, with what to do.

        Parameters
        ----------
        why : str
            A sentence.
        """
        return ClusterError(f"{why} {self._advice}.")


def read_reply(call: Call) -> Reply:
    """Return a reply that has come; raise what the member has raised.

    Parameters
    ----------
    call : Call
    """
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
        error.add_note(f"At {call.member.title}.")
        raise
    if reply.trouble is not None and reply.trouble.kind == "error":
        raised = unpack_error(reply.trouble.error)
        raised.add_note(f"In {call.member.title}.")
        raise raised
    return reply
