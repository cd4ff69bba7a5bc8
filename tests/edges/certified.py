"""What must hold of every training, whatever its rows: a true certificate, or one clear error."""

from pathlib import Path

import numpy as np

from dtopk.engine import FitOptions, fit
from dtopk.engine.rows import ArrayRows
from dtopk.losses import LabelSets
from dtopk.solvers.sdca import RowConversion
from dtopk.testing import dual_value, primal_value
from dtopk_storage import open_dual

ROUNDING = 1e-9
"""Relative to the larger of the two values: sums of some dozens of float64 numbers."""
ROUNDED_ONE = 1e-14
"""Absolute, of the loss of a row."""


def label_rows(loss, y, n_classes):
    """Give a loss class codes, or where it takes sets of them the class and the next."""
    if "multiclass" in loss.targets:
        return y
    indicator = np.zeros((len(y), n_classes))
    indicator[np.arange(len(y)), y] = 1
    if n_classes > 2:
        indicator[np.arange(len(y)), (y + 1) % n_classes] = 1
    return LabelSets.from_indicator(indicator)


def fit_and_check(X, y, n_classes, loss, folder: Path, **options):
    """Train with duals kept; hold the certificate against one computed from what was kept.

    Primal and dual are those of the twins, from definitions, in float64. Scores come from the rows
    as they are converted in float64.
    """
    given = FitOptions(**{"max_epochs": 30, "threads": 1, **options})
    rows = ArrayRows(np.ascontiguousarray(X), label_rows(loss, y, n_classes), n_classes)
    result = fit(rows, loss, given, dual_path=folder / "dual")
    certificate = result.certificate
    values = [certificate.primal, certificate.dual_value, certificate.relative_gap]
    assert np.isfinite(values).all()
    assert np.isfinite(result.W).all()
    assert certificate.relative_gap >= -ROUNDING
    assert (result.stop_reason == "tolerance") == certificate.certified
    if loss.convex:
        _check_values(X, loss, given, rows, result, folder)
    return result


def _check_values(X, loss, options, rows, result, folder):
    labels = rows.read(rows.pieces[0]).labels
    conversion = RowConversion(
        n_features=X.shape[1],
        dtype=np.dtype(np.float64),
        mean=options.mean,
        inverse_scale=options.inverse_scale,
        constant=options.constant,
    )
    Z = np.empty((len(X), conversion.width))
    conversion.gather(np.ascontiguousarray(X), np.arange(len(X)), Z)
    W = result.W.astype(np.float64)
    if options.constant:
        W = np.vstack([W, result.intercept.astype(np.float64) / options.constant])
    costs = np.full(len(X), options.C)
    certificate = result.certificate
    scale = ROUNDING * max(abs(certificate.primal), abs(certificate.dual_value))
    # A twin takes the logarithm of 1 and next to nothing, which leaves the rounding of 1.
    scale += ROUNDED_ONE * options.C * len(X)
    primal = primal_value(loss, Z, labels, costs, W)
    np.testing.assert_allclose(certificate.primal, primal, rtol=0, atol=scale)
    if result.duals_kept:
        dual = open_dual(folder / "dual").read(0, len(X)).astype(np.float64)
        loss.make_feasible(dual, labels, costs)
        value = dual_value(loss, Z, labels, costs, dual)
        np.testing.assert_allclose(certificate.dual_value, value, rtol=0, atol=scale)
