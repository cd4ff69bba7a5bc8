"""Read a job file, put --set values over it, and write a job as it was resolved."""

import contextlib
import dataclasses
import datetime
import os
import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import tomli_w

from dtopk.job.checks import JobValueError, unknown_name
from dtopk.job.config import JOB_VERSION, OutputSection, TrainJob
from dtopk.job.names import check_names
from dtopk.job.sweep_config import SweepJob
from dtopk.launch.options import SCHEDULER_FILE_ENDING
from dtopk_storage.addresses import redact
from dtopk_storage.paths import AnyPath, PathLike, as_path

_SECTIONS = {section.name: section.default_factory for section in dataclasses.fields(SweepJob)}
_PATHS = (
    ("data", "store"),
    ("model", "label_cost"),
    ("solver", "warm_start"),
    ("cluster", "scheduler"),
    ("cluster", "tls_ca"),
    ("cluster", "tls_cert"),
    ("cluster", "tls_key"),
    ("submit", "log_directory"),
    ("output", "run_dir"),
    ("output", "state_url"),
)
_MAY_BE_FAR = ("store", "warm_start", "run_dir", "state_url")
"""Keys among them that take addresses too."""
_SECRET = re.compile(r"secret|password|passwd|token|credential|access_key", re.IGNORECASE)
"""In the name of a key that no job has."""


def load_job(path: PathLike, overrides: Sequence[str] = (), *, run_dir: str = "") -> TrainJob:
    """Read a job file.

    Parameters
    ----------
    path : path of a TOML file, or its address in an object store
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
        solver, has a value that its key does not take, or is that of a sweep.
    """
    job = load_any_job(path, overrides, run_dir=run_dir)
    if isinstance(job, SweepJob):
        raise ValueError(
            f"job of one model must have no section [sweep], got one in {str(path)!r}, or by "
            "--set. Run it with `dtopk sweep`, which trains all of its settings."
        )
    return job


def load_sweep(path: PathLike, overrides: Sequence[str] = (), *, run_dir: str = "") -> SweepJob:
    """Read the job file of a sweep, as `load_job` reads that of one model.

    Parameters
    ----------
    path : path of a TOML file, or its address in an object store
    overrides : sequence of 'section.key=value'
        There must be a section [sweep] in the file, or a key of it among these.
    run_dir : str

    Returns
    -------
    SweepJob

    Raises
    ------
    ValueError
        As `load_job`, or if there is no section [sweep].
    """
    job = load_any_job(path, overrides, run_dir=run_dir)
    if not isinstance(job, SweepJob):
        raise ValueError(
            f"job of a sweep must have a section [sweep], got none in {str(path)!r}. Say what to "
            "try, such as C = [0.1, 1, 10] in [sweep], or train one model with `dtopk train`."
        )
    return job


def load_any_job(path: PathLike, overrides: Sequence[str] = (), *, run_dir: str = "") -> TrainJob:
    """Read a job file, whether it is that of one model or of a sweep.

    Parameters
    ----------
    path : path of a TOML file, or its address in an object store
    overrides : sequence of 'section.key=value'
    run_dir : str

    Returns
    -------
    TrainJob
        A SweepJob, where there is a section [sweep].

    Raises
    ------
    ValueError
        As `load_job`, but for a sweep.
    """
    path = as_path(path, name="JOB")
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
        with _naming_place(f"In --set {_hide_secrets(text, key)}."):
            _check_known(changes)
            _make_paths_absolute(changes, Path.cwd())
        tables.setdefault(section, {}).update(changes[section])
        places[f"{section}.{key}"] = f"--set {redact(text)}"
    if run_dir:
        tables["output"]["run_dir"] = run_dir
        _make_paths_absolute({"output": tables["output"]}, Path.cwd())
        places["output.run_dir"] = f"--run-dir {redact(run_dir)}"
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
    """Make a job from its sections, each a dict, as `job_to_dict` gives them.

    With a section 'sweep' it is a SweepJob.
    """
    _check_known(tables)
    sections = {}
    for name, values in tables.items():
        if name != "version":
            section_type: Any = _SECTIONS[name]
            sections[name] = section_type(**values)
    return SweepJob(**sections) if "sweep" in sections else TrainJob(**sections)


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
            if key not in known and _SECRET.search(key):
                raise ValueError(
                    f"job must hold no credentials, got a key {key!r} in [{name}]. Put them into "
                    "the environment, such as AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY."
                )
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


def _read_tables(path: AnyPath) -> dict[str, Any]:
    wanted = "JOB must be a TOML job file, as jobs/README.md describes,"
    if path.is_dir():
        raise ValueError(f"{wanted} got {str(path)!r}, which is a folder.")
    try:
        tables = _parse_toml(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise ValueError(f"job file {str(path)!r} does not exist.") from error
    except UnicodeDecodeError as error:
        raise ValueError(f"{wanted} got {str(path)!r}, which is not text in UTF-8.") from error
    except ValueError as error:
        raise ValueError(f"job file {str(path)!r} must be TOML: {error}.") from error
    _check_version(tables, path)
    for name, values in tables.items():
        if name != "version" and not isinstance(values, dict):
            raise ValueError(
                f"{name!r} must stand in a section such as [model], got it outside of one. "
                f"In {str(path)!r}."
            )
    return tables


def _parse_toml(text: str) -> dict[str, Any]:
    """Parse TOML, with no more than it promises: whole numbers of 64 bits."""
    try:
        tables = tomllib.loads(text)
    except RecursionError as error:
        raise ValueError("its values are nested too deeply") from error
    waiting: list[Any] = [tables]
    while waiting:
        value = waiting.pop()
        if isinstance(value, dict):
            waiting += value.values()
        elif isinstance(value, list):
            waiting += value
        elif isinstance(value, int) and not -(2**63) <= value < 2**63:
            raise ValueError(
                f"a whole number in it has {value.bit_length():,} bits, where 64 are the most"
            )
    return tables


def _check_version(tables: Mapping[str, Any], path: AnyPath) -> None:
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
        raise ValueError(f"--set must be section.key=value, got {redact(text)!r}.")
    return section, key, _parse_value(value.strip())


def _parse_value(text: str) -> Any:
    try:
        values = _parse_toml(f"value = {text}")
    except ValueError:
        return text
    # More than one key: the text held a newline, so that it is no single TOML value. A time, which
    # no key takes, is meant as the text that a batch system reads.
    is_value = len(values) == 1 and not isinstance(values["value"], datetime.time | datetime.date)
    return values["value"] if is_value else text


def _hide_secrets(text: str, key: str) -> str:
    """Leave the value out of an override that looks like credentials."""
    return f"{text.partition('=')[0]}=***" if _SECRET.search(key) else redact(text)


def _make_paths_absolute(tables: Mapping[str, Any], folder: AnyPath) -> None:
    for section, key in _PATHS:
        value = tables.get(section, {}).get(key)
        if not isinstance(value, str) or not value:
            continue
        if "\0" in value:
            name = f"{section}.{key}"
            raise JobValueError(f"{name} must be a path, got {value!r}.", name)
        if not _is_address(key, value):
            tables[section][key] = _join(folder, _expand_user(section, key, value))


def _expand_user(section: str, key: str, value: str) -> Path:
    try:
        return Path(value).expanduser()
    except RuntimeError as error:
        raise JobValueError(
            f"{section}.{key} must begin with the name of a user where it begins with '~', got "
            f"{value!r}. Write './~' for a folder of that name.",
            f"{section}.{key}",
        ) from error


def _join(folder: AnyPath, path: Path) -> str:
    if isinstance(folder, Path) or path.is_absolute():
        return os.path.normpath(Path.cwd() / str(folder) / path)
    scheme, _, place = folder.url.partition("://")
    return f"{scheme}://{os.path.normpath(f'{place}/{path}')}"


def _is_address(key: str, value: str) -> bool:
    """Tell an address, or what may be meant as one, from a path."""
    if key == "scheduler":
        return "://" in value or not value.endswith(SCHEDULER_FILE_ENDING)
    return key in _MAY_BE_FAR and "://" in value
