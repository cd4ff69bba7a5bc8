"""Frank-Wolfe's method and the projected subgradient method on a team.

Both mix what a pass finds into the dual variables of all rows with one weight. Of the dual value
only the atoms' products are needed, so that for losses without smoothing no dual is kept
anywhere: the weights and a few numbers carry the method.
"""

import math
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np

from dtopk.engine.messages import Fold, PassSums
from dtopk.engine.pass_run import PassProgress, PassRun
from dtopk.engine.records import EpochRecord
from dtopk.engine.run import Progress
from dtopk.engine.solvers import choose_atoms, keeps_duals
from dtopk.engine.vector_member import WEIGHTS
from dtopk.solvers.bundle import BASE, Bundle
from dtopk.solvers.certificate import Certificate
from dtopk.solvers.policy import Course

_ROWS_BYTES = 256 << 20
"""Bytes that the rows of the atoms may take, or as many as the duals where those take more."""
_TOWARDS = 0.3
"""Of the way from the best weights so far to those of the best mixture, this share is gone before
the next pass, for a loss without smoothing: cutting planes are most useful near where the least
value is, and the best mixture is often far from there (Franc, Sonnenburg, Optimized Cutting Plane
Algorithm, ICML 2008). Of 0.3, 0.5, 0.7 and 1 it took the fewest passes everywhere."""


@dataclass(kw_only=True)
class MixtureProgress(PassProgress):
    """What a run that mixes atoms needs to go on."""

    bundle: dict[str, Any] = field(default_factory=dict)
    """The atoms and their weights."""
    newest: int = 0
    """The name of the newest atom."""
    best: float = math.inf
    """The least P so far, of a loss without smoothing or of the subgradient method."""
    bound: float = -math.inf
    """The greatest D so far."""
    folds: list[dict[str, Any]] = field(default_factory=list)
    """Changes of the base that the rows have not followed yet."""
    radius: float = math.inf
    """Greatest norm of the weights."""
    foldings: int = 0
    """How often certificates have written streamed duals once more."""


class FrankWolfeRun(PassRun):
    """The lead of a run of Frank-Wolfe's method, or of the subgradient method. See :class:`Run`."""

    progress_class: ClassVar[type[Progress]] = MixtureProgress
    progress: MixtureProgress

    def _make_progress(self) -> MixtureProgress:
        self._bundle = Bundle(self._choose_limit())
        return MixtureProgress()

    def _choose_limit(self) -> int:
        """Choose how many atoms are kept apart."""
        if self._solver != "frank_wolfe":
            return 0
        return choose_atoms(self.layout.slices[-1][1], self.rows.n_classes, self.options)

    @property
    def _smooth(self) -> bool:
        """Whether every row's dual is kept, since the vertices depend on it."""
        return keeps_duals(self.loss, self._solver)

    def _begin(self) -> None:
        self._own(self._dealer.owners.tolist(), None)
        self._combine("base", {})
        if self._start is None:
            return
        self.team.call("begin_version", f"start-{self._session}")
        sums = self.team.call("start", self._start)
        norms = self.team.call("keep_exact")
        linear = math.fsum(part.linear for part in sums)
        duals = math.fsum(value for part in sums for value in part.duals)
        square = math.fsum(norm.dual_weights for norm in norms)
        self._bundle.restart(linear, square + 2 * (linear - duals))
        self._combine(WEIGHTS, {"base": 1.0})

    def _restore(self, version: str) -> None:
        now = self.progress
        self._bundle = Bundle.from_dict(now.bundle)
        atoms = [name for name in self._bundle.names if name != BASE]
        idle = {name for fold in now.folds for name in fold["dropped"]}
        kept = sorted({*atoms, *idle}) if self._smooth else []
        self.team.call("restore_vectors", version, now.vectors, kept)

    def _version(self, epoch: int) -> str:
        return f"{epoch:06d}-{self.progress.foldings:04d}-{self._session}"

    def _save(self, pending: dict[str, Any]) -> None:
        self.progress.bundle = self._bundle.to_dict()
        super()._save(pending)

    # One pass.

    def _epoch(self) -> EpochRecord:
        now = self.progress
        now.newest += 1
        others = tuple(name for name in self._bundle.names if name != BASE)
        sums = self._pass(
            kind="gradients" if self._solver == "pegasos" else "vertices",
            atom=now.newest,
            mixture=self._bundle.mixture,
            atoms=others,
            folds=tuple(_make_fold(fold) for fold in now.folds),
        )
        now.folds = []
        if not self._is_whole:
            return self._make_record(sums, 1.0, 0.0)
        self._take_in(sums)
        return self._make_record(sums, self._primal, now.bound)

    def _count_kept(self, sums: list[PassSums]) -> int:
        """Count the atoms whose rows may be kept: they take no more than the duals do."""
        if self._streamed:
            return 0  # Only the newest one, until the base has taken it in.
        dual_bytes = self.layout.n_samples * self.rows.n_classes
        dual_bytes *= np.dtype(self.options.dtype).itemsize
        entries = sum(part.nonzeros for part in sums)
        entry_bytes = 4 + np.dtype(self.options.dtype).itemsize
        return max(dual_bytes, _ROWS_BYTES) // max(entries * entry_bytes, 1)

    def _take_in(self, sums: list[PassSums]) -> None:
        """Add the new atom; find P and D."""
        now, bundle = self.progress, self._bundle
        newest = _vector(now.newest)
        self._collect(newest)
        names = [_vector(name) for name in bundle.names]
        products = self._products([newest, WEIGHTS], [*names, newest, WEIGHTS])
        linear = math.fsum(part.linear for part in sums)
        # The base and the atoms so far; the newest one has no weight yet.
        now.bound = max(now.bound, self._bound())
        smoothing = np.array(
            [_sum_products(sums, str(name)) for name in bundle.names] + [_sum_products(sums, "new")]
        )
        gram = products[0, :-1] + smoothing
        losses = math.fsum(part.losses for part in sums)
        if self._solver != "pegasos" and not self._smooth:
            # At a vertex, C L(u) = D_i(a) - <a, u>.
            losses = linear - products[0, -1]
        primal = losses + 0.5 * products[1, -1]
        self._require_finite(primal, linear - 0.5 * gram[-1])
        bundle.add(now.newest, linear, gram[:-1], gram[-1])
        if self._smooth:
            self._primal = primal
            bundle.limit = min(bundle.limit, self._count_kept(sums))
            return
        if now.epoch == 1:
            now.radius = math.sqrt(2 * max(primal, 0.0))
        if primal < now.best:
            now.best = primal
            self._combine("best", {WEIGHTS: 1.0})
        self._primal = now.best

    # Between passes.

    def _advance(self, gap: float, course: Course) -> None:
        now, bundle = self.progress, self._bundle
        if self._solver == "frank_wolfe":
            bundle.maximise()
        elif self._solver == "frank_wolfe_fixed":
            bundle.step(2 / (now.epoch + 1))
        else:
            bundle.step(1 / now.epoch)
        self._fold()
        if self._solver == "pegasos":
            self._project()
        self._combine(WEIGHTS, self._next_weights())

    def _fold(self) -> None:
        """Give up atoms that are idle, or too many to be kept apart."""
        bundle = self._bundle
        idle = bundle.drop_idle()
        shares = bundle.fold()
        dropped = [*idle, *(name for name in shares if name != BASE)]
        if shares:
            self._combine("base", {_vector(name): share for name, share in shares.items()})
        self._drop([_vector(name) for name in dropped])
        if self._smooth and (dropped or shares):
            fold = {"shares": list((shares or {BASE: 1.0}).items()), "dropped": dropped}
            self.progress.folds.append(fold)

    def _project(self) -> None:
        """Put the weights into the ball that the optimum is in."""
        norm = math.sqrt(max(self._products(["base"], ["base"])[0, 0], 0.0))
        if norm > self.progress.radius:
            share = self.progress.radius / norm
            self._bundle.shrink(share)
            self._combine("base", {"base": share})

    def _next_weights(self) -> dict[str, float]:
        """Say at which weights the next pass is."""
        share = 1.0
        if not self._smooth and self._bundle.limit > 0:
            share = _TOWARDS
        terms = {_vector(name): share * w for name, w in self._bundle.mixture.items()}
        if share < 1:
            terms["best"] = 1 - share
        return terms

    # Certificates.

    def _certify(self) -> Certificate:
        if self._smooth:
            return self._certify_duals()
        # No duals are kept: D is that of the mixture, by its atoms' products.
        if math.isfinite(self.progress.best):
            self._combine(WEIGHTS, {"best": 1.0})
        sums = self.team.call("sum_losses")
        losses = math.fsum(value for part in sums for value in part.losses)
        norm = self._products([WEIGHTS], [WEIGHTS])[0, 0]
        return self._certificate(losses, max(self.progress.bound, self._bound()), norm, 0.0)

    def _bound(self) -> float:
        """Return D of the mixture: at least what is left of it where no duals can give it anew."""
        if self._smooth:
            return self._bundle.value
        return self._bundle.bound(float(np.finfo(self.options.dtype).eps))

    def _certify_duals(self) -> Certificate:
        """Recompute all from the duals: the base is what they are a mixture of, from here on."""
        bundle = self._bundle
        limit, bundle.limit = bundle.limit, 0
        self._fold()
        bundle.limit = limit
        self.team.call("fold", tuple(_make_fold(fold) for fold in self.progress.folds))
        self.progress.folds = []
        if self._streamed:
            # What is committed under the version so far stays as it is.
            self.progress.foldings += 1
            self.team.call("begin_version", self._version(self.progress.epoch))
        sums = self.team.call("sum_certificate")
        sums.sort(key=lambda part: part.partition)
        norms = sorted(self.team.call("keep_exact"), key=lambda norm: norm.slice)
        return self._certificate(
            math.fsum(loss for part in sums for loss in part.losses),
            math.fsum(dual for part in sums for dual in part.duals),
            math.fsum(norm.weights for norm in norms),
            math.fsum(norm.dual_weights for norm in norms),
        )


def _vector(name: int) -> str:
    return "base" if name == BASE else f"atom-{name}"


def _make_fold(values: dict[str, Any]) -> Fold:
    return Fold(shares=dict(values["shares"]), dropped=tuple(values["dropped"]))


def _sum_products(sums: list[PassSums], name: str) -> float:
    return math.fsum(part.products.get(name, 0.0) for part in sums)
