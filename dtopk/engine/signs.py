"""Signs of life: how far the work of a member is, and whether anybody still wants it."""

import time

LOOK_S = 0.25
"""Seconds after which who waits looks whether what is waited for is still wanted."""


class SessionEnded(Exception):
    """The lead has given this member up."""


class SignsOfLife:
    """What a member shows of the work that it does.

    The thread that works leaves them; others read them.
    """

    def __init__(self) -> None:
        self.ended = False
        """Whether the member was given up."""
        self.pulses = 0
        """Signs of progress since the member was made."""
        self.rows = 0
        """Rows that it has reported since then."""
        self.waits: tuple[int, ...] = ()
        """The members that it waits for."""
        self.silence_s = 0.0
        """Longest time in the call in work without a sign of progress."""
        self._pulsed = time.monotonic()

    def begin_call(self) -> None:
        """Measure silence from here on."""
        self._pulsed, self.silence_s = time.monotonic(), 0.0

    def pulse(self) -> None:
        """Take note that work goes on, and raise if nobody wants it any more.

        Raises
        ------
        SessionEnded
        """
        self.check()
        now = time.monotonic()
        self.silence_s = max(self.silence_s, now - self._pulsed)
        self._pulsed = now
        self.pulses += 1

    def check(self) -> None:
        """Raise if nobody wants the work any more.

        Raises
        ------
        SessionEnded
        """
        if self.ended:
            raise SessionEnded

    def add_rows(self, added: int) -> None:
        """Take note of rows that are done.

        Parameters
        ----------
        added : int
        """
        self.rows += added
