"""Blocked stochastic dual coordinate ascent in the space of a kernel.

With ``W = sum_i phi(x_i) a_i'`` the weights are met in products only: the scores of all rows are
``K A`` for the Gram matrix K, and ``|W|^2 = <A, K A>``. W is kept as its coefficients and, beside
them, as its scores on all training rows, which every block brings up to date by
``scores += K[:, rows] dA``. That costs what the scores of a block alone would cost at its start,
``S = K[rows] A``; but rows whose duals stay have no part in it, and after a pass the whole duality
gap is at hand, for no further product with K.

Coefficients and scores are linear in each other, so the accelerated outer loop
(:mod:`dtopk.solvers.acceleration`) moves both alike.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dtopk.kernels.blas import gemm
from dtopk.kernels.rows import pack_rows, put_duals, take_duals
from dtopk.losses import Labels, Loss
from dtopk.solvers.acceleration import MovingCentre
from dtopk.solvers.certificate import Certificate
from dtopk.solvers.row_groups import RowGroups

Array = NDArray[Any]
Float64 = NDArray[np.float64]
ReadRows = Callable[[int, int], Float64]
"""Returns rows `start` to `stop` of K, of shape (stop - start, n_samples), in float64."""

_MEASURED_ROWS = 1024
"""Rows whose losses are taken together."""
_CERTIFIED_ROWS = 256
"""Rows of K in float64 that the certificate holds at a time."""
_ROUNDING = 1e-6
"""A squared norm or a gap is below 0 by more, relative to what it is a sum of, only if K is no
kernel: its entries may be as good as float32."""
NOT_A_KERNEL = (
    "No features have such products: with these nothing is proved. Use another kernel, or clip "
    "the negative eigenvalues of the matrix."
)
"""What follows from it, for the reader of an error."""


@dataclass(frozen=True, kw_only=True)
class KernelProblem:
    """Rows that are known by their products with each other, and the loss of their scores."""

    loss: Loss
    """The loss."""
    K: Array
    """Gram matrix of shape (n_samples, n_samples), C-contiguous, symmetric, float32 or float64:
    what is computed with."""
    labels: Labels
    """Labels of shape (n_samples,), int32, or LabelSets."""
    costs: Float64
    """C times the weight of each row, of shape (n_samples,)."""
    n_classes: int
    """Classes."""

    def __post_init__(self) -> None:
        n_samples = len(self.costs)
        assert self.K.shape == (n_samples, n_samples)
        assert self.K.flags.c_contiguous
        assert len(self.labels) == n_samples

    @property
    def n_samples(self) -> int:
        """Training rows."""
        return len(self.costs)


@dataclass(frozen=True, kw_only=True)
class Measures:
    """Where a pass has led, over all rows, in the precision of the computation."""

    primal: float
    """P(W)."""
    dual_value: float
    """D(A)."""
    inner: float
    """What the rows' duals lack at W."""
    outer: float
    """Half the squared distance between W and the weights of the duals, the rest of the gap."""


@dataclass(frozen=True, kw_only=True)
class KernelSolution:
    """Coefficients, and what is proved of them."""

    coefficients: Float64
    """Of shape (n_samples, n_classes): the score of x for a class is sum_i k(x, x_i) times its
    column. Where they prove enough these are the duals themselves, put onto their domain, so that
    rows without loss have zeros."""
    certificate: Certificate
    """Primal value at them, and dual value at the duals."""


class KernelSdca:
    """Weights, duals and scores of a kernel problem, and the passes over its rows.

    Parameters
    ----------
    problem : KernelProblem
    block_size : int, at least 1
        Most rows in a block.
    """

    def __init__(self, problem: KernelProblem, block_size: int) -> None:
        self.problem = problem
        self.block_size = min(block_size, problem.n_samples)
        n, m, dtype = problem.n_samples, problem.n_classes, problem.K.dtype
        self.dual: Array = np.zeros((n, m), dtype)
        """A."""
        self.coefficients: Array = np.zeros((n, m), dtype)
        """Those of W."""
        # A row for each class: as the product that brings them up to date is done fastest.
        self.scores: Array = np.zeros((m, n), dtype)
        """Of W, of shape (n_classes, n_samples)."""
        self._centres: tuple[MovingCentre, MovingCentre] | None = None
        self._costs = problem.costs.astype(dtype)
        self._rows = np.empty((self.block_size, n), dtype)
        self._dual, self._delta = (np.empty((self.block_size, m), dtype) for _ in range(2))
        self._groups = RowGroups(problem.loss, self.block_size, dtype)

    @property
    def ratio(self) -> float:
        """Return r of the accelerated outer loop; 1: plain."""
        return 1.0 if self._centres is None else self._centres[0].ratio

    def compile(self) -> None:
        """Call every kernel of a sweep once, on the first row, which may change."""
        self.sweep(np.zeros(1, np.int64))
        self._groups.compile()

    def sweep(
        self, order: NDArray[np.int64], should_stop: Callable[[], bool] = lambda: False
    ) -> int:
        """Maximise the dual over all rows, one after the other.

        Parameters
        ----------
        order : ndarray of shape (n_samples,), int64
            In which they are solved.
        should_stop : callable
            Says whether to end after the block in work.

        Returns
        -------
        int
            Rows visited.
        """
        for start in range(0, len(order), self.block_size):
            self._update(order[start : start + self.block_size])
            if should_stop():
                return min(start + self.block_size, len(order))
        return len(order)

    def _update(self, rows: NDArray[np.int64]) -> None:
        """Do what :meth:`dtopk.solvers.sdca.BlockUpdater.update` does, in the kernel's space."""
        n_rows, kind = len(rows), self.scores.dtype.type
        K, a, delta = self._rows[:n_rows], self._dual[:n_rows], self._delta[:n_rows]
        # With the mode 'raise', numpy would fill a buffer and copy that.
        np.take(self.problem.K, rows, axis=0, out=K, mode="clip")
        take_duals(self.dual, rows, kind(1 / self.ratio), a)
        scores = np.ascontiguousarray(self.scores[:, rows].T)
        costs = self._costs[rows] / kind(self.ratio)
        G = np.take(K, rows, axis=1)
        # Rounding alone may leave a curvature below 0; others are refused before.
        np.fill_diagonal(G, np.maximum(G.diagonal(), 0))
        labels = self.problem.labels[rows]
        _, moved = self._groups.solve(scores, G, a, delta, labels, costs, (n_rows,))
        put_duals(a, rows, kind(self.ratio), self.dual)
        delta = delta[: len(moved)]
        self.coefficients[rows[moved]] += delta
        pack_rows(K, moved)
        gemm(delta.T, K[: len(moved)], self.scores, beta=1.0)

    def measure(self) -> Measures:
        """Take the gap over all rows, at the scores as they are kept."""
        loss = self.problem.loss
        duals = dual_norm = inner = outer = 0.0
        for start in range(0, self.problem.n_samples, _MEASURED_ROWS):
            part = slice(start, start + _MEASURED_ROWS)
            labels, costs = self.problem.labels[part], self.problem.costs[part]
            scores, a = _upright(self.scores[:, part]), self.dual[part].astype(np.float64)
            terms = loss.make_feasible(a, labels, costs)
            losses = costs * loss.values(scores, labels)
            # A sum of terms none of which is below 0: the same in P and D cancels row by row.
            inner += float((losses - terms + np.einsum("ij,ij->i", a, scores)).sum())
            duals += float(terms.sum())
            dual_scores = scores
            if self._centres is not None:
                weights, image = self._centres
                # c Z + A / r = W, so that W(A) - W = (r - 1) (W - Z).
                step = (self.ratio - 1) * (scores - _upright(image.centre[:, part]))
                dual_scores = scores + step
                way = self.coefficients[part].astype(np.float64) - weights.centre[part]
                outer += 0.5 * (self.ratio - 1) * _product(way, step)
            dual_norm += _product(a, dual_scores)
        dual_value = duals - 0.5 * dual_norm
        return Measures(
            primal=dual_value + inner + outer, dual_value=dual_value, inner=inner, outer=outer
        )

    def move_centre(self, ratio: float, *, advance: bool) -> None:
        """Start the accelerated outer loop, give it another ratio, or let its centre move.

        Parameters
        ----------
        ratio : float, above 1
        advance : bool
            Whether the centre moves to the weights.
        """
        if self._centres is None:
            self._centres = (
                MovingCentre(self.coefficients, ratio),
                MovingCentre(self.scores, ratio),
            )
            return
        for centre, W in zip(self._centres, (self.coefficients, self.scores), strict=True):
            if centre.ratio != ratio:
                centre.set_ratio(W, ratio)
            if advance:
                centre.advance(W)

    def certify(self, read_rows: ReadRows, tol: float) -> KernelSolution:
        """Recompute primal and dual over all rows, in float64, for coefficients to be kept.

        If training goes on, it goes on from their scores to the last digit: in float32 those that
        are kept up to date drift.

        Parameters
        ----------
        read_rows : callable
            Reads rows of K in float64.
        tol : float
            The relative gap asked for.

        Raises
        ------
        ValueError
            If K is seen not to be positive semidefinite.
        """
        loss, labels, costs = self.problem.loss, self.problem.labels, self.problem.costs
        dual = self.dual.astype(np.float64)
        dual_sum = float(loss.make_feasible(dual, labels, costs).sum())
        candidates = [dual]
        if self._centres is not None:
            candidates.append(self.coefficients.astype(np.float64))
        products = [np.empty_like(dual) for _ in candidates]
        primals = [0.0 for _ in candidates]
        for start in range(0, self.problem.n_samples, _CERTIFIED_ROWS):
            part = slice(start, min(start + _CERTIFIED_ROWS, self.problem.n_samples))
            K = read_rows(part.start, part.stop)
            for number, coefficients in enumerate(candidates):
                scores = products[number][part]
                gemm(K, coefficients, scores)
                primals[number] += float(costs[part] @ loss.values(scores, labels[part]))
        norms = [_product(*pair) for pair in zip(candidates, products, strict=True)]
        self._check_norms(candidates, norms)
        dual_value = dual_sum - 0.5 * norms[0]
        certificates = [
            Certificate.from_values(losses + 0.5 * norm, dual_value, tol)
            for losses, norm in zip(primals, norms, strict=True)
        ]
        self._take_off_drift(products)
        return _choose(candidates, certificates)

    def _check_norms(self, candidates: list[Float64], norms: list[float]) -> None:
        """Refuse a K in whose metric weights have a negative length, as far as it shows."""
        scales = np.sqrt(np.maximum(self.problem.K.diagonal(), 0), dtype=np.float64)
        for coefficients, norm in zip(candidates, norms, strict=True):
            size = float(scales @ np.linalg.norm(coefficients, axis=1))
            if norm < -_ROUNDING * size**2:
                raise ValueError(
                    f"the Gram matrix must be positive semidefinite, got weights of squared norm "
                    f"{norm:.6g}. {NOT_A_KERNEL}"
                )

    def _take_off_drift(self, products: list[Float64]) -> None:
        """Make scores those of coefficients and duals, as they have been computed anew."""
        self.scores[:] = products[-1].T
        if self._centres is None:
            self.coefficients[:] = self.dual
            return
        kind = self.scores.dtype
        self._centres[0].refresh(self.coefficients, self.dual)
        self._centres[1].refresh(self.scores, products[0].T.astype(kind))


def _choose(candidates: list[Float64], certificates: list[Certificate]) -> KernelSolution:
    """Return the duals themselves if they prove enough, and otherwise the lower primal value."""
    number = 0
    if not certificates[0].certified:
        number = int(np.argmin([certificate.primal for certificate in certificates]))
    chosen = certificates[number]
    if chosen.relative_gap < -_ROUNDING:
        raise ValueError(
            f"the Gram matrix must be positive semidefinite, got a relative duality gap of "
            f"{chosen.relative_gap:.3g}. {NOT_A_KERNEL}"
        )
    return KernelSolution(coefficients=candidates[number], certificate=chosen)


def _upright(scores: Array) -> Float64:
    """Return scores of all classes by rows as scores of rows by class, in float64."""
    return np.ascontiguousarray(scores.T, dtype=np.float64)


def _product(a: Array, b: Array) -> float:
    """Return <a, b>, summed in float64."""
    return float(np.einsum("ij,ij->", a, b, dtype=np.float64))
