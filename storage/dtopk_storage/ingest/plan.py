"""What an ingest found out before it reads features, kept so that it can be taken up again."""

import dataclasses
import hashlib
import io
import json
import os
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from dtopk_storage.errors import DatasetError, describe_error
from dtopk_storage.files import walk_files
from dtopk_storage.ingest.options import IngestOptions
from dtopk_storage.ingest.working_folder import PLAN
from dtopk_storage.json_files import parse_record
from dtopk_storage.label_rows import LabelRows
from dtopk_storage.manifest import (
    FORMAT_VERSION,
    LABEL_INDICES,
    LABEL_INDPTR,
    LABELS,
    ROW_ID,
    SAMPLE_WEIGHT,
    Kind,
    Manifest,
    parse_manifest,
)
from dtopk_storage.npy_files import read_header
from dtopk_storage.objects import ObjectPath
from dtopk_storage.paths import AnyPath, write_whole
from dtopk_storage.publishing import Columns


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class Plan:
    """The store to be, but for its features."""

    manifest: Manifest
    """What the store's manifest will be."""
    columns: Columns
    """Labels, weights and order of the rows in the store."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class _SavedPlan:
    """What the file of a plan holds, beside those of the columns."""

    command: dict[str, Any]
    manifest: dict[str, Any]


def fingerprint(source: AnyPath, options: IngestOptions) -> dict[str, Any]:
    """Describe a command, to tell whether another one is the same.

    Parameters
    ----------
    source : Path or ObjectPath
    options : IngestOptions

    Returns
    -------
    dict
        JSON values; under ``files`` is what `describe_files` tells of each file or folder.
    """
    transform = options.transform
    fields = dataclasses.asdict(dataclasses.replace(options, transform=None))
    fields["transform"] = None if transform is None else transform.key
    fields.pop("overwrite")
    paths = [
        source,
        options.labels,
        options.weights,
        options.split_names,
        options.class_names,
    ]
    fields["files"] = {name_file(path): describe_files(path) for path in paths if path is not None}
    fields["format_version"] = FORMAT_VERSION
    return cast(dict[str, Any], json.loads(json.dumps(fields, default=str)))


def name_file(path: AnyPath) -> str:
    """Name a file or a store by its absolute path, or by its address.

    Parameters
    ----------
    path : Path or ObjectPath
    """
    return str(path) if isinstance(path, ObjectPath) else os.path.abspath(path)


def describe_files(path: AnyPath) -> dict[str, Any]:
    """Tell so much of a file, or of all files below a folder, that a change shows.

    A folder's own time of change stays when a file in it is written anew, as a chunk is.

    Parameters
    ----------
    path : Path or ObjectPath

    Returns
    -------
    dict
        ``n_files``; ``n_bytes``, their sizes together; ``newest_ns``, the last time that one of
        them changed, in nanoseconds; ``digest`` of each one's name, size and time, since a file
        may be replaced by an older one. The numbers are 0 when nothing is there. Of objects the
        digest has what their store calls a version of them too.
    """
    if isinstance(path, ObjectPath):
        return _describe_objects(path)
    files = list(walk_files(path)) if path.exists() else []
    found = [file.stat() for file in files]
    digest = hashlib.sha256()
    for file, status in zip(files, found, strict=True):
        name = file.relative_to(path).as_posix()
        digest.update(f"{name}\0{status.st_size}\0{status.st_mtime_ns}\0".encode())
    return {
        "n_files": len(found),
        "n_bytes": sum(status.st_size for status in found),
        "newest_ns": max((status.st_mtime_ns for status in found), default=0),
        "digest": digest.hexdigest(),
    }


def _describe_objects(path: ObjectPath) -> dict[str, Any]:
    found = path.find()
    digest = hashlib.sha256()
    newest = 0.0
    for name, info in found.items():
        changed = info.get("LastModified") or info.get("created") or 0.0
        seconds = changed if isinstance(changed, float) else changed.timestamp()
        newest = max(newest, seconds)
        digest.update(f"{name}\0{info['size']}\0{info.get('ETag')}\0{seconds}\0".encode())
    return {
        "n_files": len(found),
        "n_bytes": sum(int(info["size"]) for info in found.values()),
        "newest_ns": int(newest * 1e9),
        "digest": digest.hexdigest(),
    }


def check_unchanged(source: AnyPath, options: IngestOptions, command: dict[str, Any]) -> None:
    """Refuse to go on when a file was changed while it was read.

    Parameters
    ----------
    source : Path or ObjectPath
    options : IngestOptions
    command : dict
        What `fingerprint` returned before anything was read.

    Raises
    ------
    DatasetError
    """
    changed = _changed_file(command["files"], fingerprint(source, options)["files"])
    if changed is not None:
        raise DatasetError(
            f"{changed!r} must stay as it is while it is read, but it was changed. Ingest it again."
        )


def _changed_file(before: dict[str, Any], now: dict[str, Any]) -> str | None:
    return next((path for path in now if before.get(path) != now[path]), None)


def save_plan(work: AnyPath, command: dict[str, Any], plan: Plan) -> None:
    """Write a plan; its JSON comes last, so it is whole or absent.

    Parameters
    ----------
    work : Path or ObjectPath
        Working folder of the ingest.
    command : dict
        As `fingerprint` returns it.
    plan : Plan
    """
    for name, values in _arrays_of(plan.columns).items():
        if values is not None:
            buffer = io.BytesIO()
            np.save(buffer, values, allow_pickle=False)
            write_whole(work / f"{name}.npy", [buffer.getvalue()], durable=True)
    text = json.dumps({"command": command, "manifest": plan.manifest.to_attributes()})
    write_whole(work / PLAN, [text.encode()], durable=True)


def load_plan(work: AnyPath, command: dict[str, Any]) -> Plan | None:
    """Read the plan of an ingest that was broken off, or None when there is none.

    Parameters
    ----------
    work : Path or ObjectPath
    command : dict

    Raises
    ------
    DatasetError
        It was another command's, a file has changed since, or the plan is damaged.
    """
    place = work / PLAN
    try:
        saved = parse_record(place.read_bytes(), _SavedPlan)
        if not isinstance(saved.command.get("files"), dict):
            raise ValueError("it must tell of 'files'")
    except FileNotFoundError:
        return None
    except ValueError as error:
        raise DatasetError(
            f"{str(place)!r} must be as dtopk wrote it, but it is not: {describe_error(error)}. "
            f"Delete {str(work)!r} to start anew."
        ) from error
    _check_same_command(work, saved.command, command)
    manifest = parse_manifest(saved.manifest, repr(str(work)))
    return Plan(manifest=manifest, columns=_load_columns(work, manifest.kind))


def _arrays_of(columns: Columns) -> dict[str, NDArray[Any] | None]:
    """Name the arrays that columns are made of."""
    labels = columns.labels
    of_labels: dict[str, NDArray[Any] | None] = (
        {LABEL_INDPTR: labels.indptr, LABEL_INDICES: labels.indices}
        if isinstance(labels, LabelRows)
        else {LABELS: labels}
    )
    return {**of_labels, SAMPLE_WEIGHT: columns.sample_weight, ROW_ID: columns.row_id}


def _load_columns(work: AnyPath, kind: Kind) -> Columns:
    def load(name: str) -> Any:
        path = work / f"{name}.npy"
        body = path.read_bytes()
        read_header(io.BytesIO(body), len(body), repr(str(path)))
        return np.load(io.BytesIO(body), allow_pickle=False)

    def find(name: str) -> Any:
        return load(name) if (work / f"{name}.npy").is_file() else None

    labels = (
        LabelRows(load(LABEL_INDPTR), load(LABEL_INDICES)) if kind == "multilabel" else load(LABELS)
    )
    return Columns(labels=labels, sample_weight=find(SAMPLE_WEIGHT), row_id=find(ROW_ID))


def _check_same_command(work: AnyPath, begun: dict[str, Any], command: dict[str, Any]) -> None:
    for key, value in command.items():
        if key != "files" and begun.get(key) != value:
            raise DatasetError(
                f"{str(work)!r} was begun by another command: {key} was {begun.get(key)!r}, got "
                f"{value!r}. Run that command again to go on, or delete the folder to start anew."
            )
    changed = _changed_file(begun["files"], command["files"])
    if changed in begun["files"]:
        raise DatasetError(
            f"{changed!r} must be as it was when {str(work)!r} was begun, but it has changed. "
            f"Delete that folder to start anew."
        )
    if changed is not None:
        raise DatasetError(
            f"{str(work)!r} was begun by another command: its files were {list(begun['files'])}, "
            f"got {changed!r}. Run that command again to go on, or delete the folder to start anew."
        )
