"""Certified optimal linear classifiers with top-k losses, on precomputed features.

Training minimises ``C * sum_i L(y_i, W' x_i) + 0.5 * ||W||^2`` by stochastic dual coordinate
ascent and stops when the duality gap proves the weights optimal to the tolerance asked for.

Nothing is imported until it is used, so that ``import dtopk`` costs little.

Attributes
----------
train : function
    Train from a feature store and a job; see `dtopk.job`.
sweep : function
    Train a model of each setting of a job and choose the best; see `dtopk.job`.
TopKClassifier, TopKClassifierCV, MultilabelClassifier, KernelTopKClassifier : class
    The scikit-learn estimators; see `dtopk.estimators`.
Callback : class
    What is told of training while it goes on, and may end it; see `dtopk.engine`.
load_model, Model : function, class
    Read a trained model and predict with it; see `dtopk.model`.
make_loss : function
    Build a loss from its name and parameters; see `dtopk.losses`.
open_store : function
    Open a feature store for reading; see `dtopk_storage`.
__version__ : str
    The version installed.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dtopk.engine import Callback
    from dtopk.estimators import (
        KernelTopKClassifier,
        MultilabelClassifier,
        TopKClassifier,
        TopKClassifierCV,
    )
    from dtopk.job import sweep, train
    from dtopk.losses import make_loss
    from dtopk.model import Model, load_model
    from dtopk_storage import open_store

    __version__: str

__all__ = [
    "Callback",
    "KernelTopKClassifier",
    "Model",
    "MultilabelClassifier",
    "TopKClassifier",
    "TopKClassifierCV",
    "__version__",
    "load_model",
    "make_loss",
    "open_store",
    "sweep",
    "train",
]

_HOME = {
    "Callback": "dtopk.engine",
    "KernelTopKClassifier": "dtopk.estimators",
    "Model": "dtopk.model",
    "MultilabelClassifier": "dtopk.estimators",
    "TopKClassifier": "dtopk.estimators",
    "TopKClassifierCV": "dtopk.estimators",
    "load_model": "dtopk.model",
    "make_loss": "dtopk.losses",
    "open_store": "dtopk_storage",
    "sweep": "dtopk.job",
    "train": "dtopk.job",
}


def __getattr__(name: str) -> object:
    """Import a public name from its home on first use (PEP 562)."""
    if name == "__version__":
        from importlib.metadata import version

        value: object = version("dtopk")
    elif name in _HOME:
        value = getattr(import_module(_HOME[name]), name)
    else:
        raise AttributeError(f"module 'dtopk' has no attribute {name!r}.")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
