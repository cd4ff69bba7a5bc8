"""Score many models in one pass over the rows of a split."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dtopk.engine import FoldNumbers
from dtopk.evaluation import AccuracyCounts, MultilabelCounts, choose_threshold, match_classes
from dtopk.job.scoring import batch_rows, check_features, widen
from dtopk.job.sweep_config import K_MAX
from dtopk.model import Model
from dtopk_storage import FeatureStore, LabelRows, check_batch

_SPOOL_BYTES = 1 << 30
"""Scores of multilabel models are held in memory up to so many bytes, of all of them together."""
_LEAST_SPOOL_BYTES = 1 << 22

Counts = AccuracyCounts | MultilabelCounts


def score_models(
    models: Sequence[Sequence[Model]],
    store: FeatureStore,
    split: str,
    *,
    folds: FoldNumbers | None = None,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> list[Counts]:
    """Count how good some models are on the rows of a split, each of which is read once.

    Parameters
    ----------
    models : sequence of sequences of Model
        All trained on this store. Of each setting one model, or with `folds` one for each fold, by
        which the rows of that fold are scored.
    store : FeatureStore
    split : str
    folds : FoldNumbers, optional
        The fold of every row.
    progress : callable, optional
        Called with the rows done and the rows to do.

    Returns
    -------
    list of AccuracyCounts, or of MultilabelCounts
        Of each setting.

    Raises
    ------
    DatasetError
        If a row has NaN or infinity, or a label outside the store's classes.
    """
    first = models[0][0]
    for each in models:
        check_features(each[0], store)
    columns = match_classes(store.class_names, first.classes)
    counts = [_make_counts(store, first, len(models)) for _ in models]
    n_rows, n_done = store.split_size(split), 0
    for batch in store.iter_batches(split, batch_rows(first)):
        check_batch(batch.X, batch.y, batch.weight, start=batch.start, store=store)
        X = widen(batch.X, first.W.dtype)
        truth = _read_truth(batch.y, columns, first.n_classes)
        numbers = None if folds is None else folds.read(batch.start, batch.start + len(X))
        for fold, rows in _cut(numbers, len(models[0])):
            part, true = X[rows], truth[rows]
            for each, count in zip(models, counts, strict=True):
                count.update(true, each[fold].decision_function(part))
        n_done += len(X)
        progress(n_done, n_rows)
    return counts


def _make_counts(store: FeatureStore, model: Model, n_models: int) -> Counts:
    if store.kind != "multilabel":
        return AccuracyCounts(n_classes=model.n_classes)
    memory = max(_SPOOL_BYTES // n_models, _LEAST_SPOOL_BYTES)
    return MultilabelCounts(n_classes=model.n_classes, dtype=model.W.dtype, memory_bytes=memory)


def _read_truth(y: object, columns: NDArray[np.int64], n_classes: int) -> NDArray[Any]:
    """Return the true column of every row, or the indicator of its labels."""
    if not isinstance(y, LabelRows):
        codes: NDArray[Any] = columns[np.asarray(y)]
        return codes
    indicator = np.zeros((len(y), n_classes), np.bool_)
    rows = np.repeat(np.arange(len(y)), np.diff(y.indptr))
    indicator[rows, columns[y.indices]] = True
    return indicator


def _cut(numbers: NDArray[Any] | None, n_folds: int) -> list[tuple[int, slice | NDArray[np.intp]]]:
    if numbers is None:
        return [(0, slice(None))]
    return [(fold, np.flatnonzero(numbers == fold + 1)) for fold in range(n_folds)]


def measure(counts: Counts, threshold_metric: str) -> dict[str, float]:
    """Compute every metric that a setting can be chosen by.

    Parameters
    ----------
    counts : AccuracyCounts or MultilabelCounts
    threshold_metric : str
        What the threshold of predicted labels makes best on these rows; empty: it is 0.

    Returns
    -------
    dict of str to float
        'top_1' and so on; of label sets also the others, and 'threshold'.
    """
    metrics = {f"top_{k}": share for k, share in counts.topk_accuracies(K_MAX).items()}
    if isinstance(counts, AccuracyCounts):
        return metrics
    threshold = choose_threshold(threshold_metric, counts).delta if threshold_metric else 0.0
    return metrics | measure_sets(counts, threshold)


def measure_sets(counts: MultilabelCounts, threshold: float) -> dict[str, float]:
    """Compute what label sets have beside top-k accuracy.

    Parameters
    ----------
    counts : MultilabelCounts
    threshold : float
    """
    return {
        "map": counts.mean_average_precision(),
        "rank_loss": counts.rank_loss(),
        **counts.label_metrics(threshold),
        "threshold": threshold,
    }


def measure_split(counts: Counts, threshold: float) -> Mapping[str, float]:
    """Compute every metric of a model whose threshold is chosen already.

    Parameters
    ----------
    counts : AccuracyCounts or MultilabelCounts
    threshold : float
    """
    metrics = {f"top_{k}": share for k, share in counts.topk_accuracies(K_MAX).items()}
    if isinstance(counts, MultilabelCounts):
        metrics |= measure_sets(counts, threshold)
    return metrics
