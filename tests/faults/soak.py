"""A soak: train on workers again and again, kill one every minute, and see whether anything grows.

    python -m tests.faults.soak --minutes 120 --out build/soak

One process trains a small job in a loop on a scheduler and workers of its own, each run with a
connection and a folder of its own; the first worker is killed every minute and replaced. Memory
and file handles of the processes that live throughout, and what the scheduler keeps, are sampled.
They are written to ``soak.json`` and ``soak.png`` every minute, and at the end. A series is flat if
the line through its last two thirds rises by no more than a twentieth of its mean, or by a floor.
The exit status is 1 if one is not, or if a run has left other weights than the first.
"""

import argparse
import contextlib
import json
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import psutil
from distributed import Client
from matplotlib.figure import Figure

from dtopk.atomic import write_text
from dtopk.job import load_job, train
from dtopk.launch import ClusterError
from dtopk.plots import save_png
from dtopk_storage import open_store
from dtopk_storage.ingest import IngestOptions, ingest
from tests.drill.hosts import Cluster, Host
from tests.faults.problem import CHUNK_MIB, ON_CLUSTER, format_job, write_sources

_SAMPLE_S = 5.0
_WRITE_S = 60.0
_LEAST = 3
"""Samples after the warm-up that a trend needs."""
_MEBIBYTE = 1 << 20
_SHARE = 0.05
"""By so much of its mean a flat series rises at most."""
_FLOORS = {"memory": 10.0, "handles": 5.0, "scheduler": 10.0}
"""Or by so much: MiB, handles, and keys of the scheduler."""
_WARM_UP = 1 / 3
"""Share of the time in which caches fill, and which says nothing."""
_ATTEMPTS = 5


@dataclass
class Samples:
    """What was measured, a value for each time."""

    seconds: list[float] = field(default_factory=list)
    series: dict[str, list[float]] = field(default_factory=dict)
    """By kind, a slash and what it is of: 'memory/driver'."""

    def __post_init__(self) -> None:
        self._lock = threading.Lock()

    def copy(self) -> "Samples":
        """Copy what there is by now, while more may come."""
        with self._lock:
            series = {name: list(column) for name, column in self.series.items()}
            return Samples(seconds=list(self.seconds), series=series)

    def add(self, seconds: float, values: Mapping[str, float]) -> None:
        """Add one value of each series; one that is missing is NaN.

        Parameters
        ----------
        seconds : float
            Since the start.
        values : mapping of str to float
        """
        with self._lock:
            for name in values:
                self.series.setdefault(name, [float("nan")] * len(self.seconds))
            self.seconds.append(seconds)
            for name, column in self.series.items():
                column.append(values.get(name, float("nan")))


@dataclass(frozen=True, kw_only=True)
class Trend:
    """The line through a series, once it is warm."""

    mean: float
    rise: float
    """From the beginning of the line to its end."""
    per_hour: float
    is_flat: bool


def find_trend(seconds: Sequence[float], values: Sequence[float], floor: float) -> Trend:
    """Put a line through what follows the warm-up.

    Parameters
    ----------
    seconds, values : sequence of float
    floor : float
        By which a flat series may rise, however small its mean.
    """
    t, v = np.asarray(seconds), np.asarray(values)
    chosen = (t >= t[0] + _WARM_UP * (t[-1] - t[0])) & np.isfinite(v)
    t, v = t[chosen], v[chosen]
    if len(t) < _LEAST:
        raise ValueError(f"a trend must have {_LEAST} values after the warm-up, got {len(t)}.")
    slope = float(np.polyfit(t - t[0], v, 1)[0])
    rise, mean = slope * float(t[-1] - t[0]), float(v.mean())
    is_flat = rise <= max(floor, _SHARE * abs(mean))
    return Trend(mean=mean, rise=rise, per_hour=3600 * slope, is_flat=is_flat)


def count_keys(dask_scheduler: Any) -> dict[str, int]:
    """Count what a scheduler keeps; it is called there."""
    events = dask_scheduler.get_events()
    return {
        "tasks": len(dask_scheduler.tasks),
        "clients": len(dask_scheduler.clients),
        "event topics": len(events),
        "events": sum(map(len, events.values())),
        "plugins": len(dask_scheduler.plugins),
    }


class Soak:
    """The soak's cluster, and what has come of it.

    Parameters
    ----------
    folder : Path
        Empty, for what the runs write.
    out : Path
        Folder for ``soak.json`` and ``soak.png``.
    cluster : Cluster
        Started.
    minutes : float
    kill_s : float
        Seconds between two kills.
    """

    def __init__(
        self, folder: Path, out: Path, cluster: Cluster, *, minutes: float, kill_s: float
    ) -> None:
        self.samples = Samples()
        self.n_runs = self.n_kills = self.n_retries = 0
        self.different: list[int] = []
        """Runs whose weights are not those of the first."""
        self._folder = folder
        self._out = out
        self._cluster = cluster
        self._began = time.monotonic()
        self._end = self._began + 60 * minutes
        self._kill_s = kill_s
        self._over = threading.Event()

    def carry_out(self) -> None:
        """Train until the time is over."""
        write_sources(self._folder)
        options = IngestOptions(splits=(("test", 0.25),), chunk_bytes=int(CHUNK_MIB * _MEBIBYTE))
        store = ingest(self._folder / "rows.npz", self._folder / "store", options).path
        job = self._folder / "job.toml"
        job.write_text(format_job(str(store), ON_CLUSTER, str(self._cluster.file)))
        threads = [threading.Thread(target=work) for work in (self._sample, self._kill)]
        for thread in threads:
            thread.start()
        first: bytes | None = None
        written = self._began
        try:
            while time.monotonic() < self._end:
                weights = self._train(job)
                first = first or weights
                if weights != first:
                    self.different.append(self.n_runs)
                self.n_runs += 1
                if time.monotonic() > written + _WRITE_S:
                    self.write()
                    written = time.monotonic()
        finally:
            self._over.set()
            for thread in threads:
                thread.join()
            self.write()

    def _train(self, job: Path) -> bytes:
        """Train once, as often as it takes, and return the weights' bytes."""
        run = self._folder / "run"
        shutil.rmtree(run, ignore_errors=True)
        loaded = load_job(job, run_dir=str(run))
        for attempt in range(_ATTEMPTS):
            try:
                return train(open_store(loaded.data.store), loaded).model.W.tobytes()
            except ClusterError:
                if attempt == _ATTEMPTS - 1:
                    raise
                self.n_retries += 1
                self._cluster.wait()
        raise AssertionError("the last attempt returns or raises")

    def _kill(self) -> None:
        """Kill the first worker, time and again."""
        while not self._over.wait(self._kill_s):
            workers = self._cluster.find_workers()
            if len(workers) == self._cluster.n_workers:
                workers[0].kill()
                self.n_kills += 1

    def _sample(self) -> None:
        workers = self._cluster.find_workers()
        assert self._cluster.scheduler is not None
        watched = {
            "driver": psutil.Process(),
            "scheduler": psutil.Process(self._cluster.scheduler.pid),
            # The first one is killed.
            "worker": workers[-1],
        }
        with Client(self._cluster.address, set_as_default=False) as client:
            while not self._over.wait(_SAMPLE_S):
                values: dict[str, float] = {}
                for name, process in watched.items():
                    with contextlib.suppress(psutil.NoSuchProcess):
                        values[f"memory/{name}"] = process.memory_info().rss / _MEBIBYTE
                        values[f"handles/{name}"] = process.num_fds()
                counts = client.run_on_scheduler(count_keys)
                values |= {f"scheduler/{name}": number for name, number in counts.items()}
                self.samples.add(time.monotonic() - self._began, values)

    @property
    def is_well(self) -> bool:
        """Whether all weights are those of the first run, and every series is flat."""
        trends = find_trends(self.samples)
        return bool(trends) and not self.different and all(each.is_flat for each in trends.values())

    def write(self) -> None:
        """Write figures and graph of what there is by now."""
        samples = self.samples.copy()
        fields = {
            "runs": self.n_runs, "kills": self.n_kills, "retries": self.n_retries,
            "different": self.different,
            "trends": {name: vars(trend) for name, trend in find_trends(samples).items()},
            "seconds": samples.seconds, "series": samples.series,
        }  # fmt: skip
        write_text(self._out / "soak.json", json.dumps(fields) + "\n")
        save_png(draw(samples), self._out / "soak.png")


def find_trends(samples: Samples) -> dict[str, Trend]:
    """Find the trend of each series; none, where there are too few samples.

    Parameters
    ----------
    samples : Samples
    """
    n_warm = sum(each >= _WARM_UP * samples.seconds[-1] for each in samples.seconds)
    if n_warm < 2 * _LEAST:
        return {}
    return {
        name: find_trend(samples.seconds, values, _FLOORS[name.partition("/")[0]])
        for name, values in samples.series.items()
    }


def draw(samples: Samples) -> Figure:
    """Draw a panel for each kind of series.

    Parameters
    ----------
    samples : Samples
    """
    figure = Figure(figsize=(8, 9), layout="constrained")
    titles = {"memory": "memory (MiB)", "handles": "open files", "scheduler": "keys kept"}
    for axes, (kind, title) in zip(figure.subplots(3, 1), titles.items(), strict=True):
        for name, values in samples.series.items():
            if name.startswith(f"{kind}/"):
                axes.plot(np.divide(samples.seconds, 60), values, label=name.partition("/")[2])
        axes.set_title(title)
        axes.set_xlabel("minutes")
        if kind == "scheduler":
            # From a few clients to thousands of events.
            axes.set_yscale("symlog")
        axes.set_ylim(bottom=0)
        axes.legend()
    return figure


def main(arguments: list[str]) -> int:
    """Hold the soak."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--minutes", type=float, default=120.0)
    parser.add_argument("--kill-s", type=float, default=60.0, help="seconds between two kills")
    parser.add_argument("--out", default="build/soak", metavar="FOLDER")
    options = parser.parse_args(arguments)
    out = Path(options.out)
    out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with Cluster(folder / "cluster", [Host() for _ in range(3)]) as cluster:
            soak = Soak(folder, out, cluster, minutes=options.minutes, kill_s=options.kill_s)
            soak.carry_out()
    print(f"{soak.n_runs} runs, {soak.n_kills} workers killed, {soak.n_retries} started again")
    print(f"with other weights than the first: {len(soak.different)}\n")
    print(f"{'series':26}{'mean':>10}{'rise':>10}{'an hour':>10}")
    for series, trend in find_trends(soak.samples).items():
        verdict = "flat" if trend.is_flat else "NOT FLAT"
        print(f"{series:26}{trend.mean:10.1f}{trend.rise:10.2f}{trend.per_hour:10.2f}  {verdict}")
    return 0 if soak.is_well else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
