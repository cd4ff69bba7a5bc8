"""dask-ml's logistic regression on the workers of a Dask cluster."""

from collections.abc import Callable
from contextlib import ExitStack
from typing import Any, ClassVar

import numpy as np

from dtopk.benchmarks.peers.base import WARM_UP_ROWS, Effort, Fitted, Peer, Task
from dtopk.benchmarks.problems import ProblemData

_NEVER = 1e-12


class DaskMl(Peer):
    """LogisticRegression(solver="lbfgs") of dask-ml, for one class after the other; C is ours.

    dask-ml has no model of several classes. Unless told otherwise it divides the features by their
    standard deviations, which is another problem.
    """

    title: ClassVar[str] = "dask-ml LogisticRegression"
    distribution: ClassVar[str] = "dask-ml"
    objectives: ClassVar[tuple[str, ...]] = ("logistic_ova",)
    effort: ClassVar[Effort] = Effort(name="iterations", first=8)
    note: ClassVar[str] = "workers of one thread; starting them and sending rows are not counted"

    def prepare(self, task: Task, data: ProblemData, stack: ExitStack) -> Callable[[], Fitted]:
        """See :meth:`Peer.prepare`; the workers are started, compile and get their rows here."""
        from dtopk.benchmarks.peers.dask_rows import open_workers, persist_rows

        client = stack.enter_context(open_workers(task.threads))
        stack.enter_context(client.as_current())
        rows, codes = data.load_training()
        few = rows[:WARM_UP_ROWS], codes[:WARM_UP_ROWS]
        few_X, few_y = persist_rows(client, *few, task.threads)
        _estimator(task, max_iter=3, tol=_NEVER).fit(few_X, few_y == codes[0])
        X, y = persist_rows(client, rows, codes, task.threads)
        options: dict[str, Any] = {}
        if task.effort is not None:
            options = {"max_iter": int(task.effort), "tol": _NEVER}
        estimator = _estimator(task, **options)

        def run() -> Fitted:
            W = np.empty((task.shape.n_features, task.shape.n_classes))
            for code in range(task.shape.n_classes):
                estimator.fit(X, y == code)
                W[:, code] = np.asarray(estimator.coef_).ravel()
            return Fitted(W=W)

        return run


def _estimator(task: Task, **options: Any) -> Any:
    from dask_ml.linear_model import LogisticRegression

    return LogisticRegression(
        solver="lbfgs",
        penalty="l2",
        C=task.C,
        fit_intercept=False,
        solver_kwargs={"normalize": False},
        **options,
    )
