"""Runs that were submitted: in the background here, or to a cluster of this machine."""

import contextlib
import json
import socket
import time

import numpy as np
import psutil
import pytest

from dtopk.launch.submit import SubmissionFolder
from dtopk.model import load_model
from dtopk.testing import make_features
from dtopk_storage import create_store, open_dual
from dtopk_storage.paths import as_path

ENDS_S = 60.0
"""Seconds in which a run in the background must have ended, on a machine with other work."""
N_ROWS = 4000
EPOCHS = 16

JOB = f"""
version = 1
[data]
store = "store.zarr"
evaluate = []
[model]
C = 10.0
[solver]
tol = 1e-15
dtype = "float64"
max_epochs = {EPOCHS}
[cluster]
checkpoint_s = 0
partitions = 4
threads_per_partition = 1
min_workers = 2
wait_s = 60
round_timeout_s = 10
[tracking]
mlflow = false
[submit]
nodes = 2
cores = 1
memory = "1500MB"
driver_memory = "500MB"
""".lstrip()
"""What the batch system alone takes is to be added; the last section is [submit]."""


def write_store(path):
    """Write the store of the job; there is a split to choose on, for a sweep."""
    with create_store(path, n_features=24, class_names=list("abcdefgh"), chunk_rows=500) as writer:
        for split, n_rows, seed in (("train", N_ROWS, 0), ("val", 200, 1)):
            X, y = make_features(n_rows, 24, 8, seed=seed)
            writer.append(X.astype(np.float32), y, split=split)


def free_ports(first, count):
    """Return the first of so many ports in a row, all of them free."""
    for base in range(first, first + 2000, 10):
        try:
            for port in range(base, base + count):
                with socket.socket() as probe:
                    probe.bind(("127.0.0.1", port))
        except OSError:
            continue
        return base
    raise AssertionError("no ports are free")


def wait_until(condition, seconds=ENDS_S):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not come about in time"
        time.sleep(0.05)


def has_ended(call_json, run_dir):
    return lambda: call_json("status", run_dir)["phase"] == "ended"


def driver_of(run_dir):
    """Return the process that trains, of a run in the background here."""
    record = SubmissionFolder(run=run_dir).read_record()
    found = []

    def look():
        for child in psutil.Process(int(record.job_id)).children():
            with contextlib.suppress(psutil.NoSuchProcess):
                if "dtopk.cli" in child.cmdline():
                    found.append(child)
        return bool(found)

    wait_until(look)
    return found[0]


def end_processes(run_dir):
    """End a run in the background here."""
    record = SubmissionFolder(run=run_dir).read_record()
    with contextlib.suppress(psutil.NoSuchProcess):
        script = psutil.Process(int(record.job_id))
        if "script.sh" in " ".join(script.cmdline()):
            for process in (script, *script.children(recursive=True)):
                process.kill()


class SubmittedRun:
    """A run that was submitted.

    Parameters
    ----------
    path : path or address
        The run folder.
    here : Path
        The folder of the submission's own, where that is not in the run folder; else that.
    call : callable
        Calls a command, and returns its answer.
    """

    ends_s = 240.0
    """Seconds in which a run of these must have ended, on a machine with other work."""
    poll_s = 0.3

    def __init__(self, path, here, call):
        self.path = as_path(path, name="run folder")
        self.call = call
        self.folder = SubmissionFolder(run=here)
        self.job = self.folder.read_record().job_id

    @property
    def name(self):
        """By which commands find it."""
        return self.folder.run

    def status(self):
        return json.loads(self.call("status", self.name, "--json"))

    def fetch_logs(self):
        """Have the logs where they are looked for."""

    def wait(self, what, condition, seconds=None):
        deadline = time.monotonic() + (seconds or self.ends_s)
        while not condition():
            if time.monotonic() > deadline:
                self.fetch_logs()
                logs = "\n".join(
                    f"{path}:\n{path.read_text()[-3000:]}"
                    for path in self.folder.path.glob("*.log")
                )
                pytest.fail(f"{what} did not come about: {self.status()}\n{logs}")
            time.sleep(self.poll_s)

    @property
    def epoch(self):
        """Epochs that are committed."""
        state = self.path / "state" / "state.json"
        if not state.is_file():
            return 0
        return json.loads(state.read_text(encoding="utf-8"))["progress"]["epoch"]

    def assert_same(self, here, epochs=EPOCHS):
        """Hold weights and duals to those of the run in this process, bit by bit."""
        models = [load_model(each) for each in (here, self.path)]
        np.testing.assert_array_equal(models[1].W, models[0].W)
        duals = [open_dual(each / "dual").read(0, N_ROWS) for each in (here, self.path)]
        np.testing.assert_array_equal(duals[1], duals[0])
        result = json.loads((self.path / "result.json").read_text(encoding="utf-8"))
        assert (result["epochs"], result["stop_reason"]) == (epochs, "max_epochs")

    @property
    def log(self):
        self.fetch_logs()
        return (self.folder.path / "run.log").read_text()
