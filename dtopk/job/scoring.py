"""Run a model over the rows of a store: its accuracy, and its best classes of every row."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dtopk.evaluation import AccuracyCounts, MultilabelCounts, match_classes
from dtopk.kernels.rows import gather_rows
from dtopk.model import Model
from dtopk_storage import FeatureStore, LabelRows, check_batch

_BATCH_BYTES = 64 * 10**6
"""Features and scores of a batch take about so much memory."""
_WIDTH = 8
"""By how much fewer rows a batch has whose scores are computed with in float64."""


def evaluate_split(
    model: Model,
    store: FeatureStore,
    split: str,
    *,
    progress: Callable[[int, int], None] | None = None,
    also: Callable[[NDArray[np.int64], NDArray[Any]], None] | None = None,
) -> AccuracyCounts:
    """Count how accurate a model is on the rows of a split.

    Parameters
    ----------
    model : Model
    store : FeatureStore
        Its classes are matched with the model's by name; their order may differ.
    split : str
    progress : callable, optional
        Called with the rows done and the rows to do.
    also : callable, optional
        Called with labels and scores of each batch, as :func:`iter_scores` yields them, for what
        else is to be counted in the same pass.

    Returns
    -------
    AccuracyCounts
        In the classes of the model.

    Raises
    ------
    DatasetError
        If a row has NaN or infinity, or a label outside the store's classes.
    ValueError
        If the store has other features, or a row of a class that the model was not trained on.
    """
    counts = AccuracyCounts(n_classes=model.n_classes)
    wide = also is not None
    for y, scores in iter_scores(model, store, split, wide=wide, progress=progress):
        counts.update(y, scores)
        if also is not None:
            also(y, scores)
    return counts


def iter_scores(
    model: Model,
    store: FeatureStore,
    split: str,
    *,
    wide: bool = False,
    progress: Callable[[int, int], None] | None = None,
) -> Iterator[tuple[NDArray[np.int64], NDArray[Any]]]:
    """Score the rows of a split, a batch at a time.

    Parameters
    ----------
    model, store, split, progress
        As of :func:`evaluate_split`, with the same errors.
    wide : bool, default=False
        Whether the caller makes several arrays of float64 of the scores, for which batches are
        smaller.

    Yields
    ------
    y : ndarray of shape (n_rows,), int64
        Columns of the model.
    scores : ndarray of shape (n_rows, n_classes), the type of W
    """
    check_features(model, store)
    if model.target != "multiclass" or store.kind != "multiclass":
        raise ValueError(
            f"model and {store.path!r} must both be multiclass, got a {model.target} model and a "
            f"{store.kind} store."
        )
    columns = match_classes(store.class_names, model.classes)
    if model.class_rows is not None:
        columns[model.class_rows[columns] == 0] = -1
    n_rows, done = store.split_size(split), 0
    rows = max(1, batch_rows(model) // _WIDTH) if wide else batch_rows(model)
    for batch in store.iter_batches(split, rows):
        check_batch(batch.X, batch.y, batch.weight, start=batch.start, store=store)
        assert not isinstance(batch.y, LabelRows)
        y = columns[batch.y]
        _check_known(y, batch.y, batch.start, store, split)
        yield y, model.decision_function(widen(batch.X, model.W.dtype))
        done += len(y)
        if progress is not None:
            progress(done, n_rows)


def evaluate_label_sets(
    model: Model,
    store: FeatureStore,
    split: str,
    *,
    progress: Callable[[int, int], None] | None = None,
) -> MultilabelCounts:
    """Measure how good a multilabel model's scores are on the rows of a split.

    Parameters
    ----------
    model : Model
    store : FeatureStore
        Its classes are matched with the model's by name; their order may differ.
    split : str
    progress : callable, optional
        Called with the rows done and the rows to do.

    Returns
    -------
    MultilabelCounts
        In the classes of the model.

    Raises
    ------
    DatasetError
        If a row has NaN or infinity, or a label outside the store's classes.
    ValueError
        If the store has other features, or a label that the model does not know, or it or the
        model is not multilabel.
    """
    check_features(model, store)
    if model.target != "multilabel" or store.kind != "multilabel":
        raise ValueError(
            f"model and {store.path!r} must both be multilabel, got a {model.target} model and a "
            f"{store.kind} store."
        )
    columns = match_classes(store.class_names, model.classes)
    counts = MultilabelCounts(n_classes=model.n_classes, dtype=model.W.dtype)
    n_rows = store.split_size(split)
    for batch in store.iter_batches(split, batch_rows(model)):
        check_batch(batch.X, batch.y, batch.weight, start=batch.start, store=store)
        assert isinstance(batch.y, LabelRows)
        y = columns[batch.y.indices]
        if (y < 0).any():
            name = store.class_names[int(batch.y.indices[np.argmin(y)])]
            raise ValueError(
                f"labels must be classes of the model, got {name!r} in split {split!r} of "
                f"{store.path!r}."
            )
        rows = np.repeat(np.arange(len(batch.y)), np.diff(batch.y.indptr))
        indicator = np.zeros((len(batch.y), model.n_classes), np.bool_)
        indicator[rows, y] = True
        counts.update(indicator, model.decision_function(widen(batch.X, model.W.dtype)))
        if progress is not None:
            progress(counts.n_rows, n_rows)
    return counts


def summarise_label_sets(counts: MultilabelCounts, threshold: float) -> dict[str, float]:
    """Compute every metric of label sets, with the threshold that those of predictions are at.

    Parameters
    ----------
    counts : MultilabelCounts
    threshold : float
    """
    return {
        "rank_loss": counts.rank_loss(),
        "mean_average_precision": counts.mean_average_precision(),
        **counts.label_metrics(threshold),
        "threshold": threshold,
    }


@dataclass(frozen=True, kw_only=True)
class TopClasses:
    """The best classes of consecutive rows."""

    start: int
    """First row."""
    columns: NDArray[np.intp]
    """Columns of W, best first, shape (n_rows, k)."""
    labels: NDArray[Any]
    """Their class names, shape (n_rows, k)."""
    scores: NDArray[Any]
    """Their scores, or their probabilities, shape (n_rows, k)."""
    row_id: NDArray[np.int64] | None
    """Which row of the store's source each one was, shape (n_rows,); None where that is its own
    number."""

    @property
    def n_rows(self) -> int:
        """Number of rows."""
        return len(self.columns)


@dataclass(frozen=True, kw_only=True)
class SetClasses:
    """The conformal sets of consecutive rows."""

    start: int
    """First row."""
    sizes: NDArray[np.int64]
    """How many classes each set holds, shape (n_rows,)."""
    columns: NDArray[np.intp]
    """Columns of W, those of one row after those of another, best first, shape (n_labels,)."""
    labels: NDArray[Any]
    """Their class names, shape (n_labels,)."""
    scores: NDArray[Any]
    """Their scores, or their probabilities, shape (n_labels,)."""
    row_id: NDArray[np.int64] | None
    """As of `TopClasses`."""

    @property
    def n_rows(self) -> int:
        """Number of rows."""
        return len(self.sizes)


def check_features(model: Model, store: FeatureStore) -> None:
    """Refuse a store whose rows the model cannot score."""
    if store.n_features != model.n_features:
        raise ValueError(
            f"n_features of {store.path!r} must be {model.n_features}, as the model was trained "
            f"on, got {store.n_features}."
        )


def batch_rows(model: Model) -> int:
    """Choose how many rows are scored at a time."""
    row_bytes = model.W.dtype.itemsize * (model.n_features + 2 * model.n_classes)
    return max(1, _BATCH_BYTES // row_bytes)


def widen(X: NDArray[Any], dtype: np.dtype[Any]) -> NDArray[Any]:
    """Convert float16 rows of a store, which are finite, to the type of the computation.

    numpy converts float16 at 0.2 GB/s, which is less than a matrix product takes; the kernel is
    some forty times faster (measured). Rows of other types come back as they are.

    Parameters
    ----------
    X : ndarray of shape (n_rows, n_features)
    dtype : dtype
        float32 or float64.
    """
    if X.dtype != np.float16:
        return X
    out = np.empty(X.shape, dtype)
    gather_rows(X, np.arange(len(X)), None, None, 0.0, out)
    return out


def _check_known(
    y: NDArray[np.int64], codes: NDArray[Any], start: int, store: FeatureStore, split: str
) -> None:
    unknown = np.flatnonzero(y < 0)
    if len(unknown):
        row = int(unknown[0])
        name = store.class_names[int(codes[row])]
        raise ValueError(
            f"label of row {start + row} must be a class that the model was trained on, got "
            f"{name!r}. In split {split!r} of {store.path!r}. Evaluate another split, or train on "
            "rows of that class."
        )
