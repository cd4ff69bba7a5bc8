"""The certificate: primal and dual value of what is saved, recomputed from it in float64."""

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dtopk.kernels.blas import gemm
from dtopk.losses import Labels, Loss
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
    """A proof of how far the weights are from the optimum: it lies between the two values."""

    primal: float
    """P(W) at the weights, at most this much above the optimum: `duality_gap`."""
    dual_value: float
    """D(A) at the dual variables, below which no weights can come."""
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
    weights that the duals stand for are summed anew from those.

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
        self.dual_weights = np.zeros_like(self.weights)
        self.loss_sum = 0.0
        self.dual_sum = 0.0

    def add(self, X: Array, labels: Labels, costs: Array, dual: Array) -> None:
        """Add rows.

        Parameters
        ----------
        X : ndarray of shape (n, d), at-rest dtype
        labels : ndarray of shape (n,), int32, or LabelSets
        costs : ndarray of shape (n,)
            C times the weight of each row.
        dual : ndarray of shape (n, n_classes)
            Left as it is.
        """
        for start in range(0, len(X), _BLOCK_ROWS):
            rows = np.arange(start, min(start + _BLOCK_ROWS, len(X)))
            part = slice(start, start + len(rows))
            block = np.empty((len(rows), self.conversion.width))
            self.conversion.gather(X, rows, block)
            a = dual[part].astype(np.float64)
            cost = costs[part].astype(np.float64)
            self.dual_sum += float(self.loss.make_feasible(a, labels[part], cost).sum())
            gemm(block.T, a, self.dual_weights, beta=1.0)
            scores = np.empty_like(a)
            gemm(block, self.weights, scores)
            self.loss_sum += float(cost @ self.loss.values(scores, labels[part]))

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
