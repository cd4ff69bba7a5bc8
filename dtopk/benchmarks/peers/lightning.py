"""The stochastic dual coordinate ascent of scikit-learn-contrib's lightning."""

from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from dtopk.benchmarks.peers.base import (
    ArrayPeer,
    Effort,
    Fitted,
    Task,
    as_weights,
    mean_regularization,
)

_NEVER = 1e-12


class LightningSdca(ArrayPeer):
    """SDCAClassifier(loss="hinge"), one class against the rest; alpha = 1 / (C n_samples).

    It minimises ``1/n sum_i L_i + alpha/2 |W|^2``.
    """

    title: ClassVar[str] = "lightning SDCAClassifier"
    distribution: ClassVar[str] = "sklearn-contrib-lightning"
    objectives: ClassVar[tuple[str, ...]] = ("hinge_ova",)
    effort: ClassVar[Effort] = Effort(name="epochs", first=4)
    note: ClassVar[str] = "one thread"
    item_bytes: ClassVar[int] = 4 + 8
    """Beside what is given a copy as float64."""

    def prepare_arrays(
        self, task: Task, X: NDArray[np.float32], y: NDArray[np.int32]
    ) -> Callable[[], Fitted]:
        """See :meth:`ArrayPeer.prepare_arrays`."""
        from lightning.classification import SDCAClassifier

        options: dict[str, Any] = {}
        if task.effort is not None:
            options = {"max_iter": int(task.effort), "tol": _NEVER}
        estimator = SDCAClassifier(
            alpha=mean_regularization(task), loss="hinge", random_state=0, **options
        )

        def run() -> Fitted:
            estimator.fit(X.astype(np.float64), y)
            return Fitted(W=as_weights(estimator.coef_))

        return run
