"""Time of a pass of Frank-Wolfe's method by that of the two products that SDCA needs for each row.

    python tests/benchmarks/frank_wolfe.py [--n 8192] [--d 4096] [--m 1000] [--passes 7]

Each pass is timed beside the products, which are measured just before it, and the median of the
ratios is printed: of reading all rows (scores, vertices, their sum), and of the whole pass with
what is done to vectors of the shape of W, whose share falls as there are more rows.
"""

import argparse
import time

import numpy as np

from dtopk.engine import ArrayRows, Callback, FitOptions, fit
from dtopk.engine.benchmark import _time_limit
from dtopk.losses import make_loss
from dtopk.testing import make_features

CASES = {
    "hinge": {"name": "topk_hinge_alpha", "k": 5},
    "smooth hinge": {"name": "topk_hinge_alpha", "k": 5, "gamma": 1.0},
}


class TimeLimits(Callback):
    """Measures the products after every pass, for the next one."""

    reads_weights = True

    def __init__(self, X, n_classes):
        self.X, self.n_classes = X, n_classes
        self.limits, self.seconds, self.reading = [], [], []
        self.began = 0.0

    def on_compile(self):
        """See :meth:`Callback.on_compile`."""
        self._measure()

    def _measure(self):
        self.limits.append(_time_limit(self.X, self.n_classes))
        self.began = time.perf_counter()

    def on_epoch(self, record, W):
        """See :meth:`Callback.on_epoch`."""
        self.seconds.append(time.perf_counter() - self.began)
        self.reading.append(record.slowest_seconds)
        self._measure()


def main():
    """Measure every case."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for name, default in (("n", 8192), ("d", 4096), ("m", 1000), ("passes", 7)):
        parser.add_argument(f"--{name}", type=int, default=default)
    sizes = parser.parse_args()
    X, y = make_features(sizes.n, sizes.d, sizes.m, seed=0)
    for title, parameters in CASES.items():
        for atoms in (0, -1):
            limits = TimeLimits(X, sizes.m)
            options = FitOptions(
                C=1.0, solver="frank_wolfe", atoms=atoms, max_epochs=sizes.passes, tol=1e-9
            )
            fit(ArrayRows(X, y, sizes.m), make_loss(**parameters), options, callbacks=[limits])
            # The first pass has compiled, and its weights are zero.
            seconds, reading = np.array(limits.seconds[1:]), np.array(limits.reading[1:])
            per_limit = np.array(limits.limits[1 : 1 + len(seconds)])
            print(
                f"{title}, atoms = {atoms}: reading {np.median(reading / per_limit):.2f}, whole "
                f"pass {np.median(seconds / per_limit):.2f} of the two products "
                f"({np.median(per_limit):.3f} s)"
            )


if __name__ == "__main__":
    main()
