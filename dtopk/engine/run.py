"""One training run: rounds of blocked SDCA on a team, until there is a certificate."""

import logging
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import Any
from uuid import uuid4

import numpy as np
from numpy.typing import NDArray

from dtopk.engine.blocks import Dealer, Layout
from dtopk.engine.interruption import Interruption
from dtopk.engine.messages import ExactNorms, PartitionSums, SliceNorms, SliceProducts, Step, Sweep
from dtopk.engine.options import FitOptions, StartPoint
from dtopk.engine.records import Callback, EpochRecord, FitInfo, FitResult, StopReason
from dtopk.engine.rows import Rows
from dtopk.engine.team import MembersLost, Team
from dtopk.losses import Loss
from dtopk.solvers.certificate import Certificate, relative_gap
from dtopk.solvers.dual_step import RoundProducts, adapt_sigma, choose_theta
from dtopk.solvers.policy import (
    MOST_RATIO,
    CheckSchedule,
    Course,
    StagnationWatch,
    first_ratio,
    lower_ceiling,
    steer_ratio,
)
from dtopk_storage import CheckpointError, RunState

logger = logging.getLogger(__name__)

Array = NDArray[Any]

_PROGRESS_ROWS = 4096
"""Callbacks hear of every so many rows."""
PROBED_ROWS = 1024
"""Rows on which the gap is estimated after an epoch, at least."""
PROBED_SHARE = 1 / 64
"""That share of all rows."""
_ROUNDING = 1e-11
"""A relative gap below which its parts are rounding: from there r falls, for the last digits."""


@dataclass(kw_only=True)
class Progress:
    """How far a run is: what it needs, beside weights and duals, to go on as if never stopped."""

    epoch: int = 0
    """Epochs done."""
    seconds: float = 0.0
    """Time spent on them, in this run and those it goes on from."""
    certificate_seconds: float = 0.0
    """Time of it that certificates took."""
    ratio: float = 1.0
    """r of the accelerated outer loop; 1: plain."""
    ceiling: float = MOST_RATIO
    """Greatest r from now on."""
    sigma: float = 1.0
    """sigma' of the next round."""
    duals: list[float] = field(default_factory=list)
    """sum_i D_i of each block, or less."""
    inner: float = 0.0
    """What the rows' duals lacked at W after the epoch."""
    outer: float = 0.0
    """Half the squared distance between W and the weights of the duals, which is the rest of the
    gap."""
    owners: list[int] = field(default_factory=list)
    """The partition that each block is in."""
    history: list[EpochRecord] = field(default_factory=list)
    """One record for every epoch."""
    schedule: dict[str, Any] = field(default_factory=dict)
    """The numbers of the check schedule."""
    watch: dict[str, Any] = field(default_factory=dict)
    """The numbers of the stagnation watch."""
    pending: dict[str, Any] = field(default_factory=dict)
    """The record of an epoch that is done but for what follows it, and the course of the gap: where
    a run stopped that may go on."""

    def to_dict(self) -> dict[str, Any]:
        """Make a dict of JSON values."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "Progress":
        """Make it again of what `to_dict` gave."""
        known = {name.name: values[name.name] for name in fields(cls)}
        known["history"] = [EpochRecord(**record) for record in known["history"]]
        return cls(**known)


@dataclass(kw_only=True)
class _RoundNotes:
    """What the rounds of an epoch showed, for its record."""

    thetas: list[float] = field(default_factory=list)
    correlation: float = 1.0
    sigma: float = 1.0
    slowest: float = 0.0
    median: float = 0.0
    late: str = ""


class Run:
    """The lead of one training run.

    Parameters
    ----------
    rows : Rows
    loss : Loss
    options : FitOptions
    layout : Layout
    team : Team
    interruption : Interruption
    callbacks : sequence of Callback
    solver : str
        Its name.
    state : RunState or None
        Where the run's state is committed; None keeps none.
    streamed : bool
        Whether the duals are in the state themselves.
    start : StartPoint or None
    """

    def __init__(
        self,
        rows: Rows,
        loss: Loss,
        options: FitOptions,
        layout: Layout,
        team: Team,
        interruption: Interruption,
        callbacks: Sequence[Callback],
        solver: str,
        *,
        state: RunState | None = None,
        streamed: bool = False,
        start: StartPoint | None = None,
    ) -> None:
        self.rows = rows
        self.loss = loss
        self.options = options
        self.layout = layout
        self.team = team
        self.callbacks = callbacks
        self.progress = Progress()
        self._solver = solver
        self._interruption = interruption
        self._state = state
        self._streamed = streamed
        self._start = start
        self._alone = layout.n_partitions == 1
        self._began = time.perf_counter()
        self._committed = time.perf_counter()
        self._ends: float | None = None
        self._is_entered = False
        self._told = 0
        self._done = 0
        self._set_up()

    def _set_up(self) -> None:
        """Make what an untouched run has."""
        # A member that was lost may still write, under the version that it was told.
        self._session = uuid4().hex[:8]
        n_blocks = len(self.layout.blocks)
        self._dealer = Dealer(self.layout, self.options.seed)
        self._schedule = CheckSchedule(self.options.tol)
        self._watch = StagnationWatch()
        sigma = 1.0 if self.options.aggregation == "averaging" else float(self.layout.n_partitions)
        self.progress = Progress(sigma=sigma, duals=[0.0] * n_blocks, owners=[])
        self._has_exact = False
        self._is_whole = True
        self._pending: tuple[EpochRecord, Course] | None = None
        self._began = time.perf_counter()

    @property
    def seconds(self) -> float:
        """Time spent so far."""
        return self.progress.seconds + time.perf_counter() - self._began

    @property
    def seconds_left(self) -> float:
        """Time until the limit, which counts from where this process began to train."""
        return math.inf if self._ends is None else self._ends - time.perf_counter()

    def run(
        self, info: FitInfo, finish: Callable[[FitResult], FitResult] = lambda result: result
    ) -> FitResult:
        """Make epochs until there is a reason to stop.

        Parameters
        ----------
        info : FitInfo
        finish : callable
            What to do with the result while the members are still there; may be called again if
            they are lost in it.
        """
        for callback in self.callbacks:
            callback.on_start(info)
        while True:
            try:
                self._enter()
                return finish(self._train())
            except MembersLost as lost:
                if self._interruption.requested:
                    raise KeyboardInterrupt from lost
                logger.warning("%s The run goes back to its last commit.", lost.reason)
                self.team.renew(lost.reason)

    def _enter(self) -> None:
        """Have the kernels compiled, and begin where the state is, or at the start."""
        if not self._is_entered:
            self._is_entered = True
            for callback in self.callbacks:
                callback.on_compile()
        self.team.call("compile")
        self._set_up()
        manifest = None if self._state is None else self._state.load()
        if manifest is None:
            self._begin()
        else:
            self._resume(manifest)
        self._began = time.perf_counter()
        self._committed = time.perf_counter()
        if self._ends is None:
            self._ends = self._began + self.options.time_limit_s

    def _begin(self) -> None:
        self._own(self._dealer.owners.tolist(), None)
        if self._start is not None:
            self._begin_at(self._start)
        if self._accelerated:
            # Near the optimum, where a start from elsewhere is, hardly any acceleration is wanted.
            n_partitions = 1 if self._start is not None else self.layout.n_partitions
            self._move_centre(first_ratio(n_partitions), advance=False)

    def _begin_at(self, start: StartPoint) -> None:
        """Begin with duals from elsewhere, and their weights."""
        self.team.call("begin_version", f"start-{self._session}")
        self._take_sums(self.team.call("start", start))
        self.team.call("sum_exact")
        self.team.call("begin_from_exact")

    def _take_sums(self, sums: list[PartitionSums]) -> float:
        """Note the exact duals of the blocks; return the sum of the losses."""
        sums.sort(key=lambda part: part.partition)
        for part in sums:
            for block, dual in zip(part.blocks, part.duals, strict=True):
                self.progress.duals[block] = dual
        return math.fsum(loss for part in sums for loss in part.losses)

    def _resume(self, manifest: Mapping[str, Any]) -> None:
        """Go on from a commit."""
        self._check_layout(manifest["layout"])
        try:
            self._take_over(Progress.from_dict(manifest["progress"]))
        except KeyError as error:
            assert self._state is not None
            raise CheckpointError(
                f"progress in the state in {self._state.url!r} must have {error}: another version "
                "of dtopk has left it. Start the run anew, in another folder."
            ) from error
        self._own(self.progress.owners, None)
        self.team.call("restore", manifest["version"], self.progress.ratio)
        if self._ends is None:
            self._told = len(self.progress.history)
            for callback in self.callbacks:
                callback.on_resume(tuple(self.progress.history), manifest["saved"])

    def _take_over(self, progress: Progress) -> None:
        """Be as far as a commit is, but for what the members have."""
        self._dealer.owners = np.array(progress.owners)
        self._schedule.restore(progress.schedule)
        self._watch.restore(progress.watch)
        pending, progress.pending = progress.pending, {}
        if pending:
            self._pending = EpochRecord(**pending["record"]), pending["course"]
        self.progress = progress

    def _describe_layout(self) -> dict[str, Any]:
        """Say how rows and weights are cut, by which a state is known to be of the same run."""
        return {
            "n_samples": self.layout.n_samples,
            "n_features": self.layout.slices[-1][1],
            "n_classes": self.rows.n_classes,
            "n_blocks": len(self.layout.blocks),
            "n_partitions": self.layout.n_partitions,
            "n_rounds": self.layout.n_rounds,
            "streamed": self.layout.streamed,
        }

    def _check_layout(self, committed: Mapping[str, Any]) -> None:
        assert self._state is not None
        for name, value in self._describe_layout().items():
            if committed.get(name) != value:
                raise CheckpointError(
                    f"{name} of the state in {self._state.url!r} must be {value!r}, as in this "
                    f"run, got {committed.get(name)!r}: another run has left it, or another "
                    "version of dtopk."
                )

    def _own(self, owners: list[int], former: list[int] | None) -> None:
        self.team.call("own", owners, former)
        self.progress.owners = owners

    def _train(self) -> FitResult:
        while True:
            is_restored = self._pending is not None
            record, course = self._pending or self._visit()
            self._pending = None
            stop = self._stop_reason(record.epoch)
            if stop is not None and self._is_whole and not is_restored:
                self._save({"record": asdict(record), "course": course})
            if self._schedule.due(record.relative_gap) or course != "falls" or stop is not None:
                certificate = self._certify()
                record = self._certified_record(record, certificate)
                if certificate.certified:
                    stop = "tolerance"
                else:
                    self._schedule.missed(certificate.relative_gap)
            self._tell(record)
            if stop is not None:
                return self._result(certificate, stop)
            self._advance(record.relative_gap, course)
            # Nothing is written yet that the state which is gone on from does not have.
            if not is_restored:
                self._commit()

    def _visit(self) -> tuple[EpochRecord, Course]:
        """Make an epoch; say whether the gap falls."""
        record = self._epoch()
        return record, self._watch.judge(record.relative_gap)

    def report(self, added: int) -> None:
        """Take note of rows that are done, and tell the callbacks now and then.

        Parameters
        ----------
        added : int
        """
        before, self._done = self._done, self._done + added
        whole = self._done == self.layout.n_samples
        if whole or self._done // _PROGRESS_ROWS != before // _PROGRESS_ROWS:
            for callback in self.callbacks:
                callback.on_rows(self._done)

    # One epoch.

    def _epoch(self) -> EpochRecord:
        """Visit every block once; a stop may cut the epoch short."""
        epoch = self.progress.epoch + 1
        began = time.perf_counter()
        self._done = 0
        moved = self.team.bytes_moved
        former = self._dealer.owners.tolist()
        if epoch > 1:
            self._dealer.redeal(epoch)
        owners = self._dealer.owners.tolist()
        if owners != former:
            self._own(owners, former)
        notes, n_rows, waited = _RoundNotes(), 0, 0.0
        norms: list[SliceNorms] = []
        for orders in self._dealer.orders(epoch):
            sweeps, norms = self._round(epoch, orders, notes)
            n_rows += sum(sweep.n_rows for sweep in sweeps)
            waited += max(sweep.read_seconds for sweep in sweeps)
            if self._cut_short():
                break
        self.progress.epoch = epoch
        self._is_whole = n_rows == self.layout.n_samples
        return self._record(
            norms,
            notes,
            rows_per_second=n_rows / max(time.perf_counter() - began, 1e-9),
            read_seconds=waited,
            bytes_moved=self.team.bytes_moved - moved,
        )

    def _version(self, epoch: int) -> str:
        return f"{epoch:06d}-{self._session}"

    def _round(
        self, epoch: int, orders: list[list[list[int]]] | list[list[int]], notes: _RoundNotes
    ) -> tuple[list[Sweep], list[SliceNorms]]:
        """Sweep, weigh what the partitions found, and take the step."""
        sigma = self.progress.sigma
        step = Step(
            epoch=epoch,
            version=self._version(epoch),
            sigma=sigma,
            ratio=self.progress.ratio,
            seconds_left=self.seconds_left,
        )
        sweeps: list[Sweep] = sorted(
            self.team.call("sweep", orders, step), key=lambda sweep: sweep.partition
        )
        theta = np.ones(len(sweeps))
        if not self._alone:
            theta = self._weigh(sweeps, notes)
        by_block = {
            block: float(theta[sweep.partition]) for sweep in sweeps for block in sweep.blocks
        }
        norms = self.team.call("settle", theta.tolist(), by_block)
        self._take_in(sweeps, theta)
        _note_times(sweeps, notes, self.team.names)
        notes.sigma = sigma
        notes.thetas += theta.tolist()
        return sweeps, norms

    def _weigh(self, sweeps: list[Sweep], notes: _RoundNotes) -> NDArray[np.float64]:
        """Choose theta, and the next round's sigma'."""
        products = _add_products(self.team.call("multiply"))
        notes.correlation = products.correlation
        n_partitions = len(sweeps)
        if self.options.aggregation == "averaging":
            return np.full(n_partitions, 1 / n_partitions)
        if self.options.aggregation == "adding":
            return np.ones(n_partitions)
        steady = self.progress.ratio > 1
        self.progress.sigma = adapt_sigma(products, self.progress.sigma, steady=steady)
        return choose_theta(np.array([self._gain(sweep) for sweep in sweeps]), products)

    def _gain(self, sweep: Sweep) -> float:
        """Return what a partition adds to sum_i D_i, in the units of the subproblem."""
        before = math.fsum(self.progress.duals[block] for block in sweep.blocks)
        return (math.fsum(sweep.duals) - before) / self.progress.ratio

    def _take_in(self, sweeps: list[Sweep], theta: NDArray[np.float64]) -> None:
        """Note the blocks' duals; between two points D_i is above the chord."""
        for sweep in sweeps:
            share = float(theta[sweep.partition])
            for block, dual in zip(sweep.blocks, sweep.duals, strict=True):
                before = self.progress.duals[block]
                self.progress.duals[block] = (
                    dual if share == 1 else before + share * (dual - before)
                )

    def _cut_short(self) -> bool:
        return self._interruption.requested or self.seconds_left < 0

    def _record(self, norms: list[SliceNorms], notes: _RoundNotes, **measured: Any) -> EpochRecord:
        norms.sort(key=lambda norm: norm.slice)
        dual_value = math.fsum(self.progress.duals) - 0.5 * _sum(norms, "dual_weights")
        self.progress.inner, self.progress.outer = self._probe(), 0.5 * _sum(norms, "distance")
        primal = dual_value + self.progress.inner + self.progress.outer
        epoch = self.progress.epoch
        if not (math.isfinite(primal) and math.isfinite(dual_value)):
            raise ValueError(
                f"primal and dual must stay finite, got {primal!r} and {dual_value!r} in epoch "
                f"{epoch}: the features or C = {self.options.C!r} are too large for "
                f"{self.options.dtype}. Scale the features, or compute in float64."
            )
        return EpochRecord(
            epoch=epoch,
            seconds=self.seconds,
            primal=primal,
            dual_value=dual_value,
            relative_gap=relative_gap(primal, dual_value),
            exact=False,
            acceleration=self.progress.ratio,
            theta=min(notes.thetas),
            sigma=notes.sigma,
            correlation=notes.correlation,
            slowest_seconds=notes.slowest,
            median_seconds=notes.median,
            late=notes.late,
            **measured,
        )

    def _probe(self) -> float:
        n_rows = max(PROBED_ROWS, round(PROBED_SHARE * self.layout.n_samples))
        probes = self.team.call("probe", self.progress.epoch, n_rows)
        return math.fsum(probe.gap for probe in probes)

    def _stop_reason(self, epoch: int) -> StopReason | None:
        if self._interruption.requested:
            return "interrupted"
        if self.seconds_left < 0:
            return "time_limit"
        return "max_epochs" if epoch >= self.options.max_epochs else None

    # Between epochs.

    def _certify(self) -> Certificate:
        """Recompute primal and dual over all rows, in float64, from W and the duals as kept.

        If training goes on, it goes on from the weights that the duals stand for to the last
        digit: in float32, W drifts from them.
        """
        began = time.perf_counter()
        losses = self._take_sums(self.team.call("sum_certificate"))
        norms = sorted(self.team.call("sum_exact"), key=lambda norm: norm.slice)
        self._has_exact = True
        certificate = Certificate.from_values(
            losses + 0.5 * _sum(norms, "weights"),
            math.fsum(self.progress.duals) - 0.5 * _sum(norms, "dual_weights"),
            self.options.tol,
        )
        self.progress.certificate_seconds += time.perf_counter() - began
        return certificate

    def _certified_record(self, record: EpochRecord, certificate: Certificate) -> EpochRecord:
        values = asdict(record) | {
            "seconds": self.seconds,
            "primal": certificate.primal,
            "dual_value": certificate.dual_value,
            "relative_gap": certificate.relative_gap,
            "exact": True,
        }
        return EpochRecord(**values)

    def _tell(self, record: EpochRecord) -> None:
        self.progress.history.append(record)
        self._tell_one(record)

    def _tell_one(self, record: EpochRecord) -> None:
        """Tell the callbacks of an epoch, once however often the run goes back behind it."""
        if record.epoch <= self._told:
            return
        wanted = self.team.near or any(callback.reads_weights for callback in self.callbacks)
        W = self.team.weights() if wanted else None
        self._told = record.epoch
        for callback in self.callbacks:
            callback.on_epoch(record, W)

    def _advance(self, gap: float, course: Course) -> None:
        """Move the centre of the accelerated loop."""
        if self._has_exact:
            self.team.call("take_off_drift")
            self._has_exact = False
        if self._accelerated:
            now = self.progress
            if course == "swings":
                now.ceiling = lower_ceiling(now.ratio)
            inner = now.inner if gap > _ROUNDING else 0.0
            ratio = steer_ratio(now.ratio, inner, now.outer, ceiling=now.ceiling)
            self._move_centre(ratio, advance=True)

    @property
    def _accelerated(self) -> bool:
        return self.options.acceleration == "auto"

    def _move_centre(self, ratio: float, *, advance: bool) -> None:
        self.progress.ratio = ratio
        self.team.call("move_centre", ratio, advance)

    def _commit(self) -> None:
        """Have the state on disk, if it is time."""
        due = time.perf_counter() - self._committed >= self.options.checkpoint_s
        if due or self._streamed:
            self._save({})

    def _save(self, pending: dict[str, Any]) -> None:
        """Have the state on disk.

        Parameters
        ----------
        pending : dict
            See :class:`Progress`; empty between two epochs.
        """
        if self._state is None:
            return
        version = self._version(self.progress.epoch)
        self.team.call("save", version)
        self.progress.schedule = self._schedule.to_dict()
        self.progress.watch = self._watch.to_dict()
        values = self.progress.to_dict() | {"seconds": self.seconds, "pending": pending}
        manifest = {"progress": values, "layout": self._describe_layout(), "saved": time.time()}
        self._state.commit(version, manifest)
        self._committed = time.perf_counter()

    def _result(self, certificate: Certificate, stop_reason: StopReason) -> FitResult:
        W = self.team.weights()
        d = self.rows.n_features
        constant = self.options.constant
        intercept = W[d] * constant if constant else np.zeros_like(W[0])
        return FitResult(
            W=W[:d],
            intercept=intercept.astype(W.dtype),
            certificate=certificate,
            history=tuple(self.progress.history),
            stop_reason=stop_reason,
            epochs=self.progress.epoch,
            seconds=self.seconds,
            certificate_seconds=self.progress.certificate_seconds,
            solver=self._solver,
            timings=self.team.timings(),
        )


def _add_products(parts: list[SliceProducts]) -> RoundProducts:
    """Add the slices' products, in the slices' order."""
    parts.sort(key=lambda part: part.slice)
    gram = np.zeros_like(parts[0].gram)
    slopes = np.zeros_like(parts[0].slopes)
    for part in parts:
        gram += part.gram
        slopes += part.slopes
    return RoundProducts(gram=gram, slopes=slopes)


def _sum(norms: list[SliceNorms] | list[ExactNorms], name: str) -> float:
    return math.fsum(getattr(norm, name) for norm in norms)


def _note_times(sweeps: list[Sweep], notes: _RoundNotes, names: tuple[str, ...]) -> None:
    """Note who was slowest, and by how much."""
    by_member: dict[int, float] = {}
    for sweep in sweeps:
        by_member[sweep.member] = by_member.get(sweep.member, 0.0) + sweep.seconds
    seconds = sorted(by_member.values())
    median = seconds[(len(seconds) - 1) // 2]
    if seconds[-1] > notes.slowest:
        notes.slowest, notes.median = seconds[-1], median
        slowest = max(by_member, key=lambda member: by_member[member])
        notes.late = names[slowest] if seconds[-1] > 1.5 * median else ""
