"""dtopk itself, in one process and on the workers of a Dask cluster.

The engine and the estimators are imported when they are run, since they load much that the
processes of other solvers do without.
"""

from collections.abc import Callable
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from dtopk.benchmarks.peers.base import WARM_UP_ROWS, Effort, Fitted, Peer, Task, as_weights
from dtopk.benchmarks.problems import OBJECTIVES, ProblemData, Shape
from dtopk_storage import open_store

if TYPE_CHECKING:
    from dtopk.estimators import TopKClassifier
    from dtopk.solvers.certificate import Certificate

_REFERENCE_SHARE = 0.8
"""Of the limit of time, after which a reference is certified as it is."""


class Own(Peer):
    """dtopk, which stops at a certified relative gap of the effort."""

    title: ClassVar[str] = "dtopk"
    distribution: ClassVar[str] = "dtopk"
    objectives: ClassVar[tuple[str, ...]] = tuple(OBJECTIVES)
    effort: ClassVar[Effort] = Effort(name="tolerance", first=1e-3, runs=1, default=1e-3)

    def prepare(self, task: Task, data: ProblemData, stack: ExitStack) -> Callable[[], Fitted]:
        """See :meth:`Peer.prepare`; kernels are compiled here, on a few rows."""
        if data.is_store:
            return _prepare_store(task, data, self._more(task))
        X, y = data.load_training()
        _classifier(task, max_epochs=3).fit(X[:WARM_UP_ROWS], y[:WARM_UP_ROWS])
        classifier = _classifier(task, tol=task.effort or self.effort.first, **self._more(task))

        def train() -> Fitted:
            classifier.fit(X, y)
            return _fitted(classifier)

        return train

    def bytes_needed(self, shape: Shape) -> int:
        """See :meth:`Peer.bytes_needed`; nothing where it streams from a store."""
        return 0 if shape.memory_limit else super().bytes_needed(shape)

    def _more(self, task: Task) -> dict[str, Any]:
        return {}


class Reference(Own):
    """The same, to a gap that others are measured against, or as near to it as time allows."""

    effort: ClassVar[Effort] = Effort(name="tolerance", first=1e-4, runs=1)

    def _more(self, task: Task) -> dict[str, Any]:
        return {"time_limit_s": _REFERENCE_SHARE * task.limit_s, "max_epochs": 100_000}


class OwnOnDask(Peer):
    """dtopk on the workers of a local Dask cluster, one thread each, from Dask arrays."""

    title: ClassVar[str] = "dtopk on Dask workers"
    distribution: ClassVar[str] = "dtopk"
    objectives: ClassVar[tuple[str, ...]] = ("softmax", "logistic_ova")
    effort: ClassVar[Effort] = Own.effort
    note: ClassVar[str] = "workers of one thread; starting them is not counted"

    def prepare(self, task: Task, data: ProblemData, stack: ExitStack) -> Callable[[], Fitted]:
        """See :meth:`Peer.prepare`; the workers are started and compile here."""
        # Imported here, as it loads Dask.
        from dtopk.benchmarks.peers.dask_rows import open_workers, persist_rows

        client = stack.enter_context(open_workers(task.threads))
        X, y = data.load_training()
        few = persist_rows(client, X[:WARM_UP_ROWS], y[:WARM_UP_ROWS], task.threads)
        _classifier(task, max_epochs=3, client=client).fit(*few)
        rows = persist_rows(client, X, y, task.threads)
        classifier = _classifier(task, tol=task.effort or self.effort.first, client=client)

        def train() -> Fitted:
            classifier.fit(*rows)
            return _fitted(classifier)

        return train


def _prepare_store(task: Task, data: ProblemData, more: dict[str, Any]) -> Callable[[], Fitted]:
    from dtopk.engine import ArrayRows, FitOptions, StoreRows, fit

    objective = OBJECTIVES[task.objective]
    options = FitOptions(
        C=task.C,
        tol=task.effort or Own.effort.first,
        threads=task.threads,
        memory_limit_bytes=task.shape.memory_limit,
        **more,
    )
    loss = objective.make_loss()
    rows = StoreRows(open_store(data.store_path), "train")
    few_X, few_y = next(data.training_batches())
    few = ArrayRows(few_X, few_y, task.shape.n_classes)
    fit(few, loss, FitOptions(C=task.C, max_epochs=3))

    def train() -> Fitted:
        result = fit(rows, loss, options)
        return Fitted(
            W=result.W.astype(np.float64), facts=_facts(result.epochs, result.certificate)
        )

    return train


def _classifier(task: Task, **options: Any) -> "TopKClassifier":
    from dtopk.estimators import TopKClassifier

    objective = OBJECTIVES[task.objective]
    return TopKClassifier(
        objective.loss,
        C=task.C,
        fit_intercept=False,
        n_jobs=None if "client" in options else task.threads,
        random_state=0,
        **objective.parameters,
        **options,
    )


def _fitted(classifier: "TopKClassifier") -> Fitted:
    return Fitted(
        W=as_weights(classifier.coef_), facts=_facts(classifier.n_iter_, classifier.certificate_)
    )


def _facts(epochs: int, certificate: "Certificate") -> dict[str, float]:
    return {
        "epochs": epochs,
        "dual_value": certificate.dual_value,
        "relative_gap": certificate.relative_gap,
    }
