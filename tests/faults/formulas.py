"""The formulas that hold of what has been trained, computed from the files by the definitions.

Every check returns what is broken, a sentence each; nothing: all is well.
"""

import json
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dtopk.job.verification import verify_run
from dtopk.losses import make_loss
from dtopk.model import load_model
from dtopk.testing import dual_value, infeasibility, primal_value
from dtopk_storage import FeatureStore, open_dual, open_store
from tests.faults.operations import RUN, STORE, Place
from tests.faults.problem import Training

_ROUNDING = 1e-9
"""Of sums of some thousand terms in float64, in another order."""
_FEASIBLE = 1e-9
"""By how much a dual may leave its domain, in units of its cost."""


def read_training_rows(store: FeatureStore) -> tuple[NDArray[Any], NDArray[Any]]:
    """Read the training rows of a store.

    Returns
    -------
    X : ndarray of shape (n_samples, n_features)
    y : ndarray of shape (n_samples,)
    """
    batches = list(store.iter_batches("train", store.n_samples))
    return np.vstack([each.X for each in batches]), np.concatenate([each.y for each in batches])


def check_weights_of_state(
    place: Place, progress: dict[str, Any], arrays: dict[str, NDArray[Any]]
) -> list[str]:
    """Check that the weights of a state are ``W = c Z + X'A / r``, with ``c = 1 - 1/r``.

    Parameters
    ----------
    place : Place
    progress : dict
        Of the state; r is its ratio.
    arrays : dict of str to ndarray
        Pieces of W, Z (the centre) and A (the duals) by name, a slash and a number.
    """
    if "ratio" not in progress:
        return []  # another solver than sdca
    W, Z, dual = (_stack(arrays, kind) for kind in ("W", "centre", "dual"))
    ratio = progress["ratio"]
    X = read_training_rows(open_store(place.out / STORE))[0].astype(np.float64)
    expected = X.T @ dual / ratio
    if len(Z):
        expected += (1 - 1 / ratio) * Z
    difference = float(np.abs(W - expected).max())
    if not difference <= 1e-10 * max(1.0, float(np.abs(W).max())):
        return [f"wrong result: W of the state is off c Z + X'A / r by {difference:.1e}"]
    return []


def _stack(arrays: dict[str, NDArray[Any]], kind: str) -> NDArray[Any]:
    """Put the pieces of an array under one another, in the order of their numbers."""
    names = [name for name in arrays if name.startswith(f"{kind}/")]
    names.sort(key=lambda name: int(name.rpartition("/")[2]))
    return np.vstack([arrays[name] for name in names]) if names else np.zeros((0, 0))


def check_certificate(place: Place, training: Training) -> list[str]:
    """Check the certificate of a run against the definitions of loss and conjugate.

    Parameters
    ----------
    place : Place
    training : Training
    """
    run = place.out / RUN
    result = json.loads((run / "result.json").read_text())
    smooth = {} if training.loss == "softmax" else {"k": training.k, "gamma": training.gamma}
    loss = make_loss(training.loss, **smooth)
    X, y = read_training_rows(open_store(place.out / STORE))
    costs = np.full(len(y), training.C)
    duals = open_dual(run / "dual")
    dual = duals.read(0, duals.n_samples)[: len(y)]
    broken = []
    worst = max(infeasibility(loss, a, label, training.C) for a, label in zip(dual, y, strict=True))
    if worst > _FEASIBLE:
        broken.append(f"wrong result: a dual is {worst:.1e} outside its domain")
    primal = primal_value(loss, X, y, costs, load_model(run / "model.npz").W)
    bound = dual_value(loss, X, y, costs, dual)
    for name, value in (("primal", primal), ("dual", bound)):
        if not abs(value - result[name]) <= _ROUNDING * abs(primal):
            broken.append(f"wrong result: {name} is {value!r}, but {result[name]!r} is certified")
    try:
        verify_run(run)
    except ValueError as error:
        broken.append(f"wrong result: {error}")
    return broken


def check_sweep(place: Place, reference: dict[str, bytes]) -> list[str]:
    """Check what a sweep that was broken off has found, of which other digits are no fault.

    Models start from others that are done, and those that are done differ then. The objective of
    each must be what is certified, and its optimum lie between the same two values.

    Parameters
    ----------
    place : Place
    reference : dict of str to bytes
        What it leaves unharmed.
    """
    X, y = read_training_rows(open_store(place.out / STORE))
    broken = []
    for name, body in reference.items():
        folder, _, last = name.rpartition("/")
        if last != "result.json":
            continue
        wanted, path = json.loads(body), place.out.joinpath(*folder.split("/"))
        result = json.loads((path / last).read_text())
        loss, costs = make_loss(result["loss"]), np.full(len(y), result["C"])
        primal = primal_value(loss, X, y, costs, load_model(path / "model.npz").W)
        if not result["certified"] or result["dual"] > wanted["primal"]:
            broken.append(f"wrong result: the optimum of {folder!r} is not where it was")
        if not abs(primal - result["primal"]) <= _ROUNDING * abs(primal):
            broken.append(f"wrong result: primal of {folder!r} is {primal!r}")
    return broken
