"""The members of a run in the workers of a Dask cluster.

Every call of a member is one task, tied to its worker (:mod:`dtopk.engine.remote_calls`); arrays
never go through the scheduler. Where members are lost a call ends with `MembersLost`, and the lead
may make a new team of the workers that are there then.
"""

import concurrent.futures
import contextlib
import dataclasses
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import fields
from types import TracebackType
from typing import Any, Self
from uuid import uuid4

import numpy as np
from distributed import Client
from numpy.typing import NDArray

from dtopk.engine.beats import hear_beats
from dtopk.engine.blocks import Layout
from dtopk.engine.calls import Delivered, MemberSpec
from dtopk.engine.memory import MemoryPlan
from dtopk.engine.messages import Places
from dtopk.engine.remote_calls import RemoteCalls
from dtopk.engine.remote_member import RemoteMember
from dtopk.engine.team import MembersLost
from dtopk.engine.weights_path import WeightsPath
from dtopk.launch import WorkerInfo
from dtopk.solvers.sdca import Timings

logger = logging.getLogger(__name__)

Array = NDArray[Any]

_REPLACEMENT_S = 12.0
"""Seconds in which a lost worker is often replaced."""
_FRUITLESS = 5
"""Losses in a row, none of which let the run get further than before, after which it ends."""
_LEAVE_S = 5.0
"""Seconds that are waited, at most, for workers to hear that they are not needed any more."""


def _make_hear() -> Callable[..., int]:
    """Make what a worker is told between its tasks, in its event loop.

    As a local function it is sent whole: to import this module there would keep the event loop from
    its work for seconds.
    """

    def hear(run: str, session: str, what: str, dask_worker: Any) -> int:
        import os

        members = dask_worker.extensions.get("dtopk")
        if members is not None:
            members.hear(run, session, what)
        return os.getpid()

    return hear


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
        advice = "Start the run again"
        if spec.state is not None:
            advice = "Run the same command again: it goes on from its last commit"
        self._calls = RemoteCalls(
            client,
            self._look_around,
            round_timeout_s=round_timeout_s,
            fetch_timeout_s=spec.fetch_timeout_s,
            advice=advice,
        )
        self._path = WeightsPath(client, self._calls, layout.slices)
        self._hear = _make_hear()
        self._hearing = contextlib.ExitStack()
        self._places = Places(index=0, hosts=(), keepers=())
        self._owners: Sequence[int] = ()
        self._stop_sent = False
        self._furthest = self._fruitless = 0
        self._former_bytes = 0
        self._former_timings = Timings()

    def __enter__(self) -> Self:
        self._calls.open()
        try:
            self._hearing.enter_context(hear_beats(self._client, self._calls.take_beat))
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
        self._calls.close()
        self._hearing.close()

    # What a team is asked.

    @property
    def names(self) -> tuple[str, ...]:
        """See :attr:`Team.names`."""
        return tuple(member.worker.name for member in self._calls.members)

    @property
    def bytes_moved(self) -> int:
        """See :attr:`Team.bytes_moved`."""
        return self._former_bytes + sum(member.bytes_moved for member in self._calls.members)

    def timings(self) -> Timings:
        """See :meth:`Team.timings`."""
        return _add_timings(
            [self._former_timings, *(member.timings for member in self._calls.members)]
        )

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
            self._path.deliver(arguments[0].W)
            arguments = (Delivered(rows=len(arguments[0].W)),)
        return self._call_each(
            method,
            [self._narrow(method, arguments, member.index) for member in self._calls.members],
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
            raise self._calls.giving_up(
                f"The run has lost workers {self._fruitless} times in a row and got no further. "
                f"The last time: {reason}"
            )
        wanted = len(self._calls.members)
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
        self._path.fetch(self._places.keepers, W)
        return W

    # One call of all members.

    def _call_each(self, method: str, arguments: Sequence[tuple[Any, ...]]) -> list[Any]:
        results = self._calls.call_each(method, arguments)
        self._pass_on_rows()
        return results

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

    def _look_around(self) -> None:
        """Do what is to be done time and again while members work."""
        self._pass_on_rows()
        if self.stop() and not self._stop_sent:
            self._stop_sent = True
            self._tell_all("stop")

    def _pass_on_rows(self) -> None:
        added = 0
        for member in self._calls.members:
            rows = member.rows
            added += rows - member.rows_told
            member.rows_told = rows
        if added:
            self.report(added)

    # Who is there.

    def _assemble(self, wanted: int, reason: str = "") -> None:
        """Make a member in every worker that is there, once there are enough of them."""
        began = time.monotonic()
        while True:
            self._calls.check_scheduler()
            if self.stop():
                raise KeyboardInterrupt
            self._spec = dataclasses.replace(self._spec, session=uuid4().hex[:12])
            workers = self._find_workers(patient := time.monotonic() - began < _REPLACEMENT_S)
            plan = self._plan(workers) if workers else None
            if plan is not None and len(workers) >= (wanted if patient else self._min_workers):
                self._spec = dataclasses.replace(self._spec, plan=plan)
                try:
                    self._make_members(workers)
                    return
                except MembersLost as lost:
                    reason = lost.reason
                    logger.warning("%s", reason)
                    self._dismiss()
            if time.monotonic() - began > self._wait_s:
                too_little = workers and plan is None
                raise self._calls.giving_up(
                    f"min_workers = {self._min_workers} workers must be there within "
                    f"{self._wait_s:g} s, got {len(workers)}"
                    f"{', whose memory does not suffice for so few' if too_little else ''}."
                    f" {reason}".rstrip()
                )
            self._calls.pause()

    def _find_workers(self, patient: bool) -> list[WorkerInfo]:
        """List the workers to take, those with most threads first, and end others' old members."""
        found = self._calls.watch.find_workers(
            self._hear, self._spec.run, self._spec.session, "renew"
        )
        workers = [worker for worker in found if worker.address not in self._calls.barred]
        if len(workers) < self._min_workers and not patient:
            self._calls.barred.clear()
            workers = found
        workers.sort(key=lambda worker: (-worker.threads, worker.address))
        return workers[: self._layout.n_partitions]

    def _make_members(self, workers: Sequence[WorkerInfo]) -> None:
        """Make members in workers, and tell them who does what."""
        now = self._calls.watch.now()
        self._stop_sent = False
        members = [
            RemoteMember(worker=worker, index=index, since=now, moved=now)
            for index, worker in enumerate(workers)
        ]
        state = self._spec.state
        mark = "" if state is None else f"mark-{self._spec.session}"
        if state is not None:
            state.write_array(mark, "mark", np.zeros(1))
        self._spec = dataclasses.replace(self._spec, mark=mark)
        specs = [self._spec_for(member) for member in members]
        self._calls.join(self._spec.session, members, specs)
        if state is not None:
            state.delete_leftovers()
        hosts = _share_out(self._layout.n_partitions, [worker.threads for worker in workers])
        keepers = tuple(number % len(workers) for number in range(len(self._layout.slices)))
        self._places = Places(index=0, hosts=hosts, keepers=keepers)
        addresses = [worker.address for worker in workers]
        self._call_each(
            "take_place",
            [
                (dataclasses.replace(self._places, index=member.index), addresses)
                for member in self._calls.members
            ],
        )

    def _spec_for(self, member: RemoteMember) -> MemberSpec:
        threads = self._spec.options.threads or member.worker.threads
        return dataclasses.replace(self._spec, threads=threads)

    def _dismiss(self) -> list["concurrent.futures.Future[int | None]"]:
        """Free the members of this team, and go on without waiting for them to hear of it."""
        told = self._tell_all("end")
        self._former_bytes = self.bytes_moved
        self._former_timings = self.timings()
        self._calls.members = []  # and with them the leases
        return told

    def _tell_all(self, what: str) -> list["concurrent.futures.Future[int | None]"]:
        run, session = self._spec.run, self._spec.session
        return [
            self._calls.watch.tell(member.worker.address, self._hear, run, session, what)
            for member in self._calls.members
        ]


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
