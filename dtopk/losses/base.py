"""What every loss answers: its value, its gradient, its conjugate and its exact dual update."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from dtopk.losses.label_sets import LabelSets
from dtopk.losses.masked_labels import MaskedLabels

Array = NDArray[Any]
LabelArray = NDArray[np.int32]
Labels = LabelArray | LabelSets | MaskedLabels
Target = Literal["multiclass", "multilabel"]


@dataclass(frozen=True, kw_only=True)
class Loss(ABC):
    """A loss L(y, u) of the scores u, and its part of the dual problem.

    Training minimises ``P(W) = sum_i C_i L(y_i, W'x_i) + 1/2 |W|^2`` by maximising
    ``D(A) = sum_i D_i(a_i) - 1/2 |W(A)|^2`` with ``W(A) = sum_i x_i a_i'`` and
    ``D_i(a) = -C_i L*(y_i, -a/C_i)``. `costs` stands for the C_i, C times the weight of a row.

    Labels are an array of class codes, or :class:`LabelSets` for a loss that takes those.
    """

    name: ClassVar[str]
    """The name in job files and in the registry."""
    targets: ClassVar[tuple[Target, ...]] = ("multiclass",)
    """What it can be trained on: rows with one class, rows with a set of them, or both."""
    summary: ClassVar[str]
    """One line on what the loss is."""
    formula: ClassVar[str]
    """L(y, u) in plain text, with h_j = 1 + u_j - u_y."""
    calibrated: ClassVar[str] = "not known"
    """For which top-k error it is calibrated, as far as is known, and in which of
    :data:`dtopk.losses.SOURCES` that is shown."""
    cost: ClassVar[str]
    """What the exact update of a row costs, in the number of classes m."""
    smoothness: ClassVar[str] = "always"
    """'always', 'never', or the condition on gamma."""
    parameters: ClassVar[tuple[str, ...]] = ()
    """The parameters that the loss takes, of k, gamma, smoothing, rho and label_cost."""
    convex: ClassVar[bool] = True
    """Whether the certificate proves a global optimum; if not, a stationary point: the optimum of
    the convex problem that leaves out the classes which each row forgives there."""
    has_update: ClassVar[bool] = True
    """Whether the dual problem of one row has a closed solution, :meth:`update_rows`."""
    polyhedral: ClassVar[bool] = False
    """Whether the loss without its smoothing is a maximum of linear functions over a polytope,
    which Frank-Wolfe's method needs: it has :meth:`vertices`, :meth:`shift_scores`,
    :meth:`linear_terms` and :meth:`smoothing_products`."""
    proper_sets: ClassVar[bool] = False
    """Whether every row must have a label, and lack one."""
    compares_classes: ClassVar[bool] = True
    """Whether the loss depends on differences of scores only, so that a dual row sums to zero."""
    link: ClassVar[str] = ""
    """What turns scores into class probabilities, 'softmax' or 'sparsemax'; empty: nothing."""

    @property
    def smooth(self) -> bool:
        """Whether the loss has a Lipschitz gradient."""
        return self.smoothness == "always"

    @classmethod
    def solver_conditions(cls) -> dict[str, str]:
        """Return the solvers that can train losses of this class, each with its condition.

        Returns
        -------
        dict of str to str
            By the solver's name, the one to be preferred first: 'gamma > 0', or empty where there
            is no condition.
        """
        smooth = cls.smoothness != "never"
        condition = cls.smoothness if cls.smoothness != "always" else ""
        offered = {
            "sdca": (cls.has_update, ""),
            "frank_wolfe": (cls.polyhedral, ""),
            "block_frank_wolfe": (cls.polyhedral, ""),
            "frank_wolfe_fixed": (cls.polyhedral, ""),
            "lbfgs": (smooth and cls.convex, condition),
            "gradient_descent": (smooth, condition),
            "pegasos": (cls.convex, ""),
        }
        return {name: when for name, (is_offered, when) in offered.items() if is_offered}

    @property
    def solvers(self) -> tuple[str, ...]:
        """The solvers that can train it, the one to be preferred first."""
        conditions = self.solver_conditions()
        return tuple(name for name, when in conditions.items() if not when or self.smooth)

    @property
    def n_masked(self) -> int:
        """How many classes every row leaves out while a loss that is not convex is solved.

        Where there are any the dual problem is that of the masked loss, and :meth:`update_rows`
        and :meth:`make_feasible` take :class:`MaskedLabels`.
        """
        return 0

    @property
    def curvature(self) -> float:
        """Mean curvature of a differentiable loss in its scores, about, times the classes."""
        return 1.0

    @property
    def convex_start(self) -> "Loss":
        """The convex loss at whose optimum training begins: the loss itself, if it is convex."""
        return self

    @property
    def has_probabilities(self) -> bool:
        """Whether :meth:`probabilities` is there."""
        return self.link != ""

    def describe(self) -> dict[str, Any]:
        """Return the parameters as plain values, for a model file or a log."""
        return {name: getattr(self, name) for name in self.parameters}

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
    def values(self, scores: Array, labels: Any) -> NDArray[np.float64]:
        """Return the loss of every row.

        Parameters
        ----------
        scores : ndarray of shape (n_samples, n_classes), float32 or float64
        labels : ndarray of shape (n_samples,), int32, or LabelSets

        Returns
        -------
        ndarray of shape (n_samples,), float64
        """

    @abstractmethod
    def gradients(self, scores: Array, labels: Any) -> Array:
        """Return a gradient, or one subgradient where there are many, of every row.

        Parameters
        ----------
        scores : ndarray of shape (n_samples, n_classes), float32 or float64
        labels : ndarray of shape (n_samples,), int32, or LabelSets

        Returns
        -------
        ndarray of shape (n_samples, n_classes), the dtype of `scores`
        """

    def update_rows(
        self,
        scores: Array,
        gram: Array,
        dual: Array,
        delta: Array,
        labels: Any,
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
        labels : ndarray of shape (n_rows,), int32, or LabelSets
        costs : ndarray of shape (n_rows,), the dtype of `scores`
        first, last : int

        Returns
        -------
        float
            ``sum_i D_i(a_i)`` over the rows, at their new duals.

        Raises
        ------
        ValueError
            If the loss has no closed update.
        """
        raise ValueError(
            f"loss {self.name!r} has no closed update of a row. Train with {self.solvers[0]!r}."
        )

    @abstractmethod
    def make_feasible(
        self, dual: Array, labels: Any, costs: NDArray[np.float64]
    ) -> NDArray[np.float64]:
        """Put dual rows onto their domain, in place, and return D_i of each.

        Parameters
        ----------
        dual : ndarray of shape (n_samples, n_classes), float64
        labels : ndarray of shape (n_samples,), int32, or LabelSets
        costs : ndarray of shape (n_samples,), float64

        Returns
        -------
        ndarray of shape (n_samples,), float64
        """

    def choose_masks(self, scores: Array, labels: LabelArray) -> MaskedLabels:
        """Choose the classes that each row leaves out: those with the smallest masked loss.

        The masked loss is convex, nowhere below the loss itself, and equal to it at these scores.

        Parameters
        ----------
        scores : ndarray of shape (n_samples, n_classes), float32 or float64
        labels : ndarray of shape (n_samples,), int32

        Returns
        -------
        MaskedLabels
            With :attr:`n_masked` classes a row.

        Raises
        ------
        ValueError
            If the loss is convex.
        """
        raise ValueError(f"loss {self.name!r} is convex and leaves no classes out.")

    def vertices(self, scores: Array, labels: Any) -> Array:
        """Return a subgradient of the loss without its smoothing, a vertex of its domain.

        It attains the maximum of ``<v, u> - L*(y, v)`` over the domain of the conjugate. The rule
        for ties depends on nothing but the row itself.

        Parameters
        ----------
        scores : ndarray of shape (n_samples, n_classes), float32 or float64
        labels : ndarray of shape (n_samples,), int32, or LabelSets

        Returns
        -------
        ndarray of shape (n_samples, n_classes), the dtype of `scores`

        Raises
        ------
        ValueError
            If the loss is not polyhedral; the three methods that follow say the same.
        """
        raise self._no_polytope()

    def shift_scores(self, scores: Array, dual: Array, labels: Any, costs: Array) -> None:
        """Add what the smoothing does to the scores at which :meth:`vertices` is asked.

        ``scores += gamma/C_i dual`` on the coordinates that the smoothing squares: minus the
        gradient of ``D_i(a) - <u, a>`` is then as that of the loss without smoothing [1]_.

        Parameters
        ----------
        scores : ndarray of shape (n_samples, n_classes), float32 or float64
            Changed in place. Rows that do not count, of cost 0, are left as they are.
        dual : ndarray of shape (n_samples, n_classes), the dtype of `scores`
        labels : ndarray of shape (n_samples,), int32, or LabelSets
        costs : ndarray of shape (n_samples,)

        References
        ----------
        .. [1] Tajima, Hirohashi, Zara, Kato. Frank-Wolfe algorithm for learning SVM-type
           multi-category classifiers. Equation 2.24, with the sign of the appendix.
        """
        raise self._no_polytope()

    def linear_terms(self, dual: Array, labels: Any, costs: Array) -> NDArray[np.float64]:
        """Return D_i of dual rows in their domain but for the smoothing's part, which is a square.

        Parameters
        ----------
        dual : ndarray of shape (n_samples, n_classes), float32 or float64
        labels : ndarray of shape (n_samples,), int32, or LabelSets
        costs : ndarray of shape (n_samples,)

        Returns
        -------
        ndarray of shape (n_samples,), float64
        """
        raise self._no_polytope()

    def smoothing_products(
        self, first: Array, second: Array, labels: Any, costs: Array
    ) -> NDArray[np.float64]:
        """Return the products of dual rows by which the smoothing measures them.

        ``gamma/C_i <first_i, second_i>`` over the coordinates that the smoothing squares, so that
        ``D_i(a) = linear_terms(a) - smoothing_products(a, a) / 2``; 0 for rows of cost 0.

        Parameters
        ----------
        first, second : ndarray of shape (n_samples, n_classes), float32 or float64
        labels : ndarray of shape (n_samples,), int32, or LabelSets
        costs : ndarray of shape (n_samples,)

        Returns
        -------
        ndarray of shape (n_samples,), float64
        """
        raise self._no_polytope()

    def _no_polytope(self) -> ValueError:
        return ValueError(
            f"loss {self.name!r} is not a maximum over a polytope, as Frank-Wolfe needs it. Train "
            f"with one of {', '.join(map(repr, self.solvers))}."
        )


def check_k(k: Any) -> None:
    """Refuse a k that is not an integer of at least 1."""
    if isinstance(k, bool) or not isinstance(k, int | np.integer):
        raise TypeError(f"k must be an integer, got {k!r}.")
    if k < 1:
        raise ValueError(f"k must be at least 1, got {k}.")


def check_k_of_classes(k: int, n_classes: int) -> None:
    """Refuse a k that is not below the number of classes."""
    if k > n_classes - 1:
        raise ValueError(f"k must be between 1 and n_classes - 1 = {n_classes - 1}, got {k}.")
