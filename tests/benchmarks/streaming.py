"""Train from a store larger than the memory allowed, and compare its passes with rows in memory.

    python tests/benchmarks/streaming.py FOLDER [--gigabytes 6] [--memory 700MB] [--turns 5]

Makes FOLDER/stream.zarr of float16 ReLU-like features, and part.zarr of its first rows, once; then,
each in a process of its own:

* turns: passes over part.zarr streamed from the page cache, its duals from disk and back, over the
  same rows held in memory as float16, and as float32, in turn, since a machine's speed changes by
  more than they differ;
* cold: trains on stream.zarr to a relative gap of 1e-3, its page cache dropped before every pass,
  and says the peak memory of the process (VmHWM).
"""

import argparse
import json
import shutil
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np

from dtopk.engine import (
    ArrayRows,
    Callback,
    FitOptions,
    FitResult,
    StoreRows,
    fit,
    plan_rows,
)
from dtopk.job.checks import parse_bytes
from dtopk.losses import Loss, make_loss
from dtopk.testing import draw_pieces
from dtopk_storage import create_store, drop_page_cache, open_store

N_FEATURES, N_CLASSES = 1024, 200
PART_ROWS = 262_144
PART_MEMORY = 150_000_000


def make_store(path: Path, n_rows: int) -> None:
    """Write ReLU-like float16 features in pieces that share their class means."""
    names = [f"class {code}" for code in range(N_CLASSES)]
    with create_store(path, n_features=N_FEATURES, class_names=names, dtype="float16") as writer:
        for X, labels in draw_pieces(n_rows, N_FEATURES, N_CLASSES, seed=0):
            writer.append(X.astype(np.float16), labels)


class DropCache(Callback):
    """Drop the store from the page cache before every pass."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def on_start(self, info):
        """Before the first pass."""
        drop_page_cache(self.path)

    def on_epoch(self, record, W):
        """Before the next one."""
        print(f"  {record}", file=sys.stderr, flush=True)
        drop_page_cache(self.path)


def peak_megabytes() -> float:
    """Return VmHWM of this process."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM"):
            return int(line.split()[1]) / 1000
    raise RuntimeError("VmHWM must be in /proc/self/status.")


def measure_cold(folder: Path, memory: int, loss: Loss) -> dict[str, object]:
    """Train on the whole store, each pass from the disk."""
    store = open_store(folder / "stream.zarr")
    options = FitOptions(C=1.0, tol=1e-3, max_epochs=50, memory_limit_bytes=memory)
    result = fit(
        StoreRows(store, "train"),
        loss,
        options,
        callbacks=[DropCache(folder / "stream.zarr")],
        dual_path=folder / f"dual-{time.time_ns()}",
    )
    return {
        "rows": store.n_samples,
        "peak_megabytes": round(peak_megabytes()),
        "microseconds_per_row": microseconds_per_row(result),
        "read_seconds_per_pass": round(result.history[-1].read_seconds, 2),
        "epochs": result.epochs,
        "relative_gap": result.certificate.relative_gap,
        "seconds": round(result.seconds, 1),
        "certificate_seconds": round(result.certificate_seconds, 1),
    }


def measure_turns(folder: Path, loss: Loss, turns: int) -> dict[str, object]:
    """Compare passes over rows that are streamed with passes over the same rows in memory."""
    store = open_store(folder / "part.zarr")
    streamed = StoreRows(store, "train")
    X, labels = store.read_features(0, store.n_samples), store.read_labels(0, store.n_samples)
    held = {kind: ArrayRows(X.astype(kind), labels, N_CLASSES) for kind in ("float16", "float32")}
    options = FitOptions(C=1.0, tol=1e-6, max_epochs=3)
    # So little that the duals cannot stay in memory.
    tight = replace(options, memory_limit_bytes=PART_MEMORY)
    assert not plan_rows(streamed, tight).duals_in_memory
    times: dict[str, list[float]] = {"streamed": [], **{kind: [] for kind in held}}
    for turn in range(turns + 1):
        dual_path = folder / f"dual-{time.time_ns()}"
        found = {"streamed": fit(streamed, loss, tight, dual_path=dual_path)}
        found |= {kind: fit(rows, loss, options) for kind, rows in held.items()}
        shutil.rmtree(dual_path)
        # The first turn compiles, checks the rows and warms the cache.
        for kind, result in found.items() if turn else ():
            times[kind].append(microseconds_per_row(result))
    ratios = {kind: np.divide(times["streamed"], times[kind]).round(3) for kind in held}
    return {
        "rows": store.n_samples,
        "microseconds_per_row": times,
        **{f"streamed_by_{kind}": float(np.median(values)) for kind, values in ratios.items()},
        "ratios": {kind: values.tolist() for kind, values in ratios.items()},
    }


def microseconds_per_row(result: FitResult) -> float:
    """Return the median over all passes but the first."""
    speeds = [record.rows_per_second for record in result.history[1:]]
    return round(1e6 / float(np.median(speeds)), 3)


def main() -> None:
    """Make the store, run the parts and print their figures."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--gigabytes", type=float, default=6.2)
    parser.add_argument("--memory", default="700MB")
    parser.add_argument("--loss", default="topk_hinge_alpha")
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--parts", default="turns,cold")
    parser.add_argument("--part", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    folder, name = arguments.folder, arguments.loss
    loss = make_loss(name, **({} if name == "softmax" else {"k": 5, "gamma": 1.0}))
    if arguments.part == "cold":
        memory = parse_bytes("memory", arguments.memory)
        print(json.dumps({"part": "cold", **measure_cold(folder, memory, loss)}))
        return
    if arguments.part == "turns":
        print(json.dumps({"part": "turns", **measure_turns(folder, loss, arguments.turns)}))
        return
    folder.mkdir(parents=True, exist_ok=True)
    n_rows = int(arguments.gigabytes * 1e9 / (2 * N_FEATURES))
    for file, rows in (("stream.zarr", n_rows), ("part.zarr", min(PART_ROWS, n_rows))):
        if not (folder / file).exists():
            make_store(folder / file, rows)
    for part in arguments.parts.split(","):
        command = [sys.executable, __file__, str(folder), "--part", part]
        command += ["--memory", arguments.memory, "--loss", name, "--turns", str(arguments.turns)]
        print(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout, end="")


if __name__ == "__main__":
    main()
