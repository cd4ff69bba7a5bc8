"""Logs of pods, kept here line by line as they come.

A cluster keeps the end of a log, for as long as its pod is there: what was fetched is added to, and
never replaced.
"""

import contextlib
import datetime
import fcntl
import hashlib
import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dtopk.atomic import write_text

_STAMP = re.compile(r"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)(?:\.\d+)?(Z|[+-]\d\d:\d\d) ")
_OVERLAP_S = 1
"""Seconds that are asked for once more: lines of two streams may lie out of their order."""


@dataclass(frozen=True, kw_only=True)
class PodLogs:
    """The logs in a folder, which several processes may add to."""

    folder: Path
    """The folder, which is there."""

    def since(self, pod: str) -> tuple[str, ...]:
        """Write the arguments of `kubectl logs` by which what is new comes, and little else."""
        seen = self._read().get(pod, {})
        since = int(seen.get("since", 0))
        if not since:
            return ("--timestamps",)
        moment = datetime.datetime.fromtimestamp(since, datetime.UTC)
        return ("--timestamps", f"--since-time={moment:%Y-%m-%dT%H:%M:%SZ}")

    def add(self, pod: str, name: str, text: str, *, is_over: bool = False) -> None:
        """Add to a log the lines that it has not yet.

        Parameters
        ----------
        pod : str
        name : str
            Of the file.
        text : str
            What `kubectl logs` said, by the arguments of `since`.
        is_over : bool
            Whether the last line may be without an end, since nothing comes after it.
        """
        with self._locked():
            seen = self._read()
            lines, found = pick_new_lines(text, seen.get(pod, {}), is_over=is_over)
            if not lines:
                return
            with (self.folder / name).open("ab") as file:
                file.write("".join(f"{line}\n" for line in lines).encode("utf-8", "replace"))
            write_text(self._seen, json.dumps(seen | {pod: found}))

    @property
    def _seen(self) -> Path:
        return self.folder / "fetched.json"

    def _read(self) -> dict[str, Any]:
        try:
            seen = json.loads(self._seen.read_text(encoding="utf-8"))
        except (FileNotFoundError, ValueError):
            return {}
        return seen if isinstance(seen, dict) else {}

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        """Keep other processes from adding the same lines; a file system without locks does not."""
        with (self.folder / "fetched.lock").open("ab") as file:
            with contextlib.suppress(OSError):
                fcntl.flock(file, fcntl.LOCK_EX)
            yield


def pick_new_lines(
    text: str, seen: Mapping[str, Any], *, is_over: bool = False
) -> tuple[Sequence[str], dict[str, Any]]:
    """Tell the lines of a log that were not seen before.

    Parameters
    ----------
    text : str
        Lines that each begin with the time when they were written; one that does not belongs to
        the one before it.
    seen : mapping
        What this has returned for the text before; empty: there was none.
    is_over : bool
        Whether the last line counts where it has no end.

    Returns
    -------
    lines : sequence of str
        Those that are new, without their times.
    seen : dict
        'since', seconds since 1970, up to which all lines were seen, and 'lines', of those from
        then on how often each was.
    """
    since, known = int(seen.get("since", 0)), Counter[str](seen.get("lines", {}))
    came: Counter[str] = Counter()
    new, second, last = [], 0, since
    *lines, unfinished = text.split("\n")
    for line in [*lines, unfinished] if is_over and unfinished else lines:
        match = _STAMP.match(line)
        if match:
            moment = datetime.datetime.fromisoformat(match[1] + match[2])
            second = int(moment.timestamp())
        if second < since:
            continue
        key = f"{second} {hashlib.sha256(line.encode('utf-8', 'replace')).hexdigest()[:16]}"
        came[key] += 1
        if came[key] > known[key]:
            new.append(line[match.end() :] if match else line)
            last = max(last, second - _OVERLAP_S)
    kept = {key: count for key, count in (known | came).items() if int(key.split()[0]) >= last}
    return new, {"since": last, "lines": kept}
