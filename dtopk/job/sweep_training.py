"""Train the models of a sweep: together in this process, or one after the other on workers."""

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from dtopk.engine import Callback, Candidate, FitResult, StartPoint, choose_solver, fit_many
from dtopk.job.run_folder import RunRecord
from dtopk.job.sweep_plan import SweepPlan
from dtopk.job.sweep_units import Unit, UnitResult
from dtopk.job.workers import check_sight
from dtopk.model import Model
from dtopk_storage import RunState, open_dual
from dtopk_storage.paths import delete_tree

if TYPE_CHECKING:
    from dtopk.launch import Client

Array = NDArray[Any]


class UnitTrainer:
    """Trains what is missing of a sweep, and keeps each training as soon as it is done.

    Parameters
    ----------
    plan : SweepPlan
    callbacks : callable
        Returns the callbacks of a training.
    take : callable
        Called with a training that is done, after it is kept.
    """

    def __init__(
        self,
        plan: SweepPlan,
        callbacks: Callable[[Unit], Sequence[Callback]],
        take: Callable[[Unit, UnitResult], None],
    ) -> None:
        self._plan = plan
        self._callbacks = callbacks
        self._take = take
        self.n_trained = 0
        """Trainings done."""

    def train_together(self, units: Sequence[Unit]) -> None:
        """Train in this process, those of the same rows together.

        An interrupt leaves out what is not done.

        Parameters
        ----------
        units : sequence of Unit
        """
        groups: dict[tuple[bool, int, bool], list[Unit]] = {}
        for unit in units:
            skip = self._plan.problems[unit.setting.family].rows.skip_improper
            groups.setdefault((skip, unit.fold, unit.refit), []).append(unit)
        for group in groups.values():
            before = self.n_trained
            self._fit_group(group)
            if self.n_trained < before + len(group):
                return

    def _fit_group(self, units: Sequence[Unit]) -> None:
        plan = self._plan
        rows = plan.open_rows(units[0])
        by_name = {unit.name: unit for unit in units}
        seen: set[str] = set()
        candidates = []
        for unit in sorted(units, key=lambda unit: unit.setting.C):
            # Others of the family start from the one before, when that is done.
            is_first = unit.refit or unit.setting.family not in seen
            seen.add(unit.setting.family)
            loss = plan.problems[unit.setting.family].loss
            start = self._find_start(unit) if is_first else None
            candidates.append(Candidate(name=unit.name, loss=loss, C=unit.setting.C, start=start))
        fit_many(
            rows,
            candidates,
            plan.make_options(units[0], rows),
            take=lambda candidate, fitted: self._keep(by_name[candidate.name], fitted),
            callbacks=lambda candidate: self._callbacks(by_name[candidate.name]),
            width=plan.job.sweep.width,
        )

    def _keep(self, unit: Unit, fitted: FitResult) -> None:
        """Keep what is done. What was interrupted is not: it is trained when the sweep goes on."""
        if fitted.stop_reason == "interrupted":
            return
        plan = self._plan
        result = UnitResult.of_fit(fitted, plan.splits_of(unit))
        plan.folder.save_unit(unit, plan.make_model(unit, fitted), result, fitted)
        self.n_trained += 1
        self._take(unit, result)

    def _find_start(self, unit: Unit) -> StartPoint | None:
        """Start from a model that is done already; None: at zero.

        Weights say enough of the duals where the loss is smooth.
        """
        problem = self._plan.problems[unit.setting.family]
        solver = choose_solver(problem.loss, problem.options.solver).solver
        before = self._find_before(unit)
        if before is None or problem.loss.n_masked or solver == "pegasos":
            return None
        if not problem.loss.smooth:
            return None
        return StartPoint(W=self._stack(self._plan.folder.load_model(before)))

    def _find_before(self, unit: Unit) -> Unit | None:
        """Find the training that is done of the same loss and the next smaller C, or the same."""
        folder, sweep = self._plan.folder, self._plan.job.sweep
        if unit.refit:
            first = Unit(setting=unit.setting, fold=min(sweep.folds, 1))
            return first if folder.find_result(first) is not None else None
        smaller = [
            dataclasses.replace(unit, setting=setting)
            for setting in self._plan.settings
            if setting.family == unit.setting.family and setting.C < unit.setting.C
        ]
        done = [each for each in smaller if folder.find_result(each) is not None]
        return done[-1] if done else None

    def _stack(self, model: Model) -> Array:
        """Return a model's weights with those of the constant feature, if there is one."""
        constant = self._plan.job.model.intercept_scaling
        if not self._plan.job.model.fit_intercept:
            return model.W
        return np.vstack([model.W, model.intercept / constant])

    # On workers.

    def train_on_workers(self, units: Sequence[Unit], client: "Client", record: RunRecord) -> None:
        """Train one after the other on workers, each starting where the one before has ended.

        An interrupt ends it; a training that was under way goes on from its last commit.

        Parameters
        ----------
        units : sequence of Unit
        client : distributed.Client
        record : RunRecord
        """
        place = self._plan.job.output.state_url
        is_seen = False
        for unit in units:
            state = self._plan.folder.open_state(unit, record, place)
            if not is_seen:
                problem = self._plan.problems[unit.setting.family]
                check_sight(client, problem, self._plan.folder.run, state)
                is_seen = True
            if not self._fit_on_workers(unit, client, state):
                return

    def _fit_on_workers(self, unit: Unit, client: "Client", state: RunState) -> bool:
        """Train one; say whether it was not interrupted."""
        # Imported here: Dask takes most of a second.
        from dtopk.engine import fit_on_cluster

        plan, cluster = self._plan, self._plan.job.cluster
        rows = plan.open_rows(unit)
        state.delete_leftovers()
        goes_on = state.load() is not None
        dual = plan.folder.unit(unit) / "dual"
        delete_tree(dual)
        before = self._find_before(unit)
        fitted = fit_on_cluster(
            client,
            rows,
            plan.problems[unit.setting.family].loss,
            plan.make_options(unit, rows),
            callbacks=self._callbacks(unit),
            dual_path=None if unit.refit else dual,
            start=None if goes_on else self._start_on_workers(before, unit),
            state=state,
            min_workers=cluster.min_workers,
            wait_s=cluster.wait_s,
            round_timeout_s=cluster.round_timeout_s,
        )
        if fitted.stop_reason == "interrupted":
            return False
        self._keep(unit, fitted)
        state.clear()
        if before is not None and not unit.refit:
            plan.folder.delete_duals(before)
        return True

    def _start_on_workers(self, before: Unit | None, unit: Unit) -> StartPoint | None:
        """Start from the duals that the training before has left, or from its weights."""
        if before is None:
            return None
        dual = self._plan.folder.unit(before) / "dual"
        if unit.refit or not (dual / "zarr.json").is_file():
            return self._find_start(unit)
        factor = math.sqrt(unit.setting.C / before.setting.C)
        return StartPoint(dual=open_dual(dual), dual_factor=factor)

    def tidy(self) -> None:
        """Delete the duals that are of no use any more."""
        for unit in self._plan.units:
            self._plan.folder.delete_duals(unit)
