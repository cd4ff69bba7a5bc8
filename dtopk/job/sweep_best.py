"""The best settings of a sweep: their models, trained anew if need be, and what these reach."""

import contextlib
import dataclasses
import logging
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

from threadpoolctl import threadpool_limits

from dtopk.engine.memory import free_memory
from dtopk.job.calibration import keep_calibration
from dtopk.job.run_folder import RunFolder
from dtopk.job.sweep_config import Setting
from dtopk.job.sweep_folder import make_folder
from dtopk.job.sweep_plan import SweepPlan
from dtopk.job.sweep_result import BestSetting, LossResult, SettingResult, find_best
from dtopk.job.sweep_scoring import measure, measure_split, score_models
from dtopk.job.sweep_units import Unit, UnitResult
from dtopk.model import Model
from dtopk_storage.paths import delete_tree

logger = logging.getLogger(__name__)

_SHARE_OF_FREE = 0.3
"""Share of the free memory that models may take which are scored together."""

Metrics = Mapping[str, float]


class SweepScorer:
    """Measures the models of a sweep, as many in one pass over the rows as memory allows.

    Parameters
    ----------
    plan : SweepPlan
    tell : callable
        Called with a split, the rows of it that are done, and those there are.
    """

    def __init__(self, plan: SweepPlan, tell: Callable[[str, int, int], None]) -> None:
        self._plan = plan
        self._folder = plan.folder
        self._tell = tell

    # Which training stands for a setting.

    @property
    def trains_anew(self) -> bool:
        """Whether the best settings are trained on more rows than they were chosen by."""
        sweep = self._plan.job.sweep
        return sweep.refit or bool(sweep.folds)

    def find_refit(self, unit: Unit) -> UnitResult | None:
        """Read what a training anew came to, if it was on the rows that are asked for now."""
        found = self._folder.find_result(unit)
        if found is not None and found.splits != self._plan.splits_of(unit):
            return None
        return found

    def _find_unit(self, setting: Setting) -> Unit | None:
        """Find the training whose model stands for a setting; None: it was not come to."""
        refit = Unit(setting=setting, refit=True)
        if self.trains_anew and self.find_refit(refit) is not None:
            return refit
        return None if self._plan.job.sweep.folds else Unit(setting=setting)

    # Scoring.

    def score(self, settings: Sequence[Setting]) -> list[SettingResult]:
        """Score all models on the rows that they are chosen on.

        Parameters
        ----------
        settings : sequence of Setting
            Those that are done.
        """
        folds = self._plan.number_folds()
        split, threshold_metric = self._plan.scored_split, self._plan.job.data.threshold_metric
        results = []
        for part in self._cut_by_memory(settings, max(self._plan.job.sweep.folds, 1)):
            units = [self._plan.units_of(setting) for setting in part]
            models = [[self._folder.load_model(unit) for unit in some] for some in units]
            with self._using_threads():
                counts = score_models(
                    models, self._plan.store, split, folds=folds, progress=self._progress(split)
                )
            for setting, some, count in zip(part, units, counts, strict=True):
                found = [self._folder.find_result(unit) for unit in some]
                trained = [each for each in found if each is not None]
                metrics = measure(count, threshold_metric)
                results.append(SettingResult.of_units(setting, trained, metrics))
        return results

    def evaluate(self, results: Iterable[SettingResult]) -> dict[Setting, dict[str, Metrics]]:
        """Measure the models that stand for settings, on the splits that the job names.

        Parameters
        ----------
        results : iterable of SettingResult
            A setting may come again.

        Returns
        -------
        dict
            By setting the metrics by split; without settings that were not trained anew.
        """
        thresholds = {each.setting: each.metrics.get("threshold", 0.0) for each in results}
        there = {
            setting: unit
            for setting in thresholds
            if (unit := self._find_unit(setting)) is not None
        }
        evaluated: dict[Setting, dict[str, Metrics]] = {setting: {} for setting in there}
        for part in self._cut_by_memory(list(there), 1):
            models = [[self._folder.load_model(there[setting])] for setting in part]
            for split in self._plan.job.data.evaluate:
                with self._using_threads():
                    counts = score_models(
                        models, self._plan.store, split, progress=self._progress(split)
                    )
                for setting, count in zip(part, counts, strict=True):
                    evaluated[setting][split] = measure_split(count, thresholds[setting])
        return evaluated

    def _cut_by_memory(
        self, settings: Sequence[Setting], n_folds: int
    ) -> Iterator[Sequence[Setting]]:
        """Cut settings into parts whose models fit into memory together."""
        if not settings:
            return
        resources = self._plan.job.resources
        limit = resources.memory_limit_bytes or int(_SHARE_OF_FREE * free_memory())
        itemsize = 8 if self._plan.job.solver.dtype == "float64" else 4
        store = self._plan.store
        own = n_folds * store.n_features * store.n_classes * itemsize
        n_models = max(limit // own, 1)
        for first in range(0, len(settings), n_models):
            yield settings[first : first + n_models]

    @contextlib.contextmanager
    def _using_threads(self) -> Iterator[None]:
        with threadpool_limits(self._plan.job.resources.threads or None, user_api="blas"):
            yield

    def _progress(self, split: str) -> Callable[[int, int], None]:
        return lambda done, total: self._tell(split, done, total)

    # The best.

    def keep_best(
        self,
        chosen: Mapping[str, SettingResult],
        evaluated: Mapping[Setting, Mapping[str, Metrics]],
    ) -> dict[str, BestSetting]:
        """Copy the models of the best settings to where they are found by metric.

        A model that lies there with the same weights leaves it its calibration.

        Parameters
        ----------
        chosen : mapping of str to SettingResult
            By metric.
        evaluated : mapping
            What `evaluate` has returned.
        """
        best = {}
        for metric, each in chosen.items():
            unit = self._find_unit(each.setting)
            trained = None if unit is None else self._folder.find_result(unit)
            if unit is None or trained is None:
                continue
            place = RunFolder(path=self._folder.best(metric))
            make_folder(place.path)
            model = keep_calibration(self._load(unit, each, trained), place)
            model.save(place.model)
            best[metric] = BestSetting(
                metric=metric,
                value=each.metrics[metric],
                result=each,
                trained=trained,
                refit=unit.refit,
                model=model,
                model_path=place.model,
                evaluated=evaluated[each.setting],
            )
        self._delete_others(best)
        return best

    def _load(self, unit: Unit, result: SettingResult, trained: UnitResult) -> Model:
        return dataclasses.replace(
            self._folder.load_model(unit),
            threshold=result.metrics.get("threshold", 0.0),
            trained_on=trained.splits,
            chosen_on=self._plan.scored_split,
        )

    def _delete_others(self, metrics: Collection[str]) -> None:
        """Delete the models that were the best by metrics that none is chosen by now."""
        best = self._folder.path / "best"
        names = {entry.name for entry in best.iterdir()} if best.is_dir() else set()
        for name in sorted(names.difference(metrics)):
            place = RunFolder(path=self._folder.best(name))
            if place.reliability.is_file():
                logger.warning(
                    "The calibration of the model in %r is dropped with it: none is chosen by %r.",
                    str(place.path), name,
                )  # fmt: skip
            delete_tree(place.path)

    def compare_losses(
        self,
        chosen: Mapping[str, Mapping[str, SettingResult]],
        evaluated: Mapping[Setting, Mapping[str, Metrics]],
    ) -> list[LossResult]:
        """Say what each loss reaches by each metric, its C chosen by that metric.

        Parameters
        ----------
        chosen : mapping of str to mapping of str to SettingResult
            By loss with its parameters, and by metric.
        evaluated : mapping
            What `evaluate` has returned.
        """
        losses = []
        for results in chosen.values():
            for metric, each in results.items():
                unit = self._find_unit(each.setting)
                trained = None if unit is None else self._folder.find_result(unit)
                if trained is None:
                    continue
                losses.append(
                    LossResult(
                        metric=metric,
                        result=each,
                        trained=trained,
                        evaluated={
                            split: metrics[metric]
                            for split, metrics in evaluated[each.setting].items()
                        },
                    )
                )
        return losses


def choose_best(
    settings: Sequence[SettingResult], metrics: Sequence[str]
) -> dict[str, SettingResult]:
    """Choose the best of settings by each metric that any of them has.

    Parameters
    ----------
    settings : sequence of SettingResult
    metrics : sequence of str
    """
    chosen = {metric: find_best(settings, metric) for metric in metrics}
    return {metric: each for metric, each in chosen.items() if each is not None}


def choose_by_loss(
    settings: Sequence[SettingResult], metrics: Sequence[str]
) -> dict[str, dict[str, SettingResult]]:
    """Choose the best C of each loss with its parameters, by each metric.

    Parameters
    ----------
    settings : sequence of SettingResult
    metrics : sequence of str
    """
    losses: dict[str, list[SettingResult]] = {}
    for each in settings:
        losses.setdefault(each.setting.describe_family(), []).append(each)
    return {name: choose_best(some, metrics) for name, some in losses.items()}
