"""One process's part in a run: it sweeps partitions of the rows, and sums slices of the weights.

Every member has all of W. Of a round, a member makes the changes of W that its partitions come to;
for each slice of W one member gets the changes of all partitions, and forms the slice anew. Sums
over partitions are taken in the partitions' order, whoever has them: what comes out depends on how
the work is cut, and not on how many members share it.
"""

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from dtopk.engine.blocks import Layout
from dtopk.engine.duals import Duals
from dtopk.engine.feed import Feed, Visit
from dtopk.engine.lanes import SharedFeed
from dtopk.engine.messages import (
    ExactNorms,
    PartitionSums,
    Places,
    Probe,
    SliceNorms,
    SliceProducts,
    Step,
    Sweep,
    Wish,
)
from dtopk.engine.options import FitOptions, StartPoint
from dtopk.engine.rows import Rows
from dtopk.kernels.blas import gemm
from dtopk.losses import Labels, LabelSets, Loss, MaskedLabels, join_labels
from dtopk.solvers.acceleration import MovingCentre
from dtopk.solvers.certificate import CertificateSums
from dtopk.solvers.row_groups import RowSolver
from dtopk.solvers.sdca import BlockUpdater, RowConversion, default_block_size
from dtopk_storage import DualFile, RunState

Array = NDArray[Any]
Float64 = NDArray[np.float64]

_START_ROWS = 4096
"""Rows whose duals are started together."""
PROBE_SHARE = 1 / 32
"""Share of a partition's blocks whose rows are looked at for the gap, where all are streamed."""
PROBE_BLOCKS = 3
"""The same, at least."""


class Peers(Protocol):
    """The other members, as one of them sees them."""

    def fetch(self, wishes: Sequence[Wish], take: Callable[[int, Array], None]) -> None:
        """Get what :meth:`Member.give` of other members gives, from all of them at a time.

        Parameters
        ----------
        wishes : sequence of Wish
        take : callable
            Called in this thread with the place of a wish in the sequence and with what came,
            which it may keep, in the order in which they come.
        """


class NoPeers:
    """What a member that is alone has."""

    def fetch(self, wishes: Sequence[Wish], take: Callable[[int, Array], None]) -> None:
        """Fail if there is anything to ask for: there is nobody to ask."""
        assert not wishes, f"a member alone asked for {wishes[0]}"


class Member:
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
        self.layout = layout
        self.duals = duals
        self.state = state
        self.stop = stop
        self.report = report
        self.pulse = pulse
        dtype = np.dtype(options.dtype)
        self.conversion = make_conversion(rows, options)
        self.W: Array = np.zeros((self.conversion.width, rows.n_classes), dtype)
        size = options.block_size or default_block_size(self.conversion.width, rows.n_classes)
        largest = max(block.n_rows for block in layout.blocks)
        self._steps = loss if steps is None else steps
        self.updater = BlockUpdater(
            self._steps, self.conversion, rows.n_classes, min(size, largest)
        )
        self.feed = self._make_feed(keep_features) if feed is None else feed
        self._alone = layout.n_partitions == 1
        self._peers: Peers = NoPeers()
        self.take_place(
            Places(index=0, hosts=(0,) * layout.n_partitions, keepers=(0,) * len(layout.slices)),
            self._peers,
        )
        self._owned: dict[int, list[int]] = {}
        self._partition_of: Sequence[int] = ()
        self._has_leftovers = False
        self._version = ""

    def _make_feed(self, keep_features: bool) -> Feed:
        return Feed(self.rows, self.layout.blocks, self.duals, keep_features=keep_features)

    def close(self) -> None:
        """End the background thread."""
        self.feed.close()

    def take_place(self, places: Places, peers: Peers) -> None:
        """Learn which partitions and slices are at this member, and who has the others."""
        self.places = places
        self._peers = peers
        self._hosted = [k for k, host in enumerate(places.hosts) if host == places.index]
        self._kept = [s for s, keeper in enumerate(places.keepers) if keeper == places.index]
        self._moves: dict[int, Array] = {}
        self._pieces: dict[int, list[Array]] = {}
        self._exact: dict[int, Array] = {}
        self._centres: dict[int, MovingCentre] = {}
        self._stale = False

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

    # What others ask for.

    def give(self, kind: str, *key: int) -> Array:
        """Return something that a peer needs.

        Parameters
        ----------
        kind : {'weights', 'move', 'dual'}
        *key : int
            A slice; a partition and a slice; a block.
        """
        if kind == "dual":
            return self.duals.read(key[0])
        first, last = self.layout.slices[key[-1]]
        if kind == "weights":
            return self.W[first:last]
        assert kind == "move"
        return self._moves[key[0]][first:last]

    def _collect(self, wishes: Sequence[Wish], take: Callable[[int, Array], None]) -> None:
        """Get what is here and what others have; theirs comes after, in any order."""
        theirs = []
        for place, wish in enumerate(wishes):
            if wish.member == self.places.index:
                take(place, self.give(wish.kind, *wish.key))
            else:
                theirs.append(place)
        self._peers.fetch(
            [wishes[place] for place in theirs], lambda place, came: take(theirs[place], came)
        )

    def gather(self) -> None:
        """Bring W up to date with the slices that others keep."""
        if not self._stale:
            return
        others = [
            (number, keeper)
            for number, keeper in enumerate(self.places.keepers)
            if keeper != self.places.index
        ]

        def take(place: int, weights: Array) -> None:
            first, last = self.layout.slices[others[place][0]]
            self.W[first:last] = weights

        self._peers.fetch(
            [Wish(member=keeper, kind="weights", key=(number,)) for number, keeper in others], take
        )
        self._stale = False

    # The parts of a round.

    def own(self, owners: Sequence[int], former: Sequence[int] | None) -> None:
        """Take over the blocks that this member's partitions have now, with their duals.

        Parameters
        ----------
        owners : sequence of int
            The partition of each block.
        former : sequence of int or None
            The partition that each block was in; None where no duals are anywhere yet.
        """
        self._partition_of = owners
        # Others may still ask for what was here: it goes when the next sweep says that all have it.
        self._has_leftovers = True
        self._owned = {k: np.flatnonzero(np.equal(owners, k)).tolist() for k in self._hosted}
        if former is None or self.duals.shared:
            return
        wishes = [
            Wish(member=self.places.hosts[former[block]], kind="dual", key=(block,))
            for blocks in self._owned.values()
            for block in blocks
        ]
        wishes = [wish for wish in wishes if wish.member != self.places.index]
        self._peers.fetch(wishes, lambda place, dual: self.duals.put(wishes[place].key[0], dual))

    def _forget_others(self) -> None:
        """Forget the blocks that other members have now."""
        self._has_leftovers = False
        mine = {block for blocks in self._owned.values() for block in blocks}
        others = [block for block in range(len(self.layout.blocks)) if block not in mine]
        self.duals.drop(others)
        self.feed.drop(others)

    def begin_version(self, version: str) -> None:
        """Write duals that are streamed under another version from here on."""
        self._version = version
        self.duals.begin(version)

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
        blocks, duals, n_rows = [], [], 0
        visits = self.feed.visit(order, update=True)
        with contextlib.closing(visits):
            for visit in visits:
                dual_sum = 0.0
                for rows, dual in self._solve(visit, step, U, ends):
                    dual_sum += dual
                    n_rows += rows
                    self.report(rows)
                    self.pulse()
                blocks.append(visit.block)
                duals.append(dual_sum)
                if self._cut_short(ends):
                    break
        return Sweep(
            partition=partition,
            member=self.places.index,
            blocks=tuple(blocks),
            duals=tuple(duals),
            n_rows=n_rows,
            seconds=time.perf_counter() - began,
            read_seconds=self.feed.read_seconds - waited,
        )

    def _solve(
        self, visit: Visit, step: Step, U: Array, ends: float
    ) -> Iterator[tuple[int, float]]:
        """Update the rows of a block, some at a time; yield how many, and their duals' terms."""
        piece = visit.piece
        costs = self._costs(visit).astype(self.W.dtype)
        seed = [self.options.seed, step.epoch, visit.block]
        order = np.random.default_rng(seed).permutation(len(piece.labels))
        for done in self.updater.update_all(
            piece.X, piece.labels, costs, visit.dual, order, U, step.ratio, step.sigma
        ):
            yield done
            if self._cut_short(ends):
                return

    def _cut_short(self, ends: float) -> bool:
        return self.stop() or time.perf_counter() > ends

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

    def multiply(self) -> list[SliceProducts]:
        """Collect the changes of the slices kept here, and take their products."""
        n_partitions = self.layout.n_partitions
        products = []
        self._pieces = self._collect_moves(self._kept)
        for number, pieces in self._pieces.items():
            first, last = self.layout.slices[number]
            flat = np.empty((n_partitions + 1, pieces[0].size))
            for row, piece in zip(flat, [*pieces, self.W[first:last]], strict=True):
                row[:] = piece.ravel()
            gram = np.empty((n_partitions + 1, n_partitions + 1))
            gemm(flat, flat.T, gram)
            products.append(SliceProducts(slice=number, gram=gram[:-1, :-1], slopes=gram[-1, :-1]))
        return products

    def _collect_moves(self, slices: Sequence[int]) -> dict[int, list[Array]]:
        """Collect the changes of slices by all partitions, in the partitions' order."""
        wishes = [
            Wish(member=host, kind="move", key=(partition, number))
            for number in slices
            for partition, host in enumerate(self.places.hosts)
        ]
        came: dict[int, Array] = {}
        self._collect(wishes, came.__setitem__)
        n_partitions = self.layout.n_partitions
        return {
            number: [came[n_partitions * place + k] for k in range(n_partitions)]
            for place, number in enumerate(slices)
        }

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
        for number, pieces in self._pieces.items():
            first, last = self.layout.slices[number]
            total = np.zeros(pieces[0].shape)
            for share, piece in zip(theta, pieces, strict=True):
                if share:
                    total += share * piece
            self.W[first:last] += total.astype(self.W.dtype)
        self._pieces, self._moves = {}, {}
        self._stale = True
        return [self._norms(number) for number in self._kept]

    def _norms(self, number: int) -> SliceNorms:
        first, last = self.layout.slices[number]
        W = self.W[first:last]
        centre = self._centres.get(number)
        dual_weights = W if centre is None else centre.dual_weights(W)
        return SliceNorms(
            slice=number,
            dual_weights=_squared_norm(dual_weights),
            distance=0.0 if centre is None else _squared_norm(W - dual_weights),
        )

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
        chosen = range(len(blocks))
        # One partition of a store looks at the same rows whether they are streamed or in memory.
        if self.layout.streamed or (self._alone and not self.rows.resident):
            # A row costs the reading of its block: few blocks, and more rows of each.
            some = max(PROBE_BLOCKS, round(PROBE_SHARE * len(blocks)))
            chosen = np.sort(rng.permutation(len(blocks))[:some]).tolist()
        share = n_rows / self.layout.n_samples * sum(sizes) / sum(sizes[i] for i in chosen)
        counts = {i: min(int(share * sizes[i] + rng.random()), sizes[i]) for i in chosen}
        taken = [i for i in chosen if counts[i]]
        rows = [np.sort(rng.choice(sizes[i], counts[i], replace=False)) for i in taken]
        gap, waiting = 0.0, []
        for visit in self.feed.look([blocks[i] for i in taken], rows):
            # A product with W costs a reading of W, however few the rows.
            waiting.append(visit)
            if sum(len(each.dual) for each in waiting) >= self.updater.block_size:
                gap += self._row_gaps(waiting)
                waiting = []
            self.pulse()
        if waiting:
            gap += self._row_gaps(waiting)
        return Probe(partition=partition, gap=gap * sum(sizes) / max(sum(counts.values()), 1))

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

    def sum_exact(self) -> list[ExactNorms]:
        """Sum the duals' weights that certificates have made, in the slices kept here."""
        norms = []
        for number in self._kept:
            first, last = self.layout.slices[number]
            exact = np.zeros((last - first, self.W.shape[1]))
            for piece in self._collect_moves([number])[number]:
                exact += piece
            self._exact[number] = exact
            weights = self.W[first:last].astype(np.float64)
            norms.append(
                ExactNorms(
                    slice=number,
                    weights=_squared_norm(weights),
                    dual_weights=_squared_norm(exact),
                )
            )
        return norms

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

    # Moving weights, slice by slice.

    def begin_from_exact(self) -> None:
        """Set W to the weights of the duals."""
        for number, exact in self._exact.items():
            first, last = self.layout.slices[number]
            self.W[first:last] = exact
        self._exact, self._moves = {}, {}
        self._stale = True

    def take_off_drift(self) -> None:
        """Make W agree with the duals, whose weights the last certificate has summed anew.

        In float32, W drifts from them.
        """
        for number, exact in self._exact.items():
            first, last = self.layout.slices[number]
            W = self.W[first:last]
            if number in self._centres:
                self._centres[number].refresh(W, exact.astype(W.dtype))
            else:
                W[:] = exact
        self._exact, self._moves = {}, {}
        self._stale = True

    def move_centre(self, ratio: float, advance: bool) -> None:
        """Start the accelerated outer loop, give it another ratio, or let its centre move.

        Parameters
        ----------
        ratio : float
        advance : bool
            Whether the centre moves to the weights.
        """
        for number in self._kept:
            first, last = self.layout.slices[number]
            W = self.W[first:last]
            centre = self._centres.get(number)
            if centre is None:
                self._centres[number] = MovingCentre(W, ratio)
            else:
                if centre.ratio != ratio:
                    centre.set_ratio(W, ratio)
                if advance:
                    centre.advance(W)
        self._stale = True

    # On disk.

    def write_duals(self, file: DualFile) -> None:
        """Write the chunks of a file whose first block is at this member.

        Parameters
        ----------
        file : DualFile
            Rows outside the training split stay zero.
        """
        mine = {block for blocks in self._owned.values() for block in blocks}
        chunks: dict[tuple[int, int], list[int]] = {}
        for number, block in enumerate(self.layout.blocks):
            chunks.setdefault((block.chunk_start, block.chunk_stop), []).append(number)
        for (start, stop), blocks in chunks.items():
            if blocks[0] not in mine:
                continue
            file.write(start, self._assemble_duals(start, stop, blocks, file))
            self.pulse()

    def _assemble_duals(
        self, start: int, stop: int, blocks: Sequence[int], file: DualFile
    ) -> Array:
        values = np.zeros((stop - start, file.n_classes), file.dtype)
        # Streamed duals too: only the block's own member knows which version counts.
        wishes = [
            Wish(member=self.places.hosts[self._partition_of[block]], kind="dual", key=(block,))
            for block in blocks
        ]

        def take(place: int, dual: Array) -> None:
            block = self.layout.blocks[blocks[place]]
            values[block.start - start : block.stop - start] = dual

        self._collect(wishes, take)
        return values

    def save(self, version: str) -> list[int]:
        """Write the duals that are here and the slices kept here.

        Returns
        -------
        list of int
            Bytes written.
        """
        assert self.state is not None
        written = [self.duals.save(self.state, version)]
        for number in self._kept:
            first, last = self.layout.slices[number]
            arrays = {"W": self.W[first:last]}
            centre = self._centres.get(number)
            if centre is not None:
                arrays["centre"] = centre.centre
            for name, values in arrays.items():
                written.append(self.state.write_array(version, f"{name}/{number}", values))
        return written

    def restore(self, version: str, ratio: float) -> None:
        """Take over what a version of the state has of the blocks and slices that are here.

        Parameters
        ----------
        version : str
        ratio : float
            r of the accelerated outer loop.
        """
        assert self.state is not None
        blocks = [block for blocks in self._owned.values() for block in blocks]
        self.duals.restore(self.state, version, blocks)
        for number, (first, last) in enumerate(self.layout.slices):
            self.W[first:last] = self.state.read_array(version, f"W/{number}")
        for number in self._kept if ratio > 1 else ():
            first, last = self.layout.slices[number]
            centre = MovingCentre(self.W[first:last], ratio)
            centre.centre = self.state.read_array(version, f"centre/{number}")
            self._centres[number] = centre
        self._stale = False


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


def _squared_norm(values: Array) -> float:
    """Return |values|^2, summed in float64."""
    return float(np.einsum("ij,ij->", values, values, dtype=np.float64))
