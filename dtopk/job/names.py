"""The names in a job that stand for parts of the program: its loss and its solver."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from dtopk.engine import SOLVERS
from dtopk.job.checks import JobValueError, check_choice
from dtopk.job.config import TrainJob
from dtopk.losses import Loss, make_loss


def build_loss(job: TrainJob) -> Loss:
    """Make the loss that a job names.

    Raises
    ------
    ValueError
        If there is none of that name, or it does not take a parameter that is given.
    """
    model = job.model
    try:
        return make_loss(
            model.loss,
            k=model.k,
            gamma=model.gamma,
            smoothing=model.smoothing,
            rho=model.rho or None,
            label_cost=_read_matrix(Path(model.label_cost)) if model.label_cost else None,
        )
    except ValueError as error:
        parameter = str(error).partition(" ")[0]
        raise JobValueError(str(error), f"model.{parameter}", "model.loss") from error


def _read_matrix(path: Path) -> NDArray[np.float64]:
    """Read the numbers of a .npy or .csv file.

    Raises
    ------
    ValueError
        If there is no such file, or it holds something else.
    """
    wanted = "label_cost must be a .npy or .csv file of numbers,"
    try:
        if path.suffix == ".npy":
            matrix = np.asarray(np.load(path, allow_pickle=False), dtype=np.float64)
        else:
            matrix = np.loadtxt(path, delimiter=",", ndmin=2)
        if matrix.size == 0:
            raise ValueError("it is empty.")
        return matrix
    except OSError as error:
        raise ValueError(f"{wanted} got {str(path)!r}: {error.strerror or error}.") from error
    except (EOFError, ValueError) as error:
        raise ValueError(f"{wanted} got {str(path)!r}: {error}") from error


def check_names(job: TrainJob) -> None:
    """Refuse a loss or solver that is not known, and parameters that the loss does not take."""
    build_loss(job)
    check_choice("solver.name", job.solver.name, SOLVERS)


@contextmanager
def naming_key(key: str) -> Iterator[None]:
    """Say what the value was set by that an error of a lower room is about."""
    try:
        yield
    except ValueError as error:
        raise type(error)(f"{error} Set by {key}.") from error
