"""What happens after each epoch of a job: validation accuracy, history, metrics for the tracker."""

import contextlib
import dataclasses
import logging
import math
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from numpy.typing import NDArray

from dtopk.engine import Callback, EpochRecord, FitInfo, FitResult
from dtopk.engine.records import StopReason
from dtopk.evaluation import (
    RANKING_METRICS,
    AccuracyCounts,
    ImprovementWatch,
    MultilabelCounts,
    lower_is_better,
    parse_topk_accuracy,
)
from dtopk.job.problem import Problem
from dtopk.job.run_folder import RunFolder
from dtopk.job.scoring import evaluate_label_sets, evaluate_split
from dtopk_storage import CheckpointError, RunLock

if TYPE_CHECKING:
    from dtopk.tracking import BackgroundRun

logger = logging.getLogger(__name__)

_VALIDATION_K = (1, 5)
"""Top-k accuracy is followed for these k, the k of the loss and that of early stopping."""
_WRITE_INTERVAL_S = 5.0
"""The history is written anew once in so many seconds; with validation after every epoch."""


class ValidateEpochs(Callback):
    """Take the top-k accuracy of the validation split after every epoch.

    Parameters
    ----------
    problem : Problem
        Its job names the split.
    """

    reads_weights = True

    def __init__(self, problem: Problem):
        self._problem = problem
        self._split = problem.job.data.validation
        stopping_k = parse_topk_accuracy(problem.job.early_stopping.metric)
        ks = {*_VALIDATION_K, problem.job.model.k, stopping_k} - {0}
        self._ks = sorted(k for k in ks if k < problem.store.n_classes)
        self.accuracy: dict[int, dict[str, float]] = {}
        """By epoch, then by a name such as 'val/top_5_accuracy'."""

    def on_epoch(self, record: EpochRecord, W: NDArray[Any] | None) -> None:
        """Evaluate the weights of one epoch, unless early stopping has had it done."""
        if record.epoch not in self.accuracy:
            self.measure(record.epoch, W)

    def measure(self, epoch: int, W: NDArray[Any] | None) -> None:
        """Evaluate the weights of one epoch."""
        assert W is not None
        model = self._problem.make_model(*self._problem.split_weights(W))
        store, split = self._problem.store, self._split
        counts: AccuracyCounts | MultilabelCounts
        more = {}
        if store.kind == "multilabel":
            counts = evaluate_label_sets(model, store, split)
            more = {
                f"{split}/{name}": value
                for name, value in zip(
                    RANKING_METRICS,
                    (counts.rank_loss(), counts.mean_average_precision()),
                    strict=True,
                )
            }
        else:
            counts = evaluate_split(model, store, split)
        accuracies = {f"{split}/top_{k}_accuracy": counts.topk_accuracy(k) for k in self._ks}
        self.accuracy[epoch] = accuracies | more


class StopEarly(Callback):
    """Stop when a metric of the validation split has not got better for some epochs.

    The decision depends on the metric's values alone, which the run folder keeps: a run that is
    taken up again comes to the same.

    Parameters
    ----------
    problem : Problem
        Its job names metric and patience.
    folder : RunFolder
        Its history has the values of the epochs done before.
    validation : ValidateEpochs
    """

    reads_weights = True
    stop_reason: StopReason = "early_stopping"

    def __init__(self, problem: Problem, folder: RunFolder, validation: ValidateEpochs) -> None:
        job = problem.job
        self._settings = job.early_stopping
        self._column = f"{job.data.validation}/{job.early_stopping.metric}"
        self._folder = folder
        self._validation = validation
        self._watch = ImprovementWatch(
            patience=self._settings.patience,
            min_delta=self._settings.min_delta,
            lower_is_better=lower_is_better(self._settings.metric),
        )

    def on_resume(self, history: Sequence[EpochRecord], saved: float) -> None:
        """Take over the values of the epochs done; epochs without one do not count."""
        accuracy = _read_accuracy(self._folder)
        found = [accuracy.get(record.epoch, {}).get(self._column) for record in history]
        for record, value in zip(history, found, strict=True):
            if value is not None:
                self._watch.add(record.epoch, value)
        if None in found:
            logger.warning(
                "The history in %r has no %s of %d of the %d epochs done: early stopping goes by "
                "the others, and those to come.",
                str(self._folder.path), self._column, found.count(None), len(found),
            )  # fmt: skip

    def should_stop(self, record: EpochRecord, W: NDArray[Any] | None) -> bool:
        """Measure the weights, and see whether they are better."""
        self._validation.measure(record.epoch, W)
        return self._watch.add(record.epoch, self._validation.accuracy[record.epoch][self._column])

    def describe(self) -> dict[str, Any]:
        """Return metric, patience, and the best epoch with its value, as JSON takes them."""
        value = self._watch.best_value
        return {
            "metric": self._column,
            "patience": self._settings.patience,
            "min_delta": self._settings.min_delta,
            "best_epoch": self._watch.best_epoch,
            "best_value": None if math.isnan(value) else value,
        }


class WriteHistory(Callback):
    """Keep the history in the run folder, a line an epoch.

    Parameters
    ----------
    folder : RunFolder
    validation : ValidateEpochs or None
        Has been called before.
    """

    def __init__(self, folder: RunFolder, validation: ValidateEpochs | None):
        self._folder = folder
        self._validation = validation
        self._rows: dict[int, dict[str, Any]] = {}
        self._next_s = time.monotonic() + _WRITE_INTERVAL_S

    def on_resume(self, history: Sequence[EpochRecord], saved: float) -> None:
        """Take over the epochs done, with the accuracies that are written already."""
        accuracy = _read_accuracy(self._folder)
        for record in history:
            self._rows[record.epoch] = dataclasses.asdict(record) | accuracy.get(record.epoch, {})

    def on_epoch(self, record: EpochRecord, W: object) -> None:
        """Add one epoch."""
        accuracy = {} if self._validation is None else self._validation.accuracy[record.epoch]
        self._rows[record.epoch] = dataclasses.asdict(record) | accuracy
        if self._validation is None and time.monotonic() < self._next_s:
            return
        try:
            self.write()
        except OSError as error:
            logger.warning("The history is not written this time: %s.", error)
        self._next_s = time.monotonic() + _WRITE_INTERVAL_S

    def write(self) -> None:
        """Write it as it stands.

        Raises
        ------
        OSError
        """
        self._folder.write_history([self._rows[epoch] for epoch in sorted(self._rows)])


def _read_accuracy(folder: RunFolder) -> dict[int, dict[str, float]]:
    """Read the validation accuracies of a run that goes on; what cannot be read is left out."""
    known = {field.name for field in dataclasses.fields(EpochRecord)}
    accuracy: dict[int, dict[str, float]] = {}
    with contextlib.suppress(OSError, ValueError):
        for row in folder.read_history():
            accuracy[int(row["epoch"])] = {
                name: float(value) for name, value in row.items() if name not in known and value
            }
    return accuracy


class HoldLock(Callback):
    """End a run that no longer has its folder to itself.

    Parameters
    ----------
    lock : RunLock
    folder : RunFolder
    """

    def __init__(self, lock: RunLock, folder: RunFolder):
        self._lock = lock
        self._folder = folder

    def on_epoch(self, record: EpochRecord, W: object) -> None:
        """Look before the state may be committed."""
        if self._lock.lost:
            raise CheckpointError(
                f"run folder must stay as it is while the run is at work, got "
                f"{str(self._folder.path)!r}, whose file 'lock' is gone or another run's."
            )


class TrackEpochs(Callback):
    """Tell the tracker every epoch's objectives, gap, speed and validation accuracy.

    Parameters
    ----------
    run : BackgroundRun
        Leaves out the epochs that it has already: the last ones before a kill may be done twice.
    folder : RunFolder
        Its history has the accuracies of the epochs done before.
    validation : ValidateEpochs or None
        Has been called before.
    """

    def __init__(
        self, run: "BackgroundRun", folder: RunFolder, validation: ValidateEpochs | None
    ) -> None:
        self._run = run
        self._folder = folder
        self._validation = validation
        self._in_parts = False
        self._before: list[tuple[EpochRecord, dict[str, float]]] = []

    def on_start(self, info: FitInfo) -> None:
        """Learn whether there are partitions."""
        self._in_parts = info.n_partitions > 1

    def on_resume(self, history: Sequence[EpochRecord], saved: float) -> None:
        """Take over the epochs done, of which a kill may have lost some to the tracker."""
        accuracy = _read_accuracy(self._folder)
        self._before = [(record, accuracy.get(record.epoch, {})) for record in history]

    def on_epoch(self, record: EpochRecord, W: object) -> None:
        """Tell what one epoch found."""
        self._tell_before()
        self._tell(
            record, {} if self._validation is None else self._validation.accuracy[record.epoch]
        )

    def on_end(self, result: FitResult) -> None:
        """Tell of the epochs before, where none has followed."""
        self._tell_before()

    def _tell_before(self) -> None:
        before, self._before = self._before, []
        for record, accuracy in before:
            self._tell(record, accuracy)

    def _tell(self, record: EpochRecord, accuracy: Mapping[str, float]) -> None:
        # MLflow's charts start out linear, where the end of a run is a flat line.
        gap = record.relative_gap
        logarithm = {"gap/log10_relative_gap": math.log10(gap)} if gap > 0 else {}
        self._run.log_epoch(
            {
                "objective/primal": record.primal,
                "objective/dual_value": record.dual_value,
                "gap/duality_gap": record.primal - record.dual_value,
                "gap/relative_gap": record.relative_gap,
                "time/seconds": record.seconds,
                "time/read_seconds": record.read_seconds,
                "time/rows_per_second": record.rows_per_second,
                "solver/acceleration": record.acceleration,
                **logarithm,
                **(_cluster_metrics(record) if self._in_parts else {}),
                **accuracy,
            },
            step=record.epoch,
        )


def _cluster_metrics(record: EpochRecord) -> dict[str, float]:
    return {
        "cluster/theta": record.theta,
        "cluster/sigma": record.sigma,
        "cluster/correlation": record.correlation,
        "cluster/bytes_moved": record.bytes_moved,
        "cluster/slowest_seconds": record.slowest_seconds,
        "cluster/median_seconds": record.median_seconds,
    }
