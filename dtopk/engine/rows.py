"""Where training rows come from: arrays in memory, or a split of a feature store."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from dtopk.engine.folds import Fold, FoldNumbers
from dtopk.losses import Labels, LabelSets
from dtopk_storage import FeatureStore, LabelRows, check_batch, check_finite

Array = NDArray[Any]

_PIECE_DUALS = 1 << 25
"""Most duals in a piece of rows that are in memory."""


@dataclass(frozen=True, kw_only=True)
class PieceRange:
    """Rows that are read together: of one chunk, and of the training split."""

    start: int
    """First row, counted in the store."""
    stop: int
    """Row after the last."""
    chunk_start: int
    """First row of the chunk that the rows are in."""
    chunk_stop: int
    """Row after the last one of that chunk."""

    @property
    def n_rows(self) -> int:
        """Number of rows."""
        return self.stop - self.start


@dataclass(frozen=True, kw_only=True)
class Piece:
    """The rows of one range."""

    X: Array
    """Features of shape (n_rows, n_features), at-rest dtype."""
    labels: Labels
    """Label codes of shape (n_rows,), or sets of them."""
    weight: NDArray[np.float64]
    """Weight of each row, of shape (n_rows,)."""


class Rows(Protocol):
    """Training rows that can be read piece by piece, any number of times."""

    @property
    def n_features(self) -> int:
        """Features at rest."""

    @property
    def n_classes(self) -> int:
        """Classes."""

    @property
    def n_stored(self) -> int:
        """Rows that the duals' file has, those outside the training split too."""

    @property
    def chunk_rows(self) -> int:
        """Rows in a chunk, at every multiple of which one starts."""

    @property
    def dtype(self) -> np.dtype[Any]:
        """Of the features at rest."""

    @property
    def resident(self) -> bool:
        """Whether the features are in memory already."""

    @property
    def pieces(self) -> tuple[PieceRange, ...]:
        """What can be read."""

    def expect(self, pieces: Sequence[PieceRange]) -> None:
        """Learn which pieces will be read next, in this order, in the place of what was said."""

    def read(self, piece: PieceRange) -> Piece:
        """Read one piece; called from one thread at a time."""

    def read_labels(self, piece: PieceRange) -> tuple[Labels, NDArray[np.float64]]:
        """Read labels and weights of one piece, and no features."""


def class_totals(rows: Rows) -> NDArray[np.float64]:
    """Sum the weights of the training rows that have each class.

    Parameters
    ----------
    rows : Rows

    Returns
    -------
    ndarray of shape (n_classes,), float64
    """
    totals = np.zeros(rows.n_classes)
    for piece in rows.pieces:
        labels, weight = rows.read_labels(piece)
        if isinstance(labels, LabelSets):
            weight, codes = np.repeat(weight, labels.counts), labels.indices
        else:
            assert isinstance(labels, np.ndarray)
            codes = labels
        totals += np.bincount(codes, weights=weight, minlength=rows.n_classes)
    return totals


def find_improper(labels: LabelSets, n_classes: int) -> NDArray[np.bool_]:
    """Find the rows that have none of the labels, or all: nothing in them can be ranked.

    Parameters
    ----------
    labels : LabelSets
    n_classes : int

    Returns
    -------
    ndarray of shape (n_rows,), bool
    """
    counts = labels.counts
    improper: NDArray[np.bool_] = (counts == 0) | (counts == n_classes)
    return improper


def balance_classes(totals: NDArray[np.float64]) -> NDArray[np.float64]:
    """Weigh each class so that all carry the same total weight, as scikit-learn's 'balanced' does.

    A class's weight is the total of all rows by (the number of classes that have rows times the
    total of its own rows).

    Parameters
    ----------
    totals : ndarray of shape (n_classes,), float64
        The sum of the weights of each class's rows.

    Returns
    -------
    ndarray of shape (n_classes,), float64
        1 for a class without rows.
    """
    present = totals > 0
    weights = np.ones(len(totals))
    weights[present] = totals.sum() / (np.count_nonzero(present) * totals[present])
    return weights


class ArrayRows:
    """Rows that are in memory already.

    Parameters
    ----------
    X : ndarray of shape (n, d), float16, float32 or float64, C-contiguous
    labels : ndarray of shape (n,), int32, or LabelSets
    n_classes : int
    weight : ndarray of shape (n,), float64, or None
        None weighs every row 1.
    """

    resident = True

    def __init__(
        self, X: Array, labels: Labels, n_classes: int, weight: Array | None = None
    ) -> None:
        if len(X) != len(labels):
            raise ValueError(f"X and y must have the same length, got {len(X)} and {len(labels)}.")
        self._X, self._labels = X, labels
        self._weight = np.ones(len(X)) if weight is None else weight
        self.n_features: int = X.shape[1]
        self.n_classes = n_classes
        self.n_stored = len(X)
        self.dtype: np.dtype[Any] = X.dtype
        # Rows are shuffled within a piece: as few pieces as leave their duals of moderate size.
        self.chunk_rows = max(_PIECE_DUALS // n_classes, 1)
        self.pieces = tuple(_cut_at_chunks(0, len(X), self.chunk_rows, len(X)))

    def expect(self, pieces: Sequence[PieceRange]) -> None:
        """Do nothing: they are here."""

    def read(self, piece: PieceRange) -> Piece:
        """Return views of the arrays."""
        part = slice(piece.start, piece.stop)
        return Piece(X=self._X[part], labels=self._labels[part], weight=self._weight[part])

    def read_labels(self, piece: PieceRange) -> tuple[Labels, NDArray[np.float64]]:
        """Return views of labels and weights."""
        part = slice(piece.start, piece.stop)
        return self._labels[part], self._weight[part]


class StoreRows:
    """The rows of one split of a feature store.

    The first read of each piece checks it for NaN and infinity.

    Parameters
    ----------
    store : FeatureStore
    split : str
    skip_improper : bool
        Whether rows with none of the labels, or with all, are to weigh nothing.
    more : sequence of str
        Other splits, whose rows come beside those.
    held_out : Fold, optional
        Whose rows are to weigh nothing.

    Raises
    ------
    DatasetError
        If a split is unknown.
    ValueError
        If it has no rows.
    """

    resident = False

    def __init__(
        self,
        store: FeatureStore,
        split: str,
        *,
        skip_improper: bool = False,
        more: Sequence[str] = (),
        held_out: Fold | None = None,
    ) -> None:
        self.store = store
        self.split = split
        self.skip_improper = skip_improper
        self.more = tuple(more)
        self.held_out = held_out
        self.n_features = store.n_features
        self.n_classes = store.n_classes
        self.n_stored = store.n_samples
        self.chunk_rows = store.chunk_rows
        self.dtype = store.dtype
        self.pieces = tuple(
            piece
            for start, stop in _join_ranges([store.split_ranges(name) for name in (split, *more)])
            for piece in _cut_at_chunks(start, stop, store.chunk_rows, store.n_samples)
        )
        if not self.pieces:
            raise ValueError(f"split {split!r} of {store.path!r} must have rows, got none.")
        self._folds: FoldNumbers | None = None
        if held_out is not None:
            ranges = [(piece.start, piece.stop) for piece in self.pieces]
            self._folds = FoldNumbers(ranges, held_out.n_folds, held_out.seed)
        self._checked: set[tuple[int, int]] = set()

    def read_labels(self, piece: PieceRange) -> tuple[Labels, NDArray[np.float64]]:
        """Read labels and weights of one piece, and no features.

        Raises
        ------
        DatasetError
            If a label is none of the classes, or a weight is negative or not finite.
        """
        store, start, stop = self.store, piece.start, piece.stop
        multilabel = store.kind == "multilabel"
        labels = (
            store.read_label_rows(start, stop) if multilabel else store.read_labels(start, stop)
        )
        weight = store.read_sample_weight(start, stop)
        none = np.empty((0, self.n_features), store.dtype)
        check_batch(none, labels, weight, start=start, store=store)
        if self.held_out is not None and self._folds is not None:
            held_out = self._folds.read(start, stop) == self.held_out.number
            weight = np.where(held_out, 0.0, weight)
        if not isinstance(labels, LabelRows):
            return labels, weight
        sets = LabelSets(labels.indptr, labels.indices)
        if self.skip_improper:
            weight = np.where(find_improper(sets, self.n_classes), 0.0, weight)
        return sets, weight

    def expect(self, pieces: Sequence[PieceRange]) -> None:
        """Have them requested ahead, where the store is not on a disk."""
        self.store.expect([(piece.start, piece.stop) for piece in pieces])

    def read(self, piece: PieceRange) -> Piece:
        """Read a piece.

        Raises
        ------
        DatasetError
            If a chunk is damaged, or holds NaN or infinity.
        """
        X = self.store.read_features(piece.start, piece.stop)
        if (piece.start, piece.stop) not in self._checked:
            check_finite(X, piece.start, self.store.path, chunk_rows=self.chunk_rows)
            self._checked.add((piece.start, piece.stop))
        labels, weight = self.read_labels(piece)
        return Piece(X=X, labels=labels, weight=weight)


def _join_ranges(splits: Sequence[Sequence[tuple[int, int]]]) -> list[tuple[int, int]]:
    """List the rows of some splits, each once; those of one split stay as they are."""
    if len(splits) == 1:
        return list(splits[0])
    joined: list[tuple[int, int]] = []
    for start, stop in sorted(bounds for ranges in splits for bounds in ranges):
        if joined and start <= joined[-1][1]:
            joined[-1] = joined[-1][0], max(stop, joined[-1][1])
        else:
            joined.append((start, stop))
    return joined


def _cut_at_chunks(start: int, stop: int, chunk_rows: int, n_rows: int) -> list[PieceRange]:
    pieces = []
    while start < stop:
        chunk_start = start - start % chunk_rows
        chunk_stop = min(chunk_start + chunk_rows, n_rows)
        end = min(chunk_stop, stop)
        pieces.append(
            PieceRange(start=start, stop=end, chunk_start=chunk_start, chunk_stop=chunk_stop)
        )
        start = end
    return pieces
