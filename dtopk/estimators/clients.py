"""The client of the workers that an estimator uses, and what is sent to them."""

import contextlib
import pickle
import uuid
from collections.abc import Iterator, Sequence
from typing import Any

from dask.base import compute as compute_here
from distributed import Client, Future, get_client, get_worker, worker_client

MESSAGE_BYTES = 1_000_000
"""Bytes that may go by way of the scheduler at a time."""


def check_client(client: object) -> Client | None:
    """Refuse what is no client that can be waited for.

    Parameters
    ----------
    client : object

    Returns
    -------
    distributed.Client or None
        The same.

    Raises
    ------
    TypeError
    """
    if client is None:
        return None
    if not isinstance(client, Client):
        raise TypeError(f"client must be a distributed.Client or None, got {client!r}.")
    if client.asynchronous:
        raise TypeError("client must be synchronous, got one with asynchronous=True.")
    return client


@contextlib.contextmanager
def use_client(client: object) -> Iterator[Client | None]:
    """Give a client to wait for; in a task of a worker the task makes room for others meanwhile.

    Parameters
    ----------
    client : distributed.Client or None

    Yields
    ------
    distributed.Client or None
        The same; Dask's default one where none is given; None where there is none either.
    """
    given = check_client(client)
    if given is None and _is_in_task():
        with worker_client() as own:
            yield own
    else:
        yield given or find_client(None)


def find_client(client: object) -> Client | None:
    """Return a client, Dask's default one where none is given, or None.

    Parameters
    ----------
    client : distributed.Client or None
    """
    given = check_client(client)
    if given is not None:
        return given
    try:
        # In a task it is the worker's own.
        return check_client(get_client())
    except ValueError:
        return None


def _is_in_task() -> bool:
    try:
        get_worker()
    except ValueError:
        return False
    return True


def compute(client: Client | None, collections: Sequence[Any]) -> list[Any]:
    """Compute Dask collections together, on workers or as Dask is set to; leave no task behind.

    Parameters
    ----------
    client : distributed.Client or None
    collections : sequence of Dask collections

    Returns
    -------
    list
    """
    if client is None:
        return list(compute_here(*collections))  # type: ignore[no-untyped-call]
    futures = client.compute(list(collections))
    try:
        return list(client.gather(futures))
    finally:
        client.cancel(futures)


def send(client: Client, value: object, *, everywhere: bool) -> Future[Any]:
    """Send a value to the workers, past the scheduler.

    Parameters
    ----------
    client : distributed.Client
    value : object
        Of any size; it can be pickled.
    everywhere : bool
        Whether every worker is to have it, so that it is lost with none of them; otherwise one has.

    Returns
    -------
    distributed.Future
    """
    try:
        sent: Future[Any] = client.scatter(value, direct=True, broadcast=everywhere, hash=False)
    except OSError:
        # The workers cannot be reached from here: by way of the scheduler, in pieces.
        pickled = pickle.dumps(value, protocol=pickle.HIGHEST_PROTOCOL)
        pieces = [
            client.scatter(pickled[start : start + MESSAGE_BYTES], direct=False, hash=False)
            for start in range(0, len(pickled), MESSAGE_BYTES)
        ]
        sent = client.submit(_join, pieces, key=f"joined-{uuid.uuid4().hex}")
    return sent


def _join(pieces: list[bytes]) -> Any:
    return pickle.loads(b"".join(pieces))
