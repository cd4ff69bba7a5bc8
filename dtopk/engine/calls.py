"""What the lead of a run on a cluster and the members in workers tell each other, as pickled.

The lead has a worker make a member of a :class:`MemberSpec`, and calls its methods then; each call
comes to a :class:`Reply`.
"""

import pickle
import traceback
from dataclasses import dataclass, field
from typing import Any, Literal

from dtopk.engine.memory import MemoryPlan
from dtopk.engine.options import FitOptions
from dtopk.engine.rows_source import RowsSource
from dtopk.losses import Loss
from dtopk.solvers.sdca import Timings
from dtopk_storage import RunState

MESSAGE_BYTES = 32 << 20
"""Bytes of arrays in a message, about."""


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
    mixed: bool
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
