"""What happens after each epoch of a job: validation accuracy, and metrics for the tracker."""

import math
from typing import TYPE_CHECKING, Any

from numpy.typing import NDArray

from dtopk.engine import Callback, EpochRecord
from dtopk.job.problem import Problem
from dtopk.job.scoring import evaluate_split

if TYPE_CHECKING:
    from dtopk.tracking import MlflowRun

_VALIDATION_K = (1, 5)
"""Top-k accuracy is followed for these k, and for the k of the loss."""


class ValidateEpochs(Callback):
    """Take the top-k accuracy of the validation split after every epoch.

    Parameters
    ----------
    problem : Problem
        Its job names the split.
    """

    def __init__(self, problem: Problem):
        self._problem = problem
        self._split = problem.job.data.validation
        ks = {*_VALIDATION_K, problem.job.model.k}
        self._ks = sorted(k for k in ks if k < problem.store.n_classes)
        self.accuracy: list[dict[str, float]] = []
        """By epoch, then by a name such as 'val/top_5_accuracy'."""

    def on_epoch(self, record: EpochRecord, W: NDArray[Any]) -> None:
        """Evaluate the weights of one epoch."""
        model = self._problem.make_model(*self._problem.split_weights(W))
        counts = evaluate_split(model, self._problem.store, self._split)
        self.accuracy.append(
            {f"{self._split}/top_{k}_accuracy": counts.topk_accuracy(k) for k in self._ks}
        )


class TrackEpochs(Callback):
    """Send every epoch's objectives, gap, speed and validation accuracy to the tracker.

    Parameters
    ----------
    run : MlflowRun
    validation : ValidateEpochs or None
        Has been called before.
    """

    def __init__(self, run: "MlflowRun", validation: ValidateEpochs | None):
        self._run = run
        self._validation = validation

    def on_epoch(self, record: EpochRecord, W: NDArray[Any]) -> None:
        """Send what one epoch found."""
        accuracy = {} if self._validation is None else self._validation.accuracy[-1]
        # MLflow's charts start out linear, where the end of a run is a flat line.
        gap = record.relative_gap
        logarithm = {"gap/log10_relative_gap": math.log10(gap)} if gap > 0 else {}
        self._run.log_metrics(
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
                **accuracy,
            },
            step=record.epoch,
        )
