"""One training run, whatever the solver: epochs on a team, until there is a certificate."""

import logging
import math
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import Any, ClassVar, Self
from uuid import uuid4

import numpy as np
from numpy.typing import NDArray

from dtopk.engine.blocks import Dealer, Layout
from dtopk.engine.interruption import Interruption
from dtopk.engine.options import FitOptions, StartPoint
from dtopk.engine.records import (
    Callback,
    EpochRecord,
    FitInfo,
    FitResult,
    StopReason,
    ask_to_stop,
)
from dtopk.engine.rows import Rows
from dtopk.engine.team import MembersLost, Team
from dtopk.losses import Loss
from dtopk.solvers.certificate import Certificate
from dtopk.solvers.policy import CheckSchedule, Course, StagnationWatch
from dtopk_storage import CheckpointError, RunState

logger = logging.getLogger(__name__)

_PROGRESS_ROWS = 4096
"""Callbacks hear of every so many rows."""


@dataclass(kw_only=True)
class Progress:
    """How far a run is: what it needs, beside weights and duals, to go on as if never stopped."""

    epoch: int = 0
    """Epochs done."""
    seconds: float = 0.0
    """Time spent on them, in this run and those it goes on from."""
    certificate_seconds: float = 0.0
    """Time of it that certificates took."""
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
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """Make it again of what `to_dict` gave."""
        known = {name.name: values[name.name] for name in fields(cls)}
        known["history"] = [EpochRecord(**record) for record in known["history"]]
        return cls(**known)


class Run(ABC):
    """The lead of one training run: what does not depend on how the solver goes about an epoch.

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

    progress_class: ClassVar[type[Progress]] = Progress
    """What of a run is kept between epochs."""
    progress: Progress

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
        self._asked: tuple[int, StopReason | None] = 0, None
        self._W: NDArray[Any] | None = None
        self._done = 0
        self._set_up()

    def _set_up(self) -> None:
        """Make what an untouched run has."""
        # A member that was lost may still write, under the version that it was told.
        self._session = uuid4().hex[:8]
        self._dealer = Dealer(self.layout, self.options.seed)
        self._schedule = CheckSchedule(self.options.tol)
        self._watch = StagnationWatch()
        self.progress = self._make_progress()
        self._is_whole = True
        self._pending: tuple[EpochRecord, Course] | None = None
        self._began = time.perf_counter()

    # What a solver does in its own way.

    @abstractmethod
    def _make_progress(self) -> Progress:
        """Make the progress of an untouched run."""

    @abstractmethod
    def _begin(self) -> None:
        """Begin at the start."""

    @abstractmethod
    def _restore(self, version: str) -> None:
        """Have the members take over a version of the state."""

    @abstractmethod
    def _epoch(self) -> EpochRecord:
        """Read every row once; a stop may cut the epoch short."""

    @abstractmethod
    def _certify(self) -> Certificate:
        """Recompute primal and dual over all rows, in float64, from what is kept."""

    @abstractmethod
    def _advance(self, gap: float, course: Course) -> None:
        """Get ready for the next epoch."""

    # What all have in common.

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

    def _resume(self, manifest: Mapping[str, Any]) -> None:
        """Go on from a commit."""
        self._check_layout(manifest["layout"])
        try:
            self._take_over(self.progress_class.from_dict(manifest["progress"]))
        except KeyError as error:
            assert self._state is not None
            raise CheckpointError(
                f"progress in the state in {self._state.url!r} must have {error}: another version "
                "of dtopk has left it. Start the run anew, in another folder."
            ) from error
        except (TypeError, ValueError) as error:
            assert self._state is not None
            raise CheckpointError(
                f"progress in the state in {self._state.url!r} must be as dtopk wrote it, but it "
                f"is not: {error}. Start the run anew, in another folder."
            ) from error
        self._own(self.progress.owners, None)
        self._restore(manifest["version"])
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
            "mixed": self.layout.mixed,
        }

    def _check_layout(self, committed: Mapping[str, Any]) -> None:
        assert self._state is not None
        # States of earlier versions do not say so.
        committed = {"mixed": False} | dict(committed)
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
            stop = self._stop_reason(record.epoch) or self._ask(record)
            if stop is not None and self._is_whole and not is_restored:
                self._save({"record": asdict(record), "course": course})
            # Where a limit ends training the commit comes first: there may be no time for more.
            self._ask(record)
            if self._schedule.due(record.relative_gap) or course != "falls" or stop is not None:
                certificate = self._certify()
                self._require_finite(certificate.primal, certificate.dual_value)
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

    def _version(self, epoch: int) -> str:
        return f"{epoch:06d}-{self._session}"

    def _cut_short(self) -> bool:
        return self._interruption.requested or self.seconds_left < 0

    def _require_finite(self, primal: float, dual_value: float) -> None:
        """Refuse to go on with values that have run out of the floating-point type."""
        if not (math.isfinite(primal) and math.isfinite(dual_value)):
            raise ValueError(
                f"primal and dual must stay finite, got {primal!r} and {dual_value!r} in epoch "
                f"{self.progress.epoch}: {self.options.explain_overflow()}"
            )

    def _stop_reason(self, epoch: int) -> StopReason | None:
        if self._interruption.requested:
            return "interrupted"
        if self.seconds_left < 0:
            return "time_limit"
        return "max_epochs" if epoch >= self.options.max_epochs else None

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
        # A certificate may have changed those that the callbacks were asked about.
        W = self._read_weights() if record.exact or self._W is None else self._W
        self._told, self._W = record.epoch, None
        for callback in self.callbacks:
            callback.on_epoch(record, W)

    def _ask(self, record: EpochRecord) -> StopReason | None:
        """Ask the callbacks about an epoch, once however often the run goes back behind it."""
        epoch, reason = self._asked
        if record.epoch <= epoch:
            return reason if record.epoch == epoch else None
        if not any(type(each).should_stop is not Callback.should_stop for each in self.callbacks):
            return None
        self._W = self._read_weights()
        self._asked = record.epoch, ask_to_stop(self.callbacks, record, self._W)
        return self._asked[1]

    def _read_weights(self) -> NDArray[Any] | None:
        """Return the weights, if they cost nothing or a callback wants them."""
        wanted = self.team.near or any(callback.reads_weights for callback in self.callbacks)
        return self.team.weights() if wanted else None

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
