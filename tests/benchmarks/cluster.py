"""Train on local worker processes: an epoch beside one of this process, and a store of 8 GB.

    python tests/benchmarks/cluster.py epoch FOLDER      # 2 workers of 1 thread, 1 process of 2
    python tests/benchmarks/cluster.py imagenet FOLDER   # 20,000 x 4,096, 1,000 classes, to 1e-3
    python tests/benchmarks/cluster.py large FOLDER      # 8 GB on 2 workers of 1.5 GB, to 1e-3

Stores are made in FOLDER once. Each prints one JSON object; its memory figures are the peaks
(VmHWM) of the scheduler and of each worker process.
"""

import argparse
import json
import os
import threading
import time
from pathlib import Path

import numpy as np
import psutil

from dtopk.engine import Callback, FitOptions, StoreRows, fit, fit_on_cluster
from dtopk.launch import ClusterOptions, open_cluster
from dtopk.losses import make_loss
from dtopk_storage import create_store, open_run_state, open_store

WRITTEN_ROWS = 16_384
TURNS = 5


def make_store(path: Path, n: int, d: int, m: int) -> None:
    """Write ReLU-like float16 features, with class means that all pieces share."""
    if path.exists():
        return
    rng = np.random.default_rng(0)
    means = rng.standard_normal((m, d), np.float32)
    names = [f"class {code}" for code in range(m)]
    with create_store(path, n_features=d, class_names=names, dtype="float16") as writer:
        for start in range(0, n, WRITTEN_ROWS):
            rows = min(WRITTEN_ROWS, n - start)
            labels = rng.integers(0, m, rows).astype(np.int32)
            X = 2 * rng.standard_normal((rows, d), np.float32)
            X += np.float32(0.7) * means[labels]
            np.maximum(X, 0, out=X)
            X /= np.linalg.norm(X, axis=1, keepdims=True)
            writer.append(X.astype(np.float16), labels)


def peak_megabytes(pid: int | str = "self") -> int:
    """Return the peak memory of a process."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmHWM"):
            return int(line.split()[1]) // 1000
    raise RuntimeError(f"VmHWM must be in /proc/{pid}/status.")


class EpochTimes(Callback):
    """The seconds of every epoch, from its start to its record."""

    def __init__(self) -> None:
        self.seconds: list[float] = []

    def on_epoch(self, record, W):
        """Take them from the rows per second."""
        self.seconds.append(self.rows / record.rows_per_second)
        print(f"  {record}", flush=True)

    def on_start(self, info):
        """Note the number of rows."""
        self.rows = info.n_samples


class PeakOfWorkers:
    """Watches the peaks of the workers' processes until they are gone."""

    def __init__(self, client) -> None:
        self.pids = list(client.run(os.getpid).values())
        self.peaks = dict.fromkeys(self.pids, 0)
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def _watch(self) -> None:
        while not self._over.wait(0.5):
            for pid in self.pids:
                if psutil.pid_exists(pid):
                    self.peaks[pid] = peak_megabytes(pid)

    def stop(self) -> list[int]:
        """Return the peak of each."""
        self._over.set()
        self._thread.join()
        return list(self.peaks.values())


def cluster_options(**changes) -> ClusterOptions:
    """Say that two workers of one thread are wanted."""
    return ClusterOptions(
        kind="local", workers=2, threads_per_worker=1, min_workers=2, dashboard=False, **changes
    )


def train_on_workers(store, loss, options, folder, **changes):
    """Train on two workers; return the result, epoch times and peaks of memory."""
    times = EpochTimes()
    with open_cluster(cluster_options(**changes)) as client:
        peaks = PeakOfWorkers(client)
        began = time.perf_counter()
        result = fit_on_cluster(
            client,
            StoreRows(store, "train"),
            loss,
            options,
            callbacks=[times],
            state=open_run_state(folder / f"state-{time.time_ns()}"),
        )
        seconds = time.perf_counter() - began
        return result, times.seconds, peaks.stop(), seconds


def compare_epochs(folder: Path) -> dict[str, object]:
    """Time epochs in this process on two threads and on two workers of one, in turn."""
    make_store(folder / "imagenet.zarr", 20_000, 4_096, 1_000)
    rows = StoreRows(open_store(folder / "imagenet.zarr"), "train")
    answers: dict[str, object] = {}
    options = {"C": 1.0, "tol": 1e-9, "max_epochs": 4, "checkpoint_s": 1e9}
    spread = FitOptions(**options, partitions=2, threads=1)
    with open_cluster(cluster_options()) as client:
        for loss in (make_loss("topk_hinge_alpha", k=5, gamma=1.0), make_loss("softmax")):
            here, there = [], []
            for _ in range(TURNS):
                one, two = EpochTimes(), EpochTimes()
                fit(rows, loss, FitOptions(**options), callbacks=[one])
                fit_on_cluster(client, rows, loss, spread, callbacks=[two])
                # The first epoch of each reads the store.
                here.append(float(np.median(one.seconds[1:])))
                there.append(float(np.median(two.seconds[1:])))
            ratios = np.array(there) / np.array(here)
            answers[loss.name] = {
                "epoch_here": [round(seconds, 3) for seconds in here],
                "epoch_on_workers": [round(seconds, 3) for seconds in there],
                "ratio": round(float(np.median(ratios)), 3),
            }
    return answers


def train_imagenet(folder: Path) -> dict[str, object]:
    """Train on every 64th row of ImageNet's shape."""
    make_store(folder / "imagenet.zarr", 20_000, 4_096, 1_000)
    store = open_store(folder / "imagenet.zarr")
    options = FitOptions(C=1.0, partitions=2, threads=1)
    loss = make_loss("topk_hinge_alpha", k=5, gamma=1.0)
    result, seconds, peaks, total = train_on_workers(store, loss, options, folder)
    return describe(result, seconds, peaks, total)


def train_large(folder: Path, gigabytes: float) -> dict[str, object]:
    """Train on a store that is several times the workers' memory."""
    d, m = 1_024, 100
    make_store(folder / "large.zarr", int(gigabytes * 1e9 / (2 * d)), d, m)
    store = open_store(folder / "large.zarr")
    options = FitOptions(C=1.0, partitions=2, threads=1)
    loss = make_loss("topk_hinge_alpha", k=5, gamma=1.0)
    result, seconds, peaks, total = train_on_workers(
        store, loss, options, folder, memory_per_worker_bytes=1_500_000_000
    )
    return describe(result, seconds, peaks, total)


def describe(result, seconds, peaks, total) -> dict[str, object]:
    """Return what a run came to; the scheduler is in this process."""
    return {
        "epochs": result.epochs,
        "relative_gap": result.certificate.relative_gap,
        "certified": result.certificate.certified,
        "seconds": round(total, 1),
        "epoch_seconds": [round(s, 2) for s in seconds],
        "certificate_seconds": round(result.certificate_seconds, 2),
        "bytes_moved_per_epoch": result.history[-1].bytes_moved,
        "peak_megabytes_of_workers": peaks,
        "peak_megabytes_of_scheduler_and_lead": peak_megabytes(),
    }


def main() -> None:
    """Run one of the three."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=("epoch", "imagenet", "large"))
    parser.add_argument("folder", type=Path)
    parser.add_argument("--gigabytes", type=float, default=8.2)
    arguments = parser.parse_args()
    arguments.folder.mkdir(parents=True, exist_ok=True)
    if arguments.what == "epoch":
        answer = compare_epochs(arguments.folder)
    elif arguments.what == "imagenet":
        answer = train_imagenet(arguments.folder)
    else:
        answer = train_large(arguments.folder, arguments.gigabytes)
    print(json.dumps(answer, indent=1))


if __name__ == "__main__":
    main()
