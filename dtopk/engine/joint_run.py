"""Turns and rows for the runs of several models on the same rows.

Every model is trained by a run of its own, as if it were alone: it has its own weights, duals,
accelerated loop and certificate, and stops at its own gap. What they share is each pass over the
rows (:mod:`dtopk.engine.lanes`), the conversion of a block and its Gram matrix.

Whether all are trained at a time or one after the other is a trade: each pass costs less the more
of them share it, and a model takes fewer passes from a near start. Both costs are measured in the
first pass.
"""

import contextlib
import dataclasses
import math
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dtopk.engine.blocks import Layout
from dtopk.engine.candidates import Candidate
from dtopk.engine.duals import Duals, NoDuals
from dtopk.engine.feed import Feed
from dtopk.engine.fit import describe_run, make_member
from dtopk.engine.holdings import count_model_bytes
from dtopk.engine.interruption import Interruption
from dtopk.engine.joint_updates import JointUpdates, SharedUpdater, count_place_bytes
from dtopk.engine.lanes import Lane, SharedFeed
from dtopk.engine.leads import run_class
from dtopk.engine.member import Member, make_conversion
from dtopk.engine.mixed_visits import count_batch_rows
from dtopk.engine.options import FitOptions, StartPoint
from dtopk.engine.plan import ClusterPlan, plan_process
from dtopk.engine.records import Callback, FitResult
from dtopk.engine.rows import Piece, Rows
from dtopk.engine.sizes import Sizes, largest_block
from dtopk.engine.solvers import Choice, keeps_duals
from dtopk.engine.team import LocalTeam
from dtopk.solvers.sdca import default_block_size
from dtopk_storage import RunState, open_run_state

Array = NDArray[Any]

_MOST_GROWTH = 10.0
"""How many times the C of a model that is done the next one's is, at most, to start from it."""


class _JointTeam(LocalTeam):
    """A team of one whose rows come in the order of all runs. See :class:`Team`."""

    def __init__(self, member: Any, count_scans: Callable[[], int]) -> None:
        super().__init__(member)
        self._count_scans = count_scans

    def weights(self) -> Array:
        """See :meth:`Team.weights`; a copy, as the place of a model that is done is another's."""
        return self.member.W.copy()

    def call(self, method: str, *arguments: Any) -> list[Any]:
        """See :meth:`Team.call`; what is drawn by epoch is drawn by scan, the same for all."""
        if method == "sweep":
            orders, step = arguments
            arguments = orders, dataclasses.replace(step, epoch=self._count_scans() + 1)
        elif method == "probe":
            arguments = self._count_scans(), arguments[1]
        return super().call(method, *arguments)


class _HeldDuals:
    """The duals of a model that is done, as those of a file."""

    def __init__(self, layout: Layout, duals: Duals) -> None:
        self._duals = duals
        self._starts = [block.start for block in layout.blocks]

    def read(self, start: int, stop: int) -> Array:
        """Return the duals of stored rows, which are all of one block."""
        block = int(np.searchsorted(self._starts, start, side="right")) - 1
        first = start - self._starts[block]
        return self._duals.read(block)[first : first + stop - start]


@dataclass(kw_only=True, eq=False)
class _Training:
    """A model being trained, or whose end is another one's start."""

    candidate: Candidate
    lane: Lane
    duals: Duals
    scratch: contextlib.ExitStack
    updater: SharedUpdater | None = None
    """Where it waits for updates; None: its solver makes none."""
    result: FitResult | None = None

    def is_near(self, candidate: Candidate) -> bool:
        """Tell whether another model of the same loss is to start where this one ends."""
        return self.candidate.C <= candidate.C <= _MOST_GROWTH * self.candidate.C


class JointRun:
    """Hands out turns and rows to the runs of candidates.

    Parameters
    ----------
    rows : Rows
    candidates : sequence of Candidate
    options : FitOptions
        Of all of them, but for C.
    choices : mapping of str to Choice
        The solver of each, by its name.
    interruption : Interruption
    scratch : path-like or None
        Folder for duals that do not fit into memory; None is the system's temporary folder.
    """

    def __init__(
        self,
        rows: Rows,
        candidates: Sequence[Candidate],
        options: FitOptions,
        choices: Mapping[str, Choice],
        interruption: Interruption,
        scratch: str | None,
    ) -> None:
        self._rows = rows
        self._options = options
        self._choices = choices
        self._interruption = interruption
        self._scratch = scratch
        # From small to large C: one after the other, each starts from the one before.
        self._upcoming = sorted(candidates, key=lambda candidate: candidate.C)
        self._plan, self._most = self._plan_memory()
        self._memory = self._plan.memory
        self._layout = self._plan.layout
        self._feed = Feed(
            rows, self._layout.blocks, NoDuals(), keep_features=self._memory.features_in_memory
        )
        self._updates = self._make_updates()
        self._active: list[_Training] = []
        self._done: dict[str, _Training] = {}
        self._looks: dict[int, Piece] = {}
        self._scans = 0
        self._own_seconds = 0.0
        self._shared_seconds = 0.0

    def __enter__(self) -> "JointRun":
        return self

    def __exit__(self, *error: Any) -> None:
        for training in self._active:
            training.lane.end()
            training.scratch.close()
        for training in self._done.values():
            training.scratch.close()
        self._feed.close()

    def _plan_memory(self) -> tuple[ClusterPlan, int]:
        """Plan a run that needs most; say how many of them there is room for."""
        plans = []
        for loss in {each.family: each.loss for each in self._upcoming}.values():
            sizes = Sizes.of_rows(self._rows, self._options, loss)
            plans.append(plan_process(sizes, limit_bytes=self._options.memory_limit_bytes))
        plan = max(plans, key=lambda plan: plan.needed_bytes)
        sizes = plan.sizes
        own = count_model_bytes(sizes, plan.layout, plan.memory) + count_place_bytes(
            sizes.n_classes, self._block_size(plan.layout), sizes.itemsize
        )
        converted = largest_block(plan.layout) * sizes.width * sizes.itemsize
        more = (plan.limit_bytes - plan.needed_bytes - converted) // max(own, 1)
        # The last one of each loss is kept, for the next to start from.
        n_kept = len({each.family for each in self._upcoming})
        return plan, 1 + max(more - n_kept, 0)

    def _block_size(self, layout: Layout) -> int:
        width = make_conversion(self._rows, self._options).width
        size = self._options.block_size or default_block_size(width, self._rows.n_classes)
        return count_batch_rows(layout, self._rows.n_classes, size)

    def _make_updates(self) -> JointUpdates:
        rows, options = self._rows, self._options
        return JointUpdates(
            make_conversion(rows, options),
            rows.n_classes,
            min(len(self._upcoming), self._most),
            self._block_size(self._layout),
        )

    # Turns.

    def run(
        self,
        take: Callable[[Candidate, FitResult], None],
        callbacks: Callable[[Candidate], Sequence[Callback]],
        width: int,
    ) -> None:
        """Train all.

        Parameters
        ----------
        take, callbacks : callable
        width : int
            As of :func:`dtopk.engine.joint_fit.fit_many`.
        """
        self._take, self._callbacks = take, callbacks
        while self._upcoming or self._active:
            self._begin_some(width)
            if self._active:
                self._scan()
            elif self._interruption.requested:
                return

    def _begin_some(self, width: int) -> None:
        """Begin with as many models as are to be trained at a time, up to where they want rows."""
        most = min(width or self._choose_width(), self._most)
        while len(self._active) < most and self._upcoming and not self._interruption.requested:
            # Of those that share passes the ones with a large C take the most, and come first.
            training = self._prepare(self._upcoming.pop(0 if most == 1 else -1))
            self._active.append(training)
            training.lane.resume()
            self._settle()

    def _choose_width(self) -> int:
        """Choose how many models are trained at a time: as many as there is room for, or one."""
        if not self._scans:
            return 1
        # From near starts 13 models have taken some 0.7 of the passes, in sum.
        return self._most if self._shared_seconds >= 0.45 * self._own_seconds else 1

    def _prepare(self, candidate: Candidate) -> _Training:
        with contextlib.ExitStack() as scratch:
            training = self._prepare_with(candidate, scratch)
            # From here on it is the training's.
            training.scratch = scratch.pop_all()
        return training

    def _prepare_with(self, candidate: Candidate, scratch: contextlib.ExitStack) -> _Training:
        state: RunState | None = None
        options = candidate.apply(self._options)
        if not self._memory.duals_in_memory:
            folder = tempfile.TemporaryDirectory(prefix="dtopk-", dir=self._scratch)
            state = open_run_state(Path(scratch.enter_context(folder)) / "state")
        feed = SharedFeed(self._layout.blocks, self._read, self._look)
        member = make_member(
            self._rows, candidate.loss, options, self._layout, self._memory, state, feed=feed
        )
        team = _JointTeam(member, lambda: self._scans)
        choice = self._choices[candidate.name]
        start = candidate.start or self._find_start(candidate)
        run = run_class(choice.solver, candidate.loss)(
            self._rows, candidate.loss, options, self._layout, team, self._interruption,
            self._callbacks(candidate), choice.solver,
            state=state, streamed=not self._memory.duals_in_memory, start=start,
        )  # fmt: skip
        member.stop = lambda: self._interruption.requested
        member.report = run.report
        updater = None
        if type(member) is Member:
            updater = self._updates.make_updater(member.updater)
            member.updater, member.W = updater, updater.W
        info = describe_run(self._rows, candidate.loss, options, self._layout, self._memory, choice)

        def work() -> None:
            training.result = run.run(info)
            for callback in run.callbacks:
                callback.on_end(training.result)
            self._take(candidate, training.result)
            # Its duals go with the last of who needs them, and not when cycles are looked for.
            del member.report

        lane = Lane(candidate.name, work)
        feed.lane, feed.duals = lane, member.duals
        if updater is not None:
            updater.lane = lane
        training = _Training(
            candidate=candidate, lane=lane, duals=member.duals, scratch=scratch, updater=updater
        )
        return training

    def _find_start(self, candidate: Candidate) -> StartPoint | None:
        """Return the end of the last model of the same loss that is done.

        Its duals are multiplied by the square root of what C grows by: with all of that, or none,
        more passes were taken in three of four cases tried, and in sum. Where C grows by a factor
        of 100 passes are saved by starting at zero instead.
        """
        before = self._done.get(candidate.family)
        if before is None or before.result is None or not before.is_near(candidate):
            return None
        if not keeps_duals(candidate.loss, before.result.solver):
            W = np.vstack([before.result.W, before.result.intercept[None]])
            return StartPoint(W=W if self._options.constant else before.result.W)
        return StartPoint(
            dual=_HeldDuals(self._layout, before.duals),
            dual_factor=math.sqrt(candidate.C / before.candidate.C),
        )

    def _resume(self, training: _Training, block: tuple[int, Piece] | None = None) -> None:
        began = time.perf_counter()
        training.lane.resume(block)
        self._own_seconds += time.perf_counter() - began

    def _update(self, trainings: Sequence[_Training]) -> None:
        """Make the updates that models wait for."""
        began, shared = time.perf_counter(), self._updates.seconds
        updaters = [each.updater for each in trainings if each.updater is not None]
        self._updates.update(updaters)
        made = self._updates.seconds - shared
        self._shared_seconds += made
        self._own_seconds += time.perf_counter() - began - made

    def _settle(self) -> None:
        """Take models that are done out of the turns."""
        for training in [each for each in self._active if each.lane.waiting == "end"]:
            self._active.remove(training)
            if training.updater is not None:
                training.updater.leave()
            if training.lane.error is not None:
                training.scratch.close()
                raise training.lane.error
            self._keep_start(training)

    def _keep_start(self, training: _Training) -> None:
        """Keep a model that is done for another to start from, or the one before it, or neither."""
        family = training.candidate.family
        upcoming = [each for each in self._upcoming if each.family == family and each.start is None]
        former = self._done.pop(family, None)
        for each in (training, former):
            if each is None:
                continue
            if family not in self._done and any(map(each.is_near, upcoming)):
                self._done[family] = each
            else:
                each.scratch.close()

    # Rows.

    def _scan(self) -> None:
        """Hand all blocks to all runs, which all wait for them."""
        self._looks = {}
        self._scans += 1
        n_active = len(self._active)
        self._own_seconds = self._shared_seconds = 0.0
        rng = np.random.default_rng([self._options.seed, self._scans])
        order = rng.permutation(len(self._layout.blocks)).tolist()
        taking = list(self._active)
        with contextlib.closing(self._feed.visit(order, update=False)) as visits:
            waited = self._feed.read_seconds
            for visit in visits:
                taking = self._hand_out(taking, (visit.block, visit.piece))
                if not taking:
                    break
            self._shared_seconds += self._feed.read_seconds - waited
        # Of one run in a scan; what it does after it comes once, however many there are.
        self._own_seconds /= n_active
        for training in taking:
            training.lane.resume()
        self._settle()

    def _hand_out(self, taking: list[_Training], block: tuple[int, Piece]) -> list[_Training]:
        """Let each run work on a block; return those that want the next one."""
        for training in taking:
            self._resume(training, block)
        waiting = [each for each in taking if each.lane.waiting == "update"]
        while waiting:
            self._update(waiting)
            for training in waiting:
                self._resume(training)
            waiting = [each for each in waiting if each.lane.waiting == "update"]
        return [training for training in taking if training.lane.waiting == "block"]

    def _read(self, block: int) -> Piece:
        return self._feed.read(block)

    def _look(self, block: int, rows: NDArray[np.int64]) -> Piece:
        """Return some rows of a block, the same ones for all runs after a scan."""
        if block not in self._looks:
            whole = self._read(block)
            self._looks[block] = Piece(
                X=whole.X[rows], labels=whole.labels[rows], weight=whole.weight[rows]
            )
        return self._looks[block]
