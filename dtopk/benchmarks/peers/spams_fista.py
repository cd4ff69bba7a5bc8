"""SPAMS, Mairal's library of proximal methods."""

from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from dtopk.benchmarks.peers.base import ArrayPeer, Effort, Fitted, Task, mean_regularization

_NEVER = 1e-12
_FIRST_INVERSE_STEP = 0.1


class SpamsFista(ArrayPeer):
    """fistaFlat(loss="multi-logistic", regul="l2"); lambda1 = 1 / (C n_samples).

    It minimises ``1/n sum_i L_i + lambda1/2 |W|^2``. The inverse L0 of the first step is the 0.1 of
    its own tests: backtracking only raises it.
    """

    title: ClassVar[str] = "SPAMS fistaFlat"
    distribution: ClassVar[str] = "spams-bin"
    objectives: ClassVar[tuple[str, ...]] = ("softmax",)
    effort: ClassVar[Effort] = Effort(name="iterations", first=8)
    item_bytes: ClassVar[int] = 4 + 8
    """Beside what is given a copy as float64, in Fortran's order."""

    def prepare_arrays(
        self, task: Task, X: NDArray[np.float32], y: NDArray[np.int32]
    ) -> Callable[[], Fitted]:
        """See :meth:`ArrayPeer.prepare_arrays`."""
        import spams

        options: dict[str, Any] = {}
        if task.effort is not None:
            options = {"max_it": int(task.effort), "tol": _NEVER}

        def run() -> Fitted:
            columns = np.asfortranarray(X, dtype=np.float64)
            codes = np.asfortranarray(y[:, np.newaxis], dtype=np.float64)
            start = np.zeros((X.shape[1], task.shape.n_classes), order="F")
            W = spams.fistaFlat(
                codes,
                columns,
                start,
                loss="multi-logistic",
                regul="l2",
                lambda1=mean_regularization(task),
                L0=_FIRST_INVERSE_STEP,
                numThreads=task.threads,
                **options,
            )
            return Fitted(W=np.ascontiguousarray(W))

        return run
