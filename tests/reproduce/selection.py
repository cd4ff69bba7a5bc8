"""Train along a grid of C, choose one for each k on validation rows, and test what was chosen."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from dtopk.engine import ArrayRows, FitOptions, FitResult, StartPoint, fit
from dtopk.evaluation import AccuracyCounts
from dtopk.losses import make_loss


@dataclass(frozen=True, kw_only=True)
class Split:
    """Some rows: for training, validation or test."""

    X: Any
    """Features of shape (n_samples, n_features), float32."""
    y: Any
    """Codes of the labels, of shape (n_samples,), int32."""

    def join(self, other):
        """Return these rows and those of another split."""
        return Split(X=np.concatenate([self.X, other.X]), y=np.concatenate([self.y, other.y]))


@dataclass(frozen=True, kw_only=True)
class Choice:
    """What was chosen for one k."""

    k: int
    """Of the top-k accuracy."""
    C: float
    """The smallest of those that are best."""
    validation: float
    """Top-k accuracy on the validation rows, 0 to 1."""
    result: FitResult
    """Trained on the training rows with this C."""


def train(X, labels, n_classes, loss, C, solver, random_starts=0):
    """Train; a loss that is not convex also from random weights, of which the best P is kept.

    Parameters
    ----------
    X : ndarray of shape (n_samples, n_features), float32
    labels : ndarray of shape (n_samples,), int32, or LabelSets
    n_classes : int
    loss : dict
        Arguments of `make_loss`.
    C : float
    solver : dict
        Arguments of `FitOptions`.
    random_starts : int
        Of a loss that is not convex, beside the one that it has by itself.

    Returns
    -------
    FitResult
    """
    rows, made = ArrayRows(X, labels, n_classes), make_loss(**loss)
    options = FitOptions(C=C, threads=1, **solver)
    starts: list[StartPoint | None] = [None]
    if not made.convex:
        rng = np.random.default_rng(0)
        # So small that only their directions matter.
        draws = 1e-3 * rng.standard_normal((random_starts, X.shape[1], n_classes))
        starts += [StartPoint(W=W.astype(np.float32)) for W in draws]
    results = [fit(rows, made, options, start=start) for start in starts]
    return min(results, key=lambda result: result.certificate.primal)


def choose(training, validation, n_classes, loss, grid, ks, solver, random_starts=0):
    """Choose a C for each k.

    Parameters
    ----------
    training, validation : Split
    n_classes : int
    loss, solver, random_starts
        Of :func:`train`.
    grid : sequence of float
        The values of C, ascending.
    ks : sequence of int

    Returns
    -------
    list of Choice
    """
    best: dict[int, Choice] = {}
    for C in grid:
        result = train(training.X, training.y, n_classes, loss, C, solver, random_starts)
        for k, accuracy in topk_accuracies(result, validation, ks).items():
            if k not in best or accuracy > best[k].validation:
                best[k] = Choice(k=k, C=C, validation=accuracy, result=result)
    return list(best.values())


def topk_accuracies(result, split, ks):
    """Compute the top-k accuracy of what was trained, for each k."""
    scores = split.X @ result.W + result.intercept
    counts = AccuracyCounts(n_classes=scores.shape[1])
    counts.update(split.y, scores)
    return {k: counts.topk_accuracy(k) for k in ks}
