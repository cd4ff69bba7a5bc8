"""A run that is recorded as it goes, by whoever can wait for MLflow."""

import json
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from dtopk.tracking.client import (
    Metric,
    MlflowClient,
    describe_failure,
    name_uri,
    quiet_mlflow,
    settle_mlflow,
)
from dtopk.tracking.requests import MAX_METRICS, RunRequests, now_ms

logger = logging.getLogger(__name__)

_FLUSH_INTERVAL_S = 5.0
"""Metrics are sent together, once in so many seconds."""


class MlflowRun:
    """One MLflow run, from start to end.

    A call that MLflow fails in is logged as a warning, and training goes on. Metrics wait in
    memory until they could be sent.

    Parameters
    ----------
    uri : str
        Tracking URI.
    experiment : str
        Name of the experiment, which is created where there is none.
    run_name : str
    tags : mapping of str
        Set when the run starts, beside MLflow's own (user, source, commit).
    run_id : str
        Id of a run to go on with; where it is gone, another is started.
    """

    def __init__(
        self,
        *,
        uri: str,
        experiment: str,
        run_name: str,
        tags: Mapping[str, str],
        run_id: str = "",
    ):
        self.uri = uri
        self._waiting: list[Metric] = []
        self._next_flush_s = time.monotonic() + _FLUSH_INTERVAL_S
        self._opened: RunRequests | None = None
        settle_mlflow()
        if run_id:
            self._attempt(f"go on with run {run_id}", lambda: self._go_on(run_id))
        if not self.is_recording:
            self._attempt("start a run", lambda: self._start(experiment, run_name, tags))

    def _go_on(self, run_id: str) -> None:
        requests = RunRequests(self.uri)
        requests.go_on(run_id)
        self._opened = requests

    def _start(self, experiment: str, run_name: str, tags: Mapping[str, str]) -> None:
        requests = RunRequests(self.uri)
        requests.start(experiment, run_name, tags)
        self._opened = requests

    @property
    def _requests(self) -> RunRequests:
        assert self._opened is not None
        return self._opened

    @property
    def _client(self) -> MlflowClient:
        return self._requests.client

    @property
    def is_recording(self) -> bool:
        """Whether the run could be started."""
        return self._opened is not None

    @property
    def goes_on(self) -> bool:
        """Whether the run was there before."""
        return self._opened is not None and self._opened.goes_on

    @property
    def experiment_id(self) -> str:
        """Id of the experiment; empty if the run could not be started."""
        return "" if self._opened is None else self._opened.experiment_id

    @property
    def run_id(self) -> str:
        """Id of the run; empty if it could not be started."""
        return "" if self._opened is None else self._opened.run_id

    def describe(self) -> dict[str, str]:
        """Say where the run is recorded; empty if it could not be started."""
        if not self.is_recording:
            return {}
        return {
            "uri": name_uri(self.uri),
            "experiment_id": self.experiment_id,
            "run_id": self.run_id,
        }

    def log_params(self, params: Mapping[str, Any]) -> None:
        """Record parameters; long ones are cut, and all are kept whole in 'params.json'."""
        self._try_to("log parameters", lambda: self._requests.log_params(params))

    def log_dataset(self, *, name: str, path: str, profile: Mapping[str, Any]) -> None:
        """Record what the run was trained on.

        Parameters
        ----------
        name : str
        path : str
        profile : mapping
            Counts and provenance, which also make the digest.
        """
        text = json.dumps(profile, sort_keys=True, default=str)
        self._try_to("log the data set", lambda: self._requests.log_dataset(name, path, text))

    def log_metrics(self, metrics: Mapping[str, float], *, step: int) -> None:
        """Record values of one step; they are sent together, every few seconds."""
        now = now_ms()
        self._waiting += [Metric(name, float(value), now, step) for name, value in metrics.items()]
        if time.monotonic() >= self._next_flush_s:
            self._try_to("log metrics", self._flush)
            self._next_flush_s = time.monotonic() + _FLUSH_INTERVAL_S

    def last_step(self, name: str) -> int:
        """Find the last step that has a value of a metric; 0 if there is none, or none is found."""
        steps = {0}
        self._try_to(f"read {name}", lambda: steps.update(self._requests.find_steps(name)))
        return max(steps)

    def set_tags(self, tags: Mapping[str, str]) -> None:
        """Set tags of the run."""
        self._try_to("set tags", lambda: self._requests.set_tags(tags))

    def _flush(self) -> None:
        while self._waiting:
            batch = self._waiting[:MAX_METRICS]
            self._requests.log_metrics(batch)
            del self._waiting[: len(batch)]

    def log_files(self, paths: Sequence[Path]) -> None:
        """Record files as artifacts of the run."""
        for path in paths:
            self._try_to(f"log {path.name}", partial(self._requests.log_file, path))

    def log_model(self, path: Path, *, register_as: str = "", alias: str = "") -> None:
        """Record a model file as an MLflow model named 'model', which `mlflow.pyfunc` loads.

        Parameters
        ----------
        path : path of the model file
        register_as : str
            Name in the registry that it becomes a version of; empty: none.
        alias : str
            Points to this version from now on; empty: none does.
        """
        self._try_to("log the model", lambda: self._log_model(path, register_as, alias))

    def _log_model(self, path: Path, register_as: str, alias: str) -> None:
        model_id = self._requests.log_model(path)
        if register_as:
            self._requests.register_model(model_id, register_as, alias)

    def end(self, *, status: str, tags: Mapping[str, str]) -> None:
        """Send what waits and end the run.

        Parameters
        ----------
        status : 'FINISHED', 'KILLED' (interrupted) or 'FAILED'
        tags : mapping of str
            Set at the end.
        """
        self._try_to("log metrics", self._flush)
        self.set_tags(tags)
        self._try_to("end the run", lambda: self._requests.end(status))

    def _try_to(self, what: str, call: Callable[[], object]) -> None:
        if self.is_recording:
            self._attempt(what, call)

    def _attempt(self, what: str, call: Callable[[], object]) -> None:
        try:
            with quiet_mlflow():
                call()
        # MLflow raises what its stores do: its own errors, SQLAlchemy's, requests', OSError.
        # None of them is worth the training, so all are caught, and told.
        except Exception as error:
            logger.warning(
                "MLflow at %r could not %s: %s. The run folder gets everything all the same.",
                name_uri(self.uri),
                what,
                describe_failure(error),
            )
