"""Recompute a run's certificate from its files, and hold it against what the run wrote."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dtopk.engine import balance_classes, class_totals, makes_duals
from dtopk.job.config import TrainJob
from dtopk.job.files import load_job
from dtopk.job.names import build_loss
from dtopk.job.problem import open_rows
from dtopk.job.run_folder import RunFolder
from dtopk.model import Model, load_model
from dtopk.solvers.certificate import Certificate, CertificateSums
from dtopk.solvers.sdca import RowConversion
from dtopk_storage import CheckpointError, DualFile, FeatureStore, open_dual, open_store
from dtopk_storage.paths import AnyPath, PathLike, as_path

_ROUNDING = 1e-9
"""Sums in another order differ by less, relative to the values."""


def verify_run(path: PathLike, progress: Callable[[int, int], None] | None = None) -> Certificate:
    """Compute primal and dual value of a run anew, in float64, and compare them with its result.

    The primal is that of the weights, intercept, mean and scale in the model file; the dual value
    that of the duals in the folder, put onto their domain. Rows are those of the store that the
    run's job names.

    Parameters
    ----------
    path : path of a run folder, or its address in an object store
    progress : callable, optional
        Called with the rows done and the rows to do.

    Returns
    -------
    Certificate

    Raises
    ------
    CheckpointError
        If a file of the run is missing or damaged, or the result says something else.
    DatasetError
        If the store is missing or damaged.
    """
    folder = RunFolder(path=as_path(path, name="run"))
    job = load_job(folder.job)
    stated = read_result(folder)
    loss = build_loss(job)
    if not makes_duals(loss, stated.get("solver", "sdca")):
        raise CheckpointError(
            f"run {str(folder.path)!r} must have duals for its certificate to be computed, but "
            f"solver {stated['solver']!r} keeps none of loss {loss.name!r}. Train with one that "
            "does: 'sdca' or 'block_frank_wolfe'."
        )
    if not folder.model.is_file() or not folder.has_dual:
        raise CheckpointError(
            f"run {str(folder.path)!r} must have 'model.npz' and 'dual' for its certificate to be "
            "computed, but one of them is not there. Train with output.save_dual = true."
        )
    model, store = load_model(folder.model), open_store(job.data.store)
    _check_sizes(model, store, folder)
    sums = _sum_rows(model, store, job, open_dual(folder.dual), progress)
    certificate = sums.certificate(job.solver.tol)
    _compare(certificate, stated, model, job, folder.path)
    return certificate


def read_result(folder: RunFolder) -> dict[str, Any]:
    """Read the result of a run.

    Raises
    ------
    CheckpointError
        If there is none, as of a run that did not come to its end, or it is damaged.
    """
    try:
        fields = folder.read_result()
    except FileNotFoundError as error:
        raise CheckpointError(
            f"run {str(folder.path)!r} must have a 'result.json', but it did not come to its end."
        ) from error
    for name in ("primal", "dual", "relative_gap"):
        if not isinstance(fields.get(name), float):
            raise CheckpointError(f"{str(folder.result)!r} must have a number {name!r}, got none.")
    if type(fields.get("epochs")) is not int:
        raise CheckpointError(
            f"{str(folder.result)!r} must have a whole number 'epochs', got none."
        )
    return fields


def _check_sizes(model: Model, store: FeatureStore, folder: RunFolder) -> None:
    if model.n_features != store.n_features or model.classes.tolist() != store.classes.tolist():
        raise CheckpointError(
            f"model of {str(folder.path)!r} must have the features and classes of "
            f"{store.path!r}, got {model.n_features} features and {model.n_classes} classes: "
            "another store has taken the place of the one trained on."
        )


def _sum_rows(
    model: Model,
    store: FeatureStore,
    job: TrainJob,
    dual: DualFile,
    progress: Callable[[int, int], None] | None,
) -> CertificateSums:
    loss = build_loss(job)
    costs_then = model.loss_parameters.get("label_cost")
    if costs_then != loss.describe().get("label_cost"):
        raise CheckpointError(
            f"label costs of {job.model.label_cost!r} must be those trained with, {costs_then}, "
            f"got {loss.describe().get('label_cost')}: the file has changed."
        )
    rows = open_rows(store, job, loss)
    if (dual.n_samples, dual.n_classes) != (rows.n_stored, rows.n_classes):
        raise CheckpointError(
            f"duals in {dual.path!r} must have the {rows.n_stored} rows and {rows.n_classes} "
            f"classes of {store.path!r}, got {dual.n_samples} and {dual.n_classes}."
        )
    class_weight = None
    if job.model.class_weight == "balanced":
        class_weight = balance_classes(class_totals(rows))
    sums = CertificateSums(loss, _conversion(model, job), _weights(model, job))
    n_rows, done = sum(piece.n_rows for piece in rows.pieces), 0
    for piece_range in rows.pieces:
        piece = rows.read(piece_range)
        costs = job.model.C * piece.weight
        if class_weight is not None:
            assert isinstance(piece.labels, np.ndarray)  # The classes of sets have no weights.
            costs *= class_weight[piece.labels]
        values = dual.read(piece_range.start, piece_range.stop)
        sums.add(piece.X, piece.labels, costs, values)
        done += piece_range.n_rows
        if progress is not None:
            progress(done, n_rows)
    return sums


def _conversion(model: Model, job: TrainJob) -> RowConversion:
    mean = inverse_scale = None
    if model.feature_mean is not None or model.feature_scale is not None:
        d = model.n_features
        mean = np.zeros(d) if model.feature_mean is None else model.feature_mean
        inverse_scale = np.ones(d) if model.feature_scale is None else 1.0 / model.feature_scale
    return RowConversion(
        n_features=model.n_features,
        dtype=np.dtype(np.float64),
        mean=mean,
        inverse_scale=inverse_scale,
        constant=job.model.intercept_scaling if job.model.fit_intercept else 0.0,
    )


def _weights(model: Model, job: TrainJob) -> NDArray[Any]:
    """Stack the weights, and those of the constant feature where there is one."""
    if not job.model.fit_intercept:
        return model.W
    constant_weights = model.intercept.astype(np.float64) / job.model.intercept_scaling
    return np.vstack([model.W.astype(np.float64), constant_weights])


def _compare(
    certificate: Certificate, stated: Mapping[str, Any], model: Model, job: TrainJob, path: AnyPath
) -> None:
    tolerance = _ROUNDING
    if job.model.fit_intercept and job.model.intercept_scaling != 1:
        # The intercept, which is a product, has been rounded to the type of W.
        tolerance = max(tolerance, 10 * float(np.finfo(model.W.dtype).eps))
    size = max(abs(certificate.primal), abs(certificate.dual_value))
    for name, value, scale in (
        ("primal", certificate.primal, size),
        ("dual", certificate.dual_value, size),
        ("relative_gap", certificate.relative_gap, 1.0),
    ):
        if not abs(value - stated[name]) <= tolerance * scale:
            raise CheckpointError(
                f"{name} of {str(path)!r} must be {stated[name]!r}, as its result.json says, but "
                f"model, duals and store give {value!r}: one of them was changed."
            )
