"""One run at a time in a run folder."""

import dataclasses
import datetime
import fcntl
import json
import logging
import os
import socket
import threading
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Self

from dtopk_storage.errors import CheckpointError
from dtopk_storage.files import NO_FILE_LOCKS
from dtopk_storage.json_files import parse_record
from dtopk_storage.locations import ObjectFolder, explain_full_disk, open_location

logger = logging.getLogger(__name__)

_LOCK = "lock"

REFRESH_S = 10.0
"""Seconds between the signs of life of a run in an object store."""
STALE_S = 60.0
"""Seconds without a sign after which the run counts as dead."""
# Of two runs that begin together the one that writes last stays: both look again after this.
_SETTLE_S = 2.0
# The clocks of two hosts may differ by minutes: who would take a lock over sees for itself.
_WATCH_S = 1.5 * REFRESH_S


class RunLock:
    """A lock on a run folder, as a context manager.

    On disk it is a file `lock` that the kernel holds locked for the process, and releases however
    the process ends. In an object store it is an object `lock` with a time in it that a thread
    renews every 10 s; one that is 60 s old, and is not renewed while it is watched for another 15,
    is taken over, and so is at once one whose process has ended on this machine. A run that was
    stopped for so long, or cut from the store, may then not be alone: it asks `lost` before it
    commits. Where the store writes on condition, as S3 does, no lock is written over that another
    run has written meanwhile.

    Parameters
    ----------
    url : str or path-like
        The run folder: a path, or the address of a prefix in an object store. A folder is made if
        it is not there.

    Raises
    ------
    ValueError
        On entry, if another run holds it; the message names it.
    """

    def __init__(self, url: str | os.PathLike[str]) -> None:
        location = open_location(url, name="run folder")
        self._lock: FileLock | ObjectLock
        if isinstance(location, ObjectFolder):
            self._lock = ObjectLock(location)
        else:
            self._lock = FileLock(location.path / _LOCK)

    @property
    def lost(self) -> bool:
        """Whether another run may be at work in the folder."""
        return self._lock.lost

    def __enter__(self) -> Self:
        self._lock.acquire()
        return self

    def __exit__(self, *exception: object) -> None:
        self._lock.release()


@dataclasses.dataclass(frozen=True, kw_only=True)
class LockHolder:
    """Who holds a lock; the content of its file."""

    host: str
    """Name of the host."""
    pid: int
    """Process on it."""
    id: str
    """Drawn at random by the holder."""
    started: float
    """When it took the lock: seconds since 1970."""
    refreshed: float
    """Last sign of life: seconds since 1970, by the holder's clock."""
    process: str = ""
    """What tells the process from every other that this machine, or another, ever ran; empty: that
    is not known."""

    @property
    def has_ended(self) -> bool:
        """Whether it is a process of this machine that is no more; False where that is not seen."""
        place, _, began = self.process.rpartition("/")
        return bool(place) and place == _name_machine() and began != _find_start(self.pid)

    def to_json(self) -> bytes:
        """Write it as JSON."""
        return (json.dumps(dataclasses.asdict(self)) + "\n").encode("ascii")

    def describe(self) -> str:
        """Name it, for messages."""
        started = datetime.datetime.fromtimestamp(self.started).astimezone()
        return (
            f"process {self.pid} on host {self.host} since "
            f"{started.isoformat(sep=' ', timespec='seconds')}"
        )


def _name_self(clock: Callable[[], float]) -> LockHolder:
    now = clock()
    machine, began = _name_machine(), _find_start(os.getpid())
    return LockHolder(
        host=socket.gethostname(),
        pid=os.getpid(),
        id=uuid.uuid4().hex,
        started=now,
        refreshed=now,
        process=f"{machine}/{began}" if machine and began else "",
    )


def _name_machine() -> str:
    """Name this boot of the machine, and the processes that are seen here; empty: not known."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        # A container sees its own processes alone, and numbers them anew.
        return f"{boot}/{os.stat('/proc/self/ns/pid').st_ino}"
    except OSError:
        return ""


def _find_start(pid: int) -> str:
    """Tell when a process began, in ticks since the boot; empty: there is no such process."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return ""
    # A zombie holds nothing; field 22 of proc(5) is the time of the start.
    return "" if fields[0] in "ZX" else fields[19]


def _parse_holder(text: bytes) -> LockHolder | None:
    try:
        return parse_record(text, LockHolder)
    except ValueError:
        return None


class InUseError(ValueError):
    """Another process has the lock.

    Parameters
    ----------
    message : str
    advice : str
        How long to wait; empty: that is not known.
    """

    def __init__(self, message: str, advice: str = "") -> None:
        super().__init__(f"{message}{advice}")
        self.advice = advice


def _refuse(folder: str, holder: LockHolder | None, advice: str) -> ValueError:
    who = holder.describe() if holder else "another process"
    return InUseError(
        f"run folder must have one run at a time, got {folder!r}, which is in use by {who}. "
        f"Wait for its end, or choose another folder.",
        advice,
    )


class FileLock:
    """A lock file that the kernel releases when its process ends.

    Parameters
    ----------
    path : Path
        Made with its folder if it is not there, and removed at the end.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._descriptor: int | None = None

    @property
    def lost(self) -> bool:
        """Whether the file has been removed by somebody else, so that others can lock a new one."""
        return self._descriptor is not None and not self._is_in_place(self._descriptor)

    def acquire(self) -> None:
        """Take the lock.

        Raises
        ------
        ValueError
            Another process has it, or the file system has no locks.
        CheckpointError
            There is no room for the file.
        """
        with explain_full_disk(str(self.path)):
            self.path.parent.mkdir(parents=True, exist_ok=True)
            while self._descriptor is None:
                self._try_once()
            os.ftruncate(self._descriptor, 0)
            os.pwrite(self._descriptor, _name_self(time.time).to_json(), 0)

    def _try_once(self) -> None:
        descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT, 0o666)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # The holder before may have removed the file after it was opened here.
            if self._is_in_place(descriptor):
                self._descriptor = descriptor
        except BlockingIOError as error:
            holder = _parse_holder(os.pread(descriptor, 4096, 0))
            raise _refuse(str(self.path.parent), holder, "") from error
        except OSError as error:
            if error.errno not in NO_FILE_LOCKS:
                raise
            raise ValueError(
                f"run folder must be on a file system with file locks (flock), got "
                f"{str(self.path.parent)!r}: {error.strerror}. Choose a folder on another one."
            ) from error
        finally:
            if self._descriptor is None:
                os.close(descriptor)

    def release(self) -> None:
        """Remove the file and release the lock."""
        if self._descriptor is None:
            return
        if self._is_in_place(self._descriptor):
            self.path.unlink()
        os.close(self._descriptor)
        self._descriptor = None

    def _is_in_place(self, descriptor: int) -> bool:
        try:
            return os.path.samestat(os.fstat(descriptor), self.path.stat())
        except FileNotFoundError:
            return False


class ObjectLock:
    """A lock in an object store: an object with a time in it, renewed as long as the run lives.

    Parameters
    ----------
    location : ObjectFolder
    clock : callable
        Gives the seconds since 1970.
    sleep : callable
        Waits so many seconds.
    refresh_s : float
        Seconds between renewals.
    """

    def __init__(
        self,
        location: ObjectFolder,
        *,
        clock: Callable[[], float] = time.time,
        sleep: Callable[[float], None] = time.sleep,
        refresh_s: float = REFRESH_S,
    ) -> None:
        self.location = location
        self._clock = clock
        self._sleep = sleep
        self._refresh_s = refresh_s
        self._holder: LockHolder | None = None
        self._tag = ""
        self._taken = False
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    @property
    def lost(self) -> bool:
        """Whether the object is another's, or so old that another may take it any moment."""
        if self._holder is None:
            return False
        return self._taken or self._clock() - self._holder.refreshed > STALE_S

    def acquire(self) -> None:
        """Take the lock, and keep it fresh from a thread.

        Raises
        ------
        ValueError
            Another run has it.
        """
        self._taken = False
        self._stop.clear()
        found = self._read()
        if found is not None:
            found = self._watch(found)
        self._holder = _name_self(self._clock)
        try:
            self._put(is_new=found is None)
            self._sleep(_SETTLE_S)
            self.refresh()
            if self._taken:
                raise self._in_use(self._read())
        except BaseException:
            self.release()
            raise
        self._thread = threading.Thread(target=self._keep_fresh, name="run-lock", daemon=True)
        self._thread.start()

    def _watch(self, found: LockHolder) -> LockHolder | None:
        """Refuse a lock that is fresh, or is renewed now; return what is there of a dead one."""
        if found.has_ended:
            return found
        if self._clock() - found.refreshed <= STALE_S:
            raise self._in_use(found)
        self._sleep(_WATCH_S)
        now = self._read()
        if now is not None and now != found:
            raise self._in_use(now)
        return now

    def _put(self, *, is_new: bool) -> None:
        assert self._holder is not None
        body = self._holder.to_json()
        try:
            if is_new:
                self.location.create(_LOCK, body)
            else:
                self.location.replace(_LOCK, body, self._tag)
        except FileExistsError as error:
            raise self._in_use(self._read()) from error

    def refresh(self) -> None:
        """Renew the time in the object, or note that the object is another's."""
        assert self._holder is not None
        found = self._read()
        if found is None or found.id != self._holder.id:
            self._taken = True
            return
        renewed = dataclasses.replace(self._holder, refreshed=self._clock())
        try:
            self.location.replace(_LOCK, renewed.to_json(), self._tag)
        except FileExistsError:
            self._taken = True
            return
        self._holder = renewed

    def _keep_fresh(self) -> None:
        while not self._taken and not self._stop.wait(self._refresh_s):
            try:
                self.refresh()
            except (OSError, ValueError) as error:
                # Tried again at the next turn; for want of success the lock grows old and is lost.
                logger.warning("%r could not be renewed: %s", self.location.locate(_LOCK), error)

    def release(self) -> None:
        """Stop renewing, and delete the object if it is still this run's."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join()
        holder, self._holder, self._thread = self._holder, None, None
        if holder is None:
            return
        try:
            found = self._read()
            if found is not None and found.id == holder.id:
                self.location.delete(_LOCK)
        except (OSError, ValueError) as error:
            # It dies of old age, and the run's result does not depend on it.
            logger.warning("%r could not be deleted: %s", self.location.locate(_LOCK), error)

    def _read(self) -> LockHolder | None:
        try:
            # Asked before: of a lock that is written in between it is not the tag.
            self._tag = self.location.find_tag(_LOCK)
            text = self.location.read(_LOCK).tobytes()
        except FileNotFoundError:
            return None
        holder = _parse_holder(text)
        if holder is None:
            raise CheckpointError(
                f"{self.location.locate(_LOCK)!r} must be the lock of a run, got {text[:80]!r}. "
                f"Delete it, if no run is at work in the folder."
            )
        return holder

    def _in_use(self, holder: LockHolder | None) -> ValueError:
        if holder is None:
            return _refuse(self.location.url, None, "")
        age = max(0.0, self._clock() - holder.refreshed)
        advice = (
            f" It last gave a sign of life {age:.0f} s ago; if it is dead, start again in "
            f"{max(1.0, STALE_S - age):.0f} s."
        )
        return _refuse(self.location.url, holder, advice)
