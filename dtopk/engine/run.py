"""One training run: passes of blocked SDCA over a feed of rows, until there is a certificate."""

import contextlib
import logging
import math
import time
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dtopk.engine.feed import Feed, Visit
from dtopk.engine.interruption import Interruption
from dtopk.engine.memory import MemoryPlan
from dtopk.engine.options import FitOptions, StartPoint
from dtopk.engine.records import Callback, EpochRecord, FitInfo, FitResult, StopReason
from dtopk.engine.rows import Rows
from dtopk.kernels.blas import gemm
from dtopk.losses import Loss
from dtopk.solvers.acceleration import MovingCentre
from dtopk.solvers.certificate import Certificate, CertificateSums, relative_gap
from dtopk.solvers.policy import CheckSchedule, StagnationWatch, choose_ratio, weaker_ratio
from dtopk.solvers.sdca import BlockUpdater, RowConversion, default_block_size
from dtopk_storage import DualFile

logger = logging.getLogger(__name__)

Array = NDArray[Any]

_PROGRESS_ROWS = 4096
"""Callbacks hear of every so many rows."""
_START_ROWS = 4096
"""Rows whose duals are started together."""


class Run:
    """The state of one training run."""

    def __init__(
        self,
        rows: Rows,
        loss: Loss,
        options: FitOptions,
        feed: Feed,
        interruption: Interruption,
        callbacks: Sequence[Callback],
        solver: str,
    ) -> None:
        self.rows = rows
        self.loss = loss
        self.options = options
        self.feed = feed
        self.callbacks = callbacks
        self._solver = solver
        self._interruption = interruption
        dtype = np.dtype(options.dtype)
        self.conversion = RowConversion(
            n_features=rows.n_features,
            dtype=np.dtype(np.float64),
            mean=options.mean,
            inverse_scale=options.inverse_scale,
            constant=options.constant,
        ).in_dtype(dtype)
        block_size = options.block_size or default_block_size(rows.n_classes)
        self.n_samples = sum(piece.n_rows for piece in rows.pieces)
        self.updater = BlockUpdater(
            loss, self.conversion, rows.n_classes, min(block_size, self.n_samples)
        )
        self.W: Array = np.zeros((self.conversion.width, rows.n_classes), dtype)
        self.centre: MovingCentre | None = None
        self._exact_dual_weights: Array | None = None
        self._watch = StagnationWatch()
        self.dual_values = [0.0]
        self.history: list[EpochRecord] = []
        self.certificate_seconds = 0.0
        self._began = time.perf_counter()

    @property
    def _seconds(self) -> float:
        return time.perf_counter() - self._began

    @property
    def _ratio(self) -> float:
        return 1.0 if self.centre is None else self.centre.ratio

    def run(self, plan: MemoryPlan) -> FitResult:
        """Make passes until there is a reason to stop."""
        options = self.options
        info = FitInfo(
            n_samples=self.n_samples,
            n_features=self.rows.n_features,
            n_classes=self.rows.n_classes,
            loss_name=self.loss.name,
            solver=self._solver,
            tol=options.tol,
            max_epochs=options.max_epochs,
            features_in_memory=plan.features_in_memory,
            duals_in_memory=plan.duals_in_memory,
        )
        for callback in self.callbacks:
            callback.on_start(info)
        self._compile()
        schedule = CheckSchedule(options.tol)
        while True:
            record = self._pass()
            stop = self._stop_reason(record.epoch)
            stagnates = self._watch.stagnates(record.relative_gap)
            if schedule.due(record.relative_gap) or stagnates or stop is not None:
                certificate = self._certify()
                record = self._certified_record(record, certificate)
                if certificate.certified:
                    stop = "tolerance"
                else:
                    schedule.missed(certificate.relative_gap)
            self._tell(record)
            if stop is not None:
                return self._result(certificate, stop)
            self._advance(record.relative_gap, stagnates)

    def _compile(self) -> None:
        """Call every kernel once, on a row of zeros, so that no pass waits for the compiler."""
        for callback in self.callbacks:
            callback.on_compile()
        began = time.perf_counter()
        X = np.zeros((1, self.rows.n_features), self.rows.dtype)
        labels, costs = np.zeros(1, np.int32), np.ones(1, self.W.dtype)
        W, dual = np.zeros_like(self.W), np.zeros((1, self.rows.n_classes), self.W.dtype)
        updater = BlockUpdater(self.loss, self.conversion, self.rows.n_classes, 1)
        updater.update(X, labels, costs, dual, np.zeros(1, np.int64), W, 1.0)
        CertificateSums(self.loss, self.conversion, W).add(X, labels, costs, dual)
        self._began += time.perf_counter() - began

    def start_from(self, start: StartPoint) -> None:
        """Take duals from a file or from the gradients at weights, and W from the duals."""
        weights = self._started_weights(start.W)
        self._check_duals(start.dual)
        sums = CertificateSums(self.loss, self.conversion, weights)
        visits = self.feed.visit(range(len(self.rows.pieces)), update=True)
        with contextlib.closing(visits):
            for visit in visits:
                piece, costs = visit.piece, self._costs(visit)
                for first in range(0, len(costs), _START_ROWS):
                    part = slice(first, first + _START_ROWS)
                    X, labels, cost = piece.X[part], piece.labels[part], costs[part]
                    if start.dual is not None:
                        low = visit.range.start + first
                        a = start.dual.read(low, low + len(cost)).astype(np.float64)
                        a *= start.dual_factor
                    else:
                        gradients = self.loss.gradients(self._scores(X, weights), labels)
                        a = -cost[:, None] * gradients.astype(np.float64)
                    self.loss.make_feasible(a, labels, cost)
                    visit.dual[part] = a
                    sums.add(X, labels, cost, visit.dual[part])
        self.W[:] = sums.dual_weights
        self.dual_values = [sums.certificate(self.options.tol).dual_value]

    def _check_duals(self, dual: DualFile | None) -> None:
        wanted = (self.rows.n_stored, self.rows.n_classes)
        if dual is not None and (dual.n_samples, dual.n_classes) != wanted:
            raise ValueError(
                f"start duals must have {wanted[0]} rows and {wanted[1]} classes, got "
                f"{dual.n_samples} and {dual.n_classes} in {dual.path!r}."
            )

    def _started_weights(self, W: Array | None) -> Array:
        weights = np.zeros_like(self.W)
        if W is not None:
            if W.shape[1:] != weights.shape[1:] or len(W) > len(weights):
                raise ValueError(
                    f"start weights must have at most {len(weights)} rows and "
                    f"{weights.shape[1]} columns, got shape {W.shape}."
                )
            weights[: len(W)] = W
        return weights

    def _scores(self, X: Array, W: Array) -> Array:
        block = np.empty((len(X), self.conversion.width), W.dtype)
        self.conversion.gather(X, np.arange(len(X)), block)
        scores = np.empty((len(X), W.shape[1]), W.dtype)
        gemm(block, W, scores)
        return scores

    def _costs(self, visit: Visit) -> NDArray[np.float64]:
        """Return C times the weight of each row of a piece, in float64."""
        costs = self.options.C * visit.piece.weight
        if self.options.class_weight is not None:
            costs = costs * self.options.class_weight[visit.piece.labels]
        return costs

    def _pass(self) -> EpochRecord:
        """Visit every row once, piece by piece in random order; a stop may cut the pass short."""
        epoch = len(self.history) + 1
        began, waited = time.perf_counter(), self.feed.read_seconds
        order = np.random.default_rng([self.options.seed, epoch]).permutation(len(self.rows.pieces))
        loss_sum, dual_sum, done = 0.0, 0.0, 0
        visits = self.feed.visit(order.tolist(), update=True)
        with contextlib.closing(visits):
            for index, visit in zip(order, visits, strict=False):
                for n_rows, loss, dual in self._visit(visit, [self.options.seed, epoch, index]):
                    loss_sum += loss
                    dual_sum += dual
                    done += n_rows
                    self._report(done, n_rows)
                if self._cut_short():
                    break
        return self._record(epoch, began, waited, loss_sum, dual_sum, done)

    def _visit(self, visit: Visit, seed: list[int]) -> Iterator[tuple[int, float, float]]:
        """Update a piece block by block; yield the rows, loss and dual of each block."""
        piece = visit.piece
        costs = self._costs(visit).astype(self.W.dtype)
        order = np.random.default_rng(seed).permutation(len(piece.labels))
        for start in range(0, len(order), self.updater.block_size):
            rows = order[start : start + self.updater.block_size]
            sums = self.updater.update(
                piece.X, piece.labels, costs, visit.dual, rows, self.W, self._ratio
            )
            yield len(rows), sums.loss, sums.dual
            if self._cut_short():
                return

    def _cut_short(self) -> bool:
        return self._interruption.requested or self._seconds > self.options.time_limit_s

    def _report(self, done: int, added: int) -> None:
        if done // _PROGRESS_ROWS != (done - added) // _PROGRESS_ROWS or done == self.n_samples:
            for callback in self.callbacks:
                callback.on_rows(done)

    def _record(
        self,
        epoch: int,
        began: float,
        waited: float,
        loss_sum: float,
        dual_sum: float,
        done: int,
    ) -> EpochRecord:
        dual_weights = self.W if self.centre is None else self.centre.dual_weights(self.W)
        primal = loss_sum + 0.5 * _squared_norm(self.W)
        dual_value = dual_sum - 0.5 * _squared_norm(dual_weights)
        if not (math.isfinite(primal) and math.isfinite(dual_value)):
            raise ValueError(
                f"primal and dual must stay finite, got {primal!r} and {dual_value!r} in epoch "
                f"{epoch}: the features or C = {self.options.C!r} are too large for "
                f"{self.W.dtype.name}. Scale the features, or compute in float64."
            )
        self.dual_values.append(dual_value)
        return EpochRecord(
            epoch=epoch,
            seconds=self._seconds,
            rows_per_second=done / max(time.perf_counter() - began, 1e-9),
            primal=primal,
            dual_value=dual_value,
            relative_gap=relative_gap(primal, dual_value),
            exact=False,
            read_seconds=self.feed.read_seconds - waited,
            acceleration=self._ratio,
        )

    def _stop_reason(self, epoch: int) -> StopReason | None:
        if self._interruption.requested:
            return "interrupted"
        if self._seconds > self.options.time_limit_s:
            return "time_limit"
        return "max_epochs" if epoch >= self.options.max_epochs else None

    def _certify(self) -> Certificate:
        """Recompute primal and dual over all rows, in float64, from W and the duals as kept.

        If training goes on, it goes on from the weights that the duals stand for to the last
        digit: in float32, W drifts from them.
        """
        began = time.perf_counter()
        sums = CertificateSums(self.loss, self.conversion, self.W)
        for visit in self.feed.visit(range(len(self.rows.pieces)), update=False):
            piece = visit.piece
            sums.add(piece.X, piece.labels, self._costs(visit), visit.dual)
        certificate = sums.certificate(self.options.tol)
        if not certificate.certified:
            self._exact_dual_weights = sums.dual_weights
        self.certificate_seconds += time.perf_counter() - began
        return certificate

    def _certified_record(self, record: EpochRecord, certificate: Certificate) -> EpochRecord:
        return EpochRecord(
            epoch=record.epoch,
            seconds=self._seconds,
            rows_per_second=record.rows_per_second,
            primal=certificate.primal,
            dual_value=certificate.dual_value,
            relative_gap=certificate.relative_gap,
            exact=True,
            read_seconds=record.read_seconds,
            acceleration=record.acceleration,
        )

    def _tell(self, record: EpochRecord) -> None:
        self.history.append(record)
        for callback in self.callbacks:
            callback.on_epoch(record, self.W)

    def _advance(self, gap: float, stagnates: bool) -> None:
        """Move the centre of the accelerated loop, or decide whether to start it."""
        self._take_off_drift()
        if self.centre is not None:
            if stagnates:
                self.centre.set_ratio(self.W, weaker_ratio(self.centre.ratio))
            self.centre.advance(self.W)
        elif self.options.acceleration != "off":
            always = self.options.acceleration == "on"
            ratio = choose_ratio(self.dual_values, gap, self.options.tol, always=always)
            if ratio > 1:
                logger.info("Accelerated outer loop from here, r = %.3g.", ratio)
                self.centre = MovingCentre(self.W, ratio)
                self._watch.restart()

    def _take_off_drift(self) -> None:
        """Make W agree with the duals, whose weights the last certificate has summed anew."""
        if self._exact_dual_weights is None:
            return
        exact = self._exact_dual_weights.astype(self.W.dtype)
        self._exact_dual_weights = None
        if self.centre is None:
            self.W[:] = exact
        else:
            self.centre.refresh(self.W, exact)

    def _result(self, certificate: Certificate, stop_reason: StopReason) -> FitResult:
        d = self.rows.n_features
        constant = self.options.constant
        intercept = self.W[d] * constant if constant else np.zeros_like(self.W[0])
        return FitResult(
            W=self.W[:d],
            intercept=intercept.astype(self.W.dtype),
            certificate=certificate,
            history=tuple(self.history),
            stop_reason=stop_reason,
            epochs=len(self.history),
            seconds=self._seconds,
            certificate_seconds=self.certificate_seconds,
            solver=self._solver,
            timings=self.updater.timings,
        )


def _squared_norm(W: Array) -> float:
    """Return |W|^2, summed in float64."""
    return float(np.einsum("ij,ij->", W, W, dtype=np.float64))
