"""What the suite asks of every solver that it measures."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from dtopk.benchmarks.problems import ProblemData, Shape

Array = NDArray[Any]

WARM_UP_ROWS = 500
"""On which a solver that compiles is run before it is timed."""


@dataclass(frozen=True, kw_only=True)
class Task:
    """One run: a problem, and how much work is to be done on it."""

    objective: str
    """Name of the objective."""
    C: float
    """Weight of the loss: P(W) = C * sum_i L(y_i, W'x_i) + 1/2 |W|^2."""
    shape: Shape
    """Of the data."""
    threads: int
    """That the solver may use."""
    effort: float | None
    """Iterations or tolerance, as the adapter's :class:`Effort` says; None: the solver stops by its
    own rule, at its own defaults."""
    limit_s: float
    """Seconds after which the run is ended and counts as not done."""


@dataclass(frozen=True, kw_only=True)
class Effort:
    """What a user of a solver would turn to come closer to the optimum."""

    name: str
    """'iterations', 'epochs' or 'tolerance'."""
    first: float
    """Where to begin."""
    factor: float = 2.0
    """From one run to the next."""
    runs: int = 14
    """After which nobody would go on."""
    default: float | None = None
    """What the solver does by its own rule, if that is an effort too; None: it is for it to see."""

    def values(self) -> Iterator[float]:
        """Yield what is tried, one after the other."""
        value = self.first
        for _ in range(self.runs):
            yield value
            value *= self.factor

    @property
    def in_proportion(self) -> bool:
        """Whether a run takes about as many times longer as the effort is larger."""
        return self.factor > 1


@dataclass(frozen=True, kw_only=True)
class Fitted:
    """What a solver returns."""

    W: NDArray[np.float64]
    """Weights of shape (n_features, n_classes)."""
    facts: dict[str, float] = field(default_factory=dict)
    """More that a table may tell, by name."""


class Peer(ABC):
    """A solver as its documentation recommends to use it, for one or several objectives.

    Instances have no state but what :meth:`prepare` opens.
    """

    title: ClassVar[str]
    """What the solver is called in tables."""
    distribution: ClassVar[str]
    """Name of the package that has to be installed."""
    objectives: ClassVar[tuple[str, ...]]
    """Names of the objectives that it minimises."""
    effort: ClassVar[Effort]
    """How it is brought closer to the optimum."""
    note: ClassVar[str] = ""
    """What a reader of its figures must know."""
    item_bytes: ClassVar[int] = 4
    """Bytes that an entry of the features takes while it trains, what it is given included."""

    @abstractmethod
    def prepare(self, task: Task, data: ProblemData, stack: ExitStack) -> Callable[[], Fitted]:
        """Import, load the rows and compile, and return what is to be timed.

        Parameters
        ----------
        task : Task
        data : ProblemData
        stack : ExitStack
            Closes, after the run, what is opened here.

        Returns
        -------
        callable
            Trains once.
        """

    def bytes_needed(self, shape: Shape) -> int:
        """Return the least memory that training takes as it is called here, in bytes.

        Parameters
        ----------
        shape : Shape
        """
        weights = 8 * shape.n_features * shape.n_classes
        return self.item_bytes * shape.n_samples * shape.n_features + weights

    @classmethod
    def installed_version(cls) -> str:
        """Return the version of the package, or an empty text if it is not installed."""
        try:
            return version(cls.distribution)
        except PackageNotFoundError:
            return ""


class ArrayPeer(Peer):
    """A solver that is given all rows as one array."""

    def prepare(self, task: Task, data: ProblemData, stack: ExitStack) -> Callable[[], Fitted]:
        """See :meth:`Peer.prepare`."""
        X, y = data.load_training()
        return self.prepare_arrays(task, X, y)

    @abstractmethod
    def prepare_arrays(
        self, task: Task, X: NDArray[np.float32], y: NDArray[np.int32]
    ) -> Callable[[], Fitted]:
        """Import and compile, and return what is to be timed.

        Parameters
        ----------
        task : Task
        X : ndarray of shape (n_samples, n_features), float32, C-contiguous
        y : ndarray of shape (n_samples,), int32
            Codes; each class has rows.

        Returns
        -------
        callable
            Trains once.
        """


def as_weights(coef: Array) -> NDArray[np.float64]:
    """Turn scikit-learn's `coef_` (n_classes, n_features) into W (n_features, n_classes)."""
    return np.ascontiguousarray(np.asarray(coef, dtype=np.float64).T)


def mean_regularization(task: Task) -> float:
    """Return lambda of ``1/n sum_i L_i + lambda/2 |W|^2``, which is P(W) / (C n)."""
    return 1.0 / (task.C * task.shape.n_samples)
