"""Record training runs with MLflow, and never let MLflow's failures cost a run.

`BackgroundRun` records a run that trains: what it is given goes to a queue, which a thread sends,
and what MLflow has not taken is kept in the run folder. `MlflowRun` is for who can wait.
"""

from dtopk.tracking.background import BackgroundRun
from dtopk.tracking.client import (
    MlflowClient,
    check_tracking_uri,
    default_tracking_uri,
    list_experiments,
    mlflow,
    name_uri,
    quiet_mlflow,
)
from dtopk.tracking.delivery import SendError, send_kept
from dtopk.tracking.pyfunc import PyfuncTopK, _load_pyfunc, save_pyfunc
from dtopk.tracking.run import MlflowRun

__all__ = [
    "BackgroundRun",
    "MlflowClient",
    "MlflowRun",
    "PyfuncTopK",
    "SendError",
    "_load_pyfunc",
    "check_tracking_uri",
    "default_tracking_uri",
    "list_experiments",
    "mlflow",
    "name_uri",
    "quiet_mlflow",
    "save_pyfunc",
    "send_kept",
]
