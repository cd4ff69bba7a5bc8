"""Labels of any type, as codes."""

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dtopk_storage.errors import DatasetError
from dtopk_storage.manifest import ClassNameType, is_int64
from dtopk_storage.sources.base import Vector

Values = NDArray[np.int64] | NDArray[np.str_]

_SMALLEST, _LARGEST = -(2**63), 2**63 - 1


class LabelEncoder:
    """Gives every class one code, whatever block of labels it turns up in.

    Codes follow the sorted classes: integers by value, strings by character. While labels come
    in they get provisional codes, so that four bytes a row are kept and not the labels.

    Parameters
    ----------
    place : str
        Where the labels are from, for messages.
    is_text : bool
        Whether they are strings for want of types; they become integers when all of them are.
    """

    def __init__(self, place: str, *, is_text: bool) -> None:
        self._place = place
        self._is_text = is_text
        self._provisional: dict[int | str, int] = {}
        self._parts: list[NDArray[np.int32]] = []
        self._n_rows = 0

    def add(self, values: NDArray[Any]) -> None:
        """Take in labels.

        Parameters
        ----------
        values : ndarray of shape (rows,)
            Integers, strings, bytes, bools, or floats that are whole numbers.
        """
        names, inverse = np.unique(self._check(values), return_inverse=True)
        known = self._provisional
        codes = [known.setdefault(name, len(known)) for name in names.tolist()]
        self._parts.append(np.array(codes, np.int32)[inverse])
        self._n_rows += len(values)

    def declare(self, classes: NDArray[Any]) -> None:
        """Take in classes that need not have a row.

        Parameters
        ----------
        classes : ndarray of shape (n_classes,)
            Of the same types as labels.
        """
        for name in self._check(classes).tolist():
            self._provisional.setdefault(name, len(self._provisional))

    def finish(self) -> tuple[NDArray[np.int32], tuple[str, ...], ClassNameType]:
        """Return the codes, the class names and what type the names were.

        Returns
        -------
        codes : ndarray of shape (n_samples,), int32
        class_names : tuple of str
        class_name_type : {'str', 'int'}
        """
        names: list[Any] = list(self._provisional)
        is_int = all(isinstance(name, int) for name in names)
        if self._is_text and all(is_int64(name) for name in names):
            names, is_int = [int(name) for name in names], True
        order = sorted(range(len(names)), key=names.__getitem__)
        codes = np.empty(len(names), np.int32)
        codes[order] = np.arange(len(names), dtype=np.int32)
        labels = np.concatenate([np.empty(0, np.int32), *(codes[part] for part in self._parts)])
        return labels, tuple(str(names[index]) for index in order), "int" if is_int else "str"

    def _check(self, values: NDArray[Any]) -> Values:
        if values.ndim != 1:
            raise DatasetError(
                f"labels must have shape (n_samples,), got {values.ndim} dimensions in "
                f"{self._place}. Several labels a row are not supported."
            )
        kind = values.dtype.kind
        if kind in "biu":
            return self._integers(values)
        if kind == "f":
            return self._whole_numbers(values)
        if kind in "SUOT":
            return self._strings(values)
        raise DatasetError(
            f"labels must be integers, strings, bytes, bools or whole floats, "
            f"got {values.dtype.name!r} in {self._place}."
        )

    def _whole_numbers(self, values: NDArray[Any]) -> NDArray[np.int64]:
        """Convert floats; beyond some size a dtype has one for several whole numbers."""
        limit = min(2 ** (np.finfo(values.dtype).nmant + 1), _LARGEST)
        with np.errstate(invalid="ignore"):
            wrong = ~((np.abs(values) <= limit) & (np.trunc(values) == values))
        self._refuse(
            wrong, values, f"whole numbers, at most {limit} in size as {values.dtype.name}"
        )
        return values.astype(np.int64)

    def _integers(self, values: NDArray[Any]) -> NDArray[np.int64]:
        """Convert integers of any dtype, or Python's."""
        self._refuse(
            (values < _SMALLEST) | (values > _LARGEST), values, "signed integers of 64 bits"
        )
        return values.astype(np.int64)

    def _strings(self, values: NDArray[Any]) -> Values:
        items = values.tolist()
        if items and all(isinstance(item, int) for item in items):
            return self._integers(np.array(items, object))
        names = [item.decode() if isinstance(item, bytes) else item for item in items]
        for row, name in enumerate(names):
            if not isinstance(name, str) or not name:
                raise DatasetError(
                    f"labels must not be missing, got {name!r} "
                    f"in row {self._n_rows + row} of {self._place}."
                )
        return np.array(names, np.str_)

    def _refuse(self, wrong: NDArray[np.bool_], values: NDArray[Any], rule: str) -> None:
        if wrong.any():
            row = int(np.argmax(wrong))
            raise DatasetError(
                f"labels must be {rule}, got {values[row]} "
                f"in row {self._n_rows + row} of {self._place}."
            )


def read_labels(
    vector: Vector, progress: Callable[[int], None]
) -> tuple[NDArray[np.int32], tuple[str, ...], ClassNameType]:
    """Read and encode all labels.

    Parameters
    ----------
    vector : Vector
    progress : callable
        Called with the rows read so far.

    Returns
    -------
    codes, class_names, class_name_type
        As `LabelEncoder.finish` returns them.
    """
    encoder = LabelEncoder(vector.place, is_text=vector.is_text)
    if vector.classes is not None:
        encoder.declare(vector.classes)
    done = 0
    for block in vector.blocks():
        encoder.add(block)
        done += len(block)
        progress(done)
    return encoder.finish()


def read_weights(vector: Vector) -> NDArray[np.float64]:
    """Read all sample weights.

    Parameters
    ----------
    vector : Vector

    Returns
    -------
    ndarray of shape (n_samples,), float64
    """
    parts = [np.empty(0)]
    for block in vector.blocks():
        try:
            parts.append(block.astype(np.float64))
        except (TypeError, ValueError) as error:
            raise DatasetError(
                f"sample weights must be numbers, got: {error} in {vector.place}."
            ) from error
    return np.concatenate(parts)
