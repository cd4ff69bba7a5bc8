"""Snap ML, IBM's library of parallel coordinate methods."""

from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from dtopk.benchmarks.peers.base import ArrayPeer, Effort, Fitted, Task, as_weights

_NEVER = 1e-12


class SnapMl(ArrayPeer):
    """LogisticRegression and SupportVectorMachine of Snap ML; regularizer = 1 / C.

    They minimise ``sum_i L_i + regularizer/2 |W|^2``, one class against the rest.
    """

    title: ClassVar[str] = "Snap ML"
    distribution: ClassVar[str] = "snapml"
    objectives: ClassVar[tuple[str, ...]] = ("logistic_ova", "hinge_ova")
    effort: ClassVar[Effort] = Effort(name="epochs", first=4)

    def prepare_arrays(
        self, task: Task, X: NDArray[np.float32], y: NDArray[np.int32]
    ) -> Callable[[], Fitted]:
        """See :meth:`ArrayPeer.prepare_arrays`."""
        import snapml

        options: dict[str, Any] = {}
        if task.effort is not None:
            options = {"max_iter": int(task.effort), "tol": _NEVER}
        kinds = {
            "logistic_ova": snapml.LogisticRegression,
            "hinge_ova": snapml.SupportVectorMachine,
        }
        estimator = kinds[task.objective](
            regularizer=1.0 / task.C,
            fit_intercept=False,
            normalize=False,
            n_jobs=task.threads,
            random_state=0,
            **options,
        )

        def run() -> Fitted:
            estimator.fit(X, y)
            return Fitted(W=as_weights(estimator.coef_))

        return run
