"""How the models of a cross-validation are scored on the rows that they have not seen."""

from collections.abc import Callable
from numbers import Integral
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from sklearn.metrics import get_scorer

from dtopk.engine import FitResult
from dtopk.evaluation import rank_true_classes

if TYPE_CHECKING:
    from dtopk.estimators.cross_validation import TopKClassifierCV

Array = NDArray[Any]
Scorer = str | Callable[..., float]

TOPK = "top_k_accuracy"


def count_scored(scoring_k: object, k: object, n_classes: int) -> int:
    """Return the k of top-k accuracy, `scoring_k` or else that of the loss.

    Parameters
    ----------
    scoring_k, k : int or None
    n_classes : int

    Raises
    ------
    TypeError, ValueError
        If it is no integer between 1 and `n_classes`.
    """
    chosen = k if scoring_k is None else scoring_k
    if isinstance(chosen, bool) or not isinstance(chosen, Integral):
        raise TypeError(f"scoring_k must be an integer or None, got {chosen!r}.")
    if not 1 <= int(chosen) <= n_classes:
        raise ValueError(
            f"scoring_k must be between 1 and n_classes = {n_classes}, got {chosen!r}."
        )
    return int(chosen)


def choose_scorer(scoring: object) -> Callable[..., float]:
    """Return what scores some rows, given as to :func:`score_topk`.

    Parameters
    ----------
    scoring : str or callable

    Raises
    ------
    TypeError, ValueError
        If it is neither, or a name that scikit-learn does not know.
    """
    if scoring == TOPK:
        return score_topk
    if not isinstance(scoring, str) and not callable(scoring):
        raise TypeError(f"scoring must be a string or a callable, got {scoring!r}.")
    get_scorer(scoring)
    return score_by_scorer


def score_topk(
    estimator: "TopKClassifierCV",
    result: FitResult,
    features: Array,
    codes: NDArray[np.int32],
    rows: NDArray[np.intp],
    weight: Array | None,
) -> float:
    """Compute the weighted top-k accuracy of some rows, batch by batch.

    Parameters
    ----------
    estimator : TopKClassifierCV
        Its parameters and `classes_` are read.
    result : FitResult
        The model.
    features : ndarray of shape (n_samples, n_features)
    codes : ndarray of shape (n_samples,), int32
    rows : ndarray of shape (n_rows,), intp
        Which are scored.
    weight : ndarray of shape (n_samples,), or None
    """
    k = count_scored(estimator.scoring_k, estimator.k, len(estimator.classes_))
    dtype, step = result.W.dtype, max(1, (1 << 24) // (result.W.shape[0] + 2 * result.W.shape[1]))
    hits = np.empty(len(rows), np.bool_)
    for first in range(0, len(rows), step):
        part = rows[first : first + step]
        scores = features[part].astype(dtype, copy=False) @ result.W + result.intercept
        hits[first : first + step] = rank_true_classes(codes[part], scores) < k
    if weight is None:
        return float(hits.mean()) if len(hits) else float("nan")
    total = weight[rows].sum()
    return float(hits @ weight[rows] / total) if total > 0 else float("nan")


def score_by_scorer(
    estimator: "TopKClassifierCV",
    result: FitResult,
    features: Array,
    codes: NDArray[np.int32],
    rows: NDArray[np.intp],
    weight: Array | None,
) -> float:
    """Have one of scikit-learn's scorers, or a callable, score some rows.

    Parameters
    ----------
    estimator, result, features, codes, rows, weight
        See :func:`score_topk`.
    """
    scorer = get_scorer(estimator.scoring)
    own = type(estimator)(**estimator.get_params(deep=False))
    own.n_features_in_ = features.shape[1]
    own._keep_weights(result.W, result.intercept, estimator.classes_)
    weighted = {}
    if weight is not None and isinstance(estimator.scoring, str):
        weighted = {"sample_weight": weight[rows]}
    return float(scorer(own, features[rows], estimator.classes_[codes[rows]], **weighted))
