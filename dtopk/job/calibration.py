"""Calibrate a trained model on a split of a store: its temperature, and scores for sets."""

import dataclasses
import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dtopk.calibration import complete_score, log_softmax
from dtopk.evaluation import CalibrationCounts, ReliabilityCounts, fit_calibration
from dtopk.job.run_folder import RunFolder
from dtopk.job.scoring import iter_scores
from dtopk.model import Model, load_model
from dtopk_storage import FeatureStore
from dtopk_storage.paths import as_path

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class CalibrationResult:
    """A calibrated model, and how far its probabilities were and are from what happens."""

    model: Model
    """The model given, with its calibration."""
    before: ReliabilityCounts
    """Of its probabilities before, on the same rows; where it had none of the softmax of scores."""
    after: CalibrationCounts
    """Of those calibrated, and of sets. On these rows sets cover what was asked for, since they
    were made to; their sizes tell something."""


def calibrate_model(
    model: Model,
    store: FeatureStore,
    split: str,
    *,
    score: str = "lac",
    k: int | None = None,
    penalty: float | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> CalibrationResult:
    """Fit the temperature of a model and keep the scores of its conformal sets.

    The rows are read once for each step of Newton's method and twice more; no more than a batch is
    in memory. Each row counts once, whatever its weight.

    Parameters
    ----------
    model : Model
        A multiclass one. What calibration it has is left out.
    store : FeatureStore
        Its classes are matched with the model's by name.
    split : str
        Rows that the model was not trained on. If it was chosen by them, a warning is logged.
    score : str, default='lac'
        Nonconformity of a label, one of :data:`dtopk.calibration.CONFORMAL_SCORES`.
    k : int or None, default=None
        Of 'raps' and 'margin'; None: that of the model's loss, or 1.
    penalty : float or None, default=None
        Of 'raps'; None: 0.1.
    progress : callable, optional
        Called with the rows done and the rows to do, from 0 on in each pass.

    Returns
    -------
    CalibrationResult

    Raises
    ------
    ValueError
        If the model was trained on rows of the split, a parameter breaks its rule, or the rows do
        not belong to the model or have no best temperature.
    DatasetError
        If there is no such split, or a row has NaN or infinity.
    """
    _check_unseen(model, store, split)
    _warn_of_choice(model, store, split)
    k, penalty = complete_score(score, k, penalty, loss_k=model.loss_parameters.get("k", 1))
    raw = dataclasses.replace(model, calibration=None)

    def batches() -> Iterator[tuple[NDArray[np.int64], NDArray[Any]]]:
        return iter_scores(raw, store, split, wide=True, progress=progress)

    calibration = fit_calibration(
        batches,
        n_classes=model.n_classes,
        score=score,
        k=k,
        penalty=penalty,
        source={"store": store.path, "split": split},
    )
    before, after = ReliabilityCounts(), CalibrationCounts(calibration=calibration)
    for y, scores in batches():
        native = raw.score_probabilities(scores) if raw.link else np.exp(log_softmax(scores, 1.0))
        before.update(y, native)
        after.update(y, scores)
    calibrated = dataclasses.replace(model, calibration=calibration)
    return CalibrationResult(model=calibrated, before=before, after=after)


def keep_calibration(model: Model, folder: RunFolder) -> Model:
    """Give a model the calibration of the one in its folder, where the weights are the same.

    Where they are not, the figure of the calibration is deleted.

    Parameters
    ----------
    model : Model
        That is to be saved in the folder.
    folder : RunFolder

    Returns
    -------
    Model
    """
    before = _load_earlier(folder)
    if before is not None and before.calibration is not None:
        if _predicts_the_same(model, before):
            return dataclasses.replace(model, calibration=before.calibration)
        logger.warning(
            "The calibration of the model in %r is dropped: its weights are others now.",
            str(folder.path),
        )
    folder.reliability.unlink(missing_ok=True)
    return model


def _load_earlier(folder: RunFolder) -> Model | None:
    """Load the model of an earlier part of a run; one that cannot be read is overwritten."""
    if not folder.model.is_file():
        return None
    try:
        return load_model(folder.model)
    except ValueError:
        return None


def _predicts_the_same(one: Model, other: Model) -> bool:
    return one.W.dtype == other.W.dtype and all(
        _is_equal(getattr(one, name), getattr(other, name))
        for name in ("W", "intercept", "classes", "feature_mean", "feature_scale")
    )


def _is_equal(one: NDArray[Any] | None, other: NDArray[Any] | None) -> bool:
    if one is None or other is None:
        return one is other
    return np.array_equal(one, other)


def list_trained(model: Model) -> tuple[str, ...]:
    """List the splits that a model was trained on, as far as it says; empty: it does not.

    Parameters
    ----------
    model : Model
    """
    data = model.job.get("data", {})
    return model.trained_on or ((data["train"],) if data else ())


def count_trained(model: Model, store: FeatureStore, split: str) -> int:
    """Count the rows of a split that a model was trained on, as far as it says which these were.

    Parameters
    ----------
    model : Model
    store : FeatureStore
    split : str
    """
    return _count_shared(model, store, split, list_trained(model))


def _count_shared(model: Model, store: FeatureStore, split: str, others: Sequence[str]) -> int:
    """Count the rows of a split that are in any of others, which are those of the model's store."""
    ranges = store.split_ranges(split)
    if not _is_same_store(model.job.get("data", {}).get("store", ""), store):
        return 0
    n_shared, done = 0, 0
    for first, last in sorted(each for name in others for each in store.splits.get(name, ())):
        # Rows that are in two of them count once.
        first = max(first, done)
        n_shared += sum(max(0, min(stop, last) - max(start, first)) for start, stop in ranges)
        done = max(done, last)
    return n_shared


def _check_unseen(model: Model, store: FeatureStore, split: str) -> None:
    """Refuse rows that the model was trained on, as far as it says which these were."""
    trained = list_trained(model)
    shared = count_trained(model, store, split)
    names = " and ".join(map(repr, trained))
    if shared:
        raise ValueError(
            f"split to calibrate on must have no row that the model was trained on, got {split!r}, "
            f"of which {shared:,} rows are in {names}. Calibrate on another split, which "
            "`dtopk ingest --split` or `--split-rows` makes."
        )
    trained_store = model.job.get("data", {}).get("store", "")
    if split in trained and not _is_same_store(trained_store, store):
        logger.warning(
            "The model was trained on split %s of %r. If rows of split %r of %r are among those, "
            "probabilities and sets will promise too much.",
            names, trained_store, split, store.path,
        )  # fmt: skip


def _warn_of_choice(model: Model, store: FeatureStore, split: str) -> None:
    """Warn of rows by which the model's setting, or the end of its training, was chosen."""
    is_stopped = bool(model.job.get("early_stopping", {}).get("metric"))
    chosen_on = model.chosen_on or (model.job["data"]["validation"] if is_stopped else "")
    if chosen_on and _count_shared(model, store, split, (chosen_on,)):
        logger.warning(
            "The model was chosen by its %s on split %r, whose rows are calibrated on now: "
            "probabilities and sets may promise a little too much. Rows that have served for "
            "nothing else do not.",
            "setting's metric" if model.chosen_on else "early stopping", chosen_on,
        )  # fmt: skip


def _is_same_store(path: str, store: FeatureStore) -> bool:
    if not path:
        return False
    trained, given = as_path(path, name="store"), as_path(store.path, name="store")
    if isinstance(trained, Path) and isinstance(given, Path):
        return trained.resolve() == given.resolve()
    return str(trained) == str(given)
