"""Turn Ctrl-C and a request to end into a stop after a block, where weights and duals agree."""

import logging
import signal
import threading
from types import FrameType, TracebackType
from typing import Any, Self

logger = logging.getLogger(__name__)

_DEFAULTS: dict[int, Any] = {
    signal.SIGINT: signal.default_int_handler,
    signal.SIGTERM: signal.SIG_DFL,
    signal.SIGUSR1: signal.SIG_DFL,
}
"""Signals that are taken over, and the handlers in whose place that is done. SIGTERM and SIGUSR1
are what batch systems send before the time is up."""


class _SignalContext:
    """A context that leaves the handlers of signals as it has found them."""

    def __init__(self) -> None:
        self._previous: dict[int, Any] = {}

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)


class EndRequests(_SignalContext):
    """A context in which SIGTERM or SIGUSR1 raises KeyboardInterrupt, once; for work of many fits.

    During a fit within it the signal is the fit's :class:`Interruption`'s, which ends the fit;
    `came` tells the caller then, and has a later fit end at its start. Outside the main thread, or
    where the program handles a signal its own way, nothing changes.
    """

    def __init__(self) -> None:
        super().__init__()
        self.came = False

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGTERM, signal.SIGUSR1):
                if signal.getsignal(number) is _DEFAULTS[number]:
                    self._previous[number] = signal.signal(number, self._handle)
        return self

    def raise_if_came(self) -> None:
        """Raise what a signal raises, if one has come during a fit.

        Raises
        ------
        KeyboardInterrupt
        """
        if self.came:
            raise KeyboardInterrupt

    def _handle(self, number: int, frame: FrameType | None) -> None:
        # It may come again while the first one is obeyed, as to an `Interruption`.
        if not self.came:
            self.came = True
            raise KeyboardInterrupt


class Interruption(_SignalContext):
    """A context in which SIGINT, SIGTERM and SIGUSR1 only set `requested`; a second SIGINT raises.

    The other two may come again and change nothing: a batch system sends them to every process of
    a job, and its script passes them on; who wants no more sends SIGKILL. Within another one it is
    requested with that one. Outside the main thread, or where the program handles a signal its own
    way, nothing changes.
    """

    def __init__(self) -> None:
        super().__init__()
        self._is_requested = False
        self._outer: Interruption | EndRequests | None = None

    @property
    def requested(self) -> bool:
        """Whether the fit is to end."""
        match self._outer:
            case Interruption():
                return self._outer.requested
            case EndRequests():
                return self._is_requested or self._outer.came
        return self._is_requested

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            for number, default in _DEFAULTS.items():
                handler = signal.getsignal(number)
                owner = getattr(handler, "__self__", None)
                if isinstance(owner, Interruption | EndRequests):
                    self._outer = owner
                if handler is default or isinstance(owner, EndRequests):
                    self._previous[number] = signal.signal(number, self._handle)
        return self

    def _handle(self, number: int, frame: FrameType | None) -> None:
        before = self.requested
        self._is_requested = True
        if number != signal.SIGINT:
            if isinstance(self._outer, EndRequests):
                self._outer.came = True
            if before:
                return
        elif before:
            raise KeyboardInterrupt
        logger.warning(
            "Interrupted: training stops here; what was reached is kept, with its gap. "
            "Press Ctrl-C%s to leave at once.",
            " again" if number == signal.SIGINT else "",
        )
