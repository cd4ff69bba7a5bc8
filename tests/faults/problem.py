"""The small problem that all schedules are about: rows, jobs and the formulas of its optimum."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from dtopk.testing import make_features

N_ROWS, N_FEATURES, N_CLASSES = 480, 10, 5
TEST_FRACTION = 0.25
CHUNK_ROWS = 48
CHUNK_MIB = CHUNK_ROWS * N_FEATURES * 4 / (1 << 20)

_JOB = """
version = 1
[data]
store = "{store}"
evaluate = ["test"]
{model}
[solver]
name = "{solver}"
tol = {tol}
max_epochs = {max_epochs}
dtype = "float64"
[cluster]
checkpoint_s = 0.0
{cluster}
[tracking]
mlflow = false
"""

_CLUSTER = """
kind = "scheduler"
scheduler = "{scheduler}"
partitions = 4
threads_per_partition = 1
min_workers = 1
wait_s = 60.0
round_timeout_s = 5.0
"""

_SWEEP = """
version = 1
[data]
store = "{store}"
validation = "test"
evaluate = []
[model]
loss = "softmax"
[solver]
tol = 1e-2
dtype = "float64"
[sweep]
C = [0.1, 1.0, 10.0]
width = 2
[tracking]
mlflow = false
"""


@dataclass(frozen=True, kw_only=True)
class Training:
    """What is trained, and until when."""

    loss: str = "topk_hinge_alpha"
    k: int = 2
    gamma: float = 0.5
    C: float = 2.0
    solver: str = "sdca"
    tol: float = 1e-5
    max_epochs: int = 60


SMOOTH_HINGE = Training()
SOFTMAX = Training(loss="softmax", C=5.0, tol=1e-7)
LBFGS = Training(loss="softmax", C=2.0, solver="lbfgs", tol=1e-3)
IN_S3 = Training(C=0.5, tol=1e-3)
"""A few epochs: each writes some thirty objects."""
ON_CLUSTER = Training(loss="softmax", C=5.0, tol=1e-12, max_epochs=12)


def format_job(store: str, training: Training, scheduler: str = "") -> str:
    """Write the job of a training.

    Parameters
    ----------
    store : str
    training : Training
    scheduler : str
        File of the scheduler whose workers train; empty: this process does.
    """
    model = f'[model]\nloss = "{training.loss}"\nC = {training.C}'
    if training.loss != "softmax":
        model += f"\nk = {training.k}\ngamma = {training.gamma}"
    return _JOB.format(
        store=store,
        model=model,
        solver=training.solver,
        tol=training.tol,
        max_epochs=training.max_epochs,
        cluster=_CLUSTER.format(scheduler=scheduler) if scheduler else "",
    ).lstrip()


def format_sweep(store: str) -> str:
    """Write the job of the sweep.

    Parameters
    ----------
    store : str
    """
    return _SWEEP.format(store=store).lstrip()


def make_rows() -> tuple[NDArray[np.float32], NDArray[np.int32]]:
    """Draw the rows.

    Returns
    -------
    X : ndarray of shape (N_ROWS, N_FEATURES), float32
    y : ndarray of shape (N_ROWS,), int32
    """
    return make_features(N_ROWS, N_FEATURES, N_CLASSES, seed=5)


def write_sources(folder: Path) -> None:
    """Write the rows as ``rows.npz`` and as ``rows.csv``, labels last.

    Parameters
    ----------
    folder : Path
    """
    X, y = make_rows()
    np.savez(folder / "rows.npz", X=X, y=y)
    names = [f"x{index}" for index in range(N_FEATURES)]
    lines = [
        ",".join([*map(repr, row.tolist()), f"c{label}"]) for row, label in zip(X, y, strict=True)
    ]
    (folder / "rows.csv").write_text("\n".join([",".join([*names, "label"]), *lines, ""]))
