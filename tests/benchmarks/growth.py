"""How the cost of an epoch grows with rows, features, classes, k and partitions.

    python tests/benchmarks/growth.py [--loss softmax] [--epochs 4] [--only n d]

From a middle shape, one size at a time takes its values while the others stay. Each point is a
process of its own, on ReLU-like rows in memory, which another process has made: the median seconds
of its epochs but the first, and megabytes, what the peak of its memory (VmHWM) rises by from before
it loads features and labels to the end of training: rows, duals, weights and buffers, with the
compiled kernels' code, some tens of megabytes, and more where they are compiled for the first time.
Printed for every size are the figures and the exponents that the least squares of their logarithms
give; a point that fails is named and left out, and the exit status is 1 then.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from dtopk.engine import ArrayRows, Callback, FitOptions, fit
from dtopk.losses import make_loss
from dtopk.testing import make_features
from tests.benchmarks.cluster import peak_megabytes

MIDDLE = {"n": 16_384, "d": 1024, "m": 500, "k": 5, "K": 1}
VALUES = {
    "n": (4096, 8192, 16_384, 32_768, 65_536),
    "d": (256, 512, 1024, 2048, 4096),
    "m": (100, 250, 500, 1000, 2000),
    "k": (1, 2, 5, 10, 50),
    "K": (1, 2, 4, 8, 16),
}
SMOOTH = {"gamma": 1.0}


class EpochSeconds(Callback):
    """Keeps the seconds of every epoch."""

    def __init__(self) -> None:
        self.seconds: list[float] = []

    def on_epoch(self, record, W):
        """Take note of one."""
        self.seconds.append(record.seconds - sum(self.seconds))


def measure(loss_name: str, rows: str, m: int, k: int, K: int, epochs: int) -> dict[str, float]:
    """Train in this process on the rows of a folder, and say what it took."""
    parameters = {"k": k, **SMOOTH} if loss_name.startswith("topk_hinge") else {}
    times = EpochSeconds()
    before = peak_megabytes()
    X, labels = (np.load(Path(rows) / f"{name}.npy") for name in ("X", "labels"))
    # A tolerance that is not reached: every epoch is made.
    options = FitOptions(C=1.0, tol=1e-9, max_epochs=epochs, partitions=K, solver="sdca")
    fit(ArrayRows(X, labels, m), make_loss(loss_name, **parameters), options, callbacks=[times])
    return {
        "seconds": float(np.median(times.seconds[1:])),
        "megabytes": peak_megabytes() - before,
    }


def measure_apart(
    loss_name: str, epochs: int, n: int, d: int, **sizes: int
) -> dict[str, float] | None:
    """Make the rows here, and train in a process of its own; None: that has failed."""
    with tempfile.TemporaryDirectory(prefix="dtopk-growth-") as rows:
        X, labels = make_features(n, d, sizes["m"], seed=0)
        np.save(Path(rows) / "X.npy", X)
        np.save(Path(rows) / "labels.npy", labels)
        del X, labels
        given = json.dumps({"loss_name": loss_name, "epochs": epochs, "rows": rows, **sizes})
        done = subprocess.run(
            [sys.executable, "-m", "tests.benchmarks.growth", "--point", given],
            stdout=subprocess.PIPE,
            text=True,
        )
    if done.returncode:
        return None
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def exponent(sizes: list[int], costs: list[float]) -> float:
    """Return the slope of log(cost) against log(size)."""
    return float(np.polyfit(np.log(sizes), np.log(costs), 1)[0])


def summarize(points: dict[int, dict[str, float]]) -> dict[str, Any]:
    """Return the points of a size with the exponents of their figures, if there are two or more."""
    sizes = list(points)
    return {
        "values": sizes,
        "points": list(points.values()),
        "exponents": {
            key: exponent(sizes, [point[key] for point in points.values()])
            for key in ("seconds", "megabytes")
            if len(points) > 1
        },
    }


def show(size: str, points: dict[int, dict[str, float]], exponents: dict[str, float]) -> None:
    """Print the lines of a size."""
    if exponents:
        print(
            f"{size}: time like {size}^{exponents['seconds']:.2f}, memory like "
            f"{size}^{exponents['megabytes']:.2f}"
        )
    else:
        print(f"{size}: too few points")
    for value, point in points.items():
        print(f"  {value:>7,}: {point['seconds']:8.3f} s  {point['megabytes']:7,} MB", flush=True)


def main() -> None:
    """Measure every point."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--loss", default="topk_hinge_alpha")
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--only", nargs="*", choices=VALUES, default=list(VALUES))
    parser.add_argument("--out", type=Path, default=Path("build/growth.json"))
    parser.add_argument("--point", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.point:
        print(json.dumps(measure(**json.loads(arguments.point))))
        return
    if arguments.epochs < 2:
        parser.error(f"--epochs must be at least 2, got {arguments.epochs}: the first is left out.")
    found = {}
    for size in arguments.only:
        points: dict[int, dict[str, float]] = {}
        for value in VALUES[size]:
            point = measure_apart(arguments.loss, arguments.epochs, **{**MIDDLE, size: value})
            if point is None:
                print(f"{size} = {value:,} has failed.", file=sys.stderr)
            else:
                points[value] = point
        found[size] = summarize(points)
        show(size, points, found[size]["exponents"])
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    arguments.out.write_text(json.dumps({"middle": MIDDLE, "loss": arguments.loss, "sizes": found}))
    if any(len(each["values"]) < len(VALUES[size]) for size, each in found.items()):
        sys.exit(1)


if __name__ == "__main__":
    main()
