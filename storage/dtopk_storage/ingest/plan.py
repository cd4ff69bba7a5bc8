"""What an ingest found out before it reads features, kept so that it can be taken up again."""

import dataclasses
import io
import json
import os
from pathlib import Path
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from dtopk_storage.errors import DatasetError
from dtopk_storage.files import write_atomic
from dtopk_storage.ingest.options import IngestOptions
from dtopk_storage.manifest import FORMAT_VERSION, Manifest, parse_manifest
from dtopk_storage.publishing import Columns

_PLAN = "plan.json"
_ARRAYS = ("labels", "sample_weight", "row_id")


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class Plan:
    """The store to be, but for its features."""

    manifest: Manifest
    """What the store's manifest will be."""
    columns: Columns
    """Labels, weights and order of the rows in the store."""


def fingerprint(source: Path, options: IngestOptions) -> dict[str, Any]:
    """Describe a command, to tell whether another one is the same.

    Parameters
    ----------
    source : Path
    options : IngestOptions

    Returns
    -------
    dict
        JSON values; the size and time of change of each file are among them.
    """
    fields = dataclasses.asdict(options)
    fields.pop("overwrite")
    files = [source, options.labels, options.weights, options.split_names]
    fields["files"] = [_describe_file(path) for path in files if path is not None]
    fields["format_version"] = FORMAT_VERSION
    return cast(dict[str, Any], json.loads(json.dumps(fields, default=str)))


def _describe_file(path: Path) -> list[object]:
    status = path.stat()
    return [os.path.abspath(path), status.st_size, status.st_mtime_ns]


def save_plan(work: Path, command: dict[str, Any], plan: Plan) -> None:
    """Write a plan; its JSON comes last, so it is whole or absent.

    Parameters
    ----------
    work : Path
        Working folder of the ingest.
    command : dict
        As `fingerprint` returns it.
    plan : Plan
    """
    for name in _ARRAYS:
        values = getattr(plan.columns, name)
        if values is not None:
            buffer = io.BytesIO()
            np.save(buffer, values, allow_pickle=False)
            write_atomic(work / f"{name}.npy", [buffer.getvalue()], durable=True)
    text = json.dumps({"command": command, "manifest": plan.manifest.to_attributes()})
    write_atomic(work / _PLAN, [text.encode()], durable=True)


def load_plan(work: Path, command: dict[str, Any]) -> Plan | None:
    """Read the plan of an ingest that was broken off, or None when there is none.

    Parameters
    ----------
    work : Path
    command : dict

    Raises
    ------
    DatasetError
        It was another command's.
    """
    if not (work / _PLAN).exists():
        return None
    saved = json.loads((work / _PLAN).read_text())
    for key, value in command.items():
        if saved["command"].get(key) != value:
            raise DatasetError(
                f"{str(work)!r} was begun by another command: {key} was "
                f"{saved['command'].get(key)!r}, got {value!r}. Run that command again to go on, "
                f"or delete the folder to start anew."
            )
    arrays = {name: _load(work / f"{name}.npy") for name in _ARRAYS}
    return Plan(
        manifest=parse_manifest(saved["manifest"], repr(str(work))),
        columns=Columns(**cast(dict[str, Any], arrays)),
    )


def _load(path: Path) -> NDArray[Any] | None:
    return np.load(path, allow_pickle=False) if path.exists() else None
