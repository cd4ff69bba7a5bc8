"""Record training runs with MLflow, and never let MLflow's failures cost a run.

All goes through one `MlflowClient`, so that the tracking URI and active run of the program that
trains stay as they are.
"""

import contextlib
import hashlib
import json
import logging
import os
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from dtopk.model import Model, load_model

with warnings.catch_warnings():
    # MLflow warns about type hints of its own as it is imported.
    warnings.simplefilter("ignore")
    import mlflow.pyfunc
    from mlflow.entities import (
        Dataset,
        DatasetInput,
        LoggedModelOutput,
        LoggedModelStatus,
        Metric,
        Param,
        RunTag,
    )
    from mlflow.models import Model as MlflowModel
    from mlflow.models import ModelSignature
    from mlflow.tracking import MlflowClient
    from mlflow.tracking.context.registry import resolve_tags
    from mlflow.types import ColSpec, ParamSchema, ParamSpec, Schema, TensorSpec

if TYPE_CHECKING:
    import pandas as pd  # type: ignore[import-untyped]
    from numpy.typing import NDArray

logger = logging.getLogger(__name__)

_PARAM_CHARACTERS = 500
"""Longest parameter value that every MLflow server takes; the whole goes to an artifact."""
_REASON_CHARACTERS = 200
"""Longest reason of a failure in a message."""
_BATCH_METRICS = 1000
"""Most metrics that MLflow takes in one request."""
_FLUSH_INTERVAL_S = 5.0
"""Metrics are sent together, once in so many seconds."""


def default_tracking_uri(folder: str | os.PathLike[str]) -> str:
    """Name the tracking store: the environment's MLFLOW_TRACKING_URI, or SQLite in the folder.

    Parameters
    ----------
    folder : path of the folder that holds the run folders

    Returns
    -------
    str
        Such as 'sqlite:////home/me/runs/mlflow.db'.
    """
    from_environment = os.environ.get("MLFLOW_TRACKING_URI", "")
    return from_environment or f"sqlite:///{Path(folder).absolute() / 'mlflow.db'}"


def check_tracking_uri(uri: str) -> None:
    """Refuse an SQLite file in a folder that is not there, which MLflow would make.

    Raises
    ------
    ValueError
    """
    folder = Path(uri.removeprefix("sqlite:///")).absolute().parent
    if uri.startswith("sqlite:///") and not folder.is_dir():
        raise ValueError(
            f"tracking URI must name a file in a folder that exists, got {uri!r}: there is no "
            f"{str(folder)!r}."
        )


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
        self.experiment_id = ""
        self.run_id = ""
        self.goes_on = False
        """Whether the run was there before."""
        self._waiting: list[Metric] = []
        self._next_flush_s = time.monotonic() + _FLUSH_INTERVAL_S
        if run_id:
            self._attempt(f"go on with run {run_id}", lambda: self._go_on(run_id))
        if not self.is_recording:
            self._attempt("start a run", lambda: self._start(experiment, run_name, tags))

    def _go_on(self, run_id: str) -> None:
        self._client = MlflowClient(tracking_uri=self.uri)
        self._client.update_run(run_id, status="RUNNING")
        self.experiment_id = self._client.get_run(run_id).info.experiment_id
        self.run_id = run_id
        self.goes_on = True

    def _start(self, experiment: str, run_name: str, tags: Mapping[str, str]) -> None:
        self._client = MlflowClient(tracking_uri=self.uri)
        self.experiment_id = _find_or_create_experiment(self._client, self.uri, experiment)
        run = self._client.create_run(
            self.experiment_id, run_name=run_name, tags=resolve_tags(dict(tags))
        )
        self.run_id = run.info.run_id

    @property
    def is_recording(self) -> bool:
        """Whether the run could be started."""
        return bool(self.run_id)

    def describe(self) -> dict[str, str]:
        """Say where the run is recorded; empty if it could not be started."""
        if not self.is_recording:
            return {}
        return {"uri": self.uri, "experiment_id": self.experiment_id, "run_id": self.run_id}

    def log_params(self, params: Mapping[str, Any]) -> None:
        """Record parameters; long ones are cut, and all are kept whole in 'params.json'."""
        texts = {
            name: value if isinstance(value, str) else json.dumps(value)
            for name, value in params.items()
        }
        short = [Param(name, _shorten(text)) for name, text in texts.items()]
        self._try_to("log parameters", lambda: self._client.log_batch(self.run_id, params=short))
        if any(len(text) > _PARAM_CHARACTERS for text in texts.values()):
            self._try_to(
                "log the long parameters",
                lambda: self._client.log_dict(self.run_id, dict(params), "params.json"),
            )

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
        dataset = Dataset(
            name=name,
            digest=hashlib.sha256(text.encode()).hexdigest()[:8],
            source_type="local",
            source=json.dumps({"uri": path}),
            profile=text,
        )
        inputs = [DatasetInput(dataset, [])]
        self._try_to(
            "log the data set", lambda: self._client.log_inputs(self.run_id, datasets=inputs)
        )

    def log_metrics(self, metrics: Mapping[str, float], *, step: int) -> None:
        """Record values of one step; they are sent together, every few seconds."""
        now_ms = time.time_ns() // 1_000_000
        self._waiting += [
            Metric(name, float(value), now_ms, step) for name, value in metrics.items()
        ]
        if time.monotonic() >= self._next_flush_s:
            self._try_to("log metrics", self._flush)
            self._next_flush_s = time.monotonic() + _FLUSH_INTERVAL_S

    def last_step(self, name: str) -> int:
        """Find the last step that has a value of a metric; 0 if there is none, or none is found."""
        steps = [0]

        def find() -> None:
            steps.extend(
                metric.step for metric in self._client.get_metric_history(self.run_id, name)
            )

        self._try_to(f"read {name}", find)
        return max(steps)

    def set_tags(self, tags: Mapping[str, str]) -> None:
        """Set tags of the run."""
        run_tags = [RunTag(name, value) for name, value in tags.items()]
        self._try_to("set tags", lambda: self._client.log_batch(self.run_id, tags=run_tags))

    def _flush(self) -> None:
        while self._waiting:
            batch = self._waiting[:_BATCH_METRICS]
            self._client.log_batch(self.run_id, metrics=batch)
            del self._waiting[: len(batch)]

    def log_files(self, paths: Sequence[Path]) -> None:
        """Record files as artifacts of the run."""
        for path in paths:
            self._try_to(f"log {path.name}", partial(self._log_file, path))

    def _log_file(self, path: Path) -> None:
        self._client.log_artifact(self.run_id, str(path))

    def log_model(self, path: Path) -> None:
        """Record a model file as an MLflow model named 'model', which `mlflow.pyfunc` loads."""
        self._try_to("log the model", lambda: self._log_model(path))

    def _log_model(self, path: Path) -> None:
        model = load_model(path)
        logged = self._client.create_logged_model(
            self.experiment_id,
            name="model",
            source_run_id=self.run_id,
            params={"loss": model.loss, **{k: str(v) for k, v in model.loss_parameters.items()}},
            model_type="linear classifier",
        )
        with tempfile.TemporaryDirectory() as folder:
            target = Path(folder) / "model"
            save_pyfunc(
                path, target, mlflow_model=MlflowModel(model_id=logged.model_id, run_id=self.run_id)
            )
            self._client.log_model_artifacts(logged.model_id, str(target))
        self._client.finalize_logged_model(logged.model_id, LoggedModelStatus.READY)
        output = LoggedModelOutput(logged.model_id, step=0)
        self._client.log_outputs(self.run_id, models=[output])

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
        self._try_to("end the run", lambda: self._client.set_terminated(self.run_id, status))

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
                self.uri,
                what,
                _shorten_reason(error),
            )


def save_pyfunc(path: Path, target: Path, *, mlflow_model: MlflowModel | None = None) -> None:
    """Write a model file as an MLflow model folder; it is loaded by `_load_pyfunc` below.

    Loading it takes dtopk, which is not among the requirements that the folder lists: it is on no
    package index, where its name may be another's.

    Parameters
    ----------
    path : path of the model file
    target : path of the new folder
    mlflow_model : mlflow.models.Model, optional
        Carries the ids of the run and model.
    """
    model = load_model(path)
    with quiet_mlflow():
        mlflow.pyfunc.save_model(
            str(target),
            loader_module="dtopk.tracking",
            data_path=str(path),
            signature=_make_signature(model),
            pip_requirements=[f"numpy=={np.__version__}"],
            mlflow_model=mlflow_model,
        )


class PyfuncTopK:
    """What `mlflow.pyfunc.load_model` wraps: a data frame of the k best classes of every row."""

    def __init__(self, model: Model):
        self._model = model

    def predict(
        self, model_input: "NDArray[Any] | pd.DataFrame", params: Mapping[str, Any] | None = None
    ) -> "pd.DataFrame":
        """Name the best classes.

        Parameters
        ----------
        model_input : array or data frame of shape (n_samples, n_features)
        params : mapping, optional
            'k': number of classes to name, 1 by default.

        Returns
        -------
        pandas.DataFrame
            Columns label_1, score_1, label_2, ..., best first.
        """
        import pandas as pd

        k = int((params or {}).get("k", 1))
        labels, scores = self._model.predict_topk(np.asarray(model_input), k)
        columns = {}
        for place in range(k):
            columns[f"label_{place + 1}"] = labels[:, place]
            columns[f"score_{place + 1}"] = scores[:, place]
        return pd.DataFrame(columns)


def _load_pyfunc(data_path: str) -> PyfuncTopK:
    """Load what `save_pyfunc` wrote; MLflow calls it by this name."""
    return PyfuncTopK(load_model(data_path))


def list_experiments(uri: str) -> dict[str, str]:
    """List the experiments that have runs, that of the newest run first.

    Parameters
    ----------
    uri : str
        Tracking URI.

    Returns
    -------
    dict
        The id of each experiment by its name.

    Raises
    ------
    ValueError
        If MLflow cannot read the store.
    """
    started = {}
    try:
        with quiet_mlflow():
            client = MlflowClient(tracking_uri=uri)
            for experiment in client.search_experiments():
                runs = client.search_runs(
                    [experiment.experiment_id], order_by=["start_time DESC"], max_results=1
                )
                if runs:
                    started[experiment] = runs[0].info.start_time
    # MLflow raises what its stores do, as in `MlflowRun`.
    except Exception as error:
        raise ValueError(
            f"tracking store must be one that MLflow can read, got {uri!r}: "
            f"{_shorten_reason(error)}."
        ) from error
    newest_first = sorted(started, key=lambda experiment: started[experiment], reverse=True)
    return {str(each.name): str(each.experiment_id) for each in newest_first}


@contextlib.contextmanager
def quiet_mlflow() -> Iterator[None]:
    """Keep back what MLflow says of its own parts.

    It warns of the deprecated calls in its libraries, and logs every step by which it creates a
    database. Neither is anything that a user of dtopk could act on.
    """
    for name in ("alembic", "mlflow.store.db.utils"):
        logging.getLogger(name).setLevel(logging.WARNING)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def _find_or_create_experiment(client: MlflowClient, uri: str, name: str) -> str:
    found = client.get_experiment_by_name(name)
    if found is not None:
        return str(found.experiment_id)
    location = None
    if uri.startswith("sqlite:///"):
        # Without a location artifacts would go to the working directory.
        database = Path(uri.removeprefix("sqlite:///")).absolute()
        location = (database.parent / "mlartifacts").as_uri()
    return str(client.create_experiment(name, artifact_location=location))


def _shorten_reason(error: BaseException) -> str:
    """Take the system's own words for a failed connection; else the first line of the message."""
    inner: BaseException | None = error
    while inner is not None:
        if isinstance(inner, OSError) and inner.strerror:
            return inner.strerror
        inner = inner.__cause__ or inner.__context__
    line = str(error).partition("\n")[0].rstrip(".")
    return line if len(line) <= _REASON_CHARACTERS else line[: _REASON_CHARACTERS - 3] + "..."


def _shorten(text: str) -> str:
    return text if len(text) <= _PARAM_CHARACTERS else text[: _PARAM_CHARACTERS - 3] + "..."


def _make_signature(model: Model) -> ModelSignature:
    label_type = "long" if model.classes.dtype.kind in "iu" else "string"
    score_type = "double" if model.W.dtype == np.float64 else "float"
    return ModelSignature(
        inputs=Schema([TensorSpec(np.dtype(model.W.dtype), (-1, model.n_features))]),
        outputs=Schema([ColSpec(label_type, "label_1"), ColSpec(score_type, "score_1")]),
        params=ParamSchema([ParamSpec("k", "long", 1)]),
    )
