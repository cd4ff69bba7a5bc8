"""`dtopk bench`: measure the speed of training on this machine."""

from dataclasses import asdict
from pathlib import Path
from typing import Any

import click
import numpy as np

from dtopk.cli.bench_suite import check_options, run_and_show
from dtopk.cli.output import answer_json, json_option, tell
from dtopk.losses import Loss, available, make_loss

_COUNT = click.IntRange(min=1)
_COUNT_OR_AUTO = click.IntRange(min=0)


@click.command()
@click.option("--rows", "n", type=_COUNT, default=8192, show_default=True, help="Rows.")
@click.option("--features", "d", type=_COUNT, default=4096, show_default=True, help="Features.")
@click.option("--classes", "m", type=_COUNT, default=1000, show_default=True, help="Classes.")
@click.option(
    "--loss",
    "name",
    type=click.Choice([info.name for info in available()]),
    help="Only this loss.  [default: smooth top-5 hinge and softmax]",
)
@click.option("--k", type=_COUNT, default=5, show_default=True, help="k of a top-k hinge.")
@click.option("--gamma", default=1.0, show_default=True, help="Smoothing of a hinge.")
@click.option(
    "--smoothing", type=click.Choice(["lapin", "moreau"]), default="lapin", show_default=True
)
@click.option("--C", "C", default=1.0, show_default=True, help="Weight of the loss.")
@click.option(
    "--dtype", type=click.Choice(["float32", "float64"]), default="float32", show_default=True
)
@click.option(
    "--block-size",
    type=_COUNT_OR_AUTO,
    default=0,
    help="Rows solved together.  [default: by the size of W]",
)
@click.option(
    "--threads",
    type=_COUNT_OR_AUTO,
    default=0,
    help="Threads of the matrix products.  [default: all]",
)
@click.option(
    "--passes",
    type=_COUNT,
    default=5,
    show_default=True,
    help="Passes timed; the median one is shown.",
)
@click.option(
    "--suite", is_flag=True, help="Measure dtopk beside other solvers of the same problems."
)
@click.option(
    "--shapes",
    help="Of the suite: ROWSxFEATURESxCLASSES, with @MEMORY for a store on disk, 'letter' or a "
    ".npz file, separated by commas.  [default: from small to large]",
)
@click.option("--peers", help="Of the suite: solvers, separated by commas.  [default: all]")
@click.option(
    "--time-limit",
    "time_limit_s",
    type=click.FloatRange(min=0, min_open=True),
    default=60.0,
    show_default=True,
    help="Of the suite: seconds after which a run is ended.",
)
@click.option(
    "--output",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path("bench-suite"),
    show_default=True,
    help="Of the suite: folder of results.json, tables and figures; what it has is kept.",
)
@click.option("--again", is_flag=True, help="Of the suite: measure anew, lower bounds too.")
@json_option
@click.pass_context
def bench(
    context: click.Context,
    n: int,
    d: int,
    m: int,
    name: str | None,
    k: int,
    gamma: float,
    smoothing: str,
    C: float,
    dtype: str,
    block_size: int,
    threads: int,
    passes: int,
    suite: bool,
    shapes: str | None,
    peers: str | None,
    time_limit_s: float,
    output: Path,
    again: bool,
    as_json: bool,
) -> None:
    """Measure the speed of training on this machine.

    Makes ReLU-like features in memory and times passes of blocked SDCA over them. The limit is
    what the two products with the weights take that every pass needs, S = X W and W += X' dA,
    measured just before each pass: a ratio of 1 cannot be beaten.

    With --suite: the time that dtopk and others take to the same optimum, each in a process of its
    own. Those that are not installed are left out; `pip install "dtopk[peers]"` brings them.
    """
    check_options(context)
    if suite:
        run_and_show(
            output,
            shapes=shapes,
            peers=peers,
            C=C,
            time_limit_s=time_limit_s,
            threads=threads,
            again=again,
            as_json=as_json,
        )
        return
    # Imported here, as they load scipy and compiled code that `--help` does not need.
    from dtopk.engine.benchmark import (
        blas_description,
        check_memory,
        measure_pass,
        measure_read,
    )
    from dtopk.testing import make_features

    names = [name] if name else ["topk_hinge_alpha", "softmax"]
    losses = [_make_loss(each, k=k, gamma=gamma, smoothing=smoothing) for each in names]
    for loss in losses:
        loss.check_n_classes(m)
    check_memory(n, d, m, np.dtype(dtype))
    tell(f"{n:,} rows, {d:,} features, {m:,} classes, {dtype}; {blas_description()}")
    X, labels = make_features(n, d, m, seed=0)
    X = X.astype(dtype)
    read_seconds = measure_read(X, labels, m)
    results: list[dict[str, Any]] = []
    for loss in losses:
        times = measure_pass(
            loss, X, labels, m, C=C, block_size=block_size, threads=threads, passes=passes
        )
        results.append(
            {
                "loss": loss.name,
                **loss.describe(),
                "n_samples": n,
                "n_features": d,
                "n_classes": m,
                "dtype": dtype,
                "block_size": times.block_size,
                "limit_seconds": times.limit_seconds,
                "epoch_seconds": times.epoch_seconds,
                "ratio": times.ratio,
                "certificate_seconds": times.certificate_seconds,
                "read_seconds": read_seconds,
                **{f"{part}_seconds": float(s) for part, s in asdict(times.parts).items()},
            }
        )
        if not as_json:
            click.echo(_table(results[-1], n))
    if as_json:
        answer_json({"blas": blas_description(), "results": results})


def _make_loss(name: str, **values: Any) -> Loss:
    """Make a loss with those of the values that it takes."""
    info = next(info for info in available() if info.name == name)
    return make_loss(name, **{key: values[key] for key in values if key in info.parameters})


_PARTS = {
    "convert": "pick and convert rows and duals",
    "gram": "Gram matrices of the blocks",
    "scores": "scores, S = X W",
    "inner": "the rows' own problems",
    "update": "update, W += X' dA",
}


def _table(result: dict[str, Any], n: int) -> str:
    """Lay out one result: seconds, and microseconds a row."""
    rows = [("limit: the two products", result["limit_seconds"])]
    rows.append(("one pass", result["epoch_seconds"]))
    rows += [(f"  {text}", result[f"{part}_seconds"]) for part, text in _PARTS.items()]
    rows.append(("certificate, float64", result["certificate_seconds"]))
    rows.append(("read, float16 store, cached", result["read_seconds"]))
    names = ("k", "gamma", "smoothing", "rho", "label_cost")
    parameters = ", ".join(f"{key}={result[key]}" for key in names if key in result)
    title = f"{result['loss']}({parameters}), blocks of {result['block_size']}"
    lines = [f"{title}: {result['ratio']:.2f} of the limit", f"{'':34}{'seconds':>9}{'us/row':>9}"]
    lines += [f"{text:34}{s:9.3f}{s / n * 1e6:9.2f}" for text, s in rows]
    return "\n".join(lines) + "\n"
