"""What a run asks of MLflow, each request by itself; what fails raises."""

import hashlib
import json
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from dtopk.model import load_model
from dtopk.tracking.client import (
    Dataset,
    DatasetInput,
    LoggedModelOutput,
    LoggedModelStatus,
    Metric,
    MlflowClient,
    MlflowException,
    MlflowModel,
    Param,
    RunTag,
    resolve_tags,
)
from dtopk.tracking.pyfunc import save_pyfunc

_PARAM_CHARACTERS = 500
"""Longest parameter value that every MLflow server takes; the whole goes to an artifact."""
_KEY = "dtopk.key"
"""The tag of a logged model by which it is known again."""
MAX_METRICS = 1000
"""Most metrics that MLflow takes in one request."""


class RunRequests:
    """The requests of one run, all through one `MlflowClient`.

    The tracking URI and active run of the program that trains stay as they are.

    Parameters
    ----------
    uri : str
        Tracking URI.
    """

    def __init__(self, uri: str):
        self.uri = uri
        self.experiment_id = ""
        self.run_id = ""
        self.goes_on = False
        """Whether the run was there before."""
        self.client = MlflowClient(tracking_uri=uri)

    def go_on(self, run_id: str) -> None:
        """Go on with a run that is there."""
        self.client.update_run(run_id, status="RUNNING")
        self.experiment_id = self.client.get_run(run_id).info.experiment_id
        self.run_id = run_id
        self.goes_on = True

    def find(self, experiment: str, tag: str, value: str) -> str:
        """Find the run that has a tag of that value; empty if there is none."""
        found = self.client.get_experiment_by_name(experiment)
        if found is None:
            return ""
        runs = self.client.search_runs(
            [found.experiment_id], filter_string=f"tags.`{tag}` = '{value}'", max_results=1
        )
        return str(runs[0].info.run_id) if runs else ""

    def start(
        self, experiment: str, run_name: str, tags: Mapping[str, str], time_ms: int | None = None
    ) -> None:
        """Start a run.

        Parameters
        ----------
        experiment : str
        run_name : str
        tags : mapping of str
        time_ms : int, optional
            When it started, in milliseconds since 1970; now by default.
        """
        self.experiment_id = self._find_or_create_experiment(experiment)
        run = self.client.create_run(
            self.experiment_id, time_ms, tags=resolve_tags(dict(tags)), run_name=run_name
        )
        self.run_id = run.info.run_id

    def _find_or_create_experiment(self, name: str) -> str:
        found = self.client.get_experiment_by_name(name)
        if found is not None:
            return str(found.experiment_id)
        location = None
        if self.uri.startswith("sqlite:///"):
            # Without a location artifacts would go to the working directory.
            database = Path(self.uri.removeprefix("sqlite:///")).absolute()
            location = (database.parent / "mlartifacts").as_uri()
        return str(self.client.create_experiment(name, artifact_location=location))

    def has_params(self) -> bool:
        """Whether the run has any parameter."""
        return bool(self.client.get_run(self.run_id).data.params)

    def log_params(self, params: Mapping[str, Any]) -> None:
        """Record parameters; long ones are cut, and all are kept whole in 'params.json'."""
        texts = {
            name: value if isinstance(value, str) else json.dumps(value)
            for name, value in params.items()
        }
        if any(len(text) > _PARAM_CHARACTERS for text in texts.values()):
            self.client.log_dict(self.run_id, dict(params), "params.json")
        short = [Param(name, _shorten(text)) for name, text in texts.items()]
        self.client.log_batch(self.run_id, params=short)

    def log_dataset(self, name: str, path: str, profile: str) -> None:
        """Record what the run was trained on.

        Parameters
        ----------
        name : str
        path : str
        profile : str
            JSON of counts and provenance, which also make the digest.
        """
        dataset = Dataset(
            name=name,
            digest=hashlib.sha256(profile.encode()).hexdigest()[:8],
            source_type="local",
            source=json.dumps({"uri": path}),
            profile=profile,
        )
        self.client.log_inputs(self.run_id, datasets=[DatasetInput(dataset, [])])

    def log_metrics(self, metrics: Sequence[Metric]) -> None:
        """Record at most `MAX_METRICS` metrics; one that is there already, time and all, stays."""
        self.client.log_batch(self.run_id, metrics=metrics)

    def find_steps(self, name: str) -> set[int]:
        """Find the steps that have a value of a metric."""
        return {metric.step for metric in self.client.get_metric_history(self.run_id, name)}

    def set_tags(self, tags: Mapping[str, str]) -> None:
        """Set tags of the run."""
        run_tags = [RunTag(name, value) for name, value in tags.items()]
        self.client.log_batch(self.run_id, tags=run_tags)

    def log_file(self, path: Path) -> None:
        """Record a file as an artifact of the run."""
        self.client.log_artifact(self.run_id, str(path))

    def find_model(self, key: str) -> str:
        """Find the id of the model that was recorded with a key; empty if there is none."""
        outputs = self.client.get_run(self.run_id).outputs
        for output in outputs.model_outputs if outputs else ():
            if self.client.get_logged_model(output.model_id).tags.get(_KEY) == key:
                return str(output.model_id)
        return ""

    def log_model(self, path: Path, *, key: str = "") -> str:
        """Record a model file as an MLflow model named 'model', which `mlflow.pyfunc` loads.

        Parameters
        ----------
        path : path of the model file
        key : str
            By which `find_model` finds it.

        Returns
        -------
        str
            Its id.
        """
        model = load_model(path)
        logged = self.client.create_logged_model(
            self.experiment_id,
            name="model",
            source_run_id=self.run_id,
            tags={_KEY: key} if key else None,
            params={"loss": model.loss, **{k: str(v) for k, v in model.loss_parameters.items()}},
            model_type="linear classifier",
        )
        with tempfile.TemporaryDirectory() as folder:
            target = Path(folder) / "model"
            save_pyfunc(
                path, target, mlflow_model=MlflowModel(model_id=logged.model_id, run_id=self.run_id)
            )
            self.client.log_model_artifacts(logged.model_id, str(target))
        self.client.finalize_logged_model(logged.model_id, LoggedModelStatus.READY)
        output = LoggedModelOutput(logged.model_id, step=0)
        self.client.log_outputs(self.run_id, models=[output])
        return str(logged.model_id)

    def register_model(self, model_id: str, name: str, alias: str) -> str:
        """Register a recorded model as a version of a name, unless it is one already.

        Parameters
        ----------
        model_id : str
        name : str
        alias : str
            Points to this version from now on; empty: none does.

        Returns
        -------
        str
            Its version.
        """
        try:
            self.client.create_registered_model(name)
        except MlflowException as error:
            if error.error_code != "RESOURCE_ALREADY_EXISTS":
                raise
        # Not 'models:/ID', which MLflow looks for in the store that the program has by default.
        source = self.client.get_logged_model(model_id).artifact_location
        version = self._find_version(name, source)
        if not version:
            made = self.client.create_model_version(
                name, source, run_id=self.run_id, model_id=model_id, await_creation_for=0
            )
            version = str(made.version)
        if alias:
            self.client.set_registered_model_alias(name, alias, version)
        return version

    def _find_version(self, name: str, source: str) -> str:
        for each in self.client.search_model_versions(f"name = '{name}'"):
            if each.source == source:
                return str(each.version)
        return ""

    def end(self, status: str, time_ms: int | None = None) -> None:
        """End the run.

        Parameters
        ----------
        status : 'FINISHED', 'KILLED' (interrupted) or 'FAILED'
        time_ms : int, optional
            When it ended, in milliseconds since 1970; now by default.
        """
        self.client.set_terminated(self.run_id, status, time_ms)


def _shorten(text: str) -> str:
    return text if len(text) <= _PARAM_CHARACTERS else text[: _PARAM_CHARACTERS - 3] + "..."


def now_ms() -> int:
    """Say what time it is, in milliseconds since 1970."""
    return time.time_ns() // 1_000_000
