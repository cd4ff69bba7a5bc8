"""One training run of a kernel problem: passes, until there is a certificate."""

import contextlib
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits

from dtopk.engine.interruption import Interruption
from dtopk.engine.options import FitOptions
from dtopk.engine.records import Callback, EpochRecord, StopReason, ask_to_stop
from dtopk.estimators.gram import Gram
from dtopk.losses import Labels, Loss
from dtopk.solvers.certificate import Certificate, relative_gap
from dtopk.solvers.kernel_sdca import KernelProblem, KernelSdca, Measures
from dtopk.solvers.policy import (
    MOST_RATIO,
    CheckSchedule,
    StagnationWatch,
    first_ratio,
    lower_ceiling,
    steer_ratio,
)
from dtopk.solvers.sdca import default_block_size

Float64 = NDArray[np.float64]

_ROUNDING = 1e-11
"""A relative gap below which its parts are rounding: from there r falls, for the last digits."""


@dataclass(frozen=True, kw_only=True)
class KernelRows:
    """Training rows that are known by a Gram matrix."""

    gram: Gram
    """Their products."""
    labels: Labels
    """Labels of shape (n_samples,), int32."""
    costs: Float64
    """C times the weight of each row, of shape (n_samples,)."""
    n_classes: int
    """Classes."""


@dataclass(frozen=True, kw_only=True)
class KernelFit:
    """What training reached."""

    coefficients: Float64
    """Of shape (n_samples, n_classes)."""
    certificate: Certificate
    """Primal and dual value of what is returned, in float64."""
    history: tuple[EpochRecord, ...]
    """One record for every pass."""
    stop_reason: StopReason
    """Why training ended."""
    seconds: float
    """From the start to the certificate."""


def fit_kernel(
    rows: KernelRows, loss: Loss, options: FitOptions, *, callbacks: Sequence[Callback] = ()
) -> KernelFit:
    """Train until the relative duality gap is at most `options.tol`.

    The first interrupt (Ctrl-C) ends training after the block in work, with a certificate.

    Parameters
    ----------
    rows : KernelRows
    loss : Loss
    options : FitOptions
        Of which what tells of features, weights of classes, partitions and states is left alone.
    callbacks : sequence of Callback
        Only told of epochs, and asked after them whether to stop; W is None.

    Raises
    ------
    ValueError
        If the Gram matrix is seen to be none, or values are too large to compute with.
    """
    with contextlib.ExitStack() as stack:
        stack.enter_context(threadpool_limits(options.threads or None, user_api="blas"))
        interruption = stack.enter_context(Interruption())
        _compile(rows, loss, options)
        return _KernelRun(rows, loss, options, callbacks, interruption).run()


def _compile(rows: KernelRows, loss: Loss, options: FitOptions) -> None:
    """Call every kernel once, so that the time of training has no compiler in it."""
    one = np.ones((1, 1))
    problem = KernelProblem(
        loss=loss,
        K=one.astype(options.dtype),
        labels=rows.labels[:1],
        costs=np.ones(1),
        n_classes=rows.n_classes,
    )
    sdca = KernelSdca(problem, 1)
    sdca.compile()
    sdca.certify(lambda start, stop: one, options.tol)


class _KernelRun:
    """The state of a run between its passes."""

    def __init__(
        self,
        rows: KernelRows,
        loss: Loss,
        options: FitOptions,
        callbacks: Sequence[Callback],
        interruption: Interruption,
    ) -> None:
        self._began = time.perf_counter()
        self._gram = rows.gram
        self._options = options
        self._callbacks = callbacks
        self._interruption = interruption
        self._history: list[EpochRecord] = []
        self._schedule = CheckSchedule(options.tol)
        self._watch = StagnationWatch()
        self._ceiling = MOST_RATIO
        problem = KernelProblem(
            loss=loss,
            K=rows.gram.make_matrix(options.dtype),
            labels=rows.labels,
            costs=rows.costs,
            n_classes=rows.n_classes,
        )
        block_size = options.block_size or default_block_size(problem.n_samples, problem.n_classes)
        self._sdca = KernelSdca(problem, block_size)
        if self._accelerated:
            self._sdca.move_centre(first_ratio(1), advance=False)

    @property
    def _accelerated(self) -> bool:
        return self._options.acceleration == "auto"

    @property
    def _seconds(self) -> float:
        return time.perf_counter() - self._began

    def run(self) -> KernelFit:
        """Make epochs until there is a reason to stop."""
        while True:
            record, measures = self._epoch()
            course = self._watch.judge(record.relative_gap)
            asked = ask_to_stop(self._callbacks, record, None)
            stop = self._stop_reason(record.epoch) or asked
            if self._schedule.due(record.relative_gap) or course != "falls" or stop is not None:
                solution = self._sdca.certify(self._gram.read_rows, self._options.tol)
                certificate = solution.certificate
                record = self._certified_record(record, certificate)
                if certificate.certified:
                    stop = "tolerance"
                else:
                    self._schedule.missed(certificate.relative_gap)
            self._history.append(record)
            for callback in self._callbacks:
                callback.on_epoch(record, None)
            if stop is not None:
                return KernelFit(
                    coefficients=solution.coefficients,
                    certificate=certificate,
                    history=tuple(self._history),
                    stop_reason=stop,
                    seconds=self._seconds,
                )
            if self._accelerated:
                if course == "swings":
                    self._ceiling = lower_ceiling(self._sdca.ratio)
                inner = measures.inner if record.relative_gap > _ROUNDING else 0.0
                ratio = steer_ratio(self._sdca.ratio, inner, measures.outer, ceiling=self._ceiling)
                self._sdca.move_centre(ratio, advance=True)

    def _epoch(self) -> tuple[EpochRecord, Measures]:
        """Visit every row once; a stop may cut the epoch short."""
        epoch, began = len(self._history) + 1, time.perf_counter()
        n_samples = self._sdca.problem.n_samples
        order = np.random.default_rng([self._options.seed, epoch]).permutation(n_samples)
        n_rows = self._sdca.sweep(order, self._is_over)
        measures = self._sdca.measure()
        primal, dual_value = measures.primal, measures.dual_value
        if not (math.isfinite(primal) and math.isfinite(dual_value)):
            raise ValueError(
                f"primal and dual must stay finite, got {primal!r} and {dual_value!r} in epoch "
                f"{epoch}: the Gram matrix or C = {self._options.C!r} are too large for "
                f"{self._options.dtype}. Scale the kernel, or compute in float64."
            )
        record = EpochRecord(
            epoch=epoch,
            seconds=self._seconds,
            rows_per_second=n_rows / max(time.perf_counter() - began, 1e-9),
            primal=primal,
            dual_value=dual_value,
            relative_gap=relative_gap(primal, dual_value),
            exact=False,
            read_seconds=0.0,
            acceleration=self._sdca.ratio,
        )
        return record, measures

    def _certified_record(self, record: EpochRecord, certificate: Certificate) -> EpochRecord:
        return replace(
            record,
            seconds=self._seconds,
            primal=certificate.primal,
            dual_value=certificate.dual_value,
            relative_gap=certificate.relative_gap,
            exact=True,
        )

    def _is_over(self) -> bool:
        return self._interruption.requested or self._seconds > self._options.time_limit_s

    def _stop_reason(self, epoch: int) -> StopReason | None:
        if self._interruption.requested:
            return "interrupted"
        if self._seconds > self._options.time_limit_s:
            return "time_limit"
        return "max_epochs" if epoch >= self._options.max_epochs else None
