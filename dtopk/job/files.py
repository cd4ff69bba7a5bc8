"""Read a job file, put --set values over it, and write a job as it was resolved."""

import dataclasses
import os
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import tomli_w

from dtopk.job.checks import unknown_name
from dtopk.job.config import JOB_VERSION, OutputSection, TrainJob
from dtopk.job.names import check_names

_SECTIONS = {section.name: section.default_factory for section in dataclasses.fields(TrainJob)}
_PATHS = (("data", "store"), ("solver", "warm_start"), ("output", "run_dir"))


def load_job(path: str | os.PathLike[str], overrides: Sequence[str] = ()) -> TrainJob:
    """Read a job file.

    Parameters
    ----------
    path : path of a TOML file
        Relative paths inside it start at its folder.
    overrides : sequence of 'section.key=value'
        Values that replace the file's, read as TOML; what is not TOML is taken as a string.
        Relative paths among them start at the working directory.

    Returns
    -------
    TrainJob
        With absolute paths.

    Raises
    ------
    ValueError
        If the file is not TOML, is of a newer version, names an unknown section, key, loss or
        solver, or has a value that its key does not take.
    """
    path = Path(path)
    where = f"In {str(path)!r}"
    tables = _read_tables(path)
    tables.setdefault("output", {}).setdefault("run_dir", OutputSection.run_dir)
    _make_paths_absolute(tables, path.parent)
    if overrides:
        changes = _parse_overrides(overrides)
        _make_paths_absolute(changes, Path.cwd())
        for section, values in changes.items():
            tables.setdefault(section, {}).update(values)
        where += "".join(f", --set {text}" for text in overrides)
    try:
        job = job_from_dict(tables)
        check_names(job)
        if not job.data.store:
            raise ValueError("data.store must be the path of a feature store, got none.")
    except ValueError as error:
        raise ValueError(f"{error} {where}.") from error
    return job


def job_from_dict(tables: Mapping[str, Any]) -> TrainJob:
    """Make a job from its sections, each a dict, as `job_to_dict` gives them."""
    sections = {}
    for name, values in tables.items():
        if name == "version":
            continue
        if name not in _SECTIONS:
            raise unknown_name("section", name, _SECTIONS)
        section_type: Any = _SECTIONS[name]
        known = [field.name for field in dataclasses.fields(section_type)]
        for key in values:
            if key not in known:
                raise unknown_name(f"key in [{name}]", key, known)
        sections[name] = section_type(**values)
    return TrainJob(**sections)


def job_to_dict(job: TrainJob) -> dict[str, Any]:
    """Make a dict of plain values from a job: its version, then a dict a section."""
    tables: dict[str, Any] = {"version": JOB_VERSION}
    for name, values in dataclasses.asdict(job).items():
        tables[name] = {
            key: list(value) if isinstance(value, tuple) else value for key, value in values.items()
        }
    return tables


def job_to_toml(job: TrainJob) -> str:
    """Write a job as the text of a job file, every value given."""
    return tomli_w.dumps(job_to_dict(job))


def _read_tables(path: Path) -> dict[str, Any]:
    try:
        tables = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise ValueError(f"job file {str(path)!r} does not exist.") from error
    except UnicodeDecodeError as error:
        raise ValueError(f"job file {str(path)!r} must be UTF-8 text: {error}.") from error
    except tomllib.TOMLDecodeError as error:
        raise ValueError(f"job file {str(path)!r} must be TOML: {error}.") from error
    _check_version(tables, path)
    for name, values in tables.items():
        if name != "version" and not isinstance(values, dict):
            raise ValueError(
                f"{name!r} must stand in a section such as [model], got it outside of one. "
                f"In {str(path)!r}."
            )
    return tables


def _check_version(tables: Mapping[str, Any], path: Path) -> None:
    version = tables.get("version")
    where = f"In {str(path)!r}."
    if type(version) is not int or version < 1:
        raise ValueError(
            f"version must be a whole number, 1 to {JOB_VERSION}, got {version!r}. {where} "
            f"Put 'version = {JOB_VERSION}' on the first line."
        )
    if version > JOB_VERSION:
        raise ValueError(
            f"version must be at most {JOB_VERSION}, got {version}. {where} "
            "A newer dtopk wrote the job: upgrade this one."
        )


def _parse_overrides(overrides: Sequence[str]) -> dict[str, dict[str, Any]]:
    changes: dict[str, dict[str, Any]] = {}
    for text in overrides:
        name, equals, value = text.partition("=")
        section, dot, key = name.strip().partition(".")
        if not (equals and dot and section and key):
            raise ValueError(f"--set must be section.key=value, got {text!r}.")
        changes.setdefault(section, {})[key] = _parse_value(value.strip())
    return changes


def _parse_value(text: str) -> Any:
    try:
        values = tomllib.loads(f"value = {text}")
    except tomllib.TOMLDecodeError:
        return text
    # More than one key: the text held a newline, so that it is no single TOML value.
    return values["value"] if len(values) == 1 else text


def _make_paths_absolute(tables: Mapping[str, Any], folder: Path) -> None:
    for section, key in _PATHS:
        value = tables.get(section, {}).get(key)
        if isinstance(value, str) and value:
            tables[section][key] = os.path.normpath(folder.absolute() / Path(value).expanduser())
