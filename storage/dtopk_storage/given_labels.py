"""Labels as the caller of a writer has them, as a store has them."""

import itertools
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dtopk_storage.errors import DatasetError
from dtopk_storage.indicator import read_indicator
from dtopk_storage.label_rows import LabelRows

GivenLabels = ArrayLike | LabelRows | Sequence[Iterable[int]]
"""What a writer takes for labels."""


class LabelReader:
    """Checks the labels of rows that are appended.

    Parameters
    ----------
    n_classes : int
    place : str
        What to call the store in messages.
    """

    def __init__(self, n_classes: int, place: str) -> None:
        self._n_classes = n_classes
        self._place = place

    def read_codes(self, y: GivenLabels, n_rows: int, start: int) -> NDArray[np.int32]:
        """Check one label a row.

        Parameters
        ----------
        y : array-like of shape (n_rows,), int
        n_rows : int
            Rows of features that came with them.
        start : int
            Row of the store that they start with.

        Returns
        -------
        ndarray of shape (n_rows,), int32

        Raises
        ------
        DatasetError
        """
        if isinstance(y, LabelRows):
            raise DatasetError(
                f"y must be one code a row, got LabelRows in {self._rows(start, n_rows)}. "
                f"Create the store with kind 'multilabel'."
            )
        codes = np.asarray(y)
        if codes.shape != (n_rows,):
            raise DatasetError(self._describe_lengths(n_rows, codes.size, start))
        self._check_codes(codes, None, n_rows, start)
        return codes.astype(np.int32)

    def read_rows(self, y: GivenLabels, n_rows: int, start: int) -> LabelRows:
        """Check any number of labels a row.

        Parameters
        ----------
        y : ndarray of shape (n_rows, n_classes), sequence of sequences of int, or LabelRows
            An array is an indicator matrix; a sequence has the codes of each row.
        n_rows : int
            Rows of features that came with them.
        start : int
            Row of the store that they start with.

        Returns
        -------
        LabelRows

        Raises
        ------
        DatasetError
        """
        if isinstance(y, LabelRows):
            counts, codes = y.counts, y.indices
            if len(counts) and counts.min() < 0:
                row = start + int(np.argmax(counts < 0))
                raise DatasetError(
                    f"y must have an indptr that never falls, got a fall in row {row} "
                    f"for {self._place}."
                )
        elif hasattr(y, "__array__") and (array := np.asarray(y)).dtype.kind != "O":
            return self._read_indicator(array, n_rows, start)
        else:
            counts, codes = self._flatten(y, n_rows, start)
        if len(counts) != n_rows:
            raise DatasetError(self._describe_lengths(n_rows, len(counts), start))
        ends = np.cumsum(counts)
        self._check_codes(codes, ends, n_rows, start)
        labels = LabelRows.from_counts(counts, codes.astype(np.int32)).sort()
        repeat = labels.first_not_rising()
        if repeat is not None:
            raise DatasetError(
                f"y must have a code once in a row, got {labels.indices[repeat]} twice "
                f"in row {start + labels.row_of(repeat)} for {self._place}."
            )
        return labels

    def _read_indicator(self, indicator: NDArray[Any], n_rows: int, start: int) -> LabelRows:
        if indicator.ndim != 2 or indicator.shape[1] != self._n_classes:
            raise DatasetError(
                f"y must be an indicator matrix of shape (rows, {self._n_classes}), or a sequence "
                f"with the codes of each row, got an array of shape {indicator.shape} "
                f"in {self._rows(start, n_rows)}."
            )
        if len(indicator) != n_rows:
            raise DatasetError(self._describe_lengths(n_rows, len(indicator), start))
        return read_indicator(indicator, what="y", start=start, place=f"for {self._place}")

    def _flatten(self, y: Any, n_rows: int, start: int) -> tuple[NDArray[np.int64], NDArray[Any]]:
        """Return the number of codes in each row, and all codes."""
        rows: list[list[Any]] = []
        for row in y:
            if not isinstance(row, Iterable) or isinstance(row, str | bytes):
                raise DatasetError(
                    f"y must have a sequence of codes for each row, got {row!r} "
                    f"in row {start + len(rows)} for {self._place}."
                )
            rows.append(list(row))
        counts = np.fromiter(map(len, rows), np.int64, len(rows))
        try:
            codes = np.array(list(itertools.chain.from_iterable(rows)))
        except ValueError:
            codes = np.empty(0, object)
        if codes.ndim != 1 or len(codes) != counts.sum():
            raise DatasetError(
                f"y must have a sequence of codes for each row, got sequences of sequences "
                f"in {self._rows(start, n_rows)}."
            )
        return counts, codes

    def _check_codes(
        self, codes: NDArray[Any], ends: NDArray[np.int64] | None, n_rows: int, start: int
    ) -> None:
        """Refuse codes of no class; `ends` has where each row's stop, None: one a row."""
        if codes.dtype.kind not in "biuf":
            raise DatasetError(
                f"y must be label codes, got {codes.dtype.name!r} in {self._rows(start, n_rows)}."
            )
        right = (codes >= 0) & (codes < self._n_classes)
        if codes.dtype.kind == "f":
            right &= np.trunc(codes) == codes
        if not right.all():
            wrong = int(np.argmin(right))
            row = wrong if ends is None else int(np.searchsorted(ends, wrong, side="right"))
            raise DatasetError(
                f"y must be whole numbers in 0:{self._n_classes}, got {codes[wrong]} "
                f"in row {start + row} for {self._place}."
            )

    def _describe_lengths(self, n_rows: int, n_labels: int, start: int) -> str:
        return (
            f"y must have as many rows as X, got {n_rows} in X and {n_labels} in y "
            f"in {self._rows(start, n_rows)}."
        )

    def _rows(self, start: int, n_rows: int) -> str:
        return f"rows {start}:{start + n_rows} for {self._place}"
