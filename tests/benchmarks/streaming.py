"""Train from a store larger than the memory allowed, and compare its passes with rows in memory.

    python tests/benchmarks/streaming.py FOLDER [--gigabytes 6] [--memory 700MB]

Makes FOLDER/stream.zarr of float16 ReLU-like features once, and then, each in a process of its
own whose peak memory (VmHWM) is read at the end:

* cold: trains to a relative gap of 1e-3, the page cache of the store dropped before every pass;
* warm: two passes from the page cache;
* memory: two passes over a part of the same rows held in memory, as float16 and as float32.
"""

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path

import numpy as np

from dtopk.engine import ArrayRows, Callback, FitOptions, StoreRows, fit
from dtopk.job.checks import parse_bytes
from dtopk.losses import make_loss
from dtopk_storage import create_store, drop_page_cache, open_store

N_FEATURES, N_CLASSES = 1024, 200
PART_ROWS = 262_144


def make_store(path: Path, n_rows: int) -> None:
    """Write ReLU-like float16 features in pieces that share their class means."""
    rng = np.random.default_rng(0)
    means = rng.standard_normal((N_CLASSES, N_FEATURES), np.float32)
    names = [f"class {code}" for code in range(N_CLASSES)]
    with create_store(path, n_features=N_FEATURES, class_names=names, dtype="float16") as writer:
        for start in range(0, n_rows, 32_768):
            rows = min(32_768, n_rows - start)
            labels = rng.integers(0, N_CLASSES, rows).astype(np.int32)
            X = rng.standard_normal((rows, N_FEATURES), np.float32)
            X *= 2
            X += np.float32(0.7) * means[labels]
            np.maximum(X, 0, out=X)
            X /= np.linalg.norm(X, axis=1, keepdims=True)
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


def run_part(part: str, folder: Path, memory: str, loss_name: str) -> dict[str, object]:
    """Run one of the parts in this process."""
    store = open_store(folder / "stream.zarr")
    loss = make_loss(loss_name, **({} if loss_name == "softmax" else {"k": 5, "gamma": 1.0}))
    options = {"C": 1.0, "memory_limit_bytes": parse_bytes("memory", memory)}
    if part in ("cold", "warm"):
        rows = StoreRows(store, "train")
        cold = part == "cold"
        result = fit(
            rows,
            loss,
            FitOptions(**options, max_epochs=50 if cold else 2, tol=1e-3 if cold else 1e-9),
            callbacks=[DropCache(folder / "stream.zarr")] if cold else [],
            dual_path=folder / f"dual-{part}-{time.time_ns()}",
        )
        n_rows = store.n_samples
    else:
        n_rows = min(PART_ROWS, store.n_samples)
        X = store.read_features(0, n_rows).astype(part)
        labels = store.read_labels(0, n_rows)
        result = fit(
            ArrayRows(X, labels, store.n_classes), loss, FitOptions(C=1.0, max_epochs=2, tol=1e-9)
        )
    # The first pass of a process compiles, checks the rows and warms the cache.
    speeds = [record.rows_per_second for record in result.history[1:]]
    return {
        "part": part,
        "rows": n_rows,
        "peak_megabytes": round(peak_megabytes()),
        "microseconds_per_row": round(1e6 / float(np.median(speeds)), 3),
        "read_seconds_per_pass": round(result.history[-1].read_seconds, 2),
        "epochs": result.epochs,
        "relative_gap": result.certificate.relative_gap,
        "seconds": round(result.seconds, 1),
        "certificate_seconds": round(result.certificate_seconds, 1),
    }


def main() -> None:
    """Make the store, run the parts and print their figures."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--gigabytes", type=float, default=6.2)
    parser.add_argument("--memory", default="700MB")
    parser.add_argument("--loss", default="topk_hinge_alpha")
    parser.add_argument("--part")
    arguments = parser.parse_args()
    if arguments.part:
        answer = run_part(arguments.part, arguments.folder, arguments.memory, arguments.loss)
        print(json.dumps(answer))
        return
    arguments.folder.mkdir(parents=True, exist_ok=True)
    path = arguments.folder / "stream.zarr"
    if not path.exists():
        make_store(path, int(arguments.gigabytes * 1e9 / (2 * N_FEATURES)))
    for part in ("warm", "float16", "float32", "cold"):
        command = [sys.executable, __file__, str(arguments.folder), "--part", part]
        command += ["--memory", arguments.memory, "--loss", arguments.loss]
        print(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout, end="")


if __name__ == "__main__":
    main()
