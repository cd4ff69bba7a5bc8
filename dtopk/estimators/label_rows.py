"""The rows that a classifier of sets of labels is trained and measured on."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
import zarr
from numpy.typing import ArrayLike, NDArray
from sklearn.utils.validation import _check_sample_weight, check_consistent_length

from dtopk.engine import ArrayRows, Rows, StoreRows, find_improper
from dtopk.estimators.evaluation_sets import Batches, check_split, slice_batches
from dtopk.estimators.inputs import load_zarr, validate_data
from dtopk.estimators.label_sets import read_label_sets
from dtopk.estimators.linear import batch_rows, feature_dtypes
from dtopk.losses import LabelSets, Loss
from dtopk_storage import FeatureStore, LabelRows, check_batch

if TYPE_CHECKING:
    from dtopk.estimators.multilabel import MultilabelClassifier

Array = NDArray[Any]
Features = ArrayLike | FeatureStore | zarr.Array[Any]


def take_label_rows(
    estimator: "MultilabelClassifier",
    loss: Loss,
    X: Features,
    Y: Any,
    sample_weight: ArrayLike | None,
) -> tuple[Rows, Array]:
    """Check what `fit` was given; the estimator takes note of the rows that are left out.

    Parameters
    ----------
    estimator : MultilabelClassifier
    loss : Loss
    X, Y, sample_weight
        As `MultilabelClassifier.fit` takes them.

    Returns
    -------
    rows : Rows
    classes : ndarray of shape (n_classes,)

    Raises
    ------
    TypeError, ValueError
    """
    if isinstance(X, FeatureStore):
        return _open_store(estimator, loss, X, Y, sample_weight)
    if Y is None:
        raise ValueError("Y must be given for an array of features, got None.")
    sets, classes = read_label_sets(Y, None)
    features = validate_data(
        estimator,
        load_zarr(X) if isinstance(X, zarr.Array) else X,
        dtype=feature_dtypes(estimator.dtype),
        order="C",
    )
    check_consistent_length(features, sets)
    weight = _check_sample_weight(
        sample_weight, features, dtype=np.float64, ensure_non_negative=True
    )
    estimator.n_skipped_ = 0
    if loss.proper_sets:
        improper = find_improper(sets, len(classes))
        _check_proper(estimator, improper & (weight > 0), "of Y")
        estimator.n_skipped_ = int(np.count_nonzero(improper))
        weight = np.where(improper, 0.0, weight)
    return ArrayRows(features, sets, len(classes), weight), classes


def _open_store(
    estimator: "MultilabelClassifier",
    loss: Loss,
    store: FeatureStore,
    Y: Any,
    sample_weight: ArrayLike | None,
) -> tuple[Rows, Array]:
    for name, value in (("Y", Y), ("sample_weight", sample_weight)):
        if value is not None:
            raise ValueError(
                f"{name} must be left out for a feature store, which holds its own, "
                f"got a {type(value).__name__}."
            )
    if store.kind != "multilabel":
        raise ValueError(f"kind of {store.path!r} must be 'multilabel', got {store.kind!r}.")
    rows = StoreRows(store, "train", skip_improper=loss.proper_sets and estimator.skip_unlabelled)
    estimator.n_skipped_ = 0
    for piece in rows.pieces if loss.proper_sets else ():
        sets, weight = rows.read_labels(piece)
        assert isinstance(sets, LabelSets)
        improper = find_improper(sets, store.n_classes)
        _check_proper(estimator, improper & (weight > 0), f"from {piece.start} of {store.path!r}")
        estimator.n_skipped_ += int(np.count_nonzero(improper))
    estimator.n_features_in_ = store.n_features
    estimator.__dict__.pop("feature_names_in_", None)
    return rows, store.classes


def open_label_set(
    estimator: "MultilabelClassifier", number: int, pair: tuple[Features, Any], classes: Array
) -> Batches:
    """Return what goes through the rows of a set of `eval_set`, checked.

    Parameters
    ----------
    estimator : MultilabelClassifier
    number : int
        Of the set.
    pair : tuple
        X and Y.
    classes : ndarray of shape (n_classes,)

    Raises
    ------
    TypeError, ValueError
    """
    X, Y = pair
    name = f"eval_set[{number}]"
    n_rows = batch_rows(estimator.n_features_in_, len(classes))
    if isinstance(X, FeatureStore):
        split = check_split(name, X, Y, "multilabel", estimator.n_features_in_)
        if [str(each) for each in classes.tolist()] != list(X.class_names):
            raise ValueError(
                f"classes of {X.path!r} in {name} must be those of the rows trained on, in the "
                "same order, got others."
            )
        return lambda: _iter_split(X, split, n_rows)
    features = validate_data(
        estimator,
        load_zarr(X) if isinstance(X, zarr.Array) else X,
        dtype=feature_dtypes(estimator.dtype),
        reset=False,
    )
    sets, _ = read_label_sets(Y, classes)
    check_consistent_length(features, sets)
    return slice_batches(sets.to_indicator(len(classes)), features, n_rows)


def _check_proper(
    estimator: "MultilabelClassifier", improper: NDArray[np.bool_], place: str
) -> None:
    if improper.any() and not estimator.skip_unlabelled:
        raise ValueError(
            f"rows must have a label and lack one for loss {estimator.loss!r}, got none of them or "
            f"all in row {int(np.argmax(improper))} {place}. Set skip_unlabelled=True, or take "
            "a one-vs-all loss."
        )


def _iter_split(store: FeatureStore, split: str, n_rows: int) -> Iterator[tuple[Array, Array]]:
    """Read a split batch by batch, with an indicator matrix of its labels."""
    for batch in store.iter_batches(split, n_rows):
        check_batch(batch.X, batch.y, batch.weight, start=batch.start, store=store)
        assert isinstance(batch.y, LabelRows)
        sets = LabelSets(batch.y.indptr, batch.y.indices)
        yield sets.to_indicator(store.n_classes), batch.X
