"""How the cost of an epoch grows with rows, features, classes, k and partitions.

    python tests/benchmarks/growth.py [--loss softmax] [--epochs 4] [--only n d]

From a middle shape, one size at a time takes its values while the others stay. Each point is a
process of its own, on ReLU-like rows in memory: the median seconds of its epochs but the first, and
the most memory it took (VmHWM) beyond what it held before training, features included. Printed for
every size are the figures and the exponents that the least squares of their logarithms give.
"""

import argparse
import json
import subprocess
import sys
from pathlib import Path

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


def measure(
    loss_name: str, n: int, d: int, m: int, k: int, K: int, epochs: int
) -> dict[str, float]:
    """Train in this process, and say what it took."""
    X, labels = make_features(n, d, m, seed=0)
    parameters = {"k": k, **SMOOTH} if loss_name.startswith("topk_hinge") else {}
    times = EpochSeconds()
    held = X.nbytes // 1_000_000
    before = peak_megabytes()
    options = FitOptions(C=1.0, tol=1e-9, max_epochs=epochs, partitions=K, solver="sdca")
    fit(ArrayRows(X, labels, m), make_loss(loss_name, **parameters), options, callbacks=[times])
    return {
        "seconds": float(np.median(times.seconds[1:])),
        "megabytes": peak_megabytes() - before + held,
    }


def measure_apart(loss_name: str, epochs: int, sizes: dict[str, int]) -> dict[str, float]:
    """Do that in a process of its own."""
    given = json.dumps({"loss_name": loss_name, "epochs": epochs, **sizes})
    done = subprocess.run(
        [sys.executable, "-m", "tests.benchmarks.growth", "--point", given],
        check=True,
        stdout=subprocess.PIPE,
        text=True,
    )
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def exponent(sizes: list[int], costs: list[float]) -> float:
    """Return the slope of log(cost) against log(size)."""
    return float(np.polyfit(np.log(sizes), np.log(costs), 1)[0])


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
    found = {}
    for size in arguments.only:
        points = [
            measure_apart(arguments.loss, arguments.epochs, {**MIDDLE, size: value})
            for value in VALUES[size]
        ]
        sizes = list(VALUES[size])
        found[size] = {
            "values": sizes,
            "points": points,
            "exponents": {
                key: exponent(sizes, [point[key] for point in points]) for key in points[0]
            },
        }
        exponents = found[size]["exponents"]
        print(
            f"{size}: time like {size}^{exponents['seconds']:.2f}, memory like "
            f"{size}^{exponents['megabytes']:.2f}"
        )
        for value, point in zip(sizes, points, strict=True):
            print(
                f"  {value:>7,}: {point['seconds']:8.3f} s  {point['megabytes']:7,} MB", flush=True
            )
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    arguments.out.write_text(json.dumps({"middle": MIDDLE, "loss": arguments.loss, "sizes": found}))


if __name__ == "__main__":
    main()
