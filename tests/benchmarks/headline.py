"""Train on features of ImageNet's size, from the disk, in a few gigabytes of memory.

    python tests/benchmarks/headline.py FOLDER [--rows 1281167] [--loss softmax] [--memory 6GB]

Makes FOLDER/headline.zarr of float16 ReLU-like rows, 4,096 features and 1,000 classes, once: 10.5
GB by default. Trains to a relative gap of 1e-3 with duals on the disk. After every epoch the two
products with W that a pass cannot do without are timed for some rows; their median, for all rows,
is the limit that the time is held against. That time is without these measurements. Prints one JSON
object; its memory is the peak (VmHWM) of the process.
"""

import argparse
import json
import time
from pathlib import Path

import numpy as np

from dtopk.engine import Callback, FitOptions, StoreRows, fit
from dtopk.job.checks import parse_bytes
from dtopk.kernels.blas import gemm
from dtopk.losses import make_loss
from dtopk_storage import open_store
from tests.benchmarks.cluster import make_store, peak_megabytes

N_FEATURES, N_CLASSES = 4096, 1000
TIMED_ROWS = 4096


class LimitBeside(Callback):
    """Times the two products after every epoch."""

    def __init__(self) -> None:
        self.seconds: list[float] = []
        """Of the two products, for `TIMED_ROWS` rows."""
        self.spent = 0.0

    def on_epoch(self, record, W):
        """Time them, and say how far the run is."""
        began = time.perf_counter()
        rng = np.random.default_rng(record.epoch)
        X = rng.random((TIMED_ROWS, N_FEATURES), np.float32)
        W = np.zeros((N_FEATURES, N_CLASSES), np.float32)
        S = np.zeros((TIMED_ROWS, N_CLASSES), np.float32)
        started = time.perf_counter()
        gemm(X, W, S)
        gemm(X.T, S, W, beta=1.0)
        self.seconds.append(time.perf_counter() - started)
        print(record, flush=True)
        self.spent += time.perf_counter() - began


def main() -> None:
    """Make the store and train."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--rows", type=int, default=1_281_167)
    parser.add_argument("--loss", default="topk_hinge_alpha")
    parser.add_argument("--C", type=float, default=1.0)
    parser.add_argument("--memory", default="6GB")
    parser.add_argument("--only-store", action="store_true")
    arguments = parser.parse_args()
    path = arguments.folder / "headline.zarr"
    arguments.folder.mkdir(parents=True, exist_ok=True)
    make_store(path, arguments.rows, N_FEATURES, N_CLASSES)
    if arguments.only_store:
        return
    loss = make_loss(
        arguments.loss, **({} if arguments.loss == "softmax" else {"k": 5, "gamma": 1.0})
    )
    beside = LimitBeside()
    options = FitOptions(
        C=arguments.C,
        tol=1e-3,
        max_epochs=40,
        memory_limit_bytes=parse_bytes("memory", arguments.memory),
    )
    result = fit(
        StoreRows(open_store(path), "train"),
        loss,
        options,
        callbacks=[beside],
        dual_path=arguments.folder / f"dual-{arguments.loss}",
    )
    limit = float(np.median(beside.seconds)) / TIMED_ROWS * arguments.rows
    seconds = result.seconds - beside.spent
    print(
        json.dumps(
            {
                "loss": arguments.loss,
                "rows": arguments.rows,
                "relative_gap": result.certificate.relative_gap,
                "epochs": result.epochs,
                "seconds": round(seconds, 1),
                "certificate_seconds": round(result.certificate_seconds, 1),
                "limit_seconds_per_pass": round(limit, 1),
                "by_limit": round(seconds / (result.epochs * limit), 3),
                "peak_megabytes": peak_megabytes(),
            },
            indent=1,
        )
    )


if __name__ == "__main__":
    main()
