"""What `fit` measures after every epoch on rows held out, and when that stops it."""

import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from numbers import Integral
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dtopk.engine import Callback, EpochRecord
from dtopk.engine.records import StopReason
from dtopk.estimators.parameters import check_number
from dtopk.evaluation import (
    AccuracyCounts,
    ImprovementWatch,
    MultilabelCounts,
    check_metric,
    lower_is_better,
    parse_topk_accuracy,
)
from dtopk_storage import FeatureStore

Array = NDArray[Any]
Batches = Callable[[], Iterator[tuple[Array, Array]]]
"""Goes through labels, as `Counts.update` takes them, and features, (n_rows, n_features)."""
Counts = AccuracyCounts | MultilabelCounts


@dataclass(frozen=True, kw_only=True)
class EvaluationOptions:
    """Which metrics are taken, and when they stop training."""

    metrics: tuple[str, ...]
    """Names such as 'top_5_accuracy'; the last one counts for early stopping."""
    others: tuple[str, ...]
    """Metrics that there are beside top-k accuracy."""
    rounds: int
    """Epochs in a row in which it gets no better, after which training stops; 0: it does not."""


def make_evaluation_options(
    eval_set: Any,
    eval_metric: str | Sequence[str] | None,
    early_stopping_rounds: int | None,
    *,
    default_metric: str,
    others: Sequence[str] = (),
) -> EvaluationOptions:
    """Check the parameters of the estimator as far as they are known before the data.

    Parameters
    ----------
    eval_set : sequence of pairs, or None
        As `TopKClassifier.fit` takes it.
    eval_metric : str, sequence of str, or None
        None stands for `default_metric`.
    early_stopping_rounds : int or None
    default_metric : str
    others : sequence of str
        Metrics that there are beside top-k accuracy.

    Raises
    ------
    TypeError, ValueError
        If a parameter breaks its rule, or would be of no use without an `eval_set`.
    """
    if early_stopping_rounds is not None:
        check_number("early_stopping_rounds", early_stopping_rounds, Integral)
        if early_stopping_rounds < 1:
            raise ValueError(
                f"early_stopping_rounds must be None or at least 1, got {early_stopping_rounds!r}."
            )
    if eval_set is None:
        for name, value in (
            ("early_stopping_rounds", early_stopping_rounds), ("eval_metric", eval_metric)
        ):  # fmt: skip
            if value is not None:
                raise ValueError(
                    f"eval_set must be given to fit with {name}={value!r}, got None: there are no "
                    "rows to measure on."
                )
    elif (
        not isinstance(eval_set, list | tuple)
        or not eval_set
        or not all(isinstance(pair, list | tuple) and len(pair) == 2 for pair in eval_set)
    ):
        raise TypeError(
            f"eval_set must be a list of pairs (X, y), at least one, got {_describe(eval_set)}."
        )
    metrics = (default_metric,) if eval_metric is None else _list_metrics(eval_metric)
    for metric in metrics:
        check_metric("eval_metric", metric, others=others)
    return EvaluationOptions(
        metrics=metrics, others=tuple(others), rounds=int(early_stopping_rounds or 0)
    )


def _list_metrics(given: Any) -> tuple[str, ...]:
    if isinstance(given, str):
        return (given,)
    is_list = isinstance(given, list | tuple) and len(given) > 0
    if not (is_list and all(isinstance(metric, str) for metric in given)):
        raise TypeError(f"eval_metric must be a string or a list of them, got {given!r}.")
    return tuple(given)


def _describe(eval_set: object) -> str:
    kind = f"a {type(eval_set).__name__}"
    if not isinstance(eval_set, list | tuple):
        return kind
    return f"{kind} of {', '.join(type(each).__name__ for each in eval_set) or 'nothing'}"


class EvaluateSets(Callback):
    """Takes metrics of some rows after every epoch, and stops when the last one gets no better.

    Parameters
    ----------
    sets : sequence of Batches
    options : EvaluationOptions
    start_counts : callable
        Returns counts of no rows.
    n_classes : int
    constant : float
        Value of the constant feature, whose weights are the last row of W; 0: there is none.
    verbose : bool
        Whether to write a line an epoch to standard error.

    Raises
    ------
    ValueError
        If k of a metric is not below the number of classes.
    """

    reads_weights = True
    stop_reason: StopReason = "early_stopping"

    def __init__(
        self,
        sets: Sequence[Batches],
        options: EvaluationOptions,
        *,
        start_counts: Callable[[], Counts],
        n_classes: int,
        constant: float,
        verbose: bool,
    ) -> None:
        for metric in options.metrics:
            check_metric("eval_metric", metric, n_classes=n_classes, others=options.others)
        self._sets = sets
        self._options = options
        self._start_counts = start_counts
        self._constant = constant
        self._verbose = verbose
        self._watch = ImprovementWatch(
            patience=options.rounds or sys.maxsize,
            lower_is_better=lower_is_better(options.metrics[-1]),
        )
        self.results: dict[str, dict[str, list[float]]] = {
            f"validation_{number}": {metric: [] for metric in options.metrics}
            for number in range(len(sets))
        }
        """Values of every epoch, by set and metric."""

    @property
    def best(self) -> tuple[int, float] | None:
        """The epoch of the best value and the value, with early stopping."""
        if not self._options.rounds:
            return None
        return self._watch.best_epoch, self._watch.best_value

    def should_stop(self, record: EpochRecord, W: NDArray[Any] | None) -> bool:
        """Measure the weights, and see whether they are better."""
        assert W is not None
        value = np.nan
        for batches, values in zip(self._sets, self.results.values(), strict=True):
            counts = self._start_counts()
            for labels, X in batches():
                counts.update(labels, self._score(X, W))
            for metric, found in values.items():
                value = _take_metric(counts, metric)
                found.append(value)
        return self._watch.add(record.epoch, value)

    def on_epoch(self, record: EpochRecord, W: object) -> None:
        """Say what was measured."""
        if self._verbose:
            shown = [
                f"{name} {metric} {found[-1]:.4f}"
                for name, values in self.results.items()
                for metric, found in values.items()
            ]
            print(f"epoch {record.epoch}: {', '.join(shown)}", file=sys.stderr)

    def _score(self, X: Array, W: Array) -> Array:
        dtype = np.result_type(X, W)
        d = X.shape[1]
        scores: Array = X.astype(dtype, copy=False) @ W[:d].astype(dtype, copy=False)
        if self._constant:
            scores += W[d] * self._constant
        return scores


def _take_metric(counts: Counts, metric: str) -> float:
    """Compute a metric by its name."""
    k = parse_topk_accuracy(metric)
    if k:
        return counts.topk_accuracy(k)
    assert isinstance(counts, MultilabelCounts)
    return counts.rank_loss() if metric == "rank_loss" else counts.mean_average_precision()


def slice_batches(labels: Array, features: Array, n_rows: int) -> Batches:
    """Return what goes through rows in memory, some at a time.

    Parameters
    ----------
    labels : ndarray of shape (n_samples,) or (n_samples, n_classes)
    features : ndarray of shape (n_samples, n_features)
    n_rows : int
        Rows at a time.
    """

    def batches() -> Iterator[tuple[Array, Array]]:
        for start in range(0, len(features), n_rows):
            yield labels[start : start + n_rows], features[start : start + n_rows]

    return batches


def check_callbacks(callbacks: Sequence[Callback] | None) -> list[Callback]:
    """Return an estimator's callbacks as a list.

    Raises
    ------
    TypeError
        If one is none.
    """
    found = [] if callbacks is None else list(callbacks)
    for each in found:
        if not isinstance(each, Callback):
            raise TypeError(
                f"callbacks must hold objects of classes made from dtopk.Callback, got {each!r}."
            )
    return found


def check_split(name: str, store: FeatureStore, split: Any, kind: str, n_features: int) -> str:
    """Refuse a split that there is not, or of another kind than what is trained on.

    Parameters
    ----------
    name : str
        What the set is called in the message.
    store : FeatureStore
    split : str
    kind : {'multiclass', 'multilabel'}
    n_features : int

    Returns
    -------
    str
        The split.

    Raises
    ------
    ValueError
    """
    if store.kind != kind:
        raise ValueError(f"kind of {store.path!r} in {name} must be {kind!r}, got {store.kind!r}.")
    if not isinstance(split, str) or split not in store.splits:
        listed = ", ".join(map(repr, store.splits))
        raise ValueError(
            f"{name} must name a split of {store.path!r}, one of {listed}, got {split!r}."
        )
    if store.n_features != n_features:
        raise ValueError(
            f"n_features of {store.path!r} in {name} must be {n_features}, as of X, got "
            f"{store.n_features}."
        )
    return split


class KeepsEvaluation:
    """An estimator that keeps what was measured while it was fitted."""

    evals_result_: dict[str, dict[str, list[float]]]
    best_iteration_: int
    best_score_: float

    def _keep_evaluation(self, evaluate: EvaluateSets | None) -> None:
        """Keep what was measured on `eval_set`, and forget what an earlier fit has."""
        for name in ("evals_result_", "best_iteration_", "best_score_"):
            self.__dict__.pop(name, None)
        if evaluate is not None:
            self.evals_result_ = evaluate.results
            if evaluate.best is not None:
                self.best_iteration_, self.best_score_ = evaluate.best
