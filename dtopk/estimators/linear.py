"""What the estimators share: how they take features, and what they keep of a fit."""

import sys
import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
import zarr
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator
from sklearn.exceptions import ConvergenceWarning

from dtopk.engine import FLOAT32_TOL, Callback, EpochRecord, FitResult, Rows
from dtopk.estimators.inputs import iter_features, validate_data
from dtopk.losses import what_is_certified
from dtopk.solvers.certificate import Certificate
from dtopk_storage import FeatureStore

Array = NDArray[Any]

_BATCH_BYTES = 64 * 10**6
"""Features and scores of a batch of predictions take about so much memory."""


STOPS_ON_REQUEST = ("early_stopping", "callback")
"""Reasons of a stop that are no failure to reach the tolerance."""


def feature_dtypes(first: Any) -> list[Any]:
    """List the types that features are left in; others are converted to the first."""
    return [np.dtype(first), np.float32, np.float64, np.float16]


def kept_dtype(features: np.dtype[Any], first: Any) -> np.dtype[Any]:
    """Return the type that features of a type are left in, or converted to."""
    return features if features in feature_dtypes(first) else np.dtype(first)


class CertifiedLinearModel(BaseEstimator):
    """A linear model that stops at a duality gap, with `coef_` (n_outputs, n_features)."""

    dtype: str
    tol: float
    loss: str
    coef_: Array
    intercept_: Array
    n_features_in_: int
    certificate_: Certificate

    def _take_over(self, result: FitResult) -> None:
        """Keep how training went; warn where that is not what was asked for."""
        self.n_iter_ = result.epochs
        self.certificate_ = result.certificate
        self.duality_gap_ = result.certificate.duality_gap
        self.history_ = result.history
        self.stop_reason_ = result.stop_reason
        if result.stop_reason == "interrupted":
            raise KeyboardInterrupt
        if not (result.certificate.certified or result.stop_reason in STOPS_ON_REQUEST):
            warnings.warn(self._unconverged(result), ConvergenceWarning, stacklevel=4)

    def _unconverged(self, result: FitResult) -> str:
        advice = "Raise max_epochs"
        if result.stop_reason == "time_limit":
            advice = "Raise time_limit_s"
        if self.dtype == "float32" and self.tol < FLOAT32_TOL:
            advice += ", set dtype='float64'"
        which = "the optimum"
        if what_is_certified(self.loss) != "certified":
            which = "a stationary point, of which the certificate says more,"
        return (
            f"The relative duality gap is {result.certificate.relative_gap:.3g} after "
            f"{result.epochs} epochs ({result.seconds:.1f} s), above tol={self.tol:g}: the weights "
            f"are this far from {which} at most. {advice}, scale the features "
            "(StandardScaler), or lower C."
        )

    def _iter_batches(self, X: ArrayLike | FeatureStore | zarr.Array[Any]) -> Iterator[Array]:
        """Validate features for a prediction, and cut them into batches."""
        n_rows = self._batch_rows()
        dtypes = feature_dtypes(self.coef_.dtype)
        if isinstance(X, FeatureStore | zarr.Array):
            for batch in iter_features(X, n_rows):
                yield validate_data(self, batch, dtype=dtypes, reset=False)
            return
        features = validate_data(self, X, dtype=dtypes, reset=False)
        for start in range(0, len(features), n_rows):
            yield features[start : start + n_rows]

    def _batch_rows(self) -> int:
        """Return how many rows a batch has at most."""
        return batch_rows(self.n_features_in_, len(self.coef_) + 1)

    def _decide(self, X: Array) -> Array:
        """Return the decision function of a batch."""
        dtype = np.result_type(X, self.coef_)
        scores: Array = X.astype(dtype, copy=False) @ self.coef_.T.astype(dtype, copy=False)
        scores += self.intercept_
        return scores


def batch_rows(n_features: int, n_classes: int) -> int:
    """Return how many rows are scored at a time, at most."""
    return max(1, _BATCH_BYTES // (8 * (n_features + 2 * n_classes)))


def count_rows(rows: Rows) -> int:
    """Return the number of training rows."""
    return sum(piece.n_rows for piece in rows.pieces)


class EpochLines(Callback):
    """Writes one line to standard error for every epoch."""

    def on_epoch(self, record: EpochRecord, W: object) -> None:
        """See :meth:`Callback.on_epoch`."""
        gap = "gap" if record.exact else "gap about"
        print(
            f"epoch {record.epoch}: objective {record.primal:.6g}, {gap} "
            f"{record.relative_gap:.3g}, {record.seconds:.1f} s",
            file=sys.stderr,
        )
