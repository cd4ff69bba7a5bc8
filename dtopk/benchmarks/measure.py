"""One run of one solver: what a child process does, and what the suite makes of it.

The child is ``python -m dtopk.benchmarks.measure PEER TASK FOLDER DESCRIPTOR`` and writes a line of
JSON to the descriptor when the rows are loaded and all is imported and compiled, when the solver is
done, and when its weights are judged. Time and memory are of what lies between the first two.
"""

import contextlib
import ctypes
import gc
import json
import os
import selectors
import signal
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np

from dtopk.benchmarks.memory import peak_bytes, reset_peaks
from dtopk.benchmarks.peers import Task, find_peer
from dtopk.benchmarks.problems import OBJECTIVES, ProblemData, Shape, evaluate_primal
from dtopk.evaluation import AccuracyCounts
from dtopk.launch.settings import THREAD_VARIABLES

SETUP_LIMIT_S = 900.0
"""Seconds that loading, and judging, may take."""
_KS = (1, 5)
_PR_SET_PDEATHSIG = 1

Status = Literal["done", "late", "failed"]


@dataclass(frozen=True, kw_only=True)
class Run:
    """What came of one run."""

    effort: float | None
    """Of the task."""
    status: Status
    """'done'; 'late': not within the limit of time; or 'failed'."""
    message: str = ""
    """Why it failed."""
    seconds: float | None = None
    """Of the training alone."""
    peak_bytes: int | None = None
    """Peak memory of the process and those it started, less what they held before training."""
    primal: float | None = None
    """P(W) at the weights returned."""
    accuracy: dict[str, float] = field(default_factory=dict)
    """'top_1' and 'top_5' of the rows held out, 0 to 1."""
    facts: dict[str, float] = field(default_factory=dict)
    """What else the solver said."""


def run_in_process(peer: str, task: Task, data_folder: Path) -> Run:
    """Run a solver in a process of its own, and end it at its limit of time.

    Parameters
    ----------
    peer : str
        As :func:`find_peer` takes it.
    task : Task
    data_folder : Path
        With the rows of the task's shape.

    Returns
    -------
    Run
    """
    reader, writer = os.pipe()
    arguments = [peer, json.dumps(asdict(task)), str(data_folder), str(writer)]
    with tempfile.TemporaryFile() as errors, open(reader, "rb", buffering=0) as pipe:
        try:
            child = subprocess.Popen(
                [sys.executable, "-m", "dtopk.benchmarks.measure", *arguments],
                stdin=subprocess.DEVNULL,
                stdout=errors,
                stderr=errors,
                env=os.environ | dict.fromkeys(THREAD_VARIABLES, str(task.threads)),
                pass_fds=[writer],
                start_new_session=True,
            )
        finally:
            os.close(writer)
        try:
            found = _follow(pipe.fileno(), task.limit_s)
        finally:
            # What the solver has started too: the session is its own.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)
            exit_status = child.wait()
        if found.get("event") == "late":
            return Run(effort=task.effort, status="late")
        if found.get("event") != "judged":
            errors.seek(0)
            message = found.get("message") or _last_words(errors.read(), exit_status)
            return Run(effort=task.effort, status="failed", message=message)
    del found["event"]
    return Run(effort=task.effort, status="done", **found)


def _follow(descriptor: int, limit_s: float) -> dict[str, Any]:
    """Return what the last event said; 'late' where the solver was not done in time."""
    limits = {"": SETUP_LIMIT_S, "ready": limit_s, "fitted": SETUP_LIMIT_S}
    last: dict[str, Any] = {"event": ""}
    unread = b""
    with selectors.DefaultSelector() as selector:
        selector.register(descriptor, selectors.EVENT_READ)
        deadline = time.monotonic() + limits[""]
        while last["event"] in limits:
            if not selector.select(max(deadline - time.monotonic(), 0.0)):
                what = "load, import and compile" if not last["event"] else "be judged"
                message = f"did not {what} within {SETUP_LIMIT_S:g} s"
                return {"event": "late" if last["event"] == "ready" else "gone", "message": message}
            read = os.read(descriptor, 1 << 16)
            if not read:
                return {"event": "gone"}
            *lines, unread = (unread + read).split(b"\n")
            for line in lines:
                last = json.loads(line)
                deadline = time.monotonic() + limits.get(last["event"], 0.0)
    return last


def _last_words(output: bytes, exit_status: int) -> str:
    lines = output.decode(errors="replace").strip().splitlines()
    return f"exit status {exit_status}: {lines[-1] if lines else 'no message'}"


def main(arguments: Sequence[str]) -> None:
    """Do what :func:`run_in_process` asks of its child."""
    peer, task_text, folder, descriptor = arguments
    if sys.platform == "linux":
        # A solver in compiled code would work on for an hour after the suite was killed.
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    fields = json.loads(task_text)
    task = Task(**fields | {"shape": Shape(**fields["shape"])})
    with open(int(descriptor), "w", encoding="utf-8") as events:

        def tell(**what: Any) -> None:
            events.write(json.dumps(what) + "\n")
            events.flush()

        # That it stops where it is told to is no news.
        warnings.simplefilter("ignore")
        try:
            _run(peer, task, ProblemData(Path(folder)), tell)
        except Exception as error:
            text = " ".join(f"{type(error).__name__}: {error}".split())
            tell(event="failed", message=text[:500])


def _run(name: str, task: Task, data: ProblemData, tell: Callable[..., None]) -> None:
    with contextlib.ExitStack() as stack:
        train = find_peer(name)().prepare(task, data, stack)
        gc.collect()
        reset_peaks()
        before = peak_bytes()
        tell(event="ready")
        began = time.perf_counter()
        fitted = train()
        seconds = time.perf_counter() - began
        peak = max(peak_bytes() - before, 0)
        tell(event="fitted")
    W = fitted.W
    if W.shape != (task.shape.n_features, task.shape.n_classes):
        raise ValueError(
            f"weights must be of shape {(task.shape.n_features, task.shape.n_classes)}, got "
            f"{W.shape}."
        )
    primal = evaluate_primal(
        OBJECTIVES[task.objective].make_loss(), data.training_batches(), task.C, W
    )
    counts = AccuracyCounts(n_classes=task.shape.n_classes)
    for X, y in data.held_out_batches():
        counts.update(y, X.astype(np.float64) @ W)
    ks = [k for k in _KS if k <= task.shape.n_classes]
    tell(
        event="judged",
        seconds=seconds,
        peak_bytes=peak,
        primal=primal if np.isfinite(primal) else None,
        accuracy={f"top_{k}": counts.topk_accuracy(k) for k in ks},
        facts=fitted.facts,
    )


if __name__ == "__main__":
    main(sys.argv[1:])
