"""The names in a job that stand for parts of the program: its loss and its solver."""

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from dtopk.engine import SOLVERS
from dtopk.job.checks import JobValueError, check_choice
from dtopk.job.config import TrainJob
from dtopk.job.sweep_config import Setting, SweepJob, iter_grid, values_key
from dtopk.losses import Loss, make_loss
from dtopk_storage.errors import DatasetError, describe_error
from dtopk_storage.npy_files import map_array


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
        if not path.is_file():
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))
        if path.suffix == ".npy":
            matrix = np.array(map_array(path), dtype=np.float64)
        else:
            matrix = np.loadtxt(path, delimiter=",", ndmin=2)
        if matrix.size == 0:
            raise ValueError("it is empty.")
        return matrix
    except OSError as error:
        raise ValueError(f"{wanted} got {str(path)!r}: {error.strerror or error}.") from error
    except DatasetError as error:
        raise ValueError(f"{wanted} got another: {error}") from error
    except Exception as error:  # numpy does not say what it raises for a damaged file.
        raise ValueError(f"{wanted} got {str(path)!r}: {describe_error(error)}") from error


def check_names(job: TrainJob) -> None:
    """Refuse a loss or solver that is not known, and parameters that the loss does not take."""
    if isinstance(job, SweepJob):
        list_settings(job)
    else:
        build_loss(job)
    check_choice("solver.name", job.solver.name, SOLVERS)


def list_settings(job: SweepJob) -> tuple[list[Setting], dict[str, str]]:
    """List the settings of a sweep, and those that are left out.

    Parameters
    ----------
    job : SweepJob

    Returns
    -------
    settings : list of Setting
        Those of a loss follow each other, from small to large C.
    left_out : dict of str to str
        By the name of a setting whose loss does not take one of its values: why.

    Raises
    ------
    ValueError
        If a loss is not known, or has no setting left.
    """
    settings: list[Setting] = []
    left_out: dict[str, str] = {}
    grid = list(iter_grid(job))
    for loss in dict.fromkeys(setting.loss for setting in grid):
        fault = None
        for setting in (each for each in grid if each.loss == loss):
            try:
                build_loss(setting.make_job(job, job.output.run_dir))
                settings.append(setting)
            except JobValueError as error:
                left_out[setting.name] = str(error)
                fault = fault or error
        if fault is not None and not any(setting.loss == loss for setting in settings):
            keys = (values_key(job, key.partition(".")[2]) for key in fault.keys)
            raise JobValueError(str(fault), *keys) from fault
    return settings, left_out


@contextmanager
def naming_key(key: str) -> Iterator[None]:
    """Say what the value was set by that an error of a lower room is about."""
    try:
        yield
    except ValueError as error:
        raise type(error)(f"{error} Set by {key}.") from error
