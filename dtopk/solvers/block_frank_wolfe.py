"""Block-coordinate Frank-Wolfe: steps on one row's dual problem after another [1]_.

Where stochastic dual coordinate ascent (:mod:`dtopk.solvers.sdca`) solves the problem of a row,
this moves the row's dual towards the vertex of its domain that is best for the linearised problem,
as far as is best for the problem itself. It asks less of a loss: a vertex instead of a projection.
Rows are visited in the same blocks, with the same corrections between them.

References
----------
.. [1] Lacoste-Julien, Jaggi, Schmidt, Pletscher. Block-Coordinate Frank-Wolfe Optimization for
   Structural SVMs. ICML 2013.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dtopk.kernels.ranked import step_rows_ranked
from dtopk.losses import Loss
from dtopk.losses.ranked import RankedHinge

Array = NDArray[Any]


@dataclass(frozen=True)
class FrankWolfeSteps:
    """A step for each row, in the place of the exact update of its loss.

    It has the :meth:`update_rows` of a loss, and stands for it in a
    :class:`dtopk.solvers.sdca.BlockUpdater`.

    Raises
    ------
    ValueError
        If the loss is not polyhedral.
    """

    loss: Loss
    """A polyhedral loss."""

    def __post_init__(self) -> None:
        if not self.loss.polyhedral:
            raise ValueError(
                f"loss for 'block_frank_wolfe' must be a maximum over a polytope, got "
                f"{self.loss.name!r}."
            )

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
        """Make a step on rows first to last of a block, in order.

        With ``q = scores_i - K a_old`` and ``K = gram[i, i]`` row i has the problem
        max_a D_i(a) - K/2 |a|^2 - <q, a>. Its step is the t in [0, 1] that is best along
        ``d = -C v - a``, for the vertex v of the loss at the row's scores u as the smoothing
        shifts them. With the linear part l of D_i, and the coordinates S that the smoothing of
        strength gamma squares, that is ::

            t = (l(d) - <u, d>) / (K |d|^2 + gamma/C |d_S|^2), clipped.

        Arguments and result are those of :meth:`dtopk.losses.Loss.update_rows`.
        """
        if isinstance(self.loss, RankedHinge):
            value: float = step_rows_ranked(
                scores,
                gram,
                dual,
                delta,
                labels,
                costs,
                self.loss.margin_costs(scores),
                self.loss.rank_weights,
                self.loss.domain,
                self.loss.gamma,
                self.loss.smoothing_code,
                first,
                last,
            )
            return value
        return self.step_rows(scores, gram, dual, delta, labels, costs, first, last)

    def step_rows(
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
        """Do as :meth:`update_rows` does, by nothing but the methods of any polyhedral loss."""
        terms = 0.0
        for i in range(first, last):
            scores[i] += gram[i, first:i] @ delta[first:i]
            row = slice(i, i + 1)
            terms += self._step(
                scores[row], float(gram[i, i]), dual[row], delta[row], labels[row], costs[row]
            )
        return terms

    def _step(
        self, scores: Array, norm: float, dual: Array, delta: Array, labels: Any, costs: Array
    ) -> float:
        """Make the step of one row, given as a batch of one, and return its D_i."""
        np.negative(dual, out=delta)
        if costs[0] == 0:
            dual[:] = 0
            return 0.0
        loss, shifted = self.loss, scores.copy()
        loss.shift_scores(shifted, dual, labels, costs)
        delta -= costs[0] * loss.vertices(shifted, labels)
        product = np.vdot(shifted.astype(np.float64), delta)
        slope = loss.linear_terms(delta, labels, costs)[0] - product
        square = np.vdot(delta.astype(np.float64), delta)
        curvature = norm * square + loss.smoothing_products(delta, delta, labels, costs)[0]
        delta *= _step_length(slope, curvature)
        dual += delta
        square = loss.smoothing_products(dual, dual, labels, costs)[0]
        return float(loss.linear_terms(dual, labels, costs)[0] - 0.5 * square)


def _step_length(slope: float, curvature: float) -> float:
    """Return the t in [0, 1] that is best for ``slope t - curvature t^2 / 2``."""
    if not slope > 0:
        return 0.0
    return 1.0 if slope >= curvature else slope / curvature
