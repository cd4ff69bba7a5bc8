"""Train on one machine: plan the memory, place the duals, run, and keep what was reached."""

import contextlib
import dataclasses
import logging
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from threadpoolctl import threadpool_limits

from dtopk.engine.blocks import Layout
from dtopk.engine.duals import Duals, InPlaceDuals, MemoryDuals, NoDuals, StreamedDuals
from dtopk.engine.interruption import Interruption
from dtopk.engine.lanes import SharedFeed
from dtopk.engine.leads import member_class, run_class
from dtopk.engine.member import Member
from dtopk.engine.memory import MemoryPlan
from dtopk.engine.options import FLOAT32_TOL, FitOptions, StartPoint
from dtopk.engine.plan import plan_process
from dtopk.engine.records import Callback, FitInfo, FitResult
from dtopk.engine.rows import Rows, class_totals
from dtopk.engine.sizes import Sizes
from dtopk.engine.solvers import Choice, choose_solver, keeps_duals, makes_duals
from dtopk.engine.team import LocalTeam, Team
from dtopk.losses import Loss
from dtopk.solvers.block_frank_wolfe import FrankWolfeSteps
from dtopk_storage import CheckpointError, RunState, create_dual, open_run_state
from dtopk_storage.paths import PathLike, as_path, delete_tree

logger = logging.getLogger(__name__)


def fit(
    rows: Rows,
    loss: Loss,
    options: FitOptions,
    *,
    callbacks: Sequence[Callback] = (),
    dual_path: PathLike | None = None,
    scratch: str | os.PathLike[str] | None = None,
    start: StartPoint | None = None,
    state: RunState | None = None,
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
    state : RunState, optional
        Where the run's state is committed now and then; a run that finds one there goes on from it,
        to the same weights as if it had never stopped. None keeps none.

    Returns
    -------
    FitResult

    Raises
    ------
    ValueError
        If the loss cannot be used with the number of classes, fewer than two classes have rows,
        weights to start from have another shape, or memory does not suffice.
    DatasetError
        If a chunk is damaged, or holds NaN or infinity.
    CheckpointError
        If there is something at `dual_path`, or the state cannot be read or written. That the
        duals of a finished run cannot be kept is only logged.
    """
    choice = check_run(rows, loss, options, dual_path, start)
    with contextlib.ExitStack() as stack:
        stack.enter_context(threadpool_limits(options.threads or None, user_api="blas"))
        interruption = stack.enter_context(Interruption())
        plan = plan_rows(rows, options, loss)
        layout = plan_layout(rows, options, plan, state, loss)
        if state is None and not plan.duals_in_memory:
            folder = tempfile.TemporaryDirectory(prefix="dtopk-", dir=scratch)
            state = open_run_state(Path(stack.enter_context(folder)) / "state")
        member = make_member(rows, loss, options, layout, plan, state)
        team = stack.enter_context(LocalTeam(member))
        run = run_class(choice.solver, loss)(
            rows, loss, options, layout, team, interruption, callbacks, choice.solver,
            state=state, streamed=not plan.duals_in_memory, start=start,
        )  # fmt: skip
        member.stop = lambda: interruption.requested
        member.report = run.report
        result = run.run(describe_run(rows, loss, options, layout, plan, choice))
        kept = keep_duals(team, rows, loss, result, dual_path)
        result = dataclasses.replace(result, duals_kept=kept)
    for callback in callbacks:
        callback.on_end(result)
    return result


def check_run(
    rows: Rows,
    loss: Loss,
    options: FitOptions,
    dual_path: PathLike | None,
    start: StartPoint | None,
) -> Choice:
    """Refuse what cannot be trained, before anything is read but labels; choose the solver.

    Raises
    ------
    ValueError, CheckpointError
        As `fit`.
    """
    choice = choose_solver(loss, options.solver)
    loss.check_n_classes(rows.n_classes)
    n_present = np.count_nonzero(class_totals(rows))
    if n_present < 2:
        raise ValueError(f"training rows must have at least two classes, got {n_present}.")
    if dual_path is not None and as_path(dual_path, name="dual_path").exists():
        raise CheckpointError(f"{str(dual_path)!r} exists already. Choose another path for duals.")
    _check_start(rows, options, start)
    if start is not None and choice.solver == "pegasos":
        raise ValueError("solver must not be 'pegasos' for a warm start: it begins at zero.")
    if options.dtype == "float32" and options.tol < FLOAT32_TOL:
        logger.warning(
            "tol = %g may be out of reach of float32, whose weights carry 7 digits. "
            "Compute in float64.",
            options.tol,
        )
    return choice


def _check_start(rows: Rows, options: FitOptions, start: StartPoint | None) -> None:
    if start is None or start.W is None:
        return
    most = (rows.n_features + (options.constant != 0), rows.n_classes)
    if start.W.ndim != 2 or len(start.W) > most[0] or start.W.shape[1] != most[1]:
        raise ValueError(
            f"start weights must have at most {most[0]} rows and {most[1]} columns, got shape "
            f"{start.W.shape}."
        )


def make_member(
    rows: Rows,
    loss: Loss,
    options: FitOptions,
    layout: Layout,
    plan: MemoryPlan,
    state: RunState | None,
    feed: SharedFeed | None = None,
) -> Member:
    """Make a member of a run, with its duals where the plan says.

    Parameters
    ----------
    rows : Rows
    loss : Loss
    options : FitOptions
    layout : Layout
    plan : MemoryPlan
    state : RunState or None
        There must be one if the plan streams the duals.
    feed : SharedFeed or None
        Where the rows come from; None: from a feed of the member's own.
    """
    duals: Duals
    solver = choose_solver(loss, options.solver).solver
    if not keeps_duals(loss, solver):
        duals = NoDuals()
    elif plan.duals_in_memory:
        kind = InPlaceDuals if layout.n_partitions == 1 else MemoryDuals
        duals = kind(layout.blocks, rows.n_classes, options.dtype)
    else:
        assert state is not None
        duals = StreamedDuals(state, layout.blocks, rows.n_classes, options.dtype)
    return member_class(solver, loss)(
        rows,
        loss,
        options,
        layout,
        duals,
        keep_features=plan.features_in_memory,
        state=state,
        steps=FrankWolfeSteps(loss) if solver == "block_frank_wolfe" else None,
        feed=feed,
    )


def describe_run(
    rows: Rows, loss: Loss, options: FitOptions, layout: Layout, plan: MemoryPlan, choice: Choice
) -> FitInfo:
    """Say what is known at the start."""
    return FitInfo(
        n_samples=layout.n_samples,
        n_features=rows.n_features,
        n_classes=rows.n_classes,
        loss_name=loss.name,
        solver=choice.solver,
        solver_reason=choice.reason if options.solver == "auto" else "",
        tol=options.tol,
        max_epochs=options.max_epochs,
        features_in_memory=plan.features_in_memory,
        duals_in_memory=plan.duals_in_memory,
        n_partitions=layout.n_partitions,
    )


def plan_layout(
    rows: Rows,
    options: FitOptions,
    plan: MemoryPlan,
    state: RunState | None,
    loss: Loss,
) -> Layout:
    """Cut rows and weights.

    A run that goes on keeps to the cut that it began with, whatever memory there is now.

    Raises
    ------
    ValueError
        If there are fewer blocks than partitions.
    """
    manifest = None if state is None else state.load()
    streamed, mixed = not (plan.features_in_memory and plan.duals_in_memory), True
    if manifest is not None:
        streamed, mixed = manifest["layout"]["streamed"], manifest["layout"].get("mixed", False)
    return Sizes.of_rows(rows, options, loss).make_layout(streamed=streamed, mixed=mixed)


def keep_duals(
    team: Team,
    rows: Rows,
    loss: Loss,
    result: FitResult,
    path: PathLike | None,
) -> bool:
    """Write the duals to a file of their own; say whether all are there.

    Parameters
    ----------
    team : Team
    rows : Rows
    loss : Loss
    result : FitResult
    path : path-like or None
        Folder to be made; None: they are not wanted.
    """
    if path is None:
        return False
    if not makes_duals(loss, result.solver):
        logger.info(
            "Solver %r keeps no duals of loss %r, so that none are written.",
            result.solver, loss.name,
        )  # fmt: skip
        return False
    try:
        file = create_dual(
            path,
            n_samples=rows.n_stored,
            n_classes=rows.n_classes,
            dtype=result.W.dtype.name,
            chunk_rows=rows.chunk_rows,
        )
        team.call("write_duals", file)
    except CheckpointError as error:
        logger.warning("The dual variables are not kept. %s", error)
        delete_tree(as_path(path, name="dual_path"))
        return False
    return True


def plan_rows(rows: Rows, options: FitOptions, loss: Loss | None = None) -> MemoryPlan:
    """Decide what of a run is held in memory, before it starts.

    Parameters
    ----------
    rows : Rows
    options : FitOptions
    loss : Loss, optional
        None for one that SDCA trains.

    Returns
    -------
    MemoryPlan

    Raises
    ------
    ValueError
        If memory does not suffice, with the arithmetic; or if there are fewer blocks than
        partitions.
    """
    sizes = Sizes.of_rows(rows, options, loss)
    return plan_process(sizes, limit_bytes=options.memory_limit_bytes).memory
