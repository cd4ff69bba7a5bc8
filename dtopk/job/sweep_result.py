"""What a sweep came to."""

import csv
import io
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dtopk.job.sweep_config import Setting, metric_sign
from dtopk.job.sweep_units import UnitResult
from dtopk.model import Model
from dtopk_storage.paths import AnyPath


@dataclass(frozen=True, kw_only=True)
class SettingResult:
    """What one setting came to: of a cross-validation, in all folds."""

    setting: Setting
    """What was trained."""
    solver: str
    """Name of the solver."""
    stop_reason: str
    """Why training ended; where folds differ, of one that was not certified."""
    epochs: int
    """Passes over the training rows, in all folds."""
    seconds: float
    """From start to certificate, in all folds; others were trained at the same time."""
    duality_gap: float
    """primal - dual; the largest of the folds."""
    relative_gap: float
    """The largest of the folds."""
    certified: bool
    """Whether all folds are."""
    metrics: Mapping[str, float]
    """On the validation rows, or those held out, by name; empty where they were not scored."""

    @classmethod
    def of_units(
        cls, setting: Setting, units: Sequence[UnitResult], metrics: Mapping[str, float]
    ) -> "SettingResult":
        """Put the folds of a setting together.

        Parameters
        ----------
        setting : Setting
        units : sequence of UnitResult
        metrics : mapping
        """
        worst = max(units, key=lambda unit: (not unit.certified, unit.relative_gap))
        return cls(
            setting=setting,
            solver=worst.solver,
            stop_reason=worst.stop_reason,
            epochs=sum(unit.epochs for unit in units),
            seconds=sum(unit.seconds for unit in units),
            duality_gap=max(unit.duality_gap for unit in units),
            relative_gap=max(unit.relative_gap for unit in units),
            certified=all(unit.certified for unit in units),
            metrics=metrics,
        )

    def to_dict(self) -> dict[str, Any]:
        """Make a dict of plain values: a line of the table."""
        setting = self.setting
        return {
            "name": setting.name,
            "loss": setting.loss,
            "k": setting.k,
            "gamma": setting.gamma,
            "smoothing": setting.smoothing,
            "C": setting.C,
            "epochs": self.epochs,
            "certified": self.certified,
            "gap": self.relative_gap,
            "seconds": self.seconds,
            "solver": self.solver,
            "stop_reason": self.stop_reason,
            **self.metrics,
        }


@dataclass(frozen=True, kw_only=True)
class BestSetting:
    """The setting that is best by a metric."""

    metric: str
    """Name of the metric."""
    value: float
    """The metric, on the rows that it was chosen on."""
    result: SettingResult
    """The setting."""
    trained: UnitResult
    """How its model was trained: in the sweep, or anew."""
    refit: bool
    """Whether that was anew."""
    model: Model
    """The model."""
    model_path: AnyPath
    """Where it lies."""
    evaluated: Mapping[str, Mapping[str, float]]
    """Every metric on the splits that the job names, by split and name."""

    def to_dict(self) -> dict[str, Any]:
        """Make a dict of plain values."""
        trained = self.trained
        return {
            "metric": self.metric,
            "value": self.value,
            **self.result.setting.parameters,
            "name": self.result.setting.name,
            "refit": self.refit,
            "trained_on": list(trained.splits),
            "primal": trained.primal,
            "dual": trained.dual,
            "duality_gap": trained.duality_gap,
            "relative_gap": trained.relative_gap,
            "certified": trained.certified,
            "model": str(self.model_path),
            "evaluated": {split: dict(metrics) for split, metrics in self.evaluated.items()},
        }


@dataclass(frozen=True, kw_only=True)
class LossResult:
    """What a loss with its parameters reaches by a metric, its C chosen by that metric."""

    metric: str
    """Name of the metric."""
    result: SettingResult
    """The setting with the best C."""
    trained: UnitResult
    """How its model was trained: in the sweep, or anew."""
    evaluated: Mapping[str, float]
    """The metric on the splits that the job names, by split."""

    def to_dict(self) -> dict[str, Any]:
        """Make a dict of plain values: a line of the table."""
        setting = self.result.setting
        return {
            "loss": setting.loss,
            "k": setting.k,
            "gamma": setting.gamma,
            "smoothing": setting.smoothing,
            "metric": self.metric,
            "C": setting.C,
            "chosen": self.result.metrics[self.metric],
            **self.evaluated,
            "certified": self.trained.certified,
            "gap": self.trained.relative_gap,
        }


@dataclass(frozen=True, kw_only=True)
class SweepResult:
    """What a sweep came to, and where it lies."""

    run_dir: AnyPath
    """The folder: a Path, or of an object store an ObjectPath."""
    settings: tuple[SettingResult, ...]
    """Those that are done, in the order of the job's lists and of C."""
    best: Mapping[str, BestSetting]
    """The best setting by each metric that the job names; empty where none could be chosen."""
    losses: tuple[LossResult, ...]
    """The same for each loss by itself, where the job wants losses compared."""
    metrics: tuple[str, ...]
    """Names of these metrics."""
    n_settings: int
    """Settings that the job stands for."""
    n_trained: int
    """Models trained by this call; the others were there."""
    left_out: Mapping[str, str]
    """Combinations that a loss does not take, by name: why."""
    chosen_on: str
    """What the metrics were taken on, such as "split 'val'"."""
    tol: float
    """Relative gap that was asked for."""
    seconds: float
    """Time that this call took."""
    interrupted: bool
    """Whether it was interrupted, so that settings are missing."""
    written: tuple[AnyPath, ...] = ()
    """Files and folders in the folder."""
    mlflow: Mapping[str, str]
    """Tracking URI, experiment id and run id; empty if the sweep is not recorded."""

    @property
    def complete(self) -> bool:
        """Whether all settings are done and the best are chosen."""
        return not self.interrupted and len(self.settings) == self.n_settings

    def to_dict(self) -> dict[str, Any]:
        """Make a dict of plain values, for JSON."""
        return {
            "run_dir": str(self.run_dir),
            "complete": self.complete,
            "interrupted": self.interrupted,
            "n_settings": self.n_settings,
            "n_done": len(self.settings),
            "n_trained": self.n_trained,
            "chosen_on": self.chosen_on,
            "metrics": list(self.metrics),
            "tol": self.tol,
            "seconds": self.seconds,
            "best": {metric: best.to_dict() for metric, best in self.best.items()},
            "losses": [each.to_dict() for each in self.losses],
            "settings": [each.to_dict() for each in self.settings],
            "left_out": dict(self.left_out),
            "mlflow": dict(self.mlflow),
        }


def format_table_csv(results: Sequence[SettingResult] | Sequence[LossResult]) -> str:
    """Write a line for each result.

    Parameters
    ----------
    results : sequence of SettingResult or of LossResult
    """
    rows = [each.to_dict() for each in results]
    text = io.StringIO()
    columns = list(dict.fromkeys(key for row in rows for key in row))
    writer = csv.DictWriter(text, columns, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def find_best(settings: Sequence[SettingResult], metric: str) -> SettingResult | None:
    """Find the setting that is best by a metric; of equals the first one with the smallest C.

    Parameters
    ----------
    settings : sequence of SettingResult
    metric : str

    Returns
    -------
    SettingResult or None
        None where no setting has a number.
    """
    scored = [each for each in settings if math.isfinite(each.metrics.get(metric, math.nan))]
    if not scored:
        return None
    sign = metric_sign(metric)
    return max(scored, key=lambda each: (sign * each.metrics[metric], -each.setting.C))
