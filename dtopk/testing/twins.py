"""The twin of each loss, and what is asked of them."""

from typing import Any

import numpy as np

from dtopk.losses import Loss
from dtopk.testing.entropy import EntropyTwin
from dtopk.testing.hinge import HingeTwin
from dtopk.testing.masked import CalibratedHingeTwin, TruncatedEntropyTwin
from dtopk.testing.multilabel import MultilabelHingeTwin, MultilabelSoftmaxTwin
from dtopk.testing.one_vs_all import HingeOvaTwin, LogisticOvaTwin
from dtopk.testing.ordered import WeightedUsunierTwin
from dtopk.testing.softmax import SoftmaxTwin
from dtopk.testing.sparsemax import SparsemaxTwin
from dtopk.testing.structured import StructuredTwin
from dtopk.testing.twin import Array, Float64, Twin
from dtopk.testing.weighted_topk import WeightedTopKTwin

_TWINS: dict[str, type[Twin[Any]]] = {
    "softmax": SoftmaxTwin,
    "topk_entropy_alpha": EntropyTwin,
    "topk_entropy_beta": EntropyTwin,
    "truncated_topk_entropy": TruncatedEntropyTwin,
    "topk_hinge_alpha": HingeTwin,
    "topk_hinge_alpha_incl": HingeTwin,
    "topk_hinge_beta": HingeTwin,
    "calibrated_topk_hinge": CalibratedHingeTwin,
    "weighted_usunier": WeightedUsunierTwin,
    "weighted_topk_hinge": WeightedTopKTwin,
    "structured_hinge": StructuredTwin,
    "sparsemax": SparsemaxTwin,
    "hinge_ova": HingeOvaTwin,
    "smooth_hinge_ova": HingeOvaTwin,
    "logistic_ova": LogisticOvaTwin,
    "multilabel_hinge": MultilabelHingeTwin,
    "multilabel_softmax": MultilabelSoftmaxTwin,
}


def twin_of(loss: Loss) -> Twin[Any]:
    """Return the twin of a loss.

    Parameters
    ----------
    loss : Loss
    """
    return _TWINS[loss.name](loss)


def loss_value(loss: Loss, scores: Array, label: Any) -> float:
    """Return the loss of one row from its definition.

    Parameters
    ----------
    loss : Loss
    scores : ndarray of shape (n_classes,)
    label : int, or ndarray of int
    """
    return twin_of(loss).value(np.asarray(scores, dtype=np.float64), label)


def dual_term(loss: Loss, dual: Array, label: Any, cost: float) -> float:
    """Return D_i(a) = -C L*(y, -a/C) of one row that is in its domain.

    Parameters
    ----------
    loss : Loss
    dual : ndarray of shape (n_classes,)
        The row a.
    label : int, or ndarray of int
    cost : float
        C times the row's weight; 0 for a row that does not count.
    """
    if cost == 0:
        return 0.0
    return twin_of(loss).dual_term(np.asarray(dual, dtype=np.float64), label, cost)


def infeasibility(loss: Loss, dual: Array, label: Any, cost: float) -> float:
    """Return by how much one dual row breaks the rules of its domain, in units of the cost.

    Parameters
    ----------
    loss : Loss
    dual : ndarray of shape (n_classes,)
    label : int, or ndarray of int
    cost : float, > 0
    """
    return twin_of(loss).infeasibility(np.asarray(dual, dtype=np.float64) / cost, label)


def row_gap(loss: Loss, dual: Array, q: Array, norm: float, label: Any, cost: float) -> float:
    """Bound how far a dual row is from maximising D_i(a) - K/2 |a|^2 - <q, a>.

    That is the dual of minimising ``C L(w) + |w - q|^2 / (2 K)``, and at ``w = q + K a`` the gap
    between the two is ``C L(w) + <a, w> - D_i(a)``: what Fenchel and Young's inequality leaves.

    Parameters
    ----------
    loss : Loss
    dual : ndarray of shape (n_classes,)
        In its domain.
    q : ndarray of shape (n_classes,)
        The scores without the row's own part, ``W'x - K a_old``.
    norm : float
        K = |x|^2.
    label : int, or ndarray of int
    cost : float
        C times the row's weight.
    """
    a = np.asarray(dual, dtype=np.float64)
    w = np.asarray(q, dtype=np.float64) + norm * a
    return cost * loss_value(loss, w, label) + float(a @ w) - dual_term(loss, a, label, cost)


def update_row(loss: Loss, q: Array, norm: float, label: int, cost: float) -> Float64:
    """Maximise D_i(a) - K/2 |a|^2 - <q, a> over the domain of one row.

    Parameters
    ----------
    loss : Softmax or TopKHinge
        One whose twin has an update of its own.
    q : ndarray of shape (n_classes,)
        The scores without the row's own part, ``W'x - K a_old``.
    norm : float
        K = |x|^2.
    label : int
    cost : float
        C times the row's weight.

    Returns
    -------
    ndarray of shape (n_classes,), float64
    """
    q = np.asarray(q, dtype=np.float64)
    if cost == 0:
        return np.zeros(len(q))
    twin = twin_of(loss)
    assert isinstance(twin, HingeTwin | SoftmaxTwin)
    return twin.update_row(q, norm, label, cost)
