"""What a training run says while it goes on, and at its end."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from numpy.typing import NDArray

from dtopk.solvers.certificate import Certificate
from dtopk.solvers.sdca import Timings

StopReason = Literal[
    "tolerance", "max_epochs", "time_limit", "interrupted", "early_stopping", "callback"
]
"""'early_stopping': a metric of rows held out got no better; 'callback': another callback asked."""


@dataclass(frozen=True, kw_only=True)
class FitInfo:
    """What is known at the start."""

    n_samples: int
    """Training rows."""
    n_features: int
    """Features at rest, without a constant one."""
    n_classes: int
    """Classes."""
    loss_name: str
    """Name of the loss."""
    solver: str
    """Name of the solver."""
    tol: float
    """Relative gap to reach."""
    max_epochs: int
    """Passes after which to stop all the same."""
    features_in_memory: bool
    """Whether the features are held in memory, or read again every epoch."""
    duals_in_memory: bool
    """Whether the duals are held in memory, or read and written every epoch."""
    n_partitions: int = 1
    """Parts that the rows are dealt to."""
    solver_reason: str = ""
    """Why the solver was chosen; empty where it was asked for."""


@dataclass(frozen=True, kw_only=True)
class EpochRecord:
    """One pass over the training rows."""

    epoch: int
    """Passes done."""
    seconds: float
    """Since the start of training."""
    rows_per_second: float
    """Rows of this pass by its seconds."""
    primal: float
    """P(W); unless `exact`, from the gaps of some of the rows at the weights after the pass."""
    dual_value: float
    """D(A)."""
    relative_gap: float
    """(P - D) / max(|P|, |D|). Unless `exact` an estimate, from some of the rows."""
    exact: bool
    """Whether primal and dual were recomputed over all rows after the pass."""
    read_seconds: float
    """Seconds of this pass spent waiting for rows and duals."""
    acceleration: float
    """r of the accelerated outer loop; 1: plain."""
    theta: float = 1.0
    """How far the epoch went along what a partition had found, at least; 1: all the way."""
    sigma: float = 1.0
    """sigma' of the last round: by how much partitions overstate their own changes."""
    correlation: float = 1.0
    """How much partitions' changes overlap: 1 not at all, up to the number of partitions."""
    bytes_moved: int = 0
    """What the members of the run have sent each other in this pass."""
    slowest_seconds: float = 0.0
    """Seconds of the slowest member in the round where it took longest."""
    median_seconds: float = 0.0
    """Seconds of the member in the middle, in the same round."""
    late: str = ""
    """That member, where it took half as long again as the one in the middle."""
    masking: int = 0
    """Of a loss that is not convex: 0 for the convex one with which training begins, then how many
    times it has been chosen what rows leave out, or 1 where that is done at every step. Unless
    `exact`, primal and dual value are those of the convex problem being solved."""


class Callback:
    """What a caller can do while training goes on; every method does nothing by default.

    An error in a method ends training, as one in the solver does. All methods are called in the
    process that leads training, one after the other, and training waits for them.

    Examples
    --------
    Stop once the weights have grown to a norm:

    >>> import numpy as np
    >>> from dtopk import Callback, TopKClassifier
    >>> class StopAtNorm(Callback):
    ...     reads_weights = True
    ...
    ...     def should_stop(self, record, W):
    ...         return np.linalg.norm(W) >= 0.1
    >>> X, y = np.eye(6), [0, 1, 2, 0, 1, 2]
    >>> TopKClassifier(callbacks=[StopAtNorm()], tol=1e-2, max_epochs=2).fit(X, y).stop_reason_
    'callback'
    """

    reads_weights: bool = False
    """Whether `on_epoch` and `should_stop` want the weights. They cost a transfer each epoch where
    training runs in other processes."""
    stop_reason: StopReason = "callback"
    """Why training ended, where `should_stop` has ended it."""

    def on_start(self, info: FitInfo) -> None:
        """Take note that training starts."""

    def on_resume(self, history: Sequence[EpochRecord], saved: float) -> None:
        """Take note that the run goes on from a state that an earlier process has left.

        Parameters
        ----------
        history : sequence of EpochRecord
            The epochs done; `on_epoch` is called for those that follow.
        saved : float
            When the state was committed, in seconds since 1970.
        """

    def on_compile(self) -> None:
        """Take note that kernels are loaded, or compiled if this machine never ran them before.

        Compiling takes some ten seconds for each loss and dtype; what comes of it is kept on disk.
        The seconds of training count from after it.
        """

    def on_rows(self, rows: int) -> None:
        """Take note that `rows` of the training rows are done in this pass."""

    def on_epoch(self, record: EpochRecord, W: NDArray[Any] | None) -> None:
        """Take note that a pass is done.

        Parameters
        ----------
        record : EpochRecord
        W : ndarray of shape (n_features, n_classes), or with a last row for the constant feature
            Not to be changed; None where training runs in other processes and no
            callback has `reads_weights`.
        """

    def should_stop(self, record: EpochRecord, W: NDArray[Any] | None) -> bool:
        """Say whether training is to end with this pass.

        Asked once after every pass, before `on_epoch`. If any callback answers with True, the gap
        is computed over all rows, `on_epoch` and `on_end` are called, and the weights kept are
        those of this pass, with their certificate; the reason is `stop_reason`, or 'tolerance' if
        the gap is small enough. Interrupts and limits that end training with the same pass come
        before it.

        A run that is taken up again, after a kill or after it was stopped, asks again about the
        pass from which it goes on: who answers by what was before must take that from `on_resume`.

        Parameters
        ----------
        record : EpochRecord
            Its gap is an estimate, unless `exact`.
        W : ndarray of shape (n_features, n_classes), or with a last row for the constant feature
            As of `on_epoch`, but before a certificate, with which 'frank_wolfe' and losses that
            are not convex may come back to earlier weights.

        Returns
        -------
        bool
        """
        return False

    def on_end(self, result: "FitResult") -> None:
        """Take note that training ended."""


def ask_to_stop(
    callbacks: Sequence[Callback], record: EpochRecord, W: NDArray[Any] | None
) -> StopReason | None:
    """Ask all callbacks whether training is to end; return the first one's reason, or None.

    Parameters
    ----------
    callbacks : sequence of Callback
    record : EpochRecord
    W : ndarray or None
        As `Callback.should_stop` takes it.
    """
    asking = [each for each in callbacks if each.should_stop(record, W)]
    return asking[0].stop_reason if asking else None


@dataclass(frozen=True, kw_only=True)
class FitResult:
    """What training reached."""

    W: NDArray[Any]
    """Weights of shape (n_features, n_classes), float32 or float64."""
    intercept: NDArray[Any]
    """Intercepts of shape (n_classes,), the dtype of W; zeros where none is fitted."""
    certificate: Certificate
    """Primal and dual value of what is returned, recomputed in float64."""
    history: tuple[EpochRecord, ...]
    """One record for every pass."""
    stop_reason: StopReason
    """Why training ended."""
    epochs: int
    """Passes over the training rows."""
    seconds: float
    """From the start to the certificate."""
    certificate_seconds: float
    """Seconds that certificates took of them."""
    solver: str
    """Name of the solver."""
    timings: Timings
    """Seconds in each part of the block updates."""
    duals_kept: bool = False
    """Whether the dual variables are in the folder named for them."""
