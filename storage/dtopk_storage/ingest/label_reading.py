"""Reading all labels of a source: one a row, lists, separated text, or an indicator matrix."""

import itertools
from collections.abc import Callable
from typing import Any, Literal, cast

import numpy as np
from numpy.typing import NDArray

from dtopk_storage.errors import DatasetError
from dtopk_storage.indicator import read_indicator
from dtopk_storage.ingest.label_values import decode_label
from dtopk_storage.ingest.labels import LabelEncoder
from dtopk_storage.label_rows import Labels
from dtopk_storage.manifest import KINDS, ClassNameType
from dtopk_storage.sources.base import Block, ListBlock, Vector
from dtopk_storage.wording import format_count

KindChoice = Literal["auto", "multiclass", "multilabel"]
KIND_CHOICES: tuple[KindChoice, ...] = ("auto", *KINDS)


def read_labels(
    vector: Vector,
    progress: Callable[[int], None],
    *,
    kind: KindChoice = "auto",
    separator: str | None = None,
    class_names: Vector | None = None,
) -> tuple[Labels, tuple[str, ...], ClassNameType]:
    """Read and encode all labels.

    Parameters
    ----------
    vector : Vector
    progress : callable
        Called with the rows read so far.
    kind : {'auto', 'multiclass', 'multilabel'}
        auto makes them multilabel where the source has lists or a matrix, where there is a
        separator, and where a row has another number of labels than one.
    separator : str or None
        Between the labels of a row that are in one text.
    class_names : Vector or None
        Names of the columns of an indicator matrix; None calls them by their numbers.

    Returns
    -------
    labels : ndarray of shape (n_samples,), int32, or LabelRows
        By the kind.
    class_names : tuple of str
    class_name_type : {'str', 'int'}

    Raises
    ------
    DatasetError
    """
    blocks = vector.blocks()
    first = next(blocks, np.empty(0, np.int64))
    is_matrix = isinstance(first, np.ndarray) and first.ndim == 2
    reader: _MatrixReader | _ValueReader
    if isinstance(first, np.ndarray) and first.ndim == 2:
        _refuse_separator(separator, first, vector.place)
        reader = _MatrixReader(vector, first.shape[1], class_names)
    else:
        reader = _ValueReader(vector, separator, class_names, takes_none=kind == "multilabel")
    done = 0
    for block in itertools.chain([first], blocks):
        reader.add(block, done)
        done += len(block)
        progress(done)
    encoder = reader.encoder
    several = is_matrix or vector.kind == "multilabel" or separator is not None
    if kind == "multilabel" or (kind == "auto" and (several or not encoder.is_single)):
        return encoder.finish_rows()
    return encoder.finish()


class _MatrixReader:
    """Takes the rows of an indicator matrix."""

    def __init__(self, vector: Vector, n_columns: int, class_names: Vector | None) -> None:
        self._place = vector.place
        if n_columns < 2:
            raise DatasetError(
                f"labels must have shape (n_samples,), or (n_samples, n_classes) with 2 classes or "
                f"more, got {format_count(n_columns, 'column')} in {vector.place}."
            )
        is_text = class_names is not None and class_names.is_text
        self.encoder = LabelEncoder(vector.place, is_text=is_text)
        if class_names is None:
            self._codes = self.encoder.declare(np.arange(n_columns))
        else:
            self._codes = self._declare(class_names, n_columns)

    def add(self, block: Block, start: int) -> None:
        """Take in a block that starts with a row."""
        matrix = cast(NDArray[Any], block)
        rows = read_indicator(matrix, what="labels", start=start, place=f"of {self._place}")
        self.encoder.add_codes(self._codes[rows.indices], rows.counts)

    def _declare(self, class_names: Vector, n_columns: int) -> NDArray[np.int32]:
        blocks = list(class_names.read_single())
        names: NDArray[Any] = np.concatenate(blocks) if blocks else np.empty(0, np.int64)
        if len(names) != n_columns:
            raise DatasetError(
                f"class names must be as many as the columns of the labels, got {len(names)} in "
                f"{class_names.place} and {n_columns} in {self._place}."
            )
        codes = self.encoder.declare(names, place=class_names.place, what="class names")
        # A name that came before has the code that it got then.
        repeated = np.flatnonzero(codes != np.arange(n_columns))
        if len(repeated):
            raise DatasetError(
                f"class names of {class_names.place} must differ, got {str(names[repeated[0]])!r} "
                f"twice."
            )
        return codes


class _ValueReader:
    """Takes one label a row, or a list, or a text of several."""

    def __init__(
        self, vector: Vector, separator: str | None, class_names: Vector | None, *, takes_none: bool
    ) -> None:
        if class_names is not None:
            raise DatasetError(
                f"class names must come with an indicator matrix and no other labels, got those of "
                f"{class_names.place} with {vector.place}.",
                advice="Leave {class_names} out.",
            )
        self._place = vector.place
        self._separator = separator
        self._splits = separator is not None or takes_none
        self.encoder = LabelEncoder(vector.place, is_text=vector.is_text or separator is not None)
        if vector.classes is not None:
            self.encoder.declare(vector.classes)

    def add(self, block: Block, start: int) -> None:
        """Take in a block."""
        if _is_text(block):
            if self._splits:
                block = _split_text(cast(NDArray[Any], block), self._separator)
        elif len(block):
            _refuse_separator(self._separator, block, self._place)
        if isinstance(block, ListBlock):
            self.encoder.add(block.values, block.counts)
        else:
            self.encoder.add(block)


def _is_text(block: Block) -> bool:
    return isinstance(block, np.ndarray) and block.ndim == 1 and block.dtype.kind in "SUOT"


def _split_text(block: NDArray[Any], separator: str | None) -> ListBlock:
    rows = [_split(item, separator) for item in block.tolist()]
    counts = np.fromiter(map(len, rows), np.int64, len(rows))
    return ListBlock(counts=counts, values=np.array([*itertools.chain.from_iterable(rows)], object))


def _split(item: object, separator: str | None) -> list[object]:
    """Return the labels in one text; an empty one has none."""
    text = decode_label(item) if isinstance(item, bytes) else item
    if not isinstance(text, str):
        return [text]
    if not text.strip():
        return []
    return [text] if separator is None else [part.strip() for part in text.split(separator)]


def _refuse_separator(separator: str | None, block: Block, place: str) -> None:
    if separator is not None:
        if isinstance(block, ListBlock):
            found = "lists"
        else:
            found = f"{block.dtype.name} of {block.ndim} dimension{'s' * (block.ndim > 1)}"
        raise DatasetError(
            f"a separator of labels must come with text, got {separator!r} with {found} in "
            f"{place}.",
            advice="Leave {label_separator} out.",
        )
