"""Solvers small enough for tests of what the suite does with any solver."""

import os
import sys
import time
from contextlib import ExitStack
from typing import ClassVar

import numpy as np

from dtopk.benchmarks.peers import ArrayPeer, Effort, Fitted, Peer, Task
from dtopk.benchmarks.problems import OBJECTIVES


class GradientDescent(ArrayPeer):
    """Gradient descent with a step that is short enough for rows of unit norm."""

    title: ClassVar[str] = "gradient descent"
    distribution: ClassVar[str] = "numpy"
    objectives: ClassVar[tuple[str, ...]] = ("softmax",)
    effort: ClassVar[Effort] = Effort(name="iterations", first=64)
    note: ClassVar[str] = "of the tests"

    def prepare_arrays(self, task, X, y):
        """See :meth:`ArrayPeer.prepare_arrays`."""
        loss = OBJECTIVES[task.objective].make_loss()
        step = 1.0 / (1.0 + task.C * np.linalg.norm(X, 2) ** 2)

        def train():
            W = np.zeros((task.shape.n_features, task.shape.n_classes))
            for _ in range(int(task.effort or 2)):
                W -= step * (W + task.C * X.T @ loss.gradients(X @ W, y))
            return Fitted(W=W)

        return train


class Scripted(ArrayPeer):
    """Does what a test wants to see handled."""

    title: ClassVar[str] = "scripted"
    distribution: ClassVar[str] = "numpy"
    objectives: ClassVar[tuple[str, ...]] = ("softmax",)
    effort: ClassVar[Effort] = Effort(name="iterations", first=1)

    def prepare_arrays(self, task, X, y):
        """See :meth:`ArrayPeer.prepare_arrays`."""
        return self.do

    def do(self):
        """Return zeros."""
        return Fitted(W=np.zeros((4, 3)))


class Sleeps(Scripted):
    """Is not done in time."""

    def do(self):
        """Wait for the end."""
        time.sleep(600)


class Fails(Scripted):
    """Raises an error."""

    def do(self):
        """Raise it."""
        raise RuntimeError("there is no\nsolution.")


class Dies(Scripted):
    """Ends its process."""

    def do(self):
        """End it."""
        print("no more memory", file=sys.stderr, flush=True)
        os._exit(9)


class WrongShape(Scripted):
    """Returns weights of another problem."""

    def do(self):
        """Return them."""
        return Fitted(W=np.zeros((3, 4)))


class Allocates(Scripted):
    """Takes memory and gives it back."""

    def do(self):
        """Touch 64 MB."""
        np.ones(8_000_000)
        return super().do()


class Missing(Scripted):
    """Needs a package that nobody has."""

    distribution: ClassVar[str] = "no-such-package-of-dtopk"


class Stranded(Peer):
    """Waits while it loads, which no limit of a run is for."""

    title: ClassVar[str] = "stranded"
    distribution: ClassVar[str] = "numpy"
    objectives: ClassVar[tuple[str, ...]] = ("softmax",)
    effort: ClassVar[Effort] = Effort(name="iterations", first=1)

    def prepare(self, task: Task, data, stack: ExitStack):
        """Wait for the end."""
        time.sleep(600)
