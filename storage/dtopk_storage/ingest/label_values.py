"""Labels of any type, checked and made integers of 64 bits or strings."""

import dataclasses
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dtopk_storage.errors import DatasetError

Values = NDArray[np.int64] | NDArray[np.str_]

_SMALLEST, _LARGEST = -(2**63), 2**63 - 1


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class Whereabouts:
    """Where a block of values is from, for messages."""

    place: str
    """What to call their file."""
    what: str = "labels"
    """What to call the values."""
    start: int = 0
    """Row that the block starts with."""
    ends: NDArray[np.int64] | None = None
    """After which value each row ends, of shape (rows,); None where each has one."""

    def describe(self, position: int) -> str:
        """Name the row of a value, by its position in the block.

        Parameters
        ----------
        position : int
        """
        ends = self.ends
        row = position if ends is None else int(np.searchsorted(ends, position, side="right"))
        return f"in row {self.start + row} of {self.place}"


def check_values(values: NDArray[Any], at: Whereabouts) -> Values:
    """Convert labels of any type to integers or strings, and refuse what is no label.

    Parameters
    ----------
    values : ndarray of shape (n_values,)
        Integers, strings, bytes, bools, or floats that are whole numbers.
    at : Whereabouts

    Returns
    -------
    ndarray of shape (n_values,), int64 or str

    Raises
    ------
    DatasetError
    """
    if values.ndim != 1:
        raise DatasetError(
            f"{at.what} must have shape (n_samples,) or (n_samples, n_classes), "
            f"got {values.ndim} dimensions in {at.place}."
        )
    kind = values.dtype.kind
    if kind in "biu":
        return _to_integers(values, at)
    if kind == "f":
        return _to_whole_numbers(values, at)
    if kind in "SUOT":
        return _to_strings(values, at)
    raise DatasetError(
        f"{at.what} must be integers, strings, bytes, bools or whole floats, "
        f"got {values.dtype.name!r} in {at.place}."
    )


def _to_whole_numbers(values: NDArray[Any], at: Whereabouts) -> NDArray[np.int64]:
    """Convert floats; beyond some size a dtype has one for several whole numbers."""
    limit = min(2 ** (np.finfo(values.dtype).nmant + 1), _LARGEST)
    with np.errstate(invalid="ignore"):
        wrong = ~((np.abs(values) <= limit) & (np.trunc(values) == values))
    _refuse(wrong, values, f"whole numbers, at most {limit} in size as {values.dtype.name}", at)
    return values.astype(np.int64)


def _to_integers(values: NDArray[Any], at: Whereabouts) -> NDArray[np.int64]:
    """Convert integers of any dtype, or Python's."""
    _refuse((values < _SMALLEST) | (values > _LARGEST), values, "signed integers of 64 bits", at)
    return values.astype(np.int64)


def _to_strings(values: NDArray[Any], at: Whereabouts) -> Values:
    items = values.tolist()
    if items and all(isinstance(item, int) for item in items):
        return _to_integers(np.array(items, object), at)
    names = [decode_label(item) if isinstance(item, bytes) else item for item in items]
    for position, name in enumerate(names):
        if not isinstance(name, str) or not name:
            rule = "be text in UTF-8" if isinstance(name, bytes) else "not be missing"
            raise DatasetError(f"{at.what} must {rule}, got {name!r:.100} {at.describe(position)}.")
    return np.array(names, np.str_)


def decode_label(item: bytes) -> str | bytes:
    """Make text of bytes, or leave them as they are where they are none.

    Parameters
    ----------
    item : bytes
    """
    try:
        return item.decode()
    except UnicodeDecodeError:
        return item


def _refuse(wrong: NDArray[np.bool_], values: NDArray[Any], rule: str, at: Whereabouts) -> None:
    if wrong.any():
        position = int(np.argmax(wrong))
        raise DatasetError(
            f"{at.what} must be {rule}, got {values[position]} {at.describe(position)}."
        )
