"""One process's part in a run: it sweeps partitions of the rows, and sums slices of the weights.

Every member has all of W. Of a round, a member makes the changes of W that its partitions come to;
for each slice of W one member gets the changes of all partitions, and forms the slice anew. Sums
over partitions are taken in the partitions' order, whoever has them: what comes out depends on how
the work is cut, and not on how many members share it.

Here is what a member does with rows; what becomes of W is in :mod:`dtopk.engine.slice_keeper`, and
who has which block in :mod:`dtopk.engine.block_keeper`.
"""

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dtopk.engine.block_keeper import BlockKeeper
from dtopk.engine.blocks import Layout
from dtopk.engine.duals import Duals
from dtopk.engine.feed import Feed, Visit
from dtopk.engine.lanes import SharedFeed
from dtopk.engine.messages import PartitionSums, Places, Probe, SliceNorms, Step, Sweep
from dtopk.engine.mixed_visits import MixedBatch, MixedVisits, count_batch_rows
from dtopk.engine.options import FitOptions, StartPoint
from dtopk.engine.probe import draw_rows
from dtopk.engine.rows import Rows
from dtopk.engine.slice_keeper import NoPeers
from dtopk.kernels.blas import gemm
from dtopk.losses import Labels, LabelSets, Loss, MaskedLabels, join_labels
from dtopk.solvers.certificate import CertificateSums
from dtopk.solvers.row_groups import RowSolver
from dtopk.solvers.sdca import BlockUpdater, RowConversion, default_block_size
from dtopk_storage import RunState

Array = NDArray[Any]
Float64 = NDArray[np.float64]

_START_ROWS = 4096
"""Rows whose duals are started together."""


class Member(BlockKeeper):
    """One process's part in a run.

    Parameters
    ----------
    rows : Rows
    loss : Loss
    options : FitOptions
    layout : Layout
    duals : Duals
    keep_features : bool
        Whether rows stay in memory once they have been read.
    state : RunState or None
        Where the run's state is written.
    steps : RowSolver or None
        What takes the place of the loss's exact updates of rows; None: they are made.
    feed : Feed, SharedFeed or None
        Where rows come from; None: from a feed of this member's own.
    stop : callable
        Says whether to end a sweep after the block in work.
    report : callable
        Told the number of rows done, after every block.
    pulse : callable
        Called time and again where a call takes long, from whatever thread does the work; may
        raise, which ends the call and leaves the member of no use.
    """

    def __init__(
        self,
        rows: Rows,
        loss: Loss,
        options: FitOptions,
        layout: Layout,
        duals: Duals,
        *,
        keep_features: bool,
        state: RunState | None = None,
        steps: RowSolver | None = None,
        feed: Feed | SharedFeed | None = None,
        stop: Callable[[], bool] = lambda: False,
        report: Callable[[int], None] = lambda added: None,
        pulse: Callable[[], None] = lambda: None,
    ) -> None:
        self.rows = rows
        self.loss = loss
        # Of a loss that is not convex, what its duals are feasible for whatever they leave out.
        self.solved: Loss = loss.convex_start if loss.n_masked else loss
        self.options = options
        self.stop = stop
        self.report = report
        self.pulse = pulse
        dtype = np.dtype(options.dtype)
        self.conversion = make_conversion(rows, options)
        W = np.zeros((self.conversion.width, rows.n_classes), dtype)
        super().__init__(layout, W, duals, state)
        size = options.block_size or default_block_size(self.conversion.width, rows.n_classes)
        self._largest_block = max(block.n_rows for block in layout.blocks)
        self._steps = loss if steps is None else steps
        self.updater = BlockUpdater(
            self._steps,
            self.conversion,
            rows.n_classes,
            count_batch_rows(layout, rows.n_classes, size),
        )
        self.feed = self._make_feed(keep_features) if feed is None else feed
        self.take_place(
            Places(index=0, hosts=(0,) * layout.n_partitions, keepers=(0,) * len(layout.slices)),
            NoPeers(),
        )

    def _make_feed(self, keep_features: bool) -> Feed:
        return Feed(self.rows, self.layout.blocks, self.duals, keep_features=keep_features)

    def close(self) -> None:
        """End the background thread."""
        self.feed.close()

    def compile(self) -> None:
        """Call every kernel once, on a row of zeros, so that no sweep waits for the compiler."""
        self._compile(self.loss, self._steps, self.example_labels())

    def _compile(self, loss: Loss, steps: RowSolver, labels: Labels) -> None:
        X, costs = np.zeros((1, self.rows.n_features), self.rows.dtype), np.ones(1, self.W.dtype)
        W, dual = np.zeros_like(self.W), np.zeros((1, self.rows.n_classes), self.W.dtype)
        BlockUpdater(steps, self.conversion, self.rows.n_classes, 1).compile(X, labels, W)
        CertificateSums(loss, self.conversion, W).add(X, labels, costs, dual)

    def example_labels(self) -> Labels:
        """Make the labels of one row, of the kind that the loss takes."""
        label = np.zeros(1, np.int32)
        return label if "multiclass" in self.loss.targets else LabelSets.from_labels(label)

    # The parts of a round.

    def sweep(self, orders: Sequence[Sequence[int]], step: Step) -> list[Sweep]:
        """Climb the dual over blocks of this member's partitions, each on its own.

        Parameters
        ----------
        orders : sequence of sequences of int
            The blocks of every partition, in their order.
        step : Step

        Returns
        -------
        list of Sweep
            One for each partition that is here.
        """
        if self._has_leftovers:
            self._forget_others()
        if step.version != self._version:
            self.begin_version(step.version)
        self.gather()
        ends = time.perf_counter() + step.seconds_left
        sweeps = []
        for partition in self._hosted:
            U = self.W if self._alone else self.W.copy()
            sweeps.append(self._sweep_partition(partition, orders[partition], step, U, ends))
            if not self._alone:
                U -= self.W
                U *= U.dtype.type(1 / step.sigma)
                self._moves[partition] = U
        return sweeps

    def _sweep_partition(
        self, partition: int, order: Sequence[int], step: Step, U: Array, ends: float
    ) -> Sweep:
        began, waited = time.perf_counter(), self.feed.read_seconds
        duals: dict[int, float] = {}
        n_rows = 0
        mixed = MixedVisits(
            len(order),
            self._largest_block,
            self.updater.block_size,
            mixed=self.layout.mixed,
        )
        visits = self.feed.visit(order, update=True, n_held=mixed.n_held)
        dealt = mixed.deal(
            _note_blocks(visits, duals),
            self._cast_costs,
            (self.options.seed, step.epoch),
            lambda: self._cut_short(ends),
        )
        with contextlib.closing(visits):
            for batches in dealt:
                n_rows += self._update(batches, step, U, ends, duals)
                if self._alone and self._cut_short(ends):
                    break
        return Sweep(
            partition=partition,
            member=self.places.index,
            blocks=tuple(duals),
            duals=tuple(duals.values()),
            n_rows=n_rows,
            seconds=time.perf_counter() - began,
            read_seconds=self.feed.read_seconds - waited,
        )

    def _update(
        self,
        batches: Sequence[MixedBatch],
        step: Step,
        U: Array,
        ends: float,
        duals: dict[int, float],
    ) -> int:
        """Update rows, and add what their duals sum to, by block; return how many there were."""
        n_rows = 0
        updates = self.updater.update_all(
            [batch.parts for batch in batches], U, step.ratio, step.sigma
        )
        for batch, values in zip(batches, updates, strict=False):
            for block, value in zip(batch.blocks, values, strict=True):
                duals[block] += value
            n_rows += batch.n_rows
            self.report(batch.n_rows)
            self.pulse()
            # Where there are others, a block of which rows are left out would seem to have lost.
            if self._alone and self._cut_short(ends):
                break
        return n_rows

    def _cut_short(self, ends: float) -> bool:
        return self.stop() or time.perf_counter() > ends

    def settle(self, theta: Sequence[float], by_block: Mapping[int, float]) -> list[SliceNorms]:
        """Go shares of the way: duals of the partitions, and W in the slices kept here.

        Parameters
        ----------
        theta : sequence of float
            Of each partition.
        by_block : mapping of int to float
            The same for each block that the round has visited.

        Returns
        -------
        list of SliceNorms
        """
        self.duals.settle(by_block)
        return self.settle_slices(theta)

    def _cast_costs(self, visit: Visit) -> Array:
        return self._costs(visit).astype(self.W.dtype)

    def _costs(self, visit: Visit) -> Float64:
        """Return C times the weight of each row of a block, in float64.

        Raises
        ------
        ValueError
            If one is too large for the type of the computation.
        """
        costs = self._weigh(visit)
        most = float(np.finfo(self.options.dtype).max)
        if not (costs <= most).all():
            raise ValueError(
                f"C times the weight of a row must be at most {most:.3g} in {self.options.dtype}, "
                f"got {costs.max():.3g}. Take smaller weights, or a smaller C."
            )
        return costs

    def _weigh(self, visit: Visit) -> Float64:
        costs = self.options.C * visit.piece.weight
        if self.options.class_weight is not None:
            labels = visit.piece.labels
            labels = labels.labels if isinstance(labels, MaskedLabels) else labels
            assert isinstance(labels, np.ndarray)  # The classes of sets have no weights.
            costs = costs * self.options.class_weight[labels]
        return costs

    # Looking at where the run is.

    def probe(self, epoch: int, n_rows: int) -> list[Probe]:
        """Estimate the duality gap from some rows of each partition.

        The gap is a sum of one term a row, none below 0, and half the squared distance between W
        and the weights of the duals. A term needs the row's scores at W, and no other row.

        Parameters
        ----------
        epoch : int
        n_rows : int
            Rows of all partitions together, about.
        """
        self.gather()
        return [self._probe_partition(k, epoch, n_rows) for k in self._hosted]

    def _probe_partition(self, partition: int, epoch: int, n_rows: int) -> Probe:
        blocks = self._owned[partition]
        sizes = [self.layout.blocks[block].n_rows for block in blocks]
        rng = np.random.default_rng([self.options.seed, epoch, partition, 2])
        # One partition of a store looks at the same rows whether they are streamed or in memory.
        few_blocks = self.layout.streamed or (self._alone and not self.rows.resident)
        drawn = draw_rows(sizes, n_rows / self.layout.n_samples, rng, few_blocks=few_blocks)
        gap, waiting = 0.0, []
        for visit in self.feed.look([blocks[i] for i in drawn], list(drawn.values())):
            # A product with W costs a reading of W, however few the rows.
            waiting.append(visit)
            if sum(len(each.dual) for each in waiting) >= self.updater.block_size:
                gap += self._row_gaps(waiting)
                waiting = []
            self.pulse()
        if waiting:
            gap += self._row_gaps(waiting)
        n_drawn = sum(len(rows) for rows in drawn.values())
        return Probe(partition=partition, gap=gap * sum(sizes) / max(n_drawn, 1))

    def _row_gaps(self, visits: Sequence[Visit]) -> float:
        """Sum what the duals of some rows lack at W."""
        X = np.concatenate([visit.piece.X for visit in visits])
        dual = np.concatenate([visit.dual for visit in visits])
        labels = join_labels([visit.piece.labels for visit in visits])
        costs = np.concatenate([self._costs(visit) for visit in visits])
        gap = 0.0
        for first in range(0, len(X), self.updater.block_size):
            part = slice(first, first + self.updater.block_size)
            scores = self._scores(X[part], self.W).astype(np.float64)
            a = dual[part].astype(np.float64)
            duals = self.solved.make_feasible(a, labels[part], costs[part])
            # In float64 as the certificate's: one kernel less to compile.
            losses = costs[part] * self.solved.values(scores, labels[part])
            gap += float((losses - duals + np.einsum("ij,ij->i", a, scores)).sum())
        return gap

    def sum_certificate(self) -> list[PartitionSums]:
        """Sum losses, duals and the duals' weights over all rows, in float64."""
        self.gather()

        def add(visit: Visit, parts: CertificateSums) -> None:
            parts.add(visit.piece.X, visit.piece.labels, self._costs(visit), visit.dual)

        return [self._sum_partition(k, self.W, add, update=False) for k in self._hosted]

    def _sum_partition(
        self,
        partition: int,
        weights: Array,
        add: Callable[[Visit, CertificateSums], None],
        *,
        update: bool,
        solved: Loss | None = None,
    ) -> PartitionSums:
        """Visit a partition's blocks; keep the duals' weights for the slices' keepers."""
        parts = CertificateSums(solved or self.loss, self.conversion, weights)
        blocks, losses, duals = [], [], []
        visits = self.feed.visit(self._owned[partition], update=update)
        with contextlib.closing(visits):
            for visit in visits:
                loss, dual = parts.loss_sum, parts.dual_sum
                add(visit, parts)
                self.pulse()
                blocks.append(visit.block)
                losses.append(parts.loss_sum - loss)
                duals.append(parts.dual_sum - dual)
        self._moves[partition] = parts.dual_weights
        return PartitionSums(
            partition=partition,
            blocks=tuple(blocks),
            losses=tuple(losses),
            duals=tuple(duals),
            linear=parts.linear_sum,
        )

    def start(self, start: StartPoint) -> list[PartitionSums]:
        """Take duals from a file or from the gradients at weights, and sum their weights.

        Parameters
        ----------
        start : StartPoint
        """
        weights = np.zeros_like(self.W)
        if start.W is not None:
            weights[: len(start.W)] = start.W

        def add(visit: Visit, parts: CertificateSums) -> None:
            self._start_block(visit, start, weights, parts)

        sums = [
            self._sum_partition(k, weights, add, update=True, solved=self.solved)
            for k in self._hosted
        ]
        self.duals.settle(dict.fromkeys(range(len(self.layout.blocks)), 1.0))
        return sums

    def _start_block(
        self, visit: Visit, start: StartPoint, weights: Array, parts: CertificateSums
    ) -> None:
        piece, costs = visit.piece, self._costs(visit)
        for first in range(0, len(costs), _START_ROWS):
            part = slice(first, first + _START_ROWS)
            X, labels, cost = piece.X[part], piece.labels[part], costs[part]
            if start.dual is not None:
                low = self.layout.blocks[visit.block].start + first
                a = start.dual.read(low, low + len(cost)).astype(np.float64)
                a *= start.dual_factor
            else:
                gradients = self.loss.gradients(self._scores(X, weights), labels)
                a = -cost[:, None] * gradients.astype(np.float64)
            self.solved.make_feasible(a, labels, cost)
            visit.dual[part] = a
            parts.add(X, labels, cost, visit.dual[part])

    def _scores(self, X: Array, W: Array) -> Array:
        block = np.empty((len(X), self.conversion.width), W.dtype)
        self.conversion.gather(X, np.arange(len(X)), block)
        scores = np.empty((len(X), W.shape[1]), W.dtype)
        gemm(block, W, scores)
        return scores


def _note_blocks(visits: Iterator[Visit], duals: dict[int, float]) -> Iterator[Visit]:
    """Begin the sum of the duals of each block that comes."""
    for visit in visits:
        duals[visit.block] = 0.0
        yield visit


def make_conversion(rows: Rows, options: FitOptions) -> RowConversion:
    """Say how rows at rest become rows of the computation.

    Parameters
    ----------
    rows : Rows
    options : FitOptions
    """
    return RowConversion(
        n_features=rows.n_features,
        dtype=np.dtype(np.float64),
        mean=options.mean,
        inverse_scale=options.inverse_scale,
        constant=options.constant,
    ).in_dtype(options.dtype)
