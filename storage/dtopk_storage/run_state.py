"""The state of a run: arrays by name, and one small file that says which of them count.

A version's arrays are written first, by any process; then ``state.json`` is replaced, which
switches from the version before in one step; then other versions are deleted. Killed at any
instant, a run finds the state of its last commit.
"""

import dataclasses
import json
import logging
import os
import re
from collections.abc import Mapping
from typing import Any

import google_crc32c
import numpy as np
from numpy.typing import NDArray

from dtopk_storage.array_files import REMEDY, decode_array, encode_array
from dtopk_storage.errors import CheckpointError
from dtopk_storage.files import Bytes
from dtopk_storage.json_files import parse_object
from dtopk_storage.locations import Location, open_location

logger = logging.getLogger(__name__)

_FORMAT = 1
_STATE = "state.json"
_VERSIONS = "versions"
_SUFFIX = ".array"
_OWN_KEYS = ("format", "version", "checksum")
_PART = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")


@dataclasses.dataclass(frozen=True)
class RunState:
    """The state of a run; made by `open_run_state`.

    It holds no open file: it can be pickled, and used from any process of any host that sees the
    same place. Arrays have many writers. One process, which holds the run's `RunLock`, commits,
    clears and deletes leftovers; until it has done so no array is written. A version that is
    committed is not written again, so a run that goes on takes names that no run before it took:
    the number of the round does not do, since a worker of a run that was killed may still write.
    """

    url: str
    """An absolute path, or the address of a prefix in an object store."""

    def write_array(
        self, version: str, name: str, values: NDArray[Any], *, durable: bool = False
    ) -> int:
        """Write an array whole, or leave what was there under its name.

        Parameters
        ----------
        version : str
            Letters, digits and ``_.-``, a letter, digit or ``_`` first.
        name : str
            The same, in one or more parts with ``/`` between: ``W/3``, ``dual/000017``.
        values : ndarray of any shape, float32, float64 or int64
        durable : bool
            Wait until the disk has it, so that a power cut spares it too.

        Returns
        -------
        int
            Bytes written.

        Raises
        ------
        CheckpointError
            There is no room: its cause is the OSError.
        """
        pieces = encode_array(values)
        self._location.write(_array_path(version, name), pieces, durable=durable)
        return sum(len(piece) for piece in pieces)

    def read_array(self, version: str, name: str) -> NDArray[Any]:
        """Read an array and check it against its checksum.

        Parameters
        ----------
        version, name : str

        Returns
        -------
        ndarray of the shape and dtype that were written, C-contiguous, writable

        Raises
        ------
        CheckpointError
            It is missing, or not as it was written.
        """
        path = _array_path(version, name)
        where = self._location.locate(path)
        try:
            raw = self._location.read(path)
        except FileNotFoundError as error:
            raise CheckpointError(f"{where!r} is missing. {REMEDY}") from error
        return decode_array(raw, where)

    def commit(self, version: str, manifest: Mapping[str, Any]) -> None:
        """Make a version the state of the run, in one step, and delete all others.

        Parameters
        ----------
        version : str
            Its arrays have been written.
        manifest : mapping of str to JSON values
            What `load` gives. numpy's numbers are written as numbers. Not finite ones are
            written as Python's json does: NaN, Infinity.

        Raises
        ------
        CheckpointError
            There is no room: its cause is the OSError. The state is that of the last commit.
        """
        taken = sorted(set(manifest) & set(_OWN_KEYS))
        if taken:
            raise ValueError(f"manifest must have no key of {_OWN_KEYS}, got {taken[0]!r}.")
        _check_name("version", version, 1)
        fields = _as_json({"format": _FORMAT, "version": version, **manifest})
        text = json.dumps({**fields, "checksum": _checksum(fields)}, indent=1) + "\n"
        self._location.write(_STATE, [text.encode("ascii")], durable=True)
        self._delete_versions_but(version)

    def load(self) -> dict[str, Any] | None:
        """Read what the last commit wrote.

        Returns
        -------
        dict or None
            ``format``, ``version`` and the keys of the manifest; None if nothing is committed.

        Raises
        ------
        CheckpointError
            ``state.json`` is not as it was written, or of a newer format.
        """
        where = self._location.locate(_STATE)
        try:
            raw = self._location.read(_STATE)
        except FileNotFoundError:
            return None
        fields = _parse_state(raw, where)
        if fields.get("format") != _FORMAT:
            raise CheckpointError(
                f"{where!r} must be of format {_FORMAT}, got {fields.get('format')!r}. "
                f"A newer version of dtopk wrote it: go on with that one."
            )
        version = fields.get("version")
        if not isinstance(version, str) or not _PART.fullmatch(version):
            raise CheckpointError(
                f"version in {where!r} must be the name of a folder, got {version!r}. {REMEDY}"
            )
        return fields

    def delete_leftovers(self) -> None:
        """Delete what a killed run wrote and did not commit."""
        state = self.load()
        self._delete_versions_but(None if state is None else state["version"])

    def clear(self) -> None:
        """Delete the state, and its folder if nothing else is in it."""
        self._location.delete(_STATE)
        self._delete_versions_but(None)
        self._delete_folder(_VERSIONS)
        self._location.delete_if_empty()

    @property
    def _location(self) -> Location:
        return open_location(self.url, name="state of a run")

    def _delete_versions_but(self, kept: str | None) -> None:
        location = self._location
        for name in location.list_names():
            if name.startswith(f".{_STATE}."):
                location.delete(name)
        for version in location.list_names(_VERSIONS):
            if version != kept:
                self._delete_folder(f"{_VERSIONS}/{version}")

    def _delete_folder(self, folder: str) -> None:
        try:
            self._location.delete_folder(folder)
        except OSError as error:
            # The state is whole without it; a worker given up for lost may be writing there.
            logger.warning(
                "%r could not be deleted and is left for the next commit: %s",
                self._location.locate(folder),
                error,
            )


def open_run_state(url: str | os.PathLike[str]) -> RunState:
    """Open the state of a run, or the place for one; nothing is written.

    Parameters
    ----------
    url : str or path-like
        A folder, or an address such as ``s3://bucket/runs/7/state``. Credentials and endpoints
        are what the store's package finds in the environment and in fsspec's configuration, on
        every host.

    Raises
    ------
    ValueError
        It is no path, and no address of an object store.
    """
    return RunState(open_location(url, name="state of a run").url)


def _array_path(version: str, name: str) -> str:
    _check_name("version", version, 1)
    _check_name("name", name, None)
    return f"{_VERSIONS}/{version}/{name}{_SUFFIX}"


def _check_name(what: str, value: str, parts: int | None) -> None:
    found = value.split("/")
    if not all(map(_PART.fullmatch, found)) or len(found) != (parts or len(found)):
        rule = "one part" if parts == 1 else "parts with '/' between"
        raise ValueError(
            f"{what} must be {rule} of letters, digits and '_.-' that begin with a letter, a digit "
            f"or '_', got {value!r}."
        )


def _parse_state(raw: Bytes, where: str) -> dict[str, Any]:
    try:
        fields = parse_object(raw.tobytes())
        stored = fields.pop("checksum")
        computed = _checksum(fields)
    except (ValueError, KeyError, RecursionError) as error:
        raise CheckpointError(
            f"{where!r} must be JSON with a checksum, got something else. {REMEDY}"
        ) from error
    if stored != computed:
        raise CheckpointError(
            f"checksum of {where!r} must be {stored!r} as stored in it, got {computed!r}: it has "
            f"been changed. {REMEDY}"
        )
    return fields


def _as_json(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Give the fields as they will be read: tuples as lists, all keys as text."""
    return dict(json.loads(json.dumps(fields, default=_as_number)))


def _checksum(fields: Mapping[str, Any]) -> str:
    text = json.dumps(fields, sort_keys=True, separators=(",", ":"))
    return f"crc32c:{google_crc32c.value(text.encode('ascii')):08x}"


def _as_number(value: object) -> object:
    if isinstance(value, np.generic):
        return value.item()
    raise TypeError(f"manifest must hold JSON values, got {type(value).__name__}: {value!r}.")
