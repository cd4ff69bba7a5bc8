"""A drill: do harm to runs of `dtopk train`, and hold what comes of them against a run unharmed.

    python -m tests.drill.drill --short
    python -m tests.drill.drill --kills-worker 20 --kills-driver 20 --cut-link --disk-full

Every run is of the same job, on a scheduler and two workers of its own, and is ended by its last
epoch. Weights and duals must be the same to the bit, whatever happened, and nothing may hang. The
exit status is 1 otherwise. Cuts of the network need root and `ip`, a full disk needs root; where
they cannot be had, the drill says so and goes on without them.
"""

import argparse
import contextlib
import json
import os
import random
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import numpy as np
import psutil

from dtopk.model import load_model
from dtopk.testing import make_features
from dtopk_storage import create_store, open_dual
from tests.drill.hosts import (
    Cluster,
    Host,
    can_separate_hosts,
    cut_link,
    cut_way,
    separate_hosts,
    small_disk,
)

N_ROWS, N_FEATURES, N_CLASSES = 6_000, 48, 12
MODEL, DUAL, HISTORY, RESULT = "model.npz", "dual", "history.csv", "result.json"
HANG_S = 180.0
"""Seconds beyond those of a run unharmed after which a run hangs."""
_LOOK_S = 0.05
_ATTEMPTS = 5
"""Times that a run is started, at most."""

JOB = """
version = 1
[data]
store = "{store}"
evaluate = []
[model]
loss = "softmax"
C = 10.0
[solver]
tol = 1e-12
max_epochs = {epochs}
dtype = "float64"
[cluster]
kind = "scheduler"
scheduler = "{scheduler}"
partitions = 4
threads_per_partition = 1
min_workers = 1
wait_s = 60.0
round_timeout_s = 5.0
checkpoint_s = 0.5
[tracking]
mlflow = false
"""


@dataclass(frozen=True)
class Outcome:
    """What came of one run."""

    verdict: str
    """'same', 'different', 'hang' or 'failed'."""
    seconds: float
    starts: int
    detail: str = ""


@dataclass
class Drill:
    """The drill's place, and what has come of it."""

    folder: Path
    epochs: int
    rng: random.Random
    reference: Path = Path()
    seconds: float = 0.0
    """That a run unharmed takes, with the start of its process."""
    epoch_seconds: float = 0.0
    outcomes: dict[str, list[Outcome]] = field(default_factory=dict)
    skipped: list[str] = field(default_factory=list)
    started: "list[subprocess.Popen[str]]" = field(default_factory=list)

    def write_job(self, cluster: Cluster) -> Path:
        """Write the job for a cluster."""
        path = cluster.folder / "job.toml"
        store = self.folder / "store"
        path.write_text(
            JOB.format(store=store, scheduler=cluster.file, epochs=self.epochs).lstrip()
        )
        return path

    def start(self, cluster: Cluster, run: Path, *settings: str) -> "subprocess.Popen[str]":
        """Start `dtopk train`."""
        program = "from dtopk.cli import main; main()"
        options = [word for setting in settings for word in ("--set", setting)]
        process = cluster.hosts[0].start(
            ["-c", program, "train", str(self.write_job(cluster)), "--run-dir", str(run), *options],
            run.with_suffix(".log"),
        )
        self.started.append(process)
        return process

    def end(self) -> None:
        """End what is still running."""
        for process in self.started:
            process.kill()
            process.wait()

    def measure(self, cluster: Cluster) -> None:
        """Make the run unharmed, twice: the first may compile."""
        for name in ("warm", "reference"):
            run = self.folder / name
            began = time.monotonic()
            process = self.start(cluster, run)
            if process.wait(10 * HANG_S) != 0:
                raise RuntimeError(f"a run without faults failed:\n{_tail(run)}")
            self.seconds = time.monotonic() - began
            self.epoch_seconds = json.loads((run / RESULT).read_text())["seconds"] / self.epochs
            self.reference = run
        if not _is_same(self.folder / "warm", self.reference):
            raise RuntimeError("two runs without faults differ.")

    def harm(
        self, kind: str, cluster: Cluster, do: Callable[["subprocess.Popen[str]"], None],
        *settings: str,
    ) -> Outcome:  # fmt: skip
        """Make a run, do harm to it at some moment, and start it again until it is done."""
        run = self.folder / f"{kind.replace(' ', '-')}-{len(self.outcomes.get(kind, []))}"
        began = time.monotonic()
        process = self.start(cluster, run, *settings)
        # Not the last ones, after which there may be nothing left to harm.
        epoch = self.rng.randrange(max(self.epochs - 2, 1))
        self._wait_for(run, process, epoch)
        do(process)
        outcome = self._see_through(cluster, run, process, began, *settings)
        self.outcomes.setdefault(kind, []).append(outcome)
        took = f"{outcome.seconds:.1f} s, harm after epoch {epoch}"
        print(f"{run.name}: {outcome.verdict}, {took}. {outcome.detail}", flush=True)
        if outcome.verdict == "same":
            shutil.rmtree(run, ignore_errors=True)
        return outcome

    def _wait_for(self, run: Path, process: "subprocess.Popen[str]", epoch: int) -> None:
        """Wait for the end of an epoch, and then for a part of the next one."""
        deadline = time.monotonic() + self.seconds + HANG_S
        while _count_epochs(run) < epoch and process.poll() is None:
            if time.monotonic() > deadline:
                return  # it hangs, which will be seen
            time.sleep(_LOOK_S)
        # Before the first one comes the start of the process.
        part = self.seconds if epoch == 0 else self.epoch_seconds
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(self.rng.uniform(0, part))

    def _see_through(
        self, cluster: Cluster, run: Path, process: "subprocess.Popen[str]", began: float,
        *settings: str,
    ) -> Outcome:  # fmt: skip
        for starts in range(1, _ATTEMPTS + 1):
            try:
                status = process.wait(self.seconds + HANG_S)
            except subprocess.TimeoutExpired:
                process.kill()
                return Outcome("hang", time.monotonic() - began, starts, _tail(run))
            seconds = time.monotonic() - began
            # A kill may come after the last file was written, and before the process has ended.
            if status == 0 or _count_ended(run) == self.epochs:
                is_same = _is_same(run, self.reference)
                return Outcome("same" if is_same else "different", seconds, starts)
            if starts < _ATTEMPTS:
                self.heal(cluster)
                process = self.start(cluster, run, *settings)
        return Outcome("failed", seconds, starts, _tail(run))

    def heal(self, cluster: Cluster) -> None:
        """Have scheduler and workers there again."""
        assert cluster.scheduler is not None
        if any(each.poll() is not None for each in (cluster.scheduler, *cluster.nannies)):
            cluster.restart()


def drill_workers(drill: Drill, cluster: Cluster, n: int) -> None:
    """Kill a worker."""

    for _ in range(n):
        killed = drill.rng.choice(cluster.find_workers())
        drill.harm("worker killed", cluster, _doing(killed.kill))
        cluster.wait()


def drill_drivers(drill: Drill, cluster: Cluster, n: int) -> None:
    """Kill the process that leads the run."""
    for _ in range(n):
        drill.harm("driver killed", cluster, lambda process: process.kill())


def drill_schedulers(drill: Drill, cluster: Cluster, n: int) -> None:
    """Kill the scheduler."""

    def kill(process: object) -> None:
        assert cluster.scheduler is not None
        cluster.scheduler.kill()
        cluster.scheduler.wait()

    for _ in range(n):
        drill.harm("scheduler killed", cluster, kill)
        cluster.restart()


def drill_stops(drill: Drill, cluster: Cluster, n: int) -> None:
    """Stop a worker, which then hangs, and let it go on later."""
    for _ in range(n):
        stopped = drill.rng.choice(cluster.find_workers())
        drill.harm("worker stopped", cluster, _doing(stopped.suspend))
        with contextlib.suppress(psutil.NoSuchProcess):
            stopped.resume()
        cluster.restart()


def drill_links(drill: Drill, n: int) -> None:
    """Cut a worker off the network, and workers off each other."""
    if not can_separate_hosts():
        drill.skipped.append("cuts of the network: they need root, and the program 'ip'")
        return
    for index in range(n):
        with separate_hosts(3) as hosts, Cluster(drill.folder / f"cut-{index}", hosts) as cluster:
            drill.harm("worker cut off", cluster, _doing(partial(cut_link, hosts[2])))
            cut_link(hosts[2], up=True)
        with separate_hosts(3) as hosts, Cluster(drill.folder / f"way-{index}", hosts) as cluster:
            cut = partial(cut_way, hosts[1], hosts[2])
            drill.harm("workers cut off from each other", cluster, _doing(cut))


def _doing(something: Callable[[], object]) -> Callable[["subprocess.Popen[str]"], None]:
    def do(process: "subprocess.Popen[str]") -> None:
        something()

    return do


def drill_disks(drill: Drill, cluster: Cluster, n: int) -> None:
    """Have the disk with the run's state full, and free it when the run has failed."""
    size = 16 * N_ROWS * N_CLASSES * 8 // (1 << 20) << 20
    for _ in range(n):
        with small_disk(drill.folder / "disk", size) as disk:
            if disk is None:
                drill.skipped.append("full disks: they need root")
                return
            ballast = disk / "ballast"

            def fill(process: "subprocess.Popen[str]", ballast: Path = ballast) -> None:
                with contextlib.suppress(OSError), ballast.open("wb", buffering=0) as file:
                    while True:
                        file.write(bytes(1 << 16))
                process.wait(drill.seconds + HANG_S)
                ballast.unlink()

            drill.harm("disk full", cluster, fill, f"output.state_url={disk}/states")


def _count_epochs(run: Path) -> int:
    try:
        return len((run / HISTORY).read_text().splitlines()) - 1
    except FileNotFoundError:
        return 0


def _count_ended(run: Path) -> int:
    """Count the epochs of a run that has ended."""
    try:
        return int(json.loads((run / RESULT).read_text())["epochs"])
    except FileNotFoundError:
        return 0


def _is_same(run: Path, reference: Path) -> bool:
    """Compare weights and duals bit by bit."""
    one, other = load_model(run / MODEL), load_model(reference / MODEL)
    weights = np.array_equal(one.W, other.W) and np.array_equal(one.intercept, other.intercept)
    duals = [open_dual(folder / DUAL).read(0, N_ROWS) for folder in (run, reference)]
    return bool(weights and np.array_equal(*duals))


def _tail(run: Path) -> str:
    lines = run.with_suffix(".log").read_text().splitlines()[-25:]
    return "\n" + "\n".join(f"    {line}" for line in lines)


def make_store(folder: Path) -> None:
    """Write the rows that all runs train on."""
    X, y = make_features(N_ROWS, N_FEATURES, N_CLASSES, seed=0)
    names = [f"class {index}" for index in range(N_CLASSES)]
    with create_store(
        folder, n_features=N_FEATURES, class_names=names, chunk_rows=500, dtype="float16"
    ) as writer:
        writer.append(X.astype(np.float16), y, split="train")


def report(drill: Drill) -> bool:
    """Print what came of it; tell whether all is well."""
    print(f"\na run unharmed takes {drill.seconds:.1f} s, {drill.epochs} epochs\n")
    print(f"{'fault':34}{'runs':>6}{'same':>6}{'other':>6}{'hang':>6}{'failed':>7}  seconds")
    for kind, outcomes in drill.outcomes.items():
        verdicts = [outcome.verdict for outcome in outcomes]
        counts = [verdicts.count(name) for name in ("same", "different", "hang", "failed")]
        seconds = [outcome.seconds for outcome in outcomes]
        print(
            f"{kind:34}{len(outcomes):6}{counts[0]:6}{counts[1]:6}{counts[2]:6}{counts[3]:7}"
            f"  {statistics.median(seconds):.1f}, at most {max(seconds):.1f}"
        )
    for what in drill.skipped:
        print(f"left out: {what}")
    return all(o.verdict == "same" for outcomes in drill.outcomes.values() for o in outcomes)


def parse(arguments: list[str]) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    for name, number in (("worker", 20), ("driver", 20), ("scheduler", 5)):
        parser.add_argument(f"--kills-{name}", type=int, default=number, metavar="N")
    parser.add_argument("--stops", type=int, default=5, metavar="N")
    parser.add_argument("--cut-link", action="store_true")
    parser.add_argument("--disk-full", action="store_true")
    parser.add_argument("--short", action="store_true", help="one fault of each kind")
    parser.add_argument("--epochs", type=int, default=12)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--folder", default="", help="where to work; it is kept")
    found = parser.parse_args(arguments)
    if found.short:
        for name in ("kills_worker", "kills_driver", "kills_scheduler", "stops"):
            setattr(found, name, min(getattr(found, name), 1))
    return found


def main(arguments: list[str]) -> int:
    """Hold the drill."""
    options = parse(arguments)
    with contextlib.ExitStack() as stack:
        folder = Path(options.folder or stack.enter_context(tempfile.TemporaryDirectory()))
        folder.mkdir(parents=True, exist_ok=True)
        folder = folder.resolve()
        make_store(folder / "store")
        drill = Drill(folder, options.epochs, random.Random(options.seed))
        stack.callback(drill.end)
        here = [Host() for _ in range(3)]
        with Cluster(folder / "cluster", here) as cluster:
            drill.measure(cluster)
            drill_workers(drill, cluster, options.kills_worker)
            drill_drivers(drill, cluster, options.kills_driver)
            drill_schedulers(drill, cluster, options.kills_scheduler)
            drill_stops(drill, cluster, options.stops)
            if options.disk_full:
                drill_disks(drill, cluster, 1 if options.short else 3)
        if options.cut_link:
            drill_links(drill, 1 if options.short else 3)
        return 0 if report(drill) else 1


if __name__ == "__main__":
    # Ctrl-C goes to all processes of the terminal's group, and they end by themselves.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    os.environ.pop("MLFLOW_TRACKING_URI", None)
    sys.exit(main(sys.argv[1:]))
