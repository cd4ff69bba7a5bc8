"""Run a reader on a hostile input, and judge what it did: hang, memory, writes, its error."""

import contextlib
import faulthandler
import os
import resource
import shutil
import signal
import sys
import tempfile
import traceback
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.fuzz.reader import Files, Reader

HANG_S = 10
"""Seconds after which an input counts as one that hangs; the slowest that did not took one."""
MEMORY_BYTES = 3 << 30
"""Memory that reading an input of some kilobytes may take, beside what the process had."""
_LONGEST_MESSAGE = 20_000
_CHANGES = {
    "os.chmod", "os.link", "os.mkdir", "os.remove", "os.rename", "os.rmdir", "os.symlink",
    "os.truncate", "shutil.copyfile", "shutil.move", "shutil.rmtree",
}  # fmt: skip
_FORBIDDEN = {
    "os.exec", "os.fork", "os.posix_spawn", "os.system", "pickle.find_class", "socket.connect",
    "subprocess.Popen",
}  # fmt: skip
_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT


def find_input(folder: Path) -> Path:
    """Return where in the folder of a sandbox its input is; no message has the name by chance."""
    return folder / "fuzzed" / "input-7c1"


class HangError(BaseException):
    """Reading took too long."""


class Sandbox:
    """A folder in which inputs are read, and what is watched meanwhile.

    Only one may be made in a process, and it lowers the memory that the process may have: it is
    for processes of their own.

    Parameters
    ----------
    folder : Path
        Empty; all that a reader may write to.
    """

    def __init__(self, folder: Path) -> None:
        self.input = find_input(folder)
        self._root = str(folder.resolve())
        self._is_watching = False
        self._misdeeds: list[str] = []
        tempfile.tempdir = str(folder)
        # What is made here is thrown away, and waiting for the disk takes most of the time.
        os.fsync = lambda fd: None
        sys.dont_write_bytecode = True
        sys.addaudithook(self._audit)
        signal.signal(signal.SIGALRM, _raise_hang)

    def limit_memory(self) -> None:
        """Allow no more than `MEMORY_BYTES` from here on."""
        with open("/proc/self/statm") as file:
            size = int(file.read().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (size + MEMORY_BYTES, resource.RLIM_INFINITY))

    def put(self, files: Files) -> None:
        """Write the files of an input where readers find them, and nothing else."""
        shutil.rmtree(self.input, ignore_errors=True)
        for name, content in files.items():
            path = self.input / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)

    def judge(self, reader: Reader, files: Files) -> str | None:
        """Read an input; return what was wrong with how that went, or None.

        Right is to read it, or to refuse it with a ValueError or OSError that names the file.
        """
        self.put(files)
        self._misdeeds.clear()
        fault = None
        try:
            with self._watching(), warnings.catch_warnings():
                warnings.simplefilter("error")
                reader.read(self.input)
        except (ValueError, OSError) as error:
            fault = self._find_fault(error)
        except HangError as error:
            fault = f"hangs:\n{_tail(error)}"
        except BaseException as error:
            fault = f"raises {type(error).__name__}:\n{_tail(error)}"
        return fault or (f"does {self._misdeeds[0]}" if self._misdeeds else None)

    def _find_fault(self, error: Exception) -> str | None:
        text = str(error)
        if isinstance(error, UnicodeError) or self.input.name not in text:
            return f"raises a {type(error).__name__} that does not name the file:\n{_tail(error)}"
        if len(text) > _LONGEST_MESSAGE:
            return f"raises a message of {len(text):,} characters:\n{text[:200]}"
        return None

    @contextlib.contextmanager
    def _watching(self) -> Iterator[None]:
        # A call that never returns to Python is not interrupted by a signal.
        faulthandler.dump_traceback_later(3 * HANG_S, exit=True)
        signal.alarm(HANG_S)
        self._is_watching = True
        try:
            yield
        finally:
            self._is_watching = False
            signal.alarm(0)
            faulthandler.cancel_dump_traceback_later()

    def _audit(self, event: str, arguments: tuple[Any, ...]) -> None:
        if not self._is_watching:
            return
        if event in _FORBIDDEN:
            self._misdeeds.append(f"{event} {arguments!r:.200}")
        elif event == "open" and arguments[2] & _WRITING:
            self._check_inside(event, arguments[0])
        elif event in _CHANGES:
            for path in arguments:
                if isinstance(path, str | bytes | os.PathLike):
                    self._check_inside(event, path)

    def _check_inside(self, event: str, path: Any) -> None:
        if isinstance(path, int) or str(path) == os.devnull:
            return
        # Names are relative to a folder's descriptor in shutil.rmtree, which has checked it.
        place = os.path.realpath(os.fsdecode(path))
        if os.path.isabs(os.fsdecode(path)) and not place.startswith(self._root):
            self._misdeeds.append(f"{event} {place!r}")


def _raise_hang(*_: object) -> None:
    raise HangError


def _tail(error: BaseException) -> str:
    return "".join(traceback.format_exception(error, chain=False))[-1500:]
