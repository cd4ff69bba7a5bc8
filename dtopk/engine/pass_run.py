"""What runs of passes have in common: of every pass the weights are the same from end to end."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dtopk.engine.messages import Pass, PassSums
from dtopk.engine.records import EpochRecord
from dtopk.engine.run import Progress, Run
from dtopk.engine.vector_member import WEIGHTS
from dtopk.solvers.certificate import Certificate, relative_gap
from dtopk.solvers.policy import Course

Float64 = NDArray[np.float64]


@dataclass(kw_only=True)
class PassProgress(Progress):
    """What every run of passes needs to go on."""

    vectors: list[str] = field(default_factory=list)
    """The names of the vectors that there are."""


class PassRun(Run):
    """The lead of a run of passes. See :class:`Run`."""

    progress: PassProgress

    def _visit(self) -> tuple[EpochRecord, Course]:
        """Make a pass. Its gap is that of all rows: a certificate before the end tells no more."""
        return self._epoch(), "falls"

    def _pass(self, **order: Any) -> list[PassSums]:
        """Have all rows read once; note what it took."""
        self._pass_began = time.perf_counter()
        self._pass_moved = self.team.bytes_moved
        self._done = 0
        self.progress.epoch += 1
        found = self.team.call(
            "pass_over",
            Pass(
                version=self._version(self.progress.epoch), seconds_left=self.seconds_left, **order
            ),
        )
        sums: list[PassSums] = sorted(found, key=lambda part: part.partition)
        self._is_whole = sum(part.n_rows for part in sums) == self.layout.n_samples
        return sums

    def _products(self, left: Sequence[str], right: Sequence[str]) -> Float64:
        """Return the products of vectors, added up in the slices' order."""
        parts = self.team.call("multiply_vectors", list(left), list(right))
        parts.sort(key=lambda part: part.slice)
        total = np.zeros((len(left), len(right)))
        for part in parts:
            total += part.gram
        return total

    def _combine(self, name: str, terms: Mapping[str, float]) -> None:
        """Make a vector the sum of multiples of vectors."""
        self.team.call("combine", name, dict(terms))
        self._note(name)

    def _collect(self, name: str) -> None:
        """Make a vector of what the last pass has summed."""
        self.team.call("collect", name)
        self._note(name)

    def _drop(self, names: Sequence[str]) -> None:
        """Forget vectors."""
        self.team.call("drop", list(names))
        kept = self.progress.vectors
        self.progress.vectors = [name for name in kept if name not in names]

    def _note(self, name: str) -> None:
        vectors = self.progress.vectors
        if name != WEIGHTS and name not in vectors:
            vectors.append(name)

    def _make_record(
        self, sums: list[PassSums], primal: float, dual_value: float, **fields: Any
    ) -> EpochRecord:
        """Make the record of a pass."""
        if self._is_whole:
            self._require_finite(primal, dual_value)
        n_rows = sum(part.n_rows for part in sums)
        seconds = sorted(_sum_by_member(sums).values())
        return EpochRecord(
            epoch=self.progress.epoch,
            seconds=self.seconds,
            rows_per_second=n_rows / max(time.perf_counter() - self._pass_began, 1e-9),
            primal=primal,
            dual_value=dual_value,
            relative_gap=relative_gap(primal, dual_value),
            exact=False,
            read_seconds=max(part.read_seconds for part in sums),
            acceleration=1.0,
            bytes_moved=self.team.bytes_moved - self._pass_moved,
            slowest_seconds=seconds[-1],
            median_seconds=seconds[(len(seconds) - 1) // 2],
            **fields,
        )

    def _certificate(
        self, losses: float, duals: float, weights: float, dual_weights: float
    ) -> Certificate:
        return Certificate.from_values(
            float(losses + 0.5 * weights), float(duals - 0.5 * dual_weights), self.options.tol
        )


def _sum_by_member(sums: list[PassSums]) -> dict[int, float]:
    by_member: dict[int, float] = {}
    for part in sums:
        by_member[part.member] = by_member.get(part.member, 0.0) + part.seconds
    return by_member
