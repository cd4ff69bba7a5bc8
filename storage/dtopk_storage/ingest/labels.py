"""Labels of any type, as codes."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from dtopk_storage.errors import DatasetError
from dtopk_storage.ingest.label_values import Whereabouts, check_values
from dtopk_storage.label_rows import LabelRows
from dtopk_storage.manifest import ClassNameType, is_int64
from dtopk_storage.sources.base import Vector

_Part = tuple[NDArray[np.int32], NDArray[np.int64] | None]


class LabelEncoder:
    """Gives every class one code, whatever block of labels it turns up in.

    Codes follow the sorted classes: integers by value, strings by character. While labels come
    in they get provisional codes, so that four bytes a label are kept and not the labels.

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
        self._parts: list[_Part] = []
        self._n_rows = 0
        self._odd: tuple[int, int] | None = None

    @property
    def is_single(self) -> bool:
        """Whether every row so far has one label."""
        return self._odd is None

    def add(self, values: NDArray[Any], counts: NDArray[np.int64] | None = None) -> None:
        """Take in the labels of some rows.

        Parameters
        ----------
        values : ndarray of shape (n_labels,)
            Integers, strings, bytes, bools, or floats that are whole numbers.
        counts : ndarray of shape (rows,), int64, or None
            Labels of each row; None: one a row.
        """
        ends = None if counts is None else np.cumsum(counts)
        at = Whereabouts(place=self._place, start=self._n_rows, ends=ends)
        names, inverse = np.unique(check_values(values, at), return_inverse=True)
        self.add_codes(self._codes_of(names.tolist())[inverse], counts)

    def add_codes(self, codes: NDArray[np.int32], counts: NDArray[np.int64] | None = None) -> None:
        """Take in labels by the codes that `declare` gave their classes.

        Parameters
        ----------
        codes : ndarray of shape (n_labels,), int32
        counts : ndarray of shape (rows,), int64, or None
            Labels of each row; None: one a row.
        """
        if counts is not None and self._odd is None and (counts != 1).any():
            row = int(np.argmax(counts != 1))
            self._odd = self._n_rows + row, int(counts[row])
        self._parts.append((codes, counts))
        self._n_rows += len(codes if counts is None else counts)

    def declare(
        self, classes: NDArray[Any], *, place: str | None = None, what: str = "labels"
    ) -> NDArray[np.int32]:
        """Take in classes that need not have a row.

        Parameters
        ----------
        classes : ndarray of shape (n_classes,)
            Of the same types as labels.
        place : str or None
            Where they are from, for messages; None: where the labels are from.
        what : str
            What to call them in messages.

        Returns
        -------
        ndarray of shape (n_classes,), int32
            Their codes, as `add_codes` takes them.
        """
        at = Whereabouts(place=place or self._place, what=what)
        return self._codes_of(check_values(classes, at).tolist())

    def finish(self) -> tuple[NDArray[np.int32], tuple[str, ...], ClassNameType]:
        """Return the codes of rows of one label, the class names and what type the names were.

        Returns
        -------
        codes : ndarray of shape (n_samples,), int32
        class_names : tuple of str
        class_name_type : {'str', 'int'}

        Raises
        ------
        DatasetError
            A row has another number of labels.
        """
        if self._odd is not None:
            row, count = self._odd
            raise DatasetError(
                f"labels must be one a row of kind 'multiclass', got {count} in row {row} of "
                f"{self._place}.",
                advice="Leave {kind} out, or choose multilabel.",
            )
        ranks, names, name_type = self._rank()
        parts = (ranks[codes] for codes, _ in self._parts)
        return np.concatenate([np.empty(0, np.int32), *parts]), names, name_type

    def finish_rows(self) -> tuple[LabelRows, tuple[str, ...], ClassNameType]:
        """Return the codes of rows of any number of labels, the class names and their type.

        It can be called once.

        Returns
        -------
        labels : LabelRows of n_samples rows
        class_names : tuple of str
        class_name_type : {'str', 'int'}

        Raises
        ------
        DatasetError
            A row has a label twice.
        """
        ranks, names, name_type = self._rank()
        parts: list[LabelRows] = []
        start = 0
        # Each is let go once it is done, since they may take as much memory as all that is made.
        provisional = self._parts[::-1]
        self._parts.clear()
        while provisional:
            codes, counts = provisional.pop()
            if counts is None:
                counts = np.ones(len(codes), np.int64)
            rows = LabelRows.from_counts(counts, ranks[codes]).sort()
            repeat = rows.first_not_rising()
            if repeat is not None:
                raise DatasetError(
                    f"labels of a row must differ, got {names[rows.indices[repeat]]!r} twice in "
                    f"row {start + rows.row_of(repeat)} of {self._place}."
                )
            parts.append(rows)
            start += len(rows)
        return LabelRows.concatenate(parts), names, name_type

    def _codes_of(self, names: list[Any]) -> NDArray[np.int32]:
        """Return provisional codes, new ones for new names."""
        known = self._provisional
        return np.array([known.setdefault(name, len(known)) for name in names], np.int32)

    def _rank(self) -> tuple[NDArray[np.int32], tuple[str, ...], ClassNameType]:
        """Return the final code of each provisional one, the class names and their type."""
        names: list[Any] = list(self._provisional)
        is_int = all(isinstance(name, int) for name in names)
        if self._is_text and all(is_int64(name) for name in names):
            names, is_int = [int(name) for name in names], True
        order = sorted(range(len(names)), key=names.__getitem__)
        ranks = np.empty(len(names), np.int32)
        ranks[order] = np.arange(len(names), dtype=np.int32)
        return ranks, tuple(str(names[index]) for index in order), "int" if is_int else "str"


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
    for block in vector.read_single():
        try:
            parts.append(block.astype(np.float64))
        except (TypeError, ValueError) as error:
            raise DatasetError(
                f"sample weights must be numbers, got: {error} in {vector.place}."
            ) from error
    return np.concatenate(parts)
