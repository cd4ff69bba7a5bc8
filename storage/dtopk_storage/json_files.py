"""JSON objects in files, of which nothing is believed before it is checked."""

import dataclasses
import json
import typing
from typing import Any, TypeVar

T = TypeVar("T")

_WORDS = {
    str: "a string", int: "a whole number", float: "a number", bool: "true or false",
    dict: "an object", tuple: "a list", list: "a list", type(None): "null",
}  # fmt: skip


def parse_object(text: str | bytes) -> dict[str, Any]:
    """Parse the text of one JSON object.

    Parameters
    ----------
    text : str or bytes

    Raises
    ------
    ValueError
        It is none, or no JSON.
    """
    try:
        fields = json.loads(text)
    except RecursionError as error:
        raise ValueError("its values are nested too deeply") from error
    if not isinstance(fields, dict):
        raise ValueError(f"it must be one JSON object, got {_WORDS[type(fields)]}")
    return fields


def parse_record(text: str | bytes, kind: type[T], *, more: bool = False) -> T:
    """Parse a JSON object as a dataclass.

    Parameters
    ----------
    text : str or bytes
    kind : type
        A dataclass whose fields are strings, numbers, bools, dicts and tuples of these, or
        dataclasses like it.
    more : bool
        Whether there may be keys that it does not have; they are left out.

    Returns
    -------
    An instance; lists are tuples, and whole numbers floats where those are wanted.

    Raises
    ------
    ValueError
        It is no JSON object, lacks a field, or has one of another type.
    """
    return _make(parse_object(text), kind, more)


def _make(fields: dict[str, Any], kind: type[T], more: bool) -> T:
    hints = typing.get_type_hints(kind)
    known = {field.name: field for field in dataclasses.fields(kind)}  # type: ignore[arg-type]
    for name in fields:
        if name not in known and not more:
            raise ValueError(f"key {name[:100]!r} is unknown")
    for name, field in known.items():
        required = field.default is field.default_factory is dataclasses.MISSING
        if required and name not in fields:
            raise ValueError(f"key {name!r} is missing")
    return kind(**{key: _take(fields[key], hints[key], key) for key in known if key in fields})


def _take(value: Any, hint: Any, name: str) -> Any:
    """Check a value against an annotation."""
    origin, arguments = typing.get_origin(hint) or hint, typing.get_args(hint)
    if hint is Any:
        return value
    if origin is float and type(value) is int and abs(value) < 2**63:
        return float(value)
    if origin is tuple and isinstance(value, list):
        return tuple(_take(each, arguments[0], name) for each in value)
    if dataclasses.is_dataclass(origin) and isinstance(value, dict):
        return _make(value, typing.cast(type[Any], origin), more=False)
    if type(value) is not origin or (origin is int and abs(value) >= 2**63):
        raise ValueError(f"{name!r} must be {_WORDS.get(origin, 'an object')}, got {_show(value)}")
    if origin is dict:
        return {key: _take(each, arguments[1], name) for key, each in value.items()}
    return value


def _show(value: Any) -> str:
    """Show a value that may be of any length."""
    if isinstance(value, int) and not isinstance(value, bool) and value.bit_length() > 128:
        return f"a number of {value.bit_length():,} bits"
    text = json.dumps(value)
    return text if len(text) <= 100 else f"{text[:100]}..."
