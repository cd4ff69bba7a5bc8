"""The solvers of the suite, one small adapter each. What they adapt is imported when they run."""

import importlib

from dtopk.benchmarks.peers.base import ArrayPeer, Effort, Fitted, Peer, Task
from dtopk.benchmarks.peers.dask_ml import DaskMl
from dtopk.benchmarks.peers.liblinear import Liblinear, LiblinearPrimal
from dtopk.benchmarks.peers.lightning import LightningSdca
from dtopk.benchmarks.peers.own import Own, OwnOnDask, Reference
from dtopk.benchmarks.peers.pytorch import TorchLbfgs, TorchSgd
from dtopk.benchmarks.peers.scikit_learn import CrammerSinger, Lbfgs, NewtonCg, Sgd
from dtopk.benchmarks.peers.snap_ml import SnapMl
from dtopk.benchmarks.peers.spams_fista import SpamsFista
from dtopk.benchmarks.peers.spark import SparkLogistic

PEERS: dict[str, type[Peer]] = {
    "dtopk": Own,
    "dtopk-dask": OwnOnDask,
    "sklearn-lbfgs": Lbfgs,
    "sklearn-newton-cg": NewtonCg,
    "sklearn-crammer-singer": CrammerSinger,
    "sklearn-sgd": Sgd,
    "liblinear": Liblinear,
    "liblinear-primal": LiblinearPrimal,
    "snapml": SnapMl,
    "lightning": LightningSdca,
    "spams": SpamsFista,
    "torch-lbfgs": TorchLbfgs,
    "torch-sgd": TorchSgd,
    "spark": SparkLogistic,
    "dask-ml": DaskMl,
}
"""By the name that `--peers` takes; dtopk comes first, as others are compared with it."""

REFERENCE = "reference"
"""Name of the run that gives the lower bound."""

__all__ = ["PEERS", "REFERENCE", "ArrayPeer", "Effort", "Fitted", "Peer", "Task", "find_peer"]


def find_peer(name: str) -> type[Peer]:
    """Return the adapter of a name.

    Parameters
    ----------
    name : str
        One of :data:`PEERS`, or 'package.module:Class' for an adapter of one's own.

    Returns
    -------
    type
        A subclass of :class:`Peer`.

    Raises
    ------
    ValueError
        If there is none.
    """
    if name == REFERENCE:
        return Reference
    if name in PEERS:
        return PEERS[name]
    module, colon, attribute = name.partition(":")
    if not colon:
        available = ", ".join(map(repr, PEERS))
        raise ValueError(f"peer {name!r} is unknown. Available: {available}.")
    try:
        found = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        raise ValueError(f"peer {name!r} cannot be imported: {error}.") from error
    if not (isinstance(found, type) and issubclass(found, Peer)):
        raise ValueError(f"peer {name!r} must be a subclass of Peer, got {found!r}.")
    return found
