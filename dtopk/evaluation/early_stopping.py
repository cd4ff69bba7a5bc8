"""When a metric of rows held out has stopped getting better, and the names of such metrics."""

import math
import re
from collections.abc import Iterable
from dataclasses import dataclass, field

RANKING_METRICS = ("rank_loss", "mean_average_precision")
"""Metrics of rows with sets of labels that are taken after an epoch, beside top-k accuracy."""
_LOWER_IS_BETTER = frozenset({"rank_loss"})
_TOPK_ACCURACY = re.compile(r"top_([1-9]\d*)_accuracy", re.ASCII)


@dataclass(kw_only=True)
class ImprovementWatch:
    """Tells when a metric has not got better for some epochs.

    An epoch is better than the best one before if its value is, by more than `min_delta`. Only NaN
    is worse than the first value, whatever that is.
    """

    patience: int
    """Epochs in a row without a better one, at least 1, after which to stop."""
    min_delta: float = 0.0
    """By how much a better value differs, at least 0."""
    lower_is_better: bool = False
    """Whether less of the metric is better, rather than more."""
    best_epoch: int = field(default=0, init=False)
    """The epoch of the best value; 0 before the first."""
    best_value: float = field(default=math.nan, init=False)
    """The best value; NaN before the first that is a number."""

    def add(self, epoch: int, value: float) -> bool:
        """Take note of an epoch's value; return whether it is time to stop.

        Parameters
        ----------
        epoch : int
            Later than those before, or the last of them again.
        value : float
        """
        if self.best_epoch == 0 or self._is_better(value):
            self.best_epoch, self.best_value = epoch, value
        return epoch - self.best_epoch >= self.patience

    def _is_better(self, value: float) -> bool:
        if math.isnan(self.best_value):
            return not math.isnan(value)
        gain = self.best_value - value if self.lower_is_better else value - self.best_value
        return gain > self.min_delta


def lower_is_better(metric: str) -> bool:
    """Tell whether less of a metric is better."""
    return metric in _LOWER_IS_BETTER


def parse_topk_accuracy(metric: str) -> int:
    """Return the k of a metric such as 'top_5_accuracy'; 0 for other names."""
    found = _TOPK_ACCURACY.fullmatch(metric)
    return int(found[1]) if found else 0


def check_metric(
    name: str, metric: str, *, n_classes: int = 0, others: Iterable[str] = RANKING_METRICS
) -> None:
    """Refuse a metric that there is not.

    Parameters
    ----------
    name : str
        What the value is called in the message.
    metric : str
    n_classes : int, default=0
        k must be below it; 0: not known yet.
    others : iterable of str
        The metrics that there are beside top-k accuracy.

    Raises
    ------
    ValueError
        With all that there are.
    """
    k, others = parse_topk_accuracy(metric), tuple(others)
    if metric in others or (k and not n_classes) or 1 <= k < n_classes:
        return
    most = f"n_classes - 1 = {n_classes - 1}" if n_classes else "n_classes - 1"
    listed = "".join(f" or {other!r}" for other in others)
    raise ValueError(
        f"{name} must be 'top_k_accuracy' with a number k from 1 to {most}{listed}, got {metric!r}."
    )
