"""MLflow's client: what of it is imported, where its store lies, and how long it may take."""

import contextlib
import logging
import os
import warnings
from collections.abc import Iterator
from pathlib import Path

from dtopk_storage.addresses import has_password, redact

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
    from mlflow.exceptions import MlflowException
    from mlflow.models import Model as MlflowModel
    from mlflow.models import ModelSignature
    from mlflow.tracking import MlflowClient
    from mlflow.tracking.context.registry import resolve_tags
    from mlflow.types import ColSpec, ParamSchema, ParamSpec, Schema, TensorSpec

__all__ = [
    "ColSpec",
    "Dataset",
    "DatasetInput",
    "LoggedModelOutput",
    "LoggedModelStatus",
    "Metric",
    "MlflowClient",
    "MlflowException",
    "MlflowModel",
    "ModelSignature",
    "Param",
    "ParamSchema",
    "ParamSpec",
    "RunTag",
    "Schema",
    "TensorSpec",
    "check_tracking_uri",
    "default_tracking_uri",
    "describe_failure",
    "is_refusal",
    "list_experiments",
    "mlflow",
    "name_uri",
    "quiet_mlflow",
    "resolve_tags",
    "settle_mlflow",
    "silence_warnings",
]

_REASON_CHARACTERS = 200
"""Longest reason of a failure in a message."""
_SETTINGS = {
    # A request is given up after a minute; MLflow's own limits come to a quarter of an hour. Less
    # would be too little for a server that sends a large model on to an object store.
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "30",
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1",
    # It would be in the midst of what a command answers.
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",
}
"""MLflow reads them from the environment of the process, and nowhere else."""
_REFUSALS = frozenset(
    {"INVALID_PARAMETER_VALUE", "RESOURCE_ALREADY_EXISTS", "RESOURCE_DOES_NOT_EXIST"}
)
"""MLflow's codes of errors that come again whenever the same is sent."""


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


def name_uri(uri: str) -> str:
    """Return a tracking URI as it may be written down: without a password.

    Parameters
    ----------
    uri : str
    """
    return redact(uri) if has_password(uri) else uri


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


def settle_mlflow() -> None:
    """Have MLflow give up a request after a minute, and print nothing, unless told otherwise.

    What the environment says stays.
    """
    for name, value in _SETTINGS.items():
        os.environ.setdefault(name, value)


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
    settle_mlflow()
    try:
        with quiet_mlflow():
            client = MlflowClient(tracking_uri=uri)
            for experiment in client.search_experiments():
                runs = client.search_runs(
                    [experiment.experiment_id], order_by=["start_time DESC"], max_results=1
                )
                if runs:
                    started[experiment] = runs[0].info.start_time
    # MLflow raises what its stores do: its own errors, SQLAlchemy's, requests', OSError.
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
    _silence_logs()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def silence_warnings() -> None:
    """Keep back the same in a thread beside others.

    `warnings.catch_warnings` is not for that: what it puts back at its end may be what another
    thread has put there meanwhile. Ignoring what comes from MLflow's own modules harms nobody.
    """
    _silence_logs()
    warnings.filterwarnings("ignore", module=r"(mlflow|sqlalchemy|alembic)(\.|$)")


def _silence_logs() -> None:
    for name in ("alembic", "mlflow.store.db.utils", "mlflow.pyfunc"):
        logging.getLogger(name).setLevel(logging.WARNING)
    # It tells of every request that it repeats, where we tell of an outage once.
    logging.getLogger("urllib3.connectionpool").setLevel(logging.ERROR)


def is_refusal(error: Exception) -> bool:
    """Tell whether MLflow has understood a request and will never do what it asks for.

    Parameters
    ----------
    error : Exception
    """
    if isinstance(error, MlflowException):
        return error.error_code in _REFUSALS
    return isinstance(error, FileNotFoundError)


def describe_failure(error: Exception) -> str:
    """Say in a line, without passwords, why MLflow failed.

    Parameters
    ----------
    error : Exception
    """
    return redact(_shorten_reason(error))


def _shorten_reason(error: BaseException) -> str:
    """Take the system's own words for a failed connection; else the first line of the message."""
    inner: BaseException | None = error
    while inner is not None:
        if isinstance(inner, OSError) and inner.strerror:
            return inner.strerror
        inner = inner.__cause__ or inner.__context__
    line = str(error).partition("\n")[0].rstrip(".")
    if "timed out" in line or "timeout exception" in line:
        return "no answer in time"
    return line if len(line) <= _REASON_CHARACTERS else line[: _REASON_CHARACTERS - 3] + "..."
