"""Turn an estimator's parameters into the engine's options."""

import math
import sys
from collections.abc import Callable, Mapping
from numbers import Integral, Real
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.utils import check_random_state, compute_class_weight

from dtopk.engine import FitOptions
from dtopk.losses import Loss, LossInfo, available, make_loss

Array = NDArray[Any]

_NUMBERS: tuple[tuple[str, type], ...] = (
    ("C", Real),
    ("tol", Real),
    ("intercept_scaling", Real),
    ("max_epochs", Integral),
    ("time_limit_s", Real),
    ("block_size", Integral),
    ("n_jobs", Integral),
    ("partitions", Integral),
)
_MAY_BE_NONE = ("time_limit_s", "block_size", "n_jobs", "partitions")


def make_options(parameters: Mapping[str, Any]) -> FitOptions:
    """Check parameters by their own names, and make the engine's options of them.

    Parameters
    ----------
    parameters : mapping of str
        Those of `TopKClassifier`, as `get_params` returns them.

    Returns
    -------
    FitOptions
        Without class weights; with 1 partition where they are to be counted.

    Raises
    ------
    TypeError, ValueError
        If a parameter breaks its rule.
    """
    for name, kind in _NUMBERS:
        if not (parameters[name] is None and name in _MAY_BE_NONE):
            check_number(name, parameters[name], kind)
    scaling, block_size = parameters["intercept_scaling"], parameters["block_size"]
    if not 0 < scaling <= sys.float_info.max:
        raise ValueError(f"intercept_scaling must be finite and above 0, got {scaling!r}.")
    if block_size is not None and block_size < 1:
        raise ValueError(f"block_size must be None or at least 1, got {block_size!r}.")
    limit = parameters["time_limit_s"]
    return FitOptions(
        C=parameters["C"],
        tol=parameters["tol"],
        max_epochs=parameters["max_epochs"],
        time_limit_s=math.inf if limit is None else limit,
        solver=parameters["solver"],
        acceleration=parameters["acceleration"],
        dtype=parameters["dtype"],
        block_size=block_size or 0,
        constant=scaling if parameters["fit_intercept"] else 0.0,
        threads=_count_threads(parameters["n_jobs"]),
        partitions=1 if parameters["partitions"] is None else parameters["partitions"],
        seed=int(check_random_state(parameters["random_state"]).randint(2**31 - 1)),
    )


def make_class_loss(
    estimator: Any, suits: Callable[[Loss | LossInfo], bool], rule: str, hint: str = ""
) -> Loss:
    """Make the loss of an estimator of one class a row.

    Parameters
    ----------
    estimator : estimator
        With the parameters `loss`, `k`, `gamma`, `smoothing`, `rho` and `label_cost`.
    suits : callable
        Tells whether it can be trained with a loss.
    rule : str
        What such losses are for, in the message.
    hint : str
        The end of the message.

    Raises
    ------
    ValueError
        If the loss is unknown, does not take the parameters, or does not suit.
    """
    loss = make_loss(
        estimator.loss,
        k=estimator.k,
        gamma=estimator.gamma,
        smoothing=estimator.smoothing,
        rho=estimator.rho,
        label_cost=estimator.label_cost,
    )
    if not suits(loss):
        names = ", ".join(repr(info.name) for info in available() if suits(info))
        raise ValueError(f"loss must be one of {names} {rule}, got {estimator.loss!r}.{hint}")
    return loss


def check_number(name: str, value: object, kind: type) -> None:
    """Refuse what is not an `Integral` or `Real` number, as asked, with a TypeError."""
    if isinstance(value, bool) or not isinstance(value, kind):
        what = "an integer" if kind is Integral else "a number"
        raise TypeError(f"{name} must be {what}, got {value!r}.")


def _count_threads(n_jobs: int | None) -> int:
    """Return the engine's number of threads, 0 for what the BLAS library is set to."""
    if n_jobs is None or n_jobs == -1:
        return 0
    if n_jobs < 1:
        raise ValueError(f"n_jobs must be None, -1 or at least 1, got {n_jobs!r}.")
    return n_jobs


def weigh_classes(
    class_weight: Mapping[Any, float] | str | None, classes: Array, totals: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Return each class's weight; refuse what leaves fewer than two classes to tell apart.

    Parameters
    ----------
    class_weight : mapping, 'balanced' or None
    classes : ndarray of shape (n_classes,)
    totals : ndarray of shape (n_classes,), float64
        Sum of the sample weights of each class.

    Returns
    -------
    ndarray of shape (n_classes,), float64

    Raises
    ------
    ValueError
        If a weight is negative, or fewer than two classes have samples of a weight above 0.
    """
    weights = np.ones(len(classes))
    if isinstance(class_weight, str) and class_weight == "balanced":
        present = totals > 0
        weights[present] = totals.sum() / (np.count_nonzero(present) * totals[present])
    elif class_weight is not None:
        weights = compute_class_weight(class_weight, classes=classes, y=classes)
        if not (np.isfinite(weights).all() and (weights >= 0).all()):
            raise ValueError(f"class_weight must be finite and at least 0, got {class_weight!r}.")
    left = classes[totals * weights > 0].tolist()
    if len(left) < 2:
        found = f"only one class: {left[0]!r}" if left else "no class of a weight above 0"
        raise ValueError(
            "This solver needs samples of at least 2 classes in the data, but the data contains "
            f"{found}."
        )
    return weights
