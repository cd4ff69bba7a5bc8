"""Record a sweep with the tracker: a parent run, and in it a run for each setting."""

import contextlib
import dataclasses
import math
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

from dtopk.job.files import flatten_job
from dtopk.job.run_folder import RunFolder, RunRecord
from dtopk.job.sweep_config import Setting
from dtopk.job.sweep_plan import SweepPlan
from dtopk.job.sweep_result import SettingResult, SweepResult
from dtopk.job.sweep_units import Unit
from dtopk_storage.paths import as_path

if TYPE_CHECKING:
    from dtopk.tracking import MlflowRun

_PARENT = "mlflow.parentRunId"
"""The tag by which MLflow shows a run below another."""
_LONG_NAMES = {"map": "mean_average_precision"}


class SweepRecorder:
    """Records settings as they are done, in a thread of its own: training does not wait for it.

    Parameters
    ----------
    plan : SweepPlan
    parent : MlflowRun
    """

    def __init__(self, plan: SweepPlan, parent: "MlflowRun") -> None:
        self._plan = plan
        self.parent = parent
        self._uri = parent.uri
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="dtopk-mlflow")

    def record_setting(self, setting: Setting) -> None:
        """Record a setting that is done, and its history."""
        if self.parent.is_recording:
            self._thread.submit(self._record, setting)

    def wait(self) -> None:
        """Wait until all that is done is recorded."""
        self._thread.shutdown(wait=True)

    def _record(self, setting: Setting) -> None:
        run = self._open(setting)
        if run.is_recording and not run.goes_on:
            # MLflow has linear axes alone.
            run.log_params({**setting.parameters, "log10_C": round(math.log10(setting.C), 6)})
            units = self._plan.units_of(setting)
            if len(units) == 1:
                for step, metrics in _read_history(self._plan, units[0]):
                    run.log_metrics(metrics, step=step)
            run.end(status="FINISHED", tags={})
            self._plan.folder.write_mlflow(Unit(setting=setting), run.describe())

    def _open(self, setting: Setting) -> "MlflowRun":
        from dtopk.tracking import MlflowRun, name_uri

        before = self._plan.folder.read_mlflow(Unit(setting=setting))
        same_place = before.get("uri") == name_uri(self._uri)
        same_place = same_place and before.get("experiment_id") == self.parent.experiment_id
        return MlflowRun(
            uri=self._uri,
            experiment=self._plan.job.tracking.experiment,
            run_name=setting.name,
            tags={_PARENT: self.parent.run_id, "dtopk.setting": setting.name},
            run_id=before["run_id"] if same_place else "",
        )

    def finish(self, result: SweepResult) -> None:
        """Send what the settings and the sweep came to, and end all of it.

        Parameters
        ----------
        result : SweepResult
        """
        self.wait()
        if not self.parent.is_recording:
            return
        for each in result.settings:
            self._finish_setting(each, result)
        for metric, best in result.best.items():
            self.parent.log_metrics({f"best/{metric}": best.value}, step=0)
            for split, metrics in best.evaluated.items():
                value = {f"{split}/best_{_long(metric)}": metrics[metric]}
                self.parent.log_metrics(value, step=0)
        files = [path for path in result.written if path.is_file() and isinstance(path, Path)]
        self.parent.log_files([path for path in files if path != self._plan.folder.record])
        self.parent.end(
            status="KILLED" if result.interrupted else "FINISHED",
            tags={
                "dtopk.settings": str(len(result.settings)),
                "dtopk.complete": str(result.complete).lower(),
                **{
                    f"dtopk.best.{metric}": best.result.setting.name
                    for metric, best in result.best.items()
                },
                "mlflow.note.content": _note(result),
            },
        )

    def _finish_setting(self, each: SettingResult, result: SweepResult) -> None:
        run = self._open(each.setting)
        if not run.goes_on:
            return
        job = self._plan.job
        split = "cv" if job.sweep.folds else job.data.validation
        run.log_metrics(
            {
                # First, as its pages that compare runs show first what was recorded first.
                **_name_metrics(split, each.metrics),
                "gap/relative_gap": each.relative_gap,
                "gap/duality_gap": each.duality_gap,
                "time/epochs": each.epochs,
                "time/seconds": each.seconds,
            },
            step=each.epochs,
        )
        won = [metric for metric, best in result.best.items() if best.result == each]
        if won:
            best = result.best[won[0]]
            for name, metrics in best.evaluated.items():
                run.log_metrics(_name_metrics(name, metrics), step=each.epochs)
            if isinstance(best.model_path, Path):
                # One model can be the champion: that of the first metric, if it is certified.
                is_first = won[0] == result.metrics[0] and best.trained.certified
                run.log_model(
                    best.model_path,
                    register_as=job.tracking.register_as if is_first else "",
                    alias=job.tracking.alias if is_first else "",
                )
        run.end(
            status="FINISHED",
            tags={
                "dtopk.certified": str(each.certified).lower(),
                "dtopk.stop_reason": each.stop_reason,
                "dtopk.solver": each.solver,
                "dtopk.best": ", ".join(won),
            },
        )


def _long(metric: str) -> str:
    """Name a metric as the runs of one model do."""
    return f"{metric}_accuracy" if metric.startswith("top_") else _LONG_NAMES.get(metric, metric)


def _name_metrics(split: str, metrics: Mapping[str, float]) -> dict[str, float]:
    return {f"{split}/{_long(name)}": v for name, v in metrics.items() if math.isfinite(v)}


def _read_history(plan: SweepPlan, unit: Unit) -> Iterator[tuple[int, dict[str, float]]]:
    """Read what each epoch of a training found."""
    for row in RunFolder(path=plan.folder.unit(unit)).read_history():
        primal, dual, gap = (float(row[key]) for key in ("primal", "dual_value", "relative_gap"))
        yield (
            int(row["epoch"]),
            {
                "objective/primal": primal,
                "objective/dual_value": dual,
                "gap/duality_gap": primal - dual,
                "gap/relative_gap": gap,
                **({"gap/log10_relative_gap": math.log10(gap)} if gap > 0 else {}),
            },
        )


def _note(result: SweepResult) -> str:
    """Describe the sweep in Markdown."""
    lines = [
        f"{len(result.settings)} of {result.n_settings} settings, chosen on {result.chosen_on}."
    ]
    for metric, best in result.best.items():
        lines.append(f"Best {metric}: `{best.result.setting.describe()}`, {best.value:.4f}.")
    return "\n\n".join(lines)


@contextlib.contextmanager
def recording_sweep(plan: SweepPlan, record: RunRecord) -> Iterator[SweepRecorder | None]:
    """Start the parent run, or go on with it, where the job asks for it; end it whatever.

    Parameters
    ----------
    plan : SweepPlan
    record : RunRecord
        Written anew, with the id of the run.

    Yields
    ------
    SweepRecorder or None
    """
    if not plan.job.tracking.mlflow:
        yield None
        return
    recorder = SweepRecorder(plan, _open_parent(plan, record))
    described = recorder.parent.describe()
    plan.folder.write_record(dataclasses.replace(record, mlflow=described or record.mlflow))
    try:
        yield recorder
    except BaseException as error:
        recorder.wait()
        killed = isinstance(error, KeyboardInterrupt)
        recorder.parent.end(
            status="KILLED" if killed else "FAILED", tags={"dtopk.error": str(error)}
        )
        raise


def _open_parent(plan: SweepPlan, record: RunRecord) -> "MlflowRun":
    from dtopk.tracking import MlflowRun, default_tracking_uri, name_uri

    folder, tracking = plan.folder.path, plan.job.tracking
    place = folder.parent if isinstance(folder, Path) else Path.cwd()
    uri = tracking.uri or default_tracking_uri(place)
    same_place = record.mlflow.get("uri") == name_uri(uri)
    run = MlflowRun(
        uri=uri,
        experiment=tracking.experiment,
        run_name=tracking.run_name or folder.name,
        tags={"dtopk.run_dir": str(folder), "dtopk.version": record.version, "dtopk.sweep": "true"},
        run_id=record.mlflow["run_id"] if same_place else "",
    )
    if not run.goes_on:
        run.log_params(flatten_job(plan.job))
        store = plan.store
        run.log_dataset(
            name=as_path(store.path, name="store").name,
            path=store.path,
            profile={
                "n_samples": store.n_samples,
                "n_features": store.n_features,
                "n_classes": store.n_classes,
                "splits": {split: store.split_size(split) for split in store.splits},
                "provenance": store.provenance,
            },
        )
    return run
