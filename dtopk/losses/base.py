"""What every loss answers: its value, its gradient, its conjugate and its exact dual update."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
LabelArray = NDArray[np.int32]


@dataclass(frozen=True, kw_only=True)
class Loss(ABC):
    """A convex multiclass loss L(y, u) of the scores u, and its part of the dual problem.

    Training minimises ``P(W) = sum_i C_i L(y_i, W'x_i) + 1/2 |W|^2`` by maximising
    ``D(A) = sum_i D_i(a_i) - 1/2 |W(A)|^2`` with ``W(A) = sum_i x_i a_i'`` and
    ``D_i(a) = -C_i L*(y_i, -a/C_i)``. `costs` stands for the C_i, C times the weight of a row.
    """

    name: ClassVar[str]
    """The name in job files and in the registry."""
    kind: ClassVar[Literal["multiclass", "multilabel"]] = "multiclass"
    """What a label is: one class, or a set of them."""
    summary: ClassVar[str]
    """One line on what the loss is."""
    parameters: ClassVar[tuple[str, ...]] = ()
    """The parameters that the loss takes, of k, gamma and smoothing."""
    convex: ClassVar[bool] = True
    """Whether the certificate proves a global optimum."""
    solvers: ClassVar[tuple[str, ...]] = ("sdca",)
    """The solvers that can train it."""
    has_probabilities: ClassVar[bool] = False
    """Whether :meth:`probabilities` is there."""

    @property
    @abstractmethod
    def smooth(self) -> bool:
        """Whether the loss has a Lipschitz gradient."""

    def check_n_classes(self, n_classes: int) -> None:
        """Refuse a number of classes that the loss cannot be used with.

        Raises
        ------
        ValueError
            If there are fewer than two classes, or k is not below their number.
        """
        if n_classes < 2:
            raise ValueError(f"n_classes must be at least 2, got {n_classes}.")

    def probabilities(self, scores: Array) -> Array:
        """Return the class probabilities that belong to scores (n_samples, n_classes)."""
        raise ValueError(f"loss {self.name!r} gives no probabilities. Train with 'softmax'.")

    @abstractmethod
    def values(self, scores: Array, labels: LabelArray) -> NDArray[np.float64]:
        """Return the loss of every row.

        Parameters
        ----------
        scores : ndarray of shape (n_samples, n_classes), float32 or float64
        labels : ndarray of shape (n_samples,), int32

        Returns
        -------
        ndarray of shape (n_samples,), float64
        """

    @abstractmethod
    def gradients(self, scores: Array, labels: LabelArray) -> Array:
        """Return a gradient, or one subgradient where there are many, of every row.

        Parameters
        ----------
        scores : ndarray of shape (n_samples, n_classes), float32 or float64
        labels : ndarray of shape (n_samples,), int32

        Returns
        -------
        ndarray of shape (n_samples, n_classes), the dtype of `scores`
        """

    @abstractmethod
    def update_rows(
        self,
        scores: Array,
        gram: Array,
        dual: Array,
        delta: Array,
        labels: LabelArray,
        costs: Array,
        first: int,
        last: int,
    ) -> float:
        """Maximise the dual over rows first to last of a block, each exactly and in order.

        Parameters
        ----------
        scores : ndarray of shape (n_rows, n_classes), float32 or float64
            ``X @ W`` before any of these rows has changed. Each row holds its exact scores, those
            at which it was solved, afterwards.
        gram : ndarray of shape (n_rows, n_rows), the dtype of `scores`
            ``X @ X.T``; diagonal and lower triangle are read.
        dual : ndarray of shape (n_rows, n_classes), the dtype of `scores`
            Updated in place.
        delta : ndarray of shape (n_rows, n_classes), the dtype of `scores`
            Receives the change of every row.
        labels : ndarray of shape (n_rows,), int32
        costs : ndarray of shape (n_rows,), the dtype of `scores`
        first, last : int

        Returns
        -------
        float
            ``sum_i D_i(a_i)`` over the rows, at their new duals.
        """

    @abstractmethod
    def make_feasible(
        self, dual: Array, labels: LabelArray, costs: NDArray[np.float64]
    ) -> NDArray[np.float64]:
        """Put dual rows onto their domain, in place, and return D_i of each.

        Parameters
        ----------
        dual : ndarray of shape (n_samples, n_classes), float64
        labels : ndarray of shape (n_samples,), int32
        costs : ndarray of shape (n_samples,), float64

        Returns
        -------
        ndarray of shape (n_samples,), float64
        """
