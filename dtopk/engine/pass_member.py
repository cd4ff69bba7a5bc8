"""A member of a run whose solver reads all rows before it changes the weights.

Of a pass a member makes the sum of x_i a_i' over the rows of its partitions, for one row a_i that
each row's scores give. The sums of all partitions together are one *vector* of the shape of W, of
which the next weights are made (:mod:`dtopk.engine.vector_member`). What comes out does not depend
on how many partitions there are, up to rounding.
"""

import contextlib
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dtopk.engine.feed import Visit
from dtopk.engine.messages import Fold, PartitionSums, Pass, PassSums
from dtopk.engine.options import StartPoint
from dtopk.engine.vector_member import VectorMember
from dtopk.kernels.blas import gemm
from dtopk.losses import Labels, Loss
from dtopk.solvers.bundle import BASE
from dtopk.solvers.certificate import CertificateSums
from dtopk.solvers.directions import DirectionSum, SparseRows, choose_batch_rows

Array = NDArray[Any]


class PassMember(VectorMember):
    """One process's part in a run of passes. See :class:`Member`."""

    def take_place(self, places: Any, peers: Any) -> None:
        """See :meth:`Member.take_place`."""
        super().take_place(places, peers)
        self._atoms: dict[int, dict[int, SparseRows]] = {}
        self._folded: dict[int, int] = {}
        self._sums: dict[int, DirectionSum] = {}
        self._folds: list[Fold] = []

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

    def give(self, kind: str, *key: int) -> Array:
        """See :meth:`Member.give`; duals are made where none are kept."""
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
        self._read_vectors(version, vectors)
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
