"""Blocked SDCA by turns with the choice of what each row leaves out, for losses not convex.

Stage 0 solves a convex loss to a modest gap. Every later stage fixes the classes that each row
leaves out, its masks, at the weights reached, and solves the convex problem with these masks: it
lies nowhere below the true one and meets it where the masks were chosen, so that P falls from stage
to stage. A stage is solved as far as it pays, and only the last one to the end. At the end of each
the masks are chosen anew by the certificate, which is that of the convex problem with the masks of
the weights themselves.
"""

import math
from dataclasses import dataclass, replace
from typing import ClassVar

from dtopk.engine.options import StartPoint
from dtopk.engine.records import EpochRecord
from dtopk.engine.run import Progress
from dtopk.engine.sdca_run import SdcaProgress, SdcaRun
from dtopk.engine.solvers import START_GAP
from dtopk.solvers.certificate import Certificate
from dtopk.solvers.policy import CheckSchedule, Course

_FIRST_GAP = 5e-2
"""Relative gap to which the problem with the first masks is solved."""
_GAIN_SHARE = 1.0
"""Of what the last stage gained in P, in relative terms, the next one may leave as its gap. With
less, losses that are not smooth took up to twice the passes, to weights that were no better."""
_LEAST_GAP = 0.5
"""Share of the tolerance that a stage's gap is lowered to at first, at most."""
_LEAST_GAIN = 0.5
"""A stage that has gained less than this share of it is solved on: where its gap is the rest, the
weights at which it began are certified."""
_TIGHTER = 0.9
"""The gap of such a stage is that share of what remains of the tolerance."""


@dataclass(kw_only=True)
class MaskedProgress(SdcaProgress):
    """What a run of a loss that leaves classes out needs to go on."""

    masking: int = 0
    """How many times the masks have been chosen."""
    stage_tol: float = START_GAP
    """Relative gap to which the stage is solved."""
    best: float = math.inf
    """P at the weights that the masks were chosen at."""


class MaskedRun(SdcaRun):
    """The lead of a run of a loss that leaves classes out. See :class:`Run`."""

    progress_class: ClassVar[type[Progress]] = MaskedProgress
    progress: MaskedProgress

    def _make_progress(self) -> MaskedProgress:
        self._is_swapped = False
        found = super()._make_progress()
        stage_tol = max(START_GAP, self.options.tol)
        self._schedule = CheckSchedule(stage_tol)
        return MaskedProgress(sigma=found.sigma, duals=found.duals, stage_tol=stage_tol)

    def _take_over(self, progress: Progress) -> None:
        assert isinstance(progress, MaskedProgress)
        self._schedule.aim(progress.stage_tol)
        super()._take_over(progress)

    def _restore(self, version: str) -> None:
        super()._restore(version)
        if self.progress.masking:
            self.team.call("restore_masks", version)

    def _begin_at(self, start: StartPoint) -> None:
        """Begin with the masks of the weights that are given, or that the duals stand for."""
        super()._begin_at(start)
        self._next_stage(super()._certify().primal)
        self.team.call("take_off_drift")
        self._has_exact = False

    def _version(self, epoch: int) -> str:
        # Duals that are streamed are written once by the epoch, and once more with other masks.
        return f"{epoch:06d}-{self.progress.masking:04d}-{self._session}"

    def _epoch(self) -> EpochRecord:
        return replace(super()._epoch(), masking=self.progress.masking)

    def _certify(self) -> Certificate:
        """Recompute primal and dual value at W, or at the weights that the masks are of.

        The latter where the stage has brought P down by next to nothing: solved to its end it then
        shows that they are stationary, which W, with other masks, may not be.
        """
        found, now = super()._certify(), self.progress
        gain = now.best - found.primal
        if found.certified and gain >= 0:
            return found
        gain /= max(abs(found.primal), abs(found.dual_value)) or 1.0
        if gain > _LEAST_GAIN * self.options.tol:
            return found
        self._rest = self.options.tol - max(gain, 0.0)
        self._swap()
        return super()._certify()

    def _swap(self) -> None:
        """Have the weights that the masks are of in W's place, or back."""
        self.team.call("swap_weights")
        self._is_swapped = not self._is_swapped

    def _certified_record(self, record: EpochRecord, certificate: Certificate) -> EpochRecord:
        self._primal = certificate.primal
        return super()._certified_record(record, certificate)

    def _advance(self, gap: float, course: Course) -> None:
        """Choose masks anew, or solve the stage further, after a certificate."""
        now = self.progress
        if self._is_swapped:
            self._swap()
            now.stage_tol = min(_TIGHTER * self._rest, now.stage_tol)
            self._schedule.aim(now.stage_tol)
            self._watch.restart()
        elif self._has_exact:
            self._next_stage(self._primal)
        super()._advance(gap, course)

    def _next_stage(self, primal: float) -> None:
        """Choose the masks at W, where P is known."""
        now = self.progress
        wanted = _FIRST_GAP
        if math.isfinite(now.best):
            wanted = min(_GAIN_SHARE * (now.best - primal) / abs(primal), now.stage_tol)
        now.stage_tol = max(wanted, _LEAST_GAP * self.options.tol)
        now.best = primal
        now.masking += 1
        self.team.call("begin_version", self._version(now.epoch))
        self.team.call("choose_masks")
        self._schedule = CheckSchedule(now.stage_tol)
        self._watch.restart()
