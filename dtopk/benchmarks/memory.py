"""The memory of this process and of those that it has started."""

import contextlib
from pathlib import Path

import psutil

_RESET_PEAK = "5"
"""Written to /proc/PID/clear_refs it makes the peak what is held now; see proc(5)."""


def reset_peaks() -> None:
    """Let the peaks of this process and its children begin at what they hold now, on Linux."""
    for process in _family():
        with contextlib.suppress(OSError):
            Path(f"/proc/{process.pid}/clear_refs").write_text(_RESET_PEAK)


def peak_bytes() -> int:
    """Return the peaks (VmHWM) of this process and its children together, in bytes.

    What they share counts in each of them. 0 where there is no /proc.
    """
    return sum(_peak(process.pid) for process in _family())


def _family() -> list[psutil.Process]:
    this = psutil.Process()
    return [this, *this.children(recursive=True)]


def _peak(pid: int) -> int:
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return 0
    return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM:"))
