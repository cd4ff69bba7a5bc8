"""L-BFGS and gradient descent on a team.

The lead keeps products of vectors alone. Every pass gives P and its gradient at the weights, and
with them the certificate: minus C times the gradients of the loss are duals whose gap is half the
squared gradient of P.
"""

import math
from dataclasses import dataclass, field
from typing import Any, ClassVar

from dtopk.engine.messages import PassSums
from dtopk.engine.pass_run import PassProgress, PassRun
from dtopk.engine.records import EpochRecord
from dtopk.engine.run import Progress
from dtopk.engine.solvers import LBFGS_PAIRS, MOST_METRIC_WIDTH, START_GAP
from dtopk.engine.vector_member import METRIC, MOVE, WEIGHTS
from dtopk.solvers.certificate import Certificate
from dtopk.solvers.policy import CheckSchedule, Course
from dtopk.solvers.quasi_newton import LineSearch, QuasiNewton, names_of

_ROUNDING = {"float32": 1e-6, "float64": 1e-13}
"""By so much sums over the rows may be wrong, in relative terms."""
_POINT, _GRADIENT, _STEEPEST, _DIRECTION = "point", "gradient", "steepest", "direction"


@dataclass(kw_only=True)
class DescentProgress(PassProgress):
    """What a run of descent needs to go on."""

    pairs: dict[str, Any] = field(default_factory=dict)
    """The pairs of L-BFGS, by their products."""
    newest: int = 0
    """The name of the newest pair."""
    search: dict[str, float] = field(default_factory=dict)
    """The line search under way."""
    primal: float = math.inf
    """P at the last point that was accepted."""
    squared_gradient: float = math.inf
    """|grad P|^2 there."""
    step: float = 0.0
    """The last step that was accepted, by the norm of its direction, for gradient descent."""
    accepted: bool = True
    """Whether the weights of the last pass were."""
    begins: bool = False
    """Whether it is the convex loss that is descended, with which one that is not convex begins."""


class DescentRun(PassRun):
    """The lead of a run of L-BFGS or gradient descent. See :class:`Run`.

    Gradient descent of a loss that is not convex begins where L-BFGS has nearly solved a convex
    one. From W = 0 the truncated top-k entropy ended at a P that was 4 to 8 percent higher (k = 2,
    3 and 5 on the Letter data, C = 0.1), after twice the passes.
    """

    progress_class: ClassVar[type[Progress]] = DescentProgress
    progress: DescentProgress

    def _make_progress(self) -> DescentProgress:
        now = DescentProgress(begins=self.loss.n_masked > 0 and self._start is None)
        self._search: LineSearch | None = None
        self._choose_method(now)
        return now

    def _choose_method(self, now: DescentProgress) -> None:
        """Have pairs and a metric, or neither."""
        self._has_pairs = self._solver == "lbfgs" or now.begins
        self._quasi = QuasiNewton(LBFGS_PAIRS if self._has_pairs else 0)
        self._metric = self._has_pairs and self.layout.slices[-1][1] <= MOST_METRIC_WIDTH

    def _begin(self) -> None:
        self._own(self._dealer.owners.tolist(), None)
        self._prepare_metric()
        start = self._start
        if start is None:
            return
        if start.W is not None:
            self.team.call("set_weights", start)
            return
        self.team.call("start", start)
        self.team.call("keep_exact")
        self._combine(WEIGHTS, {"base": 1.0})
        self._drop(["base"])

    def _prepare_metric(self) -> None:
        """Sum X'X, once; a run that goes on does so again."""
        if not self._metric:
            return
        self.team.call("sum_metric")
        self._collect(METRIC)
        self.team.call("invert_metric", self.loss.convex_start.curvature / self.rows.n_classes)
        self._drop([METRIC])

    def _restore(self, version: str) -> None:
        now = self.progress
        self._choose_method(now)
        self._quasi = QuasiNewton.from_dict(now.pairs)
        self._search = LineSearch(**now.search) if now.search else None
        vectors = list(now.vectors)
        self._prepare_metric()
        now.vectors = vectors
        self.team.call("restore_vectors", version, vectors, [])

    def _precondition(self, source: str, name: str) -> None:
        """Make a vector the inverse of the metric times another."""
        self.team.call("precondition", source, name)
        self._note(name)

    def _save(self, pending: dict[str, Any]) -> None:
        now = self.progress
        now.pairs = self._quasi.to_dict()
        now.search = {} if self._search is None else self._search.to_dict()
        super()._save(pending)

    # One pass.

    def _epoch(self) -> EpochRecord:
        now = self.progress
        sums = self._pass(kind="gradients", begins=now.begins)
        if not self._is_whole:
            if self._search is not None:
                self._combine(WEIGHTS, {_POINT: 1.0})
            return self._make_record(sums, 1.0, 0.0)
        self._collect(MOVE)
        self._take_in(sums)
        return self._make_record(
            sums,
            now.primal,
            now.primal - 0.5 * now.squared_gradient,
            masking=int(self.loss.n_masked > 0 and not now.begins),
        )

    def _take_in(self, sums: list[PassSums]) -> None:
        """Judge the weights of the pass: whether they are the next point."""
        now = self.progress
        names = [WEIGHTS, MOVE] if self._search is None else [WEIGHTS, MOVE, _DIRECTION]
        products = self._products([WEIGHTS, MOVE], names)
        losses = math.fsum(part.losses for part in sums)
        primal = losses + 0.5 * products[0, 0]
        self._require_finite(primal, 0.0)
        if self._search is None:
            now.accepted = True
        else:
            now.accepted = self._search.judge(primal, float(products[0, 2] - products[1, 2]))
            if not now.accepted and self._search.exhausted:
                self._give_up()
                return
        if not now.accepted:
            self._combine(WEIGHTS, {_POINT: 1.0})
            return
        # From the vector itself: P - D would lose its digits near the optimum.
        self._combine("next", {WEIGHTS: 1.0, MOVE: -1.0})
        now.primal = primal
        now.squared_gradient = float(self._products(["next"], ["next"])[0, 0])
        self._take_pair()
        self._combine(_POINT, {WEIGHTS: 1.0})
        self._combine(_GRADIENT, {"next": 1.0})
        self._drop(["next", MOVE])

    def _give_up(self) -> None:
        """Go back to the last point, without what misled the search."""
        self._forget()
        self.progress.accepted = True
        self._combine(WEIGHTS, {_POINT: 1.0})

    def _forget(self) -> None:
        dropped = self._quasi.forget()
        self._drop([name for kind in "syz" for name in names_of(dropped, kind)])

    def _take_pair(self) -> None:
        """Have the last step and the change of the gradient along it as a pair."""
        if self._search is None:
            return
        now, quasi = self.progress, self._quasi
        if not self._has_pairs:
            now.step = self._search.step
            return
        now.newest += 1
        s, y, z = (names_of([now.newest], kind)[0] for kind in "syz")
        self._combine(s, {WEIGHTS: 1.0, _POINT: -1.0})
        self._combine(y, {"next": 1.0, _GRADIENT: -1.0})
        dropped = quasi.make_room()
        self._drop([name for kind in "syz" for name in names_of(dropped, kind)])
        if self._metric:
            self._precondition(y, z)
        z_kind = "z" if self._metric else "y"
        pairs = [*quasi.pairs, now.newest]
        steps, changes = names_of(pairs, "s"), names_of(pairs, "y")
        turned = names_of(pairs, z_kind)
        sy = self._products([s], changes)[0]
        ys, zy = self._products([y], [*steps, *turned])[0].reshape(2, -1)
        if not quasi.add(now.newest, sy, ys, zy):
            self._drop([s, y, z])

    # Between passes.

    def _advance(self, gap: float, course: Course) -> None:
        now = self.progress
        if now.begins and 0.5 * now.squared_gradient <= START_GAP * now.primal:
            self._leave_start()
            return
        if now.accepted:
            self._choose_direction()
        assert self._search is not None
        self._combine(WEIGHTS, {_POINT: 1.0, _DIRECTION: self._search.step})

    def _leave_start(self) -> None:
        """Descend the loss itself from here on."""
        now = self.progress
        self._forget()
        if self._metric:
            self._drop([_STEEPEST])
        now.begins, self._search = False, None
        self._choose_method(now)
        self._schedule = CheckSchedule(self.options.tol)
        self._combine(WEIGHTS, {_POINT: 1.0})

    def _choose_direction(self) -> None:
        """Choose where to go from the last point."""
        now, quasi = self.progress, self._quasi
        steepest = _GRADIENT
        if self._metric:
            steepest = _STEEPEST
            self._precondition(_GRADIENT, _STEEPEST)
        steps = names_of(quasi.pairs, "s")
        turned = names_of(quasi.pairs, "z" if self._metric else "y")
        products = self._products([_GRADIENT], [*steps, *turned, steepest])[0]
        n = len(steps)
        factor, s, z = quasi.direction(products[:n], products[n : 2 * n])
        terms = {steepest: factor, **dict(zip(steps, s, strict=True))}
        for name, value in zip(turned, z, strict=True):
            terms[name] = terms.get(name, 0.0) + value
        slope = factor * products[-1] + s @ products[:n] + z @ products[n : 2 * n]
        if not slope < 0 and n > 0:
            self._forget()
            self._choose_direction()
            return
        self._combine(_DIRECTION, terms)
        self._search = LineSearch(
            value=now.primal,
            slope=float(slope),
            step=self._first_step(float(slope)),
            rounding=_ROUNDING[self.options.dtype],
        )

    def _first_step(self, slope: float) -> float:
        """Choose the step that is looked at first."""
        if self._quasi.pairs or self._metric:
            return 1.0
        if self.progress.step > 0:
            return 2 * self.progress.step
        # As far as where the value would be 0 if it fell on as it does here.
        return min(1.0, 2 * self.progress.primal / max(-slope, 1e-300))

    # Certificates.

    def _certify(self) -> Certificate:
        sums = self.team.call("sum_certificate")
        sums.sort(key=lambda part: part.partition)
        norms = sorted(self.team.call("sum_exact"), key=lambda norm: norm.slice)
        return self._certificate(
            math.fsum(loss for part in sums for loss in part.losses),
            math.fsum(dual for part in sums for dual in part.duals),
            math.fsum(norm.weights for norm in norms),
            math.fsum(norm.dual_weights for norm in norms),
        )
