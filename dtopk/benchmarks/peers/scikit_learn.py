"""scikit-learn's linear classifiers."""

from abc import abstractmethod
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
"""A tolerance that no run reaches, so that it stops after its iterations."""


class _ScikitLearn(ArrayPeer):
    """An estimator that is told its iterations, or stops by its own rule."""

    distribution: ClassVar[str] = "scikit-learn"

    def prepare_arrays(
        self, task: Task, X: NDArray[np.float32], y: NDArray[np.int32]
    ) -> Callable[[], Fitted]:
        """See :meth:`ArrayPeer.prepare_arrays`."""
        estimator = self.make(task, {} if task.effort is None else self.stop(task.effort))

        def train() -> Fitted:
            estimator.fit(X, y)
            facts = {"iterations": float(np.max(estimator.n_iter_))}
            return Fitted(W=as_weights(estimator.coef_), facts=facts)

        return train

    def stop(self, effort: float) -> dict[str, Any]:
        """Return the arguments that make it do so many iterations."""
        return {"max_iter": int(effort), "tol": _NEVER}

    @abstractmethod
    def make(self, task: Task, stop: dict[str, Any]) -> Any:
        """Make the estimator, with what tells it when to stop; empty: its defaults."""


class Lbfgs(_ScikitLearn):
    """LogisticRegression with its default solver; C is ours."""

    title: ClassVar[str] = "scikit-learn LogisticRegression, lbfgs"
    objectives: ClassVar[tuple[str, ...]] = ("softmax",)
    effort: ClassVar[Effort] = Effort(name="iterations", first=8)

    def make(self, task: Task, stop: dict[str, Any]) -> Any:
        """See :meth:`_ScikitLearn.make`."""
        from sklearn.linear_model import LogisticRegression

        return LogisticRegression(C=task.C, fit_intercept=False, **stop)


class NewtonCg(_ScikitLearn):
    """LogisticRegression(solver="newton-cg")."""

    title: ClassVar[str] = "scikit-learn LogisticRegression, newton-cg"
    objectives: ClassVar[tuple[str, ...]] = ("softmax",)
    effort: ClassVar[Effort] = Effort(name="iterations", first=1)

    def make(self, task: Task, stop: dict[str, Any]) -> Any:
        """See :meth:`_ScikitLearn.make`."""
        from sklearn.linear_model import LogisticRegression

        return LogisticRegression(C=task.C, fit_intercept=False, solver="newton-cg", **stop)


class CrammerSinger(_ScikitLearn):
    """LinearSVC(multi_class="crammer_singer"), scikit-learn's copy of LIBLINEAR; C is ours.

    This one of its solvers does not read `max_iter`: its tolerance alone makes it stop.
    """

    title: ClassVar[str] = "scikit-learn LinearSVC, crammer_singer"
    objectives: ClassVar[tuple[str, ...]] = ("hinge",)
    effort: ClassVar[Effort] = Effort(name="tolerance", first=0.1, factor=0.25, runs=8)
    note: ClassVar[str] = "one thread"
    item_bytes: ClassVar[int] = 4 + 8
    """Beside what is given a copy as float64."""

    def stop(self, effort: float) -> dict[str, Any]:
        """See :meth:`_ScikitLearn.stop`."""
        return {"tol": effort}

    def make(self, task: Task, stop: dict[str, Any]) -> Any:
        """See :meth:`_ScikitLearn.make`."""
        from sklearn.svm import LinearSVC

        return LinearSVC(
            C=task.C, multi_class="crammer_singer", fit_intercept=False, random_state=0, **stop
        )


class Sgd(_ScikitLearn):
    """SGDClassifier, one class against the rest; alpha = 1 / (C n_samples).

    It minimises ``1/n sum_i L_i + alpha/2 |W|^2``.
    """

    title: ClassVar[str] = "scikit-learn SGDClassifier"
    objectives: ClassVar[tuple[str, ...]] = ("logistic_ova", "hinge_ova")
    effort: ClassVar[Effort] = Effort(name="epochs", first=4)
    note: ClassVar[str] = "could be fed from disk by hand, by partial_fit"

    def stop(self, effort: float) -> dict[str, Any]:
        """See :meth:`_ScikitLearn.stop`."""
        return {"max_iter": int(effort), "tol": None}

    def make(self, task: Task, stop: dict[str, Any]) -> Any:
        """See :meth:`_ScikitLearn.make`."""
        from sklearn.linear_model import SGDClassifier

        return SGDClassifier(
            loss={"logistic_ova": "log_loss", "hinge_ova": "hinge"}[task.objective],
            alpha=mean_regularization(task),
            fit_intercept=False,
            n_jobs=task.threads,
            random_state=0,
            **stop,
        )
