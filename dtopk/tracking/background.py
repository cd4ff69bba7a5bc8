"""A run that is recorded behind the back of training, which never waits for MLflow.

A thread sends what the run has to say. While MLflow is away or slow, another one keeps it in a file
of the run folder, so that neither a request that hangs nor the end of the process loses any.
"""

import json
import logging
import shlex
import threading
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from dtopk.tracking.client import describe_failure, name_uri, settle_mlflow
from dtopk.tracking.delivery import Delivery
from dtopk.tracking.outbox import Entry, Outbox, read_kept
from dtopk.tracking.requests import now_ms
from dtopk_storage.paths import AnyPath

logger = logging.getLogger(__name__)

_SEND_INTERVAL_S = 5.0
"""What has come in is sent once in so many seconds."""
_RETRY_INTERVAL_S = 60.0
"""Longest pause before an MLflow that has failed is tried again; the first is the one above."""
_KEEP_AFTER_S = 10.0
"""What has waited for so long is written to the file."""
_SHARE_OF_KEEPING = 0.05
"""Most of its time that the keeper spends writing the file, which in an object store is written
anew each time."""


class BackgroundRun:
    """One MLflow run, recorded by a thread; nothing that it is told of makes the caller wait.

    Parameters
    ----------
    uri : str
        Tracking URI.
    folder : AnyPath
        The run folder.
    kept : AnyPath
        File in it for what MLflow has not taken; what it has from an earlier part of the run is
        sent first.
    key : str
        What tells the run from all others.
    experiment, run_name : str
        The experiment is created where there is none.
    tags : mapping of str
        Set when the run starts, beside MLflow's own (user, source, commit).
    params : mapping
        Recorded when the run starts; values that JSON takes.
    dataset : mapping
        What it is trained on: 'name', 'path', and a mapping 'profile'.
    run_id : str
        Id of a run to go on with; where it is gone, another is started.
    wait_s : float
        Seconds that `wait_for_start` and `end` wait for MLflow, together and at most.
    on_start : callable, optional
        Told by the thread, once, where the run is recorded.
    """

    def __init__(
        self,
        *,
        uri: str,
        folder: AnyPath,
        kept: AnyPath,
        key: str,
        experiment: str,
        run_name: str,
        tags: Mapping[str, str],
        params: Mapping[str, Any],
        dataset: Mapping[str, Any],
        run_id: str = "",
        wait_s: float = 30.0,
        on_start: Callable[[dict[str, str]], None] | None = None,
    ):
        self.uri = uri
        self._folder = folder
        self._wait_s = wait_s
        self._budget_s = wait_s
        self._on_start = on_start
        start = {
            "uri": name_uri(uri),
            "run_id": run_id,
            "key": key,
            "experiment": experiment,
            "run_name": run_name,
            "tags": dict(tags),
            "params": dict(params),
            "dataset": {
                **dataset,
                "profile": json.dumps(dataset["profile"], sort_keys=True, default=str),
            },
            "time_ms": now_ms(),
        }
        start, entries = _take_over(kept, start)
        self._outbox = Outbox(kept, start, entries)
        self._delivery = Delivery(uri, folder, self._outbox, self._note_start)
        self._is_failing = False
        self._cannot_keep = False
        self._tried = threading.Event()
        self._ending = threading.Event()
        self._left = threading.Event()
        settle_mlflow()
        self._sender = threading.Thread(target=self._send, name="dtopk-mlflow", daemon=True)
        self._keeper = threading.Thread(target=self._keep, name="dtopk-mlflow-kept", daemon=True)
        self._sender.start()
        self._keeper.start()

    def describe(self) -> dict[str, str]:
        """Say where the run is recorded; empty as long as it is not started."""
        return self._delivery.describe()

    def wait_for_start(self) -> None:
        """Wait until the run is started, or MLflow has failed."""
        began = time.monotonic()
        self._tried.wait(self._budget_s)
        self._budget_s = max(0.0, self._budget_s - (time.monotonic() - began))

    def log_epoch(self, metrics: Mapping[str, float], *, step: int) -> None:
        """Record the values of an epoch, unless it has some already.

        Parameters
        ----------
        metrics : mapping of str to float
            By the first of them it is known whether the epoch has been recorded.
        step : int
        """
        self._put_metrics(metrics, step, by_epoch=True)

    def log_metrics(self, metrics: Mapping[str, float], *, step: int) -> None:
        """Record values of one step."""
        self._put_metrics(metrics, step, by_epoch=False)

    def _put_metrics(self, metrics: Mapping[str, float], step: int, *, by_epoch: bool) -> None:
        values = {name: float(value) for name, value in metrics.items()}
        if values:
            self._outbox.put(
                {
                    "kind": "metrics",
                    "step": step,
                    "time_ms": now_ms(),
                    "by_epoch": by_epoch,
                    "values": values,
                }
            )

    def set_tags(self, tags: Mapping[str, str]) -> None:
        """Set tags of the run."""
        self._outbox.put({"kind": "tags", "tags": dict(tags)})

    def log_files(self, names: Sequence[str]) -> None:
        """Record files of the run folder as artifacts of the run."""
        for name in names:
            self._outbox.put({"kind": "file", "name": name})

    def log_model(self, name: str, *, register_as: str = "", alias: str = "") -> None:
        """Record the model file of that name as an MLflow model, which `mlflow.pyfunc` loads.

        Parameters
        ----------
        name : str
            Of the file in the run folder.
        register_as : str
            Name in MLflow's registry that the model becomes a version of; empty: none.
        alias : str
            Points to this version from now on; empty: none does.
        """
        self._outbox.put(
            {
                "kind": "model",
                "name": name,
                "key": uuid.uuid4().hex,
                "register_as": register_as,
                "alias": alias,
            }
        )

    def end(self, *, status: str, tags: Mapping[str, str], is_kept: bool = True) -> None:
        """Wait until all is sent, no longer than was said, and end the run.

        Parameters
        ----------
        status : 'FINISHED', 'KILLED' (interrupted) or 'FAILED'
        tags : mapping of str
            Set at the end.
        is_kept : bool
            Whether what could not be sent is of use later.
        """
        self.set_tags(tags)
        self._outbox.put({"kind": "end", "status": status, "time_ms": now_ms()})
        self._ending.set()
        try:
            self._sender.join(self._budget_s)
        finally:
            # Whatever a request comes to that is still under way: what is in the file stays there.
            self._left.set()
            if is_kept and not self._outbox.is_empty and self._try_to_keep():
                logger.warning(
                    "MLflow at %r has not taken all of the run, for which its end waits %g s at "
                    "most; the rest is kept in %r. To send it: dtopk track %s",
                    name_uri(self.uri),
                    self._wait_s,
                    str(self._outbox.path),
                    shlex.quote(str(self._folder)),
                )

    def _send(self) -> None:
        pause = 0.0
        while True:
            is_last = self._ending.is_set()
            is_done = self._try_to_send()
            self._tried.set()
            if is_last or self._left.is_set():
                return
            pause = _SEND_INTERVAL_S if is_done else min(2 * pause, _RETRY_INTERVAL_S)
            pause = max(pause, _SEND_INTERVAL_S)
            self._ending.wait(pause)

    def _try_to_send(self) -> bool:
        try:
            self._delivery.send_all(self._left)
        # MLflow raises what its stores do: its own errors, SQLAlchemy's, requests', OSError.
        # None of them is worth the training, so all are caught, and told.
        except Exception as error:
            if not self._left.is_set():
                self._note_failure(error)
            return False
        if self._is_failing:
            self._is_failing = False
            logger.info("MLflow at %r has taken what was kept.", name_uri(self.uri))
        return True

    def _note_failure(self, error: Exception) -> None:
        if not self._is_failing:
            self._is_failing = True
            logger.warning(
                "MLflow at %r could not %s: %s. Training goes on; what it has not taken is kept in "
                "the run folder, and sent when it answers.",
                name_uri(self.uri),
                self._delivery.doing,
                describe_failure(error),
            )

    def _note_start(self, described: dict[str, str]) -> None:
        if self._on_start is not None and not self._left.is_set():
            try:
                self._on_start(described)
            except OSError as error:
                logger.warning("The id of the MLflow run is not written down: %s.", error)
        self._tried.set()

    def _keep(self) -> None:
        pause = _SEND_INTERVAL_S
        while not self._left.wait(pause):
            began = time.monotonic()
            if self._outbox.waits_since(_KEEP_AFTER_S):
                self._try_to_keep()
            pause = max(_SEND_INTERVAL_S, (time.monotonic() - began) / _SHARE_OF_KEEPING)

    def _try_to_keep(self) -> bool:
        try:
            self._outbox.keep()
        except OSError as error:
            if not self._cannot_keep:
                logger.warning("What MLflow has not taken cannot be kept: %s.", error)
            self._cannot_keep = True
            return False
        return True


def _take_over(kept: AnyPath, start: Entry) -> tuple[Entry, list[Entry]]:
    """Go on from what an earlier part of the run has left in the file."""
    try:
        found = read_kept(kept)
    except (OSError, ValueError) as error:
        logger.warning("What was kept for MLflow is not sent: %s", error)
        return start, []
    # What is for another server is of no use to this one, which gets the whole history anew.
    if found is None or found[0]["uri"] != start["uri"] or found[0]["key"] != start["key"]:
        return start, []
    before, entries = found
    start = start | {"run_id": start["run_id"] or before["run_id"], "time_ms": before["time_ms"]}
    return start, [entry for entry in entries if entry["kind"] != "end"]
