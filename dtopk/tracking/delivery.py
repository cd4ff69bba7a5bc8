"""What the outbox of a run has, on its way to MLflow."""

import contextlib
import logging
import os
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from dtopk.tracking.client import (
    Metric,
    describe_failure,
    is_refusal,
    name_uri,
    settle_mlflow,
    silence_warnings,
)
from dtopk.tracking.outbox import Entry, Outbox, read_kept
from dtopk.tracking.requests import MAX_METRICS, RunRequests
from dtopk_storage.paths import AnyPath

logger = logging.getLogger(__name__)

_ID_TAG = "dtopk.id"
"""The tag by which a run is found whose id never arrived."""


class SendError(OSError):
    """MLflow has not taken what was kept."""


class Delivery:
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
    delivery = Delivery(uri, folder, outbox)
    settle_mlflow()
    try:
        delivery.send_all(threading.Event())
    # MLflow raises what its stores do: its own errors, SQLAlchemy's, requests', OSError.
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
