"""A member of a run whose solver reads all rows before it changes the weights.

Of a pass a member makes the sum of x_i a_i' over the rows of its partitions, for one row a_i that
each row's scores give. The sums of all partitions together are one *vector* of the shape of W. Of
vectors, which have names, the keepers of W's slices have the slices: they are multiplied, combined
and turned into the next weights there, as the lead says, which itself sees products alone. What
comes out does not depend on how many partitions there are, up to rounding.
"""

import contextlib
import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import scipy.linalg
from numpy.typing import NDArray

from dtopk.engine.feed import Visit
from dtopk.engine.member import Member
from dtopk.engine.messages import (
    ExactNorms,
    Fold,
    PartitionSums,
    Pass,
    PassSums,
    SliceProducts,
    Wish,
)
from dtopk.engine.options import StartPoint
from dtopk.kernels.blas import gemm, gram
from dtopk.kernels.vectors import combine, multiply
from dtopk.losses import Labels, Loss
from dtopk.solvers.bundle import BASE
from dtopk.solvers.certificate import CertificateSums
from dtopk.solvers.directions import DirectionSum, SparseRows, choose_batch_rows

Array = NDArray[Any]

WEIGHTS = "weights"
"""Name of the vector that is W itself."""
MOVE = "move"
"""Name of the vector that the last pass has made, before it has another name."""
METRIC = "metric"
"""Name of X'X."""
_EXACT = frozenset({"base", METRIC})
"""Vectors that are kept in float64: over the passes many others are added to them."""


class PassMember(Member):
    """One process's part in a run of passes. See :class:`Member`."""

    def take_place(self, places: Any, peers: Any) -> None:
        """See :meth:`Member.take_place`."""
        super().take_place(places, peers)
        self._vectors: dict[str, dict[int, Array]] = {}
        self._atoms: dict[int, dict[int, SparseRows]] = {}
        self._folded: dict[int, int] = {}
        self._sums: dict[int, DirectionSum] = {}
        self._folds: list[Fold] = []
        self._inverse: dict[int, Array] = {}

    @property
    def _batch_rows(self) -> int:
        return choose_batch_rows(self.conversion.width, self.rows.n_classes, self.W.itemsize)

    def compile(self) -> None:
        """Call the kernels once, on a row of zeros, so that no pass waits for the compiler."""
        X = np.zeros((1, self.rows.n_features), self.rows.dtype)
        labels = self.example_labels()
        costs = np.ones(1, self.W.dtype)
        scores = np.zeros((1, self.rows.n_classes), self.W.dtype)
        block = np.zeros((1, self.conversion.width), self.W.dtype)
        self.conversion.gather(X, np.zeros(1, np.int64), block)
        example = DirectionSum(self.W.shape[0], self.W.shape[1], self.W.dtype)
        example.add(block, scores)
        example.total()
        for loss in (self.loss, self.loss.convex_start):
            loss.values(scores, labels)
        if self.loss.polyhedral:
            self.loss.vertices(scores, labels)
            self.loss.shift_scores(scores, scores.copy(), labels, costs)
            self.loss.linear_terms(scores, labels, costs)
        certificate = CertificateSums(self.loss, self.conversion, self.W)
        certificate.add(X, labels, costs, None if self.duals.absent else scores)

    # Passes.

    def pass_over(self, order: Pass) -> list[PassSums]:
        """Read all rows; keep the sums of x_i a_i' for the slices' keepers.

        Parameters
        ----------
        order : Pass

        Returns
        -------
        list of PassSums
            One for each partition that is here.
        """
        if self._has_leftovers:
            self._forget_others()
        if order.version != self._version:
            self.begin_version(order.version)
        self.gather()
        self._folds += order.folds
        ends = time.perf_counter() + order.seconds_left
        return [self._pass_partition(k, order, ends) for k in self._hosted]

    def _pass_partition(self, partition: int, order: Pass, ends: float) -> PassSums:
        began, waited = time.perf_counter(), self.feed.read_seconds
        if partition not in self._sums:
            self._sums[partition] = DirectionSum(self.W.shape[0], self.W.shape[1], self.W.dtype)
        total = self._sums[partition]
        total.restart()
        sums = PassSums(partition=partition, member=self.places.index)
        visits = self.feed.visit(self._owned[partition], update=not self.duals.absent)
        with contextlib.closing(visits):
            for visit in visits:
                self._pass_block(visit, order, total, sums)
                if self._cut_short(ends):
                    break
        self.duals.settle(dict.fromkeys(self._owned[partition], 1.0))
        self._moves[partition] = total.total()
        sums.seconds = time.perf_counter() - began
        sums.read_seconds = self.feed.read_seconds - waited
        return sums

    def _pass_block(self, visit: Visit, order: Pass, total: DirectionSum, sums: PassSums) -> None:
        piece, costs = visit.piece, self._costs(visit)
        if not self.duals.absent:
            self._fold(visit)
        found: list[SparseRows] = []
        for start in range(0, len(costs), self._batch_rows):
            part = slice(start, min(start + self._batch_rows, len(costs)))
            clock = [time.perf_counter()]
            X = self.conversion.convert(piece.X[part])
            clock.append(time.perf_counter())
            scores = np.empty((len(X), self.W.shape[1]), self.W.dtype)
            gemm(X, self.W, scores)
            clock.append(time.perf_counter())
            rows = piece.labels[part], costs[part].astype(self.W.dtype)
            if order.kind == "gradients":
                loss = self.loss.convex_start if order.begins else self.loss
                A = _gradients(loss, scores, *rows, sums)
            else:
                A = self._vertices(visit, part, scores, *rows, order, sums)
            clock.append(time.perf_counter())
            sparse = total.add(X, A)
            if not self.duals.absent:
                found.append(SparseRows.from_dense(A) if sparse is None else sparse)
            clock.append(time.perf_counter())
            sums.n_rows += len(X)
            self._add_pass_times(clock)
            self.report(len(X))
            self.pulse()
        if found:
            atom = SparseRows.concatenate(found)
            sums.nonzeros += len(atom.values)
            self._atoms.setdefault(visit.block, {})[order.atom] = atom

    def _add_pass_times(self, clock: Sequence[float]) -> None:
        spent = np.diff(clock)
        timings = self.updater.timings
        timings.convert += spent[0]
        timings.scores += spent[1]
        timings.inner += spent[2]
        timings.update += spent[3]

    def _vertices(
        self,
        visit: Visit,
        part: slice,
        scores: Array,
        labels: Labels,
        costs: Array,
        order: Pass,
        sums: PassSums,
    ) -> Array:
        """Return the vertices that the dual's gradient points to; add up what a mixture needs."""
        smooth = not self.duals.absent
        if smooth:
            sums.losses += float(costs.astype(np.float64) @ self.loss.values(scores, labels))
            atoms = self._atoms.get(visit.block, {})
            mixed = visit.dual[part] * scores.dtype.type(order.mixture.get(BASE, 0.0))
            for name, weight in order.mixture.items():
                if name != BASE:
                    atoms[name][part].add_to(mixed, weight)
            self.loss.shift_scores(scores, mixed, labels, costs)
        A = self.loss.vertices(scores, labels)
        A *= -costs[:, None]
        sums.linear += float(self.loss.linear_terms(A, labels, costs).sum())
        if smooth:
            # gamma/C A, by which the products with others are those of the smoothing.
            scaled = np.zeros_like(A)
            self.loss.shift_scores(scaled, A, labels, costs)
            sums.add_product("new", float(np.einsum("ij,ij->", A, scaled, dtype=np.float64)))
            base = np.einsum("ij,ij->", visit.dual[part], scaled, dtype=np.float64)
            sums.add_product(str(BASE), float(base))
            for name in order.atoms:
                sums.add_product(str(name), atoms[name][part].dot(scaled))
        return A

    def _fold(self, visit: Visit) -> None:
        """Bring the base of a block up to date, in place."""
        dual = visit.dual
        for fold in self._folds[self._folded.get(visit.block, 0) :]:
            atoms = self._atoms.get(visit.block, {})
            if fold.shares != {BASE: 1.0}:
                dual *= dual.dtype.type(fold.shares.get(BASE, 0.0))
            for name, share in fold.shares.items():
                if name != BASE and share:
                    atoms[name].add_to(dual, share)
            for name in fold.dropped:
                atoms.pop(name, None)
        self._folded[visit.block] = len(self._folds)

    # Vectors, slice by slice.

    def collect(self, name: str) -> None:
        """Add up what the partitions have summed in the last pass, as a vector.

        Parameters
        ----------
        name : str
        """
        for number in self._kept:
            pieces = self._collect_moves([number])[number]
            out = self._make_vector(name, number, pieces[0].shape[1])
            combine([1.0] * len(pieces), [piece.ravel() for piece in pieces], out.ravel())

    def _put(self, name: str, number: int, values: Array) -> None:
        self._vectors.setdefault(name, {})[number] = values.astype(self._dtype_of(name))

    def _dtype_of(self, name: str) -> np.dtype[Any]:
        return np.dtype(np.float64) if name in _EXACT else self.W.dtype

    def _make_vector(self, name: str, number: int, n_columns: int) -> Array:
        """Return a slice of a vector to write to: the one that is there, or a new one."""
        if name == WEIGHTS:
            return self._vector(name, number)
        slices = self._vectors.setdefault(name, {})
        if number not in slices:
            first, last = self.layout.slices[number]
            slices[number] = np.zeros((last - first, n_columns), self._dtype_of(name))
        return slices[number]

    def _vector(self, name: str, number: int) -> Array:
        if name == WEIGHTS:
            first, last = self.layout.slices[number]
            return self.W[first:last]
        found = self._vectors.get(name, {}).get(number)
        if found is None:
            first, last = self.layout.slices[number]
            found = np.zeros((last - first, self.W.shape[1]))
        return found

    def multiply_vectors(self, left: Sequence[str], right: Sequence[str]) -> list[SliceProducts]:
        """Take the products of vectors with vectors, in the slices kept here.

        Parameters
        ----------
        left, right : sequence of str

        Returns
        -------
        list of SliceProducts
            With a `gram` of shape (n_left, n_right), and no slopes.
        """
        products = []
        for number in self._kept:
            a, b = (
                [self._vector(name, number).ravel() for name in names] for names in (left, right)
            )
            products.append(SliceProducts(slice=number, gram=multiply(a, b), slopes=np.zeros(0)))
        return products

    def combine(self, name: str, terms: Mapping[str, float]) -> None:
        """Make a vector, or W, the sum of multiples of vectors.

        Parameters
        ----------
        name : str
        terms : mapping of str to float
        """
        for number in self._kept:
            vectors = [self._vector(other, number).ravel() for other in terms]
            out = self._make_vector(name, number, self.W.shape[1])
            combine(list(terms.values()), vectors, out.ravel())
        if name == WEIGHTS:
            self._stale = True

    def drop(self, names: Sequence[str]) -> None:
        """Forget vectors.

        Parameters
        ----------
        names : sequence of str
        """
        for name in names:
            self._vectors.pop(name, None)

    # The metric of the features.

    def sum_metric(self) -> None:
        """Sum C_i x_i x_i' over the rows of each partition."""
        width = self.conversion.width
        for partition in self._hosted:
            total, G = np.zeros((width, width)), np.zeros((width, width), self.W.dtype)
            for visit in self.feed.visit(self._owned[partition], update=False):
                weights = np.sqrt(self._costs(visit)).astype(self.W.dtype)
                for start in range(0, len(weights), 4096):
                    rows = np.arange(start, min(start + 4096, len(weights)))
                    X = np.empty((len(rows), width), self.W.dtype)
                    self.conversion.gather(visit.piece.X, rows, X)
                    with np.errstate(over="ignore", invalid="ignore"):  # It is looked at whole.
                        X *= weights[rows, None]
                    gram(np.ascontiguousarray(X.T), G)
                    total += G
                    self.pulse()
            self._moves[partition] = np.tril(total) + np.tril(total, -1).T

    def invert_metric(self, curvature: float) -> None:
        """Keep the rows of the inverse of I + curvature X'X that belong to the slices kept here.

        Parameters
        ----------
        curvature : float
        """
        width = self.conversion.width
        metric = np.empty((width, width))
        self._gather_vector(METRIC, metric)
        metric *= curvature
        metric[np.diag_indices(width)] += 1.0
        if not np.isfinite(metric).all():
            raise ValueError(
                "sums of products of the features must stay finite, but one has overflowed: "
                f"{self.options.explain_overflow()}"
            )
        self.pulse()
        factor = scipy.linalg.cho_factor(metric, lower=True, overwrite_a=True)
        for number in self._kept:
            first, last = self.layout.slices[number]
            unit = np.zeros((width, last - first))
            unit[np.arange(first, last), np.arange(last - first)] = 1.0
            inverse = scipy.linalg.cho_solve(factor, unit, overwrite_b=True)
            self._inverse[number] = np.ascontiguousarray(inverse.T).astype(self.W.dtype)
            self.pulse()

    def precondition(self, source: str, name: str) -> None:
        """Multiply a vector by the inverse of the metric.

        Parameters
        ----------
        source : str
        name : str
            Of what comes out.
        """
        whole = np.empty_like(self.W)
        self._gather_vector(source, whole)
        for number in self._kept:
            first, last = self.layout.slices[number]
            out = np.empty((last - first, self.W.shape[1]), self.W.dtype)
            gemm(self._inverse[number], whole, out)
            self._put(name, number, out)

    def _gather_vector(self, name: str, out: Array) -> None:
        """Collect all slices of a vector."""
        wishes = [
            Wish(member=keeper, kind=f"vector {name}", key=(number,))
            for number, keeper in enumerate(self.places.keepers)
        ]

        def take(place: int, values: Array) -> None:
            first, last = self.layout.slices[place]
            out[first:last] = values

        self._collect(wishes, take)

    def give(self, kind: str, *key: int) -> Array:
        """See :meth:`Member.give`; 'vector NAME' is the slice of a vector."""
        if kind.startswith("vector "):
            return self._vector(kind.removeprefix("vector "), key[0])
        if kind == "dual" and self.duals.absent:
            return self._make_duals(key[0])
        return super().give(kind, *key)

    # Certificates.

    def sum_certificate(self) -> list[PartitionSums]:
        """Sum losses, duals and their weights over all rows, in float64, from what is kept.

        Where no duals are kept they are made of the loss's gradients at the weights.
        """
        self.gather()
        if self.duals.absent:

            def add(visit: Visit, parts: CertificateSums) -> None:
                parts.add(visit.piece.X, visit.piece.labels, self._costs(visit), None)

            return [self._sum_partition(k, self.W, add, update=False) for k in self._hosted]

        def fold_and_add(visit: Visit, parts: CertificateSums) -> None:
            self._fold(visit)
            parts.add(visit.piece.X, visit.piece.labels, self._costs(visit), visit.dual)

        sums = [self._sum_partition(k, self.W, fold_and_add, update=True) for k in self._hosted]
        self.duals.settle(dict.fromkeys(range(len(self.layout.blocks)), 1.0))
        return sums

    def fold(self, folds: Sequence[Fold]) -> None:
        """Take note of what the base is to become; blocks follow when they are visited next.

        Parameters
        ----------
        folds : sequence of Fold
        """
        self._folds += folds

    def sum_losses(self) -> list[PartitionSums]:
        """Sum the losses at W over all rows, in float64, and nothing of duals."""
        self.gather()
        sums = []
        for partition in self._hosted:
            parts = CertificateSums(self.loss, self.conversion, self.W)
            for visit in self.feed.visit(self._owned[partition], update=False):
                parts.add_losses(visit.piece.X, visit.piece.labels, self._costs(visit))
                self.pulse()
            sums.append(
                PartitionSums(
                    partition=partition, blocks=(), losses=(parts.loss_sum,), duals=(0.0,)
                )
            )
        return sums

    def keep_exact(self) -> list[ExactNorms]:
        """Sum the duals' weights that a certificate has made, and keep them as the base.

        Returns
        -------
        list of ExactNorms
        """
        norms = self.sum_exact()
        for number, exact in self._exact.items():
            self._put("base", number, exact)
        # Others may still ask for the moves: those of the next pass take their place.
        self._exact = {}
        return norms

    # Duals that are made when they are asked for.

    def _make_duals(self, block: int) -> Array:
        """Return minus C times the loss's gradients at the weights, as a certificate takes them."""
        piece = self.feed.read(block)
        visit = Visit(block=block, piece=piece, dual=np.empty((0, 0)))
        parts = CertificateSums(self.loss, self.conversion, self.W)
        duals: Array = parts.make_duals(piece.X, piece.labels, self._costs(visit))
        return duals

    # Starting and going on.

    def start(self, start: StartPoint) -> list[PartitionSums]:
        """Take duals from a file or from the gradients at weights, and sum their weights."""
        if not self.duals.absent:
            return super().start(start)
        weights = np.zeros_like(self.W)
        if start.W is not None:
            weights[: len(start.W)] = start.W

        def add(visit: Visit, parts: CertificateSums) -> None:
            dual = np.empty((len(visit.piece.labels), self.rows.n_classes), self.W.dtype)
            self._start_block(
                Visit(block=visit.block, piece=visit.piece, dual=dual), start, weights, parts
            )

        return [
            self._sum_partition(k, weights, add, update=False, solved=self.solved)
            for k in self._hosted
        ]

    def set_weights(self, start: StartPoint) -> None:
        """Begin at weights that are given."""
        assert start.W is not None
        self.W[:] = 0
        self.W[: len(start.W)] = start.W

    def save(self, version: str) -> list[int]:
        """See :meth:`Member.save`; vectors and atoms too."""
        written = super().save(version)
        assert self.state is not None
        for name, slices in self._vectors.items():
            for number, values in slices.items():
                written.append(self.state.write_array(version, f"{name}/{number}", values))
        for block, atoms in self._atoms.items():
            for atom, rows in atoms.items():
                place = f"rows-{atom}/{block:07d}"
                for part, values in (
                    ("indptr", rows.indptr),
                    ("indices", rows.indices.astype(np.int64)),
                    ("values", rows.values),
                ):
                    written.append(self.state.write_array(version, f"{place}/{part}", values))
        return written

    def restore_vectors(self, version: str, vectors: Sequence[str], atoms: Sequence[int]) -> None:
        """Take over what a version of the state has of the blocks and slices that are here.

        Parameters
        ----------
        version : str
        vectors : sequence of str
        atoms : sequence of int
        """
        self.restore(version, 1.0)
        assert self.state is not None
        self._vectors = {
            name: {
                number: self.state.read_array(version, f"{name}/{number}") for number in self._kept
            }
            for name in vectors
        }
        blocks = [block for blocks in self._owned.values() for block in blocks]
        self._folds, self._folded = [], {}
        self._atoms = {
            block: {name: self._read_atom(version, name, block) for name in atoms}
            for block in blocks
            if atoms
        }

    def _read_atom(self, version: str, name: int, block: int) -> SparseRows:
        assert self.state is not None
        place = f"rows-{name}/{block:07d}"
        indptr, indices, values = (
            self.state.read_array(version, f"{place}/{part}")
            for part in ("indptr", "indices", "values")
        )
        return SparseRows(indptr, indices.astype(np.int32), values)


def _gradients(loss: Loss, scores: Array, labels: Labels, costs: Array, sums: PassSums) -> Array:
    """Return -C times the gradients; add up the losses and what they lose to their duals."""
    values = costs.astype(np.float64) * loss.values(scores, labels)
    A: Array = loss.gradients(scores, labels)
    A *= -costs[:, None]
    products = np.einsum("ij,ij->i", A, scores, dtype=np.float64)
    sums.losses += float(values.sum())
    sums.linear += float((values + products).sum())
    return A
