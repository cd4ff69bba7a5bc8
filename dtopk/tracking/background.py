"""A run that is recorded behind the back of training, which never waits for MLflow.

A thread sends what the run has to say. While MLflow is away or slow, another one keeps it in a file
of the run folder, so that neither a request that hangs nor the end of the process loses any.
"""

import contextlib
import json
import logging
import os
import shlex
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from dtopk.tracking.client import (
    Metric,
    describe_failure,
    is_refusal,
    name_uri,
    settle_mlflow,
    silence_warnings,
)
from dtopk.tracking.outbox import Entry, Outbox, read_kept
from dtopk.tracking.requests import MAX_METRICS, RunRequests, now_ms
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
_ID_TAG = "dtopk.id"
"""The tag by which a run is found whose id never arrived."""


class SendError(OSError):
    """MLflow has not taken what was kept."""


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
        self._delivery = _Delivery(uri, folder, self._outbox, self._note_start)
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


def send_kept(kept: AnyPath, folder: AnyPath, *, uri: str) -> tuple[dict[str, str], int]:
    """Send what is kept of a run, and delete the file.

    Parameters
    ----------
    kept : AnyPath
        The file, which is there.
    folder : AnyPath
        The run folder.
    uri : str
        Tracking URI; empty: that of the run, with the password that MLFLOW_TRACKING_URI has for it.

    Returns
    -------
    described : dict
        Where the run is recorded.
    n_entries : int
        How many things were kept.

    Raises
    ------
    SendError
        If MLflow fails; what it has taken is not sent again.
    ValueError
        If the file is damaged.
    """
    found = read_kept(kept)
    assert found is not None
    uri = uri or _restore_uri(found[0]["uri"])
    outbox = Outbox(kept, *found)
    delivery = _Delivery(uri, folder, outbox)
    settle_mlflow()
    try:
        delivery.send_all(threading.Event())
    # As above.
    except Exception as error:
        outbox.keep()
        raise SendError(
            f"MLflow at {name_uri(uri)!r} could not {delivery.doing}: {describe_failure(error)}. "
            f"The rest is kept in {str(kept)!r}"
        ) from error
    return delivery.describe(), len(found[1])


def _restore_uri(named: str) -> str:
    from_environment = os.environ.get("MLFLOW_TRACKING_URI", "")
    return from_environment if name_uri(from_environment) == named else named


class _Delivery:
    """Brings entries to MLflow, one after the other; sending some of them twice changes nothing.

    Parameters
    ----------
    uri : str
    folder : AnyPath
        Holds the files that entries name.
    outbox : Outbox
    on_start : callable, optional
        Told where the run is recorded, once that is known.
    """

    def __init__(
        self,
        uri: str,
        folder: AnyPath,
        outbox: Outbox,
        on_start: Callable[[dict[str, str]], None] | None = None,
    ):
        self.uri = uri
        self.doing = "start a run"
        """What is being done, for a message."""
        self._folder = folder
        self._outbox = outbox
        self._on_start = on_start
        self._opened: RunRequests | None = None
        self._steps: set[int] | None = None
        self._refused: set[str] = set()

    @property
    def _requests(self) -> RunRequests:
        assert self._opened is not None
        return self._opened

    def describe(self) -> dict[str, str]:
        """Say where the run is recorded; empty as long as it is not started."""
        if self._opened is None or not self._opened.run_id:
            return {}
        return {
            "uri": name_uri(self.uri),
            "experiment_id": self._opened.experiment_id,
            "run_id": self._opened.run_id,
        }

    def send_all(self, left: threading.Event) -> None:
        """Start the run if it is not, and send all that waits; what MLflow refuses is left out.

        Parameters
        ----------
        left : threading.Event
            Set when the rest is no longer to be sent.
        """
        silence_warnings()
        if not self._outbox.is_open:
            self._start(self._outbox.start)
        while not left.is_set():
            entries = self._outbox.peek(MAX_METRICS)
            if not entries:
                self._delete_file()
                return
            self._outbox.drop(self._send_or_leave_out(entries))

    def _delete_file(self) -> None:
        try:
            self._outbox.delete_file()
        except OSError as error:
            # It does no harm: what it has is not taken twice.
            logger.warning(
                "%r is not deleted, although all of it is sent: %s.", str(self._outbox.path), error
            )

    def _start(self, start: Entry) -> None:
        self.doing = "start a run"
        if self._opened is None:
            self._opened = RunRequests(self.uri)
        if not self._opened.run_id:
            self._find_or_start(start)
        if not self._requests.has_params():
            self.doing = "log the data set"
            self._requests.log_dataset(**start["dataset"])
            # These come last: where they are, all is.
            self.doing = "log parameters"
            self._requests.log_params(start["params"])
        self._outbox.note_opened(self._requests.run_id)
        if self._on_start is not None:
            self._on_start(self.describe())

    def _find_or_start(self, start: Entry) -> None:
        requests = self._requests
        if start["run_id"]:
            self.doing = f"go on with run {start['run_id']}"
            try:
                requests.go_on(start["run_id"])
                return
            except Exception as error:
                if not is_refusal(error):
                    raise
                self._note_refusal(error)
        self.doing = "start a run"
        found = requests.find(start["experiment"], _ID_TAG, start["key"])
        if found:
            requests.go_on(found)
            return
        tags = start["tags"] | {_ID_TAG: start["key"]}
        requests.start(start["experiment"], start["run_name"], tags, start["time_ms"])

    def _note_refusal(self, error: Exception) -> None:
        if self.doing not in self._refused:
            logger.warning(
                "MLflow at %r could not %s: %s. That is left out.",
                name_uri(self.uri),
                self.doing,
                describe_failure(error),
            )
        self._refused.add(self.doing)

    def _send_or_leave_out(self, entries: Sequence[Entry]) -> int:
        """Send the first entries and return how many; one that MLflow refuses counts as sent."""
        # Metrics that are refused together may be welcome one by one.
        groups = (entries, entries[:1]) if entries[0]["kind"] == "metrics" else (entries[:1],)
        for group in groups:
            try:
                return self._send_first(group)
            except Exception as error:
                if not is_refusal(error):
                    raise
                refusal = error
        self._note_refusal(refusal)
        return 1

    def _send_first(self, entries: Sequence[Entry]) -> int:
        """Send the first entry, or as many metrics as go together, and return how many it was."""
        first = entries[0]
        if first["kind"] == "metrics":
            return self._send_metrics(entries)
        if first["kind"] == "tags":
            self.doing = "set tags"
            self._requests.set_tags(first["tags"])
        elif first["kind"] == "file":
            self.doing = f"log {first['name']}"
            with _on_disk(self._folder / first["name"]) as path:
                self._requests.log_file(path)
        elif first["kind"] == "model":
            self._send_model(first)
        elif first["kind"] == "end":
            self.doing = "end the run"
            self._requests.end(first["status"], first["time_ms"])
        else:
            raise AssertionError(f"unknown entry {first['kind']!r}")
        return 1

    def _send_metrics(self, entries: Sequence[Entry]) -> int:
        self.doing = "log metrics"
        batch: list[Metric] = []
        steps: set[int] = set()
        n = 0
        for entry in entries:
            values = entry.get("values", {})
            # An epoch goes as a whole: where its first metric has come, all have.
            if entry["kind"] != "metrics" or (batch and len(batch) + len(values) > MAX_METRICS):
                break
            n += 1
            step = entry["step"]
            if entry["by_epoch"]:
                if step in self._find_steps(next(iter(values))) or step in steps:
                    continue
                steps.add(step)
            batch += [Metric(name, v, entry["time_ms"], step) for name, v in values.items()]
        if batch:
            self._requests.log_metrics(batch)
        if self._steps is not None:
            self._steps |= steps
        return n

    def _find_steps(self, name: str) -> set[int]:
        """Find the epochs that are recorded, in this part of the run or before."""
        if self._steps is None:
            self._steps = self._requests.find_steps(name) if self._requests.goes_on else set()
        return self._steps

    def _send_model(self, entry: Entry) -> None:
        self.doing = "log the model"
        model_id = self._requests.find_model(entry["key"])
        if not model_id:
            with _on_disk(self._folder / entry["name"]) as path:
                model_id = self._requests.log_model(path, key=entry["key"])
        if entry["register_as"]:
            self.doing = f"register the model as {entry['register_as']!r}"
            self._requests.register_model(model_id, entry["register_as"], entry["alias"])


@contextlib.contextmanager
def _on_disk(path: AnyPath) -> Iterator[Path]:
    """Give a file as one on a disk; one of an object store is copied to a temporary folder."""
    if isinstance(path, Path):
        yield path
        return
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / path.name
        copy.write_bytes(path.read_bytes())
        yield copy
