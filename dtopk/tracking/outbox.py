"""What a run has still to send, in order, and the file that keeps it while it cannot be sent.

The file has a JSON object in each line. The first says how the run starts with MLflow, and its id
where it has begun; the others are what comes after, the oldest first. What is in the file may have
been sent already, when a process was killed between the two: sending it again changes nothing.
"""

import json
import threading
import time
from collections import deque
from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from dtopk_storage.json_files import parse_object
from dtopk_storage.paths import AnyPath, write_whole

Entry = dict[str, Any]
"""One thing to send: its 'kind', and what that takes."""

_VERSION = 1
"""Of the file."""


class Outbox:
    """A queue of entries between one thread that puts them and one that sends them.

    Parameters
    ----------
    path : AnyPath
        File of what is kept; there is none as long as everything is sent soon.
    start : Entry
        How the run starts.
    kept : sequence of Entry
        What an earlier process has left in the file.
    """

    def __init__(self, path: AnyPath, start: Entry, kept: Sequence[Entry] = ()):
        self.path = path
        self.is_open = False
        """Whether the run has been started."""
        self._start = {"kind": "start", "version": _VERSION} | start
        self._waiting = deque((time.monotonic(), entry) for entry in kept)
        self._n_sent = 0
        # Entries are counted from the first one; this many are in the file, or were sent before.
        self._n_written = 0
        self._file_is_old = True
        # A store is asked to delete nothing that is not there.
        self._may_have_file = True
        self._made = time.monotonic()
        # That of the queue is never held while a file is written: who trains must not wait for it.
        self._lock = threading.Lock()
        self._file_lock = threading.Lock()

    @property
    def start(self) -> Entry:
        """How the run starts."""
        return self._start

    def put(self, entry: Entry) -> None:
        """Add what is to be sent after all that is there."""
        with self._lock:
            self._waiting.append((time.monotonic(), entry))

    def peek(self, n: int) -> list[Entry]:
        """Return the first n entries, or as many as there are."""
        with self._lock:
            return [entry for _, entry in islice(self._waiting, n)]

    def drop(self, n: int) -> None:
        """Take away the first n entries, which have been sent."""
        with self._lock:
            for _ in range(n):
                self._waiting.popleft()
            self._n_sent += n

    def note_opened(self, run_id: str) -> None:
        """Remember that the run is started, and its id."""
        with self._lock:
            self.is_open = True
            if self._start["run_id"] != run_id:
                self._start = self._start | {"run_id": run_id}
                self._file_is_old = True

    @property
    def is_empty(self) -> bool:
        """Whether all is sent."""
        with self._lock:
            return self.is_open and not self._waiting

    def waits_since(self, seconds: float) -> bool:
        """Tell whether anything has waited for so long, in seconds."""
        with self._lock:
            if self.is_open and not self._waiting:
                return False
            oldest = self._waiting[0][0] if self.is_open else self._made
            return time.monotonic() - oldest >= seconds

    def keep(self) -> None:
        """Have in the file all that waits.

        Raises
        ------
        OSError
        """
        with self._file_lock:
            with self._lock:
                anew = self._file_is_old or not isinstance(self.path, Path)
                n_known = self._n_sent if anew else max(self._n_written, self._n_sent)
                lines = [self._start] if anew else []
                lines += [each for _, each in islice(self._waiting, n_known - self._n_sent, None)]
                n_written = self._n_sent + len(self._waiting)
                self._file_is_old = False
            text = "".join(json.dumps(line) + "\n" for line in lines).encode()
            self._may_have_file = True
            try:
                if anew:
                    write_whole(self.path, [text], durable=False)
                elif text:
                    assert isinstance(self.path, Path)
                    with self.path.open("ab") as file:
                        file.write(text)
            except BaseException:
                # A line may be there in part.
                self._file_is_old = True
                raise
            self._n_written = n_written

    def delete_file(self) -> None:
        """Delete the file, if there is one, now that all is sent.

        Raises
        ------
        OSError
        """
        with self._file_lock:
            if not self._may_have_file or not self.is_empty:
                return
            self._file_is_old = True
            self.path.unlink(missing_ok=True)
            self._may_have_file = False


def read_kept(path: AnyPath) -> tuple[Entry, list[Entry]] | None:
    """Read what is kept.

    Parameters
    ----------
    path : AnyPath

    Returns
    -------
    start : Entry
    entries : list of Entry
        Or None in place of both, if there is no file.

    Raises
    ------
    ValueError
        If the file is damaged, or a newer dtopk has written it.
    """
    if not path.is_file():
        return None
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except UnicodeDecodeError as error:
        raise _damaged(path, str(error)) from error
    entries: list[Entry] = []
    for number, line in enumerate(lines, 1):
        try:
            entries.append(parse_object(line))
        except ValueError as error:
            # A process that was killed may have written part of the last line.
            if number < len(lines):
                raise _damaged(path, f"line {number}: {error}") from error
    if not entries or entries[0].get("kind") != "start":
        raise _damaged(path, "it does not begin with the start of a run")
    if entries[0].get("version") != _VERSION:
        raise ValueError(
            f"version of {str(path)!r} must be {_VERSION}, got {entries[0].get('version')!r}. "
            "Another dtopk wrote it: send it with that one."
        )
    return entries[0], entries[1:]


def _damaged(path: AnyPath, why: str) -> ValueError:
    return ValueError(f"{str(path)!r} must be as dtopk wrote it, but it is not: {why}.")
