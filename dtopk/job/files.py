"""Read a job file, put --set values over it, and write a job as it was resolved."""

import contextlib
import dataclasses
import os
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import tomli_w

from dtopk.job.checks import JobValueError, unknown_name
from dtopk.job.config import JOB_VERSION, OutputSection, TrainJob
from dtopk.job.names import check_names
from dtopk.launch.options import SCHEDULER_FILE_ENDING

_SECTIONS = {section.name: section.default_factory for section in dataclasses.fields(TrainJob)}
_PATHS = (
    ("data", "store"),
    ("model", "label_cost"),
    ("solver", "warm_start"),
    ("cluster", "scheduler"),
    ("cluster", "tls_ca"),
    ("cluster", "tls_cert"),
    ("cluster", "tls_key"),
    ("output", "run_dir"),
    ("output", "state_url"),
)


def load_job(
    path: str | os.PathLike[str], overrides: Sequence[str] = (), *, run_dir: str = ""
) -> TrainJob:
    """Read a job file.

    Parameters
    ----------
    path : path of a TOML file
        Relative paths inside it start at its folder.
    overrides : sequence of 'section.key=value'
        Values that replace the file's, read as TOML; what is not TOML is taken as a string.
        Relative paths among them start at the working directory.
    run_dir : str
        Replaces `output.run_dir`, if given, as an override does.

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
    in_file = f"In {str(path)!r}."
    tables = _read_tables(path)
    with _naming_place(in_file):
        _check_known(tables)
    tables.setdefault("output", {}).setdefault("run_dir", OutputSection.run_dir)
    _make_paths_absolute(tables, path.parent)
    places = {}
    for text in overrides:
        section, key, value = _parse_override(text)
        changes = {section: {key: value}}
        with _naming_place(f"In --set {text}."):
            _check_known(changes)
        _make_paths_absolute(changes, Path.cwd())
        tables.setdefault(section, {}).update(changes[section])
        places[f"{section}.{key}"] = f"--set {text}"
    if run_dir:
        tables["output"]["run_dir"] = run_dir
        _make_paths_absolute({"output": tables["output"]}, Path.cwd())
        places["output.run_dir"] = f"--run-dir {run_dir}"
    try:
        job = job_from_dict(tables)
        check_names(job)
    except JobValueError as error:
        guilty = list(dict.fromkeys(places[key] for key in error.keys if key in places))
        where = f"In {', '.join(guilty)}." if guilty else in_file
        raise ValueError(f"{error} {where}") from error
    if not job.data.store:
        raise ValueError(f"data.store must be the path of a feature store, got none. {in_file}")
    return job


@contextlib.contextmanager
def _naming_place(where: str) -> Iterator[None]:
    try:
        yield
    except ValueError as error:
        raise ValueError(f"{error} {where}") from error


def job_from_dict(tables: Mapping[str, Any]) -> TrainJob:
    """Make a job from its sections, each a dict, as `job_to_dict` gives them."""
    _check_known(tables)
    sections = {}
    for name, values in tables.items():
        if name != "version":
            section_type: Any = _SECTIONS[name]
            sections[name] = section_type(**values)
    return TrainJob(**sections)


def _check_known(tables: Mapping[str, Any]) -> None:
    """Refuse sections and keys that no job has."""
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


def job_to_dict(job: TrainJob) -> dict[str, Any]:
    """Make a dict of plain values from a job: its version, then a dict a section."""
    tables: dict[str, Any] = {"version": JOB_VERSION}
    for name, values in dataclasses.asdict(job).items():
        tables[name] = {
            key: list(value) if isinstance(value, tuple) else value for key, value in values.items()
        }
    return tables


def flatten_job(job: TrainJob) -> dict[str, Any]:
    """List a job's values by 'section.key'."""
    return {
        f"{section}.{key}": value
        for section, values in job_to_dict(job).items()
        if isinstance(values, dict)
        for key, value in values.items()
    }


def job_to_toml(job: TrainJob) -> str:
    """Write a job as the text of a job file, every value given."""
    return tomli_w.dumps(job_to_dict(job))


def _read_tables(path: Path) -> dict[str, Any]:
    wanted = "JOB must be a TOML job file, as jobs/README.md describes,"
    if path.is_dir():
        raise ValueError(f"{wanted} got {str(path)!r}, which is a folder.")
    try:
        tables = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise ValueError(f"job file {str(path)!r} does not exist.") from error
    except UnicodeDecodeError as error:
        raise ValueError(f"{wanted} got {str(path)!r}, which is not text in UTF-8.") from error
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


def _parse_override(text: str) -> tuple[str, str, Any]:
    name, equals, value = text.partition("=")
    section, dot, key = name.strip().partition(".")
    if not (equals and dot and section and key):
        raise ValueError(f"--set must be section.key=value, got {text!r}.")
    return section, key, _parse_value(value.strip())


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
        if isinstance(value, str) and value and not _is_address(key, value):
            tables[section][key] = os.path.normpath(folder.absolute() / Path(value).expanduser())


def _is_address(key: str, value: str) -> bool:
    """Tell an address, or what may be meant as one, from a path."""
    if key == "scheduler":
        return "://" in value or not value.endswith(SCHEDULER_FILE_ENDING)
    return key in ("run_dir", "state_url") and "://" in value
