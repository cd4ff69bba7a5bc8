"""The way of members' signs of life through the scheduler, to the runs that a client leads.

One topic serves all runs of a cluster, and one handler all runs of a client: a scheduler keeps the
last events of every topic for good, and a client keeps its handlers, with what they refer to, even
after it has been unsubscribed.
"""

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Any
from weakref import WeakKeyDictionary

from distributed import Client
from distributed.client import ClosedClientError

TOPIC = "dtopk"
"""Name of the topic."""

Beat = dict[str, Any]
"""A sign of life, as a member's seat sends it."""


class _Takers:
    """Those in a client's process who take its beats."""

    def __init__(self) -> None:
        self.takers: list[Callable[[Beat], None]] = []

    def hand_on(self, event: tuple[float, Beat]) -> None:
        """Give a beat to all of them; it is called in the client's event loop."""
        for take in tuple(self.takers):
            take(event[1])


_of_clients: WeakKeyDictionary[Client, _Takers] = WeakKeyDictionary()
_lock = threading.Lock()


@contextlib.contextmanager
def hear_beats(client: Client, take: Callable[[Beat], None]) -> Iterator[None]:
    """Hear the members' signs of life, of all runs, while the context is open.

    Parameters
    ----------
    client : distributed.Client
    take : callable
        Called with each beat, in the client's event loop.
    """
    with _lock:
        known = _of_clients.setdefault(client, _Takers())
        if not known.takers:
            client.subscribe_topic(TOPIC, known.hand_on)
        known.takers.append(take)
    try:
        yield
    finally:
        with _lock:
            known.takers.remove(take)
            if not known.takers:
                with contextlib.suppress(ValueError, ClosedClientError):
                    client.unsubscribe_topic(TOPIC)
