"""The certificate: primal and dual value of what is saved, recomputed from it in float64."""

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dtopk.kernels.blas import gemm
from dtopk.losses import Labels, Loss, MaskedLabels, join_labels
from dtopk.solvers.sdca import RowConversion

Array = NDArray[Any]

_BLOCK_ROWS = 256
_ROUNDING = 1e-9
"""No primal value can lie below a dual one: where it does by more, something is broken."""


def relative_gap(primal: float, dual_value: float) -> float:
    """Return (P - D) / max(|P|, |D|), zero where both are, and NaN where one is not finite.

    Parameters
    ----------
    primal, dual_value : float
    """
    scale = max(abs(primal), abs(dual_value))
    return 0.0 if scale == 0 else (primal - dual_value) / scale


@dataclass(frozen=True, kw_only=True)
class Certificate:
    """A proof of how far the weights are from the optimum: it lies between the two values.

    Of a loss that is not convex the optimum is that of a convex problem: that of the loss which
    leaves out, in every row, the classes that it forgives at these weights. There the two losses
    are the same, and nowhere is the convex one below. A gap of zero says that the weights are a
    stationary point of P; not that others far away are no better.
    """

    primal: float
    """P(W) at the weights, at most this much above the optimum: `duality_gap`."""
    dual_value: float
    """D(A) at the dual variables, below which no weights can come; of a loss that is not convex,
    in the convex problem."""
    duality_gap: float
    """P - D."""
    relative_gap: float
    """(P - D) / max(|P|, |D|)."""
    tol: float
    """The relative gap asked for."""

    @property
    def certified(self) -> bool:
        """Whether the relative gap is at most `tol`, and not below zero by more than rounding."""
        return -_ROUNDING <= self.relative_gap <= self.tol

    @classmethod
    def from_values(cls, primal: float, dual_value: float, tol: float) -> "Certificate":
        """Make the certificate that two values give.

        Parameters
        ----------
        primal, dual_value : float
        tol : float
        """
        return cls(
            primal=primal,
            dual_value=dual_value,
            duality_gap=primal - dual_value,
            relative_gap=relative_gap(primal, dual_value),
            tol=tol,
        )

    def to_dict(self) -> dict[str, float | bool]:
        """Return the fields and whether they certify the weights, for JSON."""
        return {**asdict(self), "certified": self.certified}


class CertificateSums:
    """Collect the certificate over the rows, in any number of pieces.

    The weights are taken as given; each dual row is put onto its domain in float64, and the
    weights that the duals stand for are summed anew from those. Where a loss leaves classes out,
    they are chosen at the weights.

    Parameters
    ----------
    loss : Loss
    conversion : RowConversion
    W : ndarray of shape (width, n_classes), float32 or float64
        The weights as they are saved.
    """

    def __init__(self, loss: Loss, conversion: RowConversion, W: Array) -> None:
        self.loss = loss
        self.conversion = conversion.in_dtype(np.float64)
        self.weights = np.ascontiguousarray(W, dtype=np.float64)
        self._dtype = W.dtype
        self.dual_weights = np.zeros_like(self.weights)
        self.loss_sum = 0.0
        self.dual_sum = 0.0
        self.linear_sum = 0.0

    def add(self, X: Array, labels: Labels, costs: Array, dual: Array | None) -> Labels:
        """Add rows.

        Parameters
        ----------
        X : ndarray of shape (n, d), at-rest dtype
        labels : ndarray of shape (n,), int32, or LabelSets
        costs : ndarray of shape (n,)
            C times the weight of each row.
        dual : ndarray of shape (n, n_classes), or None
            Left as it is; None for minus C times the gradients of the loss at the weights, which
            make the gap of a differentiable loss half the squared gradient of P.

        Returns
        -------
        ndarray of shape (n,), int32, LabelSets or MaskedLabels
            The labels; with the classes that are left out, where the loss leaves some out.
        """
        used = []
        for part, block, scores in self._blocks(X):
            cost, y = costs[part].astype(np.float64), mask_labels(self.loss, scores, labels[part])
            given = self._gradient_duals(scores, y, cost) if dual is None else dual[part]
            a = given.astype(np.float64)
            self.dual_sum += float(self.loss.make_feasible(a, y, cost).sum())
            if self.loss.polyhedral:
                self.linear_sum += float(self.loss.linear_terms(a, y, cost).sum())
            gemm(block.T, a, self.dual_weights, beta=1.0)
            self.loss_sum += float(cost @ self.loss.values(scores, y))
            used.append(y)
        return join_labels(used) if self.loss.n_masked else labels

    def add_losses(self, X: Array, labels: Labels, costs: Array) -> None:
        """Add rows whose duals are nowhere; see :meth:`add`."""
        for part, _, scores in self._blocks(X):
            self.loss_sum += float(costs[part] @ self.loss.values(scores, labels[part]))

    def make_duals(self, X: Array, labels: Labels, costs: Array) -> Array:
        """Return the duals that :meth:`add` takes where none are given, in the dtype of W."""
        duals = [
            self._gradient_duals(scores, labels[part], costs[part])
            for part, _, scores in self._blocks(X)
        ]
        return np.concatenate(duals)

    def _blocks(self, X: Array) -> Iterator[tuple[slice, Array, Array]]:
        return _score_rows(X, self.conversion, self.weights)

    def _gradient_duals(self, scores: Array, labels: Labels, costs: Array) -> Array:
        # Rounded to what a file of duals has.
        return (-costs[:, None] * self.loss.gradients(scores, labels)).astype(self._dtype)

    def certificate(self, tol: float) -> Certificate:
        """Return the certificate of the rows added.

        Parameters
        ----------
        tol : float
            The relative gap asked for.
        """
        primal = self.loss_sum + 0.5 * float(np.vdot(self.weights, self.weights))
        dual_value = self.dual_sum - 0.5 * float(np.vdot(self.dual_weights, self.dual_weights))
        return Certificate.from_values(primal, dual_value, tol)


def choose_masks(
    loss: Loss, conversion: RowConversion, W: Array, X: Array, labels: Labels
) -> Labels:
    """Choose the classes that rows leave out, as :meth:`CertificateSums.add` does.

    Parameters
    ----------
    loss : Loss
        One that leaves classes out.
    conversion : RowConversion
    W : ndarray of shape (width, n_classes), float32 or float64
    X : ndarray of shape (n, d), at-rest dtype
    labels : ndarray of shape (n,), int32

    Returns
    -------
    MaskedLabels
    """
    exact, weights = conversion.in_dtype(np.float64), np.ascontiguousarray(W, dtype=np.float64)
    return join_labels(
        [
            mask_labels(loss, scores, labels[part])
            for part, _, scores in _score_rows(X, exact, weights)
        ]
    )


def mask_labels(loss: Loss, scores: Array, labels: Labels) -> Labels:
    """Give labels the classes that they leave out at some scores, where the loss leaves some out.

    Parameters
    ----------
    loss : Loss
    scores : ndarray of shape (n, n_classes)
    labels : ndarray of shape (n,), int32, LabelSets or MaskedLabels
        Masked ones are returned as they are.
    """
    if loss.n_masked == 0 or isinstance(labels, MaskedLabels):
        return labels
    assert isinstance(labels, np.ndarray)  # Sets of labels have no masks.
    return loss.choose_masks(scores, labels)


def _score_rows(
    X: Array, conversion: RowConversion, weights: Array
) -> Iterator[tuple[slice, Array, Array]]:
    """Yield some rows at a time: which they are, converted to float64, and their scores."""
    for start in range(0, len(X), _BLOCK_ROWS):
        rows = np.arange(start, min(start + _BLOCK_ROWS, len(X)))
        block = np.empty((len(rows), conversion.width))
        conversion.gather(X, rows, block)
        scores = np.empty((len(rows), weights.shape[1]))
        gemm(block, weights, scores)
        yield slice(start, start + len(rows)), block, scores
