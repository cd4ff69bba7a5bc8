"""Turn Ctrl-C into a stop at the end of a block, where weights and duals agree."""

import logging
import signal
import threading
from types import FrameType, TracebackType
from typing import Any, Self

logger = logging.getLogger(__name__)


class Interruption:
    """A context in which the first interrupt only sets `requested`, and the second one raises.

    Outside the main thread, or where the program handles interrupts its own way, nothing changes.
    """

    def __init__(self) -> None:
        self.requested = False
        self._previous: Any = None

    def __enter__(self) -> Self:
        in_main_thread = threading.current_thread() is threading.main_thread()
        if in_main_thread and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            self._previous = signal.signal(signal.SIGINT, self._handle)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._previous is not None:
            signal.signal(signal.SIGINT, self._previous)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self.requested:
            raise KeyboardInterrupt
        self.requested = True
        logger.warning(
            "Interrupted: training stops here, and what was reached is certified and kept. "
            "Interrupt again to drop it."
        )
