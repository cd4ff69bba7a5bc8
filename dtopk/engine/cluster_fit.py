"""Train on the workers of a Dask cluster: plan, make a team, run, and keep what was reached."""

import contextlib
import dataclasses
import hashlib
from collections import Counter
from collections.abc import Sequence
from uuid import uuid4

import psutil
from distributed import Client

from dtopk.engine.calls import MemberSpec
from dtopk.engine.cluster_watch import list_workers
from dtopk.engine.dask_team import DaskTeam
from dtopk.engine.fit import check_run, describe_run, keep_duals, plan_layout
from dtopk.engine.interruption import Interruption
from dtopk.engine.leads import run_class
from dtopk.engine.memory import MemoryPlan
from dtopk.engine.options import FitOptions, StartPoint
from dtopk.engine.plan import choose_plan, plan_cluster
from dtopk.engine.records import Callback, FitResult
from dtopk.engine.rows import StoreRows
from dtopk.engine.rows_source import StoreSource
from dtopk.engine.sizes import Sizes
from dtopk.engine.team import MembersLost
from dtopk.launch import WorkerInfo, wait_for_workers
from dtopk.losses import Loss
from dtopk_storage import RunState
from dtopk_storage.paths import PathLike, as_path, delete_tree


def fit_on_cluster(
    client: Client,
    rows: StoreRows,
    loss: Loss,
    options: FitOptions,
    *,
    callbacks: Sequence[Callback] = (),
    dual_path: PathLike | None = None,
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
    if client.asynchronous:
        raise ValueError("client must be one that waits for its results, got an asynchronous one.")
    choice = check_run(rows, loss, options, dual_path, start)
    wait_for_workers(client, min_workers, wait_s)
    sizes = Sizes.of_rows(rows, options, loss)
    plan = _plan(sizes, list_workers(client, min_workers, wait_s), options)
    if state is None and not plan.duals_in_memory:
        raise ValueError(
            "state must be given, in a place that every worker sees, for duals that do not fit "
            "into the workers' memory, got None."
        )
    layout = plan_layout(rows, options, plan, state, loss)
    with contextlib.ExitStack() as stack:
        interruption = stack.enter_context(Interruption())
        source = StoreSource(
            path=str(as_path(rows.store.path, name="store").absolute()),
            split=rows.split,
            skip_improper=rows.skip_improper,
            more=rows.more,
            held_out=rows.held_out,
        )
        spec = MemberSpec(
            run=_name_run(state),
            session="",
            rows=source,
            fingerprint=source.fingerprint(rows),
            loss=loss,
            options=options,
            streamed=layout.streamed,
            mixed=layout.mixed,
            plan=plan,
            state=state,
            mark="",
        )
        team = DaskTeam(
            client, spec, layout, rows.n_classes,
            lambda workers: _replan(sizes, workers, options, plan),
            min_workers=min_workers, wait_s=wait_s, round_timeout_s=round_timeout_s,
        )  # fmt: skip
        team.stop = lambda: interruption.requested
        run = run_class(choice.solver, loss)(
            rows, loss, options, layout, team, interruption, callbacks, choice.solver,
            state=state, streamed=not plan.duals_in_memory, start=start,
        )  # fmt: skip
        team.report = run.report
        stack.enter_context(team)

        def finish(result: FitResult) -> FitResult:
            kept = dual_path is not None and _keep_duals(team, rows, loss, result, dual_path)
            return dataclasses.replace(result, duals_kept=kept)

        result = run.run(describe_run(rows, loss, options, layout, plan, choice), finish)
    for callback in callbacks:
        callback.on_end(result)
    return result


def _name_run(state: RunState | None) -> str:
    """Name a run after its state: one that goes on from it frees what is left of the one before."""
    if state is None:
        return uuid4().hex[:12]
    return hashlib.sha256(state.url.encode()).hexdigest()[:12]


def _keep_duals(
    team: DaskTeam,
    rows: StoreRows,
    loss: Loss,
    result: FitResult,
    path: PathLike,
) -> bool:
    place = as_path(path, name="dual_path").absolute()
    try:
        return keep_duals(team, rows, loss, result, place)
    except MembersLost:
        delete_tree(place)
        raise


def _plan(sizes: Sizes, workers: Sequence[WorkerInfo], options: FitOptions) -> MemoryPlan:
    """Decide what workers hold in memory, before the start."""
    n_members = min(len(workers), options.partitions)
    return plan_cluster(
        sizes, n_members=n_members, memory_bytes=_least_memory(workers, options)
    ).memory


def _replan(
    sizes: Sizes, workers: Sequence[WorkerInfo], options: FitOptions, plan: MemoryPlan
) -> MemoryPlan | None:
    """Decide it anew for other workers, of a run whose duals stay where they are; None: too few."""
    n_members = min(len(workers), options.partitions)
    found = choose_plan(sizes, n_members=n_members, memory_bytes=_least_memory(workers, options))
    duals_fit = found.memory.duals_in_memory or not plan.duals_in_memory
    if not (found.fits and duals_fit):
        return None
    return dataclasses.replace(plan, features_in_memory=found.memory.features_in_memory)


def _least_memory(workers: Sequence[WorkerInfo], options: FitOptions) -> int:
    """Return what the smallest worker may take."""
    limits = [worker.memory_limit for worker in workers if worker.memory_limit is not None]
    if options.memory_limit_bytes is not None:
        limits.append(options.memory_limit_bytes)
    if limits:
        return min(limits)
    # No limits: each has its share of its machine, which is taken to be like this one.
    at_most = max(Counter(worker.host for worker in workers).values())
    return int(psutil.virtual_memory().total) // at_most
