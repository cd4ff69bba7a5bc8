"""Rounds of blocked SDCA on a team."""

import math
import time
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from dtopk.engine.messages import ExactNorms, PartitionSums, SliceNorms, SliceProducts, Step, Sweep
from dtopk.engine.options import StartPoint
from dtopk.engine.records import EpochRecord
from dtopk.engine.run import Progress, Run
from dtopk.solvers.certificate import Certificate, relative_gap
from dtopk.solvers.dual_step import RoundProducts, adapt_sigma, choose_theta
from dtopk.solvers.policy import (
    MOST_RATIO,
    Course,
    first_ratio,
    lower_ceiling,
    steer_ratio,
)

PROBED_ROWS = 1024
"""Rows on which the gap is estimated after an epoch, at least."""
PROBED_SHARE = 1 / 64
"""That share of all rows."""
_ROUNDING = 1e-11
"""A relative gap below which its parts are rounding: from there r falls, for the last digits."""


@dataclass(kw_only=True)
class SdcaProgress(Progress):
    """What a run of SDCA needs to go on."""

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


@dataclass(kw_only=True)
class _RoundNotes:
    """What the rounds of an epoch showed, for its record."""

    thetas: list[float] = field(default_factory=list)
    correlation: float = 1.0
    sigma: float = 1.0
    slowest: float = 0.0
    median: float = 0.0
    late: str = ""


class SdcaRun(Run):
    """The lead of a run of blocked SDCA. See :class:`Run`."""

    progress_class: ClassVar[type[Progress]] = SdcaProgress
    progress: SdcaProgress

    def _make_progress(self) -> SdcaProgress:
        self._has_exact = False
        sigma = 1.0 if self.options.aggregation == "averaging" else float(self.layout.n_partitions)
        return SdcaProgress(sigma=sigma, duals=[0.0] * len(self.layout.blocks))

    def _restore(self, version: str) -> None:
        self.team.call("restore", version, self.progress.ratio)

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

    def _record(self, norms: list[SliceNorms], notes: _RoundNotes, **measured: Any) -> EpochRecord:
        norms.sort(key=lambda norm: norm.slice)
        dual_value = math.fsum(self.progress.duals) - 0.5 * _sum(norms, "dual_weights")
        self.progress.inner, self.progress.outer = self._probe(), 0.5 * _sum(norms, "distance")
        primal = dual_value + self.progress.inner + self.progress.outer
        self._require_finite(primal, dual_value)
        return EpochRecord(
            epoch=self.progress.epoch,
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
