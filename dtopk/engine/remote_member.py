"""What the one who leads a run on a cluster knows of a member in a worker."""

from dataclasses import dataclass, field

from distributed import Future

from dtopk.engine.beats import Beat
from dtopk.engine.calls import Reply
from dtopk.launch import WorkerInfo
from dtopk.solvers.sdca import Timings

_NEARLY = 0.8
"""Share of its memory limit at which a worker may have been killed for it."""


@dataclass(kw_only=True, eq=False)
class RemoteMember:
    """What the lead knows of one member; times are those of its `ClusterWatch`."""

    worker: WorkerInfo
    """The worker that it is in."""
    index: int
    """Its number."""
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

    def take_beat(self, beat: Beat, now: float) -> None:
        """Take note of a sign of life.

        Parameters
        ----------
        beat : dict
        now : float
        """
        self.heard = now
        doing = beat["call"], beat["busy"], beat["pulses"]
        if doing != (self.call, self.busy, self.pulses):
            self.moved = now
        self.call, self.busy, self.pulses = doing
        self.waits = tuple(beat["waits"])
        self.rows = max(self.rows, beat["rows"])
        self.memory = beat["memory"]

    def take_reply(self, reply: Reply) -> None:
        """Take note of what a reply says of the member.

        Parameters
        ----------
        reply : Reply
        """
        self.rows = reply.rows
        self.bytes_moved = reply.bytes_moved
        self.timings = reply.timings

    def describe_memory(self) -> str:
        """Say that its worker may have been killed for its memory, if it held much of it."""
        limit = self.worker.memory_limit
        if limit is None or self.memory < _NEARLY * limit:
            return ""
        return f", which held {self.memory:,} of at most {limit:,} bytes and may have been killed"
