"""Checks that the sections of a job share: types, ranges, names, sizes in bytes."""

import dataclasses
import difflib
import math
import re
import typing
from collections.abc import Iterable

_BYTES_PER_UNIT = {
    "": 1,
    "B": 1,
    "KB": 10**3,
    "MB": 10**6,
    "GB": 10**9,
    "TB": 10**12,
    "KIB": 2**10,
    "MIB": 2**20,
    "GIB": 2**30,
    "TIB": 2**40,
}
_BYTES_PATTERN = re.compile(r"\s*(\d+(?:\.\d*)?)\s*([A-Za-z]*)\s*")
_TYPE_WORDS = {str: "a string", int: "a whole number", float: "a number", bool: "true or false"}


class JobValueError(ValueError):
    """A job has a value that its key does not take.

    Parameters
    ----------
    message : str
        What is wrong, as a sentence.
    *keys : str
        'section.key' of each value that has to do with it.
    """

    def __init__(self, message: str, *keys: str):
        super().__init__(message)
        self.keys = keys


def nearest_first(name: str, known: Iterable[str]) -> list[str]:
    """Sort the known names, the one that looks most like `name` first."""

    def likeness(candidate: str) -> float:
        return difflib.SequenceMatcher(None, name.lower(), candidate.lower()).ratio()

    return sorted(known, key=lambda candidate: (-likeness(candidate), candidate))


def unknown_name(what: str, name: str, known: Iterable[str]) -> ValueError:
    """Make the error for a name that is not known, the nearest known one first."""
    ordered = nearest_first(name, known)
    listed = ", ".join(repr(candidate) for candidate in ordered)
    return ValueError(f"{what} {name!r} is unknown. Did you mean {ordered[0]!r}? Known: {listed}.")


def coerce_fields(section: object, name: str) -> None:
    """Hold every field of a section to its annotated type; whole numbers may stand for floats.

    Parameters
    ----------
    section : a frozen dataclass instance
        Lists are turned into tuples and integers into floats, in place.
    name : str
        The section's name, which starts the messages.

    Raises
    ------
    ValueError
        If a value has another type.
    """
    hints = typing.get_type_hints(type(section))
    for field in dataclasses.fields(section):  # type: ignore[arg-type]
        value = getattr(section, field.name)
        coerced = _coerce(value, hints[field.name], f"{name}.{field.name}")
        object.__setattr__(section, field.name, coerced)


def _coerce(value: object, wanted: object, name: str) -> object:
    if wanted == tuple[str, ...]:
        if isinstance(value, list | tuple) and all(isinstance(item, str) for item in value):
            return tuple(value)
        raise JobValueError(f"{name} must be a list of strings, got {value!r}.", name)
    if wanted == tuple[float, ...]:
        if isinstance(value, list | tuple) and all(_is_number(item) for item in value):
            return tuple(float(item) for item in value)
        raise JobValueError(f"{name} must be a list of numbers, got {value!r}.", name)
    if wanted == tuple[int, ...]:
        if isinstance(value, list | tuple) and all(type(item) is int for item in value):
            return tuple(value)
        raise JobValueError(f"{name} must be a list of whole numbers, got {value!r}.", name)
    if wanted is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if wanted is float and isinstance(value, float):
        return value
    if type(value) is not wanted:
        words = _TYPE_WORDS[wanted]  # type: ignore[index]
        raise JobValueError(f"{name} must be {words}, got {value!r}.", name)
    return value


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def check_above_zero(name: str, value: float) -> None:
    """Refuse zero, negative numbers, NaN and infinity."""
    if not (math.isfinite(value) and value > 0):
        raise JobValueError(f"{name} must be a finite number above 0, got {value!r}.", name)


def check_not_negative(name: str, value: float) -> None:
    """Refuse negative numbers, NaN and infinity."""
    if not (math.isfinite(value) and value >= 0):
        raise JobValueError(f"{name} must be a finite number, 0 or above, got {value!r}.", name)


def check_at_least(name: str, value: int, minimum: int) -> None:
    """Refuse whole numbers under the minimum."""
    if value < minimum:
        raise JobValueError(f"{name} must be at least {minimum}, got {value!r}.", name)


def check_choice(name: str, value: str, choices: Iterable[str]) -> None:
    """Refuse a string that is not one of the choices; the nearest one is named."""
    choices = tuple(choices)
    if value not in choices:
        ordered = nearest_first(value, choices)
        listed = ", ".join(repr(choice) for choice in choices)
        raise JobValueError(
            f"{name} must be one of {listed}, got {value!r}. Did you mean {ordered[0]!r}?", name
        )


def parse_bytes(name: str, text: str) -> int:
    """Read a size such as '512MB' (10**6 bytes each) or '4GiB' (2**30 bytes each).

    Parameters
    ----------
    name : str
        What the value is called in the message.
    text : str

    Returns
    -------
    int
        The size in bytes.
    """
    match = _BYTES_PATTERN.fullmatch(text)
    if (
        match is None
        or match[2].upper() not in _BYTES_PER_UNIT
        or not 0 < float(match[1]) * _BYTES_PER_UNIT[match[2].upper()] < 2**63
    ):
        raise JobValueError(
            f"{name} must be 'auto' or a size above 0 such as '512MB' or '4GiB', got {text!r}.",
            name,
        )
    return int(float(match[1]) * _BYTES_PER_UNIT[match[2].upper()])
