"""Training one row at a time, and the values of the two problems, row by row."""

from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dtopk.losses import Loss
from dtopk.testing.twins import dual_term, loss_value

Array = NDArray[Any]
Float64 = NDArray[np.float64]


def sdca_pass(
    loss: Loss,
    X: Array,
    labels: Any,
    costs: Array,
    dual: Float64,
    W: Float64,
    order: Iterable[int],
) -> None:
    """Visit rows one at a time, each maximising the dual over its own variables.

    With the update of the loss itself, on blocks of one row: what a block must come to.

    Parameters
    ----------
    loss : Loss
    X : ndarray of shape (n, d)
    labels : ndarray of shape (n,), int32, or LabelSets
    costs : ndarray of shape (n,)
        C times the weight of each row.
    dual : ndarray of shape (n, n_classes), float64
        Updated in place.
    W : ndarray of shape (d, n_classes), float64
        Updated in place by X' times the change of the duals.
    order : iterable of int
        The rows, in the order in which they are visited.
    """
    for i in order:
        x = X[i : i + 1].astype(np.float64)
        a, change = dual[i : i + 1], np.empty((1, W.shape[1]))
        one = slice(i, i + 1)
        loss.update_rows(x @ W, x @ x.T, a, change, labels[one], costs[one].astype(float), 0, 1)
        W += x.T @ change


def primal_value(loss: Loss, X: Array, labels: Any, costs: Array, W: Array) -> float:
    """Return P(W) = sum_i C_i L(y_i, W'x_i) + 1/2 |W|^2.

    Parameters
    ----------
    loss : Loss
    X : ndarray of shape (n, d)
    labels : ndarray of shape (n,), int32, or LabelSets
    costs : ndarray of shape (n,)
    W : ndarray of shape (d, n_classes)
    """
    weights = np.asarray(W, dtype=np.float64)
    scores = X.astype(np.float64) @ weights
    losses = [loss_value(loss, u, label) for u, label in zip(scores, labels, strict=True)]
    return float(np.dot(costs, losses) + 0.5 * np.sum(weights**2))


def dual_value(loss: Loss, X: Array, labels: Any, costs: Array, dual: Array) -> float:
    """Return D(A) = sum_i D_i(a_i) - 1/2 |X'A|^2.

    Parameters
    ----------
    loss : Loss
    X : ndarray of shape (n, d)
    labels : ndarray of shape (n,), int32, or LabelSets
    costs : ndarray of shape (n,)
    dual : ndarray of shape (n, n_classes)
        In its domain.
    """
    rows = zip(dual, labels, costs, strict=True)
    terms = [dual_term(loss, a, label, float(cost)) for a, label, cost in rows]
    weights = X.astype(np.float64).T @ np.asarray(dual, dtype=np.float64)
    return float(np.sum(terms) - 0.5 * np.sum(weights**2))
