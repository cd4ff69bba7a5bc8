"""The seat of a member in its worker: it makes the member, runs its calls and frees it."""

import ctypes
import gc
import logging
import os
import pickle
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np
import psutil
from dask.typing import Key
from distributed import Worker
from numpy.typing import NDArray
from threadpoolctl import ThreadpoolController
from tornado.ioloop import PeriodicCallback

from dtopk.engine.beats import TOPIC
from dtopk.engine.calls import Delivered, MemberSpec, Reply, Trouble, pack_error
from dtopk.engine.fit import make_member
from dtopk.engine.links import Links, PeerLost
from dtopk.engine.member import Member
from dtopk.engine.messages import Places
from dtopk.engine.options import StartPoint
from dtopk.engine.signs import LOOK_S, SessionEnded, SignsOfLife
from dtopk.engine.sizes import Sizes
from dtopk.solvers.sdca import Timings
from dtopk_storage import CheckpointError, DatasetError, DualFile, RunState

logger = logging.getLogger(__name__)

Array = NDArray[Any]

_BEAT_S = 1.0
"""Seconds between two signs of life."""
_UNCLAIMED_S = 30.0
"""Seconds after which a member is freed that nobody turns out to hold."""


class SeatOwner(Protocol):
    """What has the seats of a worker."""

    worker: Worker
    """The worker."""
    seats: "dict[str, Seat]"
    """Those that are taken, by session."""
    leaving: "list[Seat]"
    """Those that are given up, whose members are being freed."""


class Seat:
    """A member in its worker.

    Parameters
    ----------
    owner : SeatOwner
    spec : MemberSpec
    key : str or tuple
        Name of the task that makes it, as Dask has it.
    """

    def __init__(self, owner: SeatOwner, spec: MemberSpec, key: Key) -> None:
        self.worker = owner.worker
        self.spec = spec
        self.member: Member | None = None
        self.stopped = False
        self.delivered: dict[int, Array] = {}
        self._owner = owner
        self._key = key
        self._signs = SignsOfLife()
        self._links: Links | None = None
        self._busy = True
        self._number = 0
        self._made = time.monotonic()
        self._claimed = False
        self._lock = threading.Lock()
        self._process = psutil.Process()
        self._beats = PeriodicCallback(self._beat, 1000 * _BEAT_S)
        self._blas: ThreadpoolController | None = None
        self.worker.loop.add_callback(self._beats.start)

    @property
    def ended(self) -> bool:
        """Whether the member was given up."""
        return self._signs.ended

    # Signs of life.

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
            "pulses": self._signs.pulses,
            "rows": self._signs.rows,
            "waits": list(self._signs.waits),
            "memory": self._process.memory_info().rss,
        }
        self.worker.log_event(TOPIC, beat)

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
        while any(seat.spec.run == spec.run for seat in self._owner.leaving):
            time.sleep(LOOK_S)  # for its memory
            self._signs.check()
        rows = spec.rows.open()
        if spec.rows.fingerprint(rows) != spec.fingerprint:
            raise DatasetError(
                f"{spec.rows} must be the same for the worker as for the process that leads the "
                "run, but another one lies there. Use a folder that all of them share."
            )
        state = None
        if spec.state is not None:
            state = _PulsingState(spec.state.url, self._signs.pulse)
            if spec.mark:
                _find_mark(spec.state, spec.mark)
        layout = Sizes.of_rows(rows, spec.options, spec.loss).make_layout(
            streamed=spec.streamed, mixed=spec.mixed
        )
        member = make_member(rows, spec.loss, spec.options, layout, spec.plan, state)
        member.stop = lambda: self.stopped
        member.report = self._signs.add_rows
        member.pulse = self._signs.pulse
        self.member = member
        self._blas = ThreadpoolController()
        self._made = time.monotonic()
        return [os.getpid()]

    def end(self) -> None:
        """Free the member, as soon as the call in work has ended."""
        with self._lock:
            if self.ended:
                return
            self._signs.ended = True
            busy = self._busy
        self._owner.leaving.append(self)
        self._owner.seats.pop(self.spec.session, None)
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
        self._owner.leaving.remove(self)

    # Calls.

    def call(self, number: int, method: str, arguments: bytes) -> Reply:
        """See :func:`dtopk.engine.worker.call_member`."""
        with self._lock:
            if self.ended or number != self._number + 1:
                return Reply(trouble=Trouble(kind="gone", detail="its member was given up"))
            self._number = number
            self._busy = True
        return self._attempt(lambda: self._dispatch(method, pickle.loads(arguments)))

    def _attempt(self, function: Callable[[], list[Any] | None]) -> Reply:
        """Call a function; make a reply of what it returns or raises."""
        result, trouble = None, None
        self._signs.begin_call()
        try:
            result = function()
            self._signs.pulse()
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
            rows=self._signs.rows,
            bytes_moved=0 if links is None else links.bytes_moved,
            timings=Timings() if member is None else member.updater.timings,
            silence_s=self._signs.silence_s,
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
        self._links = Links(
            self.worker, places.index, addresses,
            session=self.spec.session, signs=self._signs, timeout_s=self.spec.fetch_timeout_s,
        )  # fmt: skip
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


def release_memory() -> None:
    """Give memory that was freed back to the system."""
    gc.collect()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
