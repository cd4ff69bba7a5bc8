"""Sets of labels, from an indicator matrix or from lists."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dtopk.losses import LabelSets

Array = NDArray[Any]


def read_label_sets(Y: Any, classes: Array | None) -> tuple[LabelSets, Array]:
    """Read an indicator matrix, or lists of labels.

    Parameters
    ----------
    Y : array or sparse matrix of shape (n_samples, n_classes), or list of lists
    classes : ndarray of shape (n_classes,), or None
        Those of `fit`; None: they are found out.

    Returns
    -------
    sets : LabelSets
    classes : ndarray of shape (n_classes,)

    Raises
    ------
    ValueError
        If it is neither, or does not fit the classes.
    """
    if hasattr(Y, "tocsr"):
        return _read_sparse(Y.tocsr(), classes)
    if isinstance(Y, list | tuple) or (isinstance(Y, np.ndarray) and Y.dtype == object):
        return _read_lists(list(Y), classes)
    matrix = np.asarray(Y)
    if matrix.ndim != 2:
        raise ValueError(
            f"Y must be an indicator matrix of shape (n_samples, n_classes) or lists of labels, "
            f"got shape {matrix.shape}."
        )
    _check_indicators(matrix, matrix.shape[1], classes)
    return LabelSets.from_indicator(matrix), _name_columns(matrix.shape[1], classes)


def _read_sparse(matrix: Any, classes: Array | None) -> tuple[LabelSets, Array]:
    """Read a CSR matrix without making it dense."""
    matrix = matrix.copy()
    matrix.sum_duplicates()
    matrix.eliminate_zeros()
    _check_indicators(matrix.data, matrix.shape[1], classes)
    sets = LabelSets(matrix.indptr.astype(np.int64), matrix.indices.astype(np.int32))
    return sets, _name_columns(matrix.shape[1], classes)


def _check_indicators(values: Array, n_columns: int, classes: Array | None) -> None:
    if values.dtype.kind not in "biuf" or not ((values == 0) | (values == 1)).all():
        raise ValueError("Y must hold 0 and 1 where it is a matrix, got something else.")
    if classes is not None and n_columns != len(classes):
        raise ValueError(f"Y must have {len(classes)} columns, as in fit, got {n_columns}.")


def _name_columns(n_columns: int, classes: Array | None) -> Array:
    return np.arange(n_columns) if classes is None else classes


def _read_lists(rows: list[Any], classes: Array | None) -> tuple[LabelSets, Array]:
    _check_lists(rows)
    counts = np.array([len(row) for row in rows], dtype=np.int64)
    labels = np.array([label for row in rows for label in row])
    known = np.unique(labels) if classes is None else classes
    places = {name: code for code, name in enumerate(known.tolist())}
    codes: list[int] = []
    for i, row in enumerate(rows):
        found = {places.get(label, -1) for label in row}
        if -1 in found:
            strange = next(label for label in row if label not in places)
            raise ValueError(f"labels of Y must be those of fit, got {strange!r} in row {i}.")
        if len(found) < counts[i]:
            raise ValueError(f"labels of a row must differ, got {list(row)!r} in row {i} of Y.")
        codes += sorted(found)
    indptr = np.concatenate(([0], np.cumsum(counts))).astype(np.int64)
    return LabelSets(indptr, np.array(codes, np.int32)), known


def _check_lists(rows: list[Any]) -> None:
    """Refuse what is no list of labels, and labels of which some are numbers and some strings."""
    wanted: type | tuple[type, ...] = ()
    for i, row in enumerate(rows):
        if isinstance(row, str) or not isinstance(row, Sequence | np.ndarray):
            raise ValueError(f"Y must hold a list of labels for each row, got {row!r} in row {i}.")
        for label in row:
            kind = str if isinstance(label, str) else (int, np.integer)
            if not isinstance(label, kind) or (wanted and kind != wanted):
                raise ValueError(
                    f"labels must be strings throughout or whole numbers throughout, got "
                    f"{label!r} in row {i} of Y."
                )
            wanted = kind
