"""Processes to do harm to: a scheduler, workers, and network namespaces that stand for hosts."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import psutil

ROOT = Path(__file__).parents[2]
STARTED_S = 120.0
"""Seconds in which processes must be up, on a machine with other work."""
_SUBNET = "10.78.0"


def make_environment() -> dict[str, str]:
    """Return the variables that all processes of a drill run with."""
    paths = os.pathsep.join(map(str, (ROOT, ROOT / "storage")))
    names = ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "NUMBA_NUM_THREADS")
    settings = {"PYTHONPATH": paths, "DASK_CONFIG": str(ROOT / "deploy" / "dask.yaml")}
    return os.environ | dict.fromkeys(names, "1") | settings


class Host:
    """This machine, or a network namespace of it.

    Parameters
    ----------
    address : str
        By which others reach it.
    namespace : str
        Its name; empty: this machine.
    """

    def __init__(self, address: str = "127.0.0.1", namespace: str = "") -> None:
        self.address = address
        self.namespace = namespace

    def start(self, arguments: Sequence[str], log: Path) -> "subprocess.Popen[str]":
        """Start a Python program.

        Parameters
        ----------
        arguments : sequence of str
        log : Path
            What it says is added to it.
        """
        prefix = ["ip", "netns", "exec", self.namespace] if self.namespace else []
        with log.open("a") as file:
            return subprocess.Popen(
                [*prefix, sys.executable, *arguments],
                env=make_environment(),
                cwd=log.parent,
                stdout=file,
                stderr=file,
                text=True,
            )


@contextlib.contextmanager
def separate_hosts(n: int) -> Iterator[list[Host]]:
    """Make hosts on a switch of their own; what runs in them is ended with them.

    Parameters
    ----------
    n : int

    Yields
    ------
    list of Host
    """
    names = [f"dtopk-drill-{index}" for index in range(1, n + 1)]
    switch = "dtopk-drill-switch"
    try:
        _ip("netns", "add", switch)
        _ip("-n", switch, "link", "add", "br0", "type", "bridge")
        _ip("-n", switch, "link", "set", "br0", "up")
        for index, name in enumerate(names, 1):
            _ip("netns", "add", name)
            _ip("-n", switch, "link", "add", f"p{index}", "type", "veth",
                "peer", "name", "eth0", "netns", name)  # fmt: skip
            _ip("-n", switch, "link", "set", f"p{index}", "master", "br0", "up")
            _ip("-n", name, "addr", "add", f"{_SUBNET}.{index}/24", "dev", "eth0")
            _ip("-n", name, "link", "set", "eth0", "up")
            _ip("-n", name, "link", "set", "lo", "up")
        yield [Host(f"{_SUBNET}.{index}", name) for index, name in enumerate(names, 1)]
    finally:
        for name in [*names, switch]:
            _end_namespace(name)


def can_separate_hosts() -> bool:
    """Tell whether this process may make network namespaces."""
    try:
        _ip("netns", "add", "dtopk-drill-probe")
        _ip("netns", "del", "dtopk-drill-probe")
    except (OSError, subprocess.CalledProcessError):
        return False
    return True


def cut_link(host: Host, *, up: bool = False) -> None:
    """Take a host off the network, or put it back.

    Parameters
    ----------
    host : Host
    up : bool
    """
    port = "p" + host.address.rpartition(".")[2]
    _ip("-n", "dtopk-drill-switch", "link", "set", port, "up" if up else "down")


def cut_way(one: Host, other: Host) -> None:
    """Have nothing that one host sends arrive at another; the rest of the network is as it was.

    Parameters
    ----------
    one, other : Host
    """
    _ip("-n", one.namespace, "route", "add", "blackhole", f"{other.address}/32")


def _ip(*arguments: str) -> str:
    done = subprocess.run(["ip", *arguments], check=True, capture_output=True, text=True)
    return done.stdout


def _end_namespace(name: str) -> None:
    if not Path("/run/netns", name).exists():
        return
    for pid in _ip("netns", "pids", name).split():
        with contextlib.suppress(ProcessLookupError):
            os.kill(int(pid), signal.SIGKILL)
    _ip("netns", "del", name)


@contextlib.contextmanager
def small_disk(folder: Path, size: int) -> Iterator[Path | None]:
    """Mount a disk in memory; None where that may not be done.

    Parameters
    ----------
    folder : Path
        It is made.
    size : int
        Bytes.
    """
    folder.mkdir(exist_ok=True)
    try:
        subprocess.run(
            ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder)],
            check=True, capture_output=True,
        )  # fmt: skip
    except (OSError, subprocess.CalledProcessError):
        yield None
        return
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


class Cluster:
    """A scheduler on the first host and workers on others, which are started again if killed.

    Parameters
    ----------
    folder : Path
        Of the scheduler file and of the logs.
    hosts : sequence of Host
        Of the scheduler, and of each worker.
    """

    def __init__(self, folder: Path, hosts: Sequence[Host]) -> None:
        self.folder = folder
        self.hosts = hosts
        self.file = folder / "scheduler.json"
        self.n_workers = len(hosts) - 1
        self.scheduler: subprocess.Popen[str] | None = None
        self.nannies: list[subprocess.Popen[str]] = []

    def __enter__(self) -> "Cluster":
        self.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.end()

    def start(self) -> None:
        """Start scheduler and workers, and wait for them."""
        self.folder.mkdir(parents=True, exist_ok=True)
        self.file.unlink(missing_ok=True)
        common = ["--no-dashboard", "--scheduler-file", str(self.file)]
        first, *others = self.hosts
        program = "distributed.cli.dask_scheduler"
        self.scheduler = first.start(
            ["-m", program, "--host", first.address, "--port", "0", *common],
            self.folder / "scheduler.log",
        )
        _wait_until(lambda: self.file.exists() and self.file.read_text().rstrip().endswith("}"))
        self.nannies = [
            host.start(
                ["-m", "distributed.cli.dask_worker", "--nthreads", "1", "--host", host.address,
                 "--local-directory", str(self.folder), *common],
                self.folder / f"worker-{index}.log",
            )
            for index, host in enumerate(others)
        ]  # fmt: skip
        self.wait()

    def wait(self) -> None:
        """Wait until all workers are there; one that has just been killed is started again."""
        _wait_until(lambda: len(self.find_workers()) == self.n_workers)

    def end(self) -> None:
        """End all of it."""
        for process in [*self.nannies, self.scheduler]:
            if process is not None:
                _end(process)
        self.nannies, self.scheduler = [], None

    def restart(self) -> None:
        """Begin with new processes."""
        self.end()
        self.start()

    def find_workers(self) -> list[psutil.Process]:
        """Return the worker processes that there are, those too that have just been started."""
        found = []
        for nanny in self.nannies:
            with contextlib.suppress(psutil.NoSuchProcess):
                for process in psutil.Process(nanny.pid).children(recursive=True):
                    with contextlib.suppress(psutil.NoSuchProcess):
                        if any("spawn_main" in word for word in process.cmdline()):
                            found.append(process)
        return found

    @property
    def address(self) -> str:
        """Of the scheduler."""
        return str(json.loads(self.file.read_text())["address"])


def _end(process: "subprocess.Popen[str]") -> None:
    with contextlib.suppress(psutil.NoSuchProcess):
        for child in psutil.Process(process.pid).children(recursive=True):
            with contextlib.suppress(psutil.NoSuchProcess):
                child.kill()
    process.kill()
    process.wait()


def _wait_until(condition: object) -> None:
    assert callable(condition)
    deadline = time.monotonic() + STARTED_S
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"processes of the cluster are not up within {STARTED_S:g} s.")
        time.sleep(0.1)
