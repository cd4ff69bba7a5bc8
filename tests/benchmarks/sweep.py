"""Train 13 values of C together, beside one value alone and all of them one after another.

    python tests/benchmarks/sweep.py FOLDER [--rows 131072] [--classes 10 200] [--drop] [--make]

Makes FOLDER/sweep-CLASSES.zarr of float16 rows of 1,024 features, once, and sweep-CLASSES.toml, a
job of the same sweep for tests/benchmarks/sweep_commands.py; with --make no more. All runs stream
the store; with --drop each pass reads it from the disk, its page cache dropped before. The smooth
top-5 hinge is trained to a relative gap of 1e-3 for 13 values of C over four decades. A model takes
the more passes the larger its C is: `of_the_longest` compares with the one that takes most of them,
`of_the_mean` with the mean of all.
"""

import argparse
import json
import time
from dataclasses import replace
from pathlib import Path

import numpy as np

from dtopk.engine import Candidate, FitOptions, StoreRows, fit, fit_many
from dtopk.losses import make_loss
from dtopk.testing import make_features
from dtopk_storage import create_store, drop_page_cache, open_store

N_FEATURES = 1024
VALUES = 10.0 ** np.linspace(-3, 1, 13)
LOSS = make_loss("topk_hinge_alpha", k=5, gamma=1.0)
JOB = """version = 1
[data]
store = "{store}"
validation = "train"
evaluate = []
[model]
loss = "topk_hinge_alpha"
k = 5
gamma = 1.0
fit_intercept = false
[solver]
tol = 1e-3
[resources]
memory_limit = "{limit}B"
[sweep]
C = {values}
"""


class FreshRows(StoreRows):
    """Rows of a store whose page cache is dropped whenever all of them have been read."""

    drop = False
    reads = 0

    def read(self, piece):
        """See :meth:`StoreRows.read`."""
        if self.drop and self.reads % len(self.pieces) == 0:
            drop_page_cache(self.store.path)
        self.reads += 1
        return super().read(piece)


def make_store(path: Path, n_rows: int, n_classes: int) -> None:
    """Write ReLU-like rows."""
    names = [f"class {code}" for code in range(n_classes)]
    X, labels = make_features(n_rows, N_FEATURES, n_classes, seed=0)
    with create_store(path, n_features=N_FEATURES, class_names=names, dtype="float16") as writer:
        writer.append(X.astype(np.float16), labels)


def count_limit(n_rows: int) -> int:
    """Count bytes with room for some chunks and the duals of some models, not for the features."""
    return int(1.8 * n_rows * N_FEATURES)


def write_job(path: Path, n_rows: int) -> None:
    """Write the job of the same sweep beside a store."""
    text = JOB.format(store=path.absolute(), limit=count_limit(n_rows), values=VALUES.tolist())
    path.with_suffix(".toml").write_text(text)


def measure(path: Path, *, drop: bool) -> dict[str, object]:
    """Time one model at a time, then all together."""

    def rows() -> FreshRows:
        found = FreshRows(open_store(path), "train")
        found.drop = drop
        return found

    n_rows, n_classes = rows().store.n_samples, rows().store.n_classes
    options = FitOptions(tol=1e-3, max_epochs=200, memory_limit_bytes=count_limit(n_rows))
    fit(rows(), LOSS, replace(options, max_epochs=1))
    alone = []
    for C in VALUES:
        began = time.perf_counter()
        result = fit(rows(), LOSS, replace(options, C=float(C)))
        alone.append((time.perf_counter() - began, result.epochs))
    candidates = [Candidate(name=f"{C:g}", loss=LOSS, C=float(C)) for C in VALUES]
    shared = rows()
    began = time.perf_counter()
    results = fit_many(shared, candidates, options)
    together = time.perf_counter() - began
    assert all(result.certificate.certified for result in results.values())
    seconds = np.array([one for one, _ in alone])
    return {
        "rows": n_rows,
        "classes": n_classes,
        "dropped": drop,
        "epochs_alone": [epochs for _, epochs in alone],
        "epochs_together": [results[each.name].epochs for each in candidates],
        "seconds_alone": seconds.round(2).tolist(),
        "seconds_together": round(together, 2),
        "passes_read": round(shared.reads / len(shared.pieces), 1),
        "of_the_mean": round(together / seconds.mean(), 2),
        "of_the_longest": round(together / seconds.max(), 2),
        "of_the_sum": round(together / seconds.sum(), 2),
    }


def main():
    """Make the stores and measure."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--rows", type=int, default=131_072)
    parser.add_argument("--classes", type=int, nargs="+", default=[10, 200])
    parser.add_argument("--drop", action="store_true")
    parser.add_argument("--make", action="store_true")
    arguments = parser.parse_args()
    arguments.folder.mkdir(parents=True, exist_ok=True)
    for n_classes in arguments.classes:
        path = arguments.folder / f"sweep-{n_classes}.zarr"
        if not path.is_dir():
            make_store(path, arguments.rows, n_classes)
        write_job(path, open_store(path).n_samples)
        if arguments.make:
            continue
        print(json.dumps(measure(path, drop=arguments.drop)), flush=True)


if __name__ == "__main__":
    main()
