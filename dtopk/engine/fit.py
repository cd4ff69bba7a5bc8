"""Train on one machine: plan the memory, place the duals, run, and keep what was reached."""

import contextlib
import dataclasses
import logging
import os
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from threadpoolctl import threadpool_limits

from dtopk.engine.feed import Duals, Feed, FileDuals, MemoryDuals
from dtopk.engine.interruption import Interruption
from dtopk.engine.memory import MemoryPlan, plan_memory
from dtopk.engine.options import FLOAT32_TOL, FitOptions, StartPoint
from dtopk.engine.records import Callback, FitResult
from dtopk.engine.rows import Rows, class_totals
from dtopk.engine.run import Run
from dtopk.losses import Loss
from dtopk_storage import CheckpointError, DualFile, create_dual

logger = logging.getLogger(__name__)


def fit(
    rows: Rows,
    loss: Loss,
    options: FitOptions,
    *,
    callbacks: Sequence[Callback] = (),
    dual_path: str | os.PathLike[str] | None = None,
    scratch: str | os.PathLike[str] | None = None,
    start: StartPoint | None = None,
) -> FitResult:
    """Train until the relative duality gap is at most `options.tol`.

    The first interrupt (Ctrl-C) ends training after the block in work, with a certificate.

    Parameters
    ----------
    rows : Rows
    loss : Loss
    options : FitOptions
    callbacks : sequence of Callback
    dual_path : path-like, optional
        Folder to be made for the dual variables, a row for every stored row; None keeps none.
    scratch : path-like, optional
        Folder for duals that are not kept and do not fit into memory; None is the system's
        temporary folder.
    start : StartPoint, optional

    Returns
    -------
    FitResult

    Raises
    ------
    ValueError
        If the loss cannot be used with the number of classes, fewer than two classes have rows,
        or memory does not suffice.
    DatasetError
        If a chunk is damaged, or holds NaN or infinity.
    CheckpointError
        If duals that do not fit into memory cannot be written. That those of a finished run
        cannot be kept is only logged.
    """
    solver = choose_solver(loss, options.solver)
    loss.check_n_classes(rows.n_classes)
    n_present = np.count_nonzero(class_totals(rows))
    if n_present < 2:
        raise ValueError(f"training rows must have at least two classes, got {n_present}.")
    if options.dtype == "float32" and options.tol < FLOAT32_TOL:
        logger.warning(
            "tol = %g may be out of reach of float32, whose weights carry 7 digits. "
            "Compute in float64.",
            options.tol,
        )
    with contextlib.ExitStack() as stack:
        stack.enter_context(threadpool_limits(options.threads or None, user_api="blas"))
        interruption = stack.enter_context(Interruption())
        plan = plan_rows(rows, options)
        duals, file = _place_duals(rows, options, plan, dual_path, scratch, stack)
        feed = stack.enter_context(Feed(rows, duals, keep_features=plan.features_in_memory))
        run = Run(rows, loss, options, feed, interruption, callbacks, solver)
        try:
            if start is not None:
                run.start_from(start)
            result = run.run(plan)
        except Exception:
            # Hours may be in them: what failed later can be mended, and the run started from here.
            _keep_duals(duals, file, rows)
            raise
        kept = _keep_duals(duals, file, rows) and dual_path is not None
        result = dataclasses.replace(result, duals_kept=kept)
    for callback in callbacks:
        callback.on_end(result)
    return result


def _keep_duals(duals: Duals, file: DualFile | None, rows: Rows) -> bool:
    """Write duals that are in memory to their file; say whether all are there."""
    if file is None or not isinstance(duals, MemoryDuals):
        return file is not None
    try:
        duals.write_to(file, rows.pieces)
    except CheckpointError as error:
        logger.warning("The dual variables are not kept. %s", error)
        shutil.rmtree(file.path, ignore_errors=True)
        return False
    return True


def choose_solver(loss: Loss, name: str) -> str:
    """Return the solver of that name, or for 'auto' the first one that can train the loss.

    Parameters
    ----------
    loss : Loss
    name : str

    Raises
    ------
    ValueError
        If the solver cannot train the loss.
    """
    if name == "auto":
        return loss.solvers[0]
    if name not in loss.solvers:
        raise ValueError(
            f"solver for loss {loss.name!r} must be 'auto' or one of "
            f"{', '.join(map(repr, loss.solvers))}, got {name!r}."
        )
    return name


def plan_rows(rows: Rows, options: FitOptions) -> MemoryPlan:
    """Decide what of a run is held in memory, before it starts.

    Parameters
    ----------
    rows : Rows
    options : FitOptions

    Returns
    -------
    MemoryPlan

    Raises
    ------
    ValueError
        If memory does not suffice, with the arithmetic.
    """
    return plan_memory(
        n_samples=rows.n_stored,
        n_features=rows.n_features + (options.constant != 0),
        n_classes=rows.n_classes,
        feature_itemsize=rows.dtype.itemsize,
        itemsize=np.dtype(options.dtype).itemsize,
        largest_piece=max(piece.n_rows for piece in rows.pieces),
        features_resident=rows.resident,
        limit_bytes=options.memory_limit_bytes,
    )


def _place_duals(
    rows: Rows,
    options: FitOptions,
    plan: MemoryPlan,
    path: str | os.PathLike[str] | None,
    scratch: str | os.PathLike[str] | None,
    stack: contextlib.ExitStack,
) -> tuple[Duals, DualFile | None]:
    """Make the duals, in memory or in a file, and the file they are to be kept in, if any."""
    if path is None and not plan.duals_in_memory:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="dtopk-", dir=scratch))
        path = Path(folder) / "dual"
    file = None
    if path is not None:
        file = create_dual(
            path,
            n_samples=rows.n_stored,
            n_classes=rows.n_classes,
            dtype=options.dtype,
            chunk_rows=rows.chunk_rows,
        )
    if plan.duals_in_memory:
        return MemoryDuals(rows.n_stored, rows.n_classes, options.dtype), file
    assert file is not None
    return FileDuals(file), file
