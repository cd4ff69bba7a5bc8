"""`dtopk plan`: what a run will need of memory, network and time, before it starts."""

import dataclasses
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

from dtopk.cli.output import (
    EXIT_FAILED,
    answer,
    answer_json,
    json_option,
    report_error,
    tell,
)
from dtopk.job import TrainJob, load_job
from dtopk.job.checks import parse_bytes
from dtopk_storage.paths import as_path

if TYPE_CHECKING:
    from dtopk.engine.forecast import Forecast, Speed
    from dtopk.engine.plan import ClusterPlan
    from dtopk.engine.sizes import Sizes

_COUNT = click.IntRange(min=1)
_RATE = click.FloatRange(min=0, min_open=True)
_DTYPES = ("float16", "float32", "float64")


def _read_size(ctx: click.Context, param: click.Parameter, value: str | None) -> int | None:
    """Turn a size such as '1.5GB' into bytes."""
    if value is None:
        return None
    try:
        return parse_bytes("size", value)
    except ValueError as error:
        raise click.BadParameter(
            f"must be a size above 0 such as '512MB' or '4GiB', got {value!r}."
        ) from error


@dataclass(frozen=True, kw_only=True)
class Request:
    """What the command line asks about."""

    job: TrainJob
    """The job, or one of defaults."""
    workers: int
    """Processes to plan for; 0: this one alone."""
    memory: int | None
    """Bytes that each may take; None: a share of what is free here."""
    n: int | None
    """Training rows; None: those of the store. The same goes for the next three."""
    d: int | None
    """Features."""
    m: int | None
    """Classes."""
    dtype: str | None
    """Of the features at rest."""
    threads: int
    """Of the matrix products of each process; 0: all."""


@click.command()
@click.argument("job_path", metavar="[JOB.toml]", default="")
@click.option(
    "--set", "overrides", multiple=True, metavar="SECTION.KEY=VALUE",
    help="Replace a value of the job; may be given more than once.",
)  # fmt: skip
@click.option("--workers", type=_COUNT, help="Worker processes.  [default: the job's]")
@click.option(
    "--memory", callback=_read_size, metavar="SIZE",
    help="What each may take, such as 1.5GB.  [default: the job's]",
)  # fmt: skip
@click.option("--n", type=_COUNT, help="Training rows.  [default: the store's]")
@click.option("--d", type=_COUNT, help="Features.  [default: the store's]")
@click.option("--m", type=_COUNT, help="Classes.  [default: the store's]")
@click.option(
    "--dtype", type=click.Choice(_DTYPES),
    help="Of the features in the store.  [default: the store's, or float16]",
)  # fmt: skip
@click.option("--loss", help="Instead of the job's.  [default without a job: softmax]")
@click.option("--k", type=_COUNT, help="k of a top-k loss, instead of the job's.")
@click.option("--gamma", type=float, help="Smoothing of a hinge, instead of the job's.")
@click.option(
    "--threads", type=_COUNT, help="Threads of each process.  [default: the job's, or all]"
)
@click.option(
    "--gflops", type=_RATE, help="1e9 operations a second of a process.  [default: measured here]"
)
@click.option(
    "--bandwidth", callback=_read_size, metavar="SIZE", default="1GB", show_default=True,
    help="What a worker gets from others in a second.",
)  # fmt: skip
@click.option(
    "--read-rate", callback=_read_size, metavar="SIZE", default="500MB", show_default=True,
    help="What a process reads from its store in a second.",
)  # fmt: skip
@json_option
def plan(
    job_path: str,
    overrides: tuple[str, ...],
    workers: int | None,
    memory: int | None,
    n: int | None,
    d: int | None,
    m: int | None,
    dtype: str | None,
    loss: str | None,
    k: int | None,
    gamma: float | None,
    threads: int | None,
    gflops: float | None,
    bandwidth: int,
    read_rate: int,
    as_json: bool,
) -> int:
    """Show what a run will need of memory, network and time, before it starts.

    Reads the sizes of the job's store and nothing else of it; with --n, --d and --m there need not
    be a store, nor a job. The speed of the solver is measured on rows made up here, for a few
    seconds. The exit status is 1 where memory does not suffice.

    \b
    Examples:
      dtopk plan job.toml
      dtopk plan job.toml --workers 8 --memory 16GB --bandwidth 1.2GB
      dtopk plan --workers 8 --memory 16GB --n 1281167 --d 4096 --m 1000
    """  # noqa: D301 - click wants the character, not its escape
    # Imported here, as they load scipy and compiled code that `--help` does not need.
    from dtopk.cli.plan_tables import (
        Rates,
        format_forecast,
        format_plan,
        format_suggestions,
        plan_fields,
    )
    from dtopk.engine.forecast import forecast
    from dtopk.engine.plan import describe_refusal

    job = _change_model(_load(job_path, overrides), loss, k, gamma)
    request = _make_request(job, workers, memory, n, d, m, dtype, threads)
    sizes = _find_sizes(request)
    found = _choose(request, sizes)
    refusal = ""
    expected: tuple[Speed, Forecast] | None = None
    if found.fits:
        speed = _measure(request, sizes, gflops)
        expected = speed, forecast(found, speed, bandwidth=bandwidth, read_rate=read_rate)
    else:
        refusal = describe_refusal(found, automatic=request.memory is None)
    if as_json:
        answer_json(plan_fields(found, expected, request.job.cluster.partitions))
    else:
        parts = [format_plan(found)]
        if expected is not None:
            rates = Rates(gflops_given=gflops is not None, network=bandwidth, store=read_rate)
            parts.append(format_forecast(found, *expected, rates))
        if found.whole_process:
            parts.append(format_suggestions(found, request.job.cluster.partitions))
        answer("\n\n".join(parts))
    if refusal:
        report_error(refusal)
        return EXIT_FAILED
    return 0


def _load(job_path: str, overrides: tuple[str, ...]) -> TrainJob:
    if job_path:
        return load_job(job_path, overrides)
    if overrides:
        raise click.UsageError("--set must be given with a job file, got none.")
    return TrainJob()


def _change_model(job: TrainJob, loss: str | None, k: int | None, gamma: float | None) -> TrainJob:
    given = {"loss": loss, "k": k, "gamma": gamma}
    changes: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
    return dataclasses.replace(job, model=dataclasses.replace(job.model, **changes))


def _make_request(
    job: TrainJob,
    workers: int | None,
    memory: int | None,
    n: int | None,
    d: int | None,
    m: int | None,
    dtype: str | None,
    threads: int | None,
) -> Request:
    """Take what is not given from the job."""
    cluster = job.cluster
    if workers is None:
        workers = {"none": 0, "local": cluster.workers, "scheduler": cluster.min_workers}[
            cluster.kind
        ]
    if memory is None:
        memory = _memory_of_job(job, workers)
    if threads is None:
        threads = _threads_of_job(job, workers)
    return Request(
        job=job, workers=workers, memory=memory, n=n, d=d, m=m, dtype=dtype, threads=threads
    )


def _memory_of_job(job: TrainJob, workers: int) -> int | None:
    """Return what each process may take as the job has it, the least if that is said twice."""
    cluster = job.cluster
    limits = [job.resources.memory_limit_bytes] if job.resources.memory_limit_bytes else []
    if workers and cluster.memory_per_worker != "auto":
        limits.append(parse_bytes("cluster.memory_per_worker", cluster.memory_per_worker))
    return min(limits, default=None)


def _threads_of_job(job: TrainJob, workers: int) -> int:
    cluster = job.cluster
    if not workers:
        return job.resources.threads
    threads = cluster.threads_per_partition or cluster.threads_per_worker
    if threads or cluster.kind == "scheduler":
        return threads
    return max((os.cpu_count() or 1) // workers, 1)


def _find_sizes(request: Request) -> "Sizes":
    """Take sizes from the store, and from the command line where they are given."""
    from dtopk.engine import StoreRows
    from dtopk.engine.sizes import Sizes
    from dtopk.job.names import build_loss
    from dtopk_storage import open_store

    options = _make_options(request)
    given = (request.n, request.d, request.m)
    path = request.job.data.store
    if None in given:
        if not path or not as_path(path, name="data.store").is_dir():
            missing = [f"--{name}" for name, value in zip("ndm", given, strict=True) if not value]
            where = f"there is no store at {path!r}" if path else "there is no job"
            raise click.UsageError(f"{', '.join(missing)} must be given, since {where}.")
        rows = StoreRows(open_store(path), request.job.data.train)
        if given == (None, None, None) and request.dtype is None:
            return Sizes.of_rows(rows, options, build_loss(request.job))
        n_samples = sum(piece.n_rows for piece in rows.pieces)
        return _make_sizes(
            request, request.n or n_samples, request.d or rows.n_features,
            request.m or rows.n_classes, request.dtype or rows.dtype.name,
        )  # fmt: skip
    n, d, m = (int(value or 0) for value in given)
    return _make_sizes(request, n, d, m, request.dtype or "float16")


def _make_sizes(request: Request, n: int, d: int, m: int, dtype: str) -> "Sizes":
    import numpy as np

    from dtopk.engine.sizes import Sizes
    from dtopk.job.names import build_loss
    from dtopk_storage.publishing import DEFAULT_CHUNK_BYTES, default_chunk_rows

    return Sizes.of_numbers(
        _make_options(request),
        build_loss(request.job),
        n_samples=n,
        n_features=d,
        n_classes=m,
        dtype=dtype,
        chunk_rows=default_chunk_rows(d, np.dtype(dtype), DEFAULT_CHUNK_BYTES),
    )


def _make_options(request: Request) -> Any:
    from dtopk.engine import FitOptions

    model, solver = request.job.model, request.job.solver
    return FitOptions(
        dtype=solver.dtype,
        block_size=solver.block_size,
        acceleration=solver.acceleration,
        solver=solver.name,
        atoms=solver.atoms,
        constant=model.intercept_scaling if model.fit_intercept else 0.0,
        partitions=request.job.cluster.partitions or request.workers or 1,
        threads=request.threads,
    )


def _choose(request: Request, sizes: "Sizes") -> "ClusterPlan":
    from dtopk.engine.memory import free_memory
    from dtopk.engine.plan import choose_plan, choose_process_plan

    if not request.workers:
        return choose_process_plan(sizes, limit_bytes=request.memory)
    memory = request.memory
    if memory is None:
        if request.job.cluster.kind == "scheduler":
            raise click.UsageError(
                "--memory must be given for workers on other machines, got none."
            )
        # As a local cluster gives it to them.
        memory = int(0.9 * free_memory()) // request.workers
    return choose_plan(sizes, n_members=request.workers, memory_bytes=memory)


def _measure(request: Request, sizes: "Sizes", gflops: float | None) -> "Speed":
    """Measure the solver here; a rate that is given stands for another machine's."""
    from dtopk.engine.forecast import measure_speed
    from dtopk.job.names import build_loss
    from dtopk.losses import make_loss

    loss = build_loss(request.job)
    loss.check_n_classes(sizes.n_classes)
    if not loss.has_update:
        # Its rows take about as long: both weigh the largest margins.
        loss = make_loss("topk_hinge_alpha_incl")
    tell("measuring the solver on rows of this shape")
    speed = measure_speed(
        loss,
        sizes.width,
        sizes.n_classes,
        dtype=request.job.solver.dtype,
        C=request.job.model.C,
        block_size=request.job.solver.block_size,
        threads=request.threads,
    )
    return speed if gflops is None else dataclasses.replace(speed, gflops=gflops)
