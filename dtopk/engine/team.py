"""The members of a run together, as the one who leads it sees them."""

from collections.abc import Callable
from types import TracebackType
from typing import Any, Protocol, Self

from numpy.typing import NDArray

from dtopk.engine.member import Member
from dtopk.solvers.sdca import Timings

Array = NDArray[Any]


class MembersLost(Exception):
    """Members are gone, hang or cannot reach each other: the round they were in is void.

    Parameters
    ----------
    reason : str
        A sentence that names them.
    """

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class Team(Protocol):
    """The members of a run.

    Each method of :class:`Member` that is called runs on all members at once; the call returns
    when the last one has.
    """

    @property
    def names(self) -> tuple[str, ...]:
        """What the members are called."""

    @property
    def near(self) -> bool:
        """Whether `weights` costs nothing, since they are in this process."""

    def call(self, method: str, *arguments: Any) -> list[Any]:
        """Call a method on every member, and join the lists they return, in their order.

        Raises
        ------
        MembersLost
            If not all of them return. After it, only `renew` may be called.
        """

    def renew(self, reason: str) -> None:
        """Make a team of those who are left, or came instead, with nothing in their memory.

        Parameters
        ----------
        reason : str
            Why.

        Raises
        ------
        RuntimeError
            If there are too few.
        """

    def weights(self) -> Array:
        """Return W, of shape (width, n_classes)."""

    def timings(self) -> Timings:
        """Return the seconds that the members together have spent in each part of the updates."""

    @property
    def bytes_moved(self) -> int:
        """Bytes that members have sent each other so far."""


class LocalTeam:
    """A team of one, in this process.

    Parameters
    ----------
    member : Member
    """

    names = ("this process",)
    near = True
    bytes_moved = 0

    def __init__(self, member: Member) -> None:
        self.member = member

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.member.close()

    def call(self, method: str, *arguments: Any) -> list[Any]:
        """See :meth:`Team.call`."""
        function: Callable[..., list[Any] | None] = getattr(self.member, method)
        return function(*arguments) or []

    def renew(self, reason: str) -> None:
        """Fail: this process cannot be replaced."""
        raise AssertionError(reason)

    def weights(self) -> Array:
        """See :meth:`Team.weights`."""
        return self.member.W

    def timings(self) -> Timings:
        """See :meth:`Team.timings`."""
        return self.member.updater.timings
