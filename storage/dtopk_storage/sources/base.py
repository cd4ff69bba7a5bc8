"""What every format gives: rows of features, and one value a row, or several labels."""

import abc
import contextlib
import dataclasses
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from dtopk_storage.errors import DatasetError, describe_error
from dtopk_storage.manifest import Kind, Ranges
from dtopk_storage.sources.keys import Role

IndexBase = Literal["auto", "0", "1"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class SourceOptions:
    """How a source is to be read, where its own metadata does not say."""

    features_key: str | None = None
    """Member, dataset, array or list column with the features; None looks for the usual names."""
    skip_columns: tuple[str, ...] = ()
    """Columns of a table that are not features."""
    header: bool = True
    """Whether the first line of a CSV file names the columns."""
    delimiter: str | None = None
    """Between the columns of a CSV file; None takes a tab for .tsv and a comma otherwise."""
    n_features: int | None = None
    """Of an svmlight file; None takes the largest index in it."""
    index_base: IndexBase = "auto"
    """First index of an svmlight file; auto takes 0 where a 0 occurs and 1 otherwise."""

    def __post_init__(self) -> None:
        if self.n_features is not None and self.n_features < 1:
            raise ValueError(f"n_features must be at least 1, got {self.n_features}.")
        if self.delimiter is not None and len(self.delimiter) != 1:
            raise ValueError(f"delimiter must be one character, got {self.delimiter!r}.")


class FeatureTransform(Protocol):
    """What makes other features of those of a source, block by block."""

    @property
    def n_features_in(self) -> int:
        """Features that it takes."""

    @property
    def n_features_out(self) -> int:
        """Features that it makes."""

    @property
    def key(self) -> str:
        """What tells it from another one, for the store's provenance and to go on with a store."""

    def apply(self, X: NDArray[Any]) -> NDArray[Any]:
        """Make features (rows, n_features_out), float32 or float64, of (rows, n_features_in)."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class SourceFeatures:
    """Rows of features, in the order of the source."""

    place: str
    """What to call the source in messages."""
    n_samples: int | None
    """Number of rows, or None when only reading to the end tells."""
    n_features: int
    """Number of features."""
    dtype: np.dtype[Any]
    """Dtype that the blocks have, or for text the one to store by default."""
    blocks: Callable[[int], Iterator[NDArray[Any]]]
    """Reads from a row on: blocks of shape (rows, n_features), any real dtype."""
    columns: tuple[str, ...] = ()
    """Columns of a table that they are, of length n_features; none where there is no table."""


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class ListBlock:
    """Any number of values a row."""

    counts: NDArray[np.int64]
    """Number of values of each row, of shape (rows,)."""
    values: NDArray[Any]
    """The values, row after row, of shape (counts.sum(),)."""

    def __len__(self) -> int:
        return len(self.counts)


Block = NDArray[Any] | ListBlock


@dataclasses.dataclass(frozen=True, kw_only=True)
class Vector:
    """One value a row, or of labels several, in the order of the source."""

    place: str
    """What to call it in messages."""
    blocks: Callable[[], Iterator[Block]]
    """Reads from the start: blocks of shape (rows,), any dtype; of labels also lists, or blocks
    of an indicator matrix of shape (rows, n_classes)."""
    column: str | None = None
    """Column of a table that it is, which then is no feature."""
    is_text: bool = False
    """Whether the values are strings only because a text file has no types."""
    classes: NDArray[Any] | None = None
    """All that the values may be, of shape (n_classes,), where the source says so."""
    kind: Kind | None = None
    """What labels they are, where the source says so by more than their number."""

    def read_single(self) -> Iterator[NDArray[Any]]:
        """Read blocks of one value a row, and refuse others.

        Yields
        ------
        ndarray of shape (rows,), any dtype

        Raises
        ------
        DatasetError
        """
        for block in self.blocks():
            if isinstance(block, ListBlock) and (block.counts == 1).all():
                block = block.values
            if isinstance(block, ListBlock) or block.ndim != 1:
                raise DatasetError(f"{self.place} must hold one value a row, got several.")
            yield block


def transform_features(rows: SourceFeatures, transform: FeatureTransform) -> SourceFeatures:
    """Return the features that a transform makes of those of a source.

    Parameters
    ----------
    rows : SourceFeatures
    transform : FeatureTransform

    Raises
    ------
    DatasetError
        If the transform takes another number of features.
    """
    if rows.n_features != transform.n_features_in:
        raise DatasetError(
            f"features of {rows.place} must be {transform.n_features_in}, as their transform was "
            f"made for, got {rows.n_features}."
        )
    return dataclasses.replace(
        rows,
        n_features=transform.n_features_out,
        dtype=np.dtype(np.float32),
        blocks=lambda start: map(transform.apply, rows.blocks(start)),
        columns=(),
    )


class Source(abc.ABC):
    """A file, or a folder, of one format.

    Parameters
    ----------
    path : Path
    options : SourceOptions
    """

    def __init__(self, path: Path, options: SourceOptions) -> None:
        self.path = path
        self.options = options

    @abc.abstractmethod
    def open_features(self) -> SourceFeatures:
        """Open the features."""

    @abc.abstractmethod
    def open_vector(self, key: str | None, role: Role) -> Vector:
        """Open one value a row.

        Parameters
        ----------
        key : str or None
            Name of the member, dataset, array or column. None looks for the usual names.
        role : {'labels', 'weights', 'split_names', 'class_names'}
            What the values are for.
        """

    @property
    def has_one_array(self) -> bool:
        """Whether features leave no room for values of a row in the same file."""
        return False

    def open_weights(self) -> Vector | None:
        """Open the sample weights that the source has without being asked, if any."""
        return None

    @property
    def splits(self) -> dict[str, Ranges] | None:
        """Row ranges of each split, or None when the source has no splits."""
        return None

    @property
    def provenance(self) -> dict[str, object]:
        """What the source says of where its rows are from."""
        return {}


def require(package: str, extra: str) -> None:
    """Refuse a format whose package is not installed.

    Parameters
    ----------
    package : str
        Import name.
    extra : str
        Of dtopk, that installs it.

    Raises
    ------
    DatasetError
    """
    import importlib.util

    if importlib.util.find_spec(package) is None:
        raise DatasetError(
            f"{package} must be installed to read this format, but is not. "
            f'Run: pip install "dtopk[{extra}]"'
        )


@contextlib.contextmanager
def reading(place: str) -> Iterator[None]:
    """Turn a library's errors about a file into one that names the file.

    Parameters
    ----------
    place : str
        What is read, for the message.

    Raises
    ------
    DatasetError
        For whatever the library raises: which kinds a damaged file brings about is told by none.
    """
    try:
        yield
    except DatasetError:
        raise
    except Exception as error:
        raise DatasetError(f"{place} must be readable, got: {describe_error(error)}") from error
