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


class Interruption:
    """A context in which SIGINT, SIGTERM and SIGUSR1 only set `requested`; a second SIGINT raises.

    The other two may come again and change nothing: a batch system sends them to every process of
    a job, and its script passes them on; who wants no more sends SIGKILL. Outside the main thread,
    or where the program handles a signal its own way, nothing changes.
    """

    def __init__(self) -> None:
        self.requested = False
        self._previous: dict[int, Any] = {}

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            for number, default in _DEFAULTS.items():
                if signal.getsignal(number) is default:
                    self._previous[number] = signal.signal(number, self._handle)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self.requested and number != signal.SIGINT:
            return
        if self.requested:
            raise KeyboardInterrupt
        self.requested = True
        logger.warning(
            "Interrupted: training stops here; what was reached is kept, with its gap. "
            "Press Ctrl-C%s to leave at once.",
            " again" if number == signal.SIGINT else "",
        )
