"""Train on the workers of a Dask cluster: plan, make a team, run, and keep what was reached."""

import contextlib
import dataclasses
import os
import shutil
from collections.abc import Sequence
from uuid import uuid4

from distributed import Client

from dtopk.engine.dask_team import DaskTeam
from dtopk.engine.fit import check_run, describe_run, keep_duals, plan_layout, plan_rows
from dtopk.engine.interruption import Interruption
from dtopk.engine.memory import MemoryPlan
from dtopk.engine.options import FitOptions, StartPoint
from dtopk.engine.records import Callback, FitResult
from dtopk.engine.rows import StoreRows
from dtopk.engine.run import Run
from dtopk.engine.team import MembersLost
from dtopk.engine.worker import MemberSpec, StoreSource
from dtopk.launch import describe_workers
from dtopk.losses import Loss
from dtopk_storage import RunState

_SHARE_OF_LIMIT = 0.7
"""Share of a worker's memory limit that its part of a run may take."""


def fit_on_cluster(
    client: Client,
    rows: StoreRows,
    loss: Loss,
    options: FitOptions,
    *,
    callbacks: Sequence[Callback] = (),
    dual_path: str | os.PathLike[str] | None = None,
    start: StartPoint | None = None,
    state: RunState | None = None,
    min_workers: int = 1,
    wait_s: float = 300.0,
    round_timeout_s: float = 0.0,
) -> FitResult:
    """Train as `fit` does, with the work shared out to the workers of a cluster.

    Weights and duals are the same to the bit as those of `fit` with as many partitions and
    threads on a processor of the same kind, however many workers there are and whichever of them
    are lost on the way. With `options.threads` = 0 each worker takes the threads that it owns,
    and then this holds for workers that own as many. The kernels have no threads of their own.

    A worker that is lost, hangs or cannot reach another is left out, or replaced if another comes;
    the run goes back to its last commit, or without a `state` to its start.

    Parameters
    ----------
    client : distributed.Client
    rows : StoreRows
        Of a store that every worker sees under the same path.
    loss : Loss
    options : FitOptions
        With at least as many partitions as workers that are to have work.
    callbacks : sequence of Callback
    dual_path : path-like, optional
        Folder to be made for the dual variables, which every worker sees.
    start : StartPoint, optional
        With duals from a file that every worker sees.
    state : RunState, optional
        Where the run's state is committed, in a place that every worker sees. It must be given
        where the duals do not fit into memory.
    min_workers : int
        Fewest workers to train on.
    wait_s : float
        Seconds to wait for so many.
    round_timeout_s : float
        Seconds after which a worker of whose work nothing is heard is given up; 0: ten times the
        longest silence that the same work has shown, and at least 60.

    Returns
    -------
    FitResult

    Raises
    ------
    ValueError, DatasetError, CheckpointError
        As `fit`. What a worker raises carries a note of which it was.
    ClusterError
        If too few workers are there, or the scheduler is gone. With a `state`, the same call goes
        on from its last commit.
    """
    solver = check_run(rows, loss, options, dual_path, start)
    with contextlib.ExitStack() as stack:
        interruption = stack.enter_context(Interruption())
        plan = _plan(client, rows, options)
        if state is None and not plan.duals_in_memory:
            raise ValueError(
                "state must be given, in a place that every worker sees, for duals that do not "
                "fit into the workers' memory, got None."
            )
        layout = plan_layout(rows, options, plan, state)
        source = StoreSource(path=os.path.abspath(rows.store.path), split=rows.split)
        spec = MemberSpec(
            run=uuid4().hex[:12],
            session="",
            rows=source,
            fingerprint=source.fingerprint(rows),
            loss=loss,
            options=options,
            streamed=layout.share == 1.0,
            plan=plan,
            state=state,
            mark="",
        )
        team = DaskTeam(
            client, spec, layout, rows.n_classes,
            min_workers=min_workers, wait_s=wait_s, round_timeout_s=round_timeout_s,
        )  # fmt: skip
        team.stop = lambda: interruption.requested
        run = Run(
            rows, loss, options, layout, team, interruption, callbacks, solver,
            state=state, streamed=not plan.duals_in_memory, start=start,
        )  # fmt: skip
        team.report = run.report
        stack.enter_context(team)

        def finish(result: FitResult) -> FitResult:
            kept = dual_path is not None and _keep_duals(team, rows, options, dual_path)
            return dataclasses.replace(result, duals_kept=kept)

        result = run.run(describe_run(rows, loss, options, layout, plan, solver), finish)
    for callback in callbacks:
        callback.on_end(result)
    return result


def _keep_duals(
    team: DaskTeam, rows: StoreRows, options: FitOptions, path: str | os.PathLike[str]
) -> bool:
    path = os.path.abspath(path)
    try:
        return keep_duals(team, rows, options, path)
    except MembersLost:
        shutil.rmtree(path, ignore_errors=True)
        raise


def _plan(client: Client, rows: StoreRows, options: FitOptions) -> MemoryPlan:
    """Decide what workers hold in memory, as if each had all of the rows."""
    limits = [worker.memory_limit for worker in describe_workers(client)]
    known = [int(_SHARE_OF_LIMIT * limit) for limit in limits if limit is not None]
    limit = options.memory_limit_bytes or min(known, default=None)
    return plan_rows(rows, dataclasses.replace(options, memory_limit_bytes=limit))
